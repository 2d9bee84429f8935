"""Rows that the processors of a group hand each other in shared memory while the path runs.

What a processor needs in full and others make in parts, the states of children and the operands of
products that are cut between segments, is sent from shared memory to shared memory (thread-block
clusters) instead of being written to memory and read back. A row of the ring has all of that for
one row of a tile; `ring_script.py` says which rows are there when.

Source: GRNN (EuroSys 2019), section 4, keeps the state of a step on chip; distributed shared memory
as the way between processors is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vertexrt.ir.passes.fuse import Product
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Domain, Stage
from vertexrt.kernels.cuda.path_steps import own_cuts
from vertexrt.kernels.cuda.weights import own_range
from vertexrt.kernels.layout import Binding
from vertexrt.lower.threads import Cuts

ALIGN = 4  # elements, 16 bytes of float32
BANKS = 32  # of shared memory, 4 bytes wide
CLEAR = 16  # elements between rows that eight of them read at once: see resident_matmul.cuh
FEWEST = 8  # rows of a ring that is worth its room
MOST_ROWS = 192
MOST_FAR = 48  # of them, for children that are copied


@dataclass(frozen=True, slots=True)
class InRing:
    """Where the elements of a tensor are in a row of the ring.

    Attributes:
        tensor: word of the tensor that has them as well.
        start: first of them; size: how many; step: from one row to the next.
        cuts: where they are cut in pieces that are shared out; () if every processor makes all.
    """

    tensor: str
    start: int
    size: int
    step: int
    cuts: Cuts


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


def made_before(plan: SegmentedTask) -> list[set[int]]:
    """List for each segment what earlier ones make in parts, so that no processor has all of it."""
    found, made = [], set[int]()
    for segment in plan.segments:
        found.append(set(made))
        for step in segment.steps:
            for k in step.nodes:
                if k not in plan.whole and plan.task.program.nodes[k].type.shape != ():
                    made.add(k)
    return found


def place_rings(
    tasks: Mapping[int, SegmentedTask],
    binding: Binding,
    fields: set[str],
    processors: int,
    without: Collection[str] = (),
) -> dict[int, dict[str, InRing]]:
    """Say what the tiles of each task have in the ring: number of the task -> by tensor.

    Args:
        fields: of states that are gathered in full on the forward path.
        without: tensors that are not handed on.
    """
    found: dict[int, dict[str, InRing]] = {}
    for stage in (Stage.PATH, Stage.PATH_BACKWARD):
        mine = [(p, plan) for p, plan in tasks.items() if plan.task.stage == stage]
        states = _states(mine, binding, fields) if stage == Stage.PATH else {}
        drafts: dict[int, dict[str, tuple[int, int, Cuts]]] = {}
        widest = 0
        for p, plan in mine:
            at = 0
            drafts[p] = {}
            scattered = _scattered(plan, binding)
            for word, size in states.items():
                if word in without:
                    continue
                cuts = scattered.get(word, ())
                drafts[p][word] = (at, size, cuts if processors > 1 else ())
                at += -(-size // ALIGN) * ALIGN
            if processors > 1:
                for word, size, cuts in _operands(plan, binding):
                    if word not in drafts[p] and word not in without:
                        drafts[p][word] = (at, size, cuts)
                        at += -(-size // ALIGN) * ALIGN
            widest = max(widest, at)
        step = -(-widest // BANKS) * BANKS + CLEAR if widest else 0
        for p, draft in drafts.items():
            found[p] = {w: InRing(w, at, size, step, cuts) for w, (at, size, cuts) in draft.items()}
    return found


def _states(
    tasks: Sequence[tuple[int, SegmentedTask]], binding: Binding, fields: set[str]
) -> dict[str, int]:
    """Return the tensors of fields with their sizes."""
    found: dict[str, int] = {}
    for _, plan in tasks:
        for node in plan.task.program.nodes:
            if node.op in ("gather", "gather_all") and node["field"] in fields:
                found[f"tensor_{binding.tensors['state', node['field']]}"] = node.type.size
    return found


def _scattered(plan: SegmentedTask, binding: Binding) -> dict[str, Cuts]:
    """Return how the states that a task publishes are cut, () where each has all of one."""
    found: dict[str, Cuts] = {}
    nodes = plan.task.program.nodes
    for k, node in enumerate(nodes):
        if node.op == "scatter":
            (i,) = node.inputs
            whole = i in plan.whole and i in plan.task.homes  # else a copy is made, in parts
            cuts = () if whole else plan.cuts.get(k) or own_cuts(plan, i)
            found[f"tensor_{binding.tensors['state', node['field']]}"] = cuts
    return found


def made_in_ring(plan: SegmentedTask, binding: Binding, entries: Mapping[str, InRing]) -> set[str]:
    """Return the tensors of a ring's rows that a task makes itself."""
    made = {*_scattered(plan, binding), *(word for word, _, _ in _operands(plan, binding))}
    return made & set(entries)


def _operands(plan: SegmentedTask, binding: Binding) -> list[tuple[str, int, Cuts]]:
    """List the operands of products that an earlier segment makes in parts: tensor, size, cuts."""
    nodes = plan.task.program.nodes
    found: dict[str, tuple[str, int, Cuts]] = {}
    for segment, before in zip(plan.segments, made_before(plan), strict=True):
        for step in segment.steps:
            if not isinstance(step, Product) or nodes[step.node].op != "matmul":
                continue
            x = nodes[step.node].inputs[1]
            if x not in before or x not in plan.task.homes:
                continue
            if nodes[x].type.domain == Domain.EDGE:
                continue
            word = f"tensor_{binding.tensors[plan.task.homes[x]]}"
            found[word] = (word, nodes[x].type.size, own_cuts(plan, x))
    return list(found.values())


def write_send(entries: Sequence[InRing], processors: int) -> list[str]:
    """Return statements that send a tile's rows `last` to all members, before meeting `turn`."""
    lines = []
    for first, size, cuts in _joined(entries):
        rows = f"ring + last.slot * {entries[0].step} + {first}"
        sizes = {b - a for a, b in pairwise(cuts)}
        (each,) = sizes if len(sizes) == 1 else (0,)
        if each and each % processors == 0:
            lines.append(
                f"send_rows<PROCESSORS, {size // each}, {each}>({rows}, {entries[0].step}, "
                "last.n, turn);"
            )
            continue
        for a, b in pairwise(cuts):
            begin, end = own_range(a, b, processors)
            lines.append(
                f"send_some<PROCESSORS>({rows}, {entries[0].step}, last.n, {begin}, {end}, turn);"
            )
    return lines


def _joined(entries: Sequence[InRing]) -> list[tuple[int, int, Cuts]]:
    """Join neighbours: first element, size, cuts."""
    found: list[tuple[int, int, Cuts]] = []
    for entry in sorted(entries, key=lambda e: e.start):
        if found and found[-1][0] + found[-1][1] == entry.start:
            first, size, cuts = found[-1]
            found[-1] = first, size + entry.size, (*cuts, *(size + c for c in entry.cuts[1:]))
        else:
            found.append((entry.start, entry.size, entry.cuts))
    return found
