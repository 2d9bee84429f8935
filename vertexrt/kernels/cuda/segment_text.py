"""Print a segment of the path as CUDA; everything is decided before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.product_text import ProductText, tile_text
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.row_text import ROLLED, WARP, tensor_word
from vertexrt.kernels.cuda.segments import (
    CopyAhead,
    PathSegment,
    PlainStep,
    Products,
    RowsAtATime,
    SendRows,
    TileFacts,
    Together,
)
from vertexrt.kernels.cuda.thread_text import ThreadText
from vertexrt.kernels.cuda.weights import ResidentWeight, first_own, own_range
from vertexrt.lower.kernel import Leaf, ReadElement
from vertexrt.lower.threads import ThreadKernel

TOGETHER = {
    Together.BARRIER: "__syncthreads();",
    Together.WAIT_FOR_COPIES: "wait_for_operands();",
    Together.LOAD_NEXT: "prefetch_next();",
}


def write_path(path: Mapping[int, LoweredTask]) -> dict[int, list[SegmentText]]:
    """Return the texts of all segments, by number of the task."""
    return {p: [SegmentText(x, task.task) for x in task.segments] for p, task in path.items()}


class SegmentText:
    """The text of a segment.

    Args:
        copied: weights that are read from a copy in registers.
    Attributes:
        lines: statements over a tile `a`, temporaries from `temporary` on.
        copies: by which thread number `thread` copies each operand to shared memory, maybe before
            the segment's barrier.
        words: that they name, with their types.
    """

    def __init__(
        self, segment: PathSegment, task: PathTask, copied: Collection[ResidentWeight] = ()
    ) -> None:
        self.segment = segment
        sums = {x.product: x for s in segment.flat if isinstance(s, Products) for x in s.sums}
        self.tile = TileFacts(task.processors, task.temporaries.taken, segment.rows, sums, copied)
        self.words: dict[str, str] = {}
        self.copies = {copy: self._copy(copy) for copy in segment.copies}
        self.lines: list[str] = []
        for step in segment.steps:
            self.lines += (
                self._rows(step) if isinstance(step, RowsAtATime) else self._step(step, False)
            )

    @property
    def prefetch(self) -> list[str]:
        """The statements of all copies."""
        return [line for lines in self.copies.values() for line in lines]

    def _step(self, step: PlainStep, some: bool) -> list[str]:
        """Return the statements of a step, for some rows `done` to `end` or for all."""
        match step:
            case Together():
                first = "if (done == 0) " if some and step == Together.LOAD_NEXT else ""
                return [first + TOGETHER[step]]
            case Products(sums=sums):
                text = ProductText(step, self.tile)
                lines = text.sums() if sums else text.stored()
                self.words |= text.words
                return lines
            case ThreadKernel():
                found = ThreadText(step, self.tile.taken, self.tile)
                self.words |= found.t.words
                return found.loop_over_rows(*(("done", "end") if some else ()))

    def _rows(self, step: RowsAtATime) -> list[str]:
        rows, steps = step.rows, (line for x in step.steps for line in self._step(x, True))
        last = "  // the last sums are taken"
        between = [f"if (done > 0) {TOGETHER[x]}{last}" for x in step.between]
        return [
            "{",
            f"  {ROLLED}",
            f"  for (int done = 0; done < (int)a.n; done += {rows}) {{",
            f"    const int end = (int)a.n - done < {rows} ? (int)a.n : done + {rows};",
            *(f"    {line}" for line in (*between, *steps)),
            "  }",
            "}",
        ]

    def _copy(self, copy: CopyAhead) -> list[str]:
        """Return the block that asks for an operand."""
        t, width, turns = tile_text(self.tile), copy.width, copy.turns
        parts = copy.to.size // width  # copies of a row
        rows, to = f"a.n * {parts}", t.origin(copy.to)
        step = copy.threads // (WARP * turns) * WARP
        first = first_own(copy.piece, self.tile.processors)
        words, found = _source(copy.source)
        self.words |= t.words | words
        lines = [
            *t.head,
            f"if (thread / {WARP} % {turns} == {copy.turn})",
            ROLLED,
            f"for (int at = thread / {WARP * turns} * {WARP} + thread % {WARP}; at < {rows};",
            f"     at += {step}) {{",
            f"  const int i = at / {parts}, k = at % {parts} * {width}, row = (int)a.lo + i;",
            f"  const int j = k / {copy.each} * {copy.piece} + {first} + k % {copy.each};",
            *(f"  {line}" for line in found),
            f"  copy_ahead<{width}>({to} + i * {copy.to.step} + k, from + j);",
            "}",
        ]
        return ["{", *(f"  {line}" for line in lines), "}"]

    def sends(self, processors: int) -> list[str]:
        """Return statements that send the tile's rows `last` to all before meeting `turn`."""
        return [line for x in self.segment.ring.sends for line in _send(x, processors)]


def _source(source: ReadElement | Leaf) -> tuple[dict[str, str], list[str]]:
    """Return the words that it names, and the lines that say where `row` of an operand begins."""
    if isinstance(source, ReadElement):
        place, word = source.place, tensor_word(source.place)
        row = f"{word} + (long long)row * {place.step} + {place.start}"
        return {word: "real*"}, [f"const real* const from = {row};"]
    number, size = source.number, source.size
    if source.op == "pull":
        index, table = f"float_index_{number}", f"float_{number}"
        words = {table: "const real*", index: "const int*"}
        return words | {"order": "const int*", "zero": "const real*"}, [
            f"const int pulled = {index}[order[row]];",
            f"const real* const from = pulled >= 0 ? {table} + (long long)pulled * {size} : zero;",
        ]
    if source.op == "param":
        param = f"param_{number}"
        return {param: "const real*"}, [f"const real* const from = {param};"]
    tensor = f"tensor_{number}"
    words = {tensor: "real*", "zero": "const real*"}
    return words | {"edge_ptr": "const int*", "child_row": "const int*"}, [
        f"const auto e = edge_ptr[row] + {source.slot};",
        "const int child = e < edge_ptr[row + 1] ? child_row[e] : -1;",
        f"const real* const from = child >= 0 ? {tensor} + (long long)child * {size} : zero;",
    ]


def _send(x: SendRows, processors: int) -> list[str]:
    rows = f"ring + last.slot * {x.step} + {x.start}"
    sizes = {b - a for a, b in pairwise(x.cuts)}
    (each,) = sizes if len(sizes) == 1 else (0,)
    if each and each % processors == 0:
        kind = f"PROCESSORS, {x.size // each}, {each}"
        return [f"send_rows<{kind}>({rows}, {x.step}, last.n, turn);"]
    ranges = (own_range(a, b, processors) for a, b in pairwise(x.cuts))
    return [
        f"send_some<PROCESSORS>({rows}, {x.step}, last.n, {begin}, {end}, turn);"
        for begin, end in ranges
    ]
