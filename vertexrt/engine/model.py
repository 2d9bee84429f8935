"""A compiled vertex function: its parameters, its variants, and how each batch is to run.

From a minibatch to a run: what it pulls is read, and it is laid out, unless one like it came.
Runs of batches that come again are kept by what decides how they run (`graph/digest.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.choose import Chooser, Tuner, ways_for, work_of
from vertexrt.engine.graph_facts import (
    GraphFacts,
    find_facts,
    new_marks,
    rows_looked_up,
    rows_of_graphs,
)
from vertexrt.engine.inputs import read_inputs, read_table
from vertexrt.engine.kinds import find_kinds, meet_kinds, take_kinds
from vertexrt.engine.layouts import BatchLayout, Recent, lay_out
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.trace import Timeline
from vertexrt.engine.variant import (
    CompileOptions,
    Use,
    Variant,
    ending_with,
    layered,
    make_variant,
)
from vertexrt.errors import GraphError, NoKernelError, PullError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import key_of, source_of, starts_of
from vertexrt.graph.digest import BatchForm
from vertexrt.ir.passes.parts import divide_parameters
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.ir.pretty import format_program
from vertexrt.ir.program import Program
from vertexrt.kernels.backend import Backend
from vertexrt.kernels.ways import Configuration
from vertexrt.memory import MemoryPlan
from vertexrt.scheduler import POLICIES as POLICIES  # for the front end
from vertexrt.scheduler import policy_of
from vertexrt.scheduler.balance import Share, divide
from vertexrt.scheduler.batch_shape import levels_of
from vertexrt.scheduler.kinds import FINE, is_within

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")
REDUCTIONS = ("mean_graphs", "mean_vertices", "sum")
BATCHED = Configuration(False, 1)
MOST_RUNS, MOST_IN_ALL = 128, 1 << 20  # that are kept, and their vertices
MOST_OF_A_BATCH = 1 << 14  # of a batch: preparing it takes less than running it, where it is larger


def prepare(
    variant: Variant,
    share: Share,
    policy: str,
    dtype: npt.DTypeLike,
    configuration: Configuration = BATCHED,
    merge: bool = True,
) -> Run:
    """Schedule a share of a batch and plan its memory, compiling kinds not seen before.

    Args:
        merge: let identical vertices be computed once, where the variant does; which are identical
            depends on the numbers that they pull.

    Raises: PullError, when pulled values do not fit; GraphError, when a vertex has more children
        than the function has slots.
    """
    batch, reader, merges = share.batch, variant.reader, variant.merges and merge
    key = None
    if not merges:
        key = key_of(batch, "structure")
    elif not reader.reads_integers:  # words never come again alike
        key = key_of(batch, "numbers")
    layout = None if key is None else variant.layouts.find(key)
    structure = None if layout is None else layout.structure
    inputs = read_inputs(reader, batch, dtype, structure=structure)
    if layout is None or not is_within(inputs.index, reader.used, reader.bounds):
        if variant.loaded is None:
            meet_kinds(variant, batch, inputs)
        graph, found = inputs.structure, -1
        while found != FINE:
            if found >= 0:
                meet_kinds(variant, batch, inputs)
            found, with_loss, schedule, plan, *launches = lay_out(
                *graph[:3],
                graph.first_of,
                inputs.index,
                inputs.no_reals,
                policy_of(policy),
                merges,
                variant.merges_inner,
                reader.reads_edges,
                variant.vertex_facts(),
                variant.ready().programs,
                levels_of(batch),
            )
        made: tuple[Any, ...] = MemoryPlan(*plan), with_loss, graph, starts_of(batch)[0]
        layout = BatchLayout(*schedule, *launches, *made)
        if key is not None and variant.layouts.known.has_come(key):
            layout.came_again = True
            variant.layouts.keep(key, layout, batch.num_vertices)
    return Run(variant, variant.ready(), share, inputs, layout, configuration)


def sparse_parameters(program: Program) -> list[str]:
    """Name trained parameters that are only looked up in: their gradients touch few rows."""
    tables: dict[str, bool] = {}
    for node in program.nodes:
        for position, i in enumerate(node.inputs):
            source = program.nodes[i]
            if source.op == "param":
                looked_up = node.op == "embed" and position == 0
                tables[source["name"]] = tables.get(source["name"], True) and looked_up
    return [name for name, only in tables.items() if only and name not in program.frozen]


def _places(
    function: Program, store: ParameterStore, parts: Mapping[str, tuple[str, int]]
) -> dict[str, int]:
    """Return the first element of each parameter, of their parts, and of stacks of both."""
    at = dict(store.offsets)
    at |= {part: at[name] + start for part, (name, start) in parts.items()}
    return at | {"+".join(names): at[names[0]] for names in function.stacks}


class CompiledModel:
    """F, its parameter store, and one variant for each way in which it has been run.

    An executor runs what it prepares: see `executor`.

    Args:
        traced: the program of F.
        backend: what runs it.
        threads: how many run at once.
    """

    def __init__(
        self,
        traced: Program,
        backend: Backend,
        options: CompileOptions,
        threads: int,
    ) -> None:
        self.traced, self.options = traced, options
        passes, policy, engine = options.passes, options.policy, options.engine
        divided = divide_parameters(traced)
        function, places = divided.program, divided.places
        self.function = stack_parameters(place(function)) if passes.stack else function
        self.backend = backend
        self.policy = policy
        self.engine = engine
        self.passes = passes
        self.sparse = sparse_parameters(traced)
        self.reads_words = any(pull.dtype == "int" for pull in traced.pulls)
        stacked = [names for names in self.function.stacks if names[0] not in places]
        copies = max(threads, 1)
        given = traced.params, options.dtype, self.sparse, stacked, copies, traced.frozen
        self._new_store = partial(ParameterStore, *given)
        self.store = self._new_store()
        self._preparing = threading.RLock()  # of all that `equal` returns
        self.first: CompiledModel | None = None  # which it was made equal to, and keeps alive
        at = _places(self.function, self.store, places)
        self.param_names = list(at)
        self.param_at = np.array(list(at.values()), np.int64)
        self.variants: dict[tuple[Use, int], Variant] = {}
        self.timeline: Timeline | None = None  # while runs are recorded
        self.threads = threads
        ways = ways_for(options, backend.ways(threads, options.processors))
        work = work_of(layered(self.function, passes, policy))
        self.chooser = Chooser(backend, work, ways)
        self.tuner: Tuner | None = None
        if options.tune:
            key = (
                f"{format_program(self.function)} {self.store.dtype} {policy} {passes} {threads} "
                f"{backend.where}"
            )
            self.tuner = Tuner(key, self.chooser, ways[0])
        self._facts: WeakKeyDictionary[GraphBatch, dict[Use, GraphFacts | None]]
        self._facts = WeakKeyDictionary()
        self.kept: Recent[Run] = Recent(MOST_RUNS, MOST_IN_ALL)  # by use and numbers, bare
        self.marks = self._new_marks()

    def equal(self) -> CompiledModel:
        """Return a model of the same program and options, with parameters of its own.

        What has been compiled and prepared for one is there for all; they may run at once.
        """
        found = copy(self)
        found.store, found.marks = self._new_store(), self._new_marks()
        found.first = self.first or self
        return found

    def _new_marks(self) -> dict[str, Array]:
        return {n: new_marks(self.store.shapes[n][0]) for n in self.sparse}

    @property
    def persistent(self) -> bool:
        """Tell whether every batch runs on processors."""
        return all(way.persistent for way in self.chooser.ways)

    def variant(self, use: Use, chosen: Configuration) -> Variant:
        """Return F compiled for one use and engine."""
        processors = self.backend.written_for(chosen.processors) if chosen.persistent else 0
        if use.rule is not None and not processors:  # updates are kernels of their own
            use = ending_with(use, None)
        found = self.variants.get((use, processors))
        if found is None:
            about = self.backend, self.param_names, self.passes
            found = make_variant(self.function, use, *about, processors, self.policy)
            take_kinds(found, self._same(use))
            self.variants[use, processors] = found
        return found

    def prepare(
        self, use: Use, batch: GraphBatch, keeps: bool = True, merge: bool = True
    ) -> list[Run]:
        """Schedule a batch.

        Graphs of minibatches that are taken from one batch are hashed once; a minibatch of graphs
        with whole numbers hashes their hashes when the same graphs come again. Those of a batch of
        its own are not, unless it comes again: it may be made anew for each step.

        Args:
            keeps: take the run of a batch like it, if one came before; else keep this one.
            merge: let identical vertices be computed once; not where their numbers will be others,
                whose run is not kept.
        Returns: one run for each worker or group that gets a share of it.
        """
        # Where runs are timed, preparing them is a part of it.
        timed = self.tuner is not None or self.timeline is not None
        if timed or not (keeps and merge) or batch.num_vertices > MOST_OF_A_BATCH:
            return self.prepare_share(use, Share(batch), merge)
        with self._preparing:
            form = batch.form
            if form.numbers is None:
                source, graphs = source_of(batch)
                taken = source is not batch
                if taken and self.reads_words:  # which are others in others of its graphs
                    chosen = use, id(source), graphs.tobytes()
                    form.comes_again |= self.kept.known.has_come(chosen)
                if form.comes_again or (taken and not self.reads_words):
                    key_of(batch, "numbers")
                form.comes_again |= not taken
            kept = None if form.numbers is None else self.kept_run(use, form)
            if kept is not None:
                reader, dtype = kept.variant.reader, self.store.dtype
                if not reader.reals:
                    return [kept]
                tables = [read_table(reader, k, batch, dtype) for k in reader.reals]
                return [kept.with_floats(batch, tuple(tables))]
            runs = self.prepare_share(use, Share(batch))
            key = use, form.numbers
            if form.numbers is None or len(runs) > 1:
                return runs
            if form.comes_again or self.kept.known.has_come(key):
                runs[0].kept = {}
                self.kept.keep(key, runs[0].bare(), batch.num_vertices)
            return runs

    def kept_run(self, use: Use, form: BatchForm) -> Run | None:
        """Return the run of batches of a form, without pulls; None, where none may be used."""
        with self._preparing:
            if self.tuner is not None or self.timeline is not None:
                return None
            kept = self.kept.find((use, form.numbers))
            return kept if kept is not None and kept.ready is kept.variant.loaded else None

    def prepare_share(self, use: Use, share: Share, merge: bool = True) -> list[Run]:
        """Schedule a share of a batch as if it were one; its vertices keep their numbers."""
        batch, dtype = share.batch, self.store.dtype

        def schedule(chosen: Configuration) -> list[Run]:
            variant, parts = self.variant(use, chosen), min(chosen.groups, batch.num_graphs)
            if parts == 1:
                return [prepare(variant, share, self.policy, dtype, chosen, merge)]
            several = divide(share, parts, self.chooser.work.level)
            with suppress(GraphError, PullError):
                return [prepare(variant, s, self.policy, dtype, chosen, merge) for s in several]
            # Refused again, with the numbers that graphs and vertices have in the whole batch.
            self._meet(variant, batch)
            raise AssertionError("a share is refused, the batch is not")

        with self._preparing:
            return self._choose_and(schedule, use, batch)

    def _choose_and(self, act: Callable[[Configuration], T], use: Use, batch: GraphBatch) -> T:
        """Do something with the way of a batch; what has no kernel is no candidate any more.

        Raises: NoKernelError, where that holds of all.
        """
        while True:
            chosen = (self.tuner or self.chooser).pick(use.backward, batch)
            try:
                return act(chosen)
            except NoKernelError:
                if not self.chooser.refuse(chosen):
                    raise
                if self.tuner is not None:
                    self.tuner.refuse(chosen)

    def meet(self, use: Use, batch: GraphBatch, typical: GraphBatch) -> None:
        """Compile F for the kinds of vertices of a batch, which is not scheduled.

        Args:
            typical: of the batches to come; their kinds are among those of `batch`.
        """
        with self._preparing:
            self._choose_and(
                lambda chosen: self._meet(self.variant(use, chosen), batch), use, typical
            )

    def _meet(self, variant: Variant, batch: GraphBatch) -> None:
        meet_kinds(variant, batch, read_inputs(variant.reader, batch, self.store.dtype))

    def facts_of(self, use: Use, batch: GraphBatch) -> tuple[GraphFacts, Int64]:
        """Return facts of the batch that graphs were taken from, and their numbers there.

        Kinds of vertices are noted for all engines. Where another graph of that batch is refused,
        the facts are of these graphs alone.

        Raises: PullError and GraphError, when a graph is refused.
        """
        with self._preparing:
            source, graphs = source_of(batch)
            known = self._facts.setdefault(source, {})
            if use not in known:
                try:
                    known[use] = self._read(use, source)
                except (PullError, GraphError):
                    known[use] = None
            found = known[use]
            if found is not None:
                return found, graphs
            return self._read(use, batch), np.arange(batch.num_graphs)

    def _read(self, use: Use, batch: GraphBatch) -> GraphFacts:
        chosen = (self.tuner or self.chooser).pick(use.backward, batch)
        same = self._same(use) or [self.variant(use, chosen)]
        inputs = read_inputs(same[0].reader, batch, self.store.dtype, tables=False)
        has_loss = find_kinds(same[0], batch, inputs)
        for other in same[1:]:
            take_kinds(other, same[:1])
        level = self.chooser.work.level
        return find_facts(same[0], batch, inputs, has_loss, self.sparse, level)

    def _same(self, use: Use) -> list[Variant]:
        """Return what was compiled for a use, whatever the engine and the update."""
        plain = ending_with(use, None)
        return [v for (u, _), v in self.variants.items() if ending_with(u, None) == plain]

    def time_runs(
        self,
        use: Use,
        batch: GraphBatch,
        runs: Sequence[Run],
        start: float,
        prepared: float,
        wait: Callable[[], object] = dict,
    ) -> None:
        """Note what runs took, while ways to run them are timed; they are waited for only then.

        A device may run a batch while the host prepares the next, so that the longer counts.

        Args:
            start, prepared: when the host began, and when it began to launch.
        """
        if self.tuner is None or not self.tuner.times(use.backward, batch):
            return
        launched = time.perf_counter()
        wait()
        seconds = max(launched - start, time.perf_counter() - prepared)
        with self._preparing:
            self.tuner.observe(use.backward, batch, runs[0].configuration, seconds)

    def touched(self, run: Run) -> dict[str, Array]:
        """List for each sparse parameter the rows that a run looked up."""

        def find() -> dict[str, Array]:
            index, lookups, readers = run.inputs.index, run.variant.lookups, run.inputs.readers
            return {
                n: rows_looked_up(self.marks[n], index, lookups[n], readers) for n in self.sparse
            }

        return run.once(("touched",), (), find)

    def looked_up(self, facts: GraphFacts, graphs: Int64) -> dict[str, Array]:
        """List for each sparse parameter the rows that some graphs look up."""
        found = facts.looked_up
        return {n: rows_of_graphs(self.marks[n], found[n], graphs) for n in self.sparse}
