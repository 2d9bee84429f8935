"""Compile the host's loops of a GPU's persistent engine while its kernel is compiled.

Both take some ten seconds with empty caches. The compiler of kernels runs without the interpreter's
lock, so that a thread next to it is done about when it is. Each loop is called once over nothing,
with arrays of the types that it is given later.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.lay_out import lay_out
from vertexrt.engine.packed_args import pack_args
from vertexrt.kernels.cuda.device_scripts import Chosen, Known, LaidOut, write_all
from vertexrt.kernels.cuda.pack import FIXED, PARTS, Arrays, Places, pack
from vertexrt.kernels.layout import COLUMNS

LONGS, INTS, FLAGS, TWO = (
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.bool_),
    np.zeros(2, np.int32),
)
OF_BATCH, TWO_OF_BATCH = INTS.copy(), TWO.copy()  # a batch's arrays are read-only
OF_BATCH.flags.writeable = TWO_OF_BATCH.flags.writeable = False
PLACES = np.tile([0, 1], (PARTS, 1))


def compile_loops(dtype: npt.DTypeLike) -> None:
    """Compile them, or load them from the cache.

    Args:
        dtype: of the network.
    """
    reals, none = np.zeros(0, np.float64), np.zeros((0, COLUMNS), np.int64)
    triples = np.zeros((0, 3), np.int64)
    steps, pulls = np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int32)
    segments, rings = np.zeros((1, 6), np.int64), np.zeros((2, 2), np.int64)
    facts = (LONGS, FLAGS, LONGS, steps, FLAGS, LONGS, LONGS, triples, segments, rings)
    shape = (LONGS, LONGS, LONGS, FLAGS, FLAGS, reals, reals, triples)
    write_all(
        tuple(LaidOut(none, pulls, INTS, TWO, PLACES, TWO_OF_BATCH, INTS)),
        tuple(Known(FLAGS, TWO.astype(np.int64), LONGS, pack_args((*facts, *shape)))),
        tuple(Chosen(1, 1, 8, 0, False, False)),
    )
    vertex = (LONGS, LONGS, LONGS, 0, False, 0, 0, LONGS, LONGS, FLAGS)
    program = (
        none, none, FLAGS, triples, TWO.astype(np.int64), LONGS, FLAGS, 0, LONGS, LONGS, LONGS, 0,
    )  # fmt: skip
    lay_out(
        TWO_OF_BATCH[:1], OF_BATCH, pulls, np.zeros(0, dtype), False, None, False, False,
        pack_args(vertex), pack_args(program),
    )  # fmt: skip
    nothing = np.zeros(0, np.uint8)  # too small: nothing is packed
    batch = Arrays(INTS, INTS, PLACES, OF_BATCH, np.zeros(0, dtype), pulls, LONGS)
    lists = (INTS,) * 3, (LONGS, INTS), (INTS,) * 4
    facts_of_pack = pack_args((FLAGS, LONGS, 0))
    run = Places(0, 0, 0, 1.0, 0, 0)
    pack(nothing, 0, np.zeros(FIXED, np.int64), facts_of_pack, tuple(batch), tuple(run), lists)


@cache
def compile_beside(dtype: np.dtype[Any]) -> None:
    """Compile them in a thread, once a process."""
    threading.Thread(target=compile_loops, args=(dtype,), name="vertexrt-loops").start()
