"""The end of a step on a device: the loss, the norm of the gradients, the update."""

from __future__ import annotations

from struct import Struct

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run, start_of
from vertexrt.engine.part import Part
from vertexrt.kernels.cuda.pack import WEIGHT
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import (
    NO_SCALARS,
    NO_STARTS,
    NO_WIDTHS,
    PIECE,
    PIECES_A_BLOCK,
    SUMMERS,
    THREADS,
    StepEnd,
    pack_finish,
    pack_store,
)

Int64 = npt.NDArray[np.int64]

SUMMED_LOSS = Struct("5qd")  # of update.cu


def finish_step(session: Session, weight: int, addresses: Int64, e: StepEnd) -> None:
    """Launch the loss, the norm and the update, that of each group in turn."""
    store, finish, pieces = ending_words(session, weight, addresses, e)
    blocks = -(-pieces // PIECES_A_BLOCK)
    if e.clip_value and blocks:
        clamped = _store_words(session, addresses, (0, len(e.starts)), (e.clip_value,), e)
        session.launch_one("clamp_kernel", blocks, THREADS, clamped)
    if e.clip_norm:
        session.launch_one("sum_squares_kernel", blocks, THREADS, store)
    session.launch_one("finish_step_kernel", 1, SUMMERS, finish)
    parts = [(store, blocks)]
    if e.groups:
        parts = []
    for g in e.groups:
        words = _store_words(session, addresses, (g.first, g.ranges), g.scalars, e)
        parts.append((words, -(-g.ranges // PIECES_A_BLOCK)))
    for what in ("check", "update"):
        for words, needed in parts:
            if needed:
                session.launch_one(f"{what}_{e.rule.name}", needed, THREADS, words)


def leave_results(session: Session, run: Run, part: Part, words: Int64, rows: int) -> None:
    """Launch what leaves results of a run in memory of its caller: the loss, and rows of tensors.

    Args:
        words: of the run; rows: address of those that are copied.
    """
    if part.to.loss or part.to.total:
        _sum_loss(session, run, part, int(words[WEIGHT]))
    if part.to.copies:
        arena, real = session.arena.address, session.dtype.itemsize
        session.take_rows(
            [
                (to, arena + first * real, rows + 4 * start, n, size, order)
                for to, first, size, start, n, order in part.to.copies
            ]
        )


def _sum_loss(session: Session, run: Run, part: Part, weight: int) -> None:
    """Launch the sum of losses.

    Args:
        weight: address of the weights of rows.
    """
    words = SUMMED_LOSS.pack(
        part.to.loss,
        part.to.total,
        session.arena.address + start_of(run, ("push", "loss")) * session.dtype.itemsize,
        weight if len(run.weight) else 0,
        run.num_rows,
        part.loss_scale,
    )
    session.launch_one("sum_loss_kernel", 1, SUMMERS, words)


def _pieces(session: Session, ranges: int, e: StepEnd) -> tuple[int, int, int]:
    """Return elements and pieces of the dense part, if not in ranges, and how many pieces."""
    dense = 0 if e.groups else session.dense
    dense_pieces = -(-dense // PIECE)
    return dense, dense_pieces, dense_pieces + ranges


def _store_words(
    session: Session,
    addresses: Int64,
    ranges: tuple[int, int],
    scalars: tuple[float, ...],
    e: StepEnd,
) -> bytes:
    """Return `Store` of update.cuh.

    Args:
        addresses: of starts and widths; ranges: the first of these, and how many.
    """
    first, count = ranges
    return pack_store(
        session.values.address,
        session.gradients.address,
        session.moments.address if session.moments else 0,
        int(addresses[0]) + first * NO_STARTS.itemsize,
        int(addresses[1]) + first * NO_WIDTHS.itemsize,
        session.squares.address,
        session.found.address,
        session.trained,
        *_pieces(session, count, e),
        *scalars,
        *NO_SCALARS[len(scalars) :],
    )


def make_room(session: Session, e: StepEnd) -> int:
    """Make room for the squares of what is updated; return of how many pieces."""
    *_, pieces = _pieces(session, len(e.starts), e)
    session.squares = session.memory.scratch(session.squares, 8 * pieces)
    return pieces


def ending_words(
    session: Session, weight: int, addresses: Int64, e: StepEnd
) -> tuple[bytes, bytes, int]:
    """Return `Store` and `Finish` of update.cuh, and how many pieces are updated.

    Args:
        weight: address of the weights of rows; addresses: of `stage`.
    """
    pieces = make_room(session, e)
    size = session.dtype.itemsize
    store = _store_words(session, addresses, (0, len(e.starts)), e.scalars, e)
    finish = pack_finish(
        session.arena.address + e.loss_at * size,
        weight if e.weighted else 0,
        session.squares.address,
        session.found.address,
        e.rows,
        pieces if e.clip_norm else 0,
        e.loss_scale,
        e.clip_norm,
    )
    return store, finish, pieces
