"""Cells: linear maps, lookups, layer normalisation, recurrent networks and Tree-LSTMs.

A recurrent cell is a step from the state before to the next, that of a Tree-LSTM one from the
states of the children to that of their parent.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from vertexrt.api import init
from vertexrt.api.functional import (
    block_diagonal,
    concat,
    embed,
    emit,
    exp,
    full,
    maximum,
    mean,
    relu,
    repeat,
    reshape,
    sigmoid,
    softmax,
    softplus,
    split,
    sqrt,
    sum,
    tanh,
    value_of,
    where,
)
from vertexrt.api.random import uniform
from vertexrt.api.trace import Cell, Parameter, flag_of
from vertexrt.api.vertex_function import State
from vertexrt.checks import is_real, is_whole
from vertexrt.errors import TraceError
from vertexrt.ir.builder import MOST_INT, Value
from vertexrt.ir.user_line import refuse

Operand = Any  # Value | Parameter | float
NONLINEARITIES = {"tanh": tanh, "relu": relu}  # of an RNN
LEAST = 1e-30  # below what a normaliser of an sLSTM can be


def sizes_of(where: str, **sizes: object) -> list[int]:
    """Return numbers of elements.

    Raises: TraceError, when one is no whole number above 0.
    """
    found = []
    for name, given in sizes.items():
        if not is_whole(given) or not 1 <= given <= MOST_INT:
            raise TraceError.at(
                where,
                f"{name} is {given!r:.60}",
                "a whole number above 0, of 32 bits",
                f"write {where}(..., {name}=64); data without a field have 0 labels or words",
            )
        found.append(int(given))
    return found


def uniform_in(size: int) -> init.Initializer:
    """Return what draws evenly from [-k, k), k = 1 / sqrt(size): PyTorch's default of these."""
    return init.uniform(1.0 / math.sqrt(size))


class Linear(Cell):
    """`weight @ x + bias`.

    Args:
        in_features, out_features: elements of x and of the result.
        bias: add one.
    Parameters: weight [out, in]; bias [out].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        inside, outside = sizes_of("Linear", in_features=in_features, out_features=out_features)
        with_bias = flag_of("Linear", "bias", bias)
        self.weight = Parameter((outside, inside), uniform_in(inside))
        self.bias = Parameter((outside,), uniform_in(inside)) if with_bias else None

    def __call__(self, x: Operand) -> Value:
        """Return [out_features] of x [in_features]."""
        product: Value = self.weight @ x
        return product if self.bias is None else product + self.bias


class Embedding(Cell):
    """Rows of a table.

    Args:
        num_embeddings: rows; embedding_dim: elements of each.
    Parameters: weight [rows, elements].
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        sizes = {"num_embeddings": num_embeddings, "embedding_dim": embedding_dim}
        self.weight = Parameter(tuple(sizes_of("Embedding", **sizes)), init.normal(1.0))

    def __call__(self, index: Value) -> Value:
        """Return the row that an integer pull names; zeros where it is absent."""
        return embed(self.weight, index)


