"""The records of the IR: types, nodes, programs.

A program is flat, typed, single-assignment and immutable: node k may read only nodes 0..k-1. All
shapes are per vertex (or per edge); the batch axis never appears. Values live in one of three
domains: `param` (one value for the whole batch), `vertex` (one a vertex), `edge` (one for each
child of a vertex, read by `gather_all`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

COPIED = "copied"  # attribute of a concat of one part that is a copy on purpose
# Attribute of a `gather_parents` over the edges from parents of the own layer or from those of the
# layers above alone, see `ir.passes.zero_gradients`.
PARENTS, OWN, ABOVE = "parents", "own", "above"


class Domain(IntEnum):
    """What a value is indexed by; elementwise ops take the largest of their inputs' domains."""

    PARAM = 0
    VERTEX = 1
    EDGE = 2


class Stage(IntEnum):
    """When a node runs: Cavs section 3.4, with the backward pass split in the same way."""

    EAGER = 1  # before the schedule: depends on no gather, feeds the path
    PATH = 2  # inside each batching task of the forward pass
    LAZY = 3  # once after the forward schedule: feeds no scatter
    LAZY_BACKWARD = 4  # the same for what waits for gradients that the user gives
    PATH_BACKWARD = 5  # inside each batching task of the backward pass, tasks reversed
    FINAL = 6  # once after the backward schedule: parameter gradients, gradients of eager values

    @property
    def word(self) -> str:
        """Its name for people; a backward pass has the mark of a derivative."""
        return self.name.lower().replace("_backward", "'")


@dataclass(frozen=True, slots=True)
class Type:
    """Shape per vertex (or edge), element kind (`float` or `int`) and domain of a value."""

    shape: tuple[int, ...]
    dtype: str = "float"
    domain: Domain = Domain.VERTEX

    @property
    def size(self) -> int:
        """Elements per row."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        axes = ",".join(str(n) for n in self.shape)
        mark = {Domain.PARAM: "param ", Domain.VERTEX: "", Domain.EDGE: "edge "}[self.domain]
        return f"{mark}{self.dtype}[{axes}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: `op` names a row of the op table, `inputs` are positions in the program."""

    op: str
    inputs: tuple[int, ...]
    type: Type
    attrs: tuple[tuple[str, Any], ...] = ()
    where: str = ""  # the user's file and line
    stage: Stage = Stage.PATH
    origin: int = -1  # position in the program that was specialised: names the node's tensor
    function: int = 0  # of which vertex function of the program it is

    def __getitem__(self, name: str) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(f"node {self.op} has no attribute {name!r}: {self.attrs}")

    @property
    def relation(self) -> int:
        """Return which relation a node is of, among those of which all children are read.

        Of nodes that read edges, go over them or spread to them: see `related`.
        """
        return int(self["relation"]) if self.has("relation") else 0

    def has(self, name: str) -> bool:
        """Tell whether an attribute is set."""
        return any(key == name for key, _ in self.attrs)

    def moved(self, inputs: tuple[int, ...]) -> Node:
        """Return the same operation on other inputs."""
        if inputs == self.inputs:
            return self
        # `replace` takes five times as long, and passes move every node of every kind
        return Node(
            self.op,
            inputs,
            self.type,
            self.attrs,
            self.where,
            self.stage,
            self.origin,
            self.function,
        )


@dataclass(frozen=True, slots=True)
class Pull:
    """An external input of each vertex, or of each edge.

    Attributes:
        shape: of one; dtype: element kind.
        edges: it is one of each edge to the children that are read whole.
        edge: what edges carry it under, where that is not its name: it is of one slot or relation.
        of: the slot or the relation of the one child whose edge it is of; else empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    edges: bool = False
    edge: str = ""
    of: str = ""

    @property
    def source(self) -> str:
        """Return what the batch calls it."""
        return self.edge or self.name

    @property
    def of_edges(self) -> bool:
        """Tell whether edges have it, in the batch."""
        return self.edges or bool(self.edge)


@dataclass(frozen=True, slots=True)
class FunctionSite:
    """How one of several vertex functions stands in a network: what its vertices are and read.

    Attributes:
        name: of the vertex type.
        relations: the relation of each slot, in order, then those that `gather_all` reads.
        every: how many of the last of its relations it reads all children of.
        children: by relation, which functions' vertices may be such a child.
    """

    name: str
    relations: tuple[str, ...]
    every: int
    children: tuple[tuple[int, ...], ...]

    @property
    def slots(self) -> int:
        """Count the relations of one child."""
        return len(self.relations) - self.every


@dataclass(frozen=True, slots=True)
class Program:
    """F, or F and dF: nodes in an order in which they may run, and what the outside sees.

    Attributes:
        state: fields and their elements; those of several functions have names that differ.
        arity: slots for children, the most of any function; None, where only all are read.
        stacks: parameters stored as one matrix, rows in this order.
        sites: of each vertex function of a network; empty, where there is one alone.
        frozen: parameters, and stacks of them, that have no gradient.
        layers: of each function its layer, see `ir.layers`; empty, where all run together.
    """

    name: str
    nodes: tuple[Node, ...]
    params: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    state: Mapping[str, int] = field(default_factory=dict)
    arity: int | None = None
    pulls: tuple[Pull, ...] = ()
    stacks: tuple[tuple[str, ...], ...] = ()
    sites: tuple[FunctionSite, ...] = ()
    frozen: frozenset[str] = frozenset()
    layers: tuple[int, ...] = ()

    @property
    def splits_edges(self) -> bool:
        """Tell whether edges of slots and of `gather_all` are numbered apart.

        They are where a function of a network reads both: the first edges are those of slots, and
        values per child have rows for the others alone.
        """
        return any(site.every and site.slots for site in self.sites)

    @property
    def relations(self) -> int:
        """Count the relations of which a function reads all children, the most of any; 1 at least.

        Where there are several, the edges of a vertex lie relation by relation (`related`).
        """
        return max((site.every for site in self.sites), default=1) or 1

    @property
    def edge_pulls(self) -> frozenset[str]:
        """Name the external values of edges that it reads."""
        return frozenset(pull.name for pull in self.pulls if pull.edges)

    @property
    def reads_edges(self) -> bool:
        """Tell whether it reads external values of edges."""
        return bool(self.edge_pulls)

    @property
    def real_pulls(self) -> frozenset[str]:
        """Name the real values that it pulls, as the batch calls them."""
        return frozenset(pull.source for pull in self.pulls if pull.dtype == "float")

    def pulls_from(self, source: str) -> list[Pull]:
        """List the pulls of what the batch has under a name: several, of edges of several slots."""
        return [pull for pull in self.pulls if pull.source == source]

    def layer_of(self, function: int) -> int:
        """Return the layer of a function, 0 where there are none."""
        return self.layers[function] if self.layers else 0

    def consumers(self) -> list[list[int]]:
        """List, for each node, the positions of the nodes that read it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for k, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.inputs):
                found[source].append(k)
        return found

    def find(self, op: str) -> list[int]:
        """List the positions of all nodes with this op."""
        return [k for k, node in enumerate(self.nodes) if node.op == op]

    def with_nodes(self, nodes: list[Node] | tuple[Node, ...]) -> Program:
        """Return the same program around other nodes."""
        return replace(self, nodes=tuple(nodes))


