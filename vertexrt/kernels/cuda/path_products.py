"""Products on the path: calls of `resident_matmul.cuh`, and how readers get what they make.

The warps of a processor share the depth of a product, so its result is partial sums in shared
memory. A group behind it adds them up where it reads them; only what others want as well, or what
edges make, is added up first and stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.inline_operands import OperandRow, Step, readers_of
from vertexrt.kernels.cuda.path_rows import PathRows
from vertexrt.kernels.cuda.rows import ROLLED, Cuts
from vertexrt.kernels.cuda.weights import TILE_ROWS, Held, Layout, own_row
from vertexrt.kernels.location import Location

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.path import SegmentWriter


@dataclass(frozen=True, slots=True)
class Factor:
    """What a product multiplies.

    Attributes:
        held: the weight.
        deep, wide: elements of a row of its operand, and of its result.
        times: rows of it for each row of the tile (or edge).
        edges: its rows are edges.
        aligned: rows of the operand start on 16 bytes.
        operand: lines of a function from its row to the operand's.
    """

    held: Held
    deep: int
    wide: int
    times: int
    edges: bool
    aligned: bool
    operand: list[str]


@dataclass(frozen=True, slots=True)
class PartialSums:
    """Where the partial sums of a product are that a group takes.

    Attributes:
        start: first element; rows: of them that are made at a time.
        own: rows of the weight that the processor has, of `deep` elements.
        times: rows of the product for each row of the tile.
    """

    start: int
    rows: int
    own: int
    deep: int
    times: int

    @property
    def elements(self) -> int:
        """Count them."""
        return Layout(self.own, self.deep).partial // TILE_ROWS * self.rows

    def read(self, row: str, own: str, width: str = "W") -> str:
        """Return the text that adds up so many own rows."""
        kind = f"{width}, {self.rows}, {self.own}, {self.deep}"
        return f"total_of_parts<{kind}>(partial + {self.start}, {row}, {own})"


def taken_by_groups(
    plan: SegmentedTask, steps: Sequence[Step], pieces: dict[int, int], processors: int
) -> set[int]:
    """List the products of a segment that only groups right behind them read, row by row.

    Args:
        pieces: of each product's result the elements of each piece, 0 where pieces are not alike.
    """
    nodes = plan.task.program.nodes
    found: set[int] = set()
    for number, side in enumerate(steps):
        products = [step.node for step in side if isinstance(step, Product)]
        behind = {k for group in groups_behind(steps, number) for k in group.nodes}
        if products and all(
            k in plan.task.local
            and nodes[k].type.domain == Domain.VERTEX
            and (processors == 1 or pieces[k] > 0)
            and _read_by(plan, k) <= behind
            for k in products
        ):
            found |= {*products}
    return found


def groups_behind(steps: Sequence[Step], number: int) -> list[Group]:
    """List the groups between a step and the next products, if all are of rows; else nothing."""
    found: list[Group] = []
    for side in steps[number + 1 :]:
        if not isinstance(side[0], Group):
            break
        found.append(side[0])
    return found if all(group.domain == Domain.VERTEX for group in found) else []


def _read_by(plan: SegmentedTask, k: int) -> set[int]:
    """Collect what reads a value, itself where it is not read element by element."""
    nodes = plan.task.program.nodes
    found: set[int] = set()
    stack = [k]
    while stack:
        for reader in readers_of(plan, stack.pop()):
            stored = reader in plan.task.homes or reader in plan.task.local
            if OPS[nodes[reader].op].role == "scalar":
                found.add(reader)
            elif nodes[reader].op == "slice" and not stored:
                stack.append(reader)
            else:
                found.add(k)  # which is in no group
    return found


class ProductWriter:
    """The products of a step of a segment, side by side."""

    def __init__(self, writer: SegmentWriter, products: Sequence[int]) -> None:
        self.writer, self.nodes = writer, writer.nodes
        self.t = PathRows(1, writer.vector, writer.processors)
        self.products = list(products)
        self.factors = [self._factor(k) for k in self.products]

    def lines(self) -> list[str]:
        """Return statements that make the products and store them."""
        text = self.writer.text
        layouts = [Layout(f.held.rows(self.writer.processors), f.deep) for f in self.factors]
        text.partial = max(text.partial, sum(layout.partial for layout in layouts))
        calls = [self._stored(k, f) for k, f in zip(self.products, self.factors, strict=True)]
        text.words |= self.t.words
        lines = [line for call in calls for line in call]
        lines = ["  multiply(partial,", *lines[:-1], lines[-1].removesuffix(",") + ");"]
        return ["{", *(f"  {line}" for line in self.t._head), *lines, "}"]

    def sums(self) -> tuple[list[str], dict[int, PartialSums]]:
        """Return statements that make partial sums of rows `done` to `end`, and where they are."""
        lines: list[str] = []
        places: dict[int, PartialSums] = {}
        start = 0
        for k, f in zip(self.products, self.factors, strict=True):
            own = f.held.rows(self.writer.processors)
            at = PartialSums(start, TILE_ROWS * f.times, own, f.deep, f.times)
            places[k] = at
            times = f" * {f.times}" if f.times > 1 else ""
            count = f"(end - done){times}" if times else "end - done"
            lines += [
                f"make_all_partial_sums<{at.rows}, {str(f.aligned).lower()}, {own}, {f.deep}>("
                f"held.{f.held.name}, done{times}, {count},",
                *_as_argument(f.operand),
                f"  partial + {start});",
            ]
            start += at.elements
        self.writer.text.partial = max(self.writer.text.partial, start)
        self.writer.text.words |= self.t.words
        return [*self.t._head, *lines], places

    def _factor(self, k: int) -> Factor:
        writer, node = self.writer, self.nodes[k]
        weight, x = node.inputs
        matrix = self.nodes[weight]
        m, n = matrix.type.shape
        turned = bool(node["transpose"])
        deep, wide = (m, n) if turned else (n, m)
        times = node.type.shape[0] if len(node.type.shape) == 2 else 1
        cuts: Cuts = (0, wide)
        if writer.processors > 1:
            cuts = tuple(c for c in writer.own_cuts(k) if c <= wide)
        word = f"param_{writer.binding.params[matrix['name']]}"
        held = Held(word, n, turned, cuts, deep)
        if held not in writer.text.held:
            writer.text.held.append(held)
        edges = node.type.domain == Domain.EDGE
        if x in writer.direct:
            row = OperandRow(writer, x)
            operand = row.text(times)
            writer.text.words |= row.t.words
            return Factor(held, deep, wide, times, edges, True, operand)
        aligned, operand = self._rows_in_memory(k, x, times, deep, edges)
        return Factor(held, deep, wide, times, edges, aligned, operand)

    def _rows_in_memory(
        self, k: int, x: int, times: int, deep: int, edges: bool
    ) -> tuple[bool, list[str]]:
        """Return whether rows of an operand are aligned, and the function that points to one."""
        writer, at = self.writer, self.writer.place[x]
        source, step = self._first(at, edges), str(at.step)
        if x in writer.before:
            entry = None if edges else writer.ring.get(at.base)
            if entry is None:
                writer.reads_all()
            else:
                writer.text.operand = True
                writer.reads_ring()
                in_ring = f"ring + a.slot * {entry.step} + {entry.start + at.start}"
                self.t.row_value(f"from_{k}", "real* const", f"a.in_ring ? {in_ring} : {source}")
                self.t.row_value(f"step_{k}", "int", f"a.in_ring ? {entry.step} : {at.step}")
                source, step = f"from_{k}", f"step_{k}"
        inner = f" + i % {times} * {deep}" if times > 1 else ""
        pointer = f"{source} + {_outer(at, times)} * {step}{inner}"
        aligned = all(p % writer.vector == 0 for p in (at.step, at.start, deep))
        return aligned, [f"[&](int i) -> const real* {{ return {pointer}; }}"]

    def _stored(self, k: int, f: Factor) -> list[str]:
        """Write the call that describes a product which is stored."""
        processors = self.writer.processors
        to = self.writer.place[k]
        count = f"(int)a.{'m' if f.edges else 'n'} * {f.times}"
        where, row = ("j", f.wide) if to.own is None else ("q", f.wide // processors)
        inner = f" + i % {f.times} * {row}" if f.times > 1 else ""
        rows = f.held.rows(processors)
        return [
            f"    product<{str(f.aligned).lower()}, {rows}, {f.deep}>(held.{f.held.name}, {count},",
            *(f"    {line}" for line in _as_argument(f.operand)),
            "      [&](int i, int q, real sum) {",
            f"        const int j = [&](int q) -> int {{ {own_row(f.held.cuts, processors)} }}(q);",
            f"        const auto at = {_outer(to, f.times)} * {to.step}{inner} + {where};",
            f"        if (j >= 0) ({self._first(to, f.edges)})[at] = sum;",
            *self._put(to, f.times, f.wide),
            "      }),",
        ]

    def _put(self, to: Location, times: int, wide: int) -> list[str]:
        """Put an element of a product in the tile's row of the ring, too, if it belongs there.

        Args:
            times: rows of operands of each row; wide: elements of the result of one.
        """
        at = self.writer.ring_row(to)
        if at is None:
            return []
        self.writer.hands_on(to, 0, ())
        row, inner = (f"i / {times}", f" + i % {times} * {wide}") if times > 1 else ("i", "")
        place = f"(a.slot + {row}) * {at.step} + {at.start}{inner} + j"
        return [f"        if (a.puts && j >= 0) ring[{place}] = sum;"]

    def _first(self, place: Location, edges: bool) -> str:
        """Return the pointer to the tile's first row of a place."""
        start = f" + {place.start}" if place.start else ""
        if place.temporary is not None:
            return f"({self.t.origin(place)}{start})"
        word = self.t.word(place.base, "real*")
        lo = "a.elo" if place.row == "edge" else "a.lo"
        assert edges == (place.row == "edge")
        return f"({word} + (long long){lo} * {place.step}{start})"


