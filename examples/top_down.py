"""Down a tree after up it: each leaf learns whether it holds the largest number of its tree.

Run: python examples/top_down.py
Source: recursive networks in both directions, Irsoy and Cardie 2013.
"""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from vertexrt import nn

HIDDEN = 12


class Up(vrt.VertexFunction):
    """Bottom-up: a vertex reads both children; a leaf pulls `number`."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": HIDDEN})
        self.leaf, self.inner = nn.Linear(1, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self) -> None:
        is_leaf = 1.0 - self.present(0)
        children = vrt.concat(self.gather(0).h, self.gather(1).h)
        number = self.leaf(self.pull("number", shape=1))
        self.scatter(h=vrt.tanh(is_leaf * number + self.present(0) * self.inner(children)))


class Down(vrt.VertexFunction):
    """Top-down: a vertex reads itself on the way up, and its parent on the way down."""

    def __init__(self, up: Up) -> None:
        super().__init__(state={"h": HIDDEN}, inputs={"up": up})
        self.cell, self.out = nn.GRUCell(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self) -> None:
        h = self.cell(self.gather("up").h, self.gather("parent").h)
        self.scatter(h=h)
        logits = self.push("logits", self.out(h))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class UpAndDown(vrt.Model):
    """Both directions."""

    def __init__(self) -> None:
        self.up = Up()
        self.down = Down(self.up)


def tree(rng: np.random.Generator, leaves: int) -> vrt.InputGraph:
    """Join neighbours at random until one vertex is left."""
    numbers = rng.standard_normal((leaves, 1))
    tops, slots, count = list(range(leaves)), ([], []), leaves
    parents: list[tuple[int, int]] = []  # (parent, child): what goes down
    while len(tops) > 1:
        at = int(rng.integers(len(tops) - 1))
        for slot, child in zip(slots, tops[at : at + 2], strict=True):
            slot.append((child, count))
            parents.append((count, child))
        tops[at : at + 2] = [count]
        count += 1
    pulled = vrt.Rows(numbers, np.r_[np.arange(leaves), np.full(count - leaves, -1)])
    label = np.full(count, -1)
    label[:leaves] = numbers[:, 0] == numbers.max()
    return vrt.InputGraph.from_types(
        {"up": count, "down": count},
        {
            ("up", "0", "up"): slots[0],
            ("up", "1", "up"): slots[1],
            ("up", "up", "down"): [(k, k) for k in range(count)],
            ("down", "parent", "down"): parents,
        },
        {"up": {"number": pulled}, "down": {"label": label}},
    )


def main(steps: int = 300) -> float:
    """Train on 500 trees; return the last loss over the first."""
    rng = np.random.default_rng(0)
    batch = vrt.GraphBatch.from_graphs([tree(rng, int(rng.integers(2, 9))) for _ in range(500)])
    net, optimizer = vrt.compile(UpAndDown(), seed=0), vrt.Adam(lr=0.02)
    losses = [net.step(batch, optimizer) for _ in range(steps)]
    print(f"loss of a tree: {losses[0]:.3f} at first, {losses[-1]:.3f} after {steps} steps")
    unseen = vrt.GraphBatch.from_graphs([tree(rng, int(rng.integers(2, 9))) for _ in range(200)])
    label = unseen.pulls["label"]
    right = (net(unseen)["logits"].argmax(axis=1) == label)[label >= 0]
    print(f"leaves of trees not seen before that are told right: {right.mean():.1%}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
