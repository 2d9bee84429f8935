"""Products that read states of children, and write to edges, where these lie: no copies around.

A function that multiplies the states of all its children at once, as `w @ concat(left.h, right.h)`,
copies them next to each other, and copies apart what comes back for each child. In a minibatch of
complete trees, or of chains of one length, they are next to each other already: edge e leads to row
e, and a vertex has all children that the function has slots for. So a task program may have an
alternative, and a layout whose edges are in that order is launched by the alternatives.

A level then is a product and one loop over its rows, as one written by hand for that shape is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.operands import children_read
from vertexrt.ir.passes.store import Key, is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Binding, edge_key
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

AS_IT_IS, NEVER = -1, -2  # of `alternatives`: a program has none; nor have layouts that launch it


@dataclass(frozen=True, slots=True)
class InPlace:
    """A task program without copies.

    Attributes:
        task: without what copied, and without room for what was copied.
        places: of the values that are elsewhere instead.
        keys: of the tensors that it neither writes nor reads any more.
    """

    task: TaskProgram
    places: dict[int, ValuePlace]
    keys: frozenset[Key]


def in_place(task: TaskProgram, binding: Binding) -> InPlace | None:
    """Return a task program without copies of states and for edges; None, if it has no copies.

    Its launches need vertices with `arity` children each, and edges in the order of their children.
    """
    program = task.program
    if not program.arity or program.sites or program.splits_edges or program.relations > 1:
        return None
    return _Without(task, binding).copies()


class _Without:
    """What a task program copies around its products."""

    def __init__(self, task: TaskProgram, binding: Binding) -> None:
        self.task, self.nodes, self.binding = task, task.program.nodes, binding
        self.slots = task.program.arity or 0
        self.readers: dict[int, list[int]] = {}
        for k in task.members:
            for i in self.nodes[k].inputs:
                self.readers.setdefault(i, []).append(k)

    def copies(self) -> InPlace | None:
        """Return the task program without them, if there are some."""
        task = self.task
        kept = {k for k, key in task.homes.items() if key[0] == "value"}
        values = sorted(task.local | kept | task.reads.keys())
        read = {k: self._children(k) if self._is_operand(k) else None for k in values}
        written = {k: self._edges(k) for k in sorted(task.local)}
        both = [*read.items(), *written.items()]
        places = {k: place for k, place in both if place is not None}
        if not places:
            return None
        keys = {task.homes[k] for k in places if k in task.homes}
        keys |= {task.reads[k].key for k in places if k in task.reads}
        left = replace(
            task,
            reads={k: x for k, x in task.reads.items() if k not in places},
            homes={k: x for k, x in task.homes.items() if k not in places},
            local=task.local - places.keys(),
            steps=self._steps_without(places),
        )
        return InPlace(left, places, frozenset(keys))

    # Operands.

    def _is_operand(self, k: int) -> bool:
        """Tell whether products alone read a value, a row of each vertex."""
        readers = [self.nodes[r] for r in self.readers.get(k, ())]
        kind = self.nodes[k].type
        alone = all(n.op == "outer" or (n.op == "matmul" and n.inputs[1] == k) for n in readers)
        return bool(readers) and alone and _is_row(self.nodes[k]) and kind.size > 0

    def _children(self, k: int) -> ValuePlace | None:
        """Return where a value lies that is the states of all children, in order."""
        found = children_read(self.task.program, k)
        return None if found is None else self._rows_of(("state", found[0]), found[1])

    # Results.

    def _edges(self, k: int) -> ValuePlace | None:
        """Return where a product may write what is scattered to all children, in order."""
        node = self.nodes[k]
        if node.op != "matmul" or not _is_row(node):
            return None
        parts = self.readers.get(k, [])
        effects = [self._effect_of(k, part) for part in parts]
        found = {x["slot"]: (x["field"], x["every"]) for x in effects if x is not None}
        fields = {*found.values()}
        if len(parts) != self.slots or len(found) != self.slots or len(fields) != 1:
            return None
        ((field, every),) = fields
        return (
            None if every else self._rows_of(edge_key(field, False), node.type.size // self.slots)
        )

    def _effect_of(self, k: int, part: int) -> Node | None:
        """Return what scatters a part of a product to the child that it is for."""
        size, start = self.nodes[k].type.size // self.slots, 0
        if self.nodes[part].op == "slice":
            start = self.nodes[part]["start"]
            readers = self.readers.get(part, [])
            if part in self.task.homes or len(readers) != 1 or self.nodes[part].type.size != size:
                return None
            (part,) = readers
        effect = self.nodes[part]
        fits = effect.op == "scatter_child" and effect["slot"] * size == start
        return effect if fits else None

    def _rows_of(self, key: Key, size: int) -> ValuePlace:
        """Return the rows of the edges of each vertex, as one row."""
        number, stride = self.binding.tensors[key], size if self.slots > 1 else 0
        return ValuePlace(Memory.TENSOR, number, self.slots * size, Rows.EDGE, 0, stride)

    # What is left.

    def _steps_without(self, places: dict[int, ValuePlace]) -> tuple[Group | Product, ...]:
        gone = self._gone(places)
        steps: list[Group | Product] = []
        for step in self.task.steps:
            if isinstance(step, Product):
                steps.append(step)
                continue
            nodes = tuple(k for k in step.nodes if k not in gone)
            if nodes:
                steps.append(Group(step.domain, nodes))
        return tuple(steps)

    def _gone(self, places: dict[int, ValuePlace]) -> set[int]:
        """Return the nodes that only copied: what was made, and all that nothing else reads."""
        products = {step.node for step in self.task.steps if isinstance(step, Product)}
        gone = {k for k in places if k not in products}
        for k in places.keys() & products:
            parts = self.readers[k]
            gone.update(parts, *(self.readers.get(part, ()) for part in parts))
        while more := {k for k in self.task.members if self._is_unread(k, gone)} - gone:
            gone |= more
        return gone

    def _is_unread(self, k: int, gone: set[int]) -> bool:
        """Tell whether a leaf is read by nothing that is left."""
        readers = self.readers.get(k, ())
        return is_free(self.nodes[k]) and gone.issuperset(readers) and k not in self.task.homes


def _is_row(node: Node) -> bool:
    return node.type.domain == Domain.VERTEX and len(node.type.shape) == 1


def alternatives_of(
    tasks: Sequence[TaskProgram], found: Sequence[InPlace | None]
) -> tuple[list[InPlace], Int64]:
    """Return the alternatives in order, and for each task program the number of its own.

    These follow the task programs. AS_IT_IS: it has none. NEVER: it has none, and reads or writes
    what alternatives leave out.
    """
    every = [x for x in found if x is not None]
    keys = frozenset[Key]().union(*(x.keys for x in every))
    numbers = np.full(len(tasks), AS_IT_IS, np.int64)
    count = len(tasks)
    for p, (task, own) in enumerate(zip(tasks, found, strict=True)):
        touched = {*task.homes.values(), *(read.key for read in task.reads.values())}
        if touched & keys - (own.keys if own is not None else frozenset()):
            numbers[p] = NEVER
        elif own is not None:
            numbers[p] = count
        count += own is not None
    return every, numbers


@compiled
def may_be_in_place(table: Int64, numbers: Int64, slots: int, child_row: Array) -> bool:
    """Tell whether a layout can be launched by alternatives.

    Args:
        table: its launches; numbers: of `alternatives_of`; slots: of the function.
        child_row: int32 [E] of its schedule.
    """
    some = False
    for t in range(len(table)):
        number = numbers[table[t, 0]]
        if number == NEVER:
            return False
        if number >= 0:
            n, lo, m, first = table[t, 1], table[t, 2], table[t, 4], table[t, 5]
            if lo < 0 or m != slots * n or first % slots != 0:
                return False
            some = True
    if not some:
        return False
    in_order = True
    for e in range(len(child_row)):
        in_order &= child_row[e] == e
    return in_order
