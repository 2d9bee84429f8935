"""Rows that the processors of a group hand each other in shared memory while the path runs.

What a processor needs in full and others make in parts, the states of children and the operands of
products that are cut between segments, is sent from shared memory to shared memory (thread-block
clusters) instead of being written to memory and read back. A row of the ring has all of that for
one row of a tile; `ring_uses.py` says what is put there and read, `ring_script.py` which rows are
there when.

Source: GRNN (EuroSys 2019), section 4, keeps the state of a step on chip; distributed shared memory
as the way between processors is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vertexrt.ir.passes.fuse import Product
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.path_task import PathTask, row_step
from vertexrt.kernels.cuda.segments import InRing
from vertexrt.lower.threads import Cuts

ALIGN = 4  # elements, 16 bytes of float32
FEWEST = 8  # rows of a ring that is worth its room
MOST_ROWS = 192
MOST_FAR = 48  # of them, for children that are copied


@dataclass(frozen=True, slots=True)
class RingSize:
    """The ring of one side of the path.

    Attributes:
        step: elements of a row; 0 where nothing is handed on.
        rows: for what tiles put there; far: for children that are copied.
    """

    step: int = 0
    rows: int = 0
    far: int = 0

    @property
    def elements(self) -> int:
        """Count the elements of all rows."""
        return self.step * (self.rows + self.far)


def size_ring(step: int, room: int, gathers: bool) -> RingSize:
    """Return the rows of a ring that has room for so many elements.

    Args:
        step: elements of a row.
        gathers: children may be copied to it.
    """
    rows = min(room // step, MOST_ROWS) if step else 0
    if rows < FEWEST:
        return RingSize()
    far = min(rows // 3, MOST_FAR) if gathers else 0
    return RingSize(step, rows - far, far)


def made_before(task: PathTask) -> list[set[int]]:
    """List for each segment what earlier ones make in parts, so that no processor has all of it."""
    found, made, plan = [], set[int](), task.plan
    for segment in plan.segments:
        found.append(set(made))
        if task.processors > 1:
            numbers = {k for k in segment.members if task.nodes[k].type.shape == ()}
            made |= {*segment.members} - plan.whole - numbers
    return found


Draft = dict[int, tuple[int, Cuts]]  # tensor -> its elements, and where they are cut


def place_rings(
    tasks: Mapping[int, PathTask], gathered: Collection[int], stored: Mapping[int, Collection[int]]
) -> dict[int, dict[int, InRing]]:
    """Say what the tiles of each task have in the ring: number of the task -> by tensor.

    Args:
        gathered: tensors of states that are read in full on the forward path.
        stored: tensors in which the segments of a task store elements of rows.
    """
    found: dict[int, dict[int, InRing]] = {}
    for phase in {task.plan.task.phase for task in tasks.values()}:
        mine = {p: task for p, task in tasks.items() if task.plan.task.phase == phase}
        drafts = _drafts(mine, gathered, stored)
        sizes = (sum(_padded(size) for size, _ in draft.values()) for draft in drafts.values())
        widest = max(sizes, default=0)
        step = row_step(widest) if widest else 0
        found |= {p: _place(draft, step) for p, draft in drafts.items()}
    return found


def _drafts(
    tasks: Mapping[int, PathTask], gathered: Collection[int], stored: Mapping[int, Collection[int]]
) -> dict[int, Draft]:
    """List what the tiles of each task of a side have in the ring; see `place_rings`."""
    states: dict[int, int] = {}
    for task in tasks.values():
        states |= {tensor: x.size for tensor, x in task.states.items() if tensor in gathered}
    drafts = {p: _draft(task, states) for p, task in tasks.items()}
    missing = set[int]()  # what those that make it do not store is read from memory
    for p, task in tasks.items():
        missing |= drafts[p].keys() & {*_scattered(task), *_operands(task)} - {*stored[p]}
    return {p: {t: draft[t] for t in draft if t not in missing} for p, draft in drafts.items()}


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _place(draft: Draft, step: int) -> dict[int, InRing]:
    """Put tensors one after another."""
    found, start = {}, 0
    for tensor, (size, cuts) in draft.items():
        found[tensor] = InRing(tensor, start, size, step, cuts)
        start += _padded(size)
    return found


def _draft(task: PathTask, states: Mapping[int, int]) -> Draft:
    """List what the tiles of a task have in the ring: states, with their sizes, then operands."""
    if task.binding.splits_edges or task.binding.relations > 1:
        return {}  # which of a tile's edges are meant is in memory, and children are read there
    scattered = _scattered(task) if task.processors > 1 else {}
    found = {tensor: (size, scattered.get(tensor, ())) for tensor, size in states.items()}
    operands = _operands(task) if task.processors > 1 else {}
    return found | {tensor: x for tensor, x in operands.items() if tensor not in found}


def _scattered(task: PathTask) -> dict[int, Cuts]:
    """Return how the states that a task publishes are cut, () where each has all of one."""
    found: dict[int, Cuts] = {}
    plan = task.plan
    for k, node in enumerate(task.nodes):
        if node.op == "scatter":
            (i,) = node.inputs
            whole = i in plan.whole and i in plan.task.homes  # else a copy is made, in parts
            cuts = () if whole else plan.cuts.get(k) or task.own_cuts(i)
            found[task.binding.tensors["state", node["field"]]] = cuts
    return found


def _operands(task: PathTask) -> Draft:
    """List the operands of products that an earlier segment makes in parts."""
    nodes, plan = task.nodes, task.plan
    found: Draft = {}
    for segment, before in zip(plan.segments, made_before(task), strict=True):
        for step in segment.steps:
            x = nodes[step.node].inputs[1] if isinstance(step, Product) else -1
            if x in before and x in plan.task.homes and nodes[x].type.domain != Domain.EDGE:
                tensor = task.binding.tensors[plan.task.homes[x]]
                found[tensor] = nodes[x].type.size, task.own_cuts(x)
    return found
