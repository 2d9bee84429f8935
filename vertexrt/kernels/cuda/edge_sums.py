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


def write_edge_sums(elements: ElementText, sums: Sequence[tuple[EdgeSum, str]]) -> None:
    """Add what the edges of a row have to a total, or find the largest.

    Several sums, each over what the parents of a row left in a tensor, are made in one loop.
    """
    (x, total), *others = sums
    if others:
        found = []
        for x, total in sums:
            (source,) = x.sources
            found.append((_edges_of(elements, x, source, elements.t.fresh("parent")), total))
        _add_edges(elements, sorted(found, key=lambda each: bool(each[0].skip)), x.size)
        return
    if x.order is not None:
        _add_before(elements, x, x.order, total)
        return
    for source in x.sources:
        edges = _edges_of(elements, x, source, "parent")
        if x.largest:
            _find_largest(elements, edges, x.size, total)
        else:
            _add_edges(elements, [(edges, total)], x.size)


def _add_before(
    elements: ElementText, x: EdgeSum, order: tuple[Expression, bool], total: str
) -> None:
    """Add up what the edges before an edge have, or those after it; `e` runs over them, too."""
    t, (key, after), (source,) = elements.t, order, x.sources
    assert not isinstance(source, FromParents)
    mine, own = t.fresh("mine"), t.fresh("own")
    edges = _edges_of(elements, x, source, "")
    kind, each, lane = ("Vec<W>", LANES, ".v[c]") if x.size else ("real", "", "")
    t.line(f"{kind} {mine};")
    t.line(f"{each}{mine}{lane} = {elements.element(key)};")
    t.line(f"const int {own} = e;")
    with t.over_edges(f"for (int e = {edges.begin}; e < {edges.end}; ++e)"):
        t.line(f"if ({edges.skip}) continue;")
        other, sign = elements.element(key), "<" if after else ">"
        tied = f"{other} == {mine}{lane} && {own} {sign} e"
        value = elements.element(source)
        t.line(f"{each}if ({other} {sign} {mine}{lane} || ({tied})) {total} += {value};")


def _find_largest(elements: ElementText, edges: Edges, size: int, total: str) -> None:
    t, e, first = elements.t, edges.counter, elements.t.fresh("first")
    t.line(f"bool {first} = true;")
    t.line(UNROLLED)
    with t.over_edges(f"for (int {e} = {edges.begin}; {e} < {edges.end}; ++{e})", *edges.made):
        if edges.skip:
            t.line(f"if ({edges.skip}) continue;")
        new = edges.source()
        t.line(f"{LANES if size else ''}{total} = {first} ? {new} : vrt_max({total}, {new});")
        t.line(f"{first} = false;")


def _add_edges(elements: ElementText, sums: Sequence[tuple[Edges, str]], size: int) -> None:
    """Add up the edges of a row, as a sum of short sums.

    A vertex may have any number of children and of parents, and float32 would lose digits. What is
    added up of all edges is loaded first: a load that depends on which edge it is ends in a branch.
    """
    t, first = elements.t, sums[0][0]
    kind, each, element = ("Vec<W>", LANES, ".v[c]") if size else ("real", "", "")
    e, until, some = first.counter, t.fresh("until"), [t.fresh("some") for _ in sums]
    t.line(f"for (int {e} = {first.begin}; {e} < {first.end};) {{")
    t.line(f"const int {until} = min({e} + ROWS_A_SUM, {first.end});")
    for name in some:
        t.line(f"{kind} {name};")
        t.line(f"{each}{name}{element} = 0;")
    t.line(UNROLLED)
    with t.over_edges(f"for (; {e} < {until}; ++{e})"):
        adds = []
        for (edges, _), name in zip(sums, some, strict=True):
            t.lines += edges.made
            if edges.skip:
                t.line(f"if (!({edges.skip})) {{")
                t.line(f"{each}{name}{element} += {edges.source()};")
                t.line("}")
            else:
                adds.append(f"{each}{name}{element} += {edges.source()};")
        t.lines += adds
    for (_, total), name in zip(sums, some, strict=True):
        t.line(f"{each}{total} += {name}{element};")
    t.line("}")


def _edges_of(elements: ElementText, x: EdgeSum, of: Expression | FromParents, name: str) -> Edges:
    """Return the edges of a row: to its children in a relation, or to what its parents left."""
    t = elements.t
    if not isinstance(of, FromParents):
        child, ends = t.word("child_row", "const int*"), t.edges_of(x.relation)
        return Edges("e", *ends, f"{child}[e] < 0", (), lambda: elements.element(of))
    pointer, edges = t.word("parent_ptr", "const int*"), t.word("parent_edge", "const int*")
    left, skip = t.word(f"tensor_{of.tensor}", "real*"), ""
    begin = t.row_value("first_parent", "int", f"{pointer}[row]")
    end = t.row_value("end_parent", "int", f"{pointer}[row + 1]")
    made = f"const auto {name} = {left} + (long long){edges}[p] * {max(x.size, 1)};"
    if of.parents:
        above = t.word(above_word(of.layer), "int")
        skip = f"{edges}[p] {'<' if of.parents == ABOVE else '>='} {above}"

    def source() -> str:
        return elements.once(f"load<W>({name} + j)") if x.size else f"(*{name})"

    return Edges("p", begin, end, skip, (made,), source)
