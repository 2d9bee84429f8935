"""Write the persistent kernel of a function: its steps, the segments of its path, what it holds.

The kernel is specialised for the processors of a group. `persistent.cuh` has what does not depend
on the function; `orders.py` writes the scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DeviceError, message
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.compile import SpillError
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.driver import encode
from vertexrt.kernels.cuda.emit import emit
from vertexrt.kernels.cuda.executable import Uploads, kernel_name, word_names
from vertexrt.kernels.cuda.path import Held, PathSegment, beside_path, own_row, write_path
from vertexrt.kernels.cuda.steps import Kernel, Launches
from vertexrt.kernels.layout import Binding

THREADS = 256  # of a processor, see persistent.cuh
WARPS = THREADS // 32
TILE_ROWS = 8  # that products take at a time
MOST_ROWS = 56  # of a tile, whose indices lie in shared memory
SCRATCH_AT = 13568
STEP_BYTES = 40 << 10  # of shared memory that a step beside the path takes
# Of a thread, to hold weights: the first number that leaves enough for code.
REGISTERS = (144, 112, 80, 48)
GROUPS = (8, 16, 32, 64, 128)  # sizes to try, where nobody says
FIRST_OP = 6  # END, FORWARD, BACKWARD, SQUARES, FINISH, UPDATE
SIDES = (Stage.PATH, Stage.PATH_BACKWARD)
INDEX_WORDS = ("edge_ptr", "child_row", "parent_ptr", "parent_edge")


class FitError(DeviceError):
    """Weights do not fit on chip."""


def _up(n: int, size: int) -> int:
    return -(-n // size)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a share of a weight lies over the threads: as `Layout` of persistent.cuh."""

    rows: int
    deep: int

    @property
    def _wide(self) -> int:
        parts = -(-self.deep // 16)
        return WARPS if parts >= WARPS else 1 << (parts.bit_length() - 1)

    @property
    def _slabs(self) -> int:
        tall = WARPS // self._wide
        return _up(_up(self.rows, 16), tall)

    @property
    def elements(self) -> int:
        """Count the elements of a thread."""
        return self._slabs * _up(_up(self.deep, 16), self._wide) * 8

    @property
    def partial(self) -> int:
        """Count the elements of one buffer of partial sums."""
        return self._wide * TILE_ROWS * self._slabs * (WARPS // self._wide) * 16


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the path, forward or backward.

    Attributes:
        held: weights; in_registers: how many of them, the first ones.
        partial: elements of the two buffers of partial sums.
        shared: bytes of weights in shared memory.
    """

    held: tuple[Held, ...]
    in_registers: int
    partial: int
    shared: int


def place_weights(
    held: Sequence[Held], processors: int, itemsize: int, shared_bytes: int, registers: int
) -> Side:
    """Say where the weights of one side of the path lie: in registers, then in shared memory.

    Args:
        shared_bytes: of a processor.
        registers: of a thread that may hold weights.
    Raises: FitError, when they do not fit.
    """
    layouts = {h: Layout(h.rows(processors), h.deep) for h in held}
    words = itemsize // 4
    left = registers
    kept, shared = [], []
    for h in held:
        need = layouts[h].elements * words
        if need <= left:
            kept.append(h)
            left -= need
        else:
            shared.append(h)
    partial = 2 * max((x.partial for x in layouts.values()), default=0)
    size = sum(layouts[h].elements for h in shared) * THREADS * itemsize
    room = shared_bytes - SCRATCH_AT - partial * itemsize
    if size > room:
        total = sum(x.elements for x in layouts.values()) * THREADS * itemsize
        keeps = registers * THREADS * 4
        raise FitError(
            message(
                "cuda",
                f"the weights of the path take {total / 1024:,.0f} KiB of each of {processors} "
                f"processor{'s' if processors > 1 else ''}",
                f"each in {keeps / 1024:,.0f} KiB of registers or {max(room, 0) / 1024:,.0f} KiB "
                "of shared memory",
                "take more processors a group, or engine='batched'",
            )
        )
    return Side((*kept, *shared), len(kept), partial, size)


class KernelWriter:
    """The source of a persistent kernel.

    Args:
        processors: of a group.
        shared_bytes: of shared memory that a processor has.
        registers: of a thread that may hold weights.
    """

    def __init__(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        dtype: npt.DTypeLike,
        processors: int,
        shared_bytes: int,
        registers: int = REGISTERS[0],
    ) -> None:
        self.tasks, self.processors = tasks, processors
        self.itemsize = np.dtype(dtype).itemsize
        vector = 16 // self.itemsize
        self.numbers = {name: k for k, name in enumerate(word_names(binding))}
        self.path = write_path(tasks, binding, vector, processors)
        self.launches = [
            Launches(scratch=self.path[p][0].scratch)
            if p in self.path
            else emit(plan.task, binding, vector, THREADS)
            for p, plan in enumerate(tasks)
        ]
        self.all_steps = [s for x in self.launches for s in x.steps if isinstance(s, Kernel)]
        self.ops: dict[str, int] = {}
        self.steps: list[Kernel] = []  # the different ones
        for step in self.all_steps:
            key = self._key(step)
            if key not in self.ops:
                self.ops[key] = FIRST_OP + len(self.ops)
                self.steps.append(step)
        self.sides = [
            place_weights(self._held(stage), processors, self.itemsize, shared_bytes, registers)
            for stage in SIDES
        ]

    def _key(self, step: Kernel) -> str:
        return step.body + " ".join(step.words)

    def op(self, step: Kernel) -> int:
        """Return the number by which scripts know a step beside the path."""
        return self.ops[self._key(step)]

    def _segments(self, stage: Stage) -> list[tuple[int, PathSegment]]:
        """List the segments of a side with their numbers over all tasks."""
        found, number = [], 0
        for p, plan in enumerate(self.tasks):
            for s in range(len(plan.segments)):
                if plan.task.stage == stage and p in self.path:
                    found.append((number + s, self.path[p][s]))
            number += len(plan.segments)
        return found

    def _held(self, stage: Stage) -> list[Held]:
        return list(dict.fromkeys(h for _, x in self._segments(stage) for h in x.held))

    def words(self) -> set[str]:
        """Name the words that some part of the kernel reads."""
        found = {w for step in self.steps for w in step.words}
        if self.path:
            found |= set(INDEX_WORDS)
        for segments in self.path.values():
            for segment in segments:
                found |= {*segment.words, *(h.word for h in segment.held)}
        return found

    def encode(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return steps_ptr and steps of `driver.encode`; a function is a number of a script."""
        functions = [[self.op(s) for s in x.steps] for x in self.launches]  # type: ignore[arg-type]
        steps_ptr, steps, _ = encode(self.launches, functions, self.numbers)
        return steps_ptr, steps

    def tile_rows(self, shared_bytes: int) -> int:
        """Return the rows of a tile whose temporaries fit in shared memory, two edges a row."""
        room = min(
            (shared_bytes - SCRATCH_AT - side.partial * self.itemsize - side.shared)
            for side in self.sides
        )
        most = max((rows + 2 * edges for rows, edges, _ in self._path_scratch()), default=1)
        rows = room // (self.itemsize * max(most, 1)) // TILE_ROWS * TILE_ROWS
        return max(TILE_ROWS, min(MOST_ROWS, rows))

    def _path_scratch(self) -> list[tuple[int, int, int]]:
        return [segments[0].scratch for segments in self.path.values()]

    # Text.

    def source(self) -> str:
        """Return the module."""
        lines = ['#include "persistent.cuh"', "", f"constexpr int PROCESSORS = {self.processors};"]
        names: dict[str, str] = {}
        for step in self.steps:
            name = kernel_name(step.body)
            if name not in names.values():
                lines += ["", step.body.replace("VRT_KERNEL(NAME", f"VRT_STEP({name}", 1)]
            names[self._key(step)] = name
        lines.append(f"typedef Job<{len(self.numbers)}> Work;")
        for side, stage in zip(self.sides, SIDES, strict=True):
            lines += ["", *self._side(side, stage)]
        lines += ["", *self._beside(names), "", *self._kernel()]
        return "\n".join(lines) + "\n"

    def _side(self, side: Side, stage: Stage) -> list[str]:
        """Write a function that follows a group's script on one side of the path."""
        name = stage.name.lower()
        lines = [f"struct {name}_weights {{"]
        for k, h in enumerate(side.held):
            kind = "InRegisters" if k < side.in_registers else "InShared"
            lines.append(f"  {kind}<{h.rows(self.processors)}, {h.deep}> {h.name};")
        lines += [
            "};",
            f"__device__ __forceinline__ bool {name}(const Work& job, int rank, int group, "
            "unsigned& passed, Stamps& stamps) {",
            f"  {name}_weights held;",
            "  unsigned char* free = shared_memory() + SCRATCH_AT;",
            f"  Partial partial{{reinterpret_cast<real*>(free), {side.partial // 2}, 0}};",
            f"  free += {side.partial} * sizeof(real);",
        ]
        for k, h in enumerate(side.held):
            kind = f"{h.rows(self.processors)}, {h.deep}"
            if k >= side.in_registers:
                lines.append(f"  held.{h.name}.take(free);")
                lines.append(f"  free += InShared<{kind}>::BYTES;")
            weight = f"(const real*)job.w[{self.numbers[h.word]}]"
            rows = own_row(h.cuts, self.processors)
            lines.append(
                f"  hold<{str(h.turned).lower()}, {kind}>(held.{h.name}, {weight}, {h.pitch}, "
                f"[&](int q) -> int {{ {rows} }});"
            )
        far = [f"(const int*)job.w[{self.numbers[word]}]" for word in INDEX_WORDS]
        lines += [
            "  const long long room ="
            " (shared_memory() + job.o.shared_bytes - free) / sizeof(real);",
            "  real* const inside = reinterpret_cast<real*>(free);",
            "  real* const outside = reinterpret_cast<real*>("
            "job.o.spill + blockIdx.x * job.o.spill_bytes);",
            "  const Indices far{",
            f"    {', '.join(far)}}};",
            f"  return follow<PROCESSORS>(job.o, {SIDES.index(stage)}, group, passed, stamps, far,",
            "    [&](const Instruction& in, const Indices& near) {",
            "    const Tile a{in.n, in.lo, in.m, in.elo};",
            "    switch (in.op) {",
        ]
        for number, segment in self._segments(stage):
            per_row, per_edge, once = segment.scratch
            need = f"(a.n + 3) / 4 * 4 * {per_row}ll + (a.m + 3) / 4 * 4 * {per_edge}ll + {once}"
            lines += [
                f"      case {number}: {{",
                "        const int rank = this_processor() % PROCESSORS;",
                f"        real* const temporary = (in.temporary + {need} <= room ? inside : "
                "outside) + in.temporary;",
            ]
            for word, type_ in segment.words.items():
                if word in INDEX_WORDS:
                    lines.append(f"        const int* const {word} = near.{word};")
                elif word != "temporary":
                    lines.append(
                        f"        {type_.removesuffix('*')}* const {word} = "
                        f"({type_})job.w[{self.numbers[word]}];"
                    )
            lines += [f"        {line}" for line in segment.lines]
            lines += ["        break;", "      }"]
        return [*lines, "    }", "  });", "}"]

    def _beside(self, names: dict[str, str]) -> list[str]:
        """Write the function that runs an instruction beside the path."""
        lines = [
            "__device__ __noinline__ void beside(const Work& a, const Instruction in) {",
            "  switch (in.op) {",
            "    case SQUARES: square_pieces(a.o); break;",
            "    case FINISH:",
            "      if (blockIdx.x == gridDim.x - 1) finish_step<PROCESSOR>(a.o.finish);",
            "      break;",
            "    case UPDATE: update_pieces(a.o); break;",
        ]
        for step in self.steps:
            words = []
            for word in step.words:
                at = f"a.w[{self.numbers[word]}]"
                if word == "temporary":
                    at += " + in.temporary * (long long)sizeof(real)"
                words.append(at)
            lines += [
                f"    case {self.op(step)}: {{",
                f"      auto& s = step_arguments<Args<{max(len(words), 1)}>>();",
                "      take_turns(in, [&]() {",
                "        s = {in.n, in.lo, in.at, in.m, in.elo, in.first, in.chunks,",
                f"             {{{', '.join(words)}}}}};",
                f"      }}, [&]() {{ {names[self._key(step)]}(s); }});",
                "      break;",
                "    }",
            ]
        return [*lines, "  }", "}"]

    def _kernel(self) -> list[str]:
        lines = [
            "VRT_KERNEL(NAME, Work, PROCESSOR) {",
            "  unsigned met = 0, passed = 0;",
            "  Stamps stamps(a.o);",
            "  const Work& near = come_near(a);",
            "  const int group = blockIdx.x / PROCESSORS, rank = blockIdx.x % PROCESSORS;",
            "  for (int at = 0;; ++at) {",
            "    const Instruction in = next_instruction(a.o, at);",
            "    stamps.begin(at);",
            "    if (in.wait) {",
            "      met += gridDim.x;",
            "      if (!meet(a.o, a.o.counters, met, GRID_WAIT, at)) return;",
            "    }",
            "    stamps.waited();",
            "    if (in.op == END) {",
            "      stamps.both();",
            "      return;",
            "    }",
            "    if (in.op != FORWARD && in.op != BACKWARD) beside(near, in);",
            "    stamps.end();",
        ]
        for op, stage in zip(("FORWARD", "BACKWARD"), SIDES, strict=True):
            call = f"{stage.name.lower()}(a, rank, group, passed, stamps)"
            lines.append(f"    if (in.op == {op} && group < a.o.groups && !{call}) return;")
        return [*lines, "  }", "}"]


def _load(
    tasks: list[SegmentedTask],
    binding: Binding,
    device: Device,
    dtype: npt.DTypeLike,
    processors: int,
) -> tuple[KernelWriter, int]:
    """Write and load a kernel, with as many weights in registers as leave enough for code.

    Raises: DeviceError, when it spills registers however few hold weights.
    """
    for registers in REGISTERS:
        writer = KernelWriter(tasks, binding, dtype, processors, device.shared_bytes, registers)
        source = writer.source()
        name = kernel_name(source)
        source = source.replace("VRT_KERNEL(NAME", f"VRT_KERNEL({name}", 1)
        try:
            return writer, device.load([source], np.dtype(dtype))[name]
        except SpillError:
            more = any(side.in_registers for side in writer.sides)
            if registers == REGISTERS[-1] or not more:
                raise
    raise AssertionError("the last try returns or raises")


def _smallest(
    tasks: list[SegmentedTask],
    binding: Binding,
    device: Device,
    dtype: npt.DTypeLike,
    processors: int | None,
) -> tuple[KernelWriter, int]:
    """Load a kernel for groups of so many processors, or of as few as the weights fit.

    Raises: DeviceError, when they do not fit.
    """
    wanted: tuple[int, ...] = GROUPS if processors is None else (processors,)
    sizes = tuple(n for n in wanted if n <= device.processors) or wanted[:1]
    for n in sizes:
        try:
            return _load(tasks, binding, device, dtype, n)
        except (FitError, SpillError):
            if n == sizes[-1]:
                raise
    raise AssertionError("the last try returns or raises")


class PersistentExecutable(Uploads):
    """The persistent kernel of a function on a device; see `Session.run_persistent`.

    Attributes:
        processors: of a group; tile: most rows of an instruction on the path.
        steps_ptr, steps: of `driver.launch`; a function is a number of a script.
        stages: [programs]; beside: [programs] see `beside_path`.
        segment_ptr: [programs + 1] first segment of each.
        adds, adds_ptr, added: of `orders.write_launches`; gradients: how many there are.
        scratch_of: `scratch` as an array, [programs, 3].
        function: the kernel.
    """

    def __init__(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        device: Device,
        dtype: npt.DTypeLike,
        processors: int | None,
    ) -> None:
        writer, self.function = _smallest(tasks, binding, device, dtype, processors)
        super().__init__([t.task for t in tasks], writer.launches, binding)
        self.processors = writer.processors
        self.tile = writer.tile_rows(device.shared_bytes)
        self.steps_ptr, self.steps = writer.encode()
        for word in writer.words():
            self.wanted[self.numbers[word]] = True
        self.stages = np.array([int(t.task.stage) for t in tasks], np.int64)
        counts = [len(t.segments) for t in tasks]
        self.segment_ptr = np.cumsum([0, *counts]).astype(np.int64)
        self.beside = np.array([beside_path(t) for t in tasks], np.bool_)
        steps = writer.all_steps
        self.adds = np.array([s.adds for s in steps] + [False], np.bool_)
        added = [
            [int(w.removeprefix("gradient_")) for w in s.words if w.startswith("gradient_")]
            for s in steps
        ]
        self.adds_ptr = np.cumsum([0] + [len(a) for a in added]).astype(np.int64)
        self.added = np.array([g for a in added for g in a] + [0], np.int64)
        self.gradients = len(binding.params)
        self.scratch_of = np.array(self.scratch, np.int64).reshape(-1, 3)