def slots_with_gradient(program: Program, function: int, summed: Node) -> list[int]:
    """List the slots through which a function has to leave gradients that a child sums up.

    Args:
        function: of the parents.
        summed: the child's `gather_parents`.
    Returns: slots; -1 for all children together, which has no gradient of one slot.
    """
    if not program.sites:
        declared = range((program.arity or 0) if summed["slots"] else 0)
        return [*declared, *([-1] if summed["every"] else [])]
    if summed.has(PARENTS) and summed[PARENTS] != parents_of(program, function, summed):
        return []
    site = program.sites[function]
    read = (s for s, children in enumerate(site.children) if summed.function in children)
    return [s if s < site.slots else -1 for s in read]


def parents_of(program: Program, function: int, child: Node) -> str:
    """Tell whether parents of a function are of a child's OWN layer, or ABOVE it."""
    own = program.layer_of(function) == program.layer_of(child.function)
    return OWN if own else ABOVE


def related(relation: int) -> dict[str, int]:
    """Return the attributes of a node that is of the edges of one relation, of several.

    Values per child have a row for each edge of a vertex, whatever its relation. An edge of another
    relation than the value's is as an empty slot: `gather_all` reads zeros there, `has_child` says
    no, and sums leave it out. The first relation goes without saying.
    """
    return {"relation": relation} if relation else {}


def relation_of(nodes: Sequence[Node], at: int) -> int:
    """Return the relation whose children a value has a row for, as `related` says; else 0."""
    node = nodes[at]
    while node.type.domain == Domain.EDGE:
        per_child = [i for i in node.inputs if nodes[i].type.domain == Domain.EDGE]
        if not per_child:
            return node.relation
        node = nodes[per_child[0]]
    return 0


def depending(nodes: Sequence[Node], starts: Callable[[Node], bool]) -> list[bool]:
    """Mark the nodes for which a test holds, and all that depends on them."""
    found: list[bool] = []
    for node in nodes:
        found.append(starts(node) or any(found[i] for i in node.inputs))
    return found


def mark_needed(nodes: Sequence[Node], marked: list[bool]) -> list[bool]:
    """Mark all that marked nodes depend on, besides themselves."""
    for k in range(len(nodes) - 1, -1, -1):
        if marked[k]:
            for source in nodes[k].inputs:
                marked[source] = True
    return marked


def read_by(program: Program, pushes: Collection[str]) -> frozenset[str]:
    """Return the parameters that pushes depend on, through the states of children too."""
    fields: set[str] = set()  # of states, which their parents read
    while True:
        marked = [
            n["name"] in pushes if n.op == "push" else n.op == "scatter" and n["field"] in fields
            for n in program.nodes
        ]
        needed = [program.nodes[k] for k, m in enumerate(mark_needed(program.nodes, marked)) if m]
        before, fields = fields, {n["field"] for n in needed if n.op in ("gather", "gather_all")}
        if fields == before:
            return frozenset(n["name"] for n in needed if n.op == "param")


def longest_chains(nodes: Sequence[Node], counted: Callable[[int], bool]) -> list[int]:
    """Return, for each node, the most counted ones on a path to it, itself among them."""
    found: list[int] = []
    for k, node in enumerate(nodes):
        found.append(max((found[i] for i in node.inputs), default=0) + counted(k))
    return found


def attributes(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Freeze attributes into the sorted pairs that a node holds."""
    return tuple(sorted(values.items()))
