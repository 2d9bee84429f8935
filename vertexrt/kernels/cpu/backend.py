"""The `cpu` backend: kernels compiled by LLVM, and BLAS; and the two loops that call kernels.

One loop follows a launch table in one call, the other the script of a processor. A processor is a
thread, and its script one compiled call a step. Processors wait for each other by counters, 64
bytes apart. A wait spins, gives its time slice away now and then (there may be more processors than
cores), and ends with an error record when its time is up or another processor has failed, so that
nothing hangs.

The processors of one group share `counters`: the error record, then the counters.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.cache import notes
from vertexrt.config import config
from vertexrt.errors import DeviceError
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.backend import TIMED, Processors, ScriptRun
from vertexrt.kernels.cpu.choose_products import ANY_ROWS, decide
from vertexrt.kernels.cpu.costs import HostCosts
from vertexrt.kernels.cpu.products import library_of
from vertexrt.kernels.cpu.render import Field, render
from vertexrt.kernels.cpu.update import apply_update
from vertexrt.kernels.layout import Array, Binding, Buffers
from vertexrt.lower.kernel import KernelIR, MatrixProduct, Outer
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import Foreign
from vertexrt.native.load import LoadedCode, load
from vertexrt.native.scope import stored_as
from vertexrt.script import isa

NAME = "task"  # of the function of a kernel: each module is a library of its own

SECONDS = 30.0  # of a wait: on a machine with much to do a thread may not run for a while
APART = 16  # int32 words from one counter to the next
FAILED, PROCESSOR, INSTRUCTION, WAITED = range(4)  # the error record, before the counters
SPINS = 64  # between two looks at the clock

# What a processor does beyond Python. What was written before the last change of a counter can be
# read once that was read.
SYSTEM = """
declare i64 @llvm.readcyclecounter()
declare i32 @sched_yield()
define i64 @vrt_clock() {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}
define void @vrt_yield() {
  call i32 @sched_yield()
  ret void
}
define i64 @vrt_read(ptr %counter) {
  %found = load atomic i32, ptr %counter acquire, align 4
  %wide = sext i32 %found to i64
  ret i64 %wide
}
define void @vrt_add(ptr %counter) {
  atomicrmw add ptr %counter, i32 1 acq_rel
  ret void
}
"""
CLOCK, YIELD = Foreign("i64", ""), Foreign("void", "")
READ, ADD = Foreign("i64", "ptr"), Foreign("void", "ptr")
# Segment, part and parts; rows, first, listed, edges and first edge; temporary and context.
TASK = Foreign("void", "i64 i64 i64 i64 i64 i64 i64 i64 i64 ptr")


class System(NamedTuple):
    """The addresses of the functions of SYSTEM."""

    clock: int
    give_way: int
    read: int
    add: int


@functools.cache
def _code() -> LoadedCode:
    return load(SYSTEM, ("vrt_clock", "vrt_yield", "vrt_read", "vrt_add"), {})


@functools.cache
def system() -> System:
    """Return where they are."""
    return System(*_code().values())


class Member(NamedTuple):
    """Which processor it is, of how many, and the cycles until it gives up waiting."""

    part: int
    parts: int
    limit: int


@compiled
def run_table(table: Array, tasks: Array, temporary: int, context: Array) -> None:
    """Call the task programs of a launch table.

    Args:
        tasks: their addresses; temporary: where temporaries start; context: of `context_of`.
    """
    for t in range(len(table)):
        program, rows, first, listed, edges, first_edge = table[t]
        TASK(  # translated: an indirect call of the kernel at this address, no Python
            tasks[program], 0, 0, 1, rows, first, listed, edges, first_edge, temporary, context
        )  # fmt: skip


@compiled
def follow(
    script: Array,
    counters: Array,
    member: Member,
    times: Array,
    programs: tuple[Array, Array],
    memory: tuple[int, Array],
    system: System,
) -> None:
    """Follow a script; note the clock where there is room for the times.

    Args:
        times: [instructions or 0, 3] get the start of each, the end of its wait, its end.
        programs: addresses of the task programs, and the number of the first segment of each.
        memory: where temporaries start, and the context.
    """
    tasks, segments = programs
    temporary, context = memory
    for t in range(len(script)):
        _note(times, t, 0, system)
        wait, program = script[t, isa.WAIT], script[t, isa.PROGRAM]
        if wait >= 0 and not _arrive(counters, member, t, wait, system):
            return
        _note(times, t, 1, system)
        TASK(
            tasks[program], script[t, isa.OP] - segments[program], member.part, member.parts,
            script[t, isa.ROWS], script[t, isa.FIRST], script[t, isa.LISTED], script[t, isa.EDGES],
            script[t, isa.FIRST_EDGE], temporary + script[t, isa.TEMPORARY], context,
        )  # fmt: skip
        _note(times, t, 2, system)
        if member.parts > 1:
            ADD(system.add, counters[(t + 1) * APART :])


def _note(times: Array, t: int, k: int, system: System) -> None:
    if len(times):
        times[t, k] = CLOCK(system.clock)


def _arrive(counters: Array, member: Member, t: int, wait: int, system: System) -> bool:
    """Wait until all processors have done an instruction; leave an error record if that fails."""
    counter = counters[(wait + 1) * APART :]
    start, spins = CLOCK(system.clock), 0
    while READ(system.read, counter) < member.parts:
        spins += 1
        if spins % SPINS > 0:
            continue
        YIELD(system.give_way)
        failed = READ(system.read, counters)
        if failed == 0 and CLOCK(system.clock) - start > member.limit:
            counters[PROCESSOR], counters[INSTRUCTION], counters[WAITED] = member.part, t, wait
            ADD(system.add, counters)
            return False
        if failed > 0:
            return False
    return True


@functools.cache
def cycles_per_second() -> float:
    """Measure the cycle counter against the clock; where others run meanwhile, it seems slower."""
    clock, found = system().clock, []
    for _ in range(5):
        start, first = time.perf_counter(), CLOCK(clock)
        while time.perf_counter() - start < 0.002:
            pass
        found.append(float((CLOCK(clock) - first) / (time.perf_counter() - start)))
    return max(found)


def _address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0] if array.size else 0  # which nothing reads
    return found


class LoadedKernels:
    """Kernels of task programs, compiled or found in the cache.

    Args:
        products: what makes them, see `choose_products`.
    Attributes:
        scratch: what `Executable.scratch` says.
        code: of all; addresses: int64. Equal kernels are one.
        blas_above: of `HostExecutable`.
    """

    def __init__(self, kernels: Sequence[KernelIR], dtype: np.dtype[Any], products: str) -> None:
        real = stored_as(dtype)
        if config().check:
            kernels = [verify(kernel) for kernel in kernels]
        self.scratch = [kernel.needs for kernel in kernels]
        # An array takes 1 us to say where it lies, and some are the same each time.
        nothing = np.zeros(0)
        self._last = [(nothing, _address(nothing))] * (Field.FLOATS - Field.ROWS)
        self.code, self.blas_above = [], ANY_ROWS
        with notes.compiling("kernels"):
            for each in kernels:
                kernel, _ = decide(each, real, products)
                for step in kernel.steps:
                    if isinstance(step, MatrixProduct | Outer):
                        self.blas_above = min(self.blas_above, step.tiled // step.each)
                # Loops are not unrolled: LLVM would do that to those whose ends are known before it
                # makes vectors of them, takes three times as long, and short loops run slower
                # (`docs/performance.md`).
                text, called = render(kernel, real, NAME), library_of(real)
                self.code.append(load(text, [NAME], called, unroll=False))
        self.addresses: Array = np.array([code[NAME] for code in self.code], np.int64)

    def context_of(self, b: Buffers) -> Array:
        """Return what kernels read of a minibatch, whose arrays must stay as long as it is used.

        It is made once for buffers; scale, seed and reals may be others then.

        Returns: int64; its first elements are those of `Field`, then come lists of addresses.
        """
        kept = b.kept
        if kept is not None:
            kept[Field.SCALE] = struct.unpack("q", struct.pack("d", b.loss_scale))[0]
            kept[Field.SEED] = b.random_seed
            for k, array in enumerate((*b.floats, *b.d_pushes), len(Field)):
                kept[k] = _address(array)
            return kept
        s = b.schedule
        order, _, _, _, *others = s.begins
        indices = _address(s.indices)
        *fields, every_ptr, edge_order, relation_ptr, above_edge = [
            indices + s.indices.itemsize * begin for begin in (order, *others)
        ]
        arrays = (
            b.rows, b.arena, b.base, b.params, b.gradients, b.param_at, s.weight, b.user_vertex,
            b.user_edge, b.ints, b.float_index,
        )  # fmt: skip
        last = self._last
        for k, array in enumerate(arrays):
            known = last[k]
            if known[0] is not array:
                last[k] = known = (array, _address(array))
            fields.append(known[1])
        lists = [_address(array) for array in (*b.floats, *b.d_pushes)]
        bits = struct.unpack("q", struct.pack("d", b.loss_scale))[0]
        fields += [0, 0, b.ints.shape[1], bits, b.random_seed, every_ptr, edge_order, relation_ptr]
        fields += [above_edge, *lists]
        found = np.array(fields, np.int64)
        begin = _address(found) + found.itemsize * len(Field)
        found[Field.FLOATS] = begin
        found[Field.SEEDS] = begin + found.itemsize * len(b.floats)
        b.kept = found
        return found


class CpuExecutable(LoadedKernels):
    """Compiled task programs, and the driver that calls them."""

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in one compiled call."""
        tasks, context = self.addresses, self.context_of(buffers)
        run_table(np.ascontiguousarray(table), tasks, buffers.temporary, context)


