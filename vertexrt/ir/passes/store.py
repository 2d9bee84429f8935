"""Store: decide where each value lies that a later stage reads.

The decision is made once for each kind, in one table from values to elements of tensors. All else
follows from it: which values are kept (`keep`), where a stage writes them and where others read
them. Lazy stages are specialised by more facts, so their program is derived from that of the path:
what they read of it is a leaf, `stored`, into which no pass can look, and lies where the table of
the path says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from vertexrt.errors import PlanError
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.rewrite import drop_dead
from vertexrt.ir.passes.specialise import without_effects
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes, related, relation_of

LAZY_STAGES = (Stage.LAZY, Stage.LAZY_BACKWARD)

Key = tuple[object, ...]  # names a tensor: ("state", "h"), ("value", 17), ("push", "loss"), ...


@dataclass(frozen=True, slots=True)
class Read:
    """Where a value of an earlier stage lies: some elements of each row of a tensor."""

    key: Key
    start: int
    width: int  # of the tensor's rows


@dataclass(frozen=True, slots=True)
class Stored:
    """A program of one kind and where its values lie.

    Attributes:
        program: with an effect `keep` for every value that has a tensor of its own.
        reads: position of each value that a later stage reads -> where it lies.
    """

    program: Program
    reads: Mapping[int, Read]


# Effects that put a value into a tensor, and the tensor's name.
TENSOR_OF_EFFECT: dict[str, Callable[[Node], Key]] = {
    "scatter": lambda n: ("state", n["field"]),
    "push": lambda n: ("push", n["name"]),
    "keep": lambda n: ("value", n["origin"]),
    "pull_grad": lambda n: ("pull_grad", n["name"]),
}


def is_free(node: Node) -> bool:
    """Tell whether a node is read where it is used, never stored: a leaf that is no sum or read."""
    return OPS[node.op].role == "leaf" and node.op not in ("gather_parents", "stored")


def store_values(program: Program, known: Mapping[int, Read] | None = None) -> Stored:
    """Give every value that a later stage reads a place, and keep those that need a tensor.

    A value lies in the state that it is scattered to; or in a concat of its own stage that is
    stored itself, and is then not stored twice (the gradient of one gate among those of all
    gates), unless a product wants its rows alone; or in a tensor of its own. Concats come after
    their parts, so they have their places first, and a part of a part is as many elements further.

    Args:
        program: of one kind, placed.
        known: origin -> where that value lies, decided with another program of this kind.
    Raises: PlanError, when a value of another program has no place there.
    """
    nodes, given = list(program.nodes), _states(program)
    if known is not None:
        given |= {k: known[n.origin] for k, n in enumerate(nodes) if n.origin in known}
    readers = program.consumers()
    wholes: dict[int, tuple[int, int]] = {}  # position -> a concat of it, and where it begins there
    reads: dict[int, Read] = {}
    for k in range(len(program.nodes) - 1, -1, -1):
        node = nodes[k]
        later = [nodes[r] for r in readers[k] if nodes[r].stage != node.stage and not is_free(node)]
        if later:
            found = given.get(k)
            own_rows = any(OPS[reader.op].role in ("product", "effect") for reader in later)
            if found is None and k in wholes and not own_rows:
                whole, start = wholes[k]
                found = replace(reads[whole], start=reads[whole].start + start)
            if found is None:
                nodes.append(_keep(k, node, later[0]))
                found = Read(TENSOR_OF_EFFECT["keep"](nodes[-1]), 0, max(node.type.size, 1))
            reads[k] = found
        if node.op == "concat" and k in reads:
            wholes |= {i: (k, start) for i, start in _parts_of_its_rows(program, node)}
    return Stored(program.with_nodes(nodes), reads)


def _parts_of_its_rows(program: Program, concat: Node) -> Iterator[tuple[int, int]]:
    """Yield the parts of a concat that have its stage and its rows, and where each begins."""
    start, per_edge = concat.type.size, concat.type.domain == Domain.EDGE
    for i in reversed(concat.inputs):  # of what is there twice, the first comes last
        part = program.nodes[i]
        start -= part.type.size
        if part.stage == concat.stage and (part.type.domain == Domain.EDGE) == per_edge:
            yield i, start


def _states(program: Program) -> dict[int, Read]:
    """Return the values that their own stage scatters, and where."""
    found: dict[int, Read] = {}
    for node in program.nodes:
        if node.op == "scatter" and node.stage == program.nodes[node.inputs[0]].stage:
            (source,) = node.inputs
            size = max(program.nodes[source].type.size, 1)
            found.setdefault(source, Read(TENSOR_OF_EFFECT["scatter"](node), 0, size))
    return found


def _keep(position: int, node: Node, reader: Node) -> Node:
    """Return the effect that puts a value into the tensor of its origin."""
    if node.op == "stored":
        raise PlanError.at(
            "store",
            f"%{position} of stage {node.stage.name} is read by {reader.op} and lies nowhere",
            "a place for every value that crosses stages",
            "report this as a bug",
        )
    kept = attributes({"origin": node.origin, "shape": node.type.shape})
    kind = Type((), "none", node.type.domain)
    return replace(node, op="keep", inputs=(position,), type=kind, attrs=kept, origin=-1)


def lazy_part(path: Stored) -> Program:
    """Return what a path kind does between forward and backward, to be specialised further.

    What it reads of the path is a leaf `stored`. Values that the path reads of it are kept as the
    path's table says, whatever they are simplified to.
    """
    program = without_effects(
        path.program, lambda n: OPS[n.op].role == "effect" and n.stage not in LAZY_STAGES
    )
    nodes: list[Node] = []
    for k, node in enumerate(program.nodes):
        if node.stage not in LAZY_STAGES and not is_free(node):
            shape, of_relation = node.type.shape, related(relation_of(program.nodes, k))
            node = replace(
                node,
                op="stored",
                inputs=(),
                type=Type(shape, "float", node.type.domain),
                attrs=attributes({"origin": node.origin, "shape": shape, **of_relation}),
            )
        nodes.append(node)
    return drop_dead(program.with_nodes(nodes))
