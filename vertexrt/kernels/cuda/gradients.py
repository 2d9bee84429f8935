"""Sum gradients of the path's weights on chip while its backward side runs, where they have room.

Such a gradient is a product over all rows after the path, in the stage FINAL. Where both of its
operands are in tensors once the backward side has made d_y, the processor that owns a row of the
weight can add each tile to a sum in its registers (`weight_gradients.cuh`): its own elements of d_y
times x, which the forward side stored. The product after the path is then left out.

Source: VPPS (MICRO 2018), section III-C. Which gradients stay after the path, and the order in
which the groups' sums are added, are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vertexrt.ir.ops import OPS, OVER_ROWS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.passes.store import Read
from vertexrt.ir.program import Node
from vertexrt.kernels.cuda.weights import ResidentWeight
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import gradients_of
from vertexrt.lower.lowering import rows_of
from vertexrt.lower.threads import Cuts

BACKWARD, FINAL = 2, 3  # rows of `kinds`, see `Backend.load_segments`
EVERY = -1  # in place of a slot: the child of each edge


@dataclass(frozen=True, slots=True)
class Child:
    """The state of a row's child in a slot, or of each edge's child; zero where there is none."""

    field: str
    slot: int


@dataclass(frozen=True, slots=True)
class PathSum:
    """A sum over rows, d_y times x, that the backward side of the path can make.

    Attributes:
        held: whose rows are summed up; its word is the gradient.
        d, x: where the operands lie.
        edges: of the rows: they are edges, not vertices.
        times: rows of the sum for each of them.
    """

    held: ResidentWeight
    d: Read
    x: Read | Child
    edges: bool
    times: int

    @property
    def weight(self) -> str:
        """Return the word of the weight that the sum is the gradient of."""
        return self.held.word.replace("gradient", "param")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kind of vertex can make a sum.

    Attributes:
        backward, segment: the program, and its segment that makes d_y.
        final, product: the program, and the node of it, that are left out for it.
    """

    backward: int
    segment: int
    final: int
    product: int


Sums = dict[PathSum, set[Place]]


def find_sums(
    tasks: Sequence[SegmentedTask],
    kinds: npt.NDArray[np.int64],
    on_path: Collection[int],
    multiplied: Collection[str],
    binding: Binding,
    processors: int,
) -> Sums:
    """Find what the backward side of the path can sum up.

    A program may stand for several kinds of vertices: then all of them must agree, on the backward
    side and after it.

    Args:
        kinds: [4, kinds] see `Backend.load_segments`.
        on_path: the programs that groups run.
        multiplied: words of the weights by which the path multiplies.
        processors: of a group.
    """
    pairs = list(map(tuple, kinds[[BACKWARD, FINAL]].T.tolist()))
    able: dict[PathSum, dict[int, Place]] = {}  # by the number of the kind
    for kind, (backward, final) in enumerate(pairs):
        if final < 0 or backward not in on_path:
            continue
        for one, place in _sums_of(tasks, backward, final, binding, processors):
            if one.weight in multiplied:
                able.setdefault(one, {})[kind] = place
    agreed = ((one, _agreed(places, pairs)) for one, places in able.items())
    return _apart({one: places for one, places in agreed if places}, binding)


def _sums_of(
    tasks: Sequence[SegmentedTask], backward: int, final: int, binding: Binding, processors: int
) -> Iterator[tuple[PathSum, Place]]:
    """Yield the products of the stage FINAL of a kind that can be sums of the path."""
    task, plan = tasks[final].task, tasks[backward]
    for step in task.steps:
        if isinstance(step, Product) and task.program.nodes[step.node].op == "outer":
            found = _sum_of(task, plan, step.node, binding, processors)
            if found is not None:
                one, segment = found
                yield one, Place(backward, segment, final, step.node)


