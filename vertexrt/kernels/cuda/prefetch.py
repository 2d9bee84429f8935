"""Operands of a segment's later groups, copied to shared memory while its products run.

A group after products reads values of the rows and of their children that were there before the
segment began. Read where they are needed, each would cost a trip to the second-level cache with
nothing else to do; asked for at the start, they arrive during the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.row_text import ROLLED, WARP, tensor_word
from vertexrt.kernels.layout import Binding
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.lower.threads import Cuts


@dataclass(frozen=True, slots=True)
class PrefetchedOperand:
    """A value that is copied ahead.

    Attributes:
        node: whose value it is.
        piece: elements of which a processor owns an equal share; the value has one or more pieces.
    """

    node: int
    piece: int


def operands_ahead(
    nodes: Sequence[Node],
    group: Group,
    place: dict[int, ValuePlace],
    made: set[int],
    cuts_of: Callable[[int], Cuts],
    processors: int,
) -> list[PrefetchedOperand]:
    """List what a group reads of memory that was written before its segment, own elements only.

    Args:
        place: where values lie.
        made: values of the segment.
        cuts_of: where a member's elements are cut, () where it is made in full.
    """
    pieces: dict[int, int] = {}
    refused: set[int] = set()
    inside = set(group.nodes)
    for k in group.nodes:
        cuts = cuts_of(k)
        even = bool(cuts) and cuts[1] % processors == 0
        even &= all(b - a == cuts[1] for a, b in pairwise(cuts))
        plain = OPS[nodes[k].op].role in ("scalar", "effect") and even
        for i in _sources(nodes, k, place, inside):
            node = nodes[i]
            size = max(node.type.size, 1)
            fits = plain and size % cuts[1] == 0 and pieces.get(i, cuts[1]) == cuts[1]
            fits &= processors > 1 or node.op != "gather"  # its own states are near
            if fits and i not in made and _lies_in_rows(node, place.get(i)):
                pieces[i] = cuts[1]
            else:
                refused.add(i)
    return [PrefetchedOperand(i, piece) for i, piece in pieces.items() if i not in refused]


def _sources(
    nodes: Sequence[Node], k: int, place: dict[int, ValuePlace], inside: set[int]
) -> Iterator[int]:
    """Yield what a member reads that it does not make, looking through views."""
    if k in place and nodes[k].op == "gather":
        yield k  # a copy of it is a member
    stack = list(nodes[k].inputs)
    while stack:
        i = stack.pop()
        view = nodes[i].op == "slice" and i not in place
        if view:
            stack.extend(nodes[i].inputs)
        elif i not in inside or nodes[i].op == "gather":
            yield i


def _lies_in_rows(node: Node, place: ValuePlace | None) -> bool:
    """Tell whether a value lies in a tensor by rows, or is a child's state, or is pulled."""
    if node.type.domain == Domain.EDGE or node.type.shape == ():
        return False
    if place is None:
        return node.op in ("gather", "pull")
    return place.memory == Memory.TENSOR and place.rows == Rows.ROW


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """How an operand is copied.

    Attributes:
        source: where it lies; None for the state of a child, and for a pull.
        to: its place in shared memory; `origin` points to that of the tile's first row.
        vector: elements of 16 bytes.
        processors: of a group.
        turn, turns: which of so many parts of the warps copy it; a power of two, at most all.
    """

    source: ValuePlace | None
    to: ValuePlace
    origin: str
    vector: int
    processors: int
    turn: int
    turns: int

    def width(self, piece: int) -> int:
        """Return how many elements of an operand's own share are copied at once."""
        each, vector, source = piece // self.processors, self.vector, self.source
        aligned = each % vector == 0 and piece % vector == 0
        if source is not None:
            aligned &= source.start % vector == 0 and source.step % vector == 0
        return vector if aligned else 1


def write_copy(
    node: Node, operand: PrefetchedOperand, copy: OperandCopy, binding: Binding
) -> tuple[list[str], dict[str, str]]:
    """Write the statements that ask for an operand, and the words that they name."""
    each, size = operand.piece // copy.processors, max(node.type.size, 1)
    width, turns = copy.width(operand.piece), copy.turns
    parts = size // operand.piece * each // width  # copies of a row
    found, words = _source_row(node, size, copy.source, binding)
    return [
        f"if (thread / {WARP} % {turns} == {copy.turn})",
        ROLLED,
        f"for (int at = thread / {WARP * turns} * {WARP} + thread % {WARP}; at < a.n * {parts};",
        f"     at += PROCESSOR / {WARP * turns} * {WARP}) {{",
        f"  const int i = at / {parts}, k = at % {parts} * {width}, row = (int)a.lo + i;",
        f"  const int j = k / {each} * {operand.piece} + rank * {each} + k % {each};",
        *found,
        f"  copy_ahead<{width}>({copy.origin} + i * {copy.to.step} + k, from + j);",
        "}",
    ], words


def _source_row(
    node: Node, size: int, source: ValuePlace | None, binding: Binding
) -> tuple[list[str], dict[str, str]]:
    """Write where `row` of an operand begins, `from`, and the words that this names."""
    if source is not None:
        row = f"(long long)row * {source.step} + {source.start}"
        word = tensor_word(source)
        return [f"  const real* const from = {word} + {row};"], {word: "real*"}
    if node.op == "pull":
        number = binding.floats[node["name"]]
        words = {
            f"float_{number}": "const real*",
            f"float_index_{number}": "const int*",
            "order": "const int*",
            "zero": "const real*",
        }
        return [
            f"  const int pulled = float_index_{number}[order[row]];",
            f"  const real* const from = pulled >= 0 ? float_{number} + (long long)pulled * {size}"
            " : zero;",
        ], words
    tensor = f"tensor_{binding.tensors['state', node['field']]}"
    words = {
        tensor: "real*",
        "zero": "const real*",
        "edge_ptr": "const int*",
        "child_row": "const int*",
    }
    return [
        f"  const int e = edge_ptr[row] + {node['slot']};",
        "  const int child = e < edge_ptr[row + 1] ? child_row[e] : -1;",
        f"  const real* const from = child >= 0 ? {tensor} + (long long)child * {size} : zero;",
    ], words
