"""Sums over the edges of a row, and the largest of them, in the text of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vertexrt.ir.program import Node
from vertexrt.kernels.cuda.values import ValueText
from vertexrt.kernels.layout import edge_key

UNROLLED = '_Pragma("unroll 8")'  # a vertex may have many parents: loads must overlap


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a row in the source: `counter` runs over them.

    Attributes:
        begin, end: of the counter.
        start: the statement with which the body of the loop begins.
        source: writes what an edge has.
    """

    counter: str
    begin: str
    end: str
    start: str
    source: Callable[[], str]

    @property
    def all(self) -> str:
        """Return the head of the loop over all."""
        e = self.counter
        return f"for (int {e} = {self.begin}; {e} < {self.end}; ++{e})"


def write_edge_sum(values: ValueText, node: Node, j: str | None, total: str) -> None:
    """Add what the edges of a row have to a total, or find the largest.

    Args:
        j: the element, None for a number of the row.
    """
    t, each = values.t, "" if j is None else "VRT_LANES "
    sources = _of_parents if node.op == "gather_parents" else _of_edges
    for edges in sources(values, node, j):
        if node.op != "segment_max":
            _add_edges(values, edges, j, total)
            continue
        first = t.fresh("first")
        t.line(f"bool {first} = true;")
        t.line(UNROLLED)
        with t.edges(edges.all, edges.start):
            new = edges.source()
            t.line(f"{each}{total} = {first} ? {new} : vrt_max({total}, {new});")
            t.line(f"{first} = false;")


def _add_edges(values: ValueText, edges: Edges, j: str | None, total: str) -> None:
    """Add up the edges of a row, as a sum of short sums.

    A vertex may have any number of children and of parents, and float32 would lose digits.
    """
    t, e = values.t, edges.counter
    kind, each, element = ("real", "", "") if j is None else ("Vec<W>", "VRT_LANES ", ".v[c]")
    some, until = t.fresh("some"), t.fresh("until")
    t.line(f"for (int {e} = {edges.begin}; {e} < {edges.end};) {{")
    t.line(f"const int {until} = min({e} + ROWS_A_SUM, {edges.end});")
    t.line(f"{kind} {some};")
    t.line(f"{each}{some}{element} = 0;")
    t.line(UNROLLED)
    with t.edges(f"for (; {e} < {until}; ++{e})", edges.start):
        t.line(f"{each}{some}{element} += {edges.source()};")
    t.line(f"{each}{total} += {some}{element};")
    t.line("}")


def _of_parents(values: ValueText, node: Node, j: str | None) -> Iterator[Edges]:
    """Yield the edges to the parents of a row, tensor by tensor of what they left there."""
    t, size = values.t, max(node.type.size, 1)
    values.reads_parents()
    pointer = t.word("parent_ptr", "const int*")
    edges = t.word("parent_edge", "const int*")

    def source() -> str:
        return "(*parent)" if j is None else t.read("parent + j", size % 4 == 0)

    for every in (False, True):
        if node["every" if every else "slots"]:
            key = edge_key(node["field"], every)
            tensor = t.word(f"tensor_{values.binding.tensors[key]}", "real*")
            begin = t.row_value("first_parent", "int", f"{pointer}[row]")
            end = t.row_value("end_parent", "int", f"{pointer}[row + 1]")
            at = f"const auto parent = {tensor} + (long long){edges}[p] * {size};"
            yield Edges("p", begin, end, at, source)


def _of_edges(values: ValueText, node: Node, j: str | None) -> Iterator[Edges]:
    """Yield the edges to the children of a row."""
    (i,) = node.inputs
    child = values.t.word("child_row", "const int*")
    skip = f"if ({child}[e] < 0) continue;"
    begin, end = values.t.first_edge(), values.t.end_edge()
    yield Edges("e", begin, end, skip, lambda: values.element(i, j or "0"))
