"""A vertex function as plain data: it shrinks easily and prints as Python.

Nodes are numbered; an operand is the number of an earlier node, or a real number. `source` writes
`def build(vrt)`, which makes the function with vertexrt or with the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

Shape = tuple[int, ...]
Operand = int | float
Build = Callable[[Any], Any]

# How a node reads: operands first, then what else it has. Others are calls: `vrt.NAME(operands)`.
TEXTS = {
    "gather": "self.gather({0}).{1}",
    "gather_all": "self.gather_all({1}).{0}",
    "present": "self.present({0})",
    "has": "self.present({1!r})",
    "element": "{0}[{1}]",
    "named": "{0}[{1}]",
    "slice": "{0}[{1}:{2}]",
    "split": "vrt.split({0}, {1})[{2}]",
    "matmul": "{0} @ {1}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "smoothed": "vrt.losses.cross_entropy({0}, {1}, {2}, weights={3})",
    "div": "{0} / {1}",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "neg": "-{0}",
    "square": "{0} ** 2",
    "power": "{0} ** {1}",
    "transposed": "{0}.T @ {1}",
    "full": "vrt.full({0}, {1})",
    "ones": "vrt.ones({0})",
    "zeros": "vrt.zeros({0})",
    "dropout": "vrt.random.dropout({0}, {1}, {2!r})",
    "drawn": "vrt.clip(vrt.random.{0}({1}), {2}, {2})",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
}
LOSSES = ("binary_cross_entropy_with_logits", "cross_entropy", "hinge_loss")
LOSSES += ("multi_margin_loss", "squared_error")
ACTIVATIONS = ("elu", "gelu", "leaky_relu", "silu", "softplus", "block_diagonal")  # of vrt.nn
PULLS = ("pull", "edge", "slot_edge")  # extra: a name, and of which slot
PARAMETERS = ("parameter", "part")  # extra: a name, and which part
INDEXING = (
    "embed",
    "cross_entropy",
    "smoothed",
    "multi_margin_loss",
    "named",
)  # by the last operand
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a value is.

    Attributes:
        shape: of one row.
        per_child: a row for each child, from `gather_all`.
        index: an integer pull, which few ops take.
        relation: of the children, where the function reads all of several.
    """

    shape: Shape
    per_child: bool = False
    index: bool = False
    relation: int = 0


@dataclass(frozen=True, slots=True)
class FuzzNode:
    """One operation: its name, operands, what else it is written with, and its type."""

    op: str
    inputs: tuple[Operand, ...]
    extra: tuple[Any, ...]
    type: ValueType

    @property
    def operands(self) -> tuple[int, ...]:
        """The numbers of the nodes that it reads."""
        return tuple(x for x in self.inputs if not isinstance(x, float))


