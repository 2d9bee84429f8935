"""What was used last, by key: what is prepared for batches, and found again for their like."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A mapping that lets go of what was not asked for the longest.

    Args:
        most: entries; most_size: of all together.
    """

    def __init__(self, most: int, most_size: int) -> None:
        self.most, self.most_size = most, most_size
        self._held: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: Hashable) -> T | None:
        """Return what is held for a key; None, where nothing is."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def keep(self, key: Hashable, value: T, size: int = 1) -> None:
        """Hold something for a key, in place of what was held before."""
        held = self._held.pop(key, None)
        self._size += size - (0 if held is None else held[1])
        self._held[key] = value, size
        while len(self._held) > self.most or self._size > self.most_size:
            _, (_, gone) = self._held.popitem(last=False)
            self._size -= gone

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()
        self._size = 0
