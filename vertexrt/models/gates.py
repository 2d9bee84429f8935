"""Inputs and gates of a circuit, as vertices that read the gates before them."""

from __future__ import annotations

from typing import Any

import vertexrt as vrt
from vertexrt import nn


def attend(score: vrt.Parameter, states: Any) -> Any:
    """Return the sum of children's states, by attention: a softmax of `score . state`."""
    share = vrt.softmax(vrt.sum(score * states, axis="elements"), axis="children")
    return vrt.sum(share * states)


class CircuitInput(vrt.VertexFunction):
    """An input of the circuit: all are alike, 1 half of the time."""

    def __init__(self, hidden: int) -> None:
        super().__init__(state={"h": hidden})
        self.start = vrt.Parameter((hidden,), init=vrt.init.normal(1.0))

    def forward(self) -> None:
        """Compute one input."""
        self.scatter(h=1.0 * self.start)


class Gate(vrt.VertexFunction):
    """A gate: a GRU of what it reads, with attention. `inputs` name the functions of that later."""

    def __init__(self, hidden: int) -> None:
        super().__init__(state={"h": hidden})
        self.start = vrt.Parameter((hidden,), init=vrt.init.normal(1.0))
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(hidden, hidden)

    def forward(self) -> None:
        """Compute one gate."""
        read = attend(self.score, self.gather_all("reads").h)
        self.scatter(h=self.cell(read, 1.0 * self.start))
