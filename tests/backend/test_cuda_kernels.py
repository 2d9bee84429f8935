"""Kernels of the batched engine compile for every GPU and stay in registers, for shipped models."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import LSTMChain
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import CompileOptions, Passes, Use
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.backend import CudaBackend
from vertexrt.kernels.cuda.compile import (
    Cubin,
    compile_cubin,
    compile_in_registers,
    load_nvrtc,
    spilled_of,
)
from vertexrt.kernels.cuda.driver import wide_source
from vertexrt.kernels.cuda.step_end import update_source
from vertexrt.models import TreeFC, TreeLSTM

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
WORDS, CLASSES = 50, 5
TREE = [[], [], [0, 1], [], [2, 3], [-1, 4]]
CHAIN = [[], [0], [1], [2]]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with a batch that has every kind of vertex it meets in its data, and more."""

    function: vrt.VertexFunction
    lists: list[list[int]]
    pulls: dict[str, Any]
    dtype: str = "float32"
    more: bool = False  # kernels of less usual uses as well
    products: bool = True  # kernels of products as well
    edges: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    """Sizes: a multiple of everything, one of 16 bytes only, and an odd one."""
    words = {"word": np.array([1, 2, -1, 3, -1, -1])}
    label = {"label": np.array([0, -1, 1, 2, -1, 3])}
    target = {"target": vrt.Rows(np.ones((1, 1)), np.array([-1, -1, -1, -1, -1, 0]))}
    text = {"word": np.arange(4), "label": np.array([1, 2, -1, 3])}
    found = []
    for size in (256, 100, 37):
        tree = TreeLSTM(WORDS, size, size, CLASSES, dropout=0.3)
        # Of the kernels of products, the slowest to compile, the other models have some of 100.
        found.append(Case(tree, TREE, words | label, more=size == 37, products=size != 100))
        if size != 100:
            found.append(Case(TreeFC(WORDS, size), TREE, words | target))
        if size != 37:
            found.append(Case(LSTMChain(WORDS, size, size, 0.2), CHAIN, text))
    plain = TreeLSTM(WORDS, 256, 256, CLASSES)
    return [*found, Case(plain, TREE, words | label, "float64")]


class Collector:
    """A device that keeps the sources of its kernels and runs nothing."""

    name, precision, processors = "a list of sources", "float32", 132
    warp_groups = False  # their kernels are for one architecture alone

    def __init__(self) -> None:
        self.sources: dict[str, None] = {}

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Give every kernel an address that nobody calls."""
        self.sources |= dict.fromkeys(sources)
        return dict.fromkeys(kernels_in("".join(self.sources)), 1)


def kernels_in(source: str) -> list[str]:
    """Return the names of kernels."""
    return re.findall(r"VRT_KERNEL\((\w+),", source)


def sources_of(case: Case) -> list[str]:
    """Return the kernels of training and of inference; with `more`, of gradients from outside."""
    collector = Collector()
    backend = CudaBackend(collector, case.dtype)  # type: ignore[arg-type]
    traced = case.function.trace()
    dtype = np.dtype(case.dtype)
    options = CompileOptions(dtype, "frontier", Passes(), "float32", "batched", 1, None)
    model = CompiledModel(traced, backend, options, threads=1)
    batch = GraphBatch.from_graphs([InputGraph.from_children(case.lists, case.pulls, case.edges)])
    pushes = frozenset(n["name"] for n in model.function.nodes if n.op == "push")
    uses = [Use(frozenset({"loss"}), loss=True), Use(pushes)]
    if case.more:
        uses += [Use(pushes, loss=True), Use(pushes, d_pushes=pushes)]
    for use in uses:
        model.prepare(use, batch)
    return [s for s in collector.sources if case.products or "product_tile" not in s]


@functools.cache
def modules() -> list[tuple[str, list[str]]]:
    """Return kernels that are new in a case: [name of a real, sources]."""
    update = update_source()
    found = [("float32", [update]), ("float64", [update])]
    seen: set[tuple[str, str]] = set()
    for case in cases():
        new = [s for s in sources_of(case) if (case.dtype, s) not in seen]
        seen |= {(case.dtype, s) for s in new}
        found.append((case.dtype, new))
    return found


# Every kernel for the GPU they are measured on; the older and the newer one have a third each.
THOSE_OF = {"sm_80": slice(0, None, 3), "sm_90a": slice(None), "sm_100": slice(1, None, 3)}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_compiles_and_stays_in_registers(arch: str) -> None:
    try:
        load_nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))

    def one(module: tuple[str, list[str]]) -> Cubin:
        """Compile joined kernels, which saves reading the headers for each; what spills, alone."""
        dtype, sources = module
        defines = {} if dtype == "float32" else {"VRT_REAL": "double"}
        cubin = compile_cubin("\n".join(sources), arch, defines)
        spilled = {name for name, use in cubin.usage.items() if use.local}
        for source in sources:
            if spilled & set(kernels_in(source)):
                spilled -= compile_in_registers(source, arch, defines).usage.keys()
        assert not spilled
        return cubin

    if arch == "sm_90a":
        assert not spilled_of(compile_in_registers(wide_source(), arch)).bytes
    with ThreadPoolExecutor(2) as pool:
        cubins = list(pool.map(one, modules()[THOSE_OF[arch]]))
    assert sum(len(cubin.usage) for cubin in cubins) > (100 if arch == "sm_90a" else 30)
