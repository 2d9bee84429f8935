"""The machine under simplify and specialise: copy a program node by node through local rules.

A rule looks at one node whose operands are already rewritten and returns the position of an equal
value, or None to keep the node. Equal nodes of one stage and vertex function are merged, and what
no effect needs is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from vertexrt.ir.ops import OPS
from vertexrt.ir.program import Domain, Node, Program, Type, attributes, mark_needed

Rule = Callable[["Rewriter", Node], int | None]


class Rewriter:
    """A program being copied: `nodes` so far, and the table of common subexpressions."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._seen: dict[Hashable, int] = {}

    def append(self, node: Node) -> int:
        """Add a node, or find its equal of the stage and function; effects are always added."""
        if OPS[node.op].role == "effect":
            self.nodes.append(node)
            return len(self.nodes) - 1
        key = (node.op, node.inputs, node.attrs, node.stage, node.type, node.function)
        if key not in self._seen:
            self._seen[key] = len(self.nodes)
            self.nodes.append(node)
        return self._seen[key]

    def const(self, like: Node, value: float, type_: Type | None = None) -> int:
        """Add a constant that stands where node `like` stood."""
        shape = (type_ or like.type).shape
        kind, made = (
            Type(shape, "float", Domain.PARAM),
            attributes({"value": value, "shape": shape}),
        )
        return self.append(replace(like, op="const", inputs=(), type=kind, attrs=made, origin=-1))

    def derived(self, like: Node, op: str, inputs: tuple[int, ...], type_: Type, **a: Any) -> int:
        """Add a node that stands, with its stage and origin, where node `like` stood."""
        return self.append(replace(like, op=op, inputs=inputs, type=type_, attrs=attributes(a)))

    def constant_of(self, index: int) -> float | None:
        """Return the value of a constant node, None for any other."""
        node = self.nodes[index]
        return float(node["value"]) if node.op == "const" else None

    def is_zero(self, index: int) -> bool:
        """Tell whether a value is known to be zero in every element."""
        return self.constant_of(index) == 0.0


def rewrite(program: Program, rule: Rule) -> Program:
    """Copy a program through a rule, merge equal nodes and drop dead ones."""
    out = Rewriter()
    new: list[int] = []
    for node in program.nodes:
        moved = node.moved(tuple(new[i] for i in node.inputs))
        found = rule(out, moved)
        new.append(out.append(moved) if found is None else found)
    return drop_dead(program.with_nodes(out.nodes))


def drop_dead(program: Program) -> Program:
    """Drop nodes that no effect needs, directly or through others."""
    live = [OPS[node.op].role == "effect" for node in program.nodes]
    return keep(program, mark_needed(program.nodes, live))


def keep(program: Program, wanted: list[bool]) -> Program:
    """Keep the nodes marked in `wanted`, renumbering their inputs."""
    if all(wanted):
        return program
    new: dict[int, int] = {}
    nodes: list[Node] = []
    for k, node in enumerate(program.nodes):
        if wanted[k]:
            new[k] = len(nodes)
            nodes.append(node.moved(tuple(new[i] for i in node.inputs)))
    return program.with_nodes(nodes)
