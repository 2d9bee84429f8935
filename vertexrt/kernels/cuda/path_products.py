"""Products on the path, calls of `resident_matmul.cuh`, and groups that add up partial sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.partial_sums import PartialSums
from vertexrt.kernels.cuda.path_groups import tile_text, write_path_group
from vertexrt.kernels.cuda.path_operands import write_operand
from vertexrt.kernels.cuda.path_segment import SegmentContext
from vertexrt.kernels.cuda.products import rows_of
from vertexrt.kernels.cuda.row_text import ROLLED
from vertexrt.kernels.cuda.thread_text import ThreadText
from vertexrt.kernels.cuda.weights import TILE_ROWS, Layout, ResidentWeight, own_row
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.lower.threads import Cuts, ThreadKernel


@dataclass(frozen=True, slots=True)
class Factor:
    """What a product multiplies.

    Attributes:
        held: the weight; a row of the result has as many elements as it has rows.
        times: rows of it for each row of the tile (or edge).
        edges: its rows are edges.
        aligned: rows of the operand start on 16 bytes.
        operand: lines of a function from its row to the operand's.
    """

    held: ResidentWeight
    times: int
    edges: bool
    aligned: bool
    operand: list[str]


@dataclass(frozen=True, slots=True)
class ProductText:
    """The text of a step of products.

    Attributes:
        words: that its lines name, with their types.
        held: weights that it multiplies by; partial: elements of their partial sums.
        sums: where partial sums are that groups add up, by product; kernels: of these groups.
    """

    lines: list[str]
    words: dict[str, str]
    held: list[ResidentWeight]
    partial: int
    sums: dict[int, PartialSums] = field(default_factory=dict)
    kernels: list[ThreadKernel] = field(default_factory=list)


class ProductWriter:
    """The products of a step of a segment, which share their barriers."""

    def __init__(self, context: SegmentContext, products: Sequence[int]) -> None:
        self.context, self.nodes = context, context.task.nodes
        self.processors, self.vector = context.task.processors, context.task.vector
        self.t = tile_text(context.task)
        self.words: dict[str, str] = {}  # of operands that are computed
        self.products = list(products)
        self.factors = [self._factor(k) for k in self.products]

    def stored(self) -> ProductText:
        """Return statements that make the products and store them."""
        layouts = [Layout(f.held.rows(self.processors), f.held.deep) for f in self.factors]
        calls = [self._stored(k, f) for k, f in zip(self.products, self.factors, strict=True)]
        lines = [line for call in calls for line in call]
        lines = ["  multiply(partial,", *lines[:-1], lines[-1].removesuffix(",") + ");"]
        lines = ["{", *(f"  {line}" for line in self.t.head), *lines, "}"]
        return self._text(lines, sum(layout.partial for layout in layouts))

    def sums(self) -> ProductText:
        """Return statements that make partial sums of rows `done` to `end`."""
        lines: list[str] = []
        places: dict[int, PartialSums] = {}
        start = 0
        for k, f in zip(self.products, self.factors, strict=True):
            own = f.held.rows(self.processors)
            at = PartialSums(start, TILE_ROWS * f.times, own, f.held.deep, f.times)
            places[k] = at
            times = f" * {f.times}" if f.times > 1 else ""
            count = f"(end - done){times}" if times else "end - done"
            lines += [
                f"make_all_partial_sums<{at.rows}, {str(f.aligned).lower()}, {own}, {at.deep}>("
                f"held.{f.held.name}, done{times}, {count},",
                *_as_argument(f.operand),
                f"  partial + {start});",
            ]
            start += at.elements
        return self._text([*self.t.head, *lines], start, places)

    def _text(
        self, lines: list[str], partial: int, sums: dict[int, PartialSums] | None = None
    ) -> ProductText:
        held = [f.held for f in self.factors]
        return ProductText(lines, self.words | self.t.words, held, partial, sums or {})

    def _factor(self, k: int) -> Factor:
        task, node = self.context.task, self.nodes[k]
        weight, x = node.inputs
        matrix = self.nodes[weight]
        m, n = matrix.type.shape
        turned = bool(node["transpose"])
        deep, wide = (m, n) if turned else (n, m)
        cuts: Cuts = (0, wide)
        if self.processors > 1:
            cuts = tuple(c for c in task.own_cuts(k) if c <= wide)
        word = f"param_{task.binding.params[matrix['name']]}"
        held = ResidentWeight(word, n, turned, cuts, deep)
        times, edges = rows_of(node), node.type.domain == Domain.EDGE
        if x in task.inlined:
            operand, words = write_operand(self.context, x, times)
            self.words |= words
            return Factor(held, times, edges, True, operand)
        aligned, operand = self._rows_in_memory(k, x, times, deep, edges)
        return Factor(held, times, edges, aligned, operand)

    def _rows_in_memory(
        self, k: int, x: int, times: int, deep: int, edges: bool
    ) -> tuple[bool, list[str]]:
        """Return whether rows of an operand are aligned, and the function that points to one."""
        ring, at = self.context.ring, self.context.place[x]
        source, step = self._first(at, edges), str(at.step)
        if x in ring.before:
            entry = None if edges else ring.operand_row(at)
            if entry is None:
                ring.reads_all()
            else:
                in_ring = f"ring + a.slot * {entry.step} + {entry.start + at.start}"
                self.t.row_value(f"from_{k}", "real* const", f"a.in_ring ? {in_ring} : {source}")
                self.t.row_value(f"step_{k}", "int", f"a.in_ring ? {entry.step} : {at.step}")
                source, step = f"from_{k}", f"step_{k}"
        inner = f" + i % {times} * {deep}" if times > 1 else ""
        pointer = f"{source} + {_outer(at, times)} * {step}{inner}"
        aligned = all(p % self.vector == 0 for p in (at.step, at.start, deep))
        return aligned, [f"[&](int i) -> const real* {{ return {pointer}; }}"]

    def _stored(self, k: int, f: Factor) -> list[str]:
        """Write the call that describes a product which is stored."""
        processors = self.processors
        to = self.context.place[k]
        count = f"(int)a.{'m' if f.edges else 'n'} * {f.times}"
        wide = f.held.cuts[-1]
        where, row = ("j", wide) if to.own is None else ("q", wide // processors)
        inner = f" + i % {f.times} * {row}" if f.times > 1 else ""
        kind = f"{str(f.aligned).lower()}, {f.held.rows(processors)}, {f.held.deep}"
        return [
            f"    product<{kind}>(held.{f.held.name}, {count},",
            *(f"    {line}" for line in _as_argument(f.operand)),
            "      [&](int i, int q, real sum) {",
            f"        const int j = [&](int q) -> int {{ {own_row(f.held.cuts, processors)} }}(q);",
            f"        const auto at = {_outer(to, f.times)} * {to.step}{inner} + {where};",
            f"        if (j >= 0) ({self._first(to, f.edges)})[at] = sum;",
            *self._put(to, f.times, wide),
            "      }),",
        ]

    def _put(self, to: ValuePlace, times: int, wide: int) -> list[str]:
        """Put an element of a product in the tile's row of the ring, too, if the ring has it.

        Args:
            times: rows of operands of each row; wide: elements of the result of one.
        """
        at = self.context.ring.put(to)
        if at is None:
            return []
        self.context.ring.sends_at_once(to.number, 0, ())  # never: its threads make columns
        row, inner = (f"i / {times}", f" + i % {times} * {wide}") if times > 1 else ("i", "")
        place = f"(a.slot + {row}) * {at.step} + {at.start}{inner} + j"
        return [f"        if (a.puts && j >= 0) ring[{place}] = sum;"]

    def _first(self, place: ValuePlace, edges: bool) -> str:
        """Return the pointer to the tile's first row of a place."""
        start = f" + {place.start}" if place.start else ""
        if place.memory == Memory.TEMPORARY:
            return f"({self.t.origin(place)}{start})"
        word = self.t.origin(place)
        lo = "a.elo" if place.rows == Rows.EDGE else "a.lo"
        assert edges == (place.rows == Rows.EDGE)
        return f"({word} + (long long){lo} * {place.step}{start})"


