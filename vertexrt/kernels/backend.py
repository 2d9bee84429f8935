"""What a backend is: all that the engine asks of a device that runs task programs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Node
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.layout import Array, Binding, Buffers
from vertexrt.kernels.store_update import StoreUpdate
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape

# What makes products on a CPU: register tiles or BLAS by a table that is timed on this machine, the
# same by fixed limits, or BLAS alone.
PRODUCTS = TIMED, FIXED, BLAS = "timed", "fixed", "blas"


Watch = Callable[[Node, Array, Array], None]  # node, its value, the user's vertices


class Executable(Protocol):
    """Task programs, or their segments, made ready to run by a backend.

    Attributes:
        scratch: for each program the elements of temporary memory that a launch needs: for each
            row, for each edge (both rounded up to PAD), and once.
    """

    scratch: list[tuple[int, int, int]]


class HostExecutable(Executable, Protocol):
    """Task programs whose arrays are the host's.

    Attributes:
        blas_above: a launch of at most so many rows and edges does not call BLAS, so that BLAS
            need not be kept to one thread.
    """

    blas_above: int

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in order."""


class WatchedExecutable(HostExecutable, Protocol):
    """Task programs of which every value is seen.

    Attributes:
        watch: sees what each step makes: node, its value, the user's vertices.
    """

    watch: Watch | None


class LaunchByLaunch:
    """Task programs of which each launch is a call of its own (an ablation's baseline)."""

    def __init__(self, executable: HostExecutable) -> None:
        self.whole = executable
        self.scratch, self.blas_above = executable.scratch, executable.blas_above

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in order, from Python."""
        for t in range(len(table)):
            self.whole.run(table[t : t + 1], buffers)


class ScriptRun(NamedTuple):
    """The script of one processor, and what it is run with.

    Attributes:
        counters: of `new_counters`, the same array for all parts.
        part: which processor it is, of how many `parts`.
        temporary: element at which its temporaries start.
        times: [instructions, 3] int64, gets the clock at the start of each instruction, at the end
            of its wait and at its end; [0, 3], where none are asked for.
    """

    script: Array
    counters: Array
    part: int
    parts: int
    temporary: int
    buffers: Buffers
    times: Array


class Processors(Executable, Protocol):
    """Segments that the processors of a group run, whose arrays are the host's."""

    blas_above: int  # as of `HostExecutable`

    def run(self, run: ScriptRun) -> None:
        """Run the script of one processor; called for all parts at once, each in its thread."""

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""

    def new_counters(self, count: int) -> Array:
        """Return a counter for each instruction, at zero."""

    def check(self, counters: Array) -> None:
        """Raise DeviceError, when a processor gave up waiting."""

    def stop(self, counters: Array) -> None:
        """Let no processor wait any longer, since some of them have stopped."""


class Backend(Protocol):
    """A device that runs task programs.

    Attributes:
        apart: ops that it runs over all rows of a task at once, as it does products.
        most_scratch: elements of temporaries that one launch should take: a softmax over 10,000
            words needs two such rows a vertex. GEMM does not notice where rows are cut.
        shares_graphs: its groups of processors have graphs of one schedule, not each its own.
        publishes: its batched engine gains where products of a state are made by the child.
        where: what timings hold for.
    """

    name: str
    where: str
    apart: frozenset[str]
    most_scratch: int
    shares_graphs: bool
    publishes: bool

    def ways(self, threads: int, processors: int | None) -> list[Configuration]:
        """List the ways to run a minibatch, the simplest first.

        Args:
            threads: of the host that share it; processors: of a group, None for any number.
        """

    def seconds(self, way: Configuration, work: Work, batch: BatchShape) -> float:
        """Predict what a way takes, to compare it with another one of the device."""

    def load(self, programs: list[TaskProgram], binding: Binding) -> Executable:
        """Make task programs ready; may compile, and may reuse what is in the disk cache."""

    def written_for(self, processors: int) -> int:
        """Return for which number of processors of a group code is written, given theirs."""

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        rule: UpdateRule | None,
    ) -> Executable:
        """Make segments ready for processors.

        Args:
            processors: of a group, as `written_for` returned it.
            rule: of the update, where a device has it in its kernel; else None.
        Raises: DeviceError where the device has no persistent engine.
        """


class HostBackend(Backend, Protocol):
    """A backend whose arrays are the host's."""

    def apply_update(self, update: StoreUpdate) -> None:
        """Do an update."""

    def made_by(self, program: TaskProgram, binding: Binding) -> list[str]:
        """Say what makes each product of a task program."""

    def text(self, program: TaskProgram, binding: Binding, name: str) -> str:
        """Print what a task program becomes: a function of some name, where it has one."""


HOST = "vertexrt.kernels.host"  # imports the engine, which asks it only when it runs


def host_backend(device: str, dtype: np.dtype[Any], products: str = FIXED) -> HostBackend:
    """Return a backend of the host, `cpu` or `reference`, whatever device a network is on.

    Args:
        products: what makes them on a CPU, of `PRODUCTS`.
    """
    backend: HostBackend = importlib.import_module(HOST).backend_of(device, dtype, products)
    return backend