class CpuProcessors(LoadedKernels):
    """Segments compiled for processors that are threads.

    Attributes:
        seconds: until a processor gives up waiting.
    """

    def __init__(self, kernels: Sequence[KernelIR], dtype: np.dtype[Any], products: str) -> None:
        super().__init__(kernels, dtype, products)
        self.seconds = SECONDS
        counts = [len(kernel.segments) for kernel in kernels]
        self._first = np.cumsum([0, *counts], dtype=np.int64)  # segment of each task program

    def run(self, run: ScriptRun) -> None:
        """Run the script of one processor; see `Processors`."""
        limit = int(self.seconds * cycles_per_second()) if run.parts > 1 else 0
        programs = self.addresses, self._first
        memory = run.temporary, self.context_of(run.buffers)
        member = Member(run.part, run.parts, limit)
        follow(run.script, run.counters, member, run.times, programs, memory, system())

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""
        return cycles_per_second()

    def new_counters(self, count: int) -> Array:
        """Return counters at zero, and the error record before them."""
        return np.zeros((count + 1) * APART, np.int32)

    def stop(self, counters: Array) -> None:
        """Let no processor wait any longer."""
        counters[FAILED] = 1

    def check(self, counters: Array) -> None:
        """Raise DeviceError, when a processor gave up waiting."""
        if not counters[FAILED]:
            return
        part, instruction, counter = counters[PROCESSOR], counters[INSTRUCTION], counters[WAITED]
        raise DeviceError.at(
            "persistent",
            f"processor {part} gave up at instruction {instruction}: counter {counter} did not "
            f"arrive within {self.seconds:g} s",
            "every wait is met",
            "report this as a bug; engine='batched' goes on",
        )


