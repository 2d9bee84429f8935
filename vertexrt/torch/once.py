"""Gradients that have no derivatives, and say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

TWICE = b"trying to differentiate twice: networks of vertexrt have no second derivatives"

Backward = Callable[..., tuple[Any, ...]]


def once(gradients: Backward) -> Backward:
    """Let the derivative of what a function of autograd returns be refused.

    `once_differentiable` does so only where a gradient that comes in has a history. A penalty of
    gradients, of `loss.sum()` say, would have no effect then, and nothing would say so.
    """

    @wraps(gradients)
    def refusing(ctx: Any, *given: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            found = gradients(ctx, *given)
        refuse = torch._C._functions.DelayedError(TWICE, len(found))
        return tuple(refuse(*[None if x is None else x.detach().requires_grad_() for x in found]))

    return refusing
