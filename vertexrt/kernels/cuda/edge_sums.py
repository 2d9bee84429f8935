"""The text of sums over the edges of a row, and of the largest of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vertexrt.ir.program import ABOVE
from vertexrt.kernels.cuda.element_text import LANES, ElementText
from vertexrt.kernels.cuda.row_text import above_word
from vertexrt.lower.expressions import Expression
from vertexrt.lower.kernel import FromParents
from vertexrt.lower.threads import EdgeSum

UNROLLED = '_Pragma("unroll 8")'  # a vertex may have many parents: loads must overlap


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a row in the source: `counter` runs over them.

    Attributes:
        begin, end: of the counter.
        start: the statements with which the body of the loop begins.
        source: writes what an edge has.
    """

    counter: str
    begin: str
    end: str
    start: tuple[str, ...]
    source: Callable[[], str]


def write_edge_sum(elements: ElementText, x: EdgeSum, total: str) -> None:
    """Add what the edges of a row have to a total, or find the largest."""
    t, each = elements.t, LANES if x.size else ""
    for source in x.sources:
        if isinstance(source, FromParents):
            edges = _of_parents(elements, source, x.size)
        else:
            edges = _of_children(elements, source, x.relation)
        if not x.largest:
            _add_edges(elements, edges, x.size, total)
            continue
        first, e = t.fresh("first"), edges.counter
        t.line(f"bool {first} = true;")
        t.line(UNROLLED)
        head = f"for (int {e} = {edges.begin}; {e} < {edges.end}; ++{e})"
        with t.over_edges(head, *edges.start):
            new = edges.source()
            t.line(f"{each}{total} = {first} ? {new} : vrt_max({total}, {new});")
            t.line(f"{first} = false;")


def _add_edges(elements: ElementText, edges: Edges, size: int, total: str) -> None:
    """Add up the edges of a row, as a sum of short sums.

    A vertex may have any number of children and of parents, and float32 would lose digits.
    """
    t, e = elements.t, edges.counter
    kind, each, element = ("Vec<W>", LANES, ".v[c]") if size else ("real", "", "")
    some, until = t.fresh("some"), t.fresh("until")
    t.line(f"for (int {e} = {edges.begin}; {e} < {edges.end};) {{")
    t.line(f"const int {until} = min({e} + ROWS_A_SUM, {edges.end});")
    t.line(f"{kind} {some};")
    t.line(f"{each}{some}{element} = 0;")
    t.line(UNROLLED)
    with t.over_edges(f"for (; {e} < {until}; ++{e})", *edges.start):
        t.line(f"{each}{some}{element} += {edges.source()};")
    t.line(f"{each}{total} += {some}{element};")
    t.line("}")


def _of_parents(elements: ElementText, of: FromParents, size: int) -> Edges:
    """Return the edges to the parents of a row, with what they left in a tensor."""
    t = elements.t
    pointer = t.word("parent_ptr", "const int*")
    edges = t.word("parent_edge", "const int*")
    left = t.word(f"tensor_{of.tensor}", "real*")
    begin = t.row_value("first_parent", "int", f"{pointer}[row]")
    end = t.row_value("end_parent", "int", f"{pointer}[row + 1]")
    at = [f"const auto parent = {left} + (long long){edges}[p] * {max(size, 1)};"]
    if of.parents:
        above = t.word(above_word(of.layer), "int")
        without = "<" if of.parents == ABOVE else ">="
        at.insert(0, f"if ({edges}[p] {without} {above}) continue;")

    def source() -> str:
        return elements.once("load<W>(parent + j)") if size else "(*parent)"

    return Edges("p", begin, end, tuple(at), source)


def _of_children(elements: ElementText, source: Expression, relation: int) -> Edges:
    """Return the edges to the children of a row in a relation."""
    t = elements.t
    child = t.word("child_row", "const int*")
    skip = f"if ({child}[e] < 0) continue;"
    begin, end = t.edges_of(relation)
    return Edges("e", begin, end, (skip,), lambda: elements.element(source))
