"""Specialise: derive, for one kind of vertex, the program that an expert would write by hand.

A kind is the set of gather slots and pulls that a vertex has. What is absent reads zero, and the
zeros are propagated: an SST leaf keeps W x and loses U h, an inner vertex the other way round (3
against 8 products, DESIGN section 4). Nodes keep the stage and origin that `place` gave them, so
tensors are shared between kinds by origin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vertexrt.ir.passes.rewrite import Rewriter, drop_dead, keep, rewrite
from vertexrt.ir.passes.simplify import simplified
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes

MOST_SLOTS, MOST_PULLS = 32, 30  # a kind is 63 bits: slots, all children together, and pulls
GRADIENTS_TO_CHILDREN = ("scatter_child", "scatter_children")


@dataclass(frozen=True, slots=True)
class Atoms:
    """What kinds are made of: bit s of a kind is slot s, then one bit for each pull in order.

    The last "slot", numbered by the arity, stands for all children together: a vertex has it when
    it has any child (`gather_all`).

    `path` masks the bits that path and eager nodes depend on; `lazy` all bits that matter.
    """

    slots: int
    pulls: tuple[str, ...]
    path: int
    lazy: int

    def facts(self, kind: int, mask: int) -> Presence:
        """Return what is known of a vertex whose kind is known only under `mask`."""
        slots = {s: bool(kind >> s & 1) for s in range(self.slots) if mask >> s & 1}
        pulls = {}
        for k, name in enumerate(self.pulls):
            bit = self.slots + k
            if mask >> bit & 1:
                pulls[name] = bool(kind >> bit & 1)
        return Presence(slots, pulls)

    def describe(self, kind: int, mask: int) -> str:
        """Name a kind for people: `{0,1}` for slots, then the pulls."""
        facts = self.facts(kind, mask)
        slots = ",".join(str(s) for s, has in facts.slots.items() if has)
        pulls = [name for name, has in facts.pulls.items() if has]
        return " ".join([f"{{{slots}}}", *pulls])


@dataclass(frozen=True, slots=True)
class Presence:
    """What is known of a kind: slot -> present, pull -> present; what is not listed is unknown."""

    slots: Mapping[int, bool]
    pulls: Mapping[str, bool]


def find_atoms(program: Program, specialised: bool = True) -> Atoms:
    """Collect the bits on which a placed program can be specialised.

    Args:
        program: F, or F and dF, after `place`.
        specialised: False gives masks of zero: one kind for all vertices (the ablation's baseline).
    """
    slots = (program.arity or 0) + 1
    names = tuple(p.name for p in program.pulls)
    path = lazy = 0
    reaches_path = [False] * len(program.nodes)
    readers = program.consumers()
    for k in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[k]
        early = node.stage in (Stage.EAGER, Stage.PATH)
        reaches_path[k] = early or any(reaches_path[r] for r in readers[k])
        bit = 0
        if node.op in ("gather", "present", "gather_all", *GRADIENTS_TO_CHILDREN):
            bit = 1 << node["slot"]
        elif node.op in ("pull", "has_pull"):
            bit = 1 << slots + names.index(node["name"])
        lazy |= bit
        if reaches_path[k] or node.op in GRADIENTS_TO_CHILDREN:
            path |= bit
    if not specialised:
        return Atoms(slots, names, 0, 0)
    return Atoms(slots, names, path, lazy | path)


def specialise(program: Program, facts: Presence) -> Program:
    """Return the program of the vertices for which these facts hold.

    Args:
        program: placed F, or F and dF.
        facts: what is known of these vertices.
    Source: Cavs leaves this to the user; the zero propagation is ours (DESIGN section 4).
    """

    childless = facts.slots.get(program.arity or 0) is False

    def rule(out: Rewriter, node: Node) -> int | None:
        if childless and node.type.domain == Domain.EDGE and node.type.dtype == "float":
            return out.const(node, 0.0)  # there are no edges
        if node.op in ("gather", "present", "gather_all"):
            known = facts.slots.get(node["slot"])
            if known is False:
                return out.const(node, 0.0)
            if known is True and node.op == "present":
                return out.const(node, 1.0)
        if node.op == "has_pull" and node["name"] in facts.pulls:
            return out.const(node, float(facts.pulls[node["name"]]))
        if node.op == "pull" and facts.pulls.get(node["name"]) is False:
            if node.type.dtype == "float":
                return out.const(node, 0.0)
            return out.append(_absent_index(node))
        for op, position in (("embed", 1), ("nll", 1), ("embed_grad", 0), ("nll_grad", 1)):
            if node.op == op and out.nodes[node.inputs[position]].op == "const":
                return out.const(node, 0.0)
        return simplified(out, node)

    return _drop_absent(rewrite(program, rule), facts)


def _drop_absent(program: Program, facts: Presence) -> Program:
    """Drop what these vertices do not have: children to write for, gradients of absent pulls."""
    childless = facts.slots.get(program.arity or 0) is False
    kept = []
    for node in program.nodes:
        gone = node.op in GRADIENTS_TO_CHILDREN and facts.slots.get(node["slot"]) is False
        gone |= node.op == "pull_grad" and facts.pulls.get(node["name"]) is False
        gone |= node.op == "keep" and node.type.domain == Domain.EDGE and childless
        kept.append(not gone)
    return drop_dead(keep(program, kept))


def _absent_index(node: Node) -> Node:
    """Return the index of what is not there: -1."""
    return Node(
        "const",
        (),
        Type((), "int", Domain.PARAM),
        attributes({"dtype": "int", "shape": (), "value": -1}),
        node.where,
        node.stage,
    )


def without_effects(program: Program, unwanted: Callable[[Node], bool]) -> Program:
    """Drop the effects that a predicate picks, and what only they needed."""
    return drop_dead(keep(program, [not unwanted(node) for node in program.nodes]))