class LayerNorm(Cell):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`, over the elements of a vector.

    Args:
        size: elements of x.
        eps: added to the variance.
    Parameters: weight, bias [size], ones and zeros at first.
    Source: Ba, Kiros and Hinton 2016.
    """

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        (n,) = sizes_of("LayerNorm", size=size)
        self.weight, self.bias = Parameter((n,), init.constant(1.0)), Parameter((n,), init.zeros)
        self.eps = _eps_of("LayerNorm", eps)

    def __call__(self, x: Operand) -> Value:
        """Return [size] of x [size]."""
        value = value_of(x)
        moved = value - mean(value, axis="elements")
        variance = mean(moved * moved, axis="elements")
        return moved / sqrt(variance + self.eps) * self.weight + self.bias


class RMSNorm(Cell):
    """`x / sqrt(mean of x squared + eps) * weight`, over the elements of a vector.

    Args, Parameters: as those of `LayerNorm`, without the bias.
    Source: Zhang and Sennrich 2019.
    """

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        (n,) = sizes_of("RMSNorm", size=size)
        self.weight, self.eps = Parameter((n,), init.constant(1.0)), _eps_of("RMSNorm", eps)

    def __call__(self, x: Operand) -> Value:
        """Return [size] of x [size]."""
        value = value_of(x)
        return value / sqrt(mean(value * value, axis="elements") + self.eps) * self.weight


class MLP(Cell):
    """Linear layers with an activation between.

    Args:
        sizes: elements of x, of the layers between, and of the result.
        activation: a function of a value.
    Parameters: those of `layers.0`, `layers.1`, ...: weight, bias.
    """

    def __init__(self, *sizes: int, activation: Callable[[Any], Value] = relu) -> None:
        if len(sizes) < 2 or not callable(activation):
            raise TraceError.at(
                "MLP",
                f"sizes {sizes!r:.60} and activation {activation!r:.60}",
                "two sizes or more, and a function of a value",
                "write MLP(size, hidden, classes, activation=vrt.tanh)",
            )
        self.layers = [Linear(n, m) for n, m in pairwise(sizes)]
        self.activation = activation

    def __call__(self, x: Operand) -> Value:
        """Return the last size of elements."""
        found = self.layers[0](x)
        for layer in self.layers[1:]:
            found = layer(self.activation(found))
        return found


class MultiHeadAttention(Cell):
    """Attention of a vertex to its children, by several heads.

    Args:
        embed_dim: elements of the query, of each child and of the result; num_heads: divides it.
    Parameters: as those of PyTorch's `MultiheadAttention`: in_proj_weight, in_proj_bias of queries,
        keys and values, out_proj.
    Source: Vaswani et al. 2017.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        n, heads = sizes_of("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if n % heads:
            got = f"{heads} heads of {n} elements"
            raise TraceError.at("MultiHeadAttention", got, "a divisor", "change num_heads")
        self.size, self.heads = n, heads
        self.in_proj_weight, self.in_proj_bias = Parameter((3 * n, n)), Parameter((3 * n,))
        self.out_proj = Linear(n, n)

    def __call__(self, query: Operand, children: Operand) -> Value:
        """Return [embed_dim] of a query of the vertex and a vector of each child."""
        n, each = self.size, self.size // self.heads

        def projected(part: int, x: Operand) -> Any:
            rows = slice(part * n, (part + 1) * n)
            return self.in_proj_weight[rows] @ x + self.in_proj_bias[rows]

        q, k, v = projected(0, query), projected(1, children), projected(2, children)
        score = reshape(q * k, self.heads, each) @ full(each, each**-0.5)
        share = repeat(softmax(score, axis="children"), each)
        return self.out_proj(sum(share * v, axis="children"))


class ChainConv(Cell):
    """A convolution along a chain: of each vertex and those before it.

    Args:
        in_channels, out_channels: elements of x and of the result; kernel_size: vertices.
    Parameters: weight [out, kernel * in], the earliest vertex first: PyTorch's [out, in, kernel]
        turned by `transpose(1, 2)`; bias [out].
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        n, m, kernel = sizes_of("ChainConv", **sizes, kernel_size=kernel_size)
        self.size, self.window = n, (kernel - 1) * n
        self.weight = Parameter((m, kernel * n), uniform_in(kernel * n))
        self.bias = Parameter((m,), uniform_in(kernel * n))

    def __call__(self, x: Operand, window: Operand) -> tuple[Value, Value]:
        """Return [out], and the next window, of x and of the window that the child scattered.

        Args:
            window: [(kernel - 1) * in], a field of the state: its size is `window` of the cell.
        """
        every = concat(window, x)
        return self.weight @ every + self.bias, every[self.size :]


def zoneout(new: Operand, old: Operand, p: float) -> Value:
    """Return the new state, of which each element stays the old one with probability p.

    In inference it is the mean of both. Source: Krueger et al. 2017.

    Raises: TraceError, when p is not in [0, 1).
    """
    if not is_real(p) or not 0.0 <= p < 1.0:
        refuse("zoneout", f"p is {p!r}", "0 <= p < 1", "pass the share that stays")
    fresh, before = value_of(new), value_of(old)
    drawn = uniform(fresh.shape) >= float(p)
    take = where(emit("training", shape=()), drawn, full(drawn.shape, 1.0 - p))
    return before + take * (fresh - before)


def _eps_of(where_: str, eps: object) -> float:
    if not is_real(eps) or eps <= 0.0:
        raise TraceError.at(where_, f"eps is {eps!r:.60}", "a number above 0", "write eps=1e-5")
    return float(eps)


class _Gates(Cell):
    """What cells have in common: `weight_ih @ x + bias_ih` and `weight_hh @ h + bias_hh`.

    Attributes:
        states: their names, in the order in which a step takes and returns them.
    """

    states: ClassVar[tuple[str, ...]] = ("h",)

    def __init__(self, input_size: int, hidden_size: int, gates: int, bias: bool) -> None:
        where = type(self).__name__
        inside, self.hidden_size = sizes_of(where, input_size=input_size, hidden_size=hidden_size)
        rows, draw = gates * self.hidden_size, uniform_in(self.hidden_size)
        self.weight_ih = Parameter((rows, inside), draw)
        self.weight_hh = Parameter((rows, self.hidden_size), draw)
        biased = flag_of(where, "bias", bias)
        self.bias_ih = Parameter((rows,), draw) if biased else None
        self.bias_hh = Parameter((rows,), draw) if biased else None

    def _of_input(self, x: Operand) -> Value:
        """Return what all gates take of the input."""
        product: Value = self.weight_ih @ x
        return product if self.bias_ih is None else product + self.bias_ih

    def _of_state(self, h: Operand) -> Value:
        """Return what all gates take of the state before."""
        product = self._product_of_state(h)
        return product if self.bias_hh is None else product + self.bias_hh

    def _product_of_state(self, h: Operand) -> Value:
        product: Value = self.weight_hh @ h
        return product

    def _of_both(self, x: Operand, h: Operand) -> Value:
        """Return what all gates take of the input and of the state before.

        What does not wait for the state is added up first: it is not part of a step.
        """
        given = self._of_input(x)
        given = given if self.bias_hh is None else given + self.bias_hh
        return given + self._product_of_state(h)


class RNNCell(_Gates):
    """`h = f(W_ih x + b_ih + W_hh h + b_hh)`, f one of tanh and relu (Elman 1990).

    Args:
        input_size, hidden_size: elements of x and h.
        bias: add both biases.
        nonlinearity: "tanh" or "relu".
    Parameters: weight_ih [H, I], weight_hh [H, H], bias_ih, bias_hh [H].
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ) -> None:
        super().__init__(input_size, hidden_size, 1, bias)
        if not isinstance(nonlinearity, str) or nonlinearity not in NONLINEARITIES:
            raise TraceError.at(
                "RNNCell",
                f"nonlinearity is {nonlinearity!r:.60}",
                "'tanh' or 'relu'",
                "choose one of them",
            )
        self.nonlinearity = nonlinearity

    def __call__(self, x: Operand, h: Operand) -> Value:
        """Return the next h."""
        return NONLINEARITIES[self.nonlinearity](self._of_both(x, h))


class LSTMCell(_Gates):
    """An LSTM (Hochreiter and Schmidhuber 1997); gates in the order i, f, g, o.

    Args:
        input_size, hidden_size: elements of x, and of h and c.
        bias: add both biases.
        peephole: gates see c, too (Gers and Schmidhuber 2000).
        layer_norm: of both products, and of c before the output (Ba et al. 2016).
    Parameters: weight_ih [4H, I], weight_hh [4H, H], bias_ih, bias_hh [4H]; with peepholes
        weight_ci, weight_cf, weight_co [H]; with layer norm norm_ih, norm_hh, norm_c.
    """

    states: ClassVar[tuple[str, ...]] = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        peephole: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, 4, bias)
        n, draw = self.hidden_size, uniform_in(self.hidden_size)
        self.peephole = flag_of("LSTMCell", "peephole", peephole)
        self.layer_norm = flag_of("LSTMCell", "layer_norm", layer_norm)
        if peephole:
            self.weight_ci, self.weight_cf = Parameter((n,), draw), Parameter((n,), draw)
            self.weight_co = Parameter((n,), draw)
        if layer_norm:
            self.norm_ih, self.norm_hh = LayerNorm(4 * n), LayerNorm(4 * n)
            self.norm_c = LayerNorm(n)

    def __call__(self, x: Operand, state: tuple[Operand, Operand]) -> tuple[Value, Value]:
        """Return the next (h, c), given (h, c)."""
        h, c = state
        if self.layer_norm:
            gates = self.norm_ih(self._of_input(x)) + self.norm_hh(self._of_state(h))
        else:
            gates = self._of_both(x, h)
        i, f, g, o = split(gates, 4)
        if self.peephole:
            i, f = i + self.weight_ci * c, f + self.weight_cf * c
        new_c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        if self.peephole:
            o = o + self.weight_co * new_c
        seen = self.norm_c(new_c) if self.layer_norm else new_c
        return sigmoid(o) * tanh(seen), new_c


class GRUCell(_Gates):
    """A gated recurrent unit; gates in the order r, z, n.

    Args:
        input_size, hidden_size: elements of x and h.
        bias: add both biases.
        reset_after: r multiplies `W_hn h + b_hn`, as in cuDNN and PyTorch; else h, before the
            product (Cho et al. 2014).
    Parameters: weight_ih [3H, I], weight_hh [3H, H], bias_ih, bias_hh [3H]; without reset_after,
        weight_hh [2H, H] and bias_hh [2H] of r and z, weight_hn [H, H] and bias_hn [H].
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, reset_after: bool = True
    ) -> None:
        super().__init__(input_size, hidden_size, 3, bias)
        self.reset_after = flag_of("GRUCell", "reset_after", reset_after)
        if not reset_after:
            n, draw = self.hidden_size, uniform_in(self.hidden_size)
            self.weight_hh, self.weight_hn = Parameter((2 * n, n), draw), Parameter((n, n), draw)
            self.bias_hh = Parameter((2 * n,), draw) if bias else None
            self.bias_hn = Parameter((n,), draw) if bias else None

    def __call__(self, x: Operand, h: Operand) -> Value:
        """Return the next h."""
        x_r, x_z, x_n = split(self._of_input(x), 3)
        if self.reset_after:
            h_r, h_z, h_n = split(self._of_state(h), 3)
            candidate = tanh(x_n + sigmoid(x_r + h_r) * h_n)
        else:
            h_r, h_z = split(self._of_state(h), 2)
            product = self.weight_hn @ (sigmoid(x_r + h_r) * h)
            candidate = tanh(x_n + (product if self.bias_hn is None else product + self.bias_hn))
        z = sigmoid(x_z + h_z)
        new_h: Value = (1.0 - z) * candidate + z * h
        return new_h


class SLSTMCell(_Gates):
    """An sLSTM (Beck et al. 2024): exponential gates, a normaliser n and a stabiliser m.

    Args:
        input_size, hidden_size: elements of x, and of h, c, n and m.
        bias: add both biases.
        forget: "exp" or "sigmoid", the function of the forget gate.
        heads: parts of h that see only themselves: the recurrent matrices are block-diagonal.
    Parameters: weight_ih [4H, I], weight_hh [4H, H], bias_ih, bias_hh [4H]; gates i, f, z, o. With
        several heads of D elements, weight_hh [heads, 4D, D], the gates of each head together.
    """

    states: ClassVar[tuple[str, ...]] = ("h", "c", "n", "m")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        forget: str = "exp",
        heads: int = 1,
    ) -> None:
        super().__init__(input_size, hidden_size, 4, bias)
        if not isinstance(forget, str) or forget not in ("exp", "sigmoid"):
            raise TraceError.at(
                "SLSTMCell", f"forget is {forget!r:.60}", "'exp' or 'sigmoid'", "choose one of them"
            )
        self.forget = forget
        (self.heads,) = sizes_of("SLSTMCell", heads=heads)
        each, rest = divmod(self.hidden_size, self.heads)
        if rest:
            raise TraceError.at(
                "SLSTMCell",
                f"{self.hidden_size} elements in {self.heads} heads",
                "heads of equal size",
                "change one of them",
            )
        if self.heads > 1:
            self.weight_hh = Parameter((self.heads, 4 * each, each), uniform_in(self.hidden_size))

    def _product_of_state(self, h: Operand) -> Value:
        """Return the product of all gates, head by head."""
        if self.heads == 1:
            return super()._product_of_state(h)
        parts = split(block_diagonal(self.weight_hh, h), 4 * self.heads)
        return concat(*(part for gate in range(4) for part in parts[gate::4]))

    def __call__(
        self, x: Operand, state: tuple[Operand, Operand, Operand, Operand]
    ) -> tuple[Value, Value, Value, Value]:
        """Return the next (h, c, n, m), given (h, c, n, m)."""
        h, c, n, m = state
        i, f, z, o = split(self._of_both(x, h), 4)
        log_f = (f if self.forget == "exp" else -softplus(-f)) + m
        new_m = maximum(log_f, i)
        keep, take = exp(log_f - new_m), exp(i - new_m)
        new_c, new_n = keep * c + take * tanh(z), keep * n + take
        return sigmoid(o) * new_c / maximum(new_n, LEAST), new_c, new_n, new_m


class ChildSumTreeLSTMCell(Cell):
    """A child-sum Tree-LSTM: any number of children, each with a forget gate of its own.

    Args:
        input_size, hidden_size: elements of x, and of h and c.
    Parameters: weight_ih [4H, I] and bias [4H], gates i, o, u, f; weight_hh [3H, H] of the sum of
        the children's h, gates i, o, u; weight_fh [H, H] of each child's h.
    Source: Tai, Socher and Manning 2015, equations 2 to 8.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size}
        inside, n = sizes_of("ChildSumTreeLSTMCell", **sizes)
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
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "arity": arity}
        inside, n, slots = sizes_of("NaryTreeLSTMCell", **sizes)
        draw = uniform_in(n)
        self.weight_ih, self.bias = Parameter((4 * n, inside), draw), Parameter((4 * n,), draw)
        self.weight_hh = [Parameter((3 * n, n), draw) for _ in range(slots)]
        self.weight_fh = [[Parameter((n, n), draw) for _ in range(slots)] for _ in range(slots)]

    def __call__(
        self, x: Operand, children: Sequence[tuple[Operand, Operand]]
    ) -> tuple[Value, Value]:
        """Return (h, c), given (h, c) of the child in each slot.

        Raises: TraceError, when there are more or fewer than slots.
        """
        if len(children) != len(self.weight_hh):
            refuse(
                "NaryTreeLSTMCell",
                f"{len(children)} children",
                f"(h, c) of each of {len(self.weight_hh)} slots",
                "pass zeros for an absent child: gather reads them",
            )
        x_i, x_o, x_u, x_f = split(self.weight_ih @ x + self.bias, 4)
        states = [h for h, _ in children]
        products = (w @ h for w, h in zip(self.weight_hh, states, strict=True))
        h_i, h_o, h_u = split(builtins.sum(products), 3)
        c = sigmoid(x_i + h_i) * tanh(x_u + h_u)
        for weights, (_, child) in zip(self.weight_fh, children, strict=True):
            gate = x_f + builtins.sum(w @ h for w, h in zip(weights, states, strict=True))
            c = c + sigmoid(gate) * child
        return sigmoid(x_o + h_o) * tanh(c), c