def _outer(place: ValuePlace, times: int) -> str:
    """Return which row of a place a row of a product is: what is in shared memory needs 32 bits."""
    wide = "" if place.memory == Memory.TEMPORARY else "(long long)"
    return wide + (f"(i / {times})" if times > 1 else "i")


def _as_argument(function: list[str]) -> list[str]:
    """Return the lines of a function as an argument that others follow."""
    return [*(f"  {line}" for line in function[:-1]), f"  {function[-1]},"]


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """A group that is to be written.

    Attributes:
        group: what it makes; rest: what of it is still to be written.
        prefetched: where operands lie that were copied to shared memory.
    """

    group: Group
    rest: Group
    prefetched: Mapping[int, ValuePlace]


def write_with_groups(
    context: SegmentContext, products: Sequence[int], groups: Sequence[PendingGroup], first: bool
) -> ProductText:
    """Write products and the groups after them that add up their sums, a few rows at a time.

    Args:
        first: these are the first steps of the segment.
    """
    text = ProductWriter(context, products).sums()
    body, texts = _add_up(replace(context, sums=text.sums), groups, first)
    lines = [
        "{",
        f"  {ROLLED}",
        f"  for (int done = 0; done < (int)a.n; done += {TILE_ROWS}) {{",
        f"    const int end = (int)a.n - done < {TILE_ROWS} ? (int)a.n : done + {TILE_ROWS};",
        "    if (done > 0) __syncthreads();  // the last sums are taken",
        *(f"    {line}" for line in (*text.lines, *body)),
        "  }",
        "}",
    ]
    words = text.words.copy()
    for found in texts:
        words |= found.t.words
    kernels = [found.kernel for found in texts]
    return replace(text, lines=lines, words=words, kernels=kernels)


def _read_by(context: SegmentContext, group: Group) -> set[int]:
    return {i for k in group.nodes for i in context.task.nodes[k].inputs}


def _add_up(
    context: SegmentContext, groups: Sequence[PendingGroup], first: bool
) -> tuple[list[str], list[ThreadText]]:
    """Return the statements of groups that add up partial sums, and the texts of these groups."""
    lines = ["wait_for_all_copies();"] if any(pending.prefetched for pending in groups) else []
    texts: list[ThreadText] = []
    made: set[int] = set()
    for number, pending in enumerate(groups):
        if number == 0 or made & _read_by(context, pending.group):
            lines.append("__syncthreads();")
            made.clear()
            context.ring.new_step()
        if first and number == 0:
            lines.append("if (done == 0) prefetch_next();")
        made |= {*pending.group.nodes}
        found = replace(context, place={**context.place, **pending.prefetched})
        texts.append(write_path_group(found, pending.rest))
        lines += texts[-1].loop_over_rows("done", "end")
    return lines, texts
