"""Decide how many elements a thread of a loop takes at once: vectors of 16 bytes, or fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from vertexrt.lower.kernel import (
    Expression,
    FromParents,
    Leaf,
    Memory,
    ReadElement,
    expressions_in,
)
from vertexrt.lower.threads import (
    EdgeSum,
    ElementLoop,
    ElementStatement,
    PublishElements,
    StoreElements,
)

PARENTS = 4  # elements that must divide rows that parents left, for vectors of them
IN_ROWS = ("gather", "param", "pull", "seed", "embed")  # leaves that are rows in memory


def width_of(loop: ElementLoop, vector: int) -> int:
    """Return how many elements a thread of a loop takes at once.

    Args:
        vector: elements of 16 bytes.
    """
    accessed = (n for x in loop.statements for n in _accessed(x))
    return 1 if loop.size % vector or any(n % vector for n in accessed) else vector


def loads_of(loop: ElementLoop) -> int:
    """Count what a loop loads of each element; 0 where it sums over edges."""
    found: set[ReadElement | Leaf] = set()
    for x in loop.statements:
        if isinstance(x.value, EdgeSum):
            return 0
        found |= {e for e in expressions_in(x.value) if _is_load(e)}
    return len(found)


def _is_load(e: Expression) -> TypeGuard[ReadElement | Leaf]:
    if isinstance(e, ReadElement):
        return e.place.memory != Memory.REGISTER and e.index.moves
    return isinstance(e, Leaf) and e.op in IN_ROWS and e.index.moves


def _accessed(x: ElementStatement) -> Iterator[int]:
    """Yield what must be whole vectors: where a statement reads and writes, rows and offsets."""
    if isinstance(x, (StoreElements, PublishElements)):
        yield from (x.to.start, x.to.step)
    if not isinstance(x.value, EdgeSum):
        yield from _read(x.value)
        return
    for source in x.value.sources:
        if isinstance(source, FromParents):
            yield x.value.size if x.value.size % PARENTS == 0 else 1
        else:
            yield from _read(source)


def _read(value: Expression) -> Iterator[int]:
    for e in expressions_in(value):
        if isinstance(e, ReadElement) and e.place.memory != Memory.REGISTER:
            if e.index.moves:
                yield from (e.place.start + e.index.shift, e.place.step)
        elif isinstance(e, Leaf) and e.op in IN_ROWS and e.index.moves:
            yield from (e.size, e.index.shift)
