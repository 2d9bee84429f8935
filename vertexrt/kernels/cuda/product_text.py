"""Print the products of a segment as calls of `resident_matmul.cuh`."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.kernels.cuda.row_text import RowText
from vertexrt.kernels.cuda.segments import (
    ComputedRows,
    PartialSums,
    Products,
    ResidentProduct,
    RowsInMemory,
    TileFacts,
)
from vertexrt.kernels.cuda.thread_text import ROW_PAD, ThreadText
from vertexrt.kernels.cuda.weights import own_row
from vertexrt.lower.kernel import Leaf, Memory, PlaceRows, ReadElement, ValuePlace
from vertexrt.lower.threads import ThreadKernel


def tile_text(tile: TileFacts) -> RowText:
    """Return the text of what works on a tile, whose temporaries are few."""
    return RowText(tile.taken, ROW_PAD, "int")


class ProductText:
    """The text of products that share their barriers.

    Attributes:
        words: that it names, with their types.
    """

    def __init__(self, step: Products, tile: TileFacts) -> None:
        self.products, self.one_operand = step.products, step.one_operand
        self.tile, self.t = tile, tile_text(tile)
        self._words: dict[str, str] = {}  # of operands that are computed
        self.operands = [self._operand(x) for x in self.products]

    @property
    def words(self) -> dict[str, str]:
        return self._words | self.t.words

    def stored(self) -> list[str]:
        """Return statements that make the products and store them."""
        both = zip(self.products, self.operands, strict=True)
        lines = [line for x, operand in both for line in self._stored(x, operand)]
        call = "multiply<true>" if self.one_operand else "multiply"
        lines = [f"  {call}(partial,", *lines[:-1], lines[-1].removesuffix(",") + ");"]
        return ["{", *(f"  {line}" for line in self.t.head), *lines, "}"]

    def sums(self) -> list[str]:
        """Return statements that make partial sums of rows `done` to `end`."""
        lines: list[str] = []
        for x, operand in zip(self.products, self.operands, strict=True):
            at = x.to
            assert isinstance(at, PartialSums)
            times = f" * {x.times}" if x.times > 1 else ""
            count = f"(end - done){times}" if times else "end - done"
            lines += [
                f"make_all_partial_sums<{at.rows}, {x.operand.width}, {at.own}, {at.deep}>("
                f"{self.tile.share(x.held)}, done{times}, {count},",
                *_as_argument(operand),
                f"  partial + {at.start});",
            ]
        return [*self.t.head, *lines]

    def _operand(self, x: ResidentProduct) -> list[str]:
        """Return a function from a row of the product to the operand's."""
        if isinstance(x.operand, ComputedRows):
            return self._computed(x.operand, x.times)
        return self._in_memory(x, x.operand)

    def _in_memory(self, x: ResidentProduct, operand: RowsInMemory) -> list[str]:
        k, at, near, times = x.number, operand.place, operand.near, x.times
        source, step = self._first(at), str(at.step)
        if near is not None:
            in_ring = f"ring + a.slot * {near.step} + {near.start + at.start}"
            self.t.row_value(f"from_{k}", "real* const", f"a.in_ring ? {in_ring} : {source}")
            self.t.row_value(f"step_{k}", "int", f"a.in_ring ? {near.step} : {at.step}")
            source, step = f"from_{k}", f"step_{k}"
        inner = f" + i % {times} * {x.held.deep}" if times > 1 else ""
        pointer = f"{source} + {_outer(at, times)} * {step}{inner}"
        return [f"[&](int i) -> const real* {{ return {pointer}; }}"]

    def _computed(self, operand: ComputedRows, times: int) -> list[str]:
        """Return a function from the row of a product to one from a column to four elements."""
        text = ThreadText(ThreadKernel(1, 0, 0, 0, False, False, ()), self.tile.taken, self.tile)
        row = "i" if times == 1 else f"i / {times}"
        body = _chosen(text, operand, times) if len(operand.values) > 1 else _made(text, operand)
        self._words |= text.t.words
        return [
            "[&](int i) {",
            f"  const int row = (int)a.lo + {row};",
            *(f"  {line}" for line in text.t.head),
            "  return [=](int j) {",
            *(f"    {line}" for line in body),
            "  };",
            "}",
        ]

    def _stored(self, x: ResidentProduct, operand: Sequence[str]) -> list[str]:
        """Return the call that describes a product which is stored."""
        to, processors = x.to, self.tile.processors
        assert isinstance(to, ValuePlace)
        count = f"(int)a.{'m' if x.edges else 'n'} * {x.times}"
        wide = x.held.cuts[-1]
        where, row = ("j", wide) if to.own is None else ("q", x.own)
        inner = f" + i % {x.times} * {row}" if x.times > 1 else ""
        kind = f"{x.rows}, {x.operand.width}, {x.own}, {x.held.deep}"
        return [
            f"    product<{kind}>({self.tile.share(x.held)}, {count},",
            *(f"    {line}" for line in _as_argument(operand)),
            "      [&](int i, int q, real sum) {",
            f"        const int j = [&](int q) -> int {{ {own_row(x.held.cuts, processors)} }}(q);",
            f"        const auto at = {_outer(to, x.times)} * {to.step}{inner} + {where};",
            f"        if (j >= 0) ({self._first(to)})[at] = sum;",
            *_put(x, to, wide),
            "      }),",
        ]

    def _first(self, place: ValuePlace) -> str:
        """Return the pointer to the tile's first row of a place."""
        start = f" + {place.start}" if place.start else ""
        origin = self.t.origin(place)
        if place.memory == Memory.TEMPORARY:
            return f"({origin}{start})"
        lo = "a.elo" if place.rows == PlaceRows.EDGE else "a.lo"
        return f"({origin} + (long long){lo} * {place.step}{start})"


def _put(x: ResidentProduct, to: ValuePlace, wide: int) -> list[str]:
    """Put an element of a product in the tile's row of the ring, too, if the ring has it."""
    if x.put is None:
        return []
    times = x.times
    row, inner = (f"i / {times}", f" + i % {times} * {wide}") if times > 1 else ("i", "")
    place = f"(a.slot + {row}) * {x.put.step} + {x.put.start + to.start}{inner} + j"
    return [f"        if (a.puts && j >= 0) ring[{place}] = sum;"]


def _chosen(text: ThreadText, operand: ComputedRows, times: int) -> list[str]:
    """Print the states that a product of several vectors of each row reads, one after another."""
    bases = [text.elements.state(x) for x in operand.values if isinstance(x, Leaf)]
    which = "".join(f"i % {times} == {n} ? {base} : " for n, base in enumerate(bases[:-1]))
    text.t.head.append(f"const real* const from = {which}{bases[-1]};")
    return [f"return load<{operand.width}>(from + j);"]


def _made(text: ThreadText, operand: ComputedRows) -> list[str]:
    """Print the elements of a state, or what is computed from several."""
    (value,) = operand.values
    assert isinstance(value, ReadElement | Leaf)
    lines, found = text.elements_of(operand.made, value)
    return [f"constexpr int W = {operand.width};", *lines, f"return {found};"]


def _outer(place: ValuePlace, times: int) -> str:
    """Return which row of a place a row of a product is: what is in shared memory needs 32 bits."""
    wide = "" if place.memory == Memory.TEMPORARY else "(long long)"
    return wide + (f"(i / {times})" if times > 1 else "i")


def _as_argument(function: Sequence[str]) -> list[str]:
    """Return the lines of a function as an argument that others follow."""
    return [*(f"  {line}" for line in function[:-1]), f"  {function[-1]},"]
