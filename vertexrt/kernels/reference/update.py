"""Update rules in NumPy: what the other backends' loops must make, in the same order of roundings.

All elements of a store that a step updates are gathered, moved and, if all of them are finite,
written back.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.ir.numpy_arithmetic import evaluate_arrays
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.layout import FOUND_DONE, FOUND_NORM, FOUND_TRIED, StoreUpdate
from vertexrt.native.at_once import write_at_once

Array = npt.NDArray[Any]


def moved(
    rule: UpdateRule, values: Array, gradients: Array, state: Array, scale: float, scalars: Array
) -> tuple[Array, Array]:
    """Return what a rule makes of elements.

    Args:
        values, gradients: [N]; state: [slots, N].
        scale: factor of the gradients; scalars: of `StoreUpdate`.
    Returns: values [N] and state [slots, N].
    """
    dtype = values.dtype
    decay, shrink, *own = scalars.astype(dtype)
    names: dict[str, Any] = {f"s{k}": number for k, number in enumerate(own)}
    names |= {slot.name: kept for slot, kept in zip(rule.state, state, strict=True)}
    names["g"] = dtype.type(scale) * gradients + decay * values
    names["value"] = shrink * values
    for name, expression in rule.lines:
        names[name] = np.asarray(evaluate_arrays(expression, names), dtype)
    kept = [names[slot.name] for slot in rule.state]
    return names["value"], np.array(kept, dtype).reshape(state.shape)


def elements(update: StoreUpdate) -> list[Array]:
    """Return the positions in the store of what an update changes, each once, by group."""
    rows = [update.listed[first:last] for first, last in update.spans[:, 0]]
    found = [
        (start + each[:, None] * width + np.arange(width)).reshape(-1)
        for (start, width), each in zip(update.pieces, rows, strict=True)
    ]
    return [
        np.concatenate([np.zeros(0, np.int64), *found[first:last]])
        for first, last in itertools.pairwise(update.parts)
    ]


def moved_at(update: StoreUpdate, at: Array, scale: float, scalars: Array) -> tuple[Array, Array]:
    """Return what an update makes of the elements at some positions; see `moved`."""
    e = update
    return moved(e.rule, e.values[at], e.gradients[at], e.moments[:, at], scale, scalars)


def factor(norm: float, clip_norm: float) -> float:
    """Return the factor that clips gradients of some norm; a `clip_norm` of 0 clips nothing."""
    return clip_norm / norm if 0.0 < clip_norm < norm else 1.0


def finish(update: StoreUpdate) -> None:
    """Do an update: nothing changes unless the norm and all that would be written are finite."""
    e, groups = update, elements(update)
    gradients = e.gradients[np.concatenate(groups)].astype(np.float64)
    norm = float(np.linalg.norm(gradients)) if e.clip_norm > 0.0 else 0.0
    e.found[FOUND_NORM] = norm
    if not math.isfinite(norm):
        return
    e.found[FOUND_TRIED] = 1.0
    scale = factor(norm, e.clip_norm)
    made = [moved_at(e, at, scale, own) for at, own in zip(groups, e.scalars, strict=True)]
    if all(np.isfinite(numbers).all() for each in made for numbers in each):
        whole = [array.copy() for array in (e.values, e.moments, e.gradients)]
        for at, (values, state) in zip(groups, made, strict=True):
            whole[0][at], whole[1][:, at], whole[2][at] = values, state, 0.0
        pairs = zip((e.values, e.moments, e.gradients), whole, strict=True)
        e.found[FOUND_DONE] = 1.0
        write_at_once([*pairs, *((count, count + 1) for count in e.counts)])
