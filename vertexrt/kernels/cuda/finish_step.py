"""The end of a step on a device: the loss, the norm of the gradients, the update."""

from __future__ import annotations

from struct import Struct
from sys import byteorder
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, Run, start_of
from vertexrt.kernels.cuda.device import address_of
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
    UNTOLD,
    Found,
    GroupEnd,
    StepEnd,
    pack_finish,
    pack_store,
)
from vertexrt.kernels.cuda.taken_rows import TakenRows

Int64 = npt.NDArray[np.int64]

LOSSES = Struct("3qd")  # of update.cu
FLAGS = Struct("2q")
NO_LOSSES = bytes(LOSSES.size)


class Joined(NamedTuple):
    """What is to be joined in the store before the end of a step of several processes.

    Attributes:
        words: what `Joining` of update.cu has between its flags and the store.
        told: what it has after them.
        addresses: of starts and widths of the rows that are packed; rows: how many.
    """

    words: bytes
    told: bytes
    addresses: Int64
    rows: int


def finish_step(
    session: Session, weight: int, addresses: Int64, e: StepEnd, joined: Joined | None = None
) -> None:
    """Launch the loss, the norm and the update, that of each group in turn.

    Args:
        joined: where it is not None, it is joined first. What can be seen of single gradients then
            is seen on the way.
    """
    words = ending_words(session, weight, addresses, e)
    seen = joined is not None and _join(session, joined, e, words[0])
    launch_end(session, addresses, e, words, seen)


def launch_end(
    session: Session,
    addresses: Int64,
    e: StepEnd,
    words: tuple[bytes, bytes, int],
    seen: bool = False,
) -> None:
    """Launch what `finish_step` does, given `ending_words`.

    Args:
        seen: what single gradients show is known.
    """
    store, _, pieces = words
    what = ["update"]
    if e.clip_norm or not seen:
        _decide(session, addresses, e, words, seen)
        what = ["check", "update"]
    parts = [_group_words(session, addresses, g, e.told) for g in e.groups] or [store]
    blocks = [_blocks(g.ranges) for g in e.groups] or [_blocks(pieces)]
    stores = np.frombuffer(b"".join(parts), np.int64)
    for name in what:  # of all groups at once: a step is done, or it is not
        session.launch_words(f"{name}_{e.rule.name}", blocks, THREADS, stores)


def _decide(
    session: Session, addresses: Int64, e: StepEnd, words: tuple[bytes, bytes, int], squared: bool
) -> None:
    """Launch what clips gradients and decides whether the step counts.

    Args:
        words: of `ending_words`; squared: the squares of gradients are there.
    """
    store, finish, pieces = words
    if e.clip_value:
        given = session, addresses, (0, len(e.starts)), (e.clip_value,), _dense(session, e)
        session.launch_one("clamp_kernel", _blocks(pieces), THREADS, _store_words(*given))
    if e.clip_norm and not squared:
        session.launch_one("sum_squares_kernel", _blocks(pieces), THREADS, store)
    session.launch_one("finish_step_kernel", 1, SUMMERS, finish)


