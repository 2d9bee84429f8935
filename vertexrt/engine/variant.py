"""Compile F once for each way of running it, and once more for each new kind of vertex.

A variant is F (or F and dF) for one use: training on the loss, inference of some pushes, or
backward from given gradients. Kinds appear with the data; each new one is specialised, cut into
task programs and handed to the backend, which has most of them in its cache.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.facts import pack_facts
from vertexrt.engine.inputs import Reader, make_reader
from vertexrt.engine.verify_tasks import verify_segments, verify_tasks
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.passes.fuse import TaskProgram, cut
from vertexrt.ir.passes.operands import copy_operands
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.ir.passes.simplify import simplify, without_dropout
from vertexrt.ir.passes.specialise import Atoms, find_atoms, specialise, without_effects
from vertexrt.ir.passes.stack import stack_rows
from vertexrt.ir.passes.store import LAZY_STAGES, Stored, lazy_part, store_values
from vertexrt.ir.program import Program, Stage
from vertexrt.ir.verify import verify
from vertexrt.kernels.layout import (
    Backend,
    Binding,
    Executable,
    HostExecutable,
    LaunchByLaunch,
    fingerprint,
    tensor_uses,
    uses_edges,
)
from vertexrt.memory.plan import Sharing, share
from vertexrt.memory.tensors import TensorTable
from vertexrt.script.shape import Shape, shape_of
from vertexrt.script.verify import verify_sums

Int64 = npt.NDArray[np.int64]

MOST_STREAMS = 8
GRADIENTS_ON_CHIP = False  # unless `Passes` says so: docs/performance.md has what they cost
PATH_STAGES = (Stage.EAGER, Stage.PATH, Stage.PATH_BACKWARD, Stage.FINAL)


@dataclass(frozen=True, slots=True)
class Passes:
    """Which optimisations run; all of them, unless an ablation turns one off.

    Attributes:
        specialise: F for each kind of vertex; else one program for all, with zeros for what is
            absent.
        eager, lazy: what depends on no gather, or feeds no scatter, runs once a step; else it is a
            part of every task.
        stack: products that share an operand are one product.
        fuse: elementwise nodes between two products are one loop; else each is its own.
        merge: identical vertices are computed once.
        loop: batched engine on the host: all launches of a step are one compiled call; else each is
            called from Python.
        segment: persistent engine: an instruction runs all that lies between two
            exchanges; else one fused group or product, and where `fuse` is off, one op (VPPS).
        hold: persistent engine on a GPU: weights stay on chip while a side of the path runs; else
            each product reads its weights from memory.
        streams: batched engine on a GPU: how many streams share the launches of a step, so that
            those which need nothing of each other may run at once (Cavs, section 3.5).
        gradients: persistent engine on a GPU: the gradients of these weights are summed up on chip
            while the backward side of the path runs, as far as there is room; else they are
            products over all rows behind the path.
    """

    specialise: bool = True
    eager: bool = True
    lazy: bool = True
    stack: bool = True
    fuse: bool = True
    merge: bool = True
    loop: bool = True
    segment: bool = True
    hold: bool = True
    streams: int = 1
    gradients: bool = GRADIENTS_ON_CHIP


@dataclass(frozen=True, slots=True)
class Use:
    """What a variant is for.

    Attributes:
        outputs: pushes wanted in memory.
        loss: the gradient of the push `loss` is wanted, scaled by the step.
        seeds: pushes whose gradient the user gives.
        pulls: real pulls whose gradient is wanted.
    """

    outputs: frozenset[str]
    loss: bool = False
    seeds: frozenset[str] = frozenset()
    pulls: frozenset[str] = frozenset()

    @property
    def backward(self) -> bool:
        """Tell whether dF is part of it."""
        return self.loss or bool(self.seeds)


@dataclass(slots=True)
class Kind:
    """Task programs of one kind by stage: numbers among the variant's programs, -1 for none.

    Attributes:
        stored: what they were cut from.
    """

    bits: int
    programs: dict[Stage, int]
    stored: Stored
    has_loss: bool = True


@dataclass(slots=True)
class Variant:
    """F compiled for one use."""

    program: Program  # placed F, or F and dF
    use: Use
    atoms: Atoms
    backend: Backend
    binding: Binding
    passes: Passes
    processors: int  # 0: batched engine; else those of a group, as `Backend.written_for`
    merges: bool  # identical vertices are computed once
    draws: bool  # it has random ops
    lookups: dict[str, Int64]  # by parameter: which integer pulls look up rows of it
    table: TensorTable = field(default_factory=TensorTable)
    tasks: list[TaskProgram] = field(default_factory=list)
    path_kinds: dict[int, Kind] = field(default_factory=dict)
    lazy_kinds: dict[int, Kind] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _origins: dict[object, int] = field(default_factory=dict)
    _paths: dict[int, Stored] = field(default_factory=dict)
    _ready: Ready | None = None
    _reader: Reader | None = None
    _vertex_facts: tuple[Any, ...] | None = None
    _packed_vertex_facts: npt.NDArray[np.int64] | None = None
    _push_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def reader(self) -> Reader:
        """What it reads of each vertex."""
        if self._reader is None:
            self._reader = make_reader(self.program)
        return self._reader

    def vertex_facts(self) -> tuple[Any, ...]:
        """Return what `read_vertices` takes after a batch; made anew after a new kind."""
        if self._vertex_facts is None:
            reader, atoms = self.reader, self.atoms
            self._vertex_facts = (
                reader.numbers,
                reader.used,
                reader.bounds,
                atoms.slots - 1,
                reader.program.arity is not None,
                atoms.path,
                atoms.lazy,
                np.array(list(self.path_kinds), np.int64),
                np.array(list(self.lazy_kinds), np.int64),
                np.array([k.has_loss for k in self.lazy_kinds.values()], np.bool_),
            )
        return self._vertex_facts

    def packed_vertex_facts(self) -> npt.NDArray[np.int64]:
        """Return the same as `lay_out` takes it."""
        if self._packed_vertex_facts is None:
            self._packed_vertex_facts = pack_facts(self.vertex_facts())
        return self._packed_vertex_facts

    def push_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape per vertex of a push."""
        if not self._push_shapes:
            pushes = (node for node in self.program.nodes if node.op == "push")
            self._push_shapes = {node["name"]: tuple(node["shape"]) for node in pushes}
        return self._push_shapes[name]

    @property
    def is_ready(self) -> bool:
        """Tell whether `ready` compiles nothing; there is no kind yet, or a new one, otherwise."""
        return self._ready is not None

    def add_path_kind(self, bits: int) -> Kind:
        """Compile what vertices of a path kind do before, on and after the path."""
        path = self._on_path(bits)
        kind = Kind(bits, {s: self._add(path, s) for s in PATH_STAGES}, path)
        self.path_kinds[bits] = kind
        self._ready = self._vertex_facts = self._packed_vertex_facts = None
        return kind

    def add_lazy_kind(self, bits: int) -> Kind:
        """Compile what vertices of a kind do between forward and backward."""
        path = self._on_path(bits)
        program = specialise(lazy_part(path), self.atoms.facts(bits, self.atoms.lazy))
        if self.passes.stack:
            program = stack_rows(program, LAZY_STAGES, self._origin)
        program = copy_operands(program, self.backend.apart, self._origin)
        lazy = store_values(program, path.of_origins())
        _checked(lazy.program, "lazy kind")
        has_loss = _has_loss(lazy.program if self.passes.lazy else path.program)
        kind = Kind(bits, {s: self._add(lazy, s) for s in LAZY_STAGES}, lazy, has_loss)
        self.lazy_kinds[bits] = kind
        self._ready = self._vertex_facts = self._packed_vertex_facts = None
        return kind

    def _on_path(self, bits: int) -> Stored:
        """Return the program of a path kind, lazy stages by what the path knows."""
        known = bits & self.atoms.path
        if known not in self._paths:
            program = specialise(self.program, self.atoms.facts(bits, self.atoms.path))
            if self.passes.stack:
                program = stack_rows(program, PATH_STAGES, self._origin)
            program = copy_operands(program, self.backend.apart, self._origin)
            self._paths[known] = store_values(program)
            _checked(self._paths[known].program, "path kind")
        return self._paths[known]

    def ready(self) -> Ready:
        """Return what runs need of all kinds so far; made anew after a new kind."""
        if self._ready is None:
            if config().check:
                verify_tasks(self)
            self._ready = _make_ready(self)
        return self._ready

    def _origin(self, key: object) -> int:
        return self._origins.setdefault(key, len(self.program.nodes) + len(self._origins))

    def _add(self, stored: Stored, stage: Stage) -> int:
        task = cut(stored, stage, self.passes.fuse, self.backend.apart)
        if task is None:
            return -1
        for key, size, edges, _ in tensor_uses(task):
            self.table.use(key, max(size, 1), edges, stage)
        for key in self.table.numbers:
            if key[0] in ("push", "pull_grad"):  # read when the run is over
                self.table.use(
                    key, self.table.specs[self.table.numbers[key]].size, False, Stage.FINAL
                )
        self._ready = None
        text = fingerprint(task)
        if text not in self._numbers:
            self._numbers[text] = len(self.tasks)
            self.tasks.append(task)
        return self._numbers[text]


