"""The plan of a task of the path: its steps, and where its values lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Domain, Node, Stage, Type
from vertexrt.kernels.cuda.inline_operands import inline_operands
from vertexrt.kernels.cuda.partial_sums import added_by_groups, pieces_alike
from vertexrt.kernels.cuda.path_steps import Step, own_cuts, steps_of
from vertexrt.kernels.cuda.weights import most_own
from vertexrt.kernels.layout import Binding
from vertexrt.lower.kernel import Memory, PlaceRows, ValuePlace
from vertexrt.lower.lowering import Memories, ValuePlaces
from vertexrt.lower.threads import Cuts

BANKS = 32  # of shared memory, 4 bytes wide
CLEAR = 16  # elements between rows that eight threads read at once: see resident_tensor_cores.cuh


@dataclass(frozen=True, slots=True)
class PathTask:
    """A task of the path for groups of some processors.

    Attributes:
        processors: of a group.
        vector: elements of 16 bytes.
        steps: of each segment.
        inlined: operands that products read where children left them.
        whole: values that every processor makes in full.
        place: where values lie, by position.
        also: of values in `whole`, the tensor to which a processor writes its own elements too.
        temporaries: of a tile; groups take more.
    """

    plan: SegmentedTask
    binding: Binding
    vector: int
    processors: int
    steps: Sequence[Sequence[Step]]
    inlined: frozenset[int]
    whole: frozenset[int]
    place: dict[int, ValuePlace]
    also: dict[int, ValuePlace]
    temporaries: Memories

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes of its program."""
        return self.plan.task.program.nodes

    @property
    def values(self) -> ValuePlaces:
        """Where its values lie."""
        found = ValuePlaces(self.nodes, self.binding)
        found.place = dict(self.place)
        return found

    @property
    def states(self) -> dict[int, Type]:
        """Return what is read of children on the forward path: the types, by tensor.

        Backward, a barrier of all groups is between.
        """
        if self.plan.task.stage != Stage.PATH:
            return {}
        read = (node for node in self.nodes if node.op in ("gather", "gather_all"))
        return {self.binding.tensors["state", node["field"]]: node.type for node in read}

    def own_cuts(self, k: int) -> Cuts:
        """Return where the elements of a value are cut."""
        return own_cuts(self.plan, k)

    def cuts_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts, () for what every processor makes."""
        node = self.nodes[k]
        if self.processors == 1 or k in self.whole:
            return ()
        made = self.nodes[node.inputs[0]] if OPS[node.op].role == "effect" else node
        if made.type.shape == () and self.own_cuts(k)[-1] == 1:  # a number: every processor has it
            return ()
        return self.own_cuts(k)


def plan_task(plan: SegmentedTask, binding: Binding, vector: int, processors: int) -> PathTask:
    """Say what the steps of a task of the path are, and where its values lie."""
    steps: list[list[Step]] = []
    inlined: set[int] = set()
    for segment in plan.segments:
        left, found = inline_operands(plan, steps_of(plan, segment))
        steps.append(left)
        inlined |= found
    task, nodes = plan.task, plan.task.program.nodes
    whole = plan.whole - inlined
    place = _in_tensors(task, binding)
    also = {k: place[k] for k in sorted(whole & {*task.homes}) if processors > 1}
    temporaries = Memories()
    summed = set[int]().union(*(added_by_groups(plan, each, processors) for each in steps))
    operands = _operands(task)
    for k in sorted({*task.local - inlined, *also}):
        if k in summed:
            place[k] = ValuePlace(Memory.SUMS, k, max(nodes[k].type.size, 1), PlaceRows.ROW)
        else:
            place[k] = _temporary(plan, k, processors, k in operands, temporaries)
    return PathTask(
        plan,
        binding,
        vector,
        processors,
        steps,
        frozenset(inlined),
        whole,
        place,
        also,
        temporaries,
    )


def _in_tensors(task: TaskProgram, binding: Binding) -> dict[int, ValuePlace]:
    """Return where values lie that other stages or segments make or read."""
    values = ValuePlaces(task.program.nodes, binding)
    found = {i: values.stored(i, read) for i, read in task.reads.items()}
    return found | {k: values.home(k, key) for k, key in task.homes.items()}


def _operands(task: TaskProgram) -> set[int]:
    """Collect the operands of products, without their weights."""
    products = (step.node for step in task.steps if isinstance(step, Product))
    return {i for k in products for i in task.program.nodes[k].inputs[1:]}


def _temporary(
    plan: SegmentedTask, k: int, processors: int, operand: bool, temporaries: Memories
) -> ValuePlace:
    """Set aside shared memory for a value.

    Args:
        operand: of a product, whose rows several threads read at once.
    """
    node = plan.task.program.nodes[k]
    own = None
    if node.op == "matmul" and processors > 1:
        own = own_pieces(pieces_alike(own_cuts(plan, k)), processors)
    size = size_of_own(max(node.type.size, 1), own)
    stride = row_step(size) if operand else 0
    return temporaries.temporary(size, node.type.domain == Domain.EDGE, stride, own)


def row_step(size: int) -> int:
    """Return the elements from one row to the next where several threads read rows at once."""
    return -(-size // BANKS) * BANKS + CLEAR


def own_pieces(piece: int, processors: int) -> tuple[int, int] | None:
    """Return `own` of a place that has a processor's own elements of pieces; None for piece 0."""
    return (piece, most_own(piece, processors)) if piece else None


def size_of_own(size: int, own: tuple[int, int] | None) -> int:
    """Count the elements of a place that has a processor's own elements of a value, or all."""
    return size // own[0] * own[1] if own else size


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """What the groups and products of a segment are lowered with.

    Attributes:
        by_units: the processors of a group share elements; else each has rows of its own.
        place: where values lie, those that are copied ahead in shared memory.
    """

    task: PathTask
    by_units: bool
    place: Mapping[int, ValuePlace]

    def cuts_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts, () for what every processor makes."""
        return self.task.cuts_of(k) if self.by_units else ()

    def shares_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts; one processor makes all of each."""
        if self.task.processors == 1:
            return (0, max(self.task.nodes[k].type.size, 1))
        return self.cuts_of(k)
