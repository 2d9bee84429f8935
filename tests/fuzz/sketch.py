"""A vertex function while it is drawn: nodes, their types, and bounds on how large values get.

The bounds keep numbers near one however deep a graph is: what has grown is squashed (`tame`), what
divides stays away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tests.fuzz.function import FuzzNode, Operand, PullForm, Shape, Slot, ValueType

STATE, PULLED = 2.0, 2.0  # bounds on what is scattered and on what is pulled
MATRIX = 1.2  # elements of a parameter [M, N] are at most this over the root of N; others at most 1
MOST_CHILDREN = 20
LARGEST = 6.0  # what goes into a product or a function that grows
FRESH = 0.12  # how often an operand is new though there is one that fits
# Bounds on the results of elementwise ops, from those of the operands; else the largest of these.
BOUNDS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a + 1.0,
    "mod": lambda a, b: b,
    "floor": lambda a: a + 1.0,
    "div": lambda a, b: 1.5 * a,  # divisors are at least 0.7
    "square": lambda a: a * a,
    "exp": math.exp,
    "log": lambda a: 1.0 + math.log(1.0 + a),
    "sqrt": lambda a: 1.0 + a,
    "sigmoid": lambda a: 1.0,
    "tanh": lambda a: 1.0,
    "where": lambda mask, a, b: max(a, b),
    "softplus": lambda a: a + 1.0,
    "elu": lambda a: a + 1.0,
    "clip": lambda a, low, high: 0.7,
    "straight_through": lambda a, b: b,
}

Item = TypeVar("Item")


class Sketch:
    """A function under construction.

    Args:
        rng: every choice is drawn from it.
        sizes: of vectors.
        state: fields and their elements.
        below: by slot or relation, the state of its children.
        every: relations of which all children may be read.
        parameters: of the network, by name; the function adds to them.
        drops: dropout is not of nothing; counts: of rows of tables, and of classes.

    Attributes:
        relation: whose children are read now; values of one relation meet.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        sizes: Sequence[int],
        state: Mapping[str, int],
        below: Mapping[Slot, Mapping[str, int]],
        every: Sequence[str],
        parameters: dict[str, Shape],
        drops: bool = False,
        counts: Sequence[int] = (2, 3, 4, 5, 6),
    ) -> None:
        self.rng, self.sizes, self.state, self.below = rng, list(sizes), state, below
        self.slots = [slot for slot in below if slot not in every]
        self.every, self.relation = every, every[0] if every else ""
        self.parameters, self.drops = parameters, drops
        self.counts = counts
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

    def number(self, low: int, end: int) -> int:
        """Draw a whole number from the first on, below the other."""
        return int(self.rng.integers(low, end))

    def size(self) -> int:
        """Draw the elements of a vector."""
        return self.pick(self.sizes)

    # Nodes.

    def emit(
        self,
        op: str,
        inputs: Sequence[Operand],
        shape: Shape,
        bound: float,
        extra: tuple[Any, ...] = (),
        relation: str | None = None,
        index: bool = False,
    ) -> int:
        """Append a node, or find the leaf that is there already.

        Args:
            relation: of a row for each child; by default that of the operands.
        """
        if relation is None:
            relation = next(filter(None, map(self.rows, inputs)), "")
        node = FuzzNode(op, tuple(inputs), extra, ValueType(shape, relation, index))
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

    def rows(self, x: Operand) -> str:
        """Return of whose children an operand has rows, "" where it has one."""
        return "" if isinstance(x, float) else self.nodes[x].type.relation

    def bound(self, x: Operand) -> float:
        """Return the largest that an operand can be."""
        return abs(x) if isinstance(x, float) else self.bounds[x]

    def values(self, shape: Shape | None, per_child: bool = False) -> list[int]:
        """List the values of a shape (None: any vector), per vertex or per child."""
        wanted = self.relation if per_child else ""
        return [
            k
            for k, type in enumerate(node.type for node in self.nodes)
            if not type.index and type.relation == wanted
            if (len(type.shape) == 1 if shape is None else type.shape == shape)
        ]

    # Operands: values that are there, mostly the latest, or new ones.

    def some(self, shape: Shape | None = None, per_child: bool = False) -> int:
        """Return a value of a shape (None: any vector), per vertex or per child."""
        found = self.values(shape, per_child)
        if not found or self.chance(FRESH):
            return self.fresh(shape, per_child)
        if self.chance(0.4):
            return found[-1 - min(int(self.rng.geometric(0.45)) - 1, len(found) - 1)]
        return self.pick(found)

    def fresh(self, shape: Shape | None = None, per_child: bool = False) -> int:
        """Make a value of a shape."""
        c = self.rng.random()
        if per_child:
            if c < 0.25:
                return self.of_edges(shape)
            fields = self.fields(self.relation, shape)
            if fields:
                return self.children(self.pick(fields))
            x = self.children()
            return self.matmul(x, shape[0]) if shape else self.element(x)
        if shape == ():
            return self.fresh_number(c)
        (length,) = shape or (self.size(),)
        if self.slots and c < 0.06:
            return self.slot_edge((length,))
        if c < 0.2:
            return self.embedding(length)
        if c < 0.4:
            return self.pull((length,))
        if c < 0.55:
            return self.weight((length,))
        found = self.child((length,)) if c > 0.75 else None
        return self.matmul(self.some(), length) if found is None else found

    def fresh_number(self, c: float) -> int:
        """Make a number."""
        if self.every and c < 0.05:
            return self.emit("count", (), (), float(MOST_CHILDREN), (self.relation,))
        if self.slots and c < 0.15:
            return self.slot_edge(())
        if c < 0.25:
            return self.has()
        vectors = self.values(None)
        if c < 0.4 or not vectors:
            return self.pull(())
        return self.parameter(()) if c < 0.5 else self.summary(self.pick(vectors))

    def fields(self, slot: Slot, shape: Shape | None = None) -> list[str]:
        """List the fields of children that have a shape."""
        return [field for field, n in self.below[slot].items() if shape in (None, (n,))]

    def child(self, shape: Shape | None = None) -> int | None:
        """Read a field of a child in a slot, or reduce it over all; None where none fits."""
        found = [(slot, field) for slot in self.below for field in self.fields(slot, shape)]
        if not found:
            return None
        slot, field = self.pick(found)
        if slot in self.slots:
            return self.gather(slot, field)
        return self.reduce(self.pick(("sum", "max", "mean")), self.children(field, str(slot)))

    def summary(self, x: int) -> int:
        """Compute a number from a vector per vertex."""
        op = self.pick(("element", "element", "sum", "sum", "mean", "max", "logsumexp", "prod"))
        x = self.tame(x, 1.0) if op == "prod" else x
        if op == "element":
            return self.element(x)
        over = self.pick(("", "", "", "elements"))
        return self.along(op, x, over) if op == "logsumexp" else self.reduce(op, x, over)

    # Leaves.

    def parameter(self, shape: Shape, fresh: bool = False) -> int:
        """Read an old or a new parameter of a shape."""
        whole = {n: each for n, each in self.parameters.items() if n[0] != "P"}
        same = [name for name, other in whole.items() if other == shape]
        if same and not fresh and self.chance(0.5):
            name = self.pick(same)
        else:
            name = f"{'cbWD'[len(shape)]}{len(self.parameters)}"
            self.parameters[name] = shape
        bound = MATRIX / math.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        return self.emit("parameter", (), shape, bound, (name,))

    def weight(self, shape: Shape) -> int:
        """Read a parameter of a shape, or a part of one: rows of it, or it in another shape."""
        if self.chance(0.88):
            return self.parameter(shape)
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
            text = f"[{self.number(-declared[0], declared[0])}]"
        elif len(declared) < len(shape):
            text = f".reshape{shape}"
        else:
            k = self.number(0, declared[0] // rows)
            text = f"[{k * rows}:{(k + 1) * rows}]"
        return self.emit("part", (), shape, 1.0, (name, text))

    def gather(self, slot: Slot, field: str = "") -> int:
        """Read a child in a slot."""
        field = field or self.pick(list(self.below[slot]))
        return self.emit("gather", (), (self.below[slot][field],), STATE, (slot, field))

    def children(self, field: str = "", relation: str = "") -> int:
        """Read all children of a relation, by default of the one that is read now."""
        relation = relation or self.relation
        state = self.below[relation]
        field = field or self.pick(list(state))
        return self.emit("gather_all", (), (state[field],), STATE, (field,), relation)

    def pull_name(self, letter: str, form: PullForm, fresh: bool = False) -> str:
        """Return an old or a new name to pull a form under.

        Types share names: those of reals say their shape, integers are below bounds of each type.
        """
        letter += "_".join(map(str, form.shape))
        old = [name for name in self.pulls if name.rpartition("n")[0] == letter]
        again = bool(old) and not fresh and self.chance(0.7)
        name = self.pick(old) if again else f"{letter}n{len(old)}"
        known = self.pulls.setdefault(name, form)
        self.pulls[name] = min(form, known, key=lambda each: each.bound)
        return name

    def pull(self, shape: Shape, edges: bool = False) -> int:
        """Pull reals of vertices or of edges."""
        if edges:
            name = self.pull_name("e", PullForm(shape, edges=True))
            return self.emit("edge", (), shape, PULLED, (name,), self.relation)
        return self.emit("pull", (), shape, PULLED, (self.pull_name("x", PullForm(shape)),))

    def pull_index(self, bound: int, edges: bool = False, fresh: bool = False) -> int:
        """Pull an integer below a bound, of vertices or of edges."""
        name = self.pull_name("ik"[edges], PullForm((), bound, edges), fresh)
        op, relation = ("edge", self.relation) if edges else ("pull", "")
        return self.emit(op, (), (), float(bound), (name,), relation, True)

    def of_edges(self, shape: Shape | None) -> int:
        """Read what edges carry, or look it up."""
        if shape is None:
            shape = (self.size(),)
        return (
            self.embedding(*shape, True) if shape and self.chance(0.5) else self.pull(shape, True)
        )

    def slot_edge(self, shape: Shape) -> int:
        """Read what the edge to the child in a slot carries, or look it up."""
        slot = self.pick(self.slots)
        if not shape or self.chance(0.6):
            name = self.pull_name("e", PullForm(shape, edges=True))
            return self.emit("slot_edge", (), shape, PULLED, (name, slot))
        table = self.parameter((self.pick(self.counts), *shape))
        bound = self.shape(table)[0]
        extra = self.pull_name("k", PullForm((), bound, True)), slot
        index = self.emit("slot_edge", (), (), float(bound), extra, "", True)
        return self.emit("embed", (table, index), shape, 1.0)

    def embedding(self, length: int, edges: bool = False) -> int:
        """Look up a row of a table, which products may share."""
        tables = [s for s in self.parameters.values() if len(s) == 2 and s[1] == length]
        rows = self.pick(tables)[0] if tables and self.chance(0.4) else self.pick(self.counts)
        return self.look_up((rows, length), edges)

    def look_up(self, shape: Shape, edges: bool = False) -> int:
        """Look up a row of a table of a shape."""
        table = self.parameter(shape)
        index = self.pull_index(shape[0], True) if edges else self.index(shape[0])
        return self.emit("embed", (table, index), shape[1:], 1.0)

    def index(self, bound: int) -> int:
        """Pull an integer below a bound, or compute one, which may be outside of it."""
        vectors = self.values(None)
        if self.chance(0.75):
            return self.pull_index(bound)
        if vectors and self.chance(0.5):
            return self.argmax(self.pick(vectors))
        return self.arithmetic(self.pull_index(self.number(2, 6)))

    def argmax(self, x: int) -> int:
        """Find the largest element."""
        return self.emit("argmax", (x,), (), float(self.length(x)))

    def arithmetic(self, x: int) -> int:
        """Compute with an integer."""
        op = self.pick(("add", "sub", "mul", "floordiv", "mod"))
        return self.map(op, x, self.pick((1.0, 2.0, 3.0)))

    def has(self) -> int:
        """Ask whether there is a child in a slot or a pulled value."""
        pulled = [k for k, node in enumerate(self.nodes) if node.op == "pull"]
        if self.slots and (not pulled or self.chance(0.5)):
            return self.emit("present", (), (), 1.0, (self.pick(self.slots),))
        if not pulled:
            return self.parameter(())
        k = self.pick(pulled)
        return self.emit("has", (k,), (), 1.0, self.nodes[k].extra)

    # Operations.

    def map(self, op: str, *operands: Operand) -> int:
        """Apply an op elementwise."""
        shape = next(filter(None, map(self.shape, operands)), ())
        bounds = [self.bound(x) for x in operands]
        return self.emit(op, operands, shape, BOUNDS[op](*bounds) if op in BOUNDS else max(bounds))

    def add(self, xs: Sequence[int]) -> int:
        """Add values up."""
        out = xs[0]
        for x in xs[1:]:
            out = self.map("add", out, x)
        return out

    def tame(self, x: int, most: float = LARGEST) -> int:
        """Squash what has grown."""
        if self.bound(x) <= most:
            return x
        return self.map("tanh" if self.chance(0.7) else "sigmoid", x)

    def function(self, op: str, x: int) -> int:
        """Apply a function of one operand where it is smooth and not large."""
        x = self.tame(x, 2.0 if op == "exp" else LARGEST)
        if op in ("log", "sqrt"):
            x = self.map("add", self.map("sigmoid" if op == "log" else "square", x), 0.5)
        return self.map(op, x)

    def power(self, x: int, exponent: int) -> int:
        """Raise to a whole power; what is divided by is at least 0.5."""
        x = self.tame(x, 1.5)
        if exponent < 0:
            x = self.map("add", self.map("square", x), 0.7)
        bound = self.bound(x) ** exponent if exponent > 0 else 2.1
        return self.emit("power", (x,), self.shape(x), bound, (exponent,))

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
        return self.emit("matmul", (weight, x), (length,), bound)

    def transposed(self, x: int, length: int) -> int:
        """Multiply the transpose of a matrix and a vector."""
        x = self.tame(x)
        weight = self.weight((self.length(x), length))
        bound = MATRIX * self.bound(x) * self.length(x)
        return self.emit("transposed", (weight, x), (length,), bound)

    def block_diagonal(self, x: int) -> int:
        """Multiply parts of a vector, each by a matrix of its own."""
        x, length = self.tame(x), self.length(x)
        count = self.pick([n for n in (1, 2, 3, 4) if length % n == 0])
        shape = (count, self.number(1, 5), length // count)
        weights = self.parameter(shape)
        bound = self.bound(weights) * self.bound(x) * shape[2]
        return self.emit("block_diagonal", (weights, x), (shape[0] * shape[1],), bound)

    def full(self, length: int) -> int:
        """Make a constant vector."""
        op, extra = self.pick((("full", (length, 0.75)), ("ones", (length,)), ("zeros", (length,))))
        return self.emit(op, (), (length,), 1.0, extra)

    def join(self, op: str, xs: Sequence[int]) -> int:
        """Put numbers into a vector by `stack`, or join vectors by `concat`."""
        length = sum(self.length(x) for x in xs) if op == "concat" else len(xs)
        return self.emit(op, xs, (length,), max(self.bound(x) for x in xs))

    def dot(self, x: int, y: int) -> int:
        """Multiply two vectors element by element and add up."""
        return self.emit("dot", (x, y), (), self.bound(x) * self.bound(y) * self.length(x))

    def slice(self, x: int, start: int, stop: int) -> int:
        """Take some elements."""
        return self.emit("slice", (x,), (stop - start,), self.bound(x), (start, stop))

    def parts(self, x: int, count: int) -> list[int]:
        """Cut a vector into equal parts, by slices or `split`."""
        step = self.length(x) // count
        if self.chance(0.6):
            return [self.slice(x, k * step, (k + 1) * step) for k in range(count)]
        return [self.emit("split", (x,), (step,), self.bound(x), (count, k)) for k in range(count)]

    def element(self, x: int) -> int:
        """Take one element, counted from either end."""
        k = self.number(-self.length(x), self.length(x))
        return self.emit("element", (x,), (), self.bound(x), (k,))

    def named(self, x: int) -> int:
        """Take the element that an integer names."""
        return self.emit("named", (x, self.index(self.length(x))), (), self.bound(x))

    def reduce(self, op: str, x: int, over: str = "") -> int:
        """Reduce by sum, max or mean.

        Args:
            over: "children", "elements", or "" for the default: the children, if it has any.
        """
        children = over == "children" or (not over and bool(self.rows(x)))
        shape = self.shape(x) if children else ()
        count = MOST_CHILDREN if children else math.prod(self.shape(x))
        bound = self.bound(x) * (count if op == "sum" else 1.0)
        return self.emit(op, (x,), shape, bound, (over,), "" if children else self.rows(x))

    def along(self, op: str, x: int, over: str = "") -> int:
        """Apply logsumexp, softmax or log_softmax; a value per child has no default for `over`."""
        children = over == "children"
        count = MOST_CHILDREN if children else self.length(x)
        bound = 1.0 if op == "softmax" else 2.0 * self.bound(x) + math.log(count)
        if op != "logsumexp":
            return self.emit(op, (x,), self.shape(x), bound, (over,))
        shape = self.shape(x) if children else ()
        return self.emit(op, (x,), shape, bound, (over,), "" if children else self.rows(x))

    def compare(self, op: str, x: Operand, y: Operand) -> int:
        """Compare two reals, or an integer pull with a whole number or another one."""
        return self.emit(op, (x, y), self.shape(x) or self.shape(y), 1.0)

    def error(self, x: int, y: Operand) -> int:
        """Compare two values, or one with a number."""
        op = self.pick(("squared_error", "binary_cross_entropy_with_logits", "hinge_loss"))
        bound = (1.0 + self.bound(x) + self.bound(y)) ** 2 * math.prod(self.shape(x))
        return self.emit(op, (x, y), (), bound)

    def cross_entropy(self, logits: int, label: int | None = None) -> int:
        """Compare logits with a label."""
        count = self.length(logits)
        label = self.index(count) if label is None else label
        bound = 2.0 * self.bound(logits) + math.log(count) + 1.0
        if self.chance(0.15):
            weights = self.pick((None, tuple(self.rng.integers(0, 3, count).tolist())))
            extra = self.pick((0.0, 0.125)), weights
            return self.emit("smoothed", (logits, label), (), 2 * bound, extra)
        op = "cross_entropy" if self.chance(0.8) else "multi_margin_loss"
        return self.emit(op, (logits, label), (), bound)
