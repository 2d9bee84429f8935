"""Print kernels whose rows are the work of several threads as CUDA; everything is decided before.

An element is in a register `r17` of the thread that makes it, a number of the row in `v17`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vertexrt.ir.program import ABOVE
from vertexrt.kernels.cuda.row_text import LANES, ElementText, RowText, above_word
from vertexrt.lower.kernel import Expression, FromParents, Temporary, ValuePlace, register_name
from vertexrt.lower.threads import (
    EdgeSum,
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    RowWait,
    StoreElements,
    ThreadKernel,
)

WAIT = "row_wait<T>();"
PARTIAL = {"reduce_sum": "RowSum", "reduce_max": "RowMax", "logsumexp": "RowLogSumExp"}
EDGE_ROW = ["const int e = (int)a.elo + i;", "const int row = edge_row[e];"]
UNROLLED = '_Pragma("unroll 8")'  # a vertex may have many parents: loads must overlap


class ThreadText:
    """The text of a kernel.

    Args:
        taken: temporaries by number.
    """

    def __init__(self, kernel: ThreadKernel, taken: Sequence[Temporary]) -> None:
        self.kernel = kernel
        edges = kernel.edges, kernel.splits_edges, kernel.relations
        self.t = RowText(taken, *edges)
        self.elements = ElementText(self.t)
        self._stores: list[str] = []  # of a loop, after its body: no load waits for them
        self._after: list[str] = []  # a loop
        self._joined: list[tuple[EdgeSum, str]] = []  # sums that wait for the last one of them
        for part in kernel.parts:
            match part:
                case ElementLoop():
                    self._loop(part)
                case RowWait():
                    self.t.line(WAIT)
                case MakeNumber():
                    self._make_number(part)
                case PublishNumber(to=to, child=child):
                    self.t.origin(to)
                    where = self._if_child(child) or "if (true) "
                    value = self.elements.element(part.value)
                    self.t.line(f"{where}if (lane == 0) *({self.t.base(to)}) = {value};")

    def row_kernel(self) -> str:
        """Return a kernel in which a block has some rows of a launch."""
        kernel, counter = self.kernel, "threadIdx.x / T"
        lane, i = "threadIdx.x", "VRT_BLOCK.x"
        if kernel.rows > 1:
            lane, i = "threadIdx.x % T", f"VRT_BLOCK.x * {kernel.rows} + {counter}"
        first = [
            f"constexpr int T = {kernel.threads};",
            f"const int lane = {lane};",
            f"const int i = {i};",
            f"if (i >= a.{'m' if kernel.edges else 'n'}) return;",
        ]
        rows = EDGE_ROW
        if not kernel.edges and kernel.listed:
            listed = self.t.word("rows")
            rows = [f"const int row = a.lo >= 0 ? (int)a.lo + i : {listed}[a.at + i];"]
        elif not kernel.edges:
            rows = ["const int row = (int)a.lo + i;"]
        if kernel.scratch:
            mine = f" + {counter} * {kernel.scratch}" if kernel.rows > 1 else ""
            rows = [
                *rows,
                f"VRT_SCRATCH(real, all_scratch, {kernel.rows * kernel.scratch});",
                f"real* const scratch = all_scratch{mine};",
            ]
        return self.t.kernel(kernel.threads * kernel.rows, first, rows)

    # Between loops.

    def _make_number(self, part: MakeNumber) -> None:
        name = f"v{part.number}"
        if isinstance(part.value, EdgeSum):
            self.t.line(f"real {name} = 0;")
            _write_edge_sums(self.elements, [(part.value, name)])
        else:
            self.t.line(f"const real {name} = {self.elements.value(part.value)};")
        for to in part.to:
            self.t.line(self._store_number(to, name))

    def _store_number(self, to: ValuePlace, name: str) -> str:
        return f"if (lane == 0) *({self.t.base(to)}) = {name};"

    def _if_child(self, slot: int) -> str:
        return f"if ({self.elements.child(slot)} >= 0) " if slot >= 0 else ""

    # Loops.

    def _loop(self, loop: ElementLoop) -> None:
        self._stores, self._after = [], []
        ahead: dict[str, str] = {}
        with self.elements.in_loop(ahead if loop.ahead > 1 or loop.sums_edges else None) as body:
            for statement in loop.statements:
                self._statement(statement)
        kinds = {x.number: x.how for x in loop.statements if isinstance(x, ReduceElements)}
        for x in loop.before:
            self.t.line(WAIT if isinstance(x, RowWait) else f"{PARTIAL[kinds[x]]} part{x};")
        write = self._several if loop.ahead > 1 else self._once
        write(loop, ahead, [*body, *self._stores])
        self.t.lines += self._after

    def _once(self, loop: ElementLoop, ahead: dict[str, str], lines: Sequence[str]) -> None:
        """Print a loop whose statements follow each other.

        What it needs once it has added up edges is on its way before that.
        """
        loads = [f"const Vec<W> {name} = {text};" for name, text in ahead.items()]
        step, declare, head = self.kernel.threads * loop.width, list[str](), ""
        if loop.size == step:
            declare = ["const int j = lane * W;"]
        elif loop.size < step:
            head = f"if (int j = lane * W; j < {loop.size})"
        else:
            head = f"for (int j = lane * W; j < {loop.size}; j += {step})"
        inner = [f"  {line}" for line in (*loads, *lines)]
        inner = [f"constexpr int W = {loop.width};", *declare, f"{head} {{", *inner, "}"]
        self.t.lines += ["{", *(f"  {line}" for line in inner), "}"]

    def _several(self, loop: ElementLoop, ahead: dict[str, str], lines: Sequence[str]) -> None:
        """Print a loop that takes elements several times, with all loads first."""
        step = self.kernel.threads * loop.width
        each = [
            "#pragma unroll",
            f"for (int turn = 0; turn < {loop.ahead}; ++turn) {{",
            f"  const int j = begin + turn * {step};",
            f"  if (j >= {loop.size}) break;",
        ]
        loads = [f"  {name}s[turn] = {text};" for name, text in ahead.items()]
        held = [f"  const Vec<W> {name} = {name}s[turn];" for name in ahead]
        inner = [
            *(f"Vec<W> {name}s[{loop.ahead}];" for name in ahead),
            *([*each, *loads, "}"] if ahead else []),
            *[*each, *held, *(f"  {line}" for line in lines), "}"],
        ]
        self.t.lines += [
            "{",
            f"  constexpr int W = {loop.width};",
            f"  for (int begin = lane * W; begin < {loop.size}; begin += {step * loop.ahead}) {{",
            *(f"    {line}" for line in inner),
            "  }",
            "}",
        ]

    def of_element(self, statements: Sequence[ElementStatement]) -> list[str]:
        """Return statements for one element j, and then their stores."""
        self._stores = []
        with self.elements.in_loop() as lines:
            for x in statements:
                self._statement(x)
        return [*lines, *self._stores]

    def _statement(self, x: ElementStatement) -> None:
        match x:
            case MakeElements():
                self._make(x)
            case StoreElements(to=to):
                self._stores.append(self._store(to, self.elements.vector(x.value)))
            case PublishElements(to=to, register=register):
                self.t.origin(to)
                where = self._if_child(x.child)
                self._make(MakeElements(register, x.value))
                self._stores.append(f"{where}{self._store(to, register_name(register))}")
            case ReduceElements(number=number):
                self.t.line(f"{LANES}part{number}.add({self.elements.element(x.value)});")
                self._after.append(f"const real v{number} = part{number}.of<T>();")
                self._after += [self._store_number(to, f"v{number}") for to in x.to]

    def _make(self, x: MakeElements) -> None:
        name = register_name(x.register)
        if isinstance(x.value, EdgeSum):
            self.t.line(f"Vec<W> {name};")
            self.t.line(f"{LANES}{name}.v[c] = 0;")
            self._joined.append((x.value, f"{name}.v[c]"))
            if not x.joined:
                _write_edge_sums(self.elements, self._joined)
                self._joined = []
            return
        is_copy = x.register < 0
        text = self.elements.element(x.value) if is_copy else self.elements.value(x.value)
        self.t.line(f"Vec<W> {name};")
        self.t.line(f"{LANES}{name}.v[c] = {text};")

    def _store(self, to: ValuePlace, register: str) -> str:
        return f"store<W>({self.t.base(to)} + j, {register});"


# Sums over the edges of a row, and the largest of them.


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


def _write_edge_sums(elements: ElementText, sums: Sequence[tuple[EdgeSum, str]]) -> None:
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
        child, ends = t.word("child_row"), t.edges_of(x.relation)
        return Edges("e", *ends, f"{child}[e] < 0", (), lambda: elements.element(of))
    pointer, edges = t.word("parent_ptr"), t.word("parent_edge")
    left, skip = t.word(f"tensor_{of.tensor}"), ""
    begin = t.row_value("first_parent", "int", f"{pointer}[row]")
    end = t.row_value("end_parent", "int", f"{pointer}[row + 1]")
    made = f"const auto {name} = {left} + (long long){edges}[p] * {max(x.size, 1)};"
    if of.parents:
        above = t.word(above_word(of.layer))
        skip = f"{edges}[p] {'<' if of.parents == ABOVE else '>='} {above}"

    def source() -> str:
        return elements.once(f"load<W>({name} + j)") if x.size else f"(*{name})"

    return Edges("p", begin, end, skip, (made,), source)
