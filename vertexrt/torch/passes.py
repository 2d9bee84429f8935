"""Passes of a network and their ways back: what is asked, and one function of autograd for both.

`Pass` is used where no compiler looks; the ops of `ops.py` ask for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vertexrt.api.forward_passes import ForwardOutputs
from vertexrt.engine.executor import Asked
from vertexrt.engine.results import Gradients, PushRows
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundNetwork, sparse_gradient
from vertexrt.torch.chains import WantedRows
from vertexrt.torch.pulls import with_pulls
from vertexrt.torch.results import tensor_of

BETWEEN_NAMES, BETWEEN_FIELDS = "\n", "\n\n"


class Call(NamedTuple):
    """What is asked of a network.

    Attributes:
        number: of the binding.
        pulls: names of those that are tensors; outputs: names of pushes.
        wanted: names of the pulls that get a gradient.
        keep: for the way back; drop: let dropout drop.
        sparse: gradients of tables are rows and their numbers.
    """

    number: int
    pulls: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    keep: bool
    drop: bool
    sparse: bool = False

    def text(self) -> str:
        """Write it as text."""
        number, pulls, outputs, wanted, *flags = self
        lists = [BETWEEN_NAMES.join(each) for each in (pulls, outputs, wanted)]
        return BETWEEN_FIELDS.join([str(number), *lists, *(str(int(flag)) for flag in flags)])

    @staticmethod
    @lru_cache
    def of(text: str) -> Call:
        """Read it from text; those of the last calls are kept."""
        number, *lists, keep, drop, sparse = text.split(BETWEEN_FIELDS)
        pulls, outputs, wanted = (
            tuple(each.split(BETWEEN_NAMES)) if each else () for each in lists
        )
        return Call(int(number), pulls, outputs, wanted, keep == "1", drop == "1", sparse == "1")


class AskedPass(NamedTuple):
    """A pass that is asked for.

    Attributes:
        bound: the network; call: what is asked of it; graphs: the batch.
        seed: of what is drawn.
        orders: of the outputs, None for that of the vertices; nothing, where it is that of all.
    """

    bound: BoundNetwork
    call: Call
    graphs: GraphBatch
    seed: int
    orders: Sequence[WantedRows | None] = ()

    def evaluate(self, pulls: Sequence[Tensor]) -> tuple[ForwardOutputs | None, list[Tensor]]:
        """Evaluate the network, whose parameters are held: see `BoundNetwork.holding`.

        Returns: what keeps the pass, if the call says so; the outputs.
        """
        bound, call = self.bound, self.call
        wanted = [
            PushRows(name) if rows is None else rows.of(name, bound.stays)
            for name, rows in zip(call.outputs, self._orders(), strict=True)
        ]
        batch = with_pulls(bound, self.graphs, call.pulls, pulls)
        use = bound.use(call.outputs, call.wanted if call.keep else None, call.drop)
        kept, found = bound.evaluate(Asked(use, batch, call.outputs, self.seed), wanted)
        return kept, [tensor_of(each) for each in found]

    def back(
        self,
        d_outputs: Sequence[Tensor | None],
        given: Sequence[Tensor],
        kept: ForwardOutputs | None,
    ) -> Gradients:
        """Go back through a pass that is kept, or that is repeated.

        Args:
            given: parameters, then pulls.
        """
        bound, call = self.bound, self.call
        count, passes = len(bound.names), bound.forward_passes
        with bound.holding(given[:count]):
            seeds = {name: self._seed(name, d_outputs) for name in sorted(set(call.outputs))}
            if kept is None or not passes.keeps(kept):
                kept, _ = self.evaluate(given[count:])
            made = passes.find(kept, bound.results)
            return passes.go_back(made, seeds, 1.0, call.sparse)

    def _orders(self) -> Sequence[WantedRows | None]:
        """Return the order of each output."""
        return self.orders or [None] * len(self.call.outputs)

    def _seed(self, name: str, d_outputs: Sequence[Tensor | None]) -> Any:
        """Return the gradient of a push, [V, *shape], given those of the outputs."""
        bound, each = self.bound, zip(self.call.outputs, self._orders(), d_outputs, strict=True)
        terms = [(d, rows) for output, rows, d in each if output == name and d is not None]
        shape = self.graphs.num_vertices, *bound.push_shapes[name]
        if not terms:
            return bound.zeros(shape)
        d, wanted = terms[0]
        row_of = None if wanted is None else wanted.rows.row_of
        if len(terms) > 1 or (wanted is not None and row_of is None):
            return bound.passed(_added(terms, shape))
        return bound.passed(d, row_of)


def _added(terms: Sequence[tuple[Tensor, WantedRows | None]], shape: tuple[int, ...]) -> Tensor:
    """Return the gradient of a push, [V, *shape], given those of several outputs, or of a part."""
    total = terms[0][0].new_zeros(shape)
    for d, rows in terms:
        if rows is None:
            total += d
        else:
            total.index_add_(0, rows.here(d.device), d.reshape(-1, *shape[1:]))
    return total


def by_input(asked: AskedPass, found: Gradients) -> list[Tensor | None]:
    """Return the gradients of all parameters and of all pulls, None where there is none."""
    bound, call = asked.bound, asked.call
    of_parameters = [
        _of_rows(found.rows[name], bound.store.shapes[name])
        if name in found.rows
        else tensor_of(found.parameters[name])
        if name in found.parameters
        else None
        for name in bound.names
    ]
    of_pulls = [tensor_of(found.pulled[n]) if n in call.wanted else None for n in call.pulls]
    return of_parameters + of_pulls


def _of_rows(found: tuple[Any, Any], shape: Sequence[int]) -> Tensor:
    rows, values = found
    return sparse_gradient(tensor_of(rows), tensor_of(values), shape)


class Pass(torch.autograd.Function):
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
        return (_once if torch.is_grad_enabled() else _gradients)(ctx, *d_outputs)


def _gradients(ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
    found = ctx.asked.back(d_outputs, ctx.saved_tensors, ctx.kept)
    return None, *by_input(ctx.asked, found)


_once = once_differentiable(_gradients)  # which says that there are no second derivatives
