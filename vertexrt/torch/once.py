"""Functions of autograd that have one derivative, and refuse more by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vertexrt.errors import UsageError

FIRST = "gradients by backward() and torch.autograd.grad"
in_transform = torch._C._are_functorch_transforms_active
is_batch = torch._C._functorch.is_legacy_batchedtensor  # of `is_grads_batched`, as a tensor


class FirstOrder(torch.autograd.Function):
    """A function that no transform takes, whose backward is the last."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Apply it. Raises: UsageError, inside of a transform."""
        if in_transform():
            raise refuse_transform()
        return super().apply(*args)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse forward mode. Raises: UsageError."""
        action = "use torch.autograd.functional.jacobian"
        raise UsageError.at("torch", "forward mode of autograd", FIRST, action)


def refuse_transform() -> UsageError:
    """Return the error for a transform of functions."""
    got = "a network inside of a transform of torch.func, such as vmap, grad and jacrev"
    return UsageError.at("torch", got, FIRST, "loop over examples, or use is_grads_batched=True")


def refuse_twice() -> UsageError:
    """Return the error for the derivative of a gradient."""
    got, expected = "trying to differentiate twice", "networks have no second derivatives"
    return UsageError.at("torch", got, expected, "use gradients as numbers: leave create_graph out")


def each_of_batch(
    backward: Callable[..., tuple[Any, ...]], ctx: Any, d_outputs: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """Go back for each of a batch of gradients, which `is_grads_batched=True` gives at once."""
    outer = torch._C._vmapmode_decrement_nesting()
    try:
        given = [
            None if d is None else torch._remove_batch_dim(d, outer + 1, 1, 0) for d in d_outputs
        ]
        count = max(len(d) for d in given if d is not None)
        found = [
            backward(ctx, *[None if d is None else d[k % len(d)] for d in given])
            for k in range(count)
        ]
    finally:
        level = torch._C._vmapmode_increment_nesting()
    return tuple(
        [
            None if x[0] is None else torch._add_batch_dim(torch.stack(x), 0, level)
            for x in zip(*found, strict=True)
        ]
    )
