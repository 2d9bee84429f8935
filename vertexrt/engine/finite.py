"""Up to which size of gradients an update is known to be finite, before it runs.

Numbers that are not finite never reach a parameter or an optimizer's state: a step is refused when
its loss, or anything that its update would write, is not finite. Where the gradients of a piece are
within the limit that is found here, a rule cannot overflow whatever the parameters are; else it is
tried on a copy of the piece (`kernels.cpu.update.check`). So nearly always the price is one look at
the gradients, and the answer is always exact.

Let g be a gradient, p a value, and L the limit of |g| and, where there is decay, of |p|. With decay
at most 1, the operand d = g + decay * p of a rule is at most D = 2 L.

- Adding less than half of the last place of the largest number (`HALF_PLACE`) to a finite number
  leaves it finite. So p - u is finite if |u| is less than that, and a sum of squares, if d^2 is.
- u is lr * d (sgd), lr * v (momentum), lr * d / (sqrt(sum) + eps) (adagrad) or
  rate * m / (sqrt(v) * root + eps) (adam); of the divisors eps alone is counted on.
- |v| of momentum stays within 2 D / (1 - keep) if it was, and |m| of adam within 2 D: there, a step
  takes away more than it adds, roundings included. That bound is the `reach`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.engine.parameters import FloatArray

NOTHING = -1.0  # no gradient is within this limit
LIMIT = {4: 2.0**48, 8: 2.0**400}  # by the bytes of a number, float32 and float64
HALF_PLACE = {4: 2.0**103, 8: 2.0**970}
SLACK = 4.0  # for roundings
FORGETS = 2.0**-20  # what a moving average takes away must be more than roundings


def limit_of(
    rule: str,
    scalars: Sequence[float],
    moments: FloatArray,
    reach: float,
    dtype: np.dtype[Any],
) -> tuple[float, float]:
    """Return up to which size of gradients a rule needs no trial, and its reach after that.

    Args:
        scalars, moments: of `Update`.
        reach: a bound of the first moment, inf where none is known.
        dtype: of the store.
    Returns: `NOTHING`, where that is not known for any gradient; the reach holds if no piece was
        tried, and is 0 for a rule that needs none.
    """
    decay, lr, *rest = scalars
    limit, most = LIMIT[dtype.itemsize], HALF_PLACE[dtype.itemsize] / SLACK
    operand = 2.0 * limit
    safe, stays = decay <= 1.0, 0.0
    if rule == "sgd":
        step = lr * operand
    elif rule == "momentum":
        forgets = 1.0 - rest[0]
        safe &= forgets >= FORGETS
        stays = 2.0 * operand / forgets
        step = lr * stays
    elif rule == "adagrad":
        step = lr * operand / rest[0]
    elif rule == "adam":
        beta1, _, eps, shrink, steps = rest
        safe &= 1.0 - beta1 >= FORGETS and abs(shrink) <= 1.0
        stays = 2.0 * operand
        step = lr / (1.0 - beta1**steps) * stays / eps
    else:
        return NOTHING, math.inf
    if not safe or not step <= most:
        return NOTHING, math.inf
    if stays and reach > stays:  # loaded, or a piece was tried: look
        reach = float(np.abs(moments[0]).max(initial=0.0))
    return (limit, stays) if not stays or reach <= stays else (NOTHING, math.inf)
