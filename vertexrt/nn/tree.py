"""Cells of Tree-LSTMs: a step from the states of the children to that of their parent."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from vertexrt.api.functional import sigmoid, split, sum, tanh
from vertexrt.api.parameter import Cell, Parameter
from vertexrt.api.vertex_function import State
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Value
from vertexrt.nn.basic import size_of, uniform_in

Operand = Any  # Value | Parameter | float


class ChildSumTreeLSTMCell(Cell):
    """A child-sum Tree-LSTM: any number of children, each with a forget gate of its own.

    Args:
        input_size, hidden_size: elements of x, and of h and c.
    Parameters: weight_ih [4H, I] and bias [4H], gates i, o, u, f; weight_hh [3H, H] of the sum of
        the children's h, gates i, o, u; weight_fh [H, H] of each child's h.
    Source: Tai, Socher and Manning 2015, equations 2 to 8.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        inside = size_of("ChildSumTreeLSTMCell", "input_size", input_size)
        n = size_of("ChildSumTreeLSTMCell", "hidden_size", hidden_size)
        draw = uniform_in(n)
        self.weight_ih, self.bias = Parameter((4 * n, inside), draw), Parameter((4 * n,), draw)
        self.weight_hh, self.weight_fh = Parameter((3 * n, n), draw), Parameter((n, n), draw)

    def __call__(self, x: Operand, children: State) -> tuple[Value, Value]:
        """Return (h, c), given what `gather_all` returns, with fields h and c."""
        x_i, x_o, x_u, x_f = split(self.weight_ih @ x + self.bias, 4)
        h_i, h_o, h_u = split(self.weight_hh @ sum(children.h), 3)
        kept = sum(sigmoid(x_f + self.weight_fh @ children.h) * children.c)
        c = sigmoid(x_i + h_i) * tanh(x_u + h_u) + kept
        return sigmoid(x_o + h_o) * tanh(c), c


class NaryTreeLSTMCell(Cell):
    """An N-ary Tree-LSTM: slots for children, with weights for each.

    Args:
        input_size, hidden_size: elements of x, and of h and c.
        arity: slots.
    Parameters: weight_ih [4H, I] and bias [4H], gates i, o, u, f; weight_hh.k [3H, H] of the h in
        slot k, gates i, o, u; weight_fh.k.l [H, H], what the forget gate of slot k takes of slot l.
    Source: Tai, Socher and Manning 2015, equations 9 to 14.
    """

    def __init__(self, input_size: int, hidden_size: int, arity: int) -> None:
        inside = size_of("NaryTreeLSTMCell", "input_size", input_size)
        n = size_of("NaryTreeLSTMCell", "hidden_size", hidden_size)
        slots = range(size_of("NaryTreeLSTMCell", "arity", arity))
        draw = uniform_in(n)
        self.weight_ih, self.bias = Parameter((4 * n, inside), draw), Parameter((4 * n,), draw)
        self.weight_hh = [Parameter((3 * n, n), draw) for _ in slots]
        self.weight_fh = [[Parameter((n, n), draw) for _ in slots] for _ in slots]

    def __call__(
        self, x: Operand, children: Sequence[tuple[Operand, Operand]]
    ) -> tuple[Value, Value]:
        """Return (h, c), given (h, c) of the child in each slot.

        Raises: TraceError, when there are more or fewer than slots.
        """
        if len(children) != len(self.weight_hh):
            raise TraceError.at(
                "NaryTreeLSTMCell",
                f"{len(children)} children",
                f"(h, c) of each of {len(self.weight_hh)} slots",
                "pass zeros for an absent child: gather reads them",
            )
        x_i, x_o, x_u, x_f = split(self.weight_ih @ x + self.bias, 4)
        states = [h for h, _ in children]
        total = _added(w @ h for w, h in zip(self.weight_hh, states, strict=True))
        h_i, h_o, h_u = split(total, 3)
        c = sigmoid(x_i + h_i) * tanh(x_u + h_u)
        for weights, (_, child) in zip(self.weight_fh, children, strict=True):
            gate = x_f + _added(w @ h for w, h in zip(weights, states, strict=True))
            c = c + sigmoid(gate) * child
        return sigmoid(x_o + h_o) * tanh(c), c


def _added(values: Any) -> Value:
    """Add up values, of which there is one at least."""
    return builtins.sum(values)  # type: ignore[no-any-return]
