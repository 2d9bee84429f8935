"""Compile the host's loops of a GPU's persistent engine while its kernel is compiled.

Both take some ten seconds with empty caches. The compiler of kernels runs without the interpreter's
lock, so that a thread next to it is done about when it is.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.layouts import ProgramFacts, lay_out
from vertexrt.graph.digest import FACTORS, STARTS, hash_graphs
from vertexrt.kernels.cuda.pack import Arrays, Places, pack
from vertexrt.kernels.cuda.persistent_launch import write_all
from vertexrt.kernels.cuda.script_rounds import Facts
from vertexrt.native.compiled import compile_ahead
from vertexrt.scheduler.kinds import VertexFacts, is_within

INTS, LONGS, TABLE = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
PULLS, FLAGS, BYTES = np.zeros((0, 0), np.int32), np.zeros(0, np.bool_), np.zeros(0, np.uint8)
FACTS = Facts(
    LONGS, LONGS, LONGS, 0, LONGS, TABLE, TABLE, FLAGS, FLAGS, LONGS, LONGS, LONGS, TABLE
)  # fmt: skip
CELLS = LONGS, LONGS, LONGS, LONGS, TABLE
VERTICES = VertexFacts(
    LONGS, LONGS, TABLE, 0, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS
)  # fmt: skip
PROGRAMS = ProgramFacts(
    TABLE, LONGS, TABLE, FLAGS, TABLE, LONGS, LONGS, FLAGS, LONGS, LONGS, LONGS, 0, 0
)  # fmt: skip


def compile_loops(dtype: npt.DTypeLike) -> None:
    """Compile them, or load them from the cache.

    Args:
        dtype: of the network.
    """
    reals = np.zeros(0, dtype)
    compile_ahead(
        write_all, TABLE, PULLS, INTS, INTS, TABLE, INTS, INTS, FACTS, CELLS, (LONGS, LONGS), 0, 1,
        False, False, 0, False, BYTES,
    )  # fmt: skip
    compile_ahead(
        lay_out, INTS, INTS, INTS, INTS, PULLS, reals, 0, False, False, False, VERTICES, PROGRAMS,
        (LONGS, False, INTS, LONGS),
    )  # fmt: skip
    compile_ahead(hash_graphs, INTS, INTS, INTS, INTS, INTS, PULLS, PULLS, STARTS, FACTORS)
    compile_ahead(is_within, PULLS, LONGS, TABLE)
    batch = Arrays(INTS, INTS, TABLE, INTS, INTS, reals, PULLS, LONGS)
    run = Places(0, 0, 0, 0, 0, 0, 1.0, 0, 0, 0)
    lists = (INTS,) * 3, TABLE, (INTS,) * 3
    facts = FLAGS, LONGS, 0, (0, 0)
    compile_ahead(pack, BYTES, 0, facts, tuple(batch), tuple(run), lists)


@cache
def compile_beside(dtype: np.dtype[Any]) -> None:
    """Compile them in a thread, once a process."""
    threading.Thread(target=compile_loops, args=(dtype,), name="vertexrt-loops").start()
