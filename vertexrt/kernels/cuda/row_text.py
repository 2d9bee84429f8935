"""Write the CUDA source of one fused group: some threads for each row, element by element.

A row is the work of `threads` threads: a warp, or a block. Values of one size become one loop over
their elements, in which every value is a register `r17`; a loop ends where a value is needed in
another way than element by element (a sum over the row, another offset), and what it made is then
read from memory: from its tensor, or from a row of scratch in shared memory. Which values need
scratch is known when the source is written; it is then written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from vertexrt.kernels.layout import PAD
from vertexrt.lower.places import Memory, Rows, Temporary, ValuePlace

WARP = 32
ROLLED = '_Pragma("unroll 1")'  # fetching unrolled code takes longer than the jumps
ROWS_A_BLOCK = 4  # where a row is a warp's
MOST_THREADS = 256  # of a row
SHARED_ELEMENTS = 4096  # of scratch a block; what is larger lies in global memory


Cuts = tuple[int, ...]  # first elements of pieces, and the size


def tensor_word(place: ValuePlace) -> str:
    """Return the word of the tensor that a place is in."""
    return f"tensor_{place.number}"


class MustCloseError(Exception):
    """A value is made in the open loop, and needed in another way."""


@dataclass
class NeedsMemoryError(Exception):
    """A value is needed after its loop, and no memory holds it."""

    value: int


@dataclass(slots=True)
class Loop:
    """A loop over the elements of a row, under construction."""

    size: int
    cuts: Cuts
    vector: int  # elements that a thread takes at once
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)  # after the body: no load waits for them
    after: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)  # text -> name of what was read
    made: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)  # known once the loop is over
    written: set[int] = field(default_factory=set)


class RowText:
    """The lines of a kernel: values of the row, loops, shared memory.

    Args:
        widest: elements of the longest value.
        vector: elements of 16 bytes.
        block: threads of a block; 0 for as many as suit the rows.
        taken: temporaries by number.
    """

    pad = PAD  # of rows and edges of temporaries
    count = "long long"  # type of elements of temporaries

    def __init__(
        self, widest: int, vector: int, block: int = 0, taken: Sequence[Temporary] = ()
    ) -> None:
        self.vector, self.taken = vector, taken
        threads = WARP
        while threads * vector < widest and threads < MOST_THREADS:
            threads *= 2
        if block and threads > WARP:
            threads = block
        self.threads = threads
        self.rows = (block // WARP or ROWS_A_BLOCK) if threads == WARP else 1
        self.shared = 0  # elements of scratch of one row
        self.loop: Loop | None = None
        self.words: dict[str, str] = {}  # name -> type, of what the kernel is given
        self.head: list[str] = []
        self._named: dict[str, str] = {}
        self._body: list[str] = []
        self._edge: list[str] | None = None
        self._edge_named: dict[str, str] = {}
        self._unsynchronised: set[int] = set()
        self._edge_rows = False
        self._count = 0
        self.crosses = False  # threads of a row read what other threads made

    # Words and values of the row.

    def word(self, name: str, kind: str) -> str:
        """Ask for an argument; return its name in the source."""
        self.words.setdefault(name, kind)
        return name

    def row_value(self, name: str, kind: str, value: str) -> str:
        """Define a value once a row, before everything else."""
        if name not in self._named:
            self._named[name] = value
            self.head.append(f"const {kind} {name} = {value};")
        return name

    def edge_value(self, name: str, kind: str, value: str) -> str:
        """Define a value once an edge, inside the loop over the edges of a row."""
        if self._edge is None:
            return self.row_value(name, kind, value)  # the rows are edges
        if name not in self._edge_named:
            self._edge_named[name] = value
            self._edge.append(f"const {kind} {name} = {value};")
        return name

    def fresh(self, letter: str) -> str:
        """Return a name not used before."""
        self._count += 1
        return f"{letter}{self._count}"

    # Statements.

    def line(self, text: str) -> None:
        """Append a statement: in the loop over edges, in the open loop, or to the row."""
        if self._edge is not None:
            self._edge.append(text)
        elif self.loop is not None:
            self.loop.body.append(text)
        else:
            self._body.append(text)

    def open(self, size: int, cuts: Cuts = ()) -> Loop:
        """Go on in a loop over so many elements.

        Args:
            cuts: () for all elements, else where they are cut in pieces, of which a processor has
                its share of each.
        """
        if self.loop is not None and (self.loop.size, self.loop.cuts) != (size, cuts):
            self.close()
        if self.loop is None:
            self.loop = Loop(size, cuts, self.vector if size % self.vector == 0 else 1)
        return self.loop

    def close(self) -> None:
        """End the open loop."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        self._body += loop.before
        for declare, head in self.heads(loop) if loop.body or loop.stores else ():
            self._body += ["{", f"  constexpr int W = {loop.vector};"]
            self._body += [f"  {line}" for line in declare]
            self._body.append(f"  {head} {{")
            self._body += [f"    {line}" for line in (*loop.body, *loop.stores)]
            self._body += ["  }", "}"]
        self._body += loop.after
        self._unsynchronised |= loop.written

    def heads(self, loop: Loop) -> list[tuple[list[str], str]]:
        """Return what opens each of the loops that are written for a loop: lines, head."""
        step = self.threads * loop.vector
        if loop.size == step:
            return [(["const int j = lane * W;"], "")]
        if loop.size < step:
            return [([], f"if (int j = lane * W; j < {loop.size})")]
        return [([], f"for (int j = lane * W; j < {loop.size}; j += {step})")]

    def makes(self, value: int) -> bool:
        """Tell whether the open loop makes a value."""
        return self.loop is not None and value in self.loop.made

    def awaits(self, value: int) -> bool:
        """Tell whether a value is known once the open loop is over."""
        return self.loop is not None and value in self.loop.pending

    def needs(self, value: int) -> None:
        """Note that threads of a row read memory that other threads wrote: they wait."""
        if self.loop is not None and value in self.loop.written:
            raise MustCloseError
        if value not in self._unsynchronised:
            return
        self._unsynchronised.clear()
        self.crosses = True
        (self._body if self.loop is None else self.loop.before).append("row_wait<T>();")

    def unaligned(self) -> None:
        """Take the elements of the open loop one by one: what it reads does not start at 16 B."""
        if self.loop is not None:
            self.loop.vector = 1

    def read(self, address: str, aligned: bool) -> str:
        """Load the elements of a thread in the open loop; return the text of one of them."""
        return self.read_as(f"load<W>({address})", aligned)

    def read_as(self, text: str, aligned: bool) -> str:
        """Read the elements of a thread by an expression; see `read`."""
        assert self.loop is not None
        if not aligned:
            self.unaligned()
        known = self._edge_named if self._edge is not None else self.loop.known
        if text not in known:
            name = self.fresh("q")
            self.line(f"const Vec<W> {name} = {text};")
            known[text] = name
        return f"{known[text]}.v[c]"

    def write(self, value: int, address: str, register: str, aligned: bool) -> None:
        """Store a register of the open loop."""
        assert self.loop is not None
        if not aligned:
            self.unaligned()
        self.store(f"store<W>({address}, {register});")
        self.loop.written.add(value)

    def store(self, text: str) -> None:
        """Append a statement that stores elements of the open loop, which does not read them."""
        if self._edge is not None:
            self.line(text)
        else:
            assert self.loop is not None
            self.loop.stores.append(text)

    def written(self, value: int) -> None:
        """Note a store outside of loops."""
        self._unsynchronised.add(value)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Take back what a statement has written so far, if it finds that it needs a new loop."""
        loop = self.loop
        assert loop is not None
        kept = [(part, len(part)) for part in (loop.before, loop.body, loop.stores, loop.after)]
        state = dict(loop.known), loop.vector
        sync = set(self._unsynchronised)
        try:
            yield
        except MustCloseError:
            for part, length in kept:
                del part[length:]
            loop.known, loop.vector = state
            self._unsynchronised = sync
            self._edge = None
            raise

    @contextmanager
    def edges(self, header: str, *first: str) -> Iterator[None]:
        """Write a loop over edges of the row, inside the open loop or the row."""
        self._edge, self._edge_named = list(first), {}
        yield
        lines, self._edge = self._edge, None
        self.line(header + " {")
        for text in lines:
            self.line(f"  {text}")
        self.line("}")

    def scratch(self, size: int) -> ValuePlace | None:
        """Set aside shared memory for a row; None where there is too little."""
        padded = -(-size // 4) * 4
        if (self.shared + padded) * self.rows > SHARED_ELEMENTS:
            return None
        at = self.shared
        self.shared += padded
        return ValuePlace(Memory.SCRATCH, at, size, Rows.ONE)

    # Places.

    def base(self, place: ValuePlace) -> str:
        """Return the pointer to the row of a place."""
        start = f" + {place.start}" if place.start else ""
        if place.memory == Memory.SCRATCH:
            return f"((scratch + {place.number}){start})"
        origin, rows = self.origin(place), place.rows.value
        if place.rows == Rows.SLOT:
            rows, counter = f"slot{place.slot}", f"({self.first_edge()} + {place.slot})"
        else:
            counter = self.counters[place.rows]
        name = f"b_{origin}_{rows}_{place.start}"
        wide = f"({self.count if place.memory == Memory.TEMPORARY else 'long long'})"
        value = f"{origin} + {wide}{counter} * {place.step}{start}"
        if place.rows in (Rows.EDGE, Rows.LOCAL_EDGE):
            return self.edge_value(name, "auto", value)
        return self.row_value(name, "auto", value)

    @property
    def counters(self) -> Mapping[Rows, str]:
        """Return what counts the rows of places."""
        local = "(row - a.lo)" if self._edge_rows else "i"
        return {
            Rows.ROW: "row",
            Rows.LOCAL: local,
            Rows.EDGE: "e",
            Rows.LOCAL_EDGE: "(e - a.elo)",
        }

    def origin(self, place: ValuePlace) -> str:
        """Return the pointer to row 0 of a place."""
        if place.memory == Memory.TEMPORARY:
            return self.temporary(self.taken[place.number])
        return self.word(tensor_word(place), "real*")

    def temporary(self, t: Temporary) -> str:
        """Return the pointer to row 0 of a temporary."""
        memory = self.word("temporary", "real*")
        pad = self.pad
        rows = self.row_value("n_pad", self.count, f"(a.n + {pad - 1}) / {pad} * {pad}")
        edges = self.row_value("m_pad", self.count, f"(a.m + {pad - 1}) / {pad} * {pad}")
        sizes = [f"{n} * {k}" for n, k in ((rows, t.rows), (edges, t.edges)) if k]
        value = " + ".join([memory, *sizes, *([str(t.once)] if t.once else [])])
        return self.row_value(f"t_{t.rows}_{t.edges}_{t.once}", "auto", value)

    def first_edge(self) -> str:
        """Return the first edge of the row."""
        pointer = self.word("edge_ptr", "const int*")
        return self.row_value("first_edge", "int", f"{pointer}[row]")

    def end_edge(self) -> str:
        """Return the end of the edges of the row."""
        pointer = self.word("edge_ptr", "const int*")
        return self.row_value("end_edge", "int", f"{pointer}[row + 1]")

    def kernel(self, listed: bool) -> str:
        """Return the finished kernel, with NAME for its name."""
        counter = "threadIdx.x / T" if self.rows > 1 else ""
        lane, i = "threadIdx.x", "VRT_BLOCK.x"
        if self.rows > 1:
            lane, i = "threadIdx.x % T", f"VRT_BLOCK.x * {self.rows} + {counter}"
        lines = [
            f"constexpr int T = {self.threads};",
            f"const int lane = {lane};",
            f"const int i = {i};",
            f"if (i >= a.{'m' if self._edge_rows else 'n'}) return;",
            *self._arguments(),
        ]
        if self._edge_rows:
            lines += ["const int e = (int)a.elo + i;", "const int row = edge_row[e];"]
        elif listed:
            lines.append("const int row = a.lo >= 0 ? (int)a.lo + i : rows[a.at + i];")
        else:
            lines.append("const int row = (int)a.lo + i;")
        if self.shared:
            lines.append(f"VRT_SCRATCH(real, all_scratch, {self.rows * self.shared});")
            mine = f" + {counter} * {self.shared}" if self.rows > 1 else ""
            lines.append(f"real* const scratch = all_scratch{mine};")
        return self._finish(self.threads * self.rows, [*lines, *self.head, *self._body])

    def plain_kernel(self, threads: int) -> str:
        """Return a kernel whose lines say themselves which rows a block has."""
        return self._finish(threads, [*self._arguments(), *self.head, *self._body])

    def _arguments(self) -> list[str]:
        return [
            f"{kind.removesuffix('*')}* const {name} = ({kind})a.w[{k}];"
            for k, (name, kind) in enumerate(self.words.items())
        ]

    def _finish(self, threads: int, lines: list[str]) -> str:
        head = f"VRT_KERNEL(NAME, Args<{max(len(self.words), 1)}>, {threads}) {{"
        return "\n".join([head, *(f"  {line}" for line in lines), "}"]) + "\n"

    def for_edges(self) -> None:
        """Let the rows of the kernel be edges."""
        self._edge_rows = True
        self.word("edge_row", "const int*")
