"""The groups of a segment: loops of a processor over the rows of a tile and its own elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Node
from vertexrt.kernels.cuda.group_plan import GroupPlan, Scratch, lay_out, plan_group
from vertexrt.kernels.cuda.groups import GroupWriter, write_in_memory
from vertexrt.kernels.cuda.path_segment import SegmentContext
from vertexrt.kernels.cuda.row_text import ROLLED, WARP, Cuts, Loop, RowText
from vertexrt.kernels.cuda.values import J, offset_of
from vertexrt.kernels.cuda.weights import THREADS, own_range
from vertexrt.lower.places import Memory, Temporary, ValuePlace

FEW_THREADS = 64  # of a row, so that four rows have all threads
ROW_PAD = 4  # rows of a temporary in shared memory are rounded up


class PathRowText(RowText):
    """The lines of a group: a few threads for each row, in a loop over the rows of a tile."""

    pad = ROW_PAD
    count = "int"  # they are in shared memory, or little more

    def __init__(
        self, threads: int, vector: int, processors: int, taken: Sequence[Temporary]
    ) -> None:
        super().__init__(1, vector, taken=taken)
        self.threads, self.rows = threads, 0
        self.processors = processors

    def open(self, size: int, cuts: Cuts = ()) -> Loop:
        """Go on in a loop; where elements are few, all threads of the row take some."""
        loop = super().open(size, cuts)
        if cuts:
            loop.vector = 1
        while loop.vector > 1 and loop.vector * self.threads > size:
            loop.vector //= 2
        return loop

    def heads(self, loop: Loop) -> list[tuple[list[str], str]]:
        """Return a loop for each piece of which the processor owns a range."""
        if not loop.cuts:
            return super().heads(loop)
        found = []
        for a, b in pairwise(loop.cuts):
            first, end = own_range(a, b, self.processors)
            head = f"for (int j = {first} + lane; j < {end}; j += T)"
            if (b - a) % self.processors == 0 and (b - a) // self.processors == self.threads:
                found.append(([f"const int j = {first} + lane;"], ""))
            else:
                found.append(([], head))
        return found

    def scratch(self, size: int) -> ValuePlace | None:
        """Have none: temporaries are in shared memory already."""
        return None

    def loop_over_rows(self, first: str = "0", end: str = "(int)a.n") -> list[str]:
        """Return the finished statements, for some rows of the tile (of edges all)."""
        end = "(int)a.m" if self._edge_rows else end
        start = "" if first == "0" else f"{first} + "
        head = [
            "{",
            f"  constexpr int T = {self.threads};",
            "  const int thread = this_thread(), lane = thread % T;",
            f"  {ROLLED}",
            f"  for (int i = {start}thread / T; i < {end}; i += PROCESSOR / T) {{",
        ]
        if self._edge_rows:
            lines = ["const int e = (int)a.elo + i;", "const int row = edge_row[e];"]
        else:
            lines = ["const int row = (int)a.lo + i;"]
        lines += [*self.head, *self._body]
        return [*head, *(f"    {line}" for line in lines), "  }", "}"]


def write_path_group(context: SegmentContext, group: Group) -> PathRowText:
    """Write a group of a segment."""
    scratch: Scratch = {}
    rows = write_in_memory(partial(_begin, context, group, THREADS), scratch).t
    if rows.crosses:  # beyond a warp the threads of a row cannot synchronise
        rows = write_in_memory(partial(_begin, context, group, WARP), scratch).t
    assert isinstance(rows, PathRowText)
    return rows


def _begin(context: SegmentContext, group: Group, widest: int, scratch: Scratch) -> PathGroup:
    """Begin to write a group.

    Args:
        widest: threads that a row may have.
    """
    task = context.task
    plan = plan_group(task.nodes, group, {*context.place, *scratch})
    threads, taken = _threads(context, group, plan, widest), task.temporaries.taken
    rows = PathRowText(threads, task.vector, task.processors, taken)
    alias = not any(k in task.also for k in group.nodes)  # parts of what is written twice stay
    place = lay_out(plan, context.place, scratch, rows, task.temporaries, alias)
    return PathGroup(context, plan, rows, place)


def _threads(context: SegmentContext, group: Group, plan: GroupPlan, widest: int) -> int:
    """Give each row as many threads as it has elements of one kind, or vectors of many."""
    vector, most = context.task.vector, 1
    for k in group.nodes:
        if plan.nodes[k].op == "concat" or k in plan.in_parts:
            continue  # its parts count
        size = max(plan.nodes[k].type.size, 1)
        cuts = context.cuts_of(k)
        if cuts:
            each = max(-(-(b - a) // context.task.processors) for a, b in pairwise(cuts))
        else:
            vectors = -(-size // vector) if size % vector == 0 else size
            each = max(vectors, min(size, FEW_THREADS))
        most = max(most, each)
    threads = 1
    while threads < min(most, widest):
        threads *= 2
    return threads


class PathGroup(GroupWriter):
    """A group of a segment: own elements of its values, or all of what every processor makes."""

    def __init__(
        self,
        context: SegmentContext,
        plan: GroupPlan,
        rows: PathRowText,
        place: dict[int, ValuePlace],
    ) -> None:
        super().__init__(plan, context.task.binding, rows, place)
        self.context, self.also = context, context.task.also
        self.processors = context.task.processors

    def cuts_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts."""
        return self.context.cuts_of(k)

    def _store(self, k: int, place: ValuePlace, register: str) -> None:
        super()._store(k, place, register)
        if k in self.also:
            self._store_own(self.also[k], self.context.task.own_cuts(k), register)

    def _write(self, k: int, to: ValuePlace, register: str) -> None:
        super()._write(k, to, register)
        self._put(to, register)

    def _store_if(self, condition: str, to: ValuePlace, register: str) -> None:
        super()._store_if(condition, to, register)
        self._put(to, register)

    def _put(self, home: ValuePlace, register: str) -> None:
        """Put elements that are stored in a tensor into the tile's row of the ring, too."""
        at = self.context.ring.put(home)
        if at is not None:
            row = self.t.row_value("ring_row", "auto", f"ring + (a.slot + i) * {at.step}")
            to = f"{row} + {at.start} + j"
            cuts = self.t.loop.cuts if self.t.loop is not None else ()
            if self.context.ring.sends_at_once(home, self.t.threads, cuts):
                call = f"hand_on<PROCESSORS>({to}, {register}.v[0], a.sends, a.turn)"
                self.t.store(f"if (a.puts) {call};")
            else:
                self.t.store(f"if (a.puts) store<W>({to}, {register});")

    def state_of_child(self, k: int, node: Node, size: int) -> str:
        """Return where the state of a child lies: in the ring, or in its tensor, or zeros."""
        in_memory = super().state_of_child(k, node, size)
        loop = self.t.loop
        if loop is not None and loop.cuts:
            return in_memory  # own elements, which this processor made
        at = self.context.ring.gathered(node)
        if at is None:
            return in_memory
        slots = self.t.word("child_slot", "const int*")
        if node.op == "gather":
            first, end, slot = self.t.first_edge(), self.t.end_edge(), node["slot"]
            there = f"a.children && {first} + {slot} < {end} ? {slots}[{first} + {slot}] : -1"
            near = self.t.row_value(f"near{slot}", "int", there)
        else:
            near = self.t.edge_value("near", "int", f"a.children ? {slots}[e] : -1")
        in_ring = f"(const real*)ring + {near} * {at.step} + {at.start}"
        return f"{near} >= 0 ? {in_ring} : ({in_memory})"

    def _load(self, k: int, place: ValuePlace, j: str) -> str:
        if place.memory == Memory.SUMS:
            return self._added(k, j)
        if self.t.loop is None or not self.t.loop.cuts:
            self.context.ring.reads_in_full(k)
        return super()._load(k, place, j)

    def _added(self, k: int, j: str) -> str:
        """Return the text of an element of a product, whose partial sums are added up here."""
        at, node = self.context.sums[k], self.nodes[k]
        wide = node.type.shape[-1]
        cuts = self.context.task.own_cuts(k)
        if self.processors > 1:
            own = self.own_element(j, cuts[1], cuts[1] // self.processors)
        else:
            own = f"({j})"
        row = "i - done" if at.times == 1 else f"(i - done) * {at.times} + {own} / {at.own}"
        own = own if at.times == 1 else f"{own} % {at.own}"
        if not j.startswith(J):  # one element, the same for all lanes
            return f"{at.read(row, own, '1')}.v[0]"
        aligned = wide % self.vector == 0 and offset_of(j) % self.vector == 0
        return self.t.read_as(at.read(row, own), aligned)

    def _pointer(self, k: int) -> str:
        self.context.ring.reads_in_full(k)
        return super()._pointer(k)

    def reads_parents(self) -> None:
        if self.t.loop is None or not self.t.loop.cuts:
            self.context.ring.reads_all()

    def _copy(self, k: int, i: int, to: ValuePlace) -> None:
        super()._copy(k, i, to)
        if k in self.also:
            home = self.also[k]
            start = to.start - self.place[k].start
            register = self._copied(i)
            cuts = self.context.task.own_cuts(k)
            inside = [c - start for c in cuts if start < c < start + to.size]
            self._store_own(home.part(start, to.size), (0, *inside, to.size), register)

    def places_of(self, k: int) -> list[ValuePlace]:
        """Return where a number is stored: every processor stores it, as all have the same."""
        return [*super().places_of(k), *([self.also[k]] if k in self.also else [])]

    def _store_own(self, home: ValuePlace, cuts: Cuts, register: str) -> None:
        """Write a register to a tensor where its elements are own ones."""
        self._put(home, register)
        loop = self.t.loop
        assert loop is not None
        even = all((b - a) % (self.processors * loop.vector) == 0 for a, b in pairwise(cuts))
        if not even or not self.aligned(home) or any(a % loop.vector for a in cuts):
            self.t.unaligned()
        tests = []
        for a, b in pairwise(cuts):
            first, end = own_range(a, b, self.processors)
            tests.append(f"(j >= {first} && j < {end})")
        self.t.store(f"if ({' || '.join(tests)}) store<W>({self.t.base(home)} + j, {register});")
