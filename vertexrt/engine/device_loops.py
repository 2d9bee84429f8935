"""Compile the host's loops of a GPU's persistent engine while its kernel is compiled.

Both take some ten seconds with empty caches. The compiler of kernels runs without the interpreter's
lock, so that a thread beside it is done about when it is. Each loop is called once over nothing,
with arrays of the types that it is given later.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.cuda.orders import write_scripts
from vertexrt.kernels.cuda.pack import FIXED, INDICES, pack
from vertexrt.kernels.layout import COLUMNS
from vertexrt.script.assemble import Shape, assemble_groups
from vertexrt.script.isa import WORDS

LONGS, INTS, FLAGS, TWO = (
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.bool_),
    np.zeros(2, np.int32),
)


def compile_loops(dtype: npt.DTypeLike) -> None:
    """Compile them, or load them from the cache.

    Args:
        dtype: of the network.
    """
    reals, none = np.zeros(0, np.float64), np.zeros((0, COLUMNS), np.int64)
    triples = np.zeros((0, 3), np.int64)
    shape = Shape(LONGS, LONGS, LONGS, FLAGS, FLAGS, reals, reals, triples)
    assemble_groups(shape, none, FLAGS, INTS, TWO[:1], INTS, TWO, 1, 1, 8)
    steps = np.zeros((0, 0), np.int64)
    facts = (LONGS, FLAGS, LONGS, steps, FLAGS, LONGS, LONGS, triples, LONGS)
    words, lengths = np.zeros((0, WORDS), np.int64), np.zeros((2, 1), np.int64)
    write_scripts(none, facts, FLAGS, (0, 0, 0), LONGS, LONGS, False, False, words, lengths, TWO)
    nothing = np.zeros(0, np.uint8)  # too small: nothing is packed
    pack(
        nothing, 0, FLAGS, np.zeros(FIXED, np.int64), (INTS,) * len(INDICES), INTS,
        np.zeros(0, dtype), LONGS, INTS, np.zeros((0, 0), np.int32), 0, (INTS,) * 3, LONGS, LONGS,
        0, 0, 0, 1.0, 0, 0,
    )  # fmt: skip


@cache
def compile_beside(dtype: np.dtype[Any]) -> None:
    """Compile them in a thread, once a process."""
    threading.Thread(target=compile_loops, args=(dtype,), name="vertexrt-loops").start()
