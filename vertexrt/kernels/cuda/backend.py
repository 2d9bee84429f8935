"""The `cuda` backend: task programs for a device. `device_executor` runs them."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.layouts import lay_out
from vertexrt.engine.variant import Passes
from vertexrt.graph.digest import FACTORS, STARTS, hash_graphs
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.costs import FLOAT, seconds_of, ways_of
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.launch_text import StepEffects
from vertexrt.kernels.cuda.pack import pack
from vertexrt.kernels.cuda.persistent import KernelOptions, PersistentExecutable
from vertexrt.kernels.cuda.persistent_launch import write_all
from vertexrt.kernels.cuda.task_launches import APART
from vertexrt.kernels.cuda.weights import holds_pairs
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.native.compiled import compile_ahead
from vertexrt.scheduler.batch_shape import BatchShape
from vertexrt.scheduler.kinds import is_within


class CudaBackend:
    """Generated kernels and cuBLAS.

    Args:
        dtype: of parameters and values.
        passes: what of the persistent engine is on.
        any_function: phases of the path that are no cells, or whose weights fit in no group on
            chip, run in turn; else there is no kernel then.
    """

    name = "cuda"
    apart = APART
    shares_graphs = True
    publishes = False
    most_scratch = 64 << 20  # 256 MiB of floats: launches wide enough to fill a device

    def __init__(
        self,
        device: Device,
        dtype: npt.DTypeLike,
        passes: Passes | None = None,
        any_function: bool = True,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.passes, self.any_function = passes or Passes(), any_function
        self.where = f"{device.name} {device.precision}"  # in the key of timed choices

    def ways(self, threads: int, processors: int | None) -> list[Configuration]:
        """List the batched engine and the sizes of groups."""
        return ways_of(self.device.processors, processors)

    def seconds(self, way: Configuration, work: Work, batch: BatchShape) -> float:
        """Predict what a way takes."""
        element = 2 if holds_pairs(self.device.precision, np.dtype(self.dtype)) else FLOAT
        return seconds_of(way, work, batch, self.device.processors, element)

    def load(self, programs: list[TaskProgram], binding: Binding) -> CudaExecutable:
        """Generate, compile or find in the cache."""
        return CudaExecutable(programs, binding, self.device, self.dtype)

    def written_for(self, processors: int) -> int:
        """Return what was given: each size has a kernel of its own."""
        return processors

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        rule: UpdateRule | None,
    ) -> PersistentExecutable:
        """Generate a persistent kernel, compile it or find it in the cache.

        Args:
            processors: of a group; less than 1 for as few as the weights fit.
            rule: see `layout.Backend`.
        Raises: NoKernelError, when a phase of the path would run in turn, and that is refused.
        """
        compile_beside(np.dtype(self.dtype))
        wanted = processors if processors > 0 else None
        rules = () if rule is None else (rule,)
        asked = KernelOptions(wanted, self.passes, self.any_function, rules)
        return PersistentExecutable(tasks, binding, self.device, self.dtype, asked)


INTS, LONGS, TABLE = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
PULLS, FLAGS, BYTES = np.zeros((0, 0), np.int32), np.zeros(0, np.bool_), np.zeros(0, np.uint8)
EFFECTS = StepEffects(FLAGS, LONGS, LONGS, FLAGS, LONGS)
FACTS = LONGS, LONGS, LONGS, 0, LONGS, TABLE, TABLE, FLAGS, EFFECTS, TABLE
CELLS = LONGS, LONGS, LONGS, LONGS, TABLE
VERTICES = (
    LONGS, LONGS, TABLE, 0, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS
)  # fmt: skip
PROGRAMS = (
    TABLE, LONGS, TABLE, FLAGS, TABLE, LONGS, LONGS, FLAGS, LONGS, LONGS, LONGS, 0, 0
)  # fmt: skip


def compile_loops(dtype: npt.DTypeLike) -> None:
    """Compile the host's loops of the persistent engine, or load them from the cache.

    That takes some ten seconds with empty caches, as the kernel does, whose compiler runs without
    the interpreter's lock: a thread next to it is done about when it is.

    Args:
        dtype: of the network.
    """
    reals = np.zeros(0, dtype)
    compile_ahead(
        write_all, TABLE, PULLS, INTS, INTS, TABLE, INTS, INTS, FACTS, CELLS, (LONGS, LONGS), 0, 1,
        False, False, 0, False, BYTES,
    )  # fmt: skip
    compile_ahead(
        lay_out, INTS, INTS, INTS, INTS, PULLS, reals, 0, False, False, False, VERTICES, PROGRAMS,
        (LONGS, False, INTS, LONGS),
    )  # fmt: skip
    compile_ahead(hash_graphs, INTS, INTS, INTS, INTS, INTS, PULLS, PULLS, STARTS, FACTORS)
    compile_ahead(is_within, PULLS, LONGS, TABLE)
    batch = INTS, INTS, TABLE, INTS, INTS, reals, PULLS, LONGS
    run = 0, 0, 0, 0, 0, 0, 1.0, 0, 0, 0
    lists = (INTS,) * 3, TABLE, (INTS,) * 3
    facts = FLAGS, LONGS, 0, (0, 0)
    compile_ahead(pack, BYTES, 0, facts, batch, run, lists)


@cache
def compile_beside(dtype: np.dtype[Any]) -> None:
    """Compile them in a thread, once a process."""
    threading.Thread(target=compile_loops, args=(dtype,), name="vertexrt-loops").start()
