"""The update that ends a step: what is asked of a backend, and what loops over a store do for it.

A store is a flat array, and `ranges`, int64 [R, 2], say which elements of it something is done to:
the first and the end of each range, in the order in which sums go, so that results repeat bit for
bit.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.ir.expressions import evaluate_arrays
from vertexrt.ir.updates import UpdateRule
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
FloatArray = npt.NDArray[np.floating[Any]]

LANES = 64  # partial sums of a loss or a norm; 32 or fewer are not vectorised (10 GB/s against 28)

Counts = tuple[Array, Array, Array]  # of updates, of versions of the values, of random draws

FOUND_NORM, FOUND_TRIED, FOUND_DONE = range(3)  # of `StoreUpdate.found`


class StoreUpdate(NamedTuple):
    """The update that ends a step.

    Attributes:
        rule: what is computed; scalars: float64 [groups, *], of each group of parameters the weight
            decay that is added to gradients, the factor of values, and those of the rule.
        parts: int64 [groups + 1], the first range of each group, and how many ranges there are.
        clip_norm: largest norm of the gradients, or 0 for any.
        limit: of `engine.update.limit_of`.
        values: [total]; gradients: [trained]; moments: [*, trained], the state in the order of the
            rule. Frozen parameters come last in `values`.
        ranges: what is updated, see the module.
        counts: int64 [1] each, which are one more when the parameters have changed, in one call.
        found: [3] float64, the norm where it is bounded, whether a range had to be tried, and
            whether the parameters have changed: they have, unless the norm or what the update would
            write is not finite.
    """

    rule: UpdateRule
    scalars: Array
    parts: Array
    clip_norm: float
    limit: float
    values: Array
    gradients: Array
    moments: Array
    ranges: Array
    counts: Counts
    found: Array


@compiled
def sum_loss(losses: Any, weight: Any) -> float:
    """Sum the losses of all rows in float64, as often as each counts, in a fixed order.

    Args:
        weight: [rows], or empty where each row counts once.
    """
    partial = np.zeros(LANES)
    for block in range(0, len(losses), LANES):
        x = losses[block : block + LANES]
        w = weight[block : block + LANES]
        for j in range(len(x)):
            partial[j] += np.float64(x[j]) * (np.float64(w[j]) if len(weight) else 1.0)
    total = 0.0
    for j in range(LANES):
        total += partial[j]
    return total


@compiled
def add_up(total: Any, other: Any, ranges: Any) -> None:
    """Add the gradients of another group, and clear them."""
    for begin, end in ranges:
        for i in range(begin, end):
            total[i] += other[i]
        other[begin:end] = 0.0


@compiled
def all_within(numbers: Any, ranges: Any, limit: float) -> bool:
    """Tell whether the size of every number is at most a limit."""
    fine = True
    for begin, end in ranges:
        fine = fine and within(numbers[begin:end], limit)
    return fine


@compiled
def clamp(gradients: Any, ranges: Any, most: float) -> None:
    """Set gradients that are above a size to it, signs as they were."""
    for begin, end in ranges:
        for i in range(begin, end):
            gradients[i] = max(min(gradients[i], most), -most)


def within(numbers: FloatArray, limit: float) -> bool:
    """Tell whether the size of every number is at most a limit; one that is nan is not."""
    fine, most = True, numbers.dtype.type(limit)
    for i in range(len(numbers)):
        fine &= bool(abs(numbers[i]) <= most)
    return fine


# A rule in NumPy: what loops of backends must make, in the same order of roundings.


def moved_at(update: StoreUpdate, at: Array, scale: float, scalars: Array) -> tuple[Array, Array]:
    """Return what an update makes of the elements at some positions, [N].

    Args:
        scale: factor of the gradients; scalars: of `StoreUpdate`, of a group.
    Returns: values [N] and state [slots, N].
    """
    rule, values = update.rule, update.values[at]
    dtype = values.dtype
    decay, shrink, *own = scalars.astype(dtype)
    names: dict[str, Any] = {f"s{k}": number for k, number in enumerate(own)}
    names |= {slot.name: row[at] for slot, row in zip(rule.state, update.moments, strict=True)}
    names["g"] = dtype.type(scale) * update.gradients[at] + decay * values
    names["value"] = shrink * values
    for name, expression in rule.lines:
        names[name] = np.asarray(evaluate_arrays(expression, names), dtype)
    kept = [names[slot.name] for slot in rule.state]
    return names["value"], np.array(kept, dtype).reshape(len(kept), len(at))


def elements(update: StoreUpdate) -> list[Array]:
    """Return the positions in the store of what an update changes, each once, by group."""
    return [
        np.concatenate([np.zeros(0, np.int64), *itertools.starmap(np.arange, update.ranges[a:b])])
        for a, b in itertools.pairwise(update.parts)
    ]


def factor(norm: float, clip_norm: float) -> float:
    """Return the factor that clips gradients of some norm; a `clip_norm` of 0 clips nothing."""
    return clip_norm / norm if 0.0 < clip_norm < norm else 1.0
