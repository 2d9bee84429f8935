"""Launch the end of a step on a device: the loss, the norm of the gradients, the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Destination, Part, Run
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Update
from vertexrt.kernels.cuda.device import address_of
from vertexrt.kernels.cuda.pack import WEIGHT
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import (
    FOUND,
    NO_SCALARS,
    PIECE,
    PIECES_A_BLOCK,
    SUMMERS,
    THREADS,
    Found,
    StepEnd,
    end_of,
    starts_and_widths,
)
from vertexrt.kernels.cuda.structs import FINISH, JOINING, LOSSES, STORE, SUMMED, TAKEN
from vertexrt.scheduler.rows import ORDER

Int64 = npt.NDArray[np.int64]

MOST_TAKEN = 4  # tensors whose rows a launch copies
NO_ROWS = bytes(TAKEN.size * MOST_TAKEN)


class Joined(NamedTuple):
    """Gradients that are added up in the store before the end of a step of several processes.

    Attributes:
        sources: what `Joining` has between the store and its flags; told: what it has after them.
        addresses: of starts and widths of the rows that are packed; rows: how many.
    """

    sources: tuple[int, int, int]
    told: tuple[int, ...]
    addresses: Int64
    rows: int


def end_words(session: Session, e: StepEnd, weight: int, addresses: Int64) -> tuple[bytes, bytes]:
    """Return `Store` and `Finish` of update.cuh for the end of a step.

    Args:
        weight: address of the weights of rows; addresses: of `Session.stage`.
    """
    make_room(session, e)
    store = _store(session, addresses, (0, len(e.ranges)), e.scalars, e.dense, e.told)
    return store, FINISH.pack(
        session.arena.address + e.loss_at * session.dtype.itemsize,
        weight if e.weighted else 0,
        session.squares.address,
        session.found.address,
        e.rows,
        e.pieces if e.clip_norm else 0,
        e.loss_scale,
        e.clip_norm,
    )


def finish_step(
    session: Session, e: StepEnd, weight: int, addresses: Int64, joined: Joined | None = None
) -> list[bytes]:
    """Return launches of the end of a step: the loss, the norm, the update of each group.

    Args:
        weight, addresses: of `end_words`.
        joined: gradients of several processes, which are added up first. The same launch then sums
            their squares, or checks them, unless the end is `apart`.
    """
    store, finish = end_words(session, e, weight, addresses)
    blocks, seen, kernel = _blocks(e.pieces), joined is not None and not e.apart, session.kernel
    found, what = [] if joined is None else [_join(session, e, store, joined)], ["update"]
    if e.clip_norm or not seen:  # what clips gradients and decides whether the step counts
        if e.clip_value:
            clamp = _store(session, addresses, (0, len(e.ranges)), (e.clip_value,), e.dense)
            found.append(kernel("clamp_kernel", blocks, THREADS, clamp))
        if e.clip_norm and not seen:
            found.append(kernel("sum_squares_kernel", blocks, THREADS, store))
        found.append(kernel("finish_step_kernel", 1, SUMMERS, finish))
        what = ["check", "update"]
    stores = [
        (_blocks(count), _store(session, addresses, (first, count), scalars, 0, e.told))
        for first, count, scalars in e.groups
    ]
    for name in what:  # of all groups at once: a step is done, or it is not
        for own, words in stores or [(blocks, store)]:
            found.append(kernel(f"{name}_{e.rule.name}", own, THREADS, words))
    return found


def _join(session: Session, e: StepEnd, store: bytes, joined: Joined) -> bytes:
    """Return the launch that joins, and unless the end is apart sums squares, or checks."""
    if e.groups:  # whose ranges are not those that are packed
        store = _store(session, joined.addresses, (0, joined.rows), e.scalars, session.dense)
    flags = not e.apart and e.clip_norm > 0, not e.apart and not e.clip_norm
    blocks = 1 + _blocks(-(-session.dense // PIECE) + joined.rows)
    words = JOINING.pack(store, *joined.sources, *flags, *joined.told)
    return session.kernel(f"join_{e.rule.name}", blocks, THREADS, words)


def _store(
    session: Session,
    addresses: Int64,
    ranges: tuple[int, int],
    scalars: tuple[float, ...],
    dense: int,
    told: int = 0,
) -> bytes:
    """Return `Store` of update.cuh.

    Args:
        addresses: of starts and widths; ranges: the first, and how many.
        dense, told: of `StepEnd`.
    """
    (first, count), pieces = ranges, -(-dense // PIECE)
    return STORE.pack(
        session.values.address,
        session.gradients.address,
        session.moments.address if session.moments else 0,
        int(addresses[0]) + 8 * first,
        int(addresses[1]) + 4 * first,
        session.squares.address,
        session.found.address,
        told,
        session.trained,
        dense,
        pieces,
        pieces + count,
        *scalars,
        *NO_SCALARS[len(scalars) :],
    )


def _blocks(pieces: int) -> int:
    return -(-pieces // PIECES_A_BLOCK)


def leave_results(
    session: Session, run: Run, words: Int64, addresses: Int64
) -> Callable[[Part], list[bytes]]:
    """Return a function: of a part, launches that write what its `to` asks for.

    That is the loss, gradients, rows of pushes. Launches of the last part are used again where the
    next one asks for the same.

    Args:
        words: of the run; addresses: of `Session.stage`.
    """
    last = Destination(), 0, 1.0, list[bytes]()
    layout, numbers = run.layout, run.variant.table.numbers  # a kept run keeps the function

    def launches_of(part: Part) -> list[bytes]:
        nonlocal last
        to, arena, real = part.to, session.arena.address, session.dtype.itemsize
        if to is last[0] and (arena, part.loss_scale) == last[1:3]:
            return last[3]
        found: list[bytes] = []
        if to.loss or to.packed is not None:
            losses = LOSSES.pack(
                arena + int(layout.plan.base[numbers["push", "loss"]]) * real,
                int(words[WEIGHT]) if len(layout.weight) else 0,
                int(layout.extents[ORDER, 1]),
                part.loss_scale,
            )
            if to.loss:
                given = SUMMED.pack(to.loss, losses)
                found.append(session.kernel("sum_loss_kernel", 1, SUMMERS, given))
            if to.packed is not None:
                given = to.packed.words[: -LOSSES.size] + losses
                found.append(session.kernel("pack_kernel", to.packed.blocks, THREADS, given))
        places, copies = to.places, to.copies
        for k in range(0, len(places), MOST_TAKEN):
            taken = b""
            blocks, own = 0, slice(k, k + MOST_TAKEN)
            for (first, size, start, length), copy in zip(places[own], copies[own], strict=True):
                from_, rows = arena + first * real, int(addresses[-1]) + 4 * start
                taken += TAKEN.pack(copy, from_, rows, length * size, size, blocks)
                blocks += -(-length * size // THREADS)
            taken += NO_ROWS[len(taken) :]
            found.append(session.kernel("take_rows_kernel", blocks, THREADS, taken))
        last = to, arena, part.loss_scale, found  # when they are all there: a signal may come
        return found

    return launches_of


def make_room(session: Session, e: StepEnd) -> None:
    """Make room for the squares of what is updated."""
    session.squares = session.memory.scratch(session.squares, 8 * e.pieces)


def update_apart(
    session: Session, store: ParameterStore, update: Update, begin: Callable[[StepEnd], object]
) -> Found:
    """Update by the gradients of the store as a step does, and wait.

    Args:
        begin: is told how it ends, before that is launched.
    Returns: what a step finds, see `step_end`: the norm, and whether the update was refused.
    """
    memory = session.memory
    end = end_of(store, update, store.touched)
    memory.upload(session.gradients, store.gradients)
    starts, widths = starts_and_widths(end.ranges)
    ranges = np.concatenate([starts.view(np.uint8), widths.view(np.uint8)])
    held = memory.take(max(ranges.nbytes, 16), "rows of tables")
    if ranges.nbytes:
        memory.upload(held, ranges)
    at, found = held.address, memory.pinned(8 * FOUND)
    end.tell_to(found.view(np.float64), address_of(found))
    begin(end)
    ranges_at = np.array((at, at + starts.nbytes), np.int64)
    session.launch_each(finish_step(session, end, 0, ranges_at))
    if not end.told:
        session.device.download(found, session.found.address)
    memory.synchronize()
    return found.view(np.float64)
