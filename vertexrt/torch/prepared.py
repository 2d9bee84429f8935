"""Passes on a GPU whose run is kept: what does not depend on addresses is found once.

A pass like one before looks at the shapes of what it is given, allocates what it returns, and
launches. What its way back needs is found once for each set of outputs that get a gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor

from vertexrt.api.forward_passes import ForwardPass
from vertexrt.engine.batched import Run
from vertexrt.engine.part import Part
from vertexrt.engine.results import PushPlaces
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import edge_pulls_of, pulls_of, with_values
from vertexrt.graph.device_rows import ALIGNED, DeviceRows
from vertexrt.graph.pulls import held_index, held_table, rows_unchecked
from vertexrt.torch.binding import BoundNetwork
from vertexrt.torch.call import Call
from vertexrt.torch.chains import wanted_of
from vertexrt.torch.pulled import PulledPlaces
from vertexrt.torch.results import Seeds, TensorResults, lent, seed_of
from vertexrt.torch.seeds import Orders, SeedTerms, seed_terms

Key = tuple[Call, Orders]  # what a pass asks for: the orders of its outputs, or none
MOST_HELD = 1 << 16  # bytes of the real pulls that are no tensors, for a pass that is prepared


class PreparedBack(NamedTuple):
    """A way back, for a set of outputs that get a gradient.

    Attributes:
        terms, single: of each push, in the order of names; see `SeedTerms`.
        starts: of `Part.seed_rows`; places: of the gradients of pulls.
    """

    terms: tuple[SeedTerms, ...]
    single: list[int]
    starts: tuple[int, ...]
    places: PulledPlaces


class PulledTensor(NamedTuple):
    """A tensor that is a real pull.

    Attributes:
        number: among the real pulls of a run; place: among the tensors that are given.
        shape: of it.
    """

    number: int
    place: int
    shape: tuple[int, ...]


class PreparedPass:
    """Passes that ask for the same of batches of one form.

    Args:
        run: of such batches, without pulls.
        batches: one of them as a caller gives it, and with all its pulls.
        key: what is asked for.
    """

    def __init__(
        self, bound: BoundNetwork, run: Run, batches: tuple[GraphBatch, GraphBatch], key: Key
    ) -> None:
        (graphs, batch), (call, orders) = batches, key
        self._bound, self._run, self._call = bound, run, call
        self._batch, self._graphs = _form_alone(batch, call), weakref.ref(graphs)
        self._orders, self._use = orders or (None,) * len(call.outputs), run.variant.use
        self._results = cast("TensorResults", bound.results)
        each = zip(call.outputs, self._orders, strict=True)
        self._places = PushPlaces.of(run, [wanted_of(name, rows) for name, rows in each])
        self._ordered = [rows is not None and rows.ordered for rows in self._orders]
        self._in_order = [0] * len(self._ordered)
        self._sources, self._others = _sources(run, batch, call)
        (whole,) = bound.model.prepare(self._use, batch)
        self._floats: list[Any] = list(whole.inputs.floats)
        for number, _, _ in self._sources:
            self._floats[number] = None
        self._forward, self._backward = run.layout.forward, run.layout.backward
        self._no_seeds = bound.forward_passes.no_seeds(self._use)
        wanted = sorted(call.wanted)
        self._wanted = [wanted.index(n) if n in wanted else -1 for n in call.pulls]
        self._backs: dict[tuple[bool, ...], PreparedBack] = {}

    @property
    def holds(self) -> int:
        """How many bytes of real pulls it holds."""
        return sum([given.nbytes for given in self._floats if given is not None])

    def takes(self, graphs: GraphBatch, given: Sequence[Tensor]) -> bool:
        """Tell whether a batch of the form, with tensors in place of some pulls, is one of these.

        Where it is not, the way that all passes go copies what it cannot read, or says what is
        wrong.
        """
        dtype = self._bound.dtype
        for _, place, shape in self._sources:
            tensor = given[place]
            if tensor.shape != shape or tensor.dtype != dtype:
                return False
            if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNED:
                return False
        return self._graphs() is graphs or self._gives_others(graphs)

    def _gives_others(self, graphs: GraphBatch) -> bool:
        """Tell whether a batch itself gives what is held."""
        own, of_edges = pulls_of(graphs), edge_pulls_of(graphs)
        found = [(of_edges if e else own).get(name) is value for e, name, value in self._others]
        return all(found)

    def evaluate(
        self, given: Sequence[Tensor], by: Tensor | None, seed: int
    ) -> tuple[ForwardPass | None, list[Tensor]]:
        """Evaluate the network; see `AskedPass.evaluate`."""
        passes, results, real = self._bound.forward_passes, self._results, self._bound.real
        passes.make_room()
        reals = self._floats.copy()
        for number, place, shape in self._sources:
            tensor = given[place].detach()
            reals[number] = DeviceRows.at(tensor.data_ptr(), tensor, shape, real)
        orders = self._in_order
        if by is not None:
            order = by.data_ptr()
            orders = [order if ordered else 0 for ordered in self._ordered]
        found, to = results.room(self._places, orders)
        part = Part(self._forward, 1.0, seed, self._no_seeds, (), to, tuple(reals))
        results.launch(self._run, part)
        if not self._call.keep:
            return None, found
        made = ForwardPass(self._batch, [self._run], self._use, seed, results, part.reals)
        return passes.note(made), found

    def back(
        self, made: ForwardPass, d_outputs: Sequence[Tensor | None], by: Tensor | None
    ) -> list[Tensor | None]:
        """Go back through a pass; return the gradients of all parameters and of all pulls."""
        bound = self._bound
        has = tuple([d is not None for d in d_outputs])
        found = self._backs.get(has)
        if found is None:
            found = self._backs[has] = self._find_back(d_outputs, by, has)
        results = self._results
        rows: list[Any] = []
        for terms, number in zip(found.terms, found.single, strict=True):
            d = None if number < 0 else d_outputs[number]
            seed = seed_of(terms.of(bound, d_outputs, by)) if d is None else lent(d)
            rows.append(seed)
        bound.forward_passes.restore(made)
        flat, pulled, to = results.room_back(found.places)
        part = Part(self._backward, 1.0, made.seed, tuple(rows), found.starts, to, made.reals)
        found.places.add(results.launch(self._run, part), pulled)
        of_pulls = [None if k < 0 else pulled[k] for k in self._wanted]
        return [*bound.parts_of(flat, {}), *of_pulls]

    def _find_back(
        self, d_outputs: Sequence[Tensor | None], by: Tensor | None, has: tuple[bool, ...]
    ) -> PreparedBack:
        bound, run = self._bound, self._run
        terms = seed_terms(bound, self._call, self._orders, self._batch.num_vertices, has)
        seeds = Seeds.of({name: each.of(bound, d_outputs, by) for name, each in terms.items()}, run)
        places = PulledPlaces.of(self._batch, run, sorted(self._call.wanted), seeds.lists)
        single = [each.single for each in terms.values()]
        return PreparedBack(tuple(terms.values()), single, seeds.starts, places)


def find_prepared(
    bound: BoundNetwork, use: Use, graphs: GraphBatch, key: Key
) -> PreparedPass | None:
    """Return what is prepared for passes of a form; None, where nothing is."""
    run = bound.model.kept_run(use, graphs.form) if bound.stays else None
    return None if run is None or run.kept is None else run.kept.get(key)


def prepared_for(made: ForwardPass, key: Key) -> PreparedPass | None:
    """Return what has made a pass; None, where that was not prepared."""
    kept = made.runs[0].kept
    return None if kept is None or made.reals is None else kept.get(key)


def prepare_again(
    bound: BoundNetwork, use: Use, batches: tuple[GraphBatch, GraphBatch], key: Key
) -> None:
    """Prepare passes like one that has run, where its run is kept.

    Args:
        batches: of `PreparedPass`.
    """
    run = bound.model.kept_run(use, batches[0].form) if bound.stays else None
    if run is None or run.kept is None or key in run.kept:
        return
    made = PreparedPass(bound, run, batches, key)
    run.kept[key] = made if made.holds <= MOST_HELD else None


def _form_alone(batch: GraphBatch, call: Call) -> GraphBatch:
    """Return a batch that has of the tensors only their shapes, so that they may go."""
    held, found = pulls_of(batch), {}
    for name in call.pulls:
        table: Any = held[name]
        values = held_table(table)
        rows: Any = DeviceRows.at(0, None, values.shape, values.dtype)
        found[name] = rows_unchecked(rows, held_index(table))
    return with_values(batch, found, {}, batch.form)


def _sources(
    run: Run, batch: GraphBatch, call: Call
) -> tuple[list[PulledTensor], list[tuple[bool, str, object]]]:
    """Return where the real pulls of a run come from.

    Returns: the tensors; what a batch itself gives: if edges have it, its name, and what it is.
    """
    reader, sources, others = run.variant.reader, [], []
    for number, k in enumerate(reader.reals):
        pull = reader.pulls[k]
        of_edges = pull.of_edges
        held: Any = (edge_pulls_of if of_edges else pulls_of)(batch).get(pull.source)
        if not of_edges and pull.source in call.pulls:
            shape = tuple(held_table(held).shape)
            sources.append(PulledTensor(number, call.pulls.index(pull.source), shape))
        elif reader.is_used[k]:
            others.append((of_edges, pull.source, held))
    return sources, others
