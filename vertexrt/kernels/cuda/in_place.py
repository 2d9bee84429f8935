"""Products that read states of children, and write to edges, where these lie: no copies around.

A function that multiplies the states of all its children at once, as `w @ concat(left.h, right.h)`,
copies them next to each other, and copies apart what comes back for each child. In a minibatch of
complete trees, or of chains of one length, they are next to each other already: edge e leads to row
e, and a vertex has all children that the function has slots for. So a task program may have an
alternative, and a layout whose edges are in that order is launched by the alternatives.

A level then is a product and one loop over its rows, as one written by hand for that shape is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import Group, Product, TaskProgram, children_read
from vertexrt.ir.passes.store import Key, is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import edge_key
from vertexrt.lower.kernel import Memory, PlaceRows, ValuePlace
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

AS_IT_IS, NEVER = -1, -2  # of `alternatives`: a program has none; nor have layouts that launch it


@dataclass(frozen=True, slots=True)
class InPlace:
    """A task program without copies.

    Attributes:
        task: without what copied, and without room for what was copied.
        places: of the values that are elsewhere instead.
        keys: of the tensors that it neither writes nor reads any more.
        slots: children of each vertex.
    """

    task: TaskProgram
    places: dict[int, ValuePlace]
    keys: frozenset[Key]
    slots: int


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
        places = self._read() | self._written()
        if not places:
            return None
        task, keys = self.task, {k: key for k, key in self._keys().items() if k in places}
        left = replace(
            task,
            reads=_without(task.reads, places),
            homes=_without(task.homes, places),
            local=task.local - places.keys(),
            steps=self._steps_without(places),
        )
        return InPlace(left, places, frozenset(keys.values()), self.slots)

    def _keys(self) -> dict[int, Key]:
        """Return the tensors of values that other task programs read, or made, by value."""
        kept = {k: key for k, key in self.task.homes.items() if key[0] == "value"}
        return kept | {k: read.key for k, read in self.task.reads.items()}

    def _read(self) -> dict[int, ValuePlace]:
        """Return where operands of products lie that are all states of children."""
        values = sorted(self.task.local | self._keys().keys())
        found = {k: self._children(k) for k in values if self._is_operand(k)}
        return {k: place for k, place in found.items() if place is not None}

    def _written(self) -> dict[int, ValuePlace]:
        """Return where products lie that are scattered to all children."""
        found = {k: self._edges(k) for k in sorted(self.task.local)}
        return {k: place for k, place in found.items() if place is not None}

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
        if self.nodes[k].op != "matmul" or not _is_row(self.nodes[k]):
            return None
        size = self.nodes[k].type.size // self.slots
        found = [self._effect_of(part, size) for part in self.readers.get(k, [])]
        effects = [
            (x["slot"], x["field"], x["every"]) if x is not None else (-1, "") for x in found
        ]
        field = effects[0][1] if effects else ""
        whole = sorted(effects) == [(slot, field, False) for slot in range(self.slots)]
        return self._rows_of(edge_key(field, False), size) if whole else None

    def _effect_of(self, part: int, size: int) -> Node | None:
        """Return what scatters a part of a product, of a size, to the child that it is for."""
        node, start = self.nodes[part], 0
        if node.op == "slice":
            readers = self.readers.get(part, [])
            if part in self.task.homes or len(readers) != 1 or node.type.size != size:
                return None
            start, node = node["start"], self.nodes[readers[0]]
        fits = node.op == "scatter_child" and node["slot"] * size == start
        return node if fits else None

    def _rows_of(self, key: Key, size: int) -> ValuePlace:
        """Return the rows of the edges of each vertex, as one row."""
        number, stride = self.binding.tensors[key], size if self.slots > 1 else 0
        return ValuePlace(Memory.TENSOR, number, self.slots * size, PlaceRows.EDGE, 0, stride)

    # What is left.

    def _steps_without(self, places: Collection[int]) -> tuple[Group | Product, ...]:
        gone = self._gone(places)
        steps: list[Group | Product] = []
        for step in self.task.steps:
            nodes = tuple(k for k in step.nodes if k not in gone)
            if isinstance(step, Product):
                steps.append(step)
            elif nodes:
                steps.append(Group(step.domain, nodes))
        return tuple(steps)

    def _gone(self, places: Collection[int]) -> set[int]:
        """Return the nodes that only copied: what was made, and all that nothing else reads."""
        products = {step.node for step in self.task.steps if isinstance(step, Product)}
        gone = {*places} - products
        for k in products.intersection(places):
            for part in self.readers[k]:
                gone |= {part, *self.readers.get(part, ())}
        while more := {k for k in self.task.members if self._is_unread(k, gone)} - gone:
            gone |= more
        return gone

    def _is_unread(self, k: int, gone: set[int]) -> bool:
        """Tell whether a leaf is read by nothing that is left."""
        readers = self.readers.get(k, ())
        return is_free(self.nodes[k]) and gone.issuperset(readers) and k not in self.task.homes


def _is_row(node: Node) -> bool:
    return node.type.domain == Domain.VERTEX and len(node.type.shape) == 1


def _without(values: Mapping[int, T], places: Collection[int]) -> dict[int, T]:
    return {k: x for k, x in values.items() if k not in places}


def alternatives_of(
    tasks: Sequence[TaskProgram], binding: Binding
) -> tuple[list[InPlace], Int64, int]:
    """Return the alternatives of task programs in order.

    Returns: also for each task program the number of its own, which follow theirs. AS_IT_IS: it has
        none. NEVER: it has none, and reads or writes what alternatives leave out. And how many
        children the vertices have.
    """
    found = [in_place(task, binding) for task in tasks]
    every = [x for x in found if x is not None]
    left_out = frozenset[Key]().union(*(x.keys for x in every))
    numbers, count = np.full(len(tasks), AS_IT_IS, np.int64), len(tasks)
    for p, own in enumerate(found):
        if own is not None:
            numbers[p] = count
            count += 1
        if not _touched(tasks[p], own).isdisjoint(left_out):
            numbers[p] = NEVER
    return every, numbers, every[0].slots if every else 0  # all have the same


def _touched(task: TaskProgram, own: InPlace | None) -> set[Key]:
    """Return the tensors that a task program writes or reads, and its alternative does, too."""
    found = {*task.homes.values(), *(read.key for read in task.reads.values())}
    return found if own is None else found - own.keys


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
