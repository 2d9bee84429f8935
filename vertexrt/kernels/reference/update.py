"""Update rules in NumPy: what the other backends' loops must make, in the same order of roundings.

All elements of a store that a step updates are gathered, moved and, if all of them are finite,
written back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.store_update import (
    FOUND_DONE,
    FOUND_NORM,
    FOUND_TRIED,
    StoreUpdate,
    elements,
    factor,
    moved_at,
)
from vertexrt.native.at_once import write_at_once

Array = npt.NDArray[Any]


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