@dataclass(frozen=True, slots=True)
class Ready:
    """A variant as the per-batch code wants it: an executable and flat arrays over its programs.

    Attributes:
        sharing: tensors that share a buffer.
        program_facts: what `build_table` and `place_tensors` take after a schedule, packed.
        script_facts: what `device_scripts.write_all` takes of a kernel and a shape, packed; empty,
            where there are none.
    """

    executable: Executable | None
    processors: Executable | None
    shape: Shape | None
    zero_elements: int
    sharing: Sharing
    program_facts: npt.NDArray[np.int64]
    script_facts: npt.NDArray[np.int64]


def _make_ready(variant: Variant) -> Ready:
    tasks, table = variant.tasks, variant.table
    executable, processors, shape = None, None, None
    path, lazy = variant.path_kinds.values(), variant.lazy_kinds.values()
    path_programs = np.array([[k.programs[s] for k in path] for s in PATH_STAGES], np.int64)
    if variant.processors:
        segmented = segment_tasks(
            tasks, alone=variant.processors == 1, whole=variant.passes.segment
        )
        if variant.processors != 1 and not variant.backend.shares_graphs:
            verify_sums(segmented)
        if config().check:
            for plan in segmented:
                verify_segments(plan)
        tasks = [s.task for s in segmented]
        for task in tasks:
            for key, size, edges, _ in tensor_uses(task):
                table.use(key, max(size, 1), edges, task.stage)
        processors = variant.backend.load_segments(
            segmented, variant.binding, variant.processors, path_programs
        )
        scratch = processors.scratch
        shape = shape_of(segmented, scratch)
    else:
        executable = variant.backend.load(tasks, variant.binding)
        scratch = executable.scratch
        if not variant.passes.loop:
            executable = LaunchByLaunch(cast("HostExecutable", executable))
    written = [[table.numbers[u[0]] for u in tensor_uses(task) if u[3]] for task in tasks]
    zero_elements = max((spec.size for spec in table), default=1)
    sharing = share(table)
    facts = (
        path_programs,
        np.array([[k.programs[s] for k in lazy] for s in LAZY_STAGES], np.int64),
        np.array([uses_edges(task) for task in tasks], np.bool_),
        np.array(scratch, np.int64).reshape(-1, 3),
        np.cumsum([0] + [len(w) for w in written]).astype(np.int64),
        np.array([t for w in written for t in w], np.int64),
        np.array([spec.edges for spec in table], np.bool_),
        variant.backend.most_scratch,
        sharing.buffer,
        sharing.width,
        np.array([spec.size for spec in table], np.int64),
        zero_elements,
    )
    kernel_facts = getattr(processors, "facts", None)
    script_facts = pack_facts(() if kernel_facts is None else (*kernel_facts, *(shape or ())))
    return Ready(
        executable, processors, shape, zero_elements, sharing, pack_facts(facts), script_facts
    )


