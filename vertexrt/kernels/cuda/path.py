"""Write the segments of the path for the processors of a persistent kernel.

A segment is a function of one tile of rows. Its groups are loops of a processor's threads over the
rows and, of each, over the elements that the processor owns; its products multiply by weights that
the processor holds (`resident_weights.cuh`). What only the tile needs lies in shared memory.

Source: VPPS (MICRO 2018), section III; a segment as one function, DESIGN section 8.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from vertexrt.errors import NoKernelError, message
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product
from vertexrt.ir.passes.segment import Segment, SegmentedTask, Split
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain, Node, Stage
from vertexrt.kernels.cuda.direct import Step, read_directly
from vertexrt.kernels.cuda.path_products import (
    PartialSums,
    ProductWriter,
    groups_behind,
    pieces_alike,
    taken_by_groups,
    write_with_sums,
)
from vertexrt.kernels.cuda.path_rows import TAKEN, PathGroup, PathRows
from vertexrt.kernels.cuda.prefetch import operands_ahead, write_copy
from vertexrt.kernels.cuda.ring import BANKS, CLEAR, InRing, made_before, made_in_ring, place_rings
from vertexrt.kernels.cuda.rows import WARP, Cuts, NeedsMemoryError
from vertexrt.kernels.cuda.weights import THREADS, Held
from vertexrt.kernels.layout import Binding, task_nodes
from vertexrt.kernels.location import Location, Temporary


@dataclass(slots=True)
class PathSegment:
    """The text of a segment.

    Attributes:
        lines: statements over a tile `a`, temporaries from `temporary` on.
        ahead: those that ask for operands, which may run before the processors meet.
        words: that they name, with their types.
        scratch: elements of temporaries for each row, for each edge, and once.
        held: weights that it multiplies by; partial: elements of their partial sums.
        puts: what it puts in the tile's rows of the ring; late: of these, by tensor, what is sent
            when the segment is over; gathers: what it reads there of children.
        operand: it reads there what an earlier segment has put.
        needs_all: it reads in full what others made in parts and the ring does not have.
    """

    lines: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    scratch: tuple[int, int, int] = (0, 0, 0)
    held: list[Held] = field(default_factory=list)
    partial: int = 0
    puts: dict[str, InRing] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    gathers: dict[str, InRing] = field(default_factory=dict)
    operand: bool = False
    needs_all: bool = False


class SegmentWriter:
    """One segment of a task of the path.

    Args:
        processors: of a group.
        vector: elements of 16 bytes.
        ring: what the task has in rows of the ring, by tensor.
        late: of that, what is not sent as soon as it is there.

    Attributes:
        fields: of states that it gathers in full.
    """

    def __init__(
        self,
        plan: SegmentedTask,
        binding: Binding,
        vector: int,
        processors: int,
        ring: dict[str, InRing],
        late: Collection[str] = (),
    ) -> None:
        self.plan, self.binding, self.vector = plan, binding, vector
        self.ring, self.late, self.fields = ring, late, set[str]()
        self.text = PathSegment()  # what is being written
        self.before: set[int] = set()  # what earlier segments made in parts
        self.processors = processors
        self.nodes = plan.task.program.nodes
        self.place: dict[int, Location] = {}
        self.also: dict[int, Location] = {}
        self.group_nodes: list[int] = []
        self.widest = WARP  # threads that a row may have
        self.copied: set[int] = set()  # leaves that an earlier group has put where they are read
        self.used = [0, 0, 0]
        self.by_units = False
        self.steps: list[list[Step]] = []
        self.direct: set[int] = set()  # operands that products read where children left them
        for segment in plan.segments:
            steps, direct = read_directly(plan, self._side_by_side(segment))
            self.steps.append(steps)
            self.direct |= direct
        self.whole = plan.whole - self.direct
        self.summed: set[int] = set()  # products whose partial sums groups add up
        self.taken: dict[int, PartialSums] = {}  # where they are
        self._sent: set[str] = set()  # tensors of which elements are sent as soon as they are there
        self._reads_now = False  # the step that is being written reads rows of the ring
        for steps in self.steps:
            pieces = {
                step.node: pieces_alike(self.own_cuts(step.node), processors)
                for side in steps
                for step in side
                if isinstance(step, Product)
            }
            self.summed |= taken_by_groups(plan, steps, pieces, processors)
        operands = {
            i
            for step in plan.task.steps
            if not isinstance(step, Group)
            for i in self.nodes[step.node].inputs[1:]
        }
        for i, read in plan.task.reads.items():
            size = max(self.nodes[i].type.size, 1)
            whole = self._tensor(i, read.key)
            if read.width != size:
                whole = Location(whole.base, size, whole.row, read.start, read.width)
            self.place[i] = whole
        for k, key in plan.task.homes.items():
            self.place[k] = self._tensor(k, key)
        many = processors > 1
        twice = {k for k in self.whole if k in plan.task.homes and many}
        for k in sorted({*plan.task.local - self.direct, *twice}):
            if k in twice:
                self.also[k] = self.place[k]
            size = max(self.nodes[k].type.size, 1)
            if k in self.summed:
                self.place[k] = Location("", size, TAKEN)
                continue
            edges = self.nodes[k].type.domain == Domain.EDGE
            self.place[k] = self.temporary(size, edges, k in operands, self._piece(k))

    def _piece(self, k: int) -> int:
        """Return the elements of each piece of a product's result, 0 where pieces are not alike."""
        product = self.nodes[k].op == "matmul" and self.processors > 1
        return pieces_alike(self.own_cuts(k), self.processors) if product else 0

    def temporary(self, size: int, edges: bool, operand: bool = False, piece: int = 0) -> Location:
        """Set aside elements for each row (or edge) of a tile.

        Args:
            operand: of a product, whose rows are read side by side.
            piece: not 0, where only own elements have a place, those of pieces of this size.
        """
        at = Temporary(*self.used)
        size = max(size, 1)
        own = (piece, piece // self.processors) if piece else None
        size = size // self.processors if piece else size
        step = -(-size // BANKS) * BANKS + CLEAR if operand else size
        self.used[1 if edges else 0] += step
        row = "local_edge" if edges else "local"
        return Location("", size, row, 0, step if operand else 0, at, own)

    def _tensor(self, k: int, key: tuple[object, ...]) -> Location:
        row = "edge" if self.nodes[k].type.domain == Domain.EDGE else "row"
        return Location(f"tensor_{self.binding.tensors[key]}", max(self.nodes[k].type.size, 1), row)

    def own_cuts(self, k: int) -> Cuts:
        """Return where the elements of a value are cut."""
        size = max(self.nodes[k].type.size, 1)
        return self.plan.cuts.get(k, (0, size))

    def cuts_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts, () for what everybody makes."""
        node = self.nodes[k]
        if not self.by_units or self.processors == 1 or k in self.whole:
            return ()
        made = self.nodes[node.inputs[0]] if OPS[node.op].role == "effect" else node
        if made.type.shape == () and self.own_cuts(k)[-1] == 1:  # a number: everybody has it
            return ()
        return self.own_cuts(k)

    def _shares_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts; one processor makes all of each."""
        if self.processors == 1:
            return (0, max(self.nodes[k].type.size, 1))
        return self.cuts_of(k)

    def segments(self) -> list[PathSegment]:
        """Write all segments of the task; what crosses from one to the next keeps its place."""
        found = []
        alone = [set[int]() for _ in self.plan.segments]
        before = made_before(self.plan) if self.processors > 1 else alone
        for segment, steps, made in zip(self.plan.segments, self.steps, before, strict=True):
            if segment.split == Split.SUMS and self.processors > 1:
                raise unsupported(self.plan)
            self.by_units, self.before = segment.split == Split.UNITS, made
            found.append(self._segment(steps))
        for text in found:
            text.scratch = (self.used[0], self.used[1], self.used[2])
        return found

    # What groups ask for about the ring.

    def ring_row(self, home: Location) -> InRing | None:
        """Return where elements go in the tile's row of the ring that are stored in a tensor."""
        entry = self.ring.get(home.base)
        if entry is None or home.row != "row":
            return None
        self.text.puts[home.base] = entry
        if home.base in self.late:
            self.text.late.add(home.base)
        return replace(entry, start=entry.start + home.start)

    def hands_on(self, home: Location, threads: int, cuts: Cuts) -> bool:
        """Tell whether elements of a tensor are sent by the threads that make them.

        Args:
            threads: that have neighbouring elements of a row; cuts: of the loop that makes them.
        """
        entry = self.ring[home.base]
        if not entry.cuts:
            return False
        each, rest = divmod(cuts[1], self.processors) if len(cuts) == 2 else (0, 0)
        alike = each > 0 and rest == 0 and each == threads and each % self.vector == 0
        if not alike or home.base in self.late:
            self.text.late.add(home.base)  # of which nothing may be sent sooner then
            return False
        self._sent.add(home.base)
        if self._reads_now:
            self.text.late.add(home.base)
        return True

    def new_step(self) -> None:
        """Begin a step: threads have met since the last one."""
        self._reads_now = False

    def reads_ring(self) -> None:
        """Note that this step reads rows of the ring.

        Who has received what a member sends takes it that the member has read what it needs: what
        is sent in this step or was before has to wait until the segment is over.
        """
        self._reads_now = True
        self.text.late |= self._sent

    def gathered(self, node: Node, size: int) -> InRing | None:
        """Return where the state of a child is in its row of the ring, read in full."""
        if self.plan.task.stage != Stage.PATH:
            return None  # all groups have met since
        if node.type.shape == ():
            self.reads_all()
            return None
        self.fields.add(node["field"])
        entry = self.ring.get(f"tensor_{self.binding.tensors['state', node['field']]}")
        if entry is None:
            self.reads_all()
        else:
            self.text.gathers[entry.tensor] = entry
            self.reads_ring()
        return entry

    def reads_in_full(self, k: int) -> None:
        """Note that a value is read in full, but not as the operand of a product."""
        if k in self.before:
            self.reads_all()

    def reads_all(self) -> None:
        """Note that something is read in full that the ring does not have."""
        self.text.needs_all |= self.processors > 1

    def _segment(self, steps: list[Step]) -> PathSegment:
        text = self.text = PathSegment()
        ahead = self._ahead(steps, text)
        number = 0
        self._sent = set()
        while number < len(steps):
            self.new_step()
            products = [step.node for step in steps[number] if isinstance(step, Product)]
            if number:
                if number in ahead:
                    text.lines.append("wait_for_all_copies();")
                text.lines.append("__syncthreads();")
            with_sums = bool(products) and self.summed.issuperset(products)
            if number == 0 and not with_sums:
                text.lines.append("prefetch_next();")
            if with_sums:
                groups = groups_behind(steps, number)
                with_ahead = [(g, ahead.get(number + 1 + n, {})) for n, g in enumerate(groups)]
                text.lines += write_with_sums(self, products, with_ahead, number == 0)
                number += len(groups)
            elif products:
                text.lines += ProductWriter(self, products).lines()
            else:
                (group,) = steps[number]
                assert isinstance(group, Group)
                text.lines += self.group_lines(group, ahead.get(number, {}))
            number += 1
        return text

    def _ahead(self, steps: list[Step], text: PathSegment) -> dict[int, dict[int, Location]]:
        """Ask for operands of the groups behind products: number of the step -> their places."""
        found: dict[int, dict[int, Location]] = {}
        if not self.by_units and self.processors > 1:
            return found
        made = {
            k
            for side in steps
            for step in side
            for k in (step.nodes if isinstance(step, Group) else (step.node,))
            if self.nodes[k].op != "gather"
        }
        operands = [
            (number, operand)
            for number, (group, *_) in enumerate(steps)
            if number and isinstance(group, Group)
            for operand in operands_ahead(
                self.nodes, group, self.place, made, self._shares_of, self.processors
            )
        ]
        turns = 1
        while turns < min(len(operands), THREADS // WARP):
            turns *= 2
        for turn, (number, operand) in enumerate(operands):
            k = operand.node
            piece = operand.piece if self.processors > 1 else 0
            to = self.temporary(self.nodes[k].type.size, False, piece=piece)
            t = PathRows(1, self.vector, self.processors)
            copy, words = write_copy(
                self.nodes[k],
                operand,
                self.place.get(k),
                to,
                t.origin(to),
                self.binding,
                self.vector,
                self.processors,
                turn % turns,
                turns,
            )
            if turn == 0:
                text.ahead += ["{", "  const int thread = this_thread();"]
            text.ahead += ["  {", *(f"    {line}" for line in (*t._head, *copy)), "  }"]
            text.words |= t.words | words
            found.setdefault(number, {})[k] = to
        if operands:
            text.ahead.append("}")
        return found

    def _side_by_side(self, segment: Segment) -> list[Step]:
        """List the steps of a segment; two products that need nothing of each other are one."""
        found: list[Step] = []
        for step in segment.steps:
            if isinstance(step, Product) and self.nodes[step.node].op != "matmul":
                raise unsupported(self.plan)
            last = found[-1] if found else []
            before = last[0] if len(last) == 1 else None
            if (
                isinstance(step, Product)
                and isinstance(before, Product)
                and not self._follows(step.node, before.node)
            ):
                last.append(step)
            else:
                found.append([step])
        return found

    def _follows(self, k: int, other: int) -> bool:
        """Tell whether a value is made from another."""
        inputs = self.nodes[k].inputs
        return other in inputs or any(self._follows(i, other) for i in inputs if i > other)

    def group_lines(
        self, group: Group, ahead: dict[int, Location], first: str = "0", end: str = "(int)a.n"
    ) -> list[str]:
        """Write a group.

        Args:
            ahead: where operands lie that were copied to shared memory.
            first, end: rows of the tile.
        """
        kept, self.place = self.place, self.place | ahead
        nodes = tuple(k for k in group.nodes if k not in self.copied and k not in ahead)
        self.copied |= {k for k in nodes if is_free(self.nodes[k]) and k in kept}
        group = Group(group.domain, nodes)
        self.group_nodes = list(nodes)
        scratch: dict[int, Location | None] = {}
        for widest in (THREADS, WARP):  # of a row; beyond a warp they cannot tell each other
            self.widest = widest
            lines = self._attempt(group, scratch)
            if not lines.crosses:
                break
        self.place = kept
        self.text.words |= lines.words
        return lines.loop_over_rows(first, end)

    def _attempt(self, group: Group, scratch: dict[int, Location | None]) -> PathRows:
        """Write a group; what turns out to need memory is noted in `scratch`."""
        while True:
            writer = PathGroup(self, group, scratch)
            try:
                writer.write()
                assert isinstance(writer.t, PathRows)
                return writer.t
            except NeedsMemoryError as need:
                again = need.value in scratch
                scratch[need.value] = None
            assert not again, f"a value of {group.nodes} is in memory and was not found there"


def unsupported(plan: SegmentedTask) -> NoKernelError:
    """Say that a function sums over rows on its path."""
    return NoKernelError(
        message(
            "cuda",
            f"stage {plan.task.stage.name} sums over rows between gathers and scatters",
            "such sums beside the path",
            "take engine='batched'",
        )
    )


def beside_path(plan: SegmentedTask) -> bool:
    """Tell whether no other task of the path waits for a task, or the other way round.

    Vertices without children do what they do on the path before it, those of them whose gradients
    reach no child behind it: all processors share their rows, whichever group's vertices they are.
    """
    if plan.task.stage == Stage.PATH:
        return not plan.gathers
    if plan.task.stage == Stage.PATH_BACKWARD:
        nodes = plan.task.program.nodes
        ops = {nodes[k].op for k in task_nodes(plan.task)}
        return not ops & {"scatter_child", "scatter_children"}
    return True


def write_path(
    tasks: list[SegmentedTask], binding: Binding, vector: int, processors: int
) -> dict[int, list[PathSegment]]:
    """Write the segments of all tasks of the path: number of the task -> its segments."""
    plans = {p: plan for p, plan in enumerate(tasks) if not beside_path(plan)}
    fields: set[str] = set()  # which they are shows while segments are written
    for plan in plans.values():
        if plan.task.stage == Stage.PATH:
            draft = SegmentWriter(plan, binding, vector, processors, {})
            draft.segments()
            fields |= draft.fields
    without: set[str] = set()
    late: dict[int, set[str]] = {p: set() for p in plans}
    while True:
        rings = place_rings(plans, binding, fields, processors, without)
        found = {
            p: SegmentWriter(plan, binding, vector, processors, rings[p], late[p]).segments()
            for p, plan in plans.items()
        }
        seen = {p: set().union(*(x.late for x in found[p])) for p in plans}
        missing = {
            word
            for p, segments in found.items()
            for word in made_in_ring(plans[p], binding, rings[p])
            if not any(word in x.puts for x in segments)
        }
        if not missing and all(seen[p] <= late[p] for p in plans):
            return found
        without |= missing  # made in a way that does not come to the ring: read from memory
        late = {p: late[p] | seen[p] for p in plans}
