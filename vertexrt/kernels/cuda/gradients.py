"""Sum gradients of the path's weights on chip while its backward side runs, where they have room.

Such a gradient is a product over all rows behind the path, in the stage FINAL. Where both of its
operands are in tensors when the backward side has made d_y, the owner of a row of the weight can
add each tile to sums that it holds (`weight_gradients.cuh`): its own elements of d_y, which it made
itself, times x, which stems from the forward side. The product behind the path is then left out.

Source: VPPS (MICRO 2018), section III-C. Which gradients stay behind the path, and in which order
the groups' sums are added, is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import SUMS, SegmentedTask
from vertexrt.ir.passes.store import Read
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.rows import Cuts
from vertexrt.kernels.cuda.weights import Held
from vertexrt.kernels.layout import Binding, gradients_of

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

    held: Held
    d: Read
    x: Read | Child
    edges: bool
    times: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kind of vertex can make a sum.

    Attributes:
        backward, segment: the program behind one of whose segments d_y is there.
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
    side and behind it.

    Args:
        kinds: [4, kinds] see `Backend.load_segments`.
        on_path: the programs that groups run.
        multiplied: words of the weights by which the path multiplies.
        processors: of a group.
    """
    pairs = [(int(q), int(f)) for q, f in zip(kinds[BACKWARD], kinds[FINAL], strict=True)]
    able: dict[PathSum, dict[int, Place]] = {}  # by the number of the kind
    for kind, (backward, final) in enumerate(pairs):
        if final < 0 or backward not in on_path:
            continue
        for node in _products(tasks[final].task):
            found = _sum_of(tasks, backward, final, node, binding, processors)
            if found is not None and found[0].held.word.replace("gradient", "param") in multiplied:
                able.setdefault(found[0], {})[kind] = found[1]
    sums = {one: _agreed(places, pairs) for one, places in able.items()}
    return _apart({one: places for one, places in sums.items() if places}, binding)


def _products(task: TaskProgram) -> list[int]:
    return [s.node for s in task.steps if isinstance(s, Product) and _is_outer(task, s.node)]


def _is_outer(task: TaskProgram, k: int) -> bool:
    return task.program.nodes[k].op == "outer"


def _sum_of(
    tasks: Sequence[SegmentedTask],
    backward: int,
    final: int,
    k: int,
    binding: Binding,
    processors: int,
) -> tuple[PathSum, Place] | None:
    """Describe a product of the stage FINAL as a sum of the path, if it can be one."""
    task = tasks[final].task
    nodes, targets = task.program.nodes, gradients_of(task, k)
    d, x = nodes[k].inputs
    read, source = task.reads.get(d), _source(task, x)
    if len(targets) != 1 or read is None or source is None:
        return None
    plan = tasks[backward]
    made = [i for i, key in plan.task.homes.items() if key == read.key]
    if len(made) != 1:
        return None  # no part of the path's backward side makes it
    m, n = nodes[k].type.shape
    cuts: Cuts = (0, m)
    if processors > 1:
        pieces = plan.cuts.get(made[0], (0, read.width))
        cuts = tuple(c - read.start for c in pieces if read.start <= c <= read.start + m)
        assert (cuts[0], cuts[-1]) == (0, m), f"{read} is cut at {pieces}"
    kind = nodes[d].type
    times = kind.shape[0] if len(kind.shape) == 2 else 1
    held = Held(f"gradient_{binding.params[targets[0]]}", n, False, cuts, n)
    number = max(s for s, x in enumerate(plan.segments) if _makes(x.steps, made[0]))
    return (
        PathSum(held, read, source, kind.domain == Domain.EDGE, times),
        Place(backward, number, final, k),
    )


def _source(task: TaskProgram, x: int) -> Read | Child | None:
    node = task.program.nodes[x]
    if x in task.reads:
        return task.reads[x]
    if node.op == "gather":
        return Child(node["field"], node["slot"])
    return Child(node["field"], EVERY) if node.op == "gather_all" else None


def _makes(steps: Iterable[Group | Product], k: int) -> bool:
    return any(k in s.nodes for s in steps)


def _agreed(places: dict[int, Place], pairs: Sequence[tuple[int, int]]) -> set[Place]:
    """Drop kinds that share a program with one that cannot make a sum, until none is left."""
    able = set(places)
    while True:
        others = [pair for kind, pair in enumerate(pairs) if kind not in able]
        apart = {q for q, _ in others}, {f for _, f in others}
        fewer = {k for k in able if pairs[k][0] not in apart[0] and pairs[k][1] not in apart[1]}
        if fewer == able:
            return {places[kind] for kind in able}
        able = fewer


def _apart(sums: Sums, binding: Binding) -> Sums:
    """Leave out gradients that share elements with another one: who adds there must take turns."""
    names = {f"gradient_{k}": set(name.split("+")) for name, k in binding.params.items()}
    taken: dict[Held, set[str]] = {}
    found: Sums = {}
    for one, places in sums.items():
        parts = names[one.held.word]
        if all(one.held == held or not parts & other for held, other in taken.items()):
            taken[one.held] = parts
            found[one] = places
    return found


def overlapping(held: Collection[Held], binding: Binding) -> list[int]:
    """List the numbers of all gradients that share elements with those that are held."""
    names = {f"gradient_{k}": set(name.split("+")) for name, k in binding.params.items()}
    parts = {part for h in held for part in names[h.word]}
    return sorted(k for name, k in binding.params.items() if parts & set(name.split("+")))


# The stage behind the path.


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
        kept: list[int] = []
        for k in reversed(step.nodes):
            if k in needed or nodes[k].op in SUMS or OPS[nodes[k].op].role == "effect":
                needed |= {k, *nodes[k].inputs}
                kept.append(k)
        if kept:
            steps.append(Group(step.domain, tuple(reversed(kept))))
    return replace(
        task,
        homes={k: key for k, key in task.homes.items() if k in needed},
        local=task.local & needed,
        steps=tuple(reversed(steps)),
    )
