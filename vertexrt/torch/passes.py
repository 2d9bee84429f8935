"""Passes of a network and their ways back: what is asked, and one function of autograd for both.

`Pass` is used where no compiler looks; the ops of `ops.py` ask for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vertexrt.api.forward_passes import ForwardPass
from vertexrt.engine.executor import Asked
from vertexrt.engine.results import Gradients
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundNetwork, sparse_gradient
from vertexrt.torch.call import Call
from vertexrt.torch.chains import wanted_of
from vertexrt.torch.once import (
    FirstOrder,
    each_of_batch,
    in_transform,
    is_batch,
    refuse_transform,
    refuse_twice,
)
from vertexrt.torch.prepared import find_prepared, prepare_again, prepared_for
from vertexrt.torch.pulls import with_pulls
from vertexrt.torch.results import tensor_of
from vertexrt.torch.seeds import Orders, seed_terms


class AskedPass(NamedTuple):
    """A pass that is asked for.

    Attributes:
        bound: the network; call: what is asked of it; graphs: the batch.
        seed: of what is drawn.
        orders: of the outputs; nothing, where it is that of the vertices for all.
        by: of `WantedRows`, for those that are ordered.
    """

    bound: BoundNetwork
    call: Call
    graphs: GraphBatch
    seed: int
    orders: Orders = ()
    by: Tensor | None = None

    def evaluate(self, pulls: Sequence[Tensor]) -> tuple[ForwardPass | None, list[Tensor]]:
        """Evaluate the network, whose parameters are held: see `BoundNetwork.holding`.

        Returns: what keeps the pass, if the call says so; the outputs.
        """
        bound, call, graphs, seed, orders, by = self
        use = bound.use(call.outputs, call.wanted if call.keep else None, call.drop)
        prepared = find_prepared(bound, use, graphs, (call, orders))
        if prepared is not None and prepared.takes(graphs, pulls):
            return prepared.evaluate(pulls, by, seed)
        order = None if by is None else by.data_ptr() if bound.stays else by.numpy()
        each = zip(call.outputs, self._orders(), strict=True)
        wanted = [wanted_of(name, rows, order) for name, rows in each]
        batch = with_pulls(bound, graphs, call.pulls, pulls)
        kept, found = bound.evaluate(Asked(use, batch, call.outputs, seed), wanted)
        if batch.form is graphs.form:
            prepare_again(bound, use, (graphs, batch), (call, orders))
        return kept, [tensor_of(each) for each in found]

    def back(
        self,
        d_outputs: Sequence[Tensor | None],
        given: Sequence[Tensor],
        kept: ForwardPass | None,
    ) -> Gradients:
        """Go back through a pass that is kept, or that is repeated.

        Args:
            given: parameters, then pulls.
        """
        with self.bound.holding(given[: len(self.bound.names)]):
            return self._go_back(d_outputs, self._made(given, kept))

    def gradients(
        self,
        d_outputs: Sequence[Tensor | None],
        given: Sequence[Tensor],
        kept: ForwardPass | None,
    ) -> list[Tensor | None]:
        """Do what `back` does; return the gradients of all parameters and of all pulls."""
        bound, call = self.bound, self.call
        with bound.holding(given[: len(bound.names)]):
            made = self._made(given, kept)
            prepared = prepared_for(made, (call, self.orders))
            if prepared is not None and not (call.sparse and bound.tables):
                return prepared.back(made, d_outputs, self.by)
            found = self._go_back(d_outputs, made)
        return _by_input(self, found)

    def _made(self, given: Sequence[Tensor], kept: ForwardPass | None) -> ForwardPass:
        """Return the pass, if it is kept, or make it again."""
        passes = self.bound.forward_passes
        if kept is not None:
            passes.check(kept)
            if not kept.done:
                return kept
        again, _ = self.evaluate(given[len(self.bound.names) :])
        assert again is not None, "the call keeps it"
        return again

    def _go_back(self, d_outputs: Sequence[Tensor | None], made: ForwardPass) -> Gradients:
        bound, call = self.bound, self.call
        has = [d is not None for d in d_outputs]
        terms = seed_terms(bound, call, self._orders(), self.graphs.num_vertices, has)
        seeds = {name: each.of(bound, d_outputs, self.by) for name, each in terms.items()}
        return bound.forward_passes.go_back(made, seeds, 1.0, call.sparse)

    def _orders(self) -> Orders:
        """Return the order of each output."""
        return self.orders or (None,) * len(self.call.outputs)


def _by_input(asked: AskedPass, found: Gradients) -> list[Tensor | None]:
    """Return the gradients of all parameters and of all pulls, None where there is none."""
    bound, call, rows = asked.bound, asked.call, found.rows
    shapes = bound.store.shapes
    of_parameters = [
        sparse_gradient(tensor_of(rows[name][0]), tensor_of(rows[name][1]), shapes[name])
        if name in rows
        else tensor_of(found.parameters[name])
        if name in found.parameters
        else None
        for name in bound.names
    ]
    of_pulls = [tensor_of(found.pulled[n]) if n in call.wanted else None for n in call.pulls]
    return of_parameters + of_pulls


class Pass(FirstOrder):
    """A pass and its way back."""

    @staticmethod
    def forward(ctx: Any, asked: AskedPass, *given: Tensor) -> tuple[Tensor, ...]:
        """Evaluate a network.

        Args:
            given: parameters, then pulls.
        """
        count = len(asked.bound.names)
        with asked.bound.holding(given[:count]):
            kept, found = asked.evaluate(given[count:])
        if kept is not None:
            ctx.asked, ctx.kept = asked, kept
            ctx.save_for_backward(*given)
            ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
        """Return the gradient of each argument of `forward`."""
        if in_transform():
            raise refuse_transform()
        for d in d_outputs:
            if d is not None and is_batch(d):
                return each_of_batch(Pass.backward, ctx, d_outputs)
        if torch.is_grad_enabled():
            return None, *WayBackOf.apply(ctx, *d_outputs, *ctx.saved_tensors)
        return None, *ctx.asked.gradients(d_outputs, ctx.saved_tensors, ctx.kept)


class WayBackOf(FirstOrder):
    """The way back of a pass as a function of all that it depends on, which has no derivative."""

    @staticmethod
    def forward(ctx: Any, of: Any, *given: Any) -> tuple[Tensor | None, ...]:
        """Go back.

        Args:
            of: the pass; given: gradients of its outputs, then what it has saved.
        """
        count = len(of.asked.call.outputs)
        return tuple(of.asked.gradients(given[:count], given[count:], of.kept))

    @staticmethod
    def backward(ctx: Any, *d_gradients: Any) -> Any:
        """Refuse. Raises: UsageError."""
        raise refuse_twice()
