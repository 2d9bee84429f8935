"""What every backend shares: how a task program reads its inputs, and the arguments of a run.

`Binding` numbers the tensors, parameters and pulled arrays of one compiled function; `Buffers` are
the arrays of one minibatch; a launch table lists the task programs to run, one row each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.operands import children_read
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.program import Domain, Node, Stage
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape
from vertexrt.scheduler.schedule import Schedule

Array = np.ndarray[Any, Any]

# Columns of the launch table.
PROGRAM, ROWS, FIRST, LIST, EDGES, FIRST_EDGE = range(6)
COLUMNS = 6

# Whose rows of a tensor, or edges, a launch reads: those of its own vertices, and of others.
OWN, CHILDREN, PARENTS = 1, 2, 4

# What makes products on a CPU: register tiles or BLAS by a table that is timed on this machine, the
# same by fixed limits, or BLAS alone.
PRODUCTS = TIMED, FIXED, BLAS = "timed", "fixed", "blas"

Counts = tuple[Array, Array, Array]  # of updates, of versions of the values, of random draws

PAD = 16  # rows and edges of a temporary are rounded up, so that each starts on 64 bytes


@dataclass(frozen=True, slots=True)
class Binding:
    """Numbers of everything that task programs name.

    Attributes:
        tensors: key -> number of the dynamic tensor.
        params: name of a parameter or stack -> position in `Buffers.param_at`.
        ints, floats: name of a pull -> position among the integer and the real pulls.
        seeds: name of a push with a given gradient -> position.
        splits_edges, reads_edges, relations: of `Program`; layers, where edges are told apart by
            them (`ir.passes.zero_gradients`), else nothing.
    """

    tensors: Mapping[Key, int]
    params: Mapping[str, int]
    ints: Mapping[str, int]
    floats: Mapping[str, int]
    seeds: Mapping[str, int]
    splits_edges: bool = False
    reads_edges: bool = False
    relations: int = 1
    layers: tuple[int, ...] = ()

    @property
    def edge_words(self) -> int:
        """Count what kernels may read of the schedule that others do not have: see `Schedule`.

        It is `every_ptr` and `edge_order`, or these and `relation_ptr`.
        """
        if self.relations > 1:
            return 3
        return 2 if self.splits_edges or self.reads_edges else 0


@dataclass(slots=True)
class Buffers:
    """The arrays that one run reads and writes. Real ones share a dtype; indices are int32.

    Attributes:
        arena: [elements], the memory plan's.
        base: [tensors] int64, element of row 0 of each tensor.
        temporary: element at which the running task's temporaries start.
        params, gradients: flat parameter store; param_at: [names] int64 offsets.
        schedule: of the minibatch.
        rows: [*] execution rows of launches that are not contiguous.
        user_vertex, user_edge: [V] what random draws count by: the number of each of the user's
            vertices in the whole batch, of which this may be a share, and of its first edge there.
        ints: [pulls, V] in the user's order; floats: flat values, with float_index: [pulls, V].
        seeds: flat gradients of pushes, in the user's order.
        loss_scale: factor on the loss; random_seed: of this step, 32 bits.
        kept: what a backend makes of all this, for launches to come; None where an array is
            another since.
    """

    arena: Array
    base: Array
    temporary: int
    params: Array
    gradients: Array
    param_at: Array
    schedule: Schedule
    rows: Array
    user_vertex: Array
    user_edge: Array
    ints: Array
    floats: tuple[Array, ...]
    float_index: Array
    seeds: tuple[Array, ...]
    loss_scale: float
    random_seed: int
    kept: Array | None = None


FOUND_NORM, FOUND_TRIED, FOUND_DONE = range(3)  # of `StoreUpdate.found`


class StoreUpdate(NamedTuple):
    """The update that ends a step.

    Attributes:
        rule: what is computed; scalars: float64 [groups, *], of each group of parameters the weight
            decay that is added to gradients, the factor of values, and those of the rule.
        parts: int64 [groups + 1], the first piece of each group, and how many pieces there are.
        clip_norm: largest norm of the gradients, or 0 for any.
        limit: of `engine.update.limit_of`.
        values: [total]; gradients: [trained]; moments: [*, trained], the state in the order of the
            rule. Frozen parameters come last in `values`.
        pieces, spans, listed: how the store is cut, see `kernels.cpu.update`.
        counts: int64 [1] each, which are one more when the parameters have changed, in one call.
        found: [3] float64, the norm where it is bounded, whether a piece had to be tried, and
            whether the parameters have changed: they have, unless the norm or what the update would
            write is not finite.
    """

    rule: UpdateRule
    scalars: Array
    parts: Array
    clip_norm: float
    limit: float
    values: Array
    gradients: Array
    moments: Array
    pieces: Array
    spans: Array
    listed: Array
    counts: Counts
    found: Array


class Executable(Protocol):
    """Task programs, or their segments, made ready to run by a backend.

    Attributes:
        scratch: for each program the elements of temporary memory that a launch needs: for each
            row, for each edge (both rounded up to PAD), and once.
    """

    scratch: list[tuple[int, int, int]]


class HostExecutable(Executable, Protocol):
    """Task programs whose arrays are the host's."""

    calls_blas: bool  # which is kept to one thread meanwhile

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in order."""


class LaunchByLaunch:
    """Task programs of which each launch is a call of its own (an ablation's baseline)."""

    def __init__(self, executable: HostExecutable) -> None:
        self.whole = executable
        self.scratch, self.calls_blas = executable.scratch, executable.calls_blas

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in order, from Python."""
        for t in range(len(table)):
            self.whole.run(table[t : t + 1], buffers)


class ScriptRun(NamedTuple):
    """The script of one processor, and what it is run with.

    Attributes:
        counters: of `new_counters`, the same array for all parts.
        part: which processor it is, of how many `parts`.
        temporary: element at which its temporaries start.
        times: [instructions, 3] int64, gets the clock at the start of each instruction, at the end
            of its wait and at its end; [0, 3], where none are asked for.
    """

    script: Array
    counters: Array
    part: int
    parts: int
    temporary: int
    buffers: Buffers
    times: Array


class Processors(Executable, Protocol):
    """Segments that the processors of a group run, whose arrays are the host's."""

    calls_blas: bool  # as of `HostExecutable`

    def run(self, run: ScriptRun) -> None:
        """Run the script of one processor; called for all parts at once, each in its thread."""

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""

    def new_counters(self, count: int) -> Array:
        """Return a counter for each instruction, at zero."""

    def check(self, counters: Array) -> None:
        """Raise DeviceError, when a processor gave up waiting."""

    def stop(self, counters: Array) -> None:
        """Let no processor wait any longer, since not all of them will come."""


class Backend(Protocol):
    """A device that runs task programs.

    Attributes:
        apart: ops that it runs over all rows of a task at once, as it does products.
        most_scratch: elements of temporaries that one launch should take: a softmax over 10,000
            words needs two such rows a vertex. GEMM does not notice where rows are cut.
        shares_graphs: its groups of processors have graphs of one schedule, not each its own.
        publishes: its batched engine gains where products of a state are made by the child.
        where: what timings hold for.
    """

    name: str
    where: str
    apart: frozenset[str]
    most_scratch: int
    shares_graphs: bool
    publishes: bool

    def ways(self, threads: int, processors: int | None) -> list[Configuration]:
        """List the ways to run a minibatch, the simplest first.

        Args:
            threads: of the host that share it; processors: of a group, None for any number.
        """

    def seconds(self, way: Configuration, work: Work, batch: BatchShape) -> float:
        """Predict what a way takes, to compare it with another one of the device."""

    def load(self, programs: list[TaskProgram], binding: Binding) -> Executable:
        """Make task programs ready; may compile, and may reuse what is in the disk cache."""

    def written_for(self, processors: int) -> int:
        """Return for which number of processors of a group code is written, given theirs."""

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        kinds: npt.NDArray[np.int64],
        rule: UpdateRule | None,
    ) -> Executable:
        """Make segments ready for processors.

        Args:
            processors: of a group, as `written_for` returned it.
            kinds: [4, kinds] the programs of each kind of vertex before the path, on both sides of
                it and after it; -1 for none.
            rule: of the update, where a device has it in its kernel; else None.
        Raises: DeviceError where the device has no persistent engine.
        """


