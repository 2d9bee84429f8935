"""Where pushes lie: in tensors of their own, or where the vertices' states are anyway.

A vertex that pushes what it scatters has one row of it, not two: a recurrent layer's output is its
state. So evaluations need no copy of all rows when the path is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from vertexrt.ir.passes.specialise import without_effects
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.program import Node, Program


class Pushes(NamedTuple):
    """The pushes of a variant.

    Attributes:
        keys: the tensor of each, by name; shapes: of a vertex.
    """

    keys: Mapping[str, Key]
    shapes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(program: Program, states: Collection[str]) -> Pushes:
        """Name the tensors of a program's pushes.

        Args:
            states: pushes that are read where states are, if every function scatters what it
                pushes.
        """
        pushes = {node["name"]: node for node in program.nodes if node.op == "push"}
        keys = {name: TENSOR_OF_EFFECT["push"](node) for name, node in pushes.items()}
        taken: set[Key] = set()  # a state is one push, which may get memory of its own
        for name in sorted(keys.keys() & set(states)):
            key = _state_of(program, name)
            if key is not None and key not in taken:
                keys[name] = key
                taken.add(key)
        return Pushes(keys, {name: tuple(node["shape"]) for name, node in pushes.items()})

    def without_copies(self, program: Program) -> Program:
        """Return a program that pushes nothing of what lies where states are."""
        return without_effects(program, self._is_a_copy)

    def _is_a_copy(self, node: Node) -> bool:
        return node.op == "push" and self.keys[node["name"]] != TENSOR_OF_EFFECT["push"](node)


def _state_of(program: Program, name: str) -> Key | None:
    """Return the state to which every function scatters what it pushes; None for none."""
    scattered: dict[tuple[int, ...], Key] = {}
    for node in program.nodes:
        if node.op == "scatter":
            scattered.setdefault(node.inputs, TENSOR_OF_EFFECT["scatter"](node))
    pushes = (node for node in program.nodes if node.op == "push" and node["name"] == name)
    found = {scattered.get(node.inputs) for node in pushes}
    return found.pop() if len(found) == 1 else None
