"""What the examples of the interface begin with: the site shows each with its name."""

#: given
import tempfile
from pathlib import Path
from types import SimpleNamespace

import networkx
import numpy as np

import vertexrt as vrt


class Tree(vrt.VertexFunction):
    """A recursive network over binary trees that classifies every vertex."""

    def __init__(self):
        super().__init__(arity=2, state={"h": 4})
        self.table, self.u = vrt.Parameter((10, 4)), vrt.Parameter((4, 4))
        self.v = vrt.Parameter((2, 4))

    def forward(self):
        below = self.gather(0).h + self.gather(1).h
        h = vrt.tanh(vrt.embed(self.table, self.pull("word")) + self.u @ below)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.cross_entropy(self.v @ h, self.pull("label")))


class Probe(vrt.VertexFunction):
    """Pushes what `compute(f, x, y)` gives, two elements of each vertex being x and two y."""

    def __init__(self, compute):
        super().__init__(arity=2, state={"h": 2})
        self.compute = compute
        self.w = vrt.Parameter((2, 2), init=vrt.init.constant([[1.0, 2.0], [3.0, 4.0]]))

    def forward(self):
        x, y = self.pull("x", shape=(2,)), self.pull("y", shape=(2,))
        self.push("out", self.compute(self, x, y))
        self.scatter(h=x * 1.0)


def at_root(compute):
    """Evaluate `compute(f, x, y)` at the root of a tree: x = [-1, 2], y = [3, 0.5].

    Its two children have the state h = [1, 2] and [3, 4]; their edges weigh 0.5 and 2,
    and are of the kinds 1 and 2.
    """
    pulls = {"x": [[1.0, 2.0], [3.0, 4.0], [-1.0, 2.0]], "y": [[0.0, 0.0], [0.0, 0.0], [3.0, 0.5]]}
    pulls = {name: np.array(rows) for name, rows in pulls.items()}
    pulls["k"] = np.array([-1, -1, 1])  # an integer, which leaves do not have
    weights = {"weight": np.array([0.5, 2.0]), "kind": np.array([1, 2])}
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], pulls, weights)
    net = vrt.compile(Probe(compute), device="reference", dtype="float64")
    return net(vrt.GraphBatch.from_graphs([graph]))["out"][2].round(3).tolist()


graph = vrt.InputGraph.from_children([[], [], [0, 1]], {"word": [2, 3, -1], "label": [0, 1, 1]})
batch = vrt.GraphBatch.from_graphs([graph, graph])
net = vrt.compile(Tree(), device="reference")
optimizer = vrt.SGD(lr=0.1)
folder = Path(tempfile.mkdtemp())
