"""Networks as plain data: they shrink easily and print as Python.

A function is a list of nodes; an operand is the number of an earlier node, or a real number.
`source` writes `def build(vrt)`, which makes the network with vertexrt or with the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Shape = tuple[int, ...]
Operand = int | float
Slot = int | str  # the number of a slot, or the name of a relation of at most one child
Build = Callable[[Any], Any]

CHILDREN = "children"  # the relation of all children, where a function stands alone
# How a node reads: operands first, then what else it has. Others are calls: `vrt.NAME(operands)`.
TEXTS = {
    "gather": "self.gather({0!r}).{1}",
    "count": "self.count_children({0!r})",
    "present": "self.present({0!r})",
    "has": "self.present({1!r})",
    "element": "{0}[{1}]",
    "named": "{0}[{1}]",
    "slice": "{0}[{1}:{2}]",
    "every": "{0}[{1}::{2}]",
    "repeat": "vrt.repeat({0}, {1})",
    "tile": "vrt.tile({0}, {1})",
    "outer": "vrt.reshape(vrt.outer({0}, {1}), {2})",
    "outer_left": "vrt.outer({0}, {1}) @ {2}",
    "outer_right": "{2} @ vrt.outer({0}, {1})",
    "sort": "vrt.sort({0}, descending={1})",
    "top_k": "vrt.top_k({0}, {1}, axis={2!r})",
    "top_children": "vrt.reshape(vrt.top_k({0}, {1}), {2})",
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
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
HOMES = {
    "vrt.losses": (
        *("binary_cross_entropy_with_logits", "cross_entropy", "hinge_loss"),
        *("multi_margin_loss", "squared_error"),
    ),
    "vrt.nn": ("elu", "gelu", "leaky_relu", "silu", "softplus", "block_diagonal"),
}
LABELLED = ("cross_entropy", "smoothed", "multi_margin_loss")  # 0 where the label is absent
INDEXING = ("embed", "named", *LABELLED)  # by the last operand
PULLS = ("pull", "edge", "slot_edge")  # extra: a name, and of which slot
PARAMETERS = ("parameter", "part")  # extra: a name, and which part


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a value is.

    Attributes:
        shape: of one row.
        relation: of whose children it has a row for each; "" for a value per vertex.
        index: an integer pull, which few ops take.
    """

    shape: Shape
    relation: str = ""
    index: bool = False


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
        arity: of slots that have numbers.
        inputs: by relation the types of its children; every: relations that are read whole.
    """

    state: Mapping[str, int]
    nodes: tuple[FuzzNode, ...]
    scatter: Mapping[str, int]
    pushes: Mapping[str, int]
    pulls: Mapping[str, PullForm]
    arity: int | None = None
    initial: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    every: tuple[str, ...] = (CHILDREN,)

    @property
    def roots(self) -> tuple[int, ...]:
        """The nodes that are scattered or pushed."""
        return (*self.scatter.values(), *self.pushes.values())

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that it reads."""
        read = {n.extra[0] for n in self.nodes if n.op in PARAMETERS}
        return sorted(read | set(self.initial.values()))

    def weight(self) -> tuple[int, ...]:
        """Return what shrinking makes less: nodes, then declarations, then how late they are."""
        named = len(self.state) + len(self.pushes) + len(self.initial) + len(self.inputs)
        late = sum(x for node in self.nodes for x in node.operands) + sum(self.roots)
        return len(self.nodes), named + len(self.parameters), late


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Vertex functions by the names of their types; one that stands alone is called "".

    Attributes:
        parameters: by name, which several functions may read; frozen: those without a gradient.
        reduction: of `vrt.compile`.
    """

    types: Mapping[str, FunctionSpec]
    parameters: Mapping[str, Shape]
    frozen: frozenset[str] = frozenset()
    reduction: str = "mean_graphs"

    @property
    def alone(self) -> bool:
        """Tell whether it is one function without types."""
        return "" in self.types

    def names(self) -> dict[str, str]:
        """Return what the network calls each parameter: after the first type that has it."""
        found: dict[str, str] = {}
        for kind, function in self.types.items():
            for name in function.parameters:
                found.setdefault(name, f"{kind}.{name}" if kind else name)
        return found

    def tables(self) -> tuple[set[str], set[str]]:
        """Name trained parameters that are looked up in, by numbers that are pulled.

        Returns: those that nothing else reads, and all: of another use, such as `table * 0.0`,
            nothing may be left once constants are folded.
        """
        looked, others = set(), set(self.frozen)
        for function in self.types.values():
            others |= set(function.initial.values())
            for node in function.nodes:
                for at, x in enumerate(node.operands):
                    if function.nodes[x].op in PARAMETERS:
                        pulled = function.nodes[node.operands[-1]].op in PULLS
                        table = node.op == "embed" and at == 0 and pulled
                        (looked if table else others).add(function.nodes[x].extra[0])
            roots = [function.nodes[k] for k in function.roots]
            others |= {node.extra[0] for node in roots if node.op in PARAMETERS}
        return looked - others, looked - self.frozen

    def pushes(self) -> list[str]:
        """Name the pushes."""
        return list(dict.fromkeys(name for f in self.types.values() for name in f.pushes))

    def weight(self) -> tuple[int, ...]:
        """Return what shrinking makes less."""
        each = [function.weight() for function in self.types.values()]
        return len(each), *map(sum, zip(*each, strict=True))


def prune(network: NetworkSpec) -> NetworkSpec:
    """Leave out what nothing scattered or pushed needs, and number the rest anew."""
    types = {kind: _pruned(function, {*network.types}) for kind, function in network.types.items()}
    used = {name for function in types.values() for name in function.parameters}
    kept = {name: shape for name, shape in network.parameters.items() if name in used}
    return replace(network, types=types, parameters=kept, frozen=network.frozen & used)


def _pruned(function: FunctionSpec, kinds: set[str]) -> FunctionSpec:
    live: set[int] = set()
    stack = list(function.roots)
    while stack:
        k = stack.pop()
        if k not in live:
            live.add(k)
            stack += function.nodes[k].operands
    new = {k: n for n, k in enumerate(sorted(live))}
    nodes = tuple(
        replace(node, inputs=tuple(x if isinstance(x, float) else new[x] for x in node.inputs))
        for k, node in enumerate(function.nodes)
        if k in live
    )
    gathered = {n.extra[1] for n in nodes if n.op == "gather"}  # an initial state is for slots
    pulled = {n.extra[0] for n in nodes if n.op in PULLS}
    read = slots_of(nodes) | {n.type.relation for n in nodes}
    read |= {n.extra[0] for n in nodes if n.op == "count"}
    return replace(
        function,
        nodes=nodes,
        initial={f: name for f, name in function.initial.items() if f in gathered},
        scatter={name: new[k] for name, k in function.scatter.items()},
        pushes={name: new[k] for name, k in function.pushes.items()},
        pulls={n: form for n, form in function.pulls.items() if n in pulled},
        inputs={
            r: tuple(k for k in of if k in kinds) for r, of in function.inputs.items() if r in read
        },
    )


def slots_of(nodes: tuple[FuzzNode, ...]) -> set[Slot]:
    """Return the slots that nodes read."""
    found = {n.extra[0] for n in nodes if n.op in ("gather", "present")}
    return found | {n.extra[1] for n in nodes if n.op == "slot_edge"}


def source(network: NetworkSpec) -> str:
    """Write `def build(vrt)`, which makes the network with either module."""
    lines = ["def build(vrt):"]
    for name, shape in network.parameters.items():
        frozen = ", trainable=False" if name in network.frozen else ""
        lines.append(f"    {name} = vrt.Parameter({tuple(shape)}{frozen})")
    for kind, function in network.types.items():
        initial = ", ".join(f"{f!r}: {name}" for f, name in function.initial.items())
        tail = f", initial={{{initial}}}" if initial else ""
        state = f"arity={function.arity}, state={dict(function.state)!r}{tail}"
        lines += [f"    class F{kind}(vrt.VertexFunction):", "        def __init__(self):"]
        lines += [f"            self.{name} = {name}" for name in function.parameters]
        lines += [f"            super().__init__({state})", "", "        def forward(self):"]
        lines += [f"            {line}" for line in _body(function)] or ["            pass"]
        lines.append("")
    if network.alone:
        return "\n".join([*lines, "    return F()", ""])
    lines.append("    model = vrt.Model()")
    lines += [f"    model.{kind} = F{kind}()" for kind in network.types]
    for kind, function in network.types.items():
        for relation, of in function.inputs.items():
            children = "".join(f"model.{name}, " for name in of)
            lines.append(f"    model.{kind}.inputs[{relation!r}] = ({children})")
    return "\n".join([*lines, "    return model", ""])


def _body(function: FunctionSpec) -> Iterator[str]:
    """Write the lines of `forward`."""

    def name(x: Operand) -> str:
        if isinstance(x, float):
            return repr(x)
        node = function.nodes[x]
        return f"self.{''.join(node.extra)}" if node.op in PARAMETERS else f"v{x}"

    looked_up = {n.operands[-1] for n in function.nodes if n.op in INDEXING}
    others = (n for n in function.nodes if n.op not in (*INDEXING, "has"))
    looked_up -= {x for n in others for x in n.operands}
    for slot in sorted(s for s in slots_of(function.nodes) if isinstance(s, str)):
        yield f"self.gather({slot!r})"  # so that it is known as a slot
    for k, node in enumerate(function.nodes):
        if node.op in PARAMETERS:
            continue
        operands = [name(x) for x in node.inputs]
        relation = "" if node.type.relation == CHILDREN else repr(node.type.relation)
        if node.op in PULLS:
            text = _pull(node.extra[0], function.pulls[node.extra[0]], k in looked_up)
            whose = repr(node.extra[1]) if node.op == "slot_edge" else relation
            if node.op != "pull" and whose:
                text = f"{text[:-1]}, relation={whose})"
        elif node.op == "gather_all":
            text = f"self.gather_all({relation}).{node.extra[0]}"
        elif node.op in TEXTS:
            text = TEXTS[node.op].format(*operands, *node.extra)
        else:  # reductions may say what they go over
            operands += [f"axis={axis!r}" for axis in node.extra if axis]
            home = next((home for home, ops in HOMES.items() if node.op in ops), "vrt")
            text = f"{home}.{node.op}({', '.join(operands)})"
        yield f"v{k} = {text}"
    if function.state:
        yield f"self.scatter({', '.join(f'{f}={name(k)}' for f, k in function.scatter.items())})"
    for push, k in function.pushes.items():
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
