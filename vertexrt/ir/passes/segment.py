"""Cut task programs into segments: what the processors of a group do between two exchanges.

The processors of a group share every task. On the path they split it by *units*: processor r of P
owns the same range of every gate, computes those rows of each product and the elementwise work on
them. A product needs its whole operand, so the path is cut where an operand has been made in parts;
between two cuts nobody waits. What stems from gathered states alone is made by every processor for
itself, which costs less than an exchange. Before and after the path, processors split the rows;
sums over all rows (parameter gradients) are split by the rows of the parameter, or by its columns
where it is only looked up in: some words are far more frequent than others.

Source: VPPS (MICRO 2018) splits weights by rows and exchanges after each operation; one exchange a
level, and units aligned over gates, are ours (DESIGN section 8), as is GRNN's fused step for LSTM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram, stored_inputs
from vertexrt.ir.passes.store import Key, is_free
from vertexrt.ir.passes.units import Cuts, find_cuts
from vertexrt.ir.program import Domain, Node, Program, Stage

PATH = (Stage.PATH, Stage.PATH_BACKWARD)
SUMS = ("outer", "sum_rows", "embed_grad")
LAST = 1 << 30  # the segment of sums over rows, where a task of the path has some
WHOLE_ROW = ("reduce_sum", "reduce_max", "logsumexp", "nll", "nll_grad")  # need all of operand 0


class Split(IntEnum):
    """How the processors of a group share a segment."""

    UNITS = 0  # all rows of the tile, own units
    ROWS = 1  # own rows, all units
    SUMS = 2  # all rows, own rows (or columns) of each parameter


@dataclass(frozen=True, slots=True)
class Segment:
    """Straight-line code between two exchanges."""

    split: Split
    steps: tuple[Group | Product, ...]


@dataclass(frozen=True, slots=True)
class SegmentedTask:
    """A task program cut into segments.

    Attributes:
        task: the program; values that are exchanged have a home.
        segments: in order; a group exchanges between any two of them.
        whole: positions that every processor computes for itself, in full.
        cuts: where the elements of each value are cut into ranges that are shared out one by one.
        gathers: reads the state of children, so it waits for the tiles that made them.
        by_columns: parameters of which a processor owns columns of the gradient, not rows.
    """

    task: TaskProgram
    segments: tuple[Segment, ...]
    whole: frozenset[int]
    cuts: Cuts
    gathers: bool
    by_columns: frozenset[str] = frozenset()


def segment_tasks(
    tasks: Sequence[TaskProgram], alone: bool = False, whole: bool = True
) -> list[SegmentedTask]:
    """Cut task programs into segments, with one partition of every tensor for all of them.

    Args:
        alone: groups have one processor, which exchanges with nobody: one segment a task.
        whole: False cuts between any two steps (the ablation's baseline, as in VPPS).
    """
    found = _alone(tasks) if alone else _shared(tasks)
    return found if whole else [_cut_between_steps(task) for task in found]


def _alone(tasks: Sequence[TaskProgram]) -> list[SegmentedTask]:
    return [
        SegmentedTask(t, (Segment(Split.ROWS, t.steps),), frozenset(), {}, _gathers(t))
        for t in tasks
    ]


def _shared(tasks: Sequence[TaskProgram]) -> list[SegmentedTask]:
    shared = {
        key for task in tasks if task.stage not in PATH for key in task.homes.values()
    }  # made by rows: whole for everybody after the exchange
    drafts = [_draft(task, shared) if task.stage in PATH else _by_rows(task) for task in tasks]
    cuts = find_cuts([task for task, _, _ in drafts])
    return [
        SegmentedTask(
            task, segments, whole, cuts[k], _gathers(task), _only_looked_up(tasks, task.stage)
        )
        for k, (task, segments, whole) in enumerate(drafts)
    ]


def _cut_between_steps(task: SegmentedTask) -> SegmentedTask:
    """Make a segment of every step.

    On the path, values that cross from one to the next get a temporary. Beside it the segments of
    several tasks take turns, and processors may own other rows in the next one: they get a tensor.
    """
    segments = tuple(Segment(s.split, (step,)) for s in task.segments for step in s.steps)
    program = task.task
    if program.stage in PATH:
        return replace(task, task=_keep_private(program, segments), segments=segments)
    crossing = _crossing(program, segments)
    program = _with_homes(program, crossing)
    if not crossing <= set(program.homes):
        return task  # of parameters alone, with no row to lie in
    return replace(task, task=program, segments=segments)


def _only_looked_up(tasks: Sequence[TaskProgram], stage: Stage) -> frozenset[str]:
    """Name the parameters to whose gradients nothing but lookups adds in a stage.

    Their columns are shared out: of 64 processors and 1024 words drawn by Zipf's law, the slowest
    takes 10 us by columns of 256 elements and 108 us by rows, where the frequent words come first.
    """
    ops: dict[str, set[str]] = {}
    for task in tasks:
        nodes = task.program.nodes
        for node in nodes:
            if node.op == "param_grad" and node.stage == stage:
                ops.setdefault(node["name"], set()).add(nodes[node.inputs[0]].op)
    return frozenset(name for name, found in ops.items() if found == {"embed_grad"})


def rows_in_storage(program: Program, name: str) -> tuple[int, int]:
    """Return the first row of a parameter in the matrix whose rows are shared out, and its rows.

    That matrix is the stack of which the parameter is a part: one stage may add to the gradients of
    the stack and of the part, and each element has one owner.
    """

    def rows(part: str) -> int:
        return (program.params[part] or (1,))[0]

    for stack in program.stacks:
        if name in stack:
            before = stack[: stack.index(name)]
            return sum(rows(n) for n in before), sum(rows(n) for n in stack)
    return 0, sum(rows(n) for n in name.split("+"))


def _gathers(task: TaskProgram) -> bool:
    members = (k for s in task.steps for k in (s.nodes if isinstance(s, Group) else (s.node,)))
    return any(task.program.nodes[k].op in ("gather", "gather_all") for k in members)


Draft = tuple[TaskProgram, tuple[Segment, ...], frozenset[int]]


def _by_rows(task: TaskProgram) -> Draft:
    """Split a task over all rows: first by rows, then the sums over them."""
    nodes = task.program.nodes
    rows: list[Group | Product] = []
    sums: list[Group | Product] = []
    needed: set[int] = set()
    for step in task.steps:
        if isinstance(step, Product):
            if nodes[step.node].op in SUMS:
                sums.append(step)
                needed |= set(nodes[step.node].inputs)
            else:
                rows.append(step)
            continue
        own = tuple(k for k in step.nodes if nodes[k].op in SUMS)
        needed |= {i for k in own for i in nodes[k].inputs}
        rest = tuple(k for k in step.nodes if k not in own)
        if any(k in task.local or not is_free(nodes[k]) for k in rest):
            rows.append(Group(step.domain, rest))
        if own:
            leaves = {i for k in own for i in nodes[k].inputs if is_free(nodes[i])}
            sums.append(Group(step.domain, tuple(sorted({*own, *leaves}))))
    task = _with_homes(task, needed)
    parts = [Segment(Split.ROWS, tuple(rows)), Segment(Split.SUMS, tuple(sums))]
    return task, tuple(p for p in parts if p.steps), frozenset()


def _with_homes(task: TaskProgram, positions: set[int]) -> TaskProgram:
    """Give values that other processors read a tensor of their own."""
    nodes = task.program.nodes
    computed = {k for s in task.steps for k in (s.nodes if isinstance(s, Group) else (s.node,))}
    homes = dict(task.homes)
    operands = {i for s in task.steps if isinstance(s, Product) for i in nodes[s.node].inputs}
    for i in positions:
        if i in homes or i not in computed or nodes[i].type.dtype != "float":
            continue
        if is_free(nodes[i]) and i not in operands:
            continue  # read again where it is used
        if nodes[i].type.domain == Domain.PARAM and not is_free(nodes[i]):
            continue
        homes[i] = _exchange_key(task, i)
    return replace(task, homes=homes, local=task.local - set(homes))


def _exchange_key(task: TaskProgram, position: int) -> Key:
    node = task.program.nodes[position]
    return ("exchange", task.stage.name, node.origin, node.op, node.attrs, node.type.shape)


def _draft(task: TaskProgram, shared: set[Key]) -> Draft:
    """Split a task of the path by units, cutting it where an operand is made in parts."""
    nodes = task.program.nodes
    order = [k for s in task.steps for k in (s.nodes if isinstance(s, Group) else (s.node,))]
    whole: dict[int, bool] = {}  # what a processor can have in full without an exchange
    number: dict[int, int] = {}
    exchanged: set[int] = set()
    for i, read in task.reads.items():
        whole[i] = read.key in shared
        number[i] = 0
    for k in order:
        node = nodes[k]
        number[k] = max((number.get(i, 0) for i in node.inputs), default=0)
        for position, i in enumerate(node.inputs):
            if _needs_all(nodes, node, position) and not whole.get(i, True):
                exchanged.add(i)
                number[k] = max(number[k], number[i] + 1)
        if node.op in SUMS:
            number[k] = LAST
        there = [  # an exchanged value can be read from the next segment on
            whole.get(i, True) or (i in exchanged and number[i] < number[k]) for i in node.inputs
        ]
        whole[k] = _can_be_whole(node, there)
    wanted = _wanted_whole(nodes, order, whole, exchanged)
    task = _with_homes(task, exchanged)
    # A value that a later segment reads and that nobody else needs stays with its processor.
    segments = []
    for s in sorted(set(number.values())):
        steps: list[Group | Product] = []
        for step in task.steps:
            if isinstance(step, Product):
                if number[step.node] == s:
                    steps.append(step)
                continue
            mine = [k for k in step.nodes if number[k] == s]
            leaves = {i for k in mine for i in nodes[k].inputs if is_free(nodes[i])}
            members = tuple(sorted({*mine, *(leaves & set(order))}))
            if any(k in task.local or not is_free(nodes[k]) for k in members):
                steps.append(Group(step.domain, members))
        if steps:
            split = Split.SUMS if s == LAST else Split.UNITS
            segments.append(Segment(split, tuple(steps)))
    return _keep_private(task, segments), tuple(segments), frozenset(wanted)


def _keep_private(task: TaskProgram, segments: Sequence[Segment]) -> TaskProgram:
    """Give a temporary to values that cross from one segment of a task to the next."""
    return replace(task, local=task.local | _crossing(task, segments))


def _crossing(task: TaskProgram, segments: Sequence[Segment]) -> set[int]:
    """List the values without a tensor that a later segment than their own reads."""
    nodes = task.program.nodes
    made: dict[int, int] = {}
    crossing: set[int] = set()
    for s, segment in enumerate(segments):
        for step in segment.steps:
            for k in step.nodes if isinstance(step, Group) else (step.node,):
                made.setdefault(k, s)
                for i in stored_inputs(nodes, step, k):
                    if made.get(i, s) != s and i not in task.homes:
                        crossing.add(i)
    return crossing


def _needs_all(nodes: Sequence[Node], node: Node, position: int) -> bool:
    """Tell whether an operation reads every element of an operand for each element it makes.

    Numbers are made, and read, by all processors: they stand for every element of a row.
    """
    if node.op == "matmul":
        return position == 1
    if node.op in SUMS:
        return True  # over all rows, by who owns the parameter's rows, whoever made the values
    if OPS[node.op].role == "effect":
        return False
    if node.type.shape == () or nodes[node.inputs[position]].type.shape == ():
        return True
    return node.op in WHOLE_ROW and position == 0


def _can_be_whole(node: Node, inputs: list[bool]) -> bool:
    if node.op in ("matmul", "gather_parents", *SUMS):
        return False  # made, or left by the parents, in parts
    return all(inputs)


def _wanted_whole(
    nodes: Sequence[Node], order: list[int], whole: dict[int, bool], exchanged: set[int]
) -> set[int]:
    """Find what every processor computes in full: scalars, and what products and row ops need."""
    wanted: set[int] = set()
    for k in reversed(order):
        node = nodes[k]
        if OPS[node.op].role == "effect" or not whole[k]:
            continue
        if node.type.shape == ():
            wanted.add(k)
    for k in reversed(order):
        for position, i in enumerate(nodes[k].inputs):
            needs = _needs_all(nodes, nodes[k], position) or k in wanted
            if needs and i not in exchanged and whole.get(i, False):
                wanted.add(i)
    return wanted & set(order)
