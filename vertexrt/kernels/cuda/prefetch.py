"""Operands of a segment's later groups, copied to shared memory while its products run.

A group after products reads values of the rows and of their children that were there before the
segment began. Read where they are needed, each would cost a trip to the second-level cache with
nothing else to do; asked for at the start, they arrive during the products. So do parameters, where
processors wait for each other: an acquire at the scope of a group or of the device empties the
first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.partial_sums import pieces_alike
from vertexrt.kernels.cuda.path_steps import Step, nodes_in
from vertexrt.kernels.cuda.path_task import PathTask, own_pieces, size_of_own
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.segments import CopyAhead
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.kernels.cuda.weights import most_own
from vertexrt.lower.kernel import J, Leaf, Memory, PlaceRows, ReadElement, ValuePlace
from vertexrt.lower.threads import Cuts

READ = ("gather", "pull")  # rows of memory that the segment does not write
LEAVES = (*READ, "param")


def copies_ahead(
    task: PathTask, steps: Sequence[Step], cuts_of: Callable[[int], Cuts]
) -> list[tuple[int, int, CopyAhead]]:
    """Say which operands of the groups after products are copied to shared memory.

    Args:
        steps: of a segment.
        cuts_of: where a member's elements are cut, () where it is made in full.
    Returns: the number of the step that reads it, its position, and the copy, of each.
    """
    made = {k for k in nodes_in(chain.from_iterable(steps)) if task.nodes[k].op not in LEAVES}
    operands = [
        (number, i, piece)
        for number, (group, *_) in enumerate(steps)
        if number and isinstance(group, Group)
        for i, piece in _operands_ahead(task, group, made, cuts_of).items()
    ]
    turns = 1
    while turns < min(len(operands), THREADS // WARP):
        turns *= 2
    return [
        (number, i, _copy(task, i, piece, turn % turns, turns))
        for turn, (number, i, piece) in enumerate(operands)
    ]


def _copy(task: PathTask, i: int, piece: int, turn: int, turns: int) -> CopyAhead:
    """Set aside shared memory for an operand, and say how it is copied there.

    Args:
        turn, turns: which of so many parts of the warps copy it; a power of two, at most all.
    """
    own = own_pieces(piece, task.processors) if task.processors > 1 else None
    each, size = most_own(piece, task.processors), task.nodes[i].type.size
    to = task.temporaries.temporary(size_of_own(size, own), False, own=own)
    place, source = task.place.get(i), task.values.element(i, J)
    rows = (place.start, place.step) if place else ()
    even = piece % task.processors == 0
    aligned = even and all(n % task.vector == 0 for n in (each, piece, *rows))
    assert isinstance(source, ReadElement | Leaf)
    return CopyAhead(source, to, piece, each, task.vector if aligned else 1, turn, turns)


def _operands_ahead(
    task: PathTask, group: Group, made: set[int], cuts_of: Callable[[int], Cuts]
) -> dict[int, int]:
    """List what a group reads of memory that was written before its segment, own elements only.

    Args:
        made: values of the segment.
    Returns: the elements of which a processor owns a share, by operand; it has one such piece or
        more.
    """
    pieces: dict[int, int] = {}
    refused: set[int] = set()
    inside = set(group.nodes)
    for k in group.nodes:
        if _is_view(task.nodes, k, task.place):
            continue  # what it is a part of is read by its readers
        piece = _piece_of(task.nodes[k], cuts_of(k))
        for i in _sources(task.nodes, k, task.place, inside):
            if i in made or pieces.get(i, piece) != piece or not _may_be_copied(task, i, piece):
                refused.add(i)
            else:
                pieces[i] = piece
    return {i: piece for i, piece in pieces.items() if i not in refused}


def _piece_of(node: Node, cuts: Cuts) -> int:
    """Return the elements of each piece of a member, 0 where it is not made so."""
    by_elements = OPS[node.op].role in ("scalar", "effect") and bool(cuts)
    return pieces_alike(cuts) if by_elements else 0


def _may_be_copied(task: PathTask, i: int, piece: int) -> bool:
    """Tell whether an operand in memory is whole pieces; what is near a processor is not copied."""
    node = task.nodes[i]
    whole = piece > 0 and max(node.type.size, 1) % piece == 0
    near = task.processors == 1 and node.op in ("gather", "param")
    vector = node.op == "param" and len(node.type.shape) == 1
    return whole and not near and (vector or _lies_in_rows(node, task.place.get(i)))


def _is_view(nodes: Sequence[Node], k: int, place: dict[int, ValuePlace]) -> bool:
    """Tell whether a value is a part of another one that lies nowhere by itself."""
    return nodes[k].op == "slice" and k not in place


def _sources(
    nodes: Sequence[Node], k: int, place: dict[int, ValuePlace], inside: set[int]
) -> Iterator[int]:
    """Yield what a member reads that it does not make, looking through views."""
    if k in place and nodes[k].op == "gather":
        yield k  # a copy of it is a member
    stack = list(nodes[k].inputs)
    while stack:
        i = stack.pop()
        if _is_view(nodes, i, place):
            stack.extend(nodes[i].inputs)
        elif i not in inside or nodes[i].op in LEAVES:
            yield i


def _lies_in_rows(node: Node, place: ValuePlace | None) -> bool:
    """Tell whether a value lies in a tensor by rows, or is a child's state, or is pulled."""
    if node.type.domain == Domain.EDGE or node.type.shape == ():
        return False
    if place is None:
        return node.op in READ
    return place.memory == Memory.TENSOR and place.rows == PlaceRows.ROW
