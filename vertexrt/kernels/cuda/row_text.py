"""The text of a kernel: what it is given, values of a row, lines. It decides nothing.

What is asked for twice has one name: a word is an argument, a row value is defined once before
everything else, and an edge value once in the loop over the edges of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from vertexrt.kernels.layout import PAD
from vertexrt.lower.kernel import Memory, PlaceRows, Temporary, ValuePlace

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

    def end_of_every(self) -> str:
        """Return the end of the edges of the row that `gather_all` reads."""
        if not self.splits_edges:
            return self.end_edge()
        pointer = self.word(EVERY_PTR)
        return self.row_value("end_of_every", "int", f"{pointer}[row + 1]")

    def edges_of(self, relation: int) -> tuple[str, str]:
        """Return the first edge of the row in a relation that is read whole, and the end."""
        if self.relations == 1:
            return self.first_of_every(), self.end_of_every()
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
