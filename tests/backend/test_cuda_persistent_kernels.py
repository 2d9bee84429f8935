"""The persistent kernels of the shipped models compile for every GPU, and stay in registers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.test_cuda_kernels import CLASSES, WORDS, Case, cases
from tests.functions import LSTMChain
from vertexrt.engine.choose import FEWEST
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import CompileOptions, Passes, Use
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.updates import RULES, UpdateRule
from vertexrt.kernels.cuda.backend import CudaBackend
from vertexrt.kernels.cuda.compile import (
    Spilled,
    Usage,
    compile_in_registers,
    load_nvrtc,
    spilled_of,
)
from vertexrt.kernels.cuda.device import Ahead
from vertexrt.kernels.cuda.persistent import LITTLE_SPILLED
from vertexrt.models import TreeFC, TreeLSTM


class Compiler:
    """A device that compiles persistent kernels and runs nothing."""

    name, precision, warp_groups = "a compiler", "float32", True
    processors = 132

    def __init__(self, arch: str) -> None:
        self.arch, self.has_clusters = arch, arch != "sm_80"
        self.shared_bytes = (227 if self.has_clusters else 163) << 10
        self.usage: dict[str, Usage] = {}

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = tuple) -> Spilled:
        """Compile, as a GPU's device does."""
        cubin = compile_in_registers(source, self.arch, may_spill=True)
        spilled = spilled_of(cubin)
        self.usage |= {} if spilled.bytes > LITTLE_SPILLED else cubin.usage
        return spilled

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Give every kernel an address that nobody calls."""
        return dict.fromkeys(self.usage, 1)

    def argument_bytes(self) -> int:
        """Take what the least of all takes."""
        return 4096

    def clusters(self, function: int, size: int) -> int:
        """Let as many clusters run as there are processors for."""
        return self.processors // size


BOTH = [[], [], [0, 1], [], [2, 3]]  # what a treebank has: two children or none
MORE = "tree-fc"  # of which vertices with one child are compiled as well: they double a kernel


def case_of(name: str, size: int) -> Case:
    """Return a model of a size with a batch that has the kinds of vertices of its data."""
    tree_lstm, tree_fc, lstm, *_ = cases()
    if name != MORE:
        pulls = {n: v[: len(BOTH)] for n, v in tree_lstm.pulls.items()}
        tree_lstm = replace(tree_lstm, lists=BOTH, pulls=pulls)
    like, function = {
        "tree-lstm": (tree_lstm, lambda: TreeLSTM(WORDS, size, size, CLASSES, dropout=0.3)),
        "tree-fc": (tree_fc, lambda: TreeFC(WORDS, size)),
        "lstm": (lstm, lambda: LSTMChain(WORDS, size, size, 0.2)),
    }[name]
    return Case(function(), like.lists, like.pulls)


TRAINING = Use(frozenset({"loss"}), loss=True)


def made(
    arch: str, name: str, size: int, processors: int, passes: Passes
) -> tuple[Compiler, CompiledModel, GraphBatch]:
    """Return a model on a device that compiles, and a batch for it."""
    try:
        load_nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))
    case = case_of(name, size)
    device = Compiler(arch)
    backend = CudaBackend(device, "float32", passes)  # type: ignore[arg-type]
    single = np.dtype("float32")
    options = CompileOptions(single, "frontier", passes, "float32", "persistent", 1, processors)
    model = CompiledModel(case.function.trace(), backend, options, 1)
    graphs = [InputGraph.from_children(case.lists, case.pulls)]
    return device, model, GraphBatch.from_graphs(graphs)


# Every model for the GPU they are measured on, and some for an older and a newer one. One takes 9 s
# to compile, of tree-fc 3 s; large ones have to leave registers for code.
# A kernel that only evaluates is the first half of one that trains: the quickest one is enough.
# A kernel has the rule of one optimizer; there are cases for all of them.
EVALUATED = (("sm_90a", "tree-fc", 32),)
PERSISTENT = [
    *((arch, "tree-lstm", 256, 8) for arch in ("sm_90a", "sm_100")),
    ("sm_90a", "tree-fc", 64, 8),
    ("sm_80", "tree-fc", 64, 32),
    ("sm_90a", "tree-fc", 32, 2),
    ("sm_80", "lstm", 256, 32),
    ("sm_90a", "lstm", 256, FEWEST),
]


def test_every_rule_is_in_a_kernel() -> None:
    assert len(PERSISTENT) >= len(RULES)


@pytest.mark.parametrize(
    ("arch", "name", "size", "processors", "rule"),
    [
        pytest.param(*case, rule, id=f"{'-'.join(map(str, case))}-{rule.name}")
        for case, rule in zip(PERSISTENT, itertools.cycle(RULES), strict=False)
    ],
)
def test_they_compile_and_stay_in_registers(
    arch: str, name: str, size: int, processors: int, rule: UpdateRule
) -> None:
    device, model, batch = made(arch, name, size, processors, Passes())
    uses = [TRAINING._replace(rule=rule)]
    if (arch, name, size) in EVALUATED:
        uses.append(Use(frozenset(n["name"] for n in model.function.nodes if n.op == "push")))
    for use in uses:
        model.prepare(use, batch)
    assert len(device.usage) == len(uses), "the first try spilled"
    assert not any(usage.local for usage in device.usage.values()), "it may spill, and need not"
    assert min(use.registers for use in device.usage.values()) > 64, "weights are in registers"
