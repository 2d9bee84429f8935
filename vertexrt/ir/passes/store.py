"""Store: decide where each value lies that a later stage reads.

The decision is made once for each kind, in one table from values to elements of tensors. All else
follows from it: which values are kept (`keep`), where a stage writes them and where others read
them. Lazy stages are specialised by more facts, so their program is derived from that of the path:
what they read of it is a leaf, `stored`, into which no pass can look, and lies where the table of
the path says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vertexrt.errors import PlanError, message
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.rewrite import drop_dead
from vertexrt.ir.passes.specialise import without_effects
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes

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

    def of_origins(self) -> dict[int, Read]:
        """Return where values lie by their origins, which all kinds have in common."""
        return {self.program.nodes[k].origin: read for k, read in self.reads.items()}


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
    gates), unless a product wants its rows alone; or in a tensor of its own. Concats come behind
    their parts, so they have their places first, and a part of a part is as many elements further.

    Args:
        program: of one kind, placed.
        known: origin -> where that value lies, decided with another program of this kind.
    Raises: PlanError, when a value of another program has no place there.
    """
    nodes = list(program.nodes)
    states = _states(program)
    readers = program.consumers()
    wholes: dict[int, list[int]] = {}
    reads: dict[int, Read] = {}
    for k in range(len(program.nodes) - 1, -1, -1):
        node = nodes[k]
        later = [r for r in readers[k] if nodes[r].stage != node.stage]
        if later and not is_free(node):
            alone = any(OPS[nodes[r].op].role in ("product", "effect") for r in later)
            found = (known or {}).get(node.origin) or states.get(k)
            if found is None and not alone:
                found = next((_part(program, k, w, reads[w]) for w in wholes.get(k, ())), None)
            if found is None and node.op == "stored":
                raise PlanError(
                    message(
                        "store",
                        f"%{k} of stage {node.stage.name} is read by %{later[0]} and lies nowhere",
                        "a place for every value that crosses stages",
                        "report this as a bug",
                    )
                )
            if found is None:
                nodes.append(_keep(k, node))
                found = Read(TENSOR_OF_EFFECT["keep"](nodes[-1]), 0, max(node.type.size, 1))
            reads[k] = found
        if node.op == "concat" and k in reads:
            for i in node.inputs:
                part = nodes[i]
                edges = Domain.EDGE in (part.type.domain, node.type.domain)
                if part.stage == node.stage and (not edges or part.type.domain == node.type.domain):
                    wholes.setdefault(i, []).insert(0, k)
    return Stored(program.with_nodes(nodes), reads)


def _states(program: Program) -> dict[int, Read]:
    """Return the values that their own stage scatters, and where."""
    found: dict[int, Read] = {}
    for node in program.nodes:
        if node.op == "scatter" and node.stage == program.nodes[node.inputs[0]].stage:
            (source,) = node.inputs
            size = max(program.nodes[source].type.size, 1)
            found.setdefault(source, Read(TENSOR_OF_EFFECT["scatter"](node), 0, size))
    return found


def _part(program: Program, position: int, whole: int, read: Read) -> Read:
    """Return where a value lies that is a part of a concat."""
    inputs = program.nodes[whole].inputs
    before = inputs[: inputs.index(position)]
    return replace(read, start=read.start + sum(program.nodes[i].type.size for i in before))


def lazy_part(path: Stored) -> Program:
    """Return what a path kind does between forward and backward, to be specialised further.

    What it reads of the path is a leaf `stored`. Values that the path reads of it are kept as the
    path's table says, whatever they are simplified to.
    """
    program = without_effects(
        path.program, lambda n: OPS[n.op].role == "effect" and n.stage not in LAZY_STAGES
    )
    nodes: list[Node] = []
    for node in program.nodes:
        if node.stage not in LAZY_STAGES and not is_free(node):
            node = _stored(node)
        nodes.append(node)
    return drop_dead(program.with_nodes(nodes))


def _stored(node: Node) -> Node:
    shape = node.type.shape
    made = attributes({"origin": node.origin, "shape": shape})
    return Node(
        "stored",
        (),
        Type(shape, "float", node.type.domain),
        made,
        node.where,
        node.stage,
        node.origin,
    )


def _keep(position: int, node: Node) -> Node:
    """Return the effect that puts a value into the tensor of its origin."""
    return Node(
        "keep",
        (position,),
        Type((), "none", node.type.domain),
        attributes({"origin": node.origin, "shape": node.type.shape}),
        node.where,
        node.stage,
    )