def _blocks(pieces: int) -> int:
    return -(-pieces // PIECES_A_BLOCK)


def _group_words(session: Session, addresses: Int64, g: GroupEnd, told: int) -> bytes:
    """Return `Store` of update.cuh of a group."""
    return _store_words(session, addresses, (g.first, g.ranges), g.scalars, 0, told)


def _join(session: Session, joined: Joined, e: StepEnd, store: bytes) -> bool:
    """Launch what joins; tell whether it sums squares where they are wanted, or checks.

    Args:
        store: of `ending_words`.
    """
    seen = not e.apart
    if e.groups:  # whose ranges are not those that are packed
        given = joined.addresses, (0, joined.rows), e.scalars, session.dense
        store = _store_words(session, *given)
    flags = FLAGS.pack(seen and e.clip_norm > 0, seen and not e.clip_norm)
    blocks = 1 + _blocks(-(-session.dense // PIECE) + joined.rows)
    words = store + joined.words + flags + joined.told
    session.launch_one(f"join_{e.rule.name}", blocks, THREADS, words)
    return seen


class StepAsked:
    """The end of a step that is asked for with its launches.

    Args:
        ending: None, where a run is no step.
    Attributes:
        words: of what is launched; equal, where that is the same.
    """

    def __init__(
        self, session: Session, words: Int64, addresses: Int64, ending: StepEnd | None
    ) -> None:
        self._session, self._addresses, self._ending = session, addresses, ending
        self.words: object = None
        if ending is not None:
            self._words = ending_words(session, int(words[WEIGHT]), addresses, ending)
            limits = ending.rule.name, ending.clip_norm, ending.clip_value
            self.words = object() if ending.groups else (*self._words, *limits)

    def launch(self) -> None:
        """Launch it."""
        if self._ending is not None:
            launch_end(self._session, self._addresses, self._ending, self._words)


class ResultsLeft:
    """Launches that leave results of a run in memory of its caller: the loss, and rows of tensors.

    Args:
        words: of the run; addresses: of `Session.stage`.
    """

    def __init__(self, session: Session, run: Run, words: Int64, addresses: Int64) -> None:
        self._session, self._run, self._words, self._addresses = session, run, words, addresses
        self._taken: TakenRows | None = None

    def launch(self, part: Part) -> None:
        """Launch them."""
        loss, packed, (places, to) = part.to.loss, part.to.packed, part.to.copies
        if loss or packed is not None:
            self._launch_losses(part)
        if not places:
            return
        session, taken = self._session, self._taken
        arena = session.arena.address
        if taken is None or taken.places is not places or taken.arena != arena:
            rows, real = int(self._addresses[-1]), session.dtype.itemsize
            taken = self._taken = TakenRows(places, real, arena, rows)
        taken.launch(session, to)

    def _launch_losses(self, part: Part) -> None:
        session, packed = self._session, part.to.packed
        losses = _losses(session, self._run, part, int(self._words[WEIGHT]))
        if part.to.loss:
            given = part.to.loss.to_bytes(8, byteorder) + losses
            session.launch_one("sum_loss_kernel", 1, SUMMERS, given)
        if packed is not None:
            session.launch_one("pack_kernel", packed.blocks, THREADS, packed.words + losses)


def _losses(session: Session, run: Run, part: Part, weight: int) -> bytes:
    """Return `Losses` of update.cu.

    Args:
        weight: address of the weights of rows.
    """
    return LOSSES.pack(
        session.arena.address + start_of(run, ("push", "loss")) * session.dtype.itemsize,
        weight if len(run.layout.weight) else 0,
        run.num_rows,
        part.loss_scale,
    )


def _dense(session: Session, e: StepEnd) -> int:
    """Return the elements of the dense part; with groups it is in ranges."""
    return 0 if e.groups else session.dense


def _store_words(
    session: Session,
    addresses: Int64,
    ranges: tuple[int, int],
    scalars: tuple[float, ...],
    dense: int,
    told: int = 0,
) -> bytes:
    """Return `Store` of update.cuh.

    Args:
        addresses: of starts and widths; ranges: the first of these, and how many.
        dense: see `_dense`; told: of `StepEnd`.
    """
    (first, count), dense_pieces = ranges, -(-dense // PIECE)
    return pack_store(
        session.values.address,
        session.gradients.address,
        session.moments.address if session.moments else 0,
        int(addresses[0]) + first * NO_STARTS.itemsize,
        int(addresses[1]) + first * NO_WIDTHS.itemsize,
        session.squares.address,
        session.found.address,
        told,
        session.trained,
        dense,
        dense_pieces,
        dense_pieces + count,
        *scalars,
        *NO_SCALARS[len(scalars) :],
    )


def let_tell(session: Session, found: Found, e: StepEnd | None) -> None:
    """Let the update of a step write what was found to pinned memory, if it updates anything.

    Until then that has a loss that is no number, and no refusal.
    """
    if e is None:
        return
    found[:] = UNTOLD
    e.found = found
    if any(g.ranges for g in e.groups) if e.groups else session.dense or len(e.starts):
        e.told = address_of(found)


def make_room(session: Session, e: StepEnd) -> int:
    """Make room for the squares of what is updated; return of how many pieces."""
    pieces = -(-_dense(session, e) // PIECE) + len(e.starts)
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
    ranges, dense = (0, len(e.starts)), _dense(session, e)
    store = _store_words(session, addresses, ranges, e.scalars, dense, e.told)
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
