"""A tape: expressions that Python code builds as it runs, each of its own shape, in one batch.

Run: python examples/tape.py
Each operation is a vertex, so that thousands of different expressions are evaluated and
differentiated together. This is what define-by-run libraries record, one operation at a time. The
expressions have one matrix in common, which training finds from their results alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import vertexrt as vrt

SIZE = 5
TRUE = np.random.default_rng(1).standard_normal((SIZE, SIZE)) / SIZE**0.5  # the matrix to find
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
    """What was recorded: the operation of each vertex, its operands, its value."""

    kinds: list[str] = field(default_factory=list)
    operands: list[list[int]] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def record(self, kind: str, value: np.ndarray, *operands: Variable) -> Variable:
        self.kinds.append(kind)
        self.values.append(value)
        self.operands.append([each.vertex for each in operands])
        return Variable(self, len(self.kinds) - 1)

    def graph(self) -> vrt.InputGraph:
        """Return the graph: values of leaves are pulled, that of the last vertex is the target."""
        count, values = len(self.kinds), np.array(self.values)
        leaves = np.where(np.array(self.kinds) == "leaf", np.arange(count), -1)
        last = np.where(np.arange(count) == count - 1, count - 1, -1)
        flags = {
            name: vrt.Rows(np.ones(1), np.array([0 if k == name else -1 for k in self.kinds]))
            for name in OPERATIONS
        }
        pulls = {"value": vrt.Rows(values, leaves), "target": vrt.Rows(values, last), **flags}
        return vrt.InputGraph.from_children(self.operands, pulls)


@dataclass(frozen=True)
class Variable:
    """A vertex of a tape, with the operators of Python."""

    tape: Tape
    vertex: int

    @property
    def value(self) -> np.ndarray:
        return self.tape.values[self.vertex]

    def __add__(self, other: Variable) -> Variable:
        return self.tape.record("add", self.value + other.value, self, other)

    def __mul__(self, other: Variable) -> Variable:
        return self.tape.record("multiply", self.value * other.value, self, other)

    def tanh(self) -> Variable:
        return self.tape.record("tanh", np.tanh(self.value), self)

    def matrix(self) -> Variable:
        return self.tape.record("matrix", TRUE @ self.value, self)


def expression(rng: np.random.Generator) -> vrt.InputGraph:
    """Build an expression whose length and shape depend on what is drawn."""
    tape = Tape()
    x, y = (tape.record("leaf", rng.standard_normal(SIZE)) for _ in range(2))
    total = x.matrix()
    while rng.random() < 0.7:
        total = total * y if rng.random() < 0.3 else (total.matrix() + x).tanh()
    total = (total + y).tanh()
    return tape.graph()


def main(steps: int = 200) -> float:
    """Train on 100 expressions; return the last loss over the first."""
    rng = np.random.default_rng(0)
    batch = vrt.GraphBatch.from_graphs([expression(rng) for _ in range(100)])
    net, optimizer = vrt.compile(Operation(), seed=0), vrt.Adam(lr=0.03)
    losses = [net.step(batch, optimizer) for _ in range(steps)]
    print(f"{batch.num_vertices} operations; loss {losses[0]:.3f}, then {losses[-1]:.1e}")
    print(f"largest error of the matrix: {np.abs(net.parameters['w'] - TRUE).max():.4f}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
