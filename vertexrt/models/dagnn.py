"""A graph neural network for directed acyclic graphs, with attention over predecessors."""

from typing import Any

import vertexrt as vrt
from vertexrt import nn
from vertexrt.models.bilstm_tagger import LookedUpWord


def attend(score: vrt.Parameter, states: Any) -> Any:
    """Return the sum of children's states, by attention: a softmax of `score . state`."""
    share = vrt.softmax(vrt.sum(score * states, axis="elements"), axis="children")
    return vrt.sum(share * states)


class DagLayer(vrt.VertexFunction):
    """One layer: a GRU of a vertex one layer down, and of its predecessors in this layer.

    The attention of the paper adds a term of the vertex to the score of each predecessor. It is the
    same for all of them, so the softmax does not depend on it, and it is left out.
    """

    def __init__(self, below: vrt.VertexFunction, hidden: int) -> None:
        super().__init__(state={"h": hidden}, inputs={"below": below})
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(hidden, hidden)

    def forward(self) -> None:
        """Compute one vertex."""
        message = attend(self.score, self.gather_all("before").h)
        self.scatter(h=self.cell(self.gather("below").h, message))


class DagLabel(vrt.VertexFunction):
    """Classify a vertex by its states in all layers. Pulls `label`."""

    def __init__(self, layers: list[DagLayer], classes: int) -> None:
        super().__init__(state={}, inputs={f"layer {k}": each for k, each in enumerate(layers)})
        self.out = nn.Linear(sum(layer.state["h"] for layer in layers), classes)

    def forward(self) -> None:
        """Compute one vertex."""
        logits = self.out(vrt.concat(*(self.gather(name).h for name in self.inputs)))
        self.push("logits", logits)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class DAGNN(vrt.Model):
    """Directed acyclic graph neural network (Thost and Chen, ICLR 2021), in one direction.

    Args:
        vocab: kinds of vertices; hidden: elements; layers: how many; classes: labels.
    """

    def __init__(self, vocab: int, hidden: int, classes: int, layers: int = 2) -> None:
        self.word = LookedUpWord(vocab, hidden, vrt.init.normal(1.0))
        self.layers = [DagLayer(self.word, hidden)]
        for _ in range(layers - 1):
            self.layers.append(DagLayer(self.layers[-1], hidden))
        self.label = DagLabel(self.layers, classes)
