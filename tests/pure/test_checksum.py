"""The number that processes compare of a batch."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from vertexrt.engine.graph_facts import KEPT, checksum

SHOW = (
    "import numpy as np; from vertexrt.engine.graph_facts import checksum; "
    "print(checksum(np.arange(-3, 20, dtype=np.int32) * 12345, 7))"
)


def test_every_change_changes_it() -> None:
    """Of any place, to any bit; of the length; of where it goes on from."""
    numbers = np.random.default_rng(0).integers(-1, 9, 23).astype(np.int32)
    seen = {checksum(numbers, 0), checksum(numbers, 1), checksum(numbers[:-1], 0)}
    seen |= {checksum(numbers[1:], 0), checksum(np.append(numbers, np.int32(0)), 0)}
    count = len(seen)
    assert count == 5
    for at in range(len(numbers)):
        for bit in range(32):
            changed = numbers.copy()
            changed.view(np.uint32)[at] ^= np.uint32(1 << bit)
            seen.add(checksum(changed, 0))
    assert len(seen) == count + 32 * len(numbers)
    swapped = numbers.copy()
    swapped[[0, 1]] = numbers[[1, 0]] if numbers[0] != numbers[1] else (7, 8)
    assert checksum(swapped, 0) not in seen
    assert all(float(each) == each and 0 <= each < 1 << KEPT for each in seen)


def test_it_is_that_of_the_same_text_as_python() -> None:
    def by(**more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SHOW], env=os.environ | more, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert by() == by(VERTEXRT_PLAIN="1")
