"""Adaptive computation time: a network that decides itself after how many steps it stops.

Run: python examples/halting.py
Source: Graves 2016. The chain has as many vertices as there may be steps; what is left of the
probability to halt weighs each of them, and the last one takes the rest. The paper has 64 inputs,
and trains for days; four are learned in a second, and need few steps.
"""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from vertexrt import nn

INPUT, HIDDEN, STEPS, COST = 4, 10, 6, 0.01


class Ponder(vrt.VertexFunction):
    """One step. Pulls `x` (the same at each), `last` (1.0 at the last one) and `target`, there."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": HIDDEN, "halted": 1, "sum": HIDDEN})
        self.cell, self.halt = nn.GRUCell(INPUT, HIDDEN), nn.Linear(HIDDEN, 1)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self) -> None:
        before = self.gather(0)
        h = self.cell(self.pull("x", shape=INPUT), before.h)
        left, last = 1.0 - before.halted, self.pull("last")
        share = vrt.minimum(vrt.sigmoid(self.halt(h)), left)
        share = share + last * (left - share)
        total = before.sum + share[0] * h
        self.scatter(h=h, halted=before.halted + share, sum=total)
        self.push("share", share)
        output = self.push("output", self.out(total))
        error = vrt.losses.squared_error(output, self.pull("target", shape=1, dtype="float"))
        self.push("loss", last * error + COST * left[0])


def example(rng: np.random.Generator) -> vrt.InputGraph:
    """Draw numbers; the target is their parity of signs."""
    x = rng.choice([-1.0, 1.0], INPUT)
    last = np.r_[np.zeros(STEPS - 1), 1.0]
    target = vrt.Rows(np.full((1, 1), x.prod()), np.r_[np.full(STEPS - 1, -1), 0])
    return vrt.InputGraph.chain(
        STEPS, {"x": np.tile(x, (STEPS, 1)), "last": last, "target": target}
    )


def main(steps: int = 200) -> float:
    """Train on 64 examples; return the last loss over the first."""
    rng = np.random.default_rng(0)
    batch = vrt.GraphBatch.from_graphs([example(rng) for _ in range(64)])
    net, optimizer = vrt.compile(Ponder(), seed=0), vrt.Adam(lr=0.02)
    losses = [net.step(batch, optimizer) for _ in range(steps)]
    share = net(batch)["share"].reshape(-1, STEPS)
    used = (share * np.arange(1, STEPS + 1)).sum(axis=1).mean()
    print(f"loss: {losses[0]:.3f}, then {losses[-1]:.3f}; halts after {used:.1f} steps")
    last = batch.pulls["last"] == 1.0
    target = batch.pulls["target"]
    right = np.sign(net(batch)["output"][last]) == target.table[target.index[last]]
    print(f"parities that are right: {right.mean():.0%}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
