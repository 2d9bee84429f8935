"""Compile the loops that end a step in a process of their own, while this one compiles the rest.

numba compiles one function at a time in a process, and a machine that has compiled nothing yet has
10 s of loops before it: lookups and updates are a third of that. Both processes leave what they
compile in the cache; should this one be there first, it compiles what it needs itself.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np

from vertexrt.cache.compiled import is_kept
from vertexrt.config import config
from vertexrt.engine.sparse_rows import new_marks, rows_looked_up, take_marked
from vertexrt.engine.update import PIECE
from vertexrt.ir.updates import RULES
from vertexrt.kernels.cpu.update import add_up, cut_pieces, finish, norm_of, sum_loss
from vertexrt.kernels.layout import StoreUpdate

# No table of which rows were touched; `listed` always has one entry.
CUT = (PIECE, 0, np.zeros((0, 2), np.int64), np.zeros((0, 1, 2), np.int64), np.zeros(1, np.int64))
CODE = "from vertexrt.engine.host_loops import compile_loops; compile_loops({!r})"


def compile_loops(dtype: str) -> None:
    """Compile them, or load them from the cache: each is called once over nothing.

    Args:
        dtype: of the network.
    """
    reals, listed = np.zeros(0, dtype), CUT[-1]
    pieces, spans = cut_pieces(*CUT)
    finish(
        StoreUpdate(
            rule=RULES[0],
            scalars=np.zeros(8),
            clip_norm=0.0,
            limit=0.0,
            reach=(),
            values=reals,
            gradients=reals,
            moments=reals.reshape(0, 0),
            pieces=pieces,
            spans=spans,
            listed=listed,
            found=np.zeros(3),
        )
    )
    sum_loss(reals, reals)
    add_up(reals.reshape(1, 0), pieces, spans, listed)
    norm_of(reals, pieces, spans, listed)
    marks = new_marks(1)
    rows_looked_up(marks, np.zeros((1, 0), np.int32), np.zeros(1, np.int64))
    take_marked(marks)


@cache
def compile_beside(dtype: str) -> subprocess.Popen[bytes] | None:
    """Start the process, once, if there is a processor for it and the cache has no such loops."""
    if config().threads < 2 or is_kept(cut_pieces, *CUT):
        return None
    return subprocess.Popen(
        [sys.executable, "-c", CODE.format(dtype)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process
    )
