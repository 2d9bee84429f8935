"""How a step ends on a device: with the loss, the norm of the gradients, and an update.

A rule is a struct in CUDA, of which `update.cuh` makes loops over pieces. What ends a step is
launched together; an update may also end no step: by gradients which were added up before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from sys import byteorder
from textwrap import indent
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Destination, Part, Run
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Touched, Update, updated_ranges
from vertexrt.ir.expressions import CUDA, translate
from vertexrt.ir.updates import RULES, UpdateRule
from vertexrt.kernels.cuda.compile import FOLDER
from vertexrt.kernels.cuda.device import address_of
from vertexrt.kernels.cuda.pack import WEIGHT
from vertexrt.scheduler.rows import ORDER

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.session import Session

Int64 = npt.NDArray[np.int64]
Found = npt.NDArray[np.float64]  # [FOUND]

PIECE, SUMMERS, THREADS, PIECES_A_BLOCK = 1024, 1024, 256, 8  # of update.cu
MOST_SCALARS = 16  # of update.cuh
STORE, FINISH = Struct(f"12q{MOST_SCALARS}d"), Struct("6q2d")  # its structs
NO_SCALARS = (0.0,) * MOST_SCALARS
NO_END = bytes(STORE.size), bytes(FINISH.size)  # of `end_words`, where a step has none
FOUND = 8  # `Record` of processor.cuh
LOSS, NORM, _, REFUSED, GAVE_UP, GAVE_UP_AT, GAVE_UP_INSTRUCTION, REACHED = range(FOUND)
UNTOLD = np.array([math.nan, *[0.0] * (FOUND - 1)])  # a loss that is no number is refused
NO_LIST = np.zeros(0, np.int32)


@dataclass(slots=True)
class StepEnd:
    """How a step ends.

    Attributes:
        loss_at: element of the arena where the losses start; rows: how many; weighted: they have
            weights; loss_scale: factor of their sum.
        rule, scalars: see `layout.StoreUpdate`; clip_norm: 0, where nothing is clipped.
        ranges: int64 [R, 2], flat ranges of the rows of tables that have a gradient; with groups,
            of all that is updated, group by group.
        dense: elements of the dense part; 0 with groups, where it is in ranges.
        pieces: how many of these and of ranges there are, each for a warp.
        clip_value: largest size of a gradient; 0, where none is clipped so.
        groups: ranges and scalars of each; none, where all parameters are updated alike.
        found: of the host: UNTOLD until it is known what the step has found, then that; None until
            the step is made ready. told: its address, where the update copies it; 0, where nothing
            is updated, and it is downloaded.
    """

    loss_at: int
    rows: int
    weighted: bool
    loss_scale: float
    rule: UpdateRule
    scalars: tuple[float, ...]
    clip_norm: float
    ranges: Int64
    dense: int
    pieces: int
    clip_value: float = 0.0
    groups: tuple[GroupEnd, ...] = ()
    found: Found | None = None
    told: int = 0

    @property
    def done(self) -> bool:
        """Tell whether it has been done, once the device does nothing more."""
        found = self.found
        return found is not None and not (found[REFUSED] or math.isnan(found[LOSS]))

    @property
    def apart(self) -> bool:
        """Tell whether it is more than a persistent kernel ends with."""
        return bool(self.groups) or self.clip_value > 0.0

    def tell_to(self, found: Found, at: int) -> None:
        """Let the update write what was found to memory of the host, if it updates anything.

        Until the update has run, `found` has a loss that is no number, and no refusal.

        Args:
            at: address of `found`, which is pinned.
        """
        found[:] = UNTOLD
        self.found, self.told = found, at if self.pieces else 0

    def pad(self, most: int) -> None:
        """Add ranges of no elements, up to so many."""
        none = np.zeros((max(0, most - len(self.ranges)), 2), np.int64)
        self.ranges, self.pieces = np.concatenate([self.ranges, none]), self.pieces + len(none)


def starts_and_widths(ranges: Int64) -> tuple[Int64, npt.NDArray[np.int32]]:
    """Return where ranges [R, 2] begin, and how many elements each has."""
    return ranges[:, 0].copy(), np.diff(ranges)[:, 0].astype(np.int32)


class GroupEnd(NamedTuple):
    """A group of parameters at the end of a step: its ranges, of `StepEnd.ranges`, and scalars."""

    first: int
    ranges: int
    scalars: tuple[float, ...]


def end_of(
    store: ParameterStore,
    update: Update,
    rows: Touched,
    loss: tuple[int, int, bool, float] = (0, 0, False, 0.0),
) -> StepEnd:
    """Return how a step ends with an update.

    Args:
        rows: of tables, those that are touched; loss: the first fields of `StepEnd`.
    """
    ranges, groups = [updated_ranges(store, () if update.groups else store.sparse, rows)], []
    for group in update.groups:
        first = sum(map(len, ranges))
        ranges.append(updated_ranges(store, group.names, rows, PIECE))
        groups.append(GroupEnd(first, len(ranges[-1]), update.scalars_of(group)))
    every = np.concatenate(ranges) if groups else ranges[0]
    dense = 0 if groups else store.dense_size
    return StepEnd(
        *loss,
        update.rule,
        update.scalars_of(update.whole),
        update.clip_norm or 0.0,
        every,
        dense,
        -(-dense // PIECE) + len(every),
        update.clip_value or 0.0,
        tuple(groups),
    )


def ending_of(model: CompiledModel, run: Run, update: Update, scale: float) -> StepEnd:
    """Return how a step ends with an update, and with the loss of a run times a scale."""
    start = int(run.layout.plan.base[run.variant.table.numbers["push", "loss"]])
    loss = start, run.num_rows, bool(len(run.layout.weight)), scale
    return end_of(model.store, update, model.touched(run), loss)


LOSSES = Struct("3qd")  # of update.cu
FLAGS = Struct("2q")
TAKEN, MOST_TAKEN = Struct("6q"), 4  # a tensor whose rows a launch copies, and how many it does
NO_ROWS = bytes(TAKEN.size * MOST_TAKEN)
NO_LOSSES = bytes(LOSSES.size)


class Joined(NamedTuple):
    """Gradients that are added up in the store before the end of a step of several processes.

    Attributes:
        words: what `Joining` of update.cu has between its flags and the store.
        told: what it has after them.
        addresses: of starts and widths of the rows that are packed; rows: how many.
    """

    words: bytes
    told: bytes
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
    flags = FLAGS.pack(not e.apart and e.clip_norm > 0, not e.apart and not e.clip_norm)
    blocks = 1 + _blocks(-(-session.dense // PIECE) + joined.rows)
    words = store + joined.words + flags + joined.told
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
                given = to.loss.to_bytes(8, byteorder) + losses
                found.append(session.kernel("sum_loss_kernel", 1, SUMMERS, given))
            if to.packed is not None:
                given = to.packed.words + losses
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


def struct_name(rule: UpdateRule) -> str:
    """Return the name of a rule's struct."""
    return f"Rule_{rule.name}"


