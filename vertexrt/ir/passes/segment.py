"""Cut task programs into segments: what the processors of a group do between two exchanges.

The processors of a group share every task. On the path they split it by *units*: processor r of P
owns the same range of every gate, computes those rows of each product and the elementwise work on
them. A product needs its whole operand, so the path is cut where an operand has been made in parts;
between two cuts no processor waits. What stems from gathered states alone is made by every
processor for itself, which costs less than an exchange. Before and after the path, processors split
the rows; sums over all rows (parameter gradients) are split by the rows of the parameter, or by its
columns where it is only looked up in: some words are far more frequent than others.

Source: VPPS (MICRO 2018) splits weights by rows and exchanges after each operation; one exchange a
level, and units aligned over gates, are ours, as is GRNN's fused step for LSTM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from vertexrt.errors import number_of
from vertexrt.ir.layers import is_within_layer
from vertexrt.ir.ops import OPS, OVER_ROWS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram, stored_inputs
from vertexrt.ir.passes.store import Key, is_free
from vertexrt.ir.passes.units import Cuts, find_cuts
from vertexrt.ir.program import Domain, Node, Program, Stage

PATH = (Stage.PATH, Stage.PATH_BACKWARD)
MADE_IN_PARTS = ("matmul", "gather_parents", *OVER_ROWS)  # gradients are left by parents in parts
LAST = 1 << 30  # the segment of sums over rows, where a task of the path has some
# The operand of which an op needs all elements for each that it makes.
READ_IN_FULL = {
    "matmul": 1,
    "reduce_sum": 0,
    "reduce_max": 0,
    "logsumexp": 0,
    "repeat": 0,
    "sum_repeated": 0,
    "nll": 0,
    "nll_grad": 0,
}


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

    @property
    def members(self) -> list[int]:
        """Return the nodes of all steps in the order in which they run."""
        return [k for step in self.steps for k in step.nodes]


@dataclass(frozen=True, slots=True)
class SegmentedTask:
    """A task program cut into segments.

    Attributes:
        task: the program; values that are exchanged have a home.
        segments: in order; a group exchanges between any two of them.
        whole: positions that every processor computes for itself, in full.
        cuts: where the elements of each value are cut into ranges that are shared out one by one.
        gathers: reads the state of children of its layer, so it waits for the tiles that made them.
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
        alone: groups have one processor, without exchanges: one segment a task.
        whole: False cuts between any two steps (the ablation's baseline, as in VPPS).
    """
    if alone:
        found = [
            SegmentedTask(t, (Segment(Split.ROWS, t.steps),), frozenset(), {}, _gathers(t))
            for t in tasks
        ]
    else:
        # What is made by rows is whole for all after the exchange.
        off_path = (task for task in tasks if task.stage not in PATH)
        shared = {key for task in off_path for key in task.homes.values()}
        drafts = [_draft(task, shared) if task.stage in PATH else _by_rows(task) for task in tasks]
        cuts = find_cuts([task for task, _, _ in drafts])
        found = [
            SegmentedTask(*draft, each, _gathers(draft[0]), _only_looked_up(tasks, draft[0].stage))
            for draft, each in zip(drafts, cuts, strict=True)
        ]
    return found if whole else [_cut_between_steps(task) for task in found]


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
    The whole of a parameter of which parts are read is shared out by rows, as its parts are.
    """
    ops: dict[str, set[str]] = {}
    for task in tasks:
        nodes = task.program.nodes
        for node in nodes:
            if node.op == "param_grad" and node.stage == stage:
                ops.setdefault(node["name"], set()).add(nodes[node.inputs[0]].op)
    return frozenset(n for n, found in ops.items() if found == {"embed_grad"} and "+" not in n)


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
    nodes = (task.program.nodes[k] for k in task.members)
    return any(n.op in ("gather", "gather_all") and is_within_layer(task.program, n) for n in nodes)


Draft = tuple[TaskProgram, tuple[Segment, ...], frozenset[int]]


def _by_rows(task: TaskProgram) -> Draft:
    """Split a task over all rows: first by rows, then the sums over them."""
    nodes = task.program.nodes
    sums = {k for k in task.members if nodes[k].op in OVER_ROWS}
    needed = {i for k in sums for i in nodes[k].inputs}
    parts = [
        Segment(Split.ROWS, _steps_of(task, set(task.members) - sums, set())),
        Segment(Split.SUMS, _steps_of(task, sums, _leaves(task))),
    ]
    return _with_homes(task, needed), tuple(p for p in parts if p.steps), frozenset()


def _steps_of(task: TaskProgram, wanted: set[int], leaves: set[int]) -> tuple[Group | Product, ...]:
    """Return what makes some nodes of a task: of each step its part.

    Args:
        leaves: to be read again where they are used.
    """
    nodes, idle = task.program.nodes, _leaves(task) - task.local
    found: list[Group | Product] = []
    for step in task.steps:
        mine = wanted.intersection(step.nodes)
        if isinstance(step, Product) and mine:
            found.append(step)
        elif isinstance(step, Group):
            mine |= {i for k in mine for i in nodes[k].inputs} & leaves
            if not mine <= idle:
                found.append(Group(step.domain, tuple(sorted(mine))))
    return tuple(found)


def _leaves(task: TaskProgram) -> set[int]:
    return {k for k in task.members if is_free(task.program.nodes[k])}


def _with_homes(task: TaskProgram, positions: set[int]) -> TaskProgram:
    """Give values that other processors read a tensor of their own."""
    computed = set(task.members)
    homes = dict(task.homes)
    for i in sorted(positions):
        if i in computed and i not in homes and _has_rows(task, i):
            node = task.program.nodes[i]
            of_node = node.origin, node.op, node.attrs, node.type.shape
            homes[i] = ("exchange", task.stage.name, *of_node)
    return replace(task, homes=homes, local=task.local - set(homes))


def _has_rows(task: TaskProgram, position: int) -> bool:
    """Tell whether a value has rows of reals in memory: a leaf only as the operand of a product."""
    nodes = task.program.nodes
    if nodes[position].type.dtype != "float":
        return False
    if is_free(nodes[position]):
        products = (nodes[s.node] for s in task.steps if isinstance(s, Product))
        return any(position in product.inputs for product in products)
    return nodes[position].type.domain != Domain.PARAM


def _draft(task: TaskProgram, shared: set[Key]) -> Draft:
    """Split a task of the path by units, cutting it where an operand is made in parts."""
    nodes = task.program.nodes
    number = dict.fromkeys(task.reads, 0)  # the segment that makes each value
    # Whether a processor can have a value in full without an exchange.
    whole = {i: read.key in shared for i, read in task.reads.items()}
    exchanged: set[int] = set()  # made in parts, and needed in full
    for k in task.members:
        node = nodes[k]
        needed = {i for i in _needed_in_full(nodes, node) if not whole.get(i, True)}
        exchanged |= needed
        after = max((number.get(i, 0) + (i in needed) for i in node.inputs), default=0)
        number[k] = LAST if node.op in OVER_ROWS else after
        whole[k] = node.op not in MADE_IN_PARTS and all(
            whole.get(i, True) or (i in exchanged and number[i] < number[k]) for i in node.inputs
        )
    wanted = _wanted_whole(nodes, task.members, whole)
    task = _with_homes(task, exchanged)
    # A value that only its own processor reads, in a later segment, stays in a temporary.
    leaves = _leaves(task)
    segments = []
    for n in sorted({*number.values()}):
        steps = _steps_of(task, {k for k, own in number.items() if own == n}, leaves)
        if steps:
            segments.append(Segment(Split.SUMS if n == LAST else Split.UNITS, steps))
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
            for k in step.nodes:
                made.setdefault(k, s)
                for i in stored_inputs(nodes, step, k):
                    if made.get(i, s) != s and i not in task.homes:
                        crossing.add(i)
    return crossing


def _needed_in_full(nodes: Sequence[Node], node: Node) -> set[int]:
    """Return the operands of which an operation reads every element for each that it makes.

    Numbers are made, and read, by all processors: they stand for every element of a row. Sums over
    all rows are made by the processor that owns the parameter's rows.
    """
    if node.op in OVER_ROWS:
        return set(node.inputs)
    if OPS[node.op].role == "effect":
        return set()
    return {
        i
        for position, i in enumerate(node.inputs)
        if () in (node.type.shape, nodes[i].type.shape) or READ_IN_FULL.get(node.op) == position
    }


def _wanted_whole(
    nodes: Sequence[Node], order: Sequence[int], whole: Mapping[int, bool]
) -> set[int]:
    """Find what every processor computes in full: numbers, and what products and row ops need."""
    numbers = {k for k in order if nodes[k].type.shape == () and OPS[nodes[k].op].role != "effect"}
    wanted = {k for k in numbers if whole[k]}
    for k in reversed(order):
        needed = nodes[k].inputs if k in wanted else _needed_in_full(nodes, nodes[k])
        wanted |= {i for i in needed if whole.get(i, False)}
    return wanted & set(order)


# Segments in words.

SPLIT_WORD = {Split.UNITS: "own units of all rows", Split.ROWS: "own rows", Split.SUMS: "own sums"}


def segments_of(name: str, task: SegmentedTask) -> list[str]:
    """List the segments of a task program, and what is exchanged before each."""
    count, nodes = len(task.segments), task.task.program.nodes
    lines = [f"{name}: {number_of(count, 'segment')}"]
    if task.gathers and task.task.stage == Stage.PATH:
        lines[0] += "; waits for the tiles of the children"
    made: set[int] = set()
    for number, segment in enumerate(task.segments):
        work = _work(nodes, segment)
        lines.append(f"  {name}.{number} {SPLIT_WORD[segment.split]}: {work}")
        own = [k for k in segment.members if k in task.whole]
        fields = dict.fromkeys(nodes[k]["field"] for k in own if nodes[k].op == "gather")
        notes = {
            "exchanged before it": _values(nodes, _received(nodes, segment, made)),
            "every processor makes for itself": _values(nodes, own),
            "read in full from other processors": ", ".join(fields),
        }
        lines += [f"    {what}: {found}" for what, found in notes.items() if found]
        made.update(segment.members)
    return lines


def _work(nodes: Sequence[Node], segment: Segment) -> str:
    found = []
    for step in segment.steps:
        if isinstance(step, Group):
            count = sum(not is_free(nodes[k]) for k in step.nodes)
            found.append(f"fused {count} ops")
        else:
            node = nodes[step.node]
            weight = nodes[node.inputs[0]]
            turned = "'" if node.op == "matmul" and node["transpose"] else ""
            what = weight["name"] + turned if node.op == "matmul" else "outer"
            found.append(f"product {what} {node.type}")
    return ", ".join(found)


def _received(nodes: Sequence[Node], segment: Segment, made: Collection[int]) -> list[int]:
    """List what a segment reads of which each processor has made a part in an earlier one."""
    found: dict[int, None] = {}
    for k in segment.members:
        for position, i in enumerate(nodes[k].inputs):
            if segment.split != Split.UNITS or READ_IN_FULL.get(nodes[k].op) == position:
                found[i] = None
    return [i for i in found if i in made and i not in segment.members]


def _values(nodes: Sequence[Node], positions: list[int]) -> str:
    """Name values; leaves are read where they are used."""
    found = [k for k in positions if not is_free(nodes[k])]
    return ", ".join(f"%{k} {nodes[k].op} {nodes[k].type}" for k in found)