class CpuBackend(HostCosts):
    """Kernels compiled by LLVM.

    Args:
        dtype: of reals.
        products: what makes them, of `PRODUCTS`.
    """

    name = "cpu"
    where = "cpu"
    publishes = True

    def __init__(self, dtype: np.dtype[Any], products: str = TIMED) -> None:
        self.dtype, self.products = dtype, products

    def load(self, programs: list[TaskProgram], binding: Binding) -> CpuExecutable:
        """Lower, compile or find in the cache."""
        kernels = [lower(program, binding) for program in programs]
        return CpuExecutable(kernels, self.dtype, self.products)

    apply_update = staticmethod(apply_update)

    def made_by(self, program: TaskProgram, binding: Binding) -> list[str]:
        """Say what makes each product: register tiles or BLAS."""
        kernel = lower(program, binding)
        _, choices = decide(kernel, stored_as(self.dtype), self.products)
        return list(map(str, choices))

    def text(self, program: TaskProgram, binding: Binding, name: str) -> str:
        """Print the function of LLVM."""
        real = stored_as(self.dtype)
        kernel, _ = decide(lower(program, binding), real, self.products)
        return render(kernel, real, name)

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        rule: UpdateRule | None,
    ) -> Processors:
        """Lower segments for processors that are threads."""
        kernels = [lower(t.task, binding, t) for t in tasks]
        return CpuProcessors(kernels, self.dtype, self.products)
