"""A tape: expressions that Python code builds as it runs, each of its own shape, in one batch.

Run: python examples/tape.py
Each operation is a vertex, so that thousands of different expressions are evaluated and
differentiated together. This is what define-by-run libraries record, one operation at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import vertexrt as vrt

SIZE = 5
OPERATIONS = ("add", "multiply", "tanh", "matrix")


class Operation(vrt.VertexFunction):
    """One operation. Pulls `value` (leaves), `target` (results) and a flag for each operation."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"y": SIZE})
        self.w = vrt.Parameter((SIZE, SIZE))

    def forward(self) -> None:
        a, b = self.gather(0).y, self.gather(1).y
        results = {"add": a + b, "multiply": a * b, "tanh": vrt.tanh(a), "matrix": self.w @ a}
        y = self.pull("value", shape=SIZE)
        for name, result in results.items():
            self.pull(name)
            y = y + self.present(name) * result  # only what a vertex does is computed
        self.scatter(y=y)
        self.push("y", y)
        target = self.pull("target", shape=SIZE)
        self.push("loss", self.present("target") * vrt.losses.squared_error(y, target))


@dataclass
class Tape:
    """What was recorded: the operation of each vertex, its operands, values of leaves."""

    kinds: list[str] = field(default_factory=list)
    operands: list[list[int]] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def leaf(self, value: np.ndarray) -> Variable:
        self.values.append(value)
        return self.record("leaf")

    def record(self, kind: str, *operands: Variable) -> Variable:
        self.kinds.append(kind)
        self.operands.append([each.vertex for each in operands])
        return Variable(self, len(self.kinds) - 1)

    def graph(self, target: np.ndarray) -> vrt.InputGraph:
        """Return the graph; the last vertex is the result."""
        leaf = np.array(self.kinds) == "leaf"
        index = np.where(leaf, np.cumsum(leaf) - 1, -1)
        ends = np.r_[np.full(len(leaf) - 1, -1), 0]
        flags = {
            name: vrt.Rows(np.ones(1), np.array([0 if k == name else -1 for k in self.kinds]))
            for name in OPERATIONS
        }
        pulls = {"value": vrt.Rows(np.array(self.values), index), **flags}
        pulls["target"] = vrt.Rows(target[None], ends)
        return vrt.InputGraph.from_children(self.operands, pulls)


@dataclass(frozen=True)
class Variable:
    """A vertex of a tape, with the operators of Python."""

    tape: Tape
    vertex: int

    def __add__(self, other: Variable) -> Variable:
        return self.tape.record("add", self, other)

    def __mul__(self, other: Variable) -> Variable:
        return self.tape.record("multiply", self, other)

    def tanh(self) -> Variable:
        return self.tape.record("tanh", self)

    def matrix(self) -> Variable:
        return self.tape.record("matrix", self)


def expression(rng: np.random.Generator) -> vrt.InputGraph:
    """Build an expression whose length and shape depend on what is drawn."""
    tape = Tape()
    x, y = (tape.leaf(rng.standard_normal(SIZE)) for _ in range(2))
    total = x.matrix()
    while rng.random() < 0.7:
        total = total * y if rng.random() < 0.3 else (total.matrix() + x).tanh()
    total = (total + y).tanh()
    return tape.graph(np.tanh(rng.standard_normal(SIZE)))


def main(steps: int = 50) -> float:
    """Train on 100 expressions; return the last loss over the first."""
    rng = np.random.default_rng(0)
    batch = vrt.GraphBatch.from_graphs([expression(rng) for _ in range(100)])
    net, optimizer = vrt.compile(Operation(), seed=0), vrt.Adam(lr=0.02)
    losses = [net.step(batch, optimizer) for _ in range(steps)]
    print(f"{batch.num_vertices} operations; loss {losses[0]:.3f}, then {losses[-1]:.3f}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
