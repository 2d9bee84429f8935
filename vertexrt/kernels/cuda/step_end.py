"""How a step ends on a device: with the loss, the norm of the gradients, and an update.

An update rule is a struct in CUDA, of which `update.cuh` makes loops over pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import indent
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Touched, Update, updated_ranges
from vertexrt.ir.expressions import CUDA, translate
from vertexrt.ir.updates import RULES, UpdateRule
from vertexrt.kernels.cuda.compile import FOLDER
from vertexrt.kernels.cuda.structs import MOST_SCALARS, RECORD

Int64 = npt.NDArray[np.int64]
Found = npt.NDArray[np.float64]  # [FOUND]

PIECE, SUMMERS, THREADS, PIECES_A_BLOCK = 1024, 1024, 256, 8  # of update.cu
NO_SCALARS = (0.0,) * MOST_SCALARS
FOUND = RECORD.size // 8
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
