"""A vertex function while it is drawn: nodes, their types, and bounds on how large values get.

The bounds keep numbers near one however deep a graph is: what has grown is squashed (`tame`), what
divides stays away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tests.fuzz.function import FuzzNode, Operand, PullForm, Shape, ValueType
from tests.fuzz.result_bounds import BOUNDS

STATE, PULLED = 2.0, 2.0  # bounds on what is scattered and on what is pulled
MATRIX = 1.2  # elements of a parameter [M, N] are at most this over the root of N; others at most 1
MOST_CHILDREN = 20
LARGEST = 6.0  # what goes into a product or a function that grows
SMALL_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
WIDE_SIZES = (4, 8, 12, 16, 20, 24, 32, 48, 64)

Item = TypeVar("Item")


class Sketch:
    """A function under construction.

    Args:
        rng: every choice is drawn from it.
        sizes: of vectors.
        arity: slots, or None.
        reads_all: `gather_all` may be used.
        state: fields and their elements.
        relations: of `FunctionSpec`.

    Attributes:
        relation: whose children are read now; values of one relation meet.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        sizes: Sequence[int],
        arity: int | None,
        reads_all: bool,
        state: dict[str, int],
        relations: int = 0,
    ) -> None:
        self.rng, self.sizes, self.arity, self.reads_all = rng, list(sizes), arity, reads_all
        self.state, self.relations, self.relation = state, relations, 0
        self.parameters: dict[str, Shape] = {}
        self.divided: dict[str, Shape] = {}  # into parts of a shape
        self.pulls: dict[str, PullForm] = {}
        self.nodes: list[FuzzNode] = []
        self.bounds: list[float] = []

    # Choices.

    def chance(self, p: float) -> bool:
        """Draw a truth with probability p."""
        return bool(self.rng.random() < p)

    def pick(self, items: Sequence[Item]) -> Item:
        """Draw one of several."""
        return items[int(self.rng.integers(len(items)))]

    def size(self) -> int:
        """Draw the elements of a vector."""
        return self.pick(self.sizes)

    # Nodes.

    def emit(
        self,
        op: str,
        inputs: Sequence[Operand],
        type: ValueType,
        bound: float,
        extra: tuple[Any, ...] = (),
    ) -> int:
        """Append a node, or find the leaf that is there already."""
        if type.per_child:
            rows = (self.nodes[x].type for x in inputs if not isinstance(x, float))
            found = next((row.relation for row in rows if row.per_child), self.relation)
            type = replace(type, relation=found)
        node = FuzzNode(op, tuple(inputs), extra, type)
        if not inputs and node in self.nodes:
            return self.nodes.index(node)
        self.nodes.append(node)
        self.bounds.append(bound)
        return len(self.nodes) - 1

    def shape(self, x: Operand) -> Shape:
        """Return the shape of an operand."""
        return () if isinstance(x, float) else self.nodes[x].type.shape

    def length(self, x: Operand) -> int:
        """Return the elements of a vector."""
        (length,) = self.shape(x)
        return length

    def per_child(self, *operands: Operand) -> bool:
        """Tell whether one of several operands has a row for each child."""
        return any(not isinstance(x, float) and self.nodes[x].type.per_child for x in operands)

    def bound(self, x: Operand) -> float:
        """Return the largest that an operand can be."""
        return abs(x) if isinstance(x, float) else self.bounds[x]

    def fits(self, k: int, shape: Shape | None, per_child: bool | None) -> bool:
        """Tell whether a node is a value of a shape (None: any vector) and kind of rows."""
        type = self.nodes[k].type
        if type.index or (per_child is not None and type.per_child != per_child):
            return False
        if type.per_child and type.relation != self.relation:
            return False
        return len(type.shape) == 1 if shape is None else type.shape == shape

    # Leaves.

    def parameter(self, shape: Shape, fresh: bool = False) -> int:
        """Read an old or a new parameter of a shape."""
        whole = {n: other for n, other in self.parameters.items() if n not in self.divided}
        same = [name for name, other in whole.items() if other == shape]
        if same and not fresh and self.chance(0.5):
            name = self.pick(same)
        else:
            name = f"{'cbWD'[len(shape)]}{len(self.parameters)}"
            self.parameters[name] = shape
        bound = MATRIX / math.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        return self.emit("parameter", (), ValueType(shape), bound, (name,))

    def weight(self, shape: Shape) -> int:
        """Read a parameter of a shape, or a part of one."""
        return self.part(shape) if self.chance(0.12) else self.parameter(shape)

    def part(self, shape: Shape) -> int:
        """Read rows of a parameter, or a parameter in another shape."""
        old = [name for name, each in self.divided.items() if each == shape]
        rows, count = shape[0], self.pick((1, 2, 3))
        if old and self.chance(0.7):
            name = self.pick(old)
        else:
            name = f"P{len(self.parameters)}"
            forms: list[Shape] = [(count, *shape)]
            if len(shape) == 2:
                forms += [(count * rows, shape[1]), (math.prod(shape),)]
            self.parameters[name], self.divided[name] = self.pick(forms), shape
        declared = self.parameters[name]
        if len(declared) > len(shape):
            text = f"[{int(self.rng.integers(-declared[0], declared[0]))}]"
        elif len(declared) < len(shape):
            text = f".reshape{shape}"
        else:
            k = int(self.rng.integers(declared[0] // rows))
            text = f"[{k * rows}:{(k + 1) * rows}]"
        return self.emit("part", (), ValueType(shape), 1.0, (name, text))

    def gather(self, slot: int | None = None, field: str | None = None) -> int:
        """Read a child in a slot."""
        assert self.arity is not None
        slot = int(self.rng.integers(self.arity)) if slot is None else slot
        field = field or self.pick(list(self.state))
        return self.emit("gather", (), ValueType((self.state[field],)), STATE, (slot, field))

    def children(self, field: str | None = None) -> int:
        """Read all children."""
        field = field or self.pick(list(self.state))
        type = ValueType((self.state[field],), per_child=True)
        return self.emit("gather_all", (), type, STATE, (field,))

    def pull(self, shape: Shape, edges: bool = False) -> int:
        """Pull reals of vertices or of edges, under an old or a new name."""
        old = [n for n, f in self.pulls.items() if f == PullForm(shape, edges=edges)]
        letter = "e" if edges else "x"
        name = self.pick(old) if old and self.chance(0.7) else f"{letter}{len(self.pulls)}"
        self.pulls[name] = PullForm(shape, edges=edges)
        op = "edge" if edges else "pull"
        return self.emit(op, (), ValueType(shape, edges), PULLED, (name,))

    def pull_index(self, bound: int, edges: bool = False) -> int:
        """Pull an integer below a bound, of vertices or of edges, under an old or a new name."""
        old = [n for n, form in self.pulls.items() if form.bound and form.edges == edges]
        letter = "k" if edges else "i"
        name = self.pick(old) if old and self.chance(0.6) else f"{letter}{len(self.pulls)}"
        least = min(bound, self.pulls[name].bound) if name in self.pulls else bound
        self.pulls[name] = PullForm((), least, edges)
        op = "edge" if edges else "pull"
        return self.emit(op, (), ValueType((), edges, index=True), float(bound), (name,))

    def slot_edge(self, shape: Shape) -> int:
        """Read what the edge to the child in a slot carries, or look it up."""
        assert self.arity is not None
        slot = int(self.rng.integers(self.arity))
        if shape and self.chance(0.4):
            table = self.parameter((int(self.rng.integers(2, 7)), *shape))
            index = self._at_slot(self.pull_index(self.shape(table)[0], edges=True), slot)
            return self.emit("embed", (table, index), ValueType(shape), 1.0)
        return self._at_slot(self.pull(shape, edges=True), slot)

    def _at_slot(self, pulled: int, slot: int) -> int:
        """Read at one edge what there is of all."""
        node = self.nodes[pulled]
        type = replace(node.type, per_child=False, relation=0)
        return self.emit("slot_edge", (), type, self.bounds[pulled], (node.extra[0], slot))

    def embedding(self, length: int, edges: bool = False) -> int:
        """Look up a row of a table, which products may share."""
        tables = [s for s in self.parameters.values() if len(s) == 2 and s[1] == length]
        rows = self.pick(tables)[0] if tables and self.chance(0.4) else int(self.rng.integers(2, 7))
        table = self.parameter((rows, length))
        index = self.pull_index(rows, edges) if edges else self.index(rows)
        return self.emit("embed", (table, index), ValueType((length,), edges), 1.0)

    def index(self, bound: int) -> int:
        """Pull an integer below a bound, or compute one, which may be outside of it."""
        vectors = [k for k in range(len(self.nodes)) if self.fits(k, None, False)]
        if self.chance(0.75):
            return self.pull_index(bound)
        if vectors and self.chance(0.5):
            return self.argmax(self.pick(vectors))
        return self.arithmetic(self.pull_index(int(self.rng.integers(2, 6))))

    def argmax(self, x: int) -> int:
        """Find the largest element."""
        return self.emit("argmax", (x,), ValueType((), self.per_child(x)), float(self.length(x)))

    def arithmetic(self, x: int) -> int:
        """Compute with an integer."""
        op = self.pick(("add", "sub", "mul", "floordiv", "mod"))
        return self.map(op, x, self.pick((1.0, 2.0, 3.0)))

    def named(self, x: int) -> int:
        """Take the element that an integer names."""
        index = self.index(self.length(x))
        return self.emit("named", (x, index), ValueType((), self.per_child(x)), self.bound(x))

    def has(self) -> int:
        """Ask whether there is a child in a slot or a pulled value."""
        pulled = [k for k, node in enumerate(self.nodes) if node.op == "pull"]
        if self.arity is not None and (not pulled or self.chance(0.5)):
            slot = int(self.rng.integers(self.arity))
            return self.emit("present", (), ValueType(()), 1.0, (slot,))
        if not pulled:
            return self.parameter(())
        k = self.pick(pulled)
        return self.emit("has", (k,), ValueType(()), 1.0, self.nodes[k].extra)

    # Operations.

    def map(self, op: str, *operands: Operand) -> int:
        """Apply an op elementwise."""
        shape = next((self.shape(x) for x in operands if self.shape(x)), ())
        bounds = [self.bound(x) for x in operands]
        bound = BOUNDS.get(op, max)(*bounds) if len(bounds) > 1 or op in BOUNDS else bounds[0]
        return self.emit(op, operands, ValueType(shape, self.per_child(*operands)), bound)

    def tame(self, x: int, most: float = LARGEST) -> int:
        """Squash what has grown."""
        if self.bound(x) <= most:
            return x
        return self.map("tanh" if self.chance(0.7) else "sigmoid", x)

    def function(self, op: str, x: int) -> int:
        """Apply a function of one operand where it is smooth and not large."""
        x = self.tame(x, 2.0 if op == "exp" else LARGEST)
        if op == "log":
            x = self.map("add", self.map("sigmoid", x), 0.5)
        if op == "sqrt":
            x = self.map("add", self.map("square", x), 0.5)
        return self.map(op, x)

    def power(self, x: int, exponent: int) -> int:
        """Raise to a whole power; what is divided by is at least 0.5."""
        x = self.tame(x, 1.5)
        if exponent < 0:
            x = self.map("add", self.map("square", x), 0.7)
        bound = self.bound(x) ** exponent if exponent > 0 else 2.1
        type = ValueType(self.shape(x), self.per_child(x))
        return self.emit("power", (x,), type, bound, (exponent,))

    def divide(self, x: Operand, y: int) -> int:
        """Divide by what is made at least 0.7."""
        squared = self.chance(0.5)
        y = self.map("square", self.tame(y)) if squared else self.map("sigmoid", y)
        return self.map("div", x, self.map("add", y, 1.0 if squared else 0.7))

    def matmul(self, x: int, length: int, weight: int | None = None) -> int:
        """Multiply a matrix, of the function's own or new, and a vector."""
        x = self.tame(x)
        weight = self.weight((length, self.length(x))) if weight is None else weight
        bound = self.bound(weight) * self.bound(x) * self.length(x)
        return self.emit("matmul", (weight, x), ValueType((length,), self.per_child(x)), bound)

    def transposed(self, x: int, length: int) -> int:
        """Multiply the transpose of a matrix and a vector."""
        x = self.tame(x)
        weight = self.weight((self.length(x), length))
        bound = MATRIX * self.bound(x) * self.length(x)
        return self.emit("transposed", (weight, x), ValueType((length,), self.per_child(x)), bound)

    def block_diagonal(self, x: int) -> int:
        """Multiply parts of a vector, each by a matrix of its own."""
        x, length = self.tame(x), self.length(x)
        count = self.pick([n for n in (1, 2, 3, 4) if length % n == 0])
        shape = (count, self.pick((1, 2, 3, 4)), length // count)
        weights = self.parameter(shape)
        bound = self.bound(weights) * self.bound(x) * shape[2]
        type = ValueType((shape[0] * shape[1],), self.per_child(x))
        return self.emit("block_diagonal", (weights, x), type, bound)

    def full(self, length: int) -> int:
        """Make a constant vector."""
        op, extra = self.pick((("full", (length, 0.75)), ("ones", (length,)), ("zeros", (length,))))
        return self.emit(op, (), ValueType((length,)), 1.0, extra)

    def stack(self, xs: Sequence[int]) -> int:
        """Put numbers into a vector."""
        bound = max(self.bound(x) for x in xs)
        return self.emit("stack", xs, ValueType((len(xs),), self.per_child(*xs)), bound)

    def dot(self, x: int, y: int) -> int:
        """Multiply two vectors element by element and add up."""
        bound = self.bound(x) * self.bound(y) * self.length(x)
        return self.emit("dot", (x, y), ValueType((), self.per_child(x, y)), bound)

    def slice(self, x: int, start: int, stop: int) -> int:
        """Take some elements."""
        type = ValueType((stop - start,), self.per_child(x))
        return self.emit("slice", (x,), type, self.bound(x), (start, stop))

    def parts(self, x: int, count: int) -> list[int]:
        """Cut a vector into equal parts, by slices or `split`."""
        step = self.length(x) // count
        if self.chance(0.6):
            return [self.slice(x, k * step, (k + 1) * step) for k in range(count)]
        type = ValueType((step,), self.per_child(x))
        return [self.emit("split", (x,), type, self.bound(x), (count, k)) for k in range(count)]

    def element(self, x: int) -> int:
        """Take one element, counted from either end."""
        k = int(self.rng.integers(-self.length(x), self.length(x)))
        return self.emit("element", (x,), ValueType((), self.per_child(x)), self.bound(x), (k,))

    def concat(self, xs: Sequence[int]) -> int:
        """Join vectors."""
        type = ValueType((sum(self.length(x) for x in xs),), self.per_child(*xs))
        return self.emit("concat", xs, type, max(self.bound(x) for x in xs))

    def reduce(self, op: str, x: int, over: str = "") -> int:
        """Reduce by sum, max or mean.

        Args:
            over: "children", "elements", or "" for the default: the children, if it has any.
        """
        children = over == "children" or (not over and self.per_child(x))
        shape = self.shape(x) if children else ()
        count = MOST_CHILDREN if children else math.prod(self.shape(x))
        bound = self.bound(x) * (count if op == "sum" else 1.0)
        type = ValueType(shape, self.per_child(x) and not children)
        return self.emit(op, (x,), type, bound, (over,))

    def along(self, op: str, x: int, over: str = "") -> int:
        """Apply logsumexp, softmax or log_softmax; a value per child has no default for `over`."""
        children = over == "children"
        count = MOST_CHILDREN if children else self.length(x)
        bound = 1.0 if op == "softmax" else 2.0 * self.bound(x) + math.log(count)
        if op == "logsumexp":
            shape = self.shape(x) if children else ()
            type = ValueType(shape, self.per_child(x) and not children)
        else:
            type = ValueType(self.shape(x), self.per_child(x))
        return self.emit(op, (x,), type, bound, (over,))

    def compare(self, op: str, x: Operand, y: Operand) -> int:
        """Compare two reals, or an integer pull with a whole number or another one."""
        shape = next((self.shape(v) for v in (x, y) if self.shape(v)), ())
        return self.emit(op, (x, y), ValueType(shape, self.per_child(x, y)), 1.0)

    def error(self, x: int, y: Operand) -> int:
        """Compare two values, or one with a number."""
        op = self.pick(("squared_error", "binary_cross_entropy_with_logits", "hinge_loss"))
        bound = (1.0 + self.bound(x) + self.bound(y)) ** 2 * math.prod(self.shape(x))
        return self.emit(op, (x, y), ValueType((), self.per_child(x, y)), bound)

    def cross_entropy(self, logits: int) -> int:
        """Compare logits with a pulled label."""
        label = self.index(self.length(logits))
        bound = 2.0 * self.bound(logits) + math.log(self.length(logits))
        if self.chance(0.15):
            weights = self.pick(
                (None, tuple(self.rng.integers(0, 3, self.length(logits)).tolist()))
            )
            share = self.pick((0.0, 0.125))
            return self.emit(
                "smoothed", (logits, label), ValueType(()), 2 * bound, (share, weights)
            )
        op = "cross_entropy" if self.chance(0.8) else "multi_margin_loss"
        return self.emit(op, (logits, label), ValueType(()), bound + 1.0)
