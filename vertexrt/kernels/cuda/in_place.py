"""Products that read states of children, and write to edges, where these lie: no copies around.

A function that multiplies the states of all its children at once, as `w @ concat(left.h, right.h)`,
copies them next to each other, and copies apart what comes back for each child. In a minibatch of
complete trees, or of chains of one length, they are next to each other already: edge e leads to row
e, and a vertex has all children that the function has slots for. So a task program may have an
alternative, and a layout whose edges are in that order is launched by the alternatives.

A level then is a product and one loop over its rows, as one written by hand for that shape is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    # Tensors of values that other task programs read, or made, by value.
    keys = {k: key for k, key in task.homes.items() if key[0] == "value"}
    keys |= {k: read.key for k, read in task.reads.items()}
    places, copies = dict[int, ValuePlace](), _Copies(task)
    for k in sorted(task.local | keys.keys()):
        found = copies.operand(k)
        if found is None and k in task.local:
            found = copies.result(k)
        if found is not None:  # the rows of the edges of each vertex, as one row
            key, size = found
            stride, whole = size if program.arity > 1 else 0, program.arity * size
            at = Memory.TENSOR, binding.tensors[key], whole, PlaceRows.EDGE
            places[k] = ValuePlace(*at, 0, stride)
    if not places:
        return None
    gone = copies.gone(places)
    steps: list[Group | Product] = []
    for step in task.steps:
        nodes = tuple(k for k in step.nodes if k not in gone)
        if isinstance(step, Product):
            steps.append(step)
        elif nodes:
            steps.append(Group(step.domain, nodes))
    left = replace(
        task,
        reads={k: read for k, read in task.reads.items() if k not in places},
        homes={k: key for k, key in task.homes.items() if k not in places},
        local=task.local - places.keys(),
        steps=tuple(steps),
    )
    return InPlace(left, places, frozenset(keys[k] for k in places if k in keys), program.arity)


class _Copies:
    """What a task program copies around its products.

    Attributes:
        readers: of each value, members of the task program.
    """

    def __init__(self, task: TaskProgram) -> None:
        self.task, self.nodes = task, task.program.nodes
        self.readers: dict[int, list[int]] = defaultdict(list)
        for k in task.members:
            for i in self.nodes[k].inputs:
                self.readers[i].append(k)

    def operand(self, k: int) -> tuple[Key, int] | None:
        """Return the state that a value has of all children, where products alone read it."""
        readers, kind = [self.nodes[r] for r in self.readers[k]], self.nodes[k].type
        alone = all(n.op == "outer" or (n.op == "matmul" and n.inputs[1] == k) for n in readers)
        if not (readers and alone and _is_row(self.nodes[k]) and kind.size > 0):
            return None
        found = children_read(self.task.program, k)
        return None if found is None else (("state", found[0]), found[1])

    def result(self, k: int) -> tuple[Key, int] | None:
        """Return the edges to which a product may write, as it is scattered to all children."""
        slots = self.task.program.arity or 0
        if self.nodes[k].op != "matmul" or not _is_row(self.nodes[k]):
            return None
        size = self.nodes[k].type.size // slots
        found = [self._effect_of(part, size) for part in self.readers[k]]
        effects = [(x["slot"], x["field"], x["every"]) for x in found if x is not None]
        field = effects[0][1] if effects else ""
        whole = sorted(effects) == [(slot, field, False) for slot in range(slots)]
        return (edge_key(field, False), size) if whole and len(found) == slots else None

    def _effect_of(self, part: int, size: int) -> Node | None:
        """Return what scatters a part of a product, of a size, to the child that it is for."""
        node, start = self.nodes[part], 0
        if node.op == "slice":
            readers = self.readers[part]
            if part in self.task.homes or len(readers) != 1 or node.type.size != size:
                return None
            start, node = node["start"], self.nodes[readers[0]]
        fits = node.op == "scatter_child" and node["slot"] * size == start
        return node if fits else None

    def gone(self, places: Collection[int]) -> set[int]:
        """Return the nodes that only copied: what was made, and all that nothing else reads."""
        products = {step.node for step in self.task.steps if isinstance(step, Product)}
        gone = {*places} - products
        for k in products.intersection(places):
            for part in self.readers[k]:
                gone |= {part, *self.readers[part]}
        leaves = {k for k in self.task.members if is_free(self.nodes[k])} - self.task.homes.keys()
        while more := {k for k in leaves if gone.issuperset(self.readers[k])} - gone:
            gone |= more
        return gone


def _is_row(node: Node) -> bool:
    return node.type.domain == Domain.VERTEX and len(node.type.shape) == 1


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
    for p, (task, own) in enumerate(zip(tasks, found, strict=True)):
        touched = {*task.homes.values(), *(read.key for read in task.reads.values())}
        if own is not None:
            numbers[p] = count
            count += 1
            touched -= own.keys
        if not touched.isdisjoint(left_out):
            numbers[p] = NEVER
    return every, numbers, every[0].slots if every else 0  # all have the same


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
