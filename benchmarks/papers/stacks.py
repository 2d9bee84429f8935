"""Recurrent layers over vectors as vertex functions: what the papers on RNNs time.

`Stack` is layers one above the other, `Recurrence` a single layer whose inputs have been multiplied
by their weights before. Both have the cells of `vertexrt.nn` and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.data.edges import chain, stacked

CELLS: dict[str, type[Any]] = {
    "LSTM": vrt.nn.LSTMCell,
    "GRU": vrt.nn.GRUCell,
    "RNN": vrt.nn.RNNCell,
}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """What a stack is.

    Attributes:
        cell: of CELLS. hidden: elements of the states, and of the inputs.
        residual: each layer's input is added to what it hands up.
    """

    cell: str
    hidden: int
    layers: int = 1
    residual: bool = False

    def __str__(self) -> str:
        layers = f"{self.layers} x " if self.layers > 1 else "h "
        return f"{self.cell} {layers}{self.hidden}"


class Layer(vrt.VertexFunction):
    """One layer; the lowest pulls `x`, the top one pushes `h` and `loss`, the sum of its squares.

    Args:
        below: the layer there, None for the lowest.
    """

    def __init__(self, form: Form, below: Layer | None, top: bool) -> None:
        kind = CELLS[form.cell]
        self.states = ("inner", *kind.states[1:]) if form.residual else kind.states
        fields = dict.fromkeys(("h", *self.states), form.hidden)
        super().__init__(state=fields, inputs={} if below is None else {"below": below})
        self.form, self.lowest, self.top = form, below is None, top
        self.cell = kind(form.hidden, form.hidden)

    def forward(self) -> None:
        """Compute one step of one layer."""
        x = self.pull("x", (self.form.hidden,)) if self.lowest else self.gather("below").h
        before = vars(self.gather("before"))
        state = tuple(before[name] for name in self.states)
        found = self.cell(x, state if len(state) > 1 else state[0])
        found = found if len(state) > 1 else (found,)
        after = dict(zip(self.states, found, strict=True))
        h = after["h"] = found[0] + x if self.form.residual else found[0]
        self.scatter(**after)
        if self.top:
            self.push("h", h)
            self.push("loss", vrt.sum(h * h))


class Stack(vrt.Model):
    """Layers one above the other; their vertex types are `layers.0` and so on."""

    def __init__(self, form: Form) -> None:
        self.layers: list[Layer] = []
        for k in range(form.layers):
            below = self.layers[-1] if self.layers else None
            self.layers.append(Layer(form, below, k + 1 == form.layers))


class Recurrence(vrt.VertexFunction):
    """The recurrent part of a simple layer: h = tanh(x + u h)."""

    def __init__(self, hidden: int) -> None:
        super().__init__(arity=1, state={"h": hidden})
        self.hidden = hidden
        self.u = vrt.Parameter((hidden, hidden), vrt.init.uniform(hidden**-0.5))

    def forward(self) -> None:
        """Compute one step."""
        h = vrt.tanh(self.pull("x", (self.hidden,)) + self.u @ self.gather(0).h)
        self.scatter(h=h)
        self.push("h", h)


def stack_batch(form: Form, x: Array) -> vrt.GraphBatch:
    """Return sequences for a `Stack`.

    Args:
        x: float32 [B, STEPS, H].
    """
    count, steps, hidden = x.shape
    return ragged_batch(form, np.full(count, steps), x.reshape(-1, hidden))


def ragged_batch(form: Form, lengths: Array, x: Array) -> vrt.GraphBatch:
    """Return sequences of some lengths, int [B], for a `Stack`; x: their rows, float32 [*, H]."""
    pulls = {"layers.0": {"x": x}}
    return stacked(lengths, chain(lengths), form.layers, ("", ""), pulls)


def top_vertices(form: Form, batch: vrt.GraphBatch, steps: int, last: bool = False) -> Array:
    """Return the vertices of the top layer, sequence by sequence; of the last step alone, if so."""
    found: Array = np.asarray(batch.of_type(f"layers.{form.layers - 1}"))
    return found[steps - 1 :: steps] if last else found


def recurrence_batch(x: Array) -> vrt.GraphBatch:
    """Return sequences for a `Recurrence`, given float32 [B, STEPS, H]."""
    chains = [vrt.InputGraph.chain(len(each), {"x": each}) for each in x]
    return vrt.GraphBatch.from_graphs(chains)