def _checked(program: Program, where: str, placed: bool = True) -> Program:
    return verify(program, where, placed) if config().check else program


def _has_loss(program: Program) -> bool:
    """Tell whether a kind pushes a loss that is not known to be a constant."""
    nodes = program.nodes
    losses = [n for n in nodes if n.op == "push" and n["name"] == "loss"]
    return any(nodes[n.inputs[0]].op != "const" for n in losses)


def _leaves_multiply(program: Program) -> bool:
    """Tell whether vertices without children do products, so that it pays to look for copies."""
    gathers = {"gather", "gather_all"}
    reads: list[bool] = []
    for node in program.nodes:
        reads.append(node.op in gathers or any(reads[i] for i in node.inputs))
    return any(n.op == "matmul" and not r for n, r in zip(program.nodes, reads, strict=True))


def make_variant(
    function: Program,
    use: Use,
    backend: Backend,
    params: Collection[str],
    passes: Passes,
    processors: int = 0,
) -> Variant:
    """Differentiate and place F for one use; kinds are compiled as they appear.

    Args:
        function: traced, simplified F with stacked parameters.
        params: names of parameters and stacks, in the order of `Buffers.param_at`.
        processors: of a group, as `Backend.written_for` says; 0 for the batched engine.
    """
    wanted = set(use.outputs) | set(use.seeds) | ({"loss"} if use.loss else set())
    program = without_effects(function, lambda n: n.op == "push" and n["name"] not in wanted)
    if not use.backward:
        program = without_dropout(program)
    draws = bool(program.find("dropout"))
    merges = passes.merge and not use.seeds and not draws
    merges = merges and _leaves_multiply(program)
    if processors and backend.shares_graphs:
        # Merged leaves have parents in several groups: what they do must be beside the path.
        merges = merges and passes.specialise
    if use.backward:
        seeds = set(use.seeds) | ({"loss"} if use.loss else set())
        program = differentiate(program, seeds, use.pulls, use.loss, weighted=merges)
    program = simplify(_checked(program, "autodiff", placed=False))
    program = place(program, eager=passes.eager, lazy=passes.lazy)
    _checked(program, "place")
    ints = [p.name for p in program.pulls if p.dtype == "int"]
    floats = [p.name for p in program.pulls if p.dtype == "float"]
    table = TensorTable()
    binding = Binding(
        tensors=table.numbers,
        params={name: k for k, name in enumerate(params)},
        ints={name: k for k, name in enumerate(ints)},
        floats={name: k for k, name in enumerate(floats)},
        seeds={name: k for k, name in enumerate(sorted(use.seeds))},
    )
    atoms = find_atoms(program, passes.specialise)
    lookups = _lookups(program, ints, params)
    return Variant(
        program, use, atoms, backend, binding, passes, processors, merges, draws, lookups, table
    )


def _lookups(program: Program, ints: list[str], params: Collection[str]) -> dict[str, Int64]:
    found: dict[str, list[int]] = {name: [] for name in params}
    for node in program.nodes:
        if node.op == "embed":
            table, index = (program.nodes[i]["name"] for i in node.inputs)
            found[table].append(ints.index(index))
    return {name: np.array(pulls, np.int64) for name, pulls in found.items()}
