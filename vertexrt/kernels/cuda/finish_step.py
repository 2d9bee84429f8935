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


class StepFinish:
    """The end of a step, which is launched after it: the loss, the norm, the update of each group.

    Args:
        weight: address of the weights of rows; addresses: of `Session.stage`.
        ending: None, where a run is no step.
    Attributes:
        store, finish: `Store` and `Finish` of update.cuh.
    """

    def __init__(
        self, session: Session, weight: int, addresses: Int64, ending: StepEnd | None
    ) -> None:
        self._session, self._addresses, self._ending = session, addresses, ending
        if ending is None:
            return
        e, pieces = ending, make_room(session, ending)
        self._blocks, self._dense = _blocks(pieces), _dense(session, e)
        self.store = self._store(0, len(e.starts), e.scalars, self._dense, e.told)
        self.finish = pack_finish(
            session.arena.address + e.loss_at * session.dtype.itemsize,
            weight if e.weighted else 0,
            session.squares.address,
            session.found.address,
            e.rows,
            pieces if e.clip_norm else 0,
            e.loss_scale,
            e.clip_norm,
        )

    def launch(self, joined: Joined | None = None) -> None:
        """Launch it.

        Args:
            joined: where it is not None, it is joined first. What can be seen of single gradients
                then is seen on the way.
        """
        e, session = self._ending, self._session
        if e is None:
            return
        seen = joined is not None and not e.apart
        if joined is not None:
            self._join(joined, e)
        what = ["update"]
        if e.clip_norm or not seen:  # what clips gradients and decides whether the step counts
            if e.clip_value:
                clamp = self._store(0, len(e.starts), (e.clip_value,), self._dense)
                session.launch_one("clamp_kernel", self._blocks, THREADS, clamp)
            if e.clip_norm and not seen:
                session.launch_one("sum_squares_kernel", self._blocks, THREADS, self.store)
            session.launch_one("finish_step_kernel", 1, SUMMERS, self.finish)
            what = ["check", "update"]
        parts = [self._store(g.first, g.ranges, g.scalars, 0, e.told) for g in e.groups]
        blocks = [_blocks(g.ranges) for g in e.groups] or [self._blocks]
        stores = np.frombuffer(b"".join(parts or [self.store]), np.int64)
        for name in what:  # of all groups at once: a step is done, or it is not
            session.launch_words(f"{name}_{e.rule.name}", blocks, THREADS, stores)

    def _join(self, joined: Joined, e: StepEnd) -> None:
        """Launch what joins, and unless the end is apart sums squares, or checks."""
        session, store = self._session, self.store
        if e.groups:  # whose ranges are not those that are packed
            given = 0, joined.rows, e.scalars, session.dense
            store = self._store(*given, addresses=joined.addresses)
        flags = FLAGS.pack(not e.apart and e.clip_norm > 0, not e.apart and not e.clip_norm)
        blocks = 1 + _blocks(-(-session.dense // PIECE) + joined.rows)
        words = store + joined.words + flags + joined.told
        session.launch_one(f"join_{e.rule.name}", blocks, THREADS, words)

    def _store(
        self,
        first: int,
        count: int,
        scalars: tuple[float, ...],
        dense: int,
        told: int = 0,
        addresses: Int64 | None = None,
    ) -> bytes:
        """Return `Store` of update.cuh.

        Args:
            first, count: of ranges; dense: see `_dense`; told: of `StepEnd`.
            addresses: of starts and widths, where they are not those of the step.
        """
        session, dense_pieces = self._session, -(-dense // PIECE)
        starts, widths = map(int, (self._addresses if addresses is None else addresses)[:2])
        return pack_store(
            session.values.address,
            session.gradients.address,
            session.moments.address if session.moments else 0,
            starts + first * NO_STARTS.itemsize,
            widths + first * NO_WIDTHS.itemsize,
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


def _blocks(pieces: int) -> int:
    return -(-pieces // PIECES_A_BLOCK)


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
            losses = self._losses(part)
            if loss:
                given = loss.to_bytes(8, byteorder) + losses
                self._session.launch_one("sum_loss_kernel", 1, SUMMERS, given)
            if packed is not None:
                given = packed.words + losses
                self._session.launch_one("pack_kernel", packed.blocks, THREADS, given)
        if not places:
            return
        session, taken = self._session, self._taken
        arena = session.arena.address
        if taken is None or taken.places is not places or taken.arena != arena:
            rows, real = int(self._addresses[-1]), session.dtype.itemsize
            taken = self._taken = TakenRows(places, real, arena, rows)
        taken.launch(session, to)

    def _losses(self, part: Part) -> bytes:
        """Return `Losses` of update.cu."""
        session, run = self._session, self._run
        return LOSSES.pack(
            session.arena.address + start_of(run, ("push", "loss")) * session.dtype.itemsize,
            int(self._words[WEIGHT]) if len(run.layout.weight) else 0,
            run.num_rows,
            part.loss_scale,
        )


def _dense(session: Session, e: StepEnd) -> int:
    """Return the elements of the dense part; with groups it is in ranges."""
    return 0 if e.groups else session.dense


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
