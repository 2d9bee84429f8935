"""Passes of a network and their ways back: what is asked, and one function of autograd for both.

`Pass` is used where no compiler looks; the ops of `ops.py` ask for the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vertexrt.api.forward_passes import ForwardOutputs
from vertexrt.engine.executor import Asked
from vertexrt.engine.results import Gradients, PushRows
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundNetwork, sparse_gradient
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


class VertexRows(NamedTuple):
    """Rows of vertices in the order of a caller.

    Attributes:
        vertices: int64 [n], whose; here: the same on the device.
        row_of: int64 [V], the row of each vertex, on the device, where each has one; else None.
    """

    vertices: np.ndarray[Any, Any]
    here: Tensor
    row_of: Tensor | None

    def by_vertex(self, rows: Tensor) -> Tensor:
        """Return rows in the order of the vertices, of which each has one."""
        assert self.row_of is not None, "rows of some vertices"
        return rows.index_select(0, self.row_of)


class RowOrders(NamedTuple):
    """What is given and wanted in another order than that of the vertices.

    Attributes:
        pulls: by name; outputs: of a call, None where it is that of the vertices.
    """

    pulls: Mapping[str, VertexRows] = {}
    outputs: Sequence[VertexRows | None] = ()


class AskedPass(NamedTuple):
    """A pass that is asked for.

    Attributes:
        bound: the network; call: what is asked of it; graphs: the batch.
        seed: of what is drawn.
        orders: None, where all is in that of the vertices.
    """

    bound: BoundNetwork
    call: Call
    graphs: GraphBatch
    seed: int
    orders: RowOrders | None = None

    def evaluate(self, pulls: Sequence[Tensor]) -> tuple[ForwardOutputs | None, list[Tensor]]:
        """Evaluate the network, whose parameters are held: see `BoundNetwork.holding`.

        Returns: what keeps the pass, if the call says so; the outputs.
        """
        bound, call, orders = self.bound, self.call, self.orders
        wanted = [PushRows(name) for name in call.outputs]
        if orders is not None:
            wanted = [
                push if rows is None else PushRows(push.name, rows.vertices)
                for push, rows in zip(wanted, orders.outputs, strict=True)
            ]
            pulls = [
                orders.pulls[name].by_vertex(pull) if name in orders.pulls else pull
                for name, pull in zip(call.pulls, pulls, strict=True)
            ]
        batch = with_pulls(self.graphs, call.pulls, pulls, bound.store.dtype)
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
        bound, call, orders = self.bound, self.call, self.orders
        count, passes = len(bound.names), bound.forward_passes
        with bound.holding(given[:count]):
            seeds = {name: self._seed(name, d_outputs) for name in sorted(set(call.outputs))}
            if kept is None or not passes.keeps(kept):
                kept, _ = self.evaluate(given[count:])
            made = passes.find(kept, bound.results)
            vertices = {} if orders is None else {n: r.vertices for n, r in orders.pulls.items()}
            return passes.go_back(made, seeds, 1.0, call.sparse, vertices)

    def _seed(self, name: str, d_outputs: Sequence[Tensor | None]) -> Any:
        """Return the gradient of a push, [V, *shape], given those of the outputs."""
        bound, outputs = self.bound, self.call.outputs
        orders = [None] * len(outputs) if self.orders is None else self.orders.outputs
        shape, total = (self.graphs.num_vertices, *bound.push_shapes[name]), None
        for output, rows, d in zip(outputs, orders, d_outputs, strict=True):
            if output == name and d is not None:
                total = _plus(total, d, rows, shape)
        return bound.zeros(shape) if total is None else bound.passed(total)


def _plus(
    total: Tensor | None, d: Tensor, rows: VertexRows | None, shape: tuple[int, ...]
) -> Tensor:
    """Return the gradient of a push with that of an output added, which may have been the first."""
    if rows is None or rows.row_of is not None:
        term = d if rows is None else rows.by_vertex(d)
        return term if total is None else total + term
    whole = d.new_zeros(shape) if total is None else total.clone()  # others may have it
    return whole.index_add_(0, rows.here, d)


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