def _outer(place: Location, times: int) -> str:
    """Return which row of a place a row of a product is: what is in shared memory needs 32 bits."""
    wide = "" if place.temporary is not None else "(long long)"
    return wide + (f"(i / {times})" if times > 1 else "i")


def _as_argument(function: list[str]) -> list[str]:
    """Return the lines of a function as an argument that others follow."""
    return [*(f"  {line}" for line in function[:-1]), f"  {function[-1]},"]


def write_with_sums(
    writer: SegmentWriter,
    products: Sequence[int],
    groups: Sequence[tuple[Group, dict[int, Location]]],
    first: bool,
) -> list[str]:
    """Write products and the groups behind them that take their sums, a few rows at a time.

    Args:
        groups: with places of operands that were asked for ahead.
        first: these are the first steps of the segment.
    """
    lines, places = ProductWriter(writer, products).sums()
    writer.taken = places
    body = ["wait_for_all_copies();"] if any(ahead for _, ahead in groups) else []
    made: set[int] = set()
    for number, (group, ahead) in enumerate(groups):
        reads = {i for k in group.nodes for i in writer.nodes[k].inputs}
        if number == 0 or reads & made:
            body.append("__syncthreads();")
            made.clear()
            writer.new_step()
        if first and number == 0:
            body.append("if (done == 0) prefetch_next();")
        made |= {*group.nodes}
        body += writer.group_lines(group, ahead, "done", "end")
    writer.taken = {}
    return [
        "{",
        f"  {ROLLED}",
        f"  for (int done = 0; done < (int)a.n; done += {TILE_ROWS}) {{",
        f"    const int end = (int)a.n - done < {TILE_ROWS} ? (int)a.n : done + {TILE_ROWS};",
        "    if (done > 0) __syncthreads();  // the last sums are taken",
        *(f"    {line}" for line in (*lines, *body)),
        "  }",
        "}",
    ]


def pieces_alike(cuts: Cuts, processors: int) -> int:
    """Return the elements of each piece of a value, 0 where they or their shares differ."""
    each = cuts[1]
    alike = all(b - a == each for a, b in pairwise(cuts)) and each % processors == 0
    return each if alike else 0
