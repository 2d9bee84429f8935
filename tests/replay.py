"""Hash what is generated and scheduled, to show that a change leaves it as it was.

    python -m tests.replay before.json                           # at the revision before
    python -m tests.replay after.json --against before.json      # after it: prints what differs

For the functions of the tests and for random ones, in both engines: LLVM text of kernels, their
launches, scripts and places in memory, and CUDA text. Nothing is compiled and nothing
runs; hashes are those of a machine, since products depend on its registers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.backend.test_models import CASES
from tests.functions import FUNCTIONS
from tests.fuzz.batches import graph_batch
from tests.fuzz.campaign import drawn
from tests.fuzz.function import builder, source
from tests.paper_device import PaperDevice
from tests.runs import Way, cotangents
from tests.strategies import with_pulls
from vertexrt.engine.host import compile_on as compile_on_host
from vertexrt.errors import NoKernelError
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.kernels.backend import FIXED
from vertexrt.kernels.cpu.backend import CpuBackend
from vertexrt.kernels.cpu.choose_products import decide
from vertexrt.kernels.cpu.render import render
from vertexrt.kernels.cuda.compile_for_gpu import compile_on as compile_on_gpu
from vertexrt.kernels.layout import Array, Binding
from vertexrt.lower.kernel import KernelIR
from vertexrt.lower.lowering import lower
from vertexrt.native.scope import stored_as

RANDOM = 300
VERTICES = 6  # of a graph of a random function, at most


class Seen:
    """Hashes of what was seen of each kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, content: bytes) -> None:
        """Note a text or an array."""
        with self._lock:
            self._found[kind].append(hashlib.sha256(content).hexdigest())

    def hashes(self) -> dict[str, str]:
        """Return one hash of each kind: what runs at once has no order."""
        found = {kind: " ".join(sorted(each)) for kind, each in sorted(self._found.items())}
        return {kind: hashlib.sha256(each.encode()).hexdigest() for kind, each in found.items()}


class SeenKernels:
    """Kernels that are written and do not run."""

    blas_above = sys.maxsize

    def __init__(self, kernels: Sequence[KernelIR], dtype: np.dtype[Any], seen: Seen) -> None:
        self.scratch, self._seen = [kernel.needs for kernel in kernels], seen
        for kernel in kernels:
            real = stored_as(dtype)
            decided, _ = decide(kernel, real, FIXED)
            seen.add("llvm", render(decided, real, "task").encode())

    def run(self, *given: Any) -> None:
        """Note a table of launches, or the script of a processor; leave zeros."""
        (run,) = given if len(given) == 1 else (None,)
        kind, table = ("scripts", run.script) if run else ("launches", given[0])
        buffers = run.buffers if run else given[1]
        self._seen.add(kind, np.ascontiguousarray(table).tobytes())
        self._seen.add("memory", buffers.base.tobytes() + buffers.rows.tobytes())
        buffers.arena[:] = 0.0

    def cycles_per_second(self) -> float:
        """Return any rate."""
        return 1.0

    def new_counters(self, count: int) -> Array:
        """Return counters, which nothing waits for."""
        return np.zeros(count + 1, np.int32)

    def check(self, counters: Array) -> None:
        """Find nothing wrong."""

    def stop(self, counters: Array) -> None:
        """Stop nothing."""


class WritingBackend(CpuBackend):
    """The CPU's backend, whose kernels are noted and do not run."""

    def __init__(self, dtype: np.dtype[Any], seen: Seen) -> None:
        super().__init__(dtype, FIXED)
        self._seen = seen

    def load(self, programs: list[TaskProgram], binding: Binding) -> Any:
        """Lower."""
        return SeenKernels([lower(each, binding) for each in programs], self.dtype, self._seen)

    def load_segments(self, tasks: list[SegmentedTask], binding: Binding, *more: Any) -> Any:
        """Lower segments."""
        kernels = [lower(each.task, binding, each) for each in tasks]
        return SeenKernels(kernels, self.dtype, self._seen)


class WritingDevice(PaperDevice):
    """A GPU on paper, whose kernels are noted."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Note texts that are compiled."""
        for text in sources:
            self._seen.add("cuda", text.encode())
        return super().load(sources, real)


Make = Callable[[], "vrt.VertexFunction | vrt.Model"]


def cases(count: int) -> Iterator[tuple[str, Make, Sequence[vrt.GraphBatch]]]:
    """Yield functions and batches: models, those of the tests, and random ones."""
    for name, make_case in CASES.items():
        case = make_case()
        yield f"model {name}", case.model, [case.batch]
    tree, chain = [[], [], [0, 1], [], [2, 3]], [[], [0], [1]]
    for name, (make, arity) in FUNCTIONS.items():
        yield f"function {name}", make, [with_pulls([chain, chain[:1]] if arity == 1 else [tree])]
    for seed in range(count):
        spec, batches = drawn(seed, VERTICES)
        given = [graph_batch(each) for each in batches]
        yield f"random {seed}", partial(builder(source(spec)), vrt), given


def replay(make: Make, batches: Sequence[vrt.GraphBatch]) -> dict[str, str]:
    """Train on batches and evaluate them in both engines; return hashes of what was made."""
    seen = Seen()
    for engine, processors in (("batched", None), ("persistent", 2)):
        options = Way("cpu", "float32", engine=engine, processors=processors).options()
        of_cpu = compile_on_host(WritingBackend(options.dtype, seen), make().trace(), options)
        for each in (of_cpu, compile_on_gpu(WritingDevice(seen), make().trace(), options)):
            net = vrt.Network(each, 3, "mean_graphs")
            try:
                for batch in batches:
                    net.step(batch, vrt.SGD(0.0))
                    outputs = net.record(batch)
                    outputs.backward(cotangents({n: v.shape for n, v in outputs.outputs.items()}))
                    net(batch)
            except NoKernelError as error:
                seen.add("refused", str(error).encode())
    return seen.hashes()


def main() -> None:
    """Write hashes; compare them with those of another revision."""
    parser = argparse.ArgumentParser("python -m tests.replay", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--random", type=int, default=RANDOM, help="how many random functions")
    options = parser.parse_args()
    found = {name: replay(make, given) for name, make, given in cases(options.random)}
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} functions, written to {options.out}")
    if options.against is not None:
        before = json.loads(options.against.read_text(encoding="utf-8"))
        differing = {
            name: [
                k
                for k in {**now, **before.get(name, {})}
                if now.get(k) != before.get(name, {}).get(k)
            ]
            for name, now in found.items()
        }
        differing = {name: kinds for name, kinds in differing.items() if kinds}
        for name, kinds in differing.items():
            print(f"{name}: other {', '.join(kinds)}")
        raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
