"""What is asked of a network, as a record and as text."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

BETWEEN_NAMES, BETWEEN_FIELDS = "\n", "\n\n"


class Call(NamedTuple):
    """What is asked of a network.

    Attributes:
        number: of the binding.
        pulls: names of those that are tensors; outputs: names of pushes.
        wanted: names of the pulls that get a gradient.
        keep: for the way back; drop: let dropout drop.
        sparse: gradients of tables are rows and their numbers.
    """

    number: int
    pulls: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    keep: bool
    drop: bool
    sparse: bool = False

    def text(self) -> str:
        """Write it as text."""
        number, pulls, outputs, wanted, *flags = self
        lists = [BETWEEN_NAMES.join(each) for each in (pulls, outputs, wanted)]
        return BETWEEN_FIELDS.join([str(number), *lists, *(str(int(flag)) for flag in flags)])

    @staticmethod
    @lru_cache
    def of(text: str) -> Call:
        """Read it from text; those of the last calls are kept."""
        number, *lists, keep, drop, sparse = text.split(BETWEEN_FIELDS)
        pulls, outputs, wanted = (
            tuple(each.split(BETWEEN_NAMES)) if each else () for each in lists
        )
        return Call(int(number), pulls, outputs, wanted, keep == "1", drop == "1", sparse == "1")