class HostBackend(Backend, Protocol):
    """A backend whose arrays are the host's."""

    def update(self, update: StoreUpdate) -> None:
        """Do an update."""


def temporaries(scratch: Any, rows: int, edges: int) -> Any:
    """Return the elements of temporary memory of a launch; `scratch` is that of its program."""
    by_row, by_edge, once = scratch
    return by_row * (-(-rows // PAD) * PAD) + by_edge * (-(-edges // PAD) * PAD) + once


def gradients_of(program: TaskProgram, position: int) -> list[str]:
    """Name the parameters whose gradient a summed value adds to."""
    nodes = program.program.nodes
    return [n["name"] for n in nodes if n.op == "param_grad" and n.inputs[0] == position]


def gradient_owners(params: Mapping[str, int]) -> dict[int, int]:
    """Return whose memory each gradient is a part of: the stack's of a parameter that is in one.

    Args:
        params: of `Binding`; the name of a stack is its members', with + between them.
    """
    owners = {number: number for number in params.values()}
    for name, number in params.items():
        for member in name.split("+"):
            owners[params[member]] = number if "+" in name else owners[params[member]]
    return owners


def edge_key(field: str, every: bool) -> Key:
    """Name the tensor of gradients that parents leave on their edges."""
    return ("edge", field, "every" if every else "slot")


def tensor_uses(program: TaskProgram) -> list[tuple[Key, int, bool, bool]]:
    """List the tensors a task program touches: key, elements a row, rows are edges, written."""
    nodes = program.program.nodes
    found: list[tuple[Key, int, bool, bool]] = []

    def row(node: Node) -> tuple[int, bool]:
        return node.type.size, node.type.domain == Domain.EDGE

    for position, read in program.reads.items():
        found.append((read.key, read.width, row(nodes[position])[1], False))
        if states := children_read(program.program, position):  # which may be read instead
            found.append((("state", states[0]), states[1], False, False))
    for position, key in program.homes.items():
        found.append((key, *row(nodes[position]), True))
    for k in program.members:
        node = nodes[k]
        if node.op in TENSOR_OF_EFFECT:
            source = nodes[node.inputs[0]]
            edges = per_edge(node, source)
            found.append((TENSOR_OF_EFFECT[node.op](node), stored_size(node, source), edges, True))
        elif node.op in ("gather", "gather_all"):
            found.append((("state", node["field"]), node.type.size, False, False))
        elif node.op in ("scatter_child", "scatter_children"):
            key, size = (
                edge_key(node["field"], node["every"]),
                stored_size(node, nodes[node.inputs[0]]),
            )
            found.append((key, size, True, True))
        elif node.op == "gather_parents":
            for every in (False, True):
                if node["every" if every else "slots"]:
                    found.append((edge_key(node["field"], every), node.type.size, True, False))
    return found


def rows_read(key: Key) -> int:
    """Return whose rows of a tensor a launch may read: bits of OWN, CHILDREN and PARENTS."""
    return {"state": OWN | CHILDREN, "edge": OWN | PARENTS}.get(str(key[0]), OWN)


def per_edge(effect: Node, source: Node) -> bool:
    """Tell whether an effect writes a row per edge (its value may have become a constant)."""
    return Domain.EDGE in (effect.type.domain, source.type.domain)


def stored_size(effect: Node, source: Node) -> int:
    """Return the elements a row of what an effect writes (a constant may be a bare scalar)."""
    if effect.has("shape"):
        return int(math.prod(effect["shape"]))
    return source.type.size


def uses_edges(program: TaskProgram) -> bool:
    """Tell whether a task program makes or reads values per edge: its rows must be contiguous."""
    nodes = program.program.nodes
    seen = {i for k in program.members for i in (k, *nodes[k].inputs)}
    return any(nodes[i].type.domain == Domain.EDGE for i in seen)


def by_rows(stage: Stage) -> bool:
    """Tell whether a stage runs over lists of rows, not over slices that are tasks."""
    return stage not in (Stage.PATH, Stage.PATH_BACKWARD)


def fingerprint(program: TaskProgram) -> str:
    """Return a text that is equal for task programs of one phase that do the same work."""
    nodes = program.program.nodes
    order = program.members
    number = {k: i for i, k in enumerate(order)}

    def name(i: int) -> str:
        return f"%{number[i]}" if i in number else f"@{program.reads.get(i, nodes[i].attrs)}"

    lines = [program.phase.name]
    for step in program.steps:
        lines.append(f"group {step.domain.name}" if isinstance(step, Group) else "product")
        for k in step.nodes:
            node = nodes[k]
            place = program.homes.get(k, "local" if k in program.local else "")
            grads = gradients_of(program, k)
            inputs = [name(i) for i in node.inputs]
            lines.append(f"{node.op} {inputs} {node.attrs} {node.type} {place} {grads}")
    return "\n".join(lines)
