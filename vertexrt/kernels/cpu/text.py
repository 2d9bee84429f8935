"""The lines of a generated function: loops, temporaries, and values defined once a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vertexrt.kernels.layout import PAD
from vertexrt.kernels.location import Location

Spans = list[tuple[str, str]] | None  # first and end element of each; None: the whole row

# Tasks are called by compiled loops only. What would let Python and C call them, with its checks of
# some 30 arguments, takes a sixth of the time that compiling takes.
UNWRAPPED = "no_cpython_wrapper=True, no_cfunc_wrapper=True"


class Text:
    """Source under construction; `row_value` definitions float to the top of their row loop."""

    def __init__(self) -> None:
        self.row_elements = 0
        self.edge_elements = 0
        self.fixed_elements = 0
        self._head: list[str] = []
        self._body: list[str] = []
        self._depth = 1
        self._defined: dict[str, str] = {}
        self._insert: list[int] = []  # where row values go, one level for each open row loop
        self._temporaries = 0
        self._bound = 0
        self._inserted = 0
        self._row_depth = 2
        self._shares: set[int] = set()
        self._numbers: set[int] = set()
        self._in_edges = False

    def module(self, arguments: str) -> str:
        """Return the finished module."""
        lines = [
            "import numpy as np",
            "from vertexrt.cache.compiled import njit",
            "from vertexrt.kernels.cpu.blas import product, product_outer, product_transposed",
            "from vertexrt.kernels.cpu.runtime import *",
            "",
            "",
            f"@njit(cache=True, error_model='numpy', nogil=True, {UNWRAPPED})",
            f"def task({arguments}):",
            "    F = ar.dtype.type",
            f"    n_pad = (n + {PAD - 1}) // {PAD} * {PAD}",
            f"    m_pad = (m + {PAD - 1}) // {PAD} * {PAD}",
            *self._head,
            *self._body,
            "    return",
        ]
        return "\n".join(lines) + "\n"

    def line(self, text: str) -> None:
        """Append a statement at the current depth."""
        self._body.append("    " * self._depth + text)

    def bind(self, value: str) -> str:
        """Give a value used more than once in the next statement a name."""
        name = f"w{self._bound}"
        self._bound += 1
        self.line(f"{name} = {value}")
        return name

    @contextmanager
    def indent(self) -> Iterator[None]:
        """Write a block."""
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def loop(self, size: int, spans: Spans = None) -> Iterator[None]:
        """Write a loop over the elements j of a row, or one for each of several spans of it."""
        inserted = self._inserted
        start = len(self._body)
        with self.indent():
            yield
        start += self._inserted - inserted
        body = self._body[start:]
        del self._body[start:]
        for first, end in [("0", str(size))] if spans is None else spans:
            self.line(
                f"for j in range({first}, {end}):" if first != "0" else f"for j in range({end}):"
            )
            self._body += body

    def share(self, start: int, size: int) -> tuple[str, str]:
        """Return the first and end element of the processor's share of a piece."""
        if size not in self._shares:
            self._shares.add(size)
            self._head.append(f"    lo{size} = {size} * part // parts")
            self._head.append(f"    hi{size} = {size} * (part + 1) // parts")
        plus = f"{start} + " if start else ""
        return f"{plus}lo{size}", f"{plus}hi{size}"

    def share_of_part(self, start: int, size: int, whole: int) -> tuple[str, str]:
        """Return the first and end element of a part that lie in the processor's share of a whole.

        Args:
            start: where the part starts in the whole; the result counts from there.
        """
        first, end = self.share(0, whole)
        if size == whole:
            return first, end
        code = f"{whole}_{start}_{size}"
        for name, value in ((f"lo{code}", first), (f"hi{code}", end)):
            line = f"    {name} = min(max({value} - {start}, 0), {size})"
            if line not in self._head:
                self._head.append(line)
        return f"lo{code}", f"hi{code}"

    def number(self, n: int) -> str:
        """Return a variable that holds a number.

        What is given a constant is compiled anew for each of its values.
        """
        if n not in self._numbers:
            self._numbers.add(n)
            self._head.append(f"    k{n} = np.int64({n})")
        return f"k{n}"

    def temporary(self, size: int, edges: bool) -> Location:
        """Set aside elements for each row (or edge) of the task."""
        name = f"t{self._temporaries}"
        self._temporaries += 1
        size = max(size, 1)
        place = f"n_pad * {self.row_elements} + m_pad * {self.edge_elements}"
        if edges:
            self.edge_elements += size
        else:
            self.row_elements += size
        self._head.append(f"    {name} = tmp + {place} + {self.fixed_elements}")
        return Location(name, size, "local_edge" if edges else "local")

    def scratch(self, size: int) -> Location:
        """Set aside one row that every row of the loop uses again."""
        name = f"t{self._temporaries}"
        self._temporaries += 1
        place = f"n_pad * {self.row_elements} + m_pad * {self.edge_elements}"
        self._head.append(f"    {name} = tmp + {place} + {self.fixed_elements}")
        self.fixed_elements += -(-max(size, 1) // PAD) * PAD
        return Location(name, max(size, 1), "scratch")

    # Loops over rows.

    def begin_rows(self, edges: bool, listed: bool) -> None:
        """Open the loop over the rows, or the edges, of the task."""
        self._defined = {}
        self._in_edges = edges
        if edges:
            self.line("for e in range(elo, elo + m):")
            self._depth += 1
            self.line("row = edge_row[e]")
            self.line("i = row - lo")
        else:
            self.line("for i in range(n):")
            self._depth += 1
            self.line("row = lo + i if lo >= 0 else rows[at + i]" if listed else "row = lo + i")
        self._insert = [len(self._body)]
        self._row_depth = self._depth

    def row_numbers(self) -> tuple[str, str]:
        """Return the number of the row, or the edge, in the open loop, and how many there are."""
        return ("(e - elo)", "m") if self._in_edges else ("i", "n")

    def end_rows(self) -> None:
        """Close the loop over the rows."""
        self._depth -= 1
        self._insert = []

    def row_value(self, name: str, value: str, in_edge: bool = False) -> str:
        """Define a variable once a row (or once an edge of the row) and return its name."""
        depth = self._row_depth + (1 if in_edge and len(self._insert) > 1 else 0)
        if name not in self._defined:
            self._defined[name] = value
            level = len(self._insert) - 1 if in_edge else 0
            self._body.insert(self._insert[level], "    " * depth + f"{name} = {value}")
            self._inserted += 1
            for k in range(level, len(self._insert)):
                self._insert[k] += 1
        return name

    @contextmanager
    def edge_loop(self) -> Iterator[None]:
        """Loop over the children of the row."""
        with self._inner_loop("for e in range(edge_ptr[row], edge_ptr[row + 1]):"):
            self.line("if child_row[e] < 0:")
            self.line("    continue")
            self._insert[-1] = len(self._body)
            yield

    @contextmanager
    def parent_loop(self, base: str) -> Iterator[None]:
        """Loop over the edges in which the row is the child; `pb` is where an edge's row starts."""
        with self._inner_loop("for p in range(parent_ptr[row], parent_ptr[row + 1]):"):
            self.line(f"pb = {base}")
            yield

    @contextmanager
    def _inner_loop(self, header: str) -> Iterator[None]:
        known = dict(self._defined)
        self.line(header)
        with self.indent():
            self._insert.append(len(self._body))
            yield
            self._insert.pop()
        inner = [n for n, v in self._defined.items() if n not in known and "child_row[e]" in v]
        for name in inner:
            del self._defined[name]

    # Values that belong to a row.

    def base(self, place: Location) -> str:
        """Return the variable that holds where a row of a location starts."""
        start = f" + {place.start}" if place.start else ""
        step = place.step
        if place.row == "scratch":
            return f"{place.base}{start}"
        counter = {
            "row": "row",
            "local": "i",
            "edge": "e",
            "local_edge": "(e - elo)",
        }.get(place.row)
        if counter is None:
            counter = f"(edge_ptr[row] + {place.row.removeprefix('slot')})"
        code = place.base.replace("[", "_").replace("]", "")
        name = f"b_{code}_{place.row}_{place.start}"
        in_edge = place.row in ("edge", "local_edge")
        value = f"{place.base} + {counter} * {step}{start}"
        if in_edge and not self._in_edges:
            return f"({value})"  # inside a loop over the row's edges: e changes
        return self.row_value(name, value)

    def first_row(self, place: Location) -> str:
        """Return where the first row of a task lies."""
        if place.row == "row":
            return f"{place.base} + lo * {place.step}"
        if place.row == "edge":
            return f"{place.base} + elo * {place.step}"
        return place.base

    def user_vertex(self) -> str:
        """Return the variable that holds the user's number of the vertex."""
        return self.row_value("u", "order[row]")

    def child(self, slot: int | None) -> str:
        """Return the row of the child in a slot, or of the edge's child; -1 where there is none."""
        if slot is None:
            return "child_row[e]"
        return self.row_value(
            f"child{slot}",
            f"child_row[edge_ptr[row] + {slot}] "
            f"if edge_ptr[row] + {slot} < edge_ptr[row + 1] else -1",
        )

    def counter(self, edges: bool) -> str:
        """Return what numbers the random draws: the user's vertex, or the user's edge."""
        u = self.user_vertex()
        return f"user_edge[{u}] + e - edge_ptr[row]" if edges else f"user_vertex[{u}]"