def _sum_of(
    task: TaskProgram, plan: SegmentedTask, k: int, binding: Binding, processors: int
) -> tuple[PathSum, int] | None:
    """Describe a product of the stage FINAL as a sum of the path, if it can be one.

    Returns: the sum, and the segment of the path's program after which it can be made.
    """
    nodes, targets = task.program.nodes, gradients_of(task, k)
    d, x = nodes[k].inputs
    read, source = task.reads.get(d), _source(task, x, binding)
    if len(targets) != 1 or read is None or source is None:
        return None
    made = [i for i, key in plan.task.homes.items() if key == read.key]
    if len(made) != 1:
        return None  # no part of the path's backward side makes it
    m, n = nodes[k].type.shape
    cuts = _cuts_of(plan, made[0], read, m) if processors > 1 else (0, m)
    held = ResidentWeight(f"gradient_{binding.params[targets[0]]}", n, False, cuts, n, True)
    edges, times = rows_of(nodes[d].type)
    return PathSum(held, read, source, edges, times), _last_segment(plan, made[0])


def _last_segment(plan: SegmentedTask, k: int) -> int:
    """Return the last segment that makes a value."""
    return max(s for s, segment in enumerate(plan.segments) if k in segment.members)


def _cuts_of(plan: SegmentedTask, k: int, read: Read, rows: int) -> Cuts:
    """Return where the part of a value that has so many elements is cut."""
    pieces = plan.cuts.get(k, (0, read.width))
    cuts = tuple(c - read.start for c in pieces if read.start <= c <= read.start + rows)
    assert (cuts[0], cuts[-1]) == (0, rows), f"{read} is cut at {pieces}"
    return cuts


def _source(task: TaskProgram, x: int, binding: Binding) -> Read | Child | None:
    node = task.program.nodes[x]
    if x in task.reads:
        return task.reads[x]
    if node.op == "gather":
        return Child(node["field"], node["slot"])
    reads_edges = node.op == "gather_all" and binding.relations == 1  # not only those of one
    return Child(node["field"], EVERY) if reads_edges else None


def _agreed(places: dict[int, Place], pairs: Sequence[tuple[int, int]]) -> set[Place]:
    """Drop kinds that share a program with one that cannot make a sum, until none is left."""
    able = set(places)
    while True:
        others = [pair for kind, pair in enumerate(pairs) if kind not in able]
        fewer = {k for k in able if not _share_program(pairs[k], others)}
        if fewer == able:
            return {places[kind] for kind in able}
        able = fewer


def _share_program(pair: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Tell whether a kind has the backward or the final program of others."""
    return any(pair[0] == q or pair[1] == f for q, f in others)


def _apart(sums: Sums, binding: Binding) -> Sums:
    """Leave out gradients that share elements with another one: their sums would race."""
    names = parts_of(binding)
    taken: dict[ResidentWeight, set[str]] = {}
    found: Sums = {}
    for one, places in sums.items():
        parts = names[one.held.word]
        if all(one.held == held or not parts & other for held, other in taken.items()):
            taken[one.held] = parts
            found[one] = places
    return found


def parts_of(binding: Binding) -> dict[str, set[str]]:
    """Return the parameters that each gradient is of, by its word."""
    return {f"gradient_{k}": set(name.split("+")) for name, k in binding.params.items()}


# The stage after the path.


def without(task: TaskProgram, products: Collection[int]) -> TaskProgram:
    """Leave products out of a program of the stage FINAL, and what only they need."""
    nodes = task.program.nodes
    steps: list[Group | Product] = []
    needed = {k for k, key in task.homes.items() if key[0] != "exchange"}
    for step in reversed(task.steps):
        if isinstance(step, Product):
            if step.node not in products:
                needed |= {step.node, *nodes[step.node].inputs}
                steps.append(step)
            continue
        kept, needed = _needed_of(nodes, step, needed)
        if kept:
            steps.append(Group(step.domain, kept))
    return replace(
        task,
        homes={k: key for k, key in task.homes.items() if k in needed},
        local=task.local & needed,
        steps=tuple(reversed(steps)),
    )


def _needed_of(
    nodes: Sequence[Node], group: Group, needed: set[int]
) -> tuple[tuple[int, ...], set[int]]:
    """List the members of a group that are needed; return what is needed before it, too."""
    wanted = {*needed}
    kept: list[int] = []
    for k in reversed(group.nodes):
        if k in wanted or nodes[k].op in OVER_ROWS or OPS[nodes[k].op].role == "effect":
            wanted |= {k, *nodes[k].inputs}
            kept.append(k)
    return tuple(reversed(kept)), wanted
