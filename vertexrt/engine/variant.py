"""F for one way of running it.

A variant is F (or F and dF) for one use: training on the loss, inference of some pushes, or
backward from given gradients. Kinds appear with the data: see `kinds`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.inputs import Reader, make_reader
from vertexrt.engine.layouts import (
    MOST_LAYOUTS,
    MOST_VERTICES,
    BatchLayout,
    ProgramFacts,
    Recent,
)
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.layers import chain_slot, with_layers
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.publish import leaf_products, publish_products
from vertexrt.ir.passes.simplify import for_use, simplify
from vertexrt.ir.passes.specialise import (
    FUNCTION_AT,
    MOST_FUNCTIONS,
    Atoms,
    find_atoms,
    with_whole_chains,
    without_effects,
)
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key, Stored
from vertexrt.ir.passes.zero_gradients import drop_zero_gradients
from vertexrt.ir.program import PARENTS, Program, Stage
from vertexrt.ir.updates import UpdateRule
from vertexrt.ir.verify import verify
from vertexrt.kernels.backend import FIXED, Backend, Executable
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import tensor_uses
from vertexrt.memory.plan import TensorTable
from vertexrt.scheduler.kinds import VertexFacts
from vertexrt.script.shape import Shape

Int64 = npt.NDArray[np.int64]

MOST_STREAMS = 8
FRONTIER = "frontier"  # the policy under which layers run one after the other
PATH_STAGES = (Stage.EAGER, Stage.PATH, Stage.PATH_BACKWARD, Stage.FINAL)


@dataclass(frozen=True, slots=True)
class Passes:
    """Which optimisations run; all of them, unless an ablation turns one off.

    Attributes:
        specialise: F for each kind of vertex; else one program for all, with zeros for what is
            absent.
        eager, lazy: what depends on no gather, or feeds no scatter, runs once a step; else it is a
            part of every task.
        layers: vertices of one layer of a network's functions (`ir.layers`) run after all of the
            layers that they read, with the schedule `frontier`; else all functions run together.
        stack: products that share an operand are one product.
        fuse: elementwise nodes between two products are one loop; else each is its own.
        merge: identical vertices are computed once; on a CPU in the batched engine, so are the
            products of a vertex's state that several of its parents would make.
        loop: batched engine on the host: all launches of a step are one compiled call; else each is
            called from Python.
        segment: persistent engine: an instruction runs all that lies between two
            exchanges; else one fused group or product, and where `fuse` is off, one op (VPPS).
        hold: persistent engine on a GPU: phases of the path run as cells, whose weights stay on
            chip, where the machine has a form for them (`kernels/cuda/cell_cut.py`); else all run
            in turn, and each product reads its weights from memory.
        cuts: persistent engine on a GPU: a launch is cut at wide products, which kernels of their
            own make; else one kernel makes them, too.
        replay: batched engine on a GPU: launches of a batch whose graphs have come before are
            one CUDA graph; else each is asked for.
        in_place: batched engine on a GPU: where children are next to each other, in the order of
            their parents, products read and write their rows there; else these are copied.
        streams: batched engine on a GPU: how many streams share the launches of a step, so that
            those which need nothing of each other may run at once (Cavs, section 3.4).
        products: on a CPU: "fixed", by register tiles or by BLAS, with limits that are the same
            everywhere, so that a seed gives the same bits; "timed", as a table says that is timed
            on this machine; "blas", by BLAS alone.
        gradients: persistent engine on a GPU: cells sum up the gradients of their weights on chip,
            as far as there is room; else they are products over all rows after the path.
    """

    specialise: bool = True
    eager: bool = True
    lazy: bool = True
    layers: bool = True
    stack: bool = True
    fuse: bool = True
    merge: bool = True
    loop: bool = True
    segment: bool = True
    hold: bool = True
    cuts: bool = True
    replay: bool = True
    in_place: bool = True
    streams: int = 1
    products: str = FIXED
    gradients: bool = False


def layered(program: Program, passes: Passes, policy: str) -> Program:
    """Return a program with its layers, unless passes or the schedule's policy leave none."""
    return with_layers(program) if passes.layers and policy == FRONTIER else program


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What `vrt.compile` was asked for; see there.

    Attributes:
        threads, processors: None, where the user did not say.
        tune: ways to run a batch are timed.
    """

    dtype: np.dtype[np.floating]
    policy: str
    passes: Passes
    precision: str
    engine: str
    threads: int | None
    processors: int | None
    tune: bool = False


class Use(NamedTuple):
    """What a variant is for; a tuple, since each pass is found by it.

    Attributes:
        outputs: pushes wanted in memory.
        loss: the gradient of the push `loss` is wanted, scaled by the step.
        d_pushes: pushes whose gradient the user gives.
        pulls: real pulls whose gradient is wanted.
        rule: of the update that a kernel ends with, where it is a whole step; else None.
        dropout: whether it drops; None: where dF is part of it.
    """

    outputs: frozenset[str]
    loss: bool = False
    d_pushes: frozenset[str] = frozenset()
    pulls: frozenset[str] = frozenset()
    rule: UpdateRule | None = None
    dropout: bool | None = None

    @property
    def starts(self) -> frozenset[str]:
        """The pushes from which dF starts."""
        return self.d_pushes | {"loss"} if self.loss else self.d_pushes

    @property
    def backward(self) -> bool:
        """Tell whether dF is part of it."""
        return bool(self.starts)

    @property
    def drops(self) -> bool:
        """Tell whether dropout drops."""
        return self.backward if self.dropout is None else self.dropout


@cache
def ending_with(use: Use, rule: UpdateRule | None) -> Use:
    """Return a use with another rule; made once, since each step asks for it."""
    return use._replace(rule=rule)


@dataclass(frozen=True, slots=True)
class Ready:
    """A variant as the per-batch code wants it: an executable, and arrays over its programs.

    Attributes:
        kinds: the bits of its path kinds, in the order of their numbers in schedules.
    """

    executable: Executable | None
    processors: Executable | None
    shape: Shape | None
    programs: ProgramFacts
    kinds: tuple[int, ...]


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
    processors: int  # 0: batched engine; else those of a group, or FEWEST: `Backend.written_for`
    merges: bool  # identical vertices are computed once
    draws: bool  # it has random ops
    lookups: dict[str, Int64]  # by parameter: [*, 2] pulls and functions whose rows get gradients
    pushes: Pushes
    table: TensorTable = field(default_factory=TensorTable)
    tasks: list[TaskProgram] = field(default_factory=list)
    path_kinds: dict[int, Kind] = field(default_factory=dict)
    lazy_kinds: dict[int, Kind] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of task programs, by fingerprint
    origins: dict[object, int] = field(default_factory=dict)  # of nodes that passes have added
    paths: dict[int, Stored] = field(default_factory=dict)  # by the bits that the path depends on
    loaded: Ready | None = None  # None: there is no kind yet, or a new one
    layouts: Recent[BatchLayout] = field(  # for what is loaded
        default_factory=lambda: Recent(MOST_LAYOUTS, MOST_VERTICES)
    )
    reader: Reader = field(init=False)  # what it reads of each vertex
    merges_inner: bool = field(init=False)  # so are identical vertices with children
    _vertex_facts: VertexFacts | None = None

    def __post_init__(self) -> None:
        self.reader = make_reader(self.program)
        per_edge = self.reader.reads_edges or self.program.relations > 1  # not only by children
        self.merges_inner = not (per_edge or _groups_share(self.backend, self.processors))

    def vertex_facts(self) -> VertexFacts:
        """Return what `read_vertices` takes after a batch; made anew after a new kind."""
        if self._vertex_facts is None:
            reader, atoms, own = self.reader, self.atoms, self.program
            whose = (MOST_FUNCTIONS - 1) << FUNCTION_AT if own.sites else 0
            read = {f for site in own.sites for children in site.children for f in children}
            self._vertex_facts = VertexFacts(
                reader.numbers,
                reader.used,
                reader.bounds,
                atoms.slots - 1,
                np.array([x.slots for x in own.sites if own.splits_edges], np.int64),
                np.array([-1 if own.arity is None or own.sites else own.arity]),
                np.array([mask | whose for mask in atoms.path], np.int64),
                np.array([mask | whose for mask in atoms.lazy], np.int64),
                np.array(list(self.path_kinds), np.int64),
                np.array(list(self.lazy_kinds), np.int64),
                np.array([k.has_loss for k in self.lazy_kinds.values()], np.int64),
                # Where there are no layers, functions that no other reads still come last.
                np.array(own.layers or [f not in read for f in range(len(own.sites))], np.int64),
            )
        return self._vertex_facts

    def layer_of(self, bits: int) -> int:
        """Return the layer of the function of a path kind."""
        return self.program.layer_of(self.atoms.function_of(bits))

    def note_tensors(self, task: TaskProgram) -> None:
        """Note the tensors that a task program uses, and when."""
        for key, size, edges, _ in tensor_uses(task):
            self.table.use(key, max(size, 1), edges, task.phase)

    def ready(self) -> Ready:
        """Return what runs need of all kinds so far; a batch has been prepared before."""
        assert self.loaded is not None, "no kind has been met"
        return self.loaded

    def origin(self, key: object) -> int:
        """Return the origin of a node that a pass adds: the same one for the same key."""
        return self.origins.setdefault(key, len(self.program.nodes) + len(self.origins))

    def begin_anew(self) -> None:
        """Forget what a new kind changes; where a signal comes, the kind is still a new one."""
        self.layouts.clear()
        self.loaded = None
        self._vertex_facts = None


def verified(program: Program, where: str, placed: bool = True) -> Program:
    """Return a program, verified where `VERTEXRT_CHECK` asks for it; see `verify`."""
    return verify(program, where, placed) if config().check else program


def _leaves_on_path(program: Program, passes: Passes) -> bool:
    """Tell whether leaves are of the path kind of other vertices, where groups share a schedule.

    So are the first vertices of chains: a product with zeros takes less time than a step of its own
    and a barrier. But identical leaves of others that do products, as words of trees, are one row.
    """
    chains = {f for f in range(max(len(program.sites), 1)) if chain_slot(program, f) >= 0}
    words, others = any(p.dtype != "float" for p in program.pulls), leaf_products(program) - chains
    return not passes.specialise or bool(chains and not (words and others))


def _groups_share(backend: Backend, processors: int) -> bool:
    """Tell whether groups share one schedule: none may need what another makes on the path."""
    return backend.shares_graphs and processors != 0  # negative: of as few as the weights fit


def draws_numbers(program: Program) -> bool:
    """Tell whether a program draws random numbers."""
    return any(OPS[node.op].draws for node in program.nodes)


def make_variant(
    function: Program,
    use: Use,
    backend: Backend,
    params: Collection[str],
    passes: Passes,
    processors: int = 0,
    policy: str = FRONTIER,
) -> Variant:
    """Differentiate and place F for one use; kinds are compiled as they appear.

    Args:
        function: traced, simplified F with stacked parameters.
        params: names of parameters and stacks, in the order of `Buffers.param_at`.
        processors: of a group, as `Backend.written_for` says; 0 for the batched engine.
        policy: of the schedule.
    """
    wanted = use.outputs | use.starts
    program = without_effects(function, lambda n: n.op == "push" and n["name"] not in wanted)
    program = for_use(program, use.drops)
    draws, shares = draws_numbers(program), _groups_share(backend, processors)
    on_path = shares and _leaves_on_path(layered(program, passes, policy), passes)
    # Not where gradients come from, or go to, single vertices. Merged leaves have parents in
    # several of the groups that share a schedule, so what they do must be outside the path.
    merges = passes.merge and not (use.d_pushes or use.pulls or draws or on_path)
    merges = merges and bool(leaf_products(program))
    if merges and backend.publishes and not processors and not program.sites:
        program = publish_products(program)
    # Where there is no way back, arrays of results may take the place of states.
    pushes = Pushes.of(program, frozenset() if use.backward else use.outputs)
    program = pushes.without_copies(program)
    if use.backward:
        program = differentiate(program, use.starts, use.pulls, use.loss, weighted=merges)
    program = simplify(verified(program, "autodiff", placed=False))
    lookups = _lookups(program, params)
    program = drop_zero_gradients(layered(program, passes, policy))
    program = place(program, passes.eager, passes.lazy, by_units=shares)
    verified(program, "place")
    table = TensorTable()
    pulls = {
        dtype: [p.name for p in program.pulls if p.dtype == dtype] for dtype in ("int", "float")
    }
    binding = Binding(
        tensors=table.numbers,
        params=_numbers(params),
        ints=_numbers(pulls["int"]),
        floats=_numbers(pulls["float"]),
        d_pushes=_numbers(sorted(use.d_pushes)),
        splits_edges=program.splits_edges,
        relations=program.relations,
        reads_edges=program.reads_edges,
        layers=program.layers if any(n.has(PARENTS) for n in program.nodes) else (),
    )
    atoms = find_atoms(program, passes.specialise)
    if on_path:
        atoms = with_whole_chains(atoms, program)
    more = processors, merges, draws, lookups, pushes, table
    return Variant(program, use, atoms, backend, binding, passes, *more)


def _numbers(names: Iterable[str]) -> dict[str, int]:
    return {name: k for k, name in enumerate(names)}


def _lookups(program: Program, params: Collection[str]) -> dict[str, Int64]:
    """Return `Variant.lookups` of F and dF, from which no gradient has been left out.

    So it depends on the use alone which rows an update moves. A lookup without a gradient is none:
    pushes that are asked for change nothing.
    """
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in params}
    ints = [pull.name for pull in program.pulls if pull.dtype == "int"]
    for node in [program.nodes[k] for k in program.find("param_grad")]:
        summed = program.nodes[node.inputs[0]]
        if summed.op == "embed_grad":
            pull = ints.index(program.nodes[summed.inputs[0]]["name"])
            found[node["name"]].append((pull, node.function))
    return {name: np.array(by, np.int64).reshape(-1, 2) for name, by in found.items()}


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
        push = TENSOR_OF_EFFECT["push"]
        return without_effects(
            program, lambda n: n.op == "push" and self.keys[n["name"]] != push(n)
        )


def _state_of(program: Program, name: str) -> Key | None:
    """Return the state to which every function scatters what it pushes; None for none."""
    scattered: dict[tuple[int, ...], Key] = {}
    for node in program.nodes:
        if node.op == "scatter":
            scattered.setdefault(node.inputs, TENSOR_OF_EFFECT["scatter"](node))
    pushes = (node for node in program.nodes if node.op == "push" and node["name"] == name)
    found = {scattered.get(node.inputs) for node in pushes}
    return found.pop() if len(found) == 1 else None
