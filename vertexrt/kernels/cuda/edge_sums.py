"""The text of sums over the edges of a row, and of the largest of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vertexrt.ir.program import ABOVE
from vertexrt.kernels.cuda.element_text import LANES, ElementText
from vertexrt.kernels.cuda.row_text import above_word
from vertexrt.lower.kernel import Expression, FromParents
from vertexrt.lower.threads import EdgeSum

UNROLLED = '_Pragma("unroll 8")'  # a vertex may have many parents: loads must overlap


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a row in the source: `counter` runs over them.

    Attributes:
        begin, end: of the counter.
        skip: the test of edges that have nothing; "" for none.
        made: what is declared for an edge.
        source: writes what an edge has.
    """

    counter: str
    begin: str
    end: str
    skip: str
    made: tuple[str, ...]
    source: Callable[[], str]

    @property
    def start(self) -> tuple[str, ...]:
        """Return the statements with which the body of the loop begins."""
        return (*([f"if ({self.skip}) continue;"] if self.skip else []), *self.made)


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


def write_sums_over_parents(elements: ElementText, sums: Sequence[tuple[EdgeSum, str]]) -> None:
    """Add what the parents of a row left in several tensors, each to its total, in one loop.

    What is added up of all parents is loaded first: a load that depends on which parent it is ends
    in a branch.
    """
    t, until = elements.t, elements.t.fresh("until")
    found = []
    for x, total in sums:
        (source,) = x.sources
        assert isinstance(source, FromParents)
        edges = _of_parents(elements, source, x.size, t.fresh("parent"))
        found.append((edges, t.fresh("some"), total))
    found.sort(key=lambda each: bool(each[0].skip))
    begin, end = found[0][0].begin, found[0][0].end
    t.line(f"for (int p = {begin}; p < {end};) {{")
    t.line(f"const int {until} = min(p + ROWS_A_SUM, {end});")
    for _, some, _ in found:
        t.line(f"Vec<W> {some};")
        t.line(f"{LANES}{some}.v[c] = 0;")
    t.line(UNROLLED)
    with t.over_edges(f"for (; p < {until}; ++p)"):
        adds = []
        for edges, some, _ in found:
            t.lines += edges.made
            if edges.skip:
                t.line(f"if (!({edges.skip})) {{")
                t.line(f"{LANES}{some}.v[c] += {edges.source()};")
                t.line("}")
            else:
                adds.append(f"{LANES}{some}.v[c] += {edges.source()};")
        t.lines += adds
    for _, some, total in found:
        t.line(f"{LANES}{total} += {some}.v[c];")
    t.line("}")


def _of_parents(elements: ElementText, of: FromParents, size: int, name: str = "parent") -> Edges:
    """Return the edges to the parents of a row, with what they left in a tensor."""
    t = elements.t
    pointer = t.word("parent_ptr", "const int*")
    edges = t.word("parent_edge", "const int*")
    left = t.word(f"tensor_{of.tensor}", "real*")
    begin = t.row_value("first_parent", "int", f"{pointer}[row]")
    end = t.row_value("end_parent", "int", f"{pointer}[row + 1]")
    made, skip = f"const auto {name} = {left} + (long long){edges}[p] * {max(size, 1)};", ""
    if of.parents:
        above = t.word(above_word(of.layer), "int")
        skip = f"{edges}[p] {'<' if of.parents == ABOVE else '>='} {above}"

    def source() -> str:
        return elements.once(f"load<W>({name} + j)") if size else f"(*{name})"

    return Edges("p", begin, end, skip, (made,), source)


def _of_children(elements: ElementText, source: Expression, relation: int) -> Edges:
    """Return the edges to the children of a row in a relation."""
    t = elements.t
    child = t.word("child_row", "const int*")
    begin, end = t.edges_of(relation)
    return Edges("e", begin, end, f"{child}[e] < 0", (), lambda: elements.element(source))
