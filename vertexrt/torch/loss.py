"""The loss of a network as a tensor whose gradients are there already: one launch makes both.

`LossPass` is a function of autograd. Its forward runs what `Network.step` runs, but for the update;
its backward multiplies what that has left by the gradient that comes in, and hands out views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from vertexrt.api.arguments import check_loss
from vertexrt.engine.executor import Asked
from vertexrt.engine.model import REDUCTIONS
from vertexrt.engine.variant import Use
from vertexrt.errors import UsageError, nearest
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundNetwork
from vertexrt.torch.once import FirstOrder, each_of_batch, is_batch, refuse_twice
from vertexrt.torch.pulls import PlacedPulls, with_pulls
from vertexrt.torch.results import tensor_of
from vertexrt.torch.tokens import BatchTensors, graphs_in

LOSS = frozenset({"loss"})
NOT_IN_GRAPHS = (
    "[torch] module.loss in a graph of torch.compile; a call outside of it; leave fullgraph out, "
    "or write module(batch, outputs=['loss'])['loss'].sum()."
)


class LossCall(NamedTuple):
    """How a loss is asked for.

    Attributes:
        pulls: tensors by name; reduction: None for the network's own.
        training: dropout drops.
        sparse: gradients of tables are rows and their numbers.
    """

    pulls: Mapping[str, Tensor]
    reduction: str | None
    training: bool
    sparse: bool


@_disable_dynamo  # as optimizers are: it imports the compiler when it is first called
def loss_of(
    bound: BoundNetwork,
    parameters: Sequence[Tensor],
    batch: GraphBatch | BatchTensors,
    given: LossCall,
) -> Tensor:
    """Evaluate the loss of a bound network; gradients go to the parameters and to real pulls.

    Raises: UsageError, where F pushes no loss, and for a reduction that there is not.
    """
    _check(bound, given.reduction)
    pulls, tensors, wanted = PlacedPulls.of(bound, given.pulls)
    back = bound.wants(parameters) or bool(wanted)
    drops = given.training and bound.draws
    seed = int(torch.randint(2**32, (1,))) if drops else 0
    asked = Asked(_use(wanted, back, drops, bound.draws), graphs_in(batch), ("loss",), seed)
    reduction = given.reduction or bound.network.reduction
    what = AskedLoss(bound, asked, reduction, pulls, wanted, given.sparse)
    loss: Tensor = LossPass.apply(what, *parameters, *tensors)[0]
    return loss


def _check(bound: BoundNetwork, reduction: str | None) -> None:
    check_loss("loss", bound.network.program.name, bound.push_shapes)
    if reduction is not None and reduction not in REDUCTIONS:
        action = f"name one of these.{nearest(str(reduction), REDUCTIONS)}"
        expected = f"one of {', '.join(REDUCTIONS)}"
        raise UsageError.at("loss", f"reduction={reduction!r:.60}", expected, action)


@cache
def _use(wanted: tuple[str, ...], back: bool, drops: bool, draws: bool) -> Use:
    """Return what evaluates the loss; where F draws nothing, the use of `Network.step`."""
    if not back:
        return Use(LOSS, dropout=drops or None)
    return Use(
        LOSS, loss=True, pulls=frozenset(wanted), dropout=None if drops or not draws else False
    )


class AskedLoss(NamedTuple):
    """A loss that is asked for.

    Attributes:
        bound: the network; asked: what it is to evaluate, without the pulls that are tensors.
        reduction: of the loss.
        pulls: names of those that are tensors; wanted: of those that get a gradient.
        sparse: gradients of tables are rows and their numbers.
    """

    bound: BoundNetwork
    asked: Asked
    reduction: str
    pulls: tuple[str, ...]
    wanted: tuple[str, ...]
    sparse: bool


class LossPass(FirstOrder):
    """A pass that ends with the loss, and what its parameters and pulls get."""

    @staticmethod
    def forward(ctx: Any, what: AskedLoss, *given: Tensor) -> tuple[Tensor, ...]:
        """Evaluate the loss, and its gradients where they will be asked for.

        Args:
            given: parameters, then pulls.
        Returns: also the gradients, so that derivatives of them come back here.
        """
        bound, asked = what.bound, what.asked
        count = len(bound.names)
        with bound.holding(given[:count]):
            graphs = with_pulls(bound, asked.batch, what.pulls, given[count:])
            asked = asked._replace(batch=graphs)
            found = bound.forward_passes.loss(asked, what.reduction, what.sparse, bound.results)
        loss: Tensor = tensor_of(found.loss)
        if not asked.use.backward:
            return (loss,)
        values = [rows for _, rows in found.rows.values()]
        pulled = [found.pulled[name] for name in what.wanted]
        gradients = [tensor_of(x) for x in (found.flat, *values, *pulled)]
        ctx.what, ctx.at = what, {n: tensor_of(at) for n, (at, _) in found.rows.items()}
        ctx.save_for_backward(*gradients)
        ctx.set_materialize_grads(False)
        return loss, *gradients

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor | None, *d_gradients: Tensor | None) -> tuple[Any, ...]:
        """Return the gradient of each argument of `forward`: what it has left times the loss's.

        A product is new memory, so the pass may be gone back through again while autograd keeps it.
        """
        for d in d_gradients:
            if d is not None:
                raise refuse_twice()
        what, tables = ctx.what, ctx.at
        if d_loss is None:
            return (None,) * (1 + len(what.bound.names) + len(what.pulls))
        if is_batch(d_loss):
            return each_of_batch(LossPass.backward, ctx, (d_loss,))
        flat, *others = [each * d_loss for each in ctx.saved_tensors]
        rows = {name: (at, others.pop(0)) for name, at in tables.items()}
        of_pulls = dict(zip(what.wanted, others, strict=True))
        bound: BoundNetwork = what.bound
        return None, *bound.parts_of(flat, rows), *[of_pulls.get(name) for name in what.pulls]
