"""Gradients of pushes, given those of the outputs that were made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from vertexrt.torch.binding import BoundNetwork
from vertexrt.torch.call import Call
from vertexrt.torch.chains import WantedRows

Orders = tuple[WantedRows | None, ...]  # of outputs, None for that of the vertices


class SeedTerms(NamedTuple):
    """What makes up the gradient of a push.

    Attributes:
        shape: of the gradient, [V, *shape].
        outputs: numbers of those that have a gradient; orders: of these.
    """

    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    orders: Orders

    @property
    def single(self) -> int:
        """The one output whose gradient launches read as it is, or by `rows.row_of`; else -1."""
        if len(self.outputs) != 1:
            return -1
        wanted = self.orders[0]
        return -1 if wanted is not None and wanted.rows.row_of is None else self.outputs[0]

    def of(self, bound: BoundNetwork, d_outputs: Sequence[Any], by: Tensor | None) -> Any:
        """Return the gradient as passes take it.

        Args:
            d_outputs: of all outputs; by: of `AskedPass`.
        """
        if not self.outputs:
            return bound.results.array(None, self.shape)  # none, as passes take it
        if self.single < 0:
            return bound.passed(self._added(d_outputs, by))
        wanted = self.orders[0]
        return bound.passed(d_outputs[self.single], None if wanted is None else wanted.rows.row_of)

    def _added(self, d_outputs: Sequence[Any], by: Tensor | None) -> Tensor:
        """Return the sum of several outputs' gradients, or that of a part of the vertices."""
        terms = [d_outputs[k] for k in self.outputs]
        total: Tensor = terms[0].new_zeros(self.shape)
        for d, wanted in zip(terms, self.orders, strict=True):
            if wanted is None:
                total += d
            else:
                rows = wanted.here(d.device, by)
                total.index_add_(0, rows, d.reshape(-1, *self.shape[1:]))
        return total


def seed_terms(
    bound: BoundNetwork, call: Call, orders: Orders, vertices: int, has: Sequence[bool]
) -> dict[str, SeedTerms]:
    """Return what makes up the gradient of each push that was asked for, in the order of names.

    Args:
        orders: of the outputs; vertices: how many there are; has: which outputs have a gradient.
    """
    found = {}
    for name in sorted(set(call.outputs)):
        of_name = [k for k, output in enumerate(call.outputs) if output == name and has[k]]
        shape = vertices, *bound.push_shapes[name]
        found[name] = SeedTerms(shape, tuple(of_name), tuple([orders[k] for k in of_name]))
    return found