def struct_of(rule: UpdateRule) -> str:
    """Write the struct of a rule: how many slots it has, and one element's step."""
    assert 2 + len(rule.scalars) <= MOST_SCALARS, f"{rule.name}: make Store longer"
    slots = [slot.name for slot in rule.state]
    there = ("value", "g", *slots)
    names = {f"s{k}": f"real(s[{k + 2}])" for k in range(len(rule.scalars))}
    names |= {name: f"{name}_" for name in (*there, *dict(rule.lines))}
    lines = [f"real {slot}_ = state[{k}];" for k, slot in enumerate(slots)]
    for name, expression in rule.lines:
        kind = "" if name in there else "const real "
        lines.append(f"{kind}{name}_ = {translate(expression, names, CUDA)};")
    lines += [f"state[{k}] = {slot}_;" for k, slot in enumerate(slots)]
    body = indent("\n".join(lines), " " * 8)
    return (
        f"struct {struct_name(rule)} {{\n"
        f"    static constexpr int SLOTS = {len(slots)};\n"
        "    __device__ __forceinline__ static void step(\n"
        "        real& value_, real g_, real* state, const double* s) {\n"
        f"{body}\n    }}\n}};\n"
    )


def structs(rules: Sequence[UpdateRule] = RULES) -> str:
    """Write the structs of rules."""
    return "".join(struct_of(rule) for rule in rules)


def kernels() -> str:
    """Write the kernels of all rules: one that joins, one that checks, and one that updates."""
    return "".join(
        f"VRT_KERNEL({what}_{rule.name}, {struct}, {THREADS}) "
        f"{{ {what}<{struct_name(rule)}>({given}); }}\n"
        for rule in RULES
        for what, struct, given in (
            ("join", "Joining", "a"),
            ("check", "Store", "a, FIRST_PIECE"),
            ("update", "Store", "a, FIRST_PIECE"),
        )
    )


def update_cases(rules: Sequence[UpdateRule]) -> list[str]:
    """Write the instructions of a persistent kernel that check and update by a rule, if any."""
    lines = []
    for name in map(struct_name, rules):
        check = f"[&](long long first) {{ check<{name}>(a.o.store, first); }}"
        lines.append(f"    case CHECK: for_each_piece(a.o, {check}); break;")
        lines.append(f"    case UPDATE: update_staged<{name}>(a.o.store); break;")
    return lines


@cache
def update_source() -> str:
    """Return the kernels at the end of a step; each rule has those that check and that update."""
    return (FOLDER / "update.cu").read_text() + structs() + kernels()
