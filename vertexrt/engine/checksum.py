"""The compiled loop that sums up a batch in one number, which processes compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

FACTOR = 0x5851F42D4C957F2D  # Knuth, MMIX: of a linear congruential generator
KEPT = 52  # bits: a float64 has no more


def mixed(total: Any, number: Any) -> Any:
    """Return a running hash, int64, that a number was added to."""
    return ((total ^ (total >> 29)) ^ number) * np.int64(FACTOR)


def below_limit(total: Any) -> int:
    """Return what a running hash comes to: below 2^KEPT."""
    return int((total >> 11) & ((1 << KEPT) - 1))


@compiled
def checksum(numbers: Array, start: int) -> int:
    """Return a checksum of int32 [n], that goes on from another; below 2^52.

    Four hashes are computed beside each other, since each product waits for the one before.
    """
    factor = np.int64(FACTOR)
    a, b, c, d = np.int64(start + 1), np.int64(2), np.int64(3), np.int64(4)
    whole = len(numbers) // 4 * 4
    for i in range(0, whole, 4):
        a = (a ^ numbers[i]) * factor
        b = (b ^ numbers[i + 1]) * factor
        c = (c ^ numbers[i + 2]) * factor
        d = (d ^ numbers[i + 3]) * factor
    for i in range(whole, len(numbers)):
        a = (a ^ numbers[i]) * factor
    for each in (b, c, d, np.int64(len(numbers))):
        a = mixed(a, each)
    return below_limit(a)
