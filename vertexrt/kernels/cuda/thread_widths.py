"""Decide how many elements a thread of a loop takes at once: vectors of 16 bytes, or fewer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeGuard

from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.lower.kernel import (
    Expression,
    FromParents,
    Index,
    Leaf,
    Memory,
    ReadElement,
    ValuePlace,
    expressions_in,
)
from vertexrt.lower.threads import (
    NEAR,
    EdgeSum,
    ElementLoop,
    ElementStatement,
    PublishElements,
    PutInRing,
    StoreElements,
)

PARENTS = 4  # elements that must divide rows that parents left, for vectors of them
IN_ROWS = ("gather", NEAR, "param", "pull", "seed", "embed")  # leaves that are rows in memory


def width_of(loop: ElementLoop, vector: int, threads: int = 0, task: PathTask | None = None) -> int:
    """Return how many elements a thread of a loop takes at once.

    Args:
        vector: elements of 16 bytes.
        threads: of a row of the path, which all take some where elements are few.
    """
    width = vector if loop.size % vector == 0 and not loop.cuts else 1
    while width > 1 and width * threads > loop.size:
        width //= 2
    for x in loop.statements:
        rests = [*(n % vector for n in _accessed(x, task)), *(n % width for n in _owned(x, task))]
        if any(rests):
            return 1
    return width


def loads_of(loop: ElementLoop) -> int:
    """Count what a loop loads of each element; 0 where it sums over edges."""
    found: set[ReadElement | Leaf] = set()
    for x in loop.statements:
        if isinstance(x, PutInRing):
            continue
        if isinstance(x.value, EdgeSum):
            return 0
        found |= {e for e in expressions_in(x.value) if _is_load(e)}
    return len(found)


def _is_load(e: Expression) -> TypeGuard[ReadElement | Leaf]:
    if isinstance(e, ReadElement):
        return e.place.memory not in (Memory.REGISTER, Memory.SUMS) and e.index.moves
    return isinstance(e, Leaf) and e.op in IN_ROWS and e.index.moves


def _owned(x: ElementStatement, task: PathTask | None) -> Iterator[int]:
    """Yield where the pieces begin of which a processor stores its own elements, and its share."""
    if isinstance(x, StoreElements) and x.own:
        assert task is not None
        for a, b in pairwise(x.own):
            each, rest = divmod(b - a, task.processors)
            yield from (a, each if rest == 0 else 1)


def _accessed(x: ElementStatement, task: PathTask | None) -> Iterator[int]:
    """Yield what must be whole vectors: where a statement reads and writes, rows and offsets."""
    if isinstance(x, PutInRing):
        return
    if isinstance(x, (StoreElements, PublishElements)):
        yield from (x.to.start, x.to.step)
    if not isinstance(x.value, EdgeSum):
        yield from _read(x.value, task)
        return
    for source in x.value.sources:
        if isinstance(source, FromParents):
            yield x.value.size if x.value.size % PARENTS == 0 else 1
        else:
            yield from _read(source, task)


def _read(value: Expression, task: PathTask | None) -> Iterator[int]:
    for e in expressions_in(value):
        if isinstance(e, ReadElement) and e.place.memory != Memory.REGISTER:
            yield from _of_place(e.place, e.index, task)
        elif isinstance(e, Leaf) and e.op in IN_ROWS and e.index.moves:
            yield from (e.size, e.index.shift)


def _of_place(place: ValuePlace, index: Index, task: PathTask | None) -> Iterator[int]:
    if place.own is not None:
        yield 1
    elif index.moves and place.memory == Memory.SUMS:
        assert task is not None
        yield from (task.nodes[place.number].type.shape[-1], index.shift)
    elif index.moves:
        yield from (place.start + index.shift, place.step)
