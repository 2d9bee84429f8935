"""Networks over directed acyclic graphs, with attention over what a vertex reads."""

from typing import Any

import vertexrt as vrt
from vertexrt import nn
from vertexrt.models.taggers import Label, LookedUpWord


class Attentive(vrt.VertexFunction):
    """What functions have in common that attend to other vertices: a score and a GRU.

    The shares of the attention are a softmax of `score . h` over the vertices of a relation.

    Args:
        hidden: elements.
        inputs: as those of `VertexFunction`, by relation.
    """

    def __init__(self, hidden: int, **inputs: Any) -> None:
        super().__init__(state={"h": hidden}, inputs=inputs)
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(hidden, hidden)

    def attend(self, relation: str) -> Any:
        """Return the sum of h over the vertices of a relation, each times its share."""
        states = self.gather_all(relation).h
        share = vrt.softmax(vrt.sum(self.score * states, axis="elements"), axis="children")
        return vrt.sum(share * states)


class DagLayer(Attentive):
    """One layer: a GRU of a vertex one layer down, `below`, and of its predecessors in this layer.

    The attention of the paper adds a term of the vertex to the score of each predecessor. It is the
    same for all of them, so the softmax does not depend on it, and it is left out.
    """

    def forward(self) -> None:
        """Compute one vertex."""
        message = self.attend("before")
        self.scatter(h=self.cell(self.gather("below").h, message))


class DAGNN(vrt.Model):
    """Directed acyclic graph neural network (Thost and Chen, ICLR 2021), in one direction.

    A vertex is classified by its states in all layers.

    Args:
        vocab: kinds of vertices; hidden: elements; layers: how many; classes: labels.
    """

    def __init__(self, vocab: int, hidden: int, classes: int, layers: int = 2) -> None:
        self.word = LookedUpWord(vocab, hidden, vrt.init.normal(1.0))
        self.layers = [DagLayer(hidden, below=self.word)]
        for _ in range(layers - 1):
            self.layers.append(DagLayer(hidden, below=self.layers[-1]))
        self.label = Label({f"layer {k}": each for k, each in enumerate(self.layers)}, classes)


class CircuitInput(vrt.VertexFunction):
    """An input of the circuit: all are alike, 1 half of the time."""

    def __init__(self, hidden: int) -> None:
        super().__init__(state={"h": hidden})
        self.start = vrt.Parameter((hidden,), init=vrt.init.normal(1.0))

    def forward(self) -> None:
        """Compute one input."""
        self.scatter(h=1.0 * self.start)


class Gate(Attentive):
    """A gate: a GRU of what it reads, with attention; `DeepGate` says which functions that are."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.start = vrt.Parameter((hidden,), init=vrt.init.normal(1.0))

    def forward(self) -> None:
        """Compute one gate."""
        self.scatter(h=self.cell(self.attend("reads"), 1.0 * self.start))


class Reverse(Attentive):
    """A gate or input, `own`, seen from those that read it.

    Pulls `target` and pushes `output`: the probability that it is 1.
    """

    def __init__(self, hidden: int, **inputs: Any) -> None:
        super().__init__(hidden, **inputs)
        self.inner, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1)

    def forward(self) -> None:
        """Compute one."""
        own = self.gather("own").h
        h = self.cell(self.attend("readers"), own)
        self.scatter(h=h)
        output = vrt.sigmoid(self.out(vrt.relu(self.inner(vrt.concat(own, h)))))
        target = self.pull("target", shape=(1,), dtype="float")
        self.push("output", output)
        self.push("loss", vrt.sum(vrt.abs(output - target)))


class DeepGate(vrt.Model):
    """DeepGate (Li et al., DAC 2022), one round: forward over the gates, then in reverse.

    Signal probabilities of a circuit of AND gates and inverters, read in both directions. Gates of
    a kind share weights: `and` and `not` are vertex types. The paper repeats the round.

    Args:
        hidden: elements.
    """

    def __init__(self, hidden: int) -> None:
        self.input = CircuitInput(hidden)
        self.conjunction, self.inverter = Gate(hidden), Gate(hidden)
        kinds = self.input, self.conjunction, self.inverter
        self.conjunction.inputs = self.inverter.inputs = {"reads": kinds}
        self.reverse = Reverse(hidden, own=kinds)
