"""Tree-LSTM, written as a user would write it, agrees with PyTorch one vertex at a time."""

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.graph import GraphBatch, InputGraph

pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")

from benchmarks.peers.recursive import recursive

WORDS, EMBED, HIDDEN, CLASSES = 23, 12, 17, 5
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}  # of the largest element


class TreeLSTM(vrt.VertexFunction):
    """Binary child-sum Tree-LSTM (Tai et al. 2015)."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"c": HIDDEN, "h": HIDDEN})
        self.embedding = vrt.Parameter((WORDS, EMBED))
        self.w = vrt.Parameter((4 * HIDDEN, EMBED))
        self.u_iou = vrt.Parameter((3 * HIDDEN, HIDDEN))
        self.u_f = vrt.Parameter((HIDDEN, HIDDEN))
        self.b = vrt.Parameter((4 * HIDDEN,), init=vrt.init.zeros)
        self.v = vrt.Parameter((CLASSES, HIDDEN))

    def forward(self) -> None:
        children: list[Any] = [self.gather(k) for k in range(self.arity)]
        x = vrt.embed(self.embedding, self.pull("word"))
        x_i, x_f, x_o, x_u = vrt.split(self.w @ x + self.b, 4)
        h_sum = sum(child.h for child in children)
        u_i, u_o, u_u = vrt.split(self.u_iou @ h_sum, 3)
        c = vrt.sigmoid(x_i + u_i) * vrt.tanh(x_u + u_u)
        for child in children:
            c = c + vrt.sigmoid(x_f + self.u_f @ child.h) * child.c
        h = vrt.sigmoid(x_o + u_o) * vrt.tanh(c)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


def random_graph(rng: np.random.Generator, leaves: int, kind: str) -> InputGraph:
    """Draw a tree; `ragged` has words at inner vertices, one-child vertices and empty slots too."""
    children: list[list[int]] = [[] for _ in range(leaves)]
    roots = list(range(leaves))
    while len(roots) > 1 or (kind == "ragged" and rng.random() < 0.7):
        kids = [roots.pop(int(rng.integers(len(roots))))]
        if roots and (kind == "binary" or rng.random() < 0.7):
            kids.append(roots.pop(int(rng.integers(len(roots)))))
        elif rng.random() < 0.5:
            kids.insert(int(rng.integers(2)), -1)
        roots.append(len(children))
        children.append(kids)
    order = rng.permutation(len(children))  # vertex -> its place in the user's order
    mixed: list[list[int]] = [[] for _ in children]
    for v, kids in enumerate(children):
        mixed[order[v]] = [int(order[kid]) if kid >= 0 else -1 for kid in kids]
    is_leaf = np.array([not kids for kids in mixed])
    has_word = is_leaf if kind == "binary" else rng.random(len(mixed)) < 0.6
    word = np.where(has_word, rng.integers(WORDS, size=len(mixed)), -1).astype(np.int32)
    label = rng.integers(-1, CLASSES, size=len(mixed)).astype(np.int32)
    label[-1] = 0
    return InputGraph.from_children(mixed, pulls={"word": word, "label": label})


@pytest.mark.parametrize("kind", ["binary", "ragged"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_tree_lstm_agrees_with_autograd(device: str, dtype: str, kind: str) -> None:
    rng = np.random.default_rng(11)
    graphs = [random_graph(rng, leaves, kind) for leaves in (1, 2, 5, 14, 30)]
    batch = GraphBatch.from_graphs(graphs)
    net = vrt.compile(TreeLSTM(), device=device, dtype=dtype, seed=3)
    net.parameters.update(
        {
            name: rng.normal(scale=0.4, size=value.shape).astype(value.dtype)
            for name, value in net.parameters.items()
        }
    )
    exact = {name: value.astype(np.float64) for name, value in net.parameters.items()}
    expected = recursive(batch, exact)

    out = net.record(batch)
    d_loss = np.full(out.outputs["loss"].shape, 1 / batch.num_graphs, out.outputs["loss"].dtype)
    gradients = out.backward({"loss": d_loss}).parameters

    def agree(got: np.ndarray, want: np.ndarray, what: str) -> None:
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error <= TOLERANCE[dtype], f"{what}: {error:.2e}"

    agree(out.outputs["logits"], expected.logits, "logits")
    agree(out.outputs["loss"].sum() / batch.num_graphs, np.array(expected.loss), "loss")
    assert gradients.keys() == expected.gradients.keys()
    for name, value in expected.gradients.items():
        agree(gradients[name], value, name)
