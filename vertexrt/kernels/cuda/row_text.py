"""The text of a kernel: what it is given, values of a row, lines; elements where they are read. It
decides nothing.

What is asked for twice has one name: a word is an argument, a row value is defined once before
everything else, and an edge value once in the loop over the edges of a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from vertexrt.ir.expressions import CUDA, translate
from vertexrt.kernels.layout import PAD
from vertexrt.lower.kernel import (
    Apply,
    Constant,
    Expression,
    Index,
    Leaf,
    Memory,
    Number,
    Picked,
    PlaceRows,
    RandomDraw,
    ReadElement,
    Temporary,
    ValuePlace,
    register_name,
)
from vertexrt.lower.lowering import NLL, NLL_GRAD

WARP = 32
# Words that are there only where edges are split or of several relations, or something of edges is
# pulled: see `Binding.edge_words`.
EVERY_PTR, EDGE_ORDER, RELATION_PTR = "every_ptr", "edge_order", "relation_ptr"
# The types of words, without their numbers; others are "const int*".
WORD_TYPES = {
    **dict.fromkeys(("temporary", "tensor_", "gradient_"), "real*"),
    **dict.fromkeys(("zero", "weight", "param_", "float_", "seed_"), "const real*"),
    "arrived": "int*",
    "scale": "const double*",
    "random_seed": "const long long*",
    "above_": "int",
}
# Names of words with a number, see `word_names`, and of what is made of them.
KINDS = "tensor_|param_|gradient_|int_|float_index_|float_|seed_row_|seed_|above_"
NUMBERED = re.compile(rf"\b(b_|c|)({KINDS}|)(\d+)(?=_|\b)")


def above_word(layer: int) -> str:
    """Return the word that is the first edge whose parent is of a layer above one: no address."""
    return f"above_{layer}"


def tensor_word(place: ValuePlace) -> str:
    """Return the word of the tensor that a place is in."""
    return f"tensor_{place.number}"


def names_in_order(text: str) -> str:
    """Return a text whose tensors, parameters and pulls are numbered as they appear.

    Texts that are equal then do the same to what they are given, as those of a stack's layers.
    """
    names: dict[tuple[str, str], int] = {}

    def name(found: re.Match[str]) -> str:
        before, kind, number = found.groups()
        if not kind and before != "c":
            return found[0]
        of = kind or "tensor_"  # c12 is a child's row of tensor_12
        return f"{before}{kind}{names.setdefault((of, number), len(names))}"

    return NUMBERED.sub(name, text)


class RowText:
    """The lines of a kernel.

    Args:
        taken: temporaries by number.
        edges: the rows are edges.
        splits_edges, relations: of `Program`.

    Attributes:
        words: name -> type, of what the kernel is given.
        head: values of the row.
        lines: where the next line goes.
    """

    def __init__(
        self,
        taken: Sequence[Temporary] = (),
        edges: bool = False,
        splits_edges: bool = False,
        relations: int = 1,
    ) -> None:
        self.taken, self.edges = taken, edges
        self.splits_edges, self.relations = splits_edges, relations
        self.words: dict[str, str] = {}
        self.head: list[str] = []
        self.lines: list[str] = []
        self.edge_known: dict[str, str] | None = None  # text -> name, in a loop over edges
        self._named: set[str] = set()
        self._edge_named: set[str] = set()
        self._count = 0
        if edges:
            self.word("edge_row")

    def word(self, name: str) -> str:
        """Ask for an argument; return its name in the source."""
        self.words.setdefault(name, WORD_TYPES.get(name.rstrip("0123456789"), "const int*"))
        return name

    def row_value(self, name: str, kind: str, value: str) -> str:
        """Define a value once a row, before everything else."""
        if name not in self._named:
            self._named.add(name)
            self.head.append(f"const {kind} {name} = {value};")
        return name

    def edge_value(self, name: str, kind: str, value: str) -> str:
        """Define a value once an edge, inside the loop over the edges of a row."""
        if self.edge_known is None:
            return self.row_value(name, kind, value)  # the rows are edges
        if name not in self._edge_named:
            self._edge_named.add(name)
            self.line(f"const {kind} {name} = {value};")
        return name

    def fresh(self, letter: str) -> str:
        """Return a name not used before."""
        self._count += 1
        return f"{letter}{self._count}"

    def line(self, text: str) -> None:
        """Append a statement."""
        self.lines.append(text)

    @contextmanager
    def inside(self) -> Iterator[list[str]]:
        """Collect the lines of a block."""
        outside, self.lines = self.lines, []
        yield self.lines
        self.lines = outside

    @contextmanager
    def over_edges(self, header: str, *first: str) -> Iterator[None]:
        """Write a loop over edges of the row."""
        self.edge_known, self._edge_named = {}, set()
        with self.inside() as lines:
            lines += first
            yield
        self.edge_known = None
        self.lines += [header + " {", *(f"  {text}" for text in lines), "}"]

    # Places.

    def base(self, place: ValuePlace) -> str:
        """Return the pointer to the row of a place."""
        start = f" + {place.start}" if place.start else ""
        if place.memory == Memory.SCRATCH:
            return f"((scratch + {place.number}){start})"
        origin, rows = self.origin(place), place.rows.value
        if place.rows == PlaceRows.SLOT:
            rows, counter = f"slot{place.slot}", f"({self.first_edge()} + {place.slot})"
        else:
            counter = self._counters[place.rows]
        name = f"b_{origin}_{rows}_{place.start}"
        value = f"{origin} + (long long){counter} * {place.step}{start}"
        if place.rows in (PlaceRows.EDGE, PlaceRows.LOCAL_EDGE):
            return self.edge_value(name, "auto", value)
        return self.row_value(name, "auto", value)

    @property
    def _counters(self) -> Mapping[PlaceRows, str]:
        """What counts the rows of places."""
        local = "(row - a.lo)" if self.edges else "i"
        return {
            PlaceRows.ROW: "row",
            PlaceRows.LOCAL: local,
            PlaceRows.EDGE: "e",
            PlaceRows.LOCAL_EDGE: "(e - a.elo)",
        }

    def origin(self, place: ValuePlace) -> str:
        """Return the pointer to row 0 of a place."""
        if place.memory == Memory.TEMPORARY:
            return self.temporary(self.taken[place.number])
        return self.word(tensor_word(place))

    def temporary(self, t: Temporary) -> str:
        """Return the pointer to row 0 of a temporary."""
        memory = self.word("temporary")
        rows = self.row_value("n_pad", "long long", f"(a.n + {PAD - 1}) / {PAD} * {PAD}")
        edges = self.row_value("m_pad", "long long", f"(a.m + {PAD - 1}) / {PAD} * {PAD}")
        sizes = [f"{n} * {k}" for n, k in ((rows, t.rows), (edges, t.edges)) if k]
        value = " + ".join([memory, *sizes, *([str(t.once)] if t.once else [])])
        return self.row_value(f"t_{t.rows}_{t.edges}_{t.once}", "auto", value)

    def first_edge(self) -> str:
        """Return the first edge of the row."""
        pointer = self.word("edge_ptr")
        return self.row_value("first_edge", "auto", f"{pointer}[row]")

    def end_edge(self) -> str:
        """Return the end of the edges of the row."""
        pointer = self.word("edge_ptr")
        return self.row_value("end_edge", "auto", f"{pointer}[row + 1]")

    def first_of_every(self) -> str:
        """Return the first edge of the row that `gather_all` reads."""
        if not self.splits_edges:
            return self.first_edge()
        pointer = self.word(EVERY_PTR)
        return self.row_value("first_of_every", "int", f"{pointer}[row]")

    def edges_of(self, relation: int) -> tuple[str, str]:
        """Return the first edge of the row in a relation that is read whole, and the end."""
        if self.relations == 1:
            first = self.first_of_every()
            if not self.splits_edges:
                return first, self.end_edge()
            pointer = self.word(EVERY_PTR)
            return first, self.row_value("end_of_every", "int", f"{pointer}[row + 1]")
        pointer = self.word(RELATION_PTR)

        def begin(of: int) -> str:
            return self.row_value(
                f"relation_{of}", "int", f"{pointer}[row * {self.relations} + {of}]"
            )

        return begin(relation), begin(relation + 1)

    def kernel(self, threads: int, first: Sequence[str] = (), rows: Sequence[str] = ()) -> str:
        """Return the finished kernel, with NAME for its name, and names in order.

        Args:
            threads: of a block.
            first: lines before its arguments; rows: those that find the row, after them.
        """
        arguments = [
            f"{kind} const {name} = ({kind})a.w[{k}];"
            for k, (name, kind) in enumerate(self.words.items())
        ]
        head = f"VRT_KERNEL(NAME, Args<{max(len(self.words), 1)}>, {threads}) {{"
        lines = [*first, *arguments, *rows, *self.head, *self.lines]
        return names_in_order("\n".join([head, *(f"  {line}" for line in lines), "}"]) + "\n")


LANES = "VRT_LANES "  # what follows is done for each lane c of a vector


class ElementText:
    """Prints what is read, in a loop over elements or for the row.

    Attributes:
        known: text -> name of what was read, in the loop that is being printed; None between loops.
        ahead: name -> text of what that loop loads before all else; None where it need not.
    """

    def __init__(self, t: RowText) -> None:
        self.t = t
        self.known: dict[str, str] | None = None
        self.ahead: dict[str, str] | None = None

    @contextmanager
    def in_loop(self, ahead: dict[str, str] | None = None) -> Iterator[list[str]]:
        """Collect the lines of a loop over elements.

        Args:
            ahead: gets the loads, which are no lines then.
        """
        self.known, self.ahead = {}, ahead
        with self.t.inside() as lines:
            yield lines
        self.known, self.ahead = None, None

    def element(self, e: Expression) -> str:
        """Return the text of an element, in a loop that of lane c."""
        match e:
            case Number(value=value):
                return f"v{value}"
            case Constant(value=int(value)):
                return f"({value})"
            case Constant(value=value):
                return f"real({value!r})"
            case ReadElement():
                return self._read(e)
            case Leaf(op=op):
                return self._LEAVES[op](self, e)
            case Picked():
                raise AssertionError("only the loss reads the element that a label names")
            case Apply():
                return f"({self.value(e)})"

    def value(self, e: Expression) -> str:
        """Return the text of a whole statement's value."""
        if not isinstance(e, Apply):
            return self.element(e)
        if e.expression == NLL:
            return self._nll(e)
        if e.expression == NLL_GRAD:
            return self._nll_grad(e)
        names = {f"x{k}": self.element(x) for k, x in enumerate(e.operands)}
        if e.draw is not None:
            names["draw"] = self._drawn(e.draw, e.index)
        return translate(e.expression, names, CUDA)

    def vector(self, e: ReadElement | Leaf) -> str:
        """Return the name of the elements of all lanes."""
        return self.element(e).removesuffix(".v[c]")

    def _nll(self, e: Apply) -> str:
        total, picked, given = e.operands
        assert isinstance(picked, Picked)
        assert isinstance(given, Leaf)
        index = self._integer(given)
        chosen = f"({self.t.base(picked.place)} + {picked.start})[max({index}, 0)]"
        return f"{index} >= 0 ? {self.element(total)} - {chosen} : real(0)"

    def _nll_grad(self, e: Apply) -> str:
        logits, total, label, d, _ = e.operands
        assert isinstance(label, Leaf)
        index = self._integer(label)
        scale, x, log = self.element(d), self.element(logits), self.element(total)
        return f"{index} >= 0 ? {scale} * (vrt_exp({x} - {log}) - real(j + c == {index})) : real(0)"

    def _drawn(self, draw: RandomDraw, index: Index) -> str:
        """Return the factor of dropout, or a number between 0 and 1."""
        word = self.t.word("random_seed")
        seed = self.t.row_value("seed_", "unsigned", f"(unsigned)*{word}")
        element = f"{index} + c" if index.moves else str(index)
        # The vertex, or what a pull says, by its number in the whole batch: this may be a share.
        own = draw.by < 0
        vertex = self.user_vertex() if own else self._integer(Leaf("integer", number=draw.by))
        numbers = self.t.word("user_edge" if draw.edges else "user_number")
        counter = f"{numbers}[{vertex}]"
        if draw.edges:
            counter = f"({counter} + e - {self.t.first_of_every()})"
        elif own:
            counter = self.t.row_value("un", "int", counter)
        else:
            counter = f"({vertex} < 0 ? {vertex} : {counter})"
        uniform = f"vrt_uniform({seed}, {draw.key}u, {counter}, {element})"
        if draw.p is None:
            return f"((real({uniform} >> 9) + real(0.5)) * real(1.1920928955078125e-07))"
        threshold = min(int(draw.p * 2**32), 2**32 - 1)
        return f"({uniform} >= {threshold}u ? real({1.0 / (1.0 - draw.p)!r}) : real(0))"

    # Memory.

    def _read(self, e: ReadElement) -> str:
        place, j = e.place, e.index
        if place.memory == Memory.REGISTER:
            return f"{register_name(place.number)}.v[c]"
        base = self.t.base(place)
        if j.terms:
            lane = replace(j, terms=0)
            at = f"({lane}{' + c' if j.moves else ''}) * {j.stride} + {j.start}"
            loop = f"for (int n = 0; n < {j.terms}; ++n) s += ({base})[{at} + n * {j.step}];"
            return f"[&] {{ real s = 0; {loop} return s; }}()"
        if _is_bare(j, place.size):
            return f"(*({base}))"
        return self._at(base, j)

    def _at(self, base: str, j: Index) -> str:
        """Read an element of the row at a pointer."""
        return self.once(f"load<W>({base} + {j})") if j.moves else f"{base}[{j}]"

    def once(self, text: str) -> str:
        """Read the elements of all lanes once in a loop; return the text of one of them."""
        known = self.known if self.t.edge_known is None else self.t.edge_known
        assert known is not None
        if text not in known:
            known[text] = self.t.fresh("q")
            if self.ahead is not None and self.t.edge_known is None:
                self.ahead[known[text]] = text
            else:
                self.t.line(f"const Vec<W> {known[text]} = {text};")
        return f"{known[text]}.v[c]"

    # Leaves.

    def _integer(self, e: Leaf) -> str:
        """Return the variable that holds an integer pull of this row (-1: absent)."""
        pull = self.t.word(f"int_{e.number}")
        if e.edges:
            return self.t.edge_value(f"i{e.number}", "int", f"{pull}[{self.user_edge()}]")
        return self.t.row_value(f"i{e.number}", "int", f"{pull}[{self.user_vertex()}]")

    def user_edge(self) -> str:
        """Return the variable that holds the place of what the edge pulls."""
        order = self.t.word(EDGE_ORDER)
        return self.t.edge_value("ue", "int", f"{order}[e]")

    def user_vertex(self) -> str:
        """Return the variable that holds the user's number of the vertex."""
        order = self.t.word("order")
        return self.t.row_value("u", "int", f"{order}[row]")

    def child(self, slot: int, relation: int = 0) -> str:
        """Return the row of the child in a slot (-1: of the edge), -1 where there is none."""
        pointer = self.t.word("child_row")
        if slot < 0 and self.t.relations > 1:
            first, end = self.t.edges_of(relation)
            there = f"e >= {first} && e < {end} ? {pointer}[e] : -1"
            return self.t.edge_value(f"child_of_{relation}", "int", there)
        if slot < 0:
            return self.t.edge_value("child", "int", f"{pointer}[e]")
        first, end = self.t.first_edge(), self.t.end_edge()
        there = f"{first} + {slot} < {end} ? {pointer}[{first} + {slot}] : -1"
        return self.t.row_value(f"child{slot}", "int", there)

    def state(self, e: Leaf) -> str:
        """Return the pointer to the state of a child, or to zeros."""
        tensor = self.t.word(f"tensor_{e.number}")
        zero = self.t.word("zero")
        child = self.child(e.slot, e.relation)
        at = f"{child} >= 0 ? (const real*){tensor} + (long long){child} * {e.size} : {zero}"
        define = self.t.row_value if e.slot >= 0 else self.t.edge_value
        of = f"_of_{e.relation}" if e.relation else ""
        return define(f"c{e.number}_{e.slot + 1}{of}", "auto", at)

    def _gather(self, e: Leaf) -> str:
        return self._at(self.state(e), e.index)

    def _loss_scale(self, e: Leaf) -> str:
        pointer = self.t.word("scale")
        return self.t.row_value("scale_", "real", f"real(*{pointer})")

    def _weight(self, e: Leaf) -> str:
        pointer = self.t.word("weight")
        return self.t.row_value("weight_", "real", f"{pointer}[row]")

    def _param(self, e: Leaf) -> str:
        return self._of_row(self.t.word(f"param_{e.number}"), e)

    def _arange(self, e: Leaf) -> str:
        return f"real({e.index} + c)" if e.index.moves else f"real({e.index})"

    def _is_there(self, e: Leaf) -> str:
        return f"real({self.child(e.slot, e.relation)} >= 0)"

    def _has_integer(self, e: Leaf) -> str:
        return self._has(self.t.word(f"int_{e.number}"))

    def _has_real(self, e: Leaf) -> str:
        return self._has(self.t.word(f"float_index_{e.number}"))

    def _has(self, word: str) -> str:
        return f"real({word}[{self.user_vertex()}] >= 0)"

    def _degree(self, e: Leaf) -> str:
        pointer = self.t.word("child_row")
        first, end = self.t.edges_of(e.relation)
        name = f"degree_{e.relation}" if e.relation else "degree"
        return self.t.row_value(name, "real", f"vrt_degree({pointer}, {first}, {end})")

    def _pull(self, e: Leaf) -> str:
        t, number = self.t, e.number
        where = t.word(f"float_index_{number}")
        table = t.word(f"float_{number}")
        zero = t.word("zero")
        user = self.user_edge() if e.edges else self.user_vertex()
        define = t.edge_value if e.edges else t.row_value
        at = define(f"x{number}", "int", f"{where}[{user}]")
        row = f"{at} >= 0 ? {table} + (long long){at} * {e.size} : {zero}"
        return self._of_row(define(f"pulled{number}", "auto", row), e)

    def _seed(self, e: Leaf) -> str:
        table = self.t.word(f"seed_{e.number}")
        order = self.t.word(f"seed_row_{e.number}")
        at = self.t.row_value(f"sr_{e.number}", "int", f"{order}[row]")
        row = f"{table} + (long long){at} * {e.size}"
        return self._of_row(self.t.row_value(f"s_{e.number}", "auto", row), e)

    def _embed(self, e: Leaf) -> str:
        t = self.t
        rows, zero = t.word(f"param_{e.number}"), t.word("zero")
        word = self._integer(Leaf("integer", number=e.pull, edges=e.edges))
        row = f"{word} >= 0 ? {rows} + (long long){word} * {e.size} : {zero}"
        define = t.edge_value if e.edges else t.row_value
        return self._at(define(f"row_{e.number}_{e.pull}", "auto", row), e.index)

    def _of_row(self, base: str, e: Leaf) -> str:
        """Read an element of a row that a pointer is to, or the one number there."""
        return f"(*{base})" if _is_bare(e.index, e.size) else self._at(base, e.index)

    _LEAVES: ClassVar[Mapping[str, Callable[[ElementText, Leaf], str]]] = {
        "loss_scale": _loss_scale,
        "weight": _weight,
        "arange": _arange,
        "param": _param,
        "gather": _gather,
        "present": _is_there,
        "has_child": _is_there,
        "has_integer": _has_integer,
        "has_real": _has_real,
        "degree": _degree,
        "integer": _integer,
        "pull": _pull,
        "seed": _seed,
        "embed": _embed,
    }


def _is_bare(j: Index, size: int) -> bool:
    """Tell whether an element is the only one of its row, and not one of a loop."""
    return size == 1 and not j.moves and j.shift == 0
