"""Specialise: derive, for one kind of vertex, the program that an expert would write by hand.

A kind is the set of gather slots and pulls that a vertex has. What is absent reads zero, and the
zeros are propagated: an SST leaf keeps W x and loses U h, an inner vertex the other way round (3
against 8 products). Nodes keep the stage and origin that `place` gave them, so
tensors are shared between kinds by origin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vertexrt.ir.layers import chain_slot
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.rewrite import Rewriter, drop_dead, keep, rewrite
from vertexrt.ir.passes.simplify import simplified
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes, mark_needed

MOST_SLOTS, MOST_PULLS = 32, 30  # a kind is 63 bits: slots, all children together, and pulls
FUNCTION_AT = 57  # the bit where the number of a vertex function begins, where there are several
MOST_FUNCTIONS = 64
GRADIENTS_TO_CHILDREN = ("scatter_child", "scatter_children")
OF_SLOTS = ("gather", "present", "gather_all", "edge_pull", *GRADIENTS_TO_CHILDREN)
OF_PULLS = ("pull", "has_pull", "pull_grad")
INDEX_OPERAND = {"embed": 1, "nll": 1, "embed_grad": 0, "nll_grad": 1}


@dataclass(frozen=True, slots=True)
class Atoms:
    """What kinds are made of: bit s of a kind is slot s, then one bit for each pull in order.

    The last "slot", numbered by the arity, stands for all children together: a vertex has it when
    it has any child (`gather_all`). Where there are several vertex functions, the number of the
    vertex's own begins at bit FUNCTION_AT.

    `path` masks the bits that path and eager nodes of each function depend on; `lazy` all bits that
    matter to it. Where F is not `specialised`, programs know none of them.
    """

    slots: int
    pulls: tuple[str, ...]
    path: tuple[int, ...]
    lazy: tuple[int, ...]
    names: tuple[str, ...] = ()  # of the vertex types, where there are several functions
    specialised: bool = True

    def function_of(self, kind: int) -> int:
        """Return the number of the vertex function of a kind."""
        return kind >> FUNCTION_AT if self.names else 0

    def on_path(self, kind: int) -> int:
        """Return the bits of a kind that the path depends on."""
        function = self.function_of(kind)
        return (kind & self.path[function]) | (function << FUNCTION_AT)

    def facts(self, kind: int, masks: tuple[int, ...]) -> Presence:
        """Return what programs know of a vertex whose kind is known only under the masks."""
        return self.presence(kind, masks if self.specialised else (0,) * len(masks))

    def presence(self, kind: int, masks: tuple[int, ...]) -> Presence:
        """Return what is so of a vertex whose kind is known only under the masks."""
        function = self.function_of(kind)
        mask = masks[function]
        slots = {s: bool(kind >> s & 1) for s in range(self.slots) if mask >> s & 1}
        pulls = {}
        for k, name in enumerate(self.pulls):
            bit = self.slots + k
            if mask >> bit & 1:
                pulls[name] = bool(kind >> bit & 1)
        return Presence(slots, pulls, function)

    def describe(self, kind: int, masks: tuple[int, ...]) -> str:
        """Name a kind for people: its vertex type, `{0,1}` for slots, then the pulls."""
        facts = self.presence(kind, masks)
        slots = ",".join(str(s) for s, has in facts.slots.items() if has)
        pulls = [name for name, has in facts.pulls.items() if has]
        return " ".join([*self.names[facts.function :][:1], f"{{{slots}}}", *pulls])


@dataclass(frozen=True, slots=True)
class Presence:
    """What is known of a kind: slot -> present, pull -> present; what is not listed is unknown."""

    slots: Mapping[int, bool]
    pulls: Mapping[str, bool]
    function: int = 0

    def of(self, node: Node) -> bool | None:
        """Tell whether these vertices have what a node reads from outside, or writes there.

        Returns: None, where that is unknown, or the node does neither.
        """
        if node.op in OF_SLOTS:
            return self.slots.get(node["slot"])
        return self.pulls.get(node["name"]) if node.op in OF_PULLS else None


def find_atoms(program: Program, specialised: bool = True) -> Atoms:
    """Collect the bits on which a placed program can be specialised.

    Args:
        program: F, or F and dF, after `place`.
        specialised: False gives one program for all vertices of a function (the ablation's
            baseline).
    """
    slots = (program.arity or 0) + 1
    names = tuple(p.name for p in program.pulls)
    types = tuple(site.name for site in program.sites)
    path, lazy = [0] * max(len(types), 1), [0] * max(len(types), 1)
    on_path = [node.stage in (Stage.EAGER, Stage.PATH) for node in program.nodes]
    for node, early in zip(program.nodes, mark_needed(program.nodes, on_path), strict=True):
        bit = 0  # of what it reads from outside, or writes for a child
        if node.op in OF_SLOTS:
            bit = 1 << node["slot"]
        elif node.op in ("pull", "has_pull"):
            bit = 1 << slots + names.index(node["name"])
        lazy[node.function] |= bit
        path[node.function] |= bit if early or node.op in GRADIENTS_TO_CHILDREN else 0
    if not specialised:
        path = [0] * len(path)
    return Atoms(slots, names, tuple(path), tuple(lazy), types, specialised)


def with_whole_chains(atoms: Atoms, program: Program) -> Atoms:
    """Return atoms by which the first vertex of a chain is of the same path kind as the others."""
    slots = [chain_slot(program, f) for f in range(len(atoms.path))]
    bits = [1 << slot if slot >= 0 else 0 for slot in slots]
    return replace(atoms, path=tuple(m & ~bit for m, bit in zip(atoms.path, bits, strict=True)))


def specialise(program: Program, facts: Presence) -> Program:
    """Return the program of the vertices for which these facts hold.

    Args:
        program: placed F, or F and dF.
        facts: what is known of these vertices.
    Source: Cavs leaves this to the user; the zero propagation is ours.
    """
    program = keep(program, [node.function == facts.function for node in program.nodes])
    childless = facts.slots.get(program.arity or 0) is False

    def rule(out: Rewriter, node: Node) -> int | None:
        if childless and node.type.domain == Domain.EDGE and node.type.dtype == "float":
            return out.const(node, 0.0)  # there are no edges
        index = INDEX_OPERAND.get(node.op)
        if index is not None and out.nodes[node.inputs[index]].op == "const":
            return out.const(node, 0.0)  # an index or a label that is absent
        there = facts.of(node)
        if node.op in ("present", "has_pull") and there is not None:
            return out.const(node, float(there))
        if node.op in ("gather", "gather_all", "edge_pull", "pull") and there is False:
            if node.type.dtype == "float":
                return out.const(node, 0.0)
            absent = attributes({"dtype": "int", "shape": (), "value": -1})
            kind = Type((), "int", Domain.PARAM)
            return out.append(replace(node, op="const", type=kind, attrs=absent, origin=-1))
        return simplified(out, node)

    def is_absent(node: Node) -> bool:
        """Tell of an effect whether these vertices do not have what it writes for, or of."""
        of_edges = node.op in ("keep", "pull_grad") and node.type.domain == Domain.EDGE
        return facts.of(node) is False or (of_edges and childless)

    found = rewrite(program, rule)
    return without_effects(found, lambda n: OPS[n.op].role == "effect" and is_absent(n))


def without_effects(program: Program, unwanted: Callable[[Node], bool]) -> Program:
    """Drop the effects that a predicate picks, and what only they needed."""
    return drop_dead(keep(program, [not unwanted(node) for node in program.nodes]))