@dataclass(frozen=True, slots=True)
class PullForm:
    """What a vertex (or an edge) pulls under a name: reals, or an integer below a bound."""

    shape: Shape = ()
    bound: int = 0
    edges: bool = False


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A vertex function: declarations, nodes, and the nodes that it scatters and pushes.

    Attributes:
        frozen: parameters that have no gradient.
        relations: of which it may read all children, by name; 0 where it stands alone and reads
            all children.
    """

    arity: int | None
    state: Mapping[str, int]
    initial: Mapping[str, str]
    parameters: Mapping[str, Shape]
    pulls: Mapping[str, PullForm]
    nodes: tuple[FuzzNode, ...]
    scatter: Mapping[str, int]
    pushes: Mapping[str, int]
    frozen: frozenset[str] = frozenset()
    relations: int = 0

    @property
    def roots(self) -> tuple[int, ...]:
        """The nodes that are scattered or pushed."""
        return (*self.scatter.values(), *self.pushes.values())

    def weight(self) -> tuple[int, int, int]:
        """Return what shrinking makes less: nodes, then declarations, then how late they are."""
        declared = len(self.state) + len(self.pushes) + len(self.parameters) + len(self.initial)
        late = sum(x for node in self.nodes for x in node.operands) + sum(self.roots)
        return len(self.nodes), declared, late


def prune(spec: FunctionSpec) -> FunctionSpec:
    """Leave out what nothing scattered or pushed needs, and number the rest anew."""
    live: set[int] = set()
    stack = list(spec.roots)
    while stack:
        k = stack.pop()
        if k not in live:
            live.add(k)
            stack += spec.nodes[k].operands
    order = sorted(live)
    new: dict[int, int] = {k: n for n, k in enumerate(order)}
    nodes = tuple(
        replace(
            spec.nodes[k],
            inputs=tuple(x if isinstance(x, float) else new[x] for x in spec.nodes[k].inputs),
        )
        for k in order
    )
    read = {n.extra[1] for n in nodes if n.op == "gather"}  # an initial state is for slots
    initial = {field: name for field, name in spec.initial.items() if field in read}
    used = {n.extra[0] for n in nodes if n.op in PARAMETERS} | set(initial.values())
    pulled = {n.extra[0] for n in nodes if n.op in PULLS}
    return replace(
        spec,
        nodes=nodes,
        initial=initial,
        scatter={name: new[k] for name, k in spec.scatter.items()},
        pushes={name: new[k] for name, k in spec.pushes.items()},
        parameters={n: shape for n, shape in spec.parameters.items() if n in used},
        pulls={n: form for n, form in spec.pulls.items() if n in pulled},
        frozen=spec.frozen & used,
    )


def source(spec: FunctionSpec) -> str:
    """Write `def build(vrt)`, which makes the function with either module."""
    lines = ["def build(vrt):", "    class F(vrt.VertexFunction):", "        def __init__(self):"]
    for name, shape in spec.parameters.items():
        frozen = ", trainable=False" if name in spec.frozen else ""
        lines.append(f"            self.{name} = vrt.Parameter({tuple(shape)}{frozen})")
    initial = ", ".join(f"{field!r}: self.{name}" for field, name in spec.initial.items())
    tail = f", initial={{{initial}}}" if initial else ""
    lines.append(
        f"            super().__init__(arity={spec.arity}, state={dict(spec.state)!r}{tail})"
    )
    lines += ["", "        def forward(self):"]
    lines += [f"            {line}" for line in _body(spec)]
    return "\n".join([*lines, "", "    return F()", ""])


def relation_name(number: int) -> str:
    """Name a relation of which all children are read."""
    return f"r{number}"


def _body(spec: FunctionSpec) -> Iterator[str]:
    """Write the lines of `forward`."""

    def name(x: Operand) -> str:
        if isinstance(x, float):
            return repr(x)
        node = spec.nodes[x]
        return f"self.{''.join(node.extra)}" if node.op in PARAMETERS else f"v{x}"

    looked_up = {n.operands[-1] for n in spec.nodes if n.op in INDEXING}
    others = (n for n in spec.nodes if n.op not in (*INDEXING, "has"))
    looked_up -= {x for n in others for x in n.operands}
    for k, node in enumerate(spec.nodes):
        if node.op in PARAMETERS:
            continue
        operands = [name(x) for x in node.inputs]
        relation = repr(relation_name(node.type.relation)) if spec.relations else ""
        if node.op in PULLS:
            text = _pull(node.extra[0], spec.pulls[node.extra[0]], k in looked_up)
            whose = repr(node.extra[1]) if node.op == "slot_edge" else relation
            if whose and node.op != "pull":
                text = f"{text[:-1]}, relation={whose})"
        elif node.op == "gather_all":
            text = TEXTS[node.op].format(*node.extra, relation)
        elif node.op in TEXTS:
            text = TEXTS[node.op].format(*operands, *node.extra)
        else:  # reductions may say what they go over
            operands += [f"axis={axis!r}" for axis in node.extra if axis]
            home = "vrt.losses" if node.op in LOSSES else "vrt"
            home = "vrt.nn" if node.op in ACTIVATIONS else home
            text = f"{home}.{node.op}({', '.join(operands)})"
        yield f"v{k} = {text}"
    if spec.state:
        yield f"self.scatter({', '.join(f'{f}={name(k)}' for f, k in spec.scatter.items())})"
    for push, k in spec.pushes.items():
        yield f"self.push({push!r}, {name(k)})"


def _pull(name: str, form: PullForm, looked_up: bool) -> str:
    read = "self.edge" if form.edges else "self.pull"
    if form.bound:  # only a look-up shows by itself that it is an integer
        return f"{read}({name!r})" if looked_up else f"{read}_index({name!r})"
    return f"{read}({name!r}, {form.shape})" if form.shape else f"{read}({name!r})"


def builder(text: str) -> Build:
    """Return the `build` of a source text."""
    scope: dict[str, Any] = {}
    exec(compile(text, "<fuzz>", "exec"), scope)
    build: Build = scope["build"]
    return build
