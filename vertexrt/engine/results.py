"""What passes give back: pushes and gradients, as arrays of the host or of the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, RowPlace, Run
from vertexrt.engine.executor import Executor
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.structure import edges_in_slot
from vertexrt.errors import VertexrtError
from vertexrt.graph import GraphBatch
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.graph.pulls import parts_of
from vertexrt.ir.program import Pull

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What `Record.backward` returns: gradients of one pass, by the names of parameters and of
    real pulled values.

    Attributes:
        parameters: in their shapes.
        pulled: in the shapes of the arrays that were given.
        rows: with `sparse`, of a table the rows that were looked up, int64 [n], rising, and their
            gradients [n, ...]; it is not among `parameters` then.
    """

    parameters: dict[str, Array]
    pulled: dict[str, Array]
    rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def __repr__(self) -> str:
        parameters, pulled = shapes_of(self.parameters), shapes_of(self.pulled)
        return f"Gradients(parameters: {parameters}; pulled: {pulled})"


def shapes_of(arrays: Mapping[str, Array]) -> str:
    """Return names and shapes in one line."""
    return ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items()) or "none"


class WayBack(NamedTuple):
    """A way back through a forward pass.

    Attributes:
        batch, runs: of the pass; seed: of its random draws.
        d_outputs: gradients of its pushes, [V, *shape], in the order of their names; none, where it
            starts from the loss, which is evaluated with it. scale: factor of them, or of the loss.
        pulls: names of the real pulls whose gradients are wanted.
        sparse: of tables, which are only looked up in, the rows that were looked up are wanted.
    """

    batch: GraphBatch
    runs: Sequence[Run]
    seed: int
    d_outputs: Mapping[str, Any]
    scale: float
    pulls: Sequence[str]
    sparse: bool


class LossAndGradients(NamedTuple):
    """What a way back from the loss gives back, in memory of its own.

    Attributes:
        loss: real [], scaled.
        flat: gradients in the store's layout, of all trained parameters, or where `rows` has the
            tables of the others; None, where the pass does not go back.
        rows, pulled: of `Gradients`.
    """

    loss: Any
    flat: Any
    rows: Mapping[str, tuple[Any, Any]]
    pulled: Mapping[str, Any]


class PushRows(NamedTuple):
    """A push that is wanted.

    Attributes:
        name: of the push.
        vertices: whose, int64 [n], in that order; None for all, in the user's order.
    """

    name: str
    vertices: npt.NDArray[np.int64] | None = None


class LaunchesHere(Executor, Protocol):
    """An executor whose arrays may stay on its device: what results there are made with."""

    def arrays(self) -> Any:
        """Return the module, with NumPy's names, whose arrays lie on the device."""

    def no_memory(self, what: str) -> VertexrtError:
        """Return what is raised where there is no memory for arrays."""

    def launch_between(self, run: Run, part: Part, stream: int | None = None) -> Any:
        """Run launches after what the caller's stream has, and before what it gets; do not wait.

        Args:
            stream: its address; by default the current one of the library of the arrays.
        Returns: the arena, an array of the device; it is there until the next run.
        """

    def share_values(self) -> Any:
        """Return the parameters on the device, [total], which others may write to from now on."""

    def gradients_here(self) -> Any:
        """Return the gradients on the device, [trained], which each run with a way back fills."""


class PushPlaces(NamedTuple):
    """Where pushes that are wanted lie in the arena of a device.

    Attributes:
        shapes: of the results.
        rows: int32, lists of rows, one after the other; those of the same vertices are one list.
        places: of each push.
    """

    shapes: tuple[tuple[int, ...], ...]
    rows: Array
    places: tuple[RowPlace, ...]

    @staticmethod
    def of(run: Run, wanted: Sequence[PushRows]) -> PushPlaces:
        """Find those of pushes."""
        if run.kept is None:
            return _places_of(run, wanted)
        key = "pushes", *[push.name for push in wanted]
        vertices = [push.vertices for push in wanted]
        return run.once(key, vertices, lambda: _places_of(run, wanted))


def _places_of(run: Run, wanted: Sequence[PushRows]) -> PushPlaces:
    lists: list[Array] = []
    known: dict[int, tuple[int, int]] = {}  # by the identity of the vertices: start, length
    shapes, places, end, base = [], [], 0, run.layout.plan.base
    pushes, table = run.variant.pushes, run.variant.table
    for name, vertices in wanted:
        found = known.get(id(vertices))
        if found is None:
            rows = run.row_of if vertices is None else run.row_of.take(vertices)
            found = known[id(vertices)] = end, len(rows)
            lists.append(rows)
            end += len(rows)
        number = table.numbers[pushes.keys[name]]
        places.append(RowPlace(int(base[number]), table.specs[number].size, *found))
        shapes.append((found[1], *pushes.shapes[name]))
    rows = lists[0] if len(lists) == 1 else np.concatenate(lists)
    return PushPlaces(tuple(shapes), rows, tuple(places))


class PassResults:
    """How passes go back, to arrays of the host, or of the device.

    Args:
        executor: launches them; `LaunchesHere`, where arrays stay on its device.
    """

    def __init__(self, executor: Executor, stays: bool) -> None:
        self._executor, self.stays = executor, stays
        self._here = cast("LaunchesHere", executor)

    @property
    def _like(self) -> Any:
        """The module, with NumPy's names, that makes the arrays."""
        return self._here.arrays() if self.stays else np

    @contextmanager
    def _room_for(self, what: str) -> Iterator[None]:
        """Name what there is no memory for on the device."""
        try:
            yield
        except MemoryError as error:  # CuPy's is one
            if not self.stays:
                raise
            raise self._here.no_memory(f"{what} ({error})") from None

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return numbers as an array of the network's dtype in C order; zeros of a shape for None.

        Whether numbers have that shape is not looked at.
        """
        like, dtype = self._like, self._executor.model.store.dtype
        with self._room_for(f"an array {list(shape)}"):
            if given is None:
                return like.zeros(shape, dtype)
            return like.ascontiguousarray(like.asarray(given, dtype))

    def backward(self, way: WayBack) -> Gradients:
        """Go back; those of arrays of the host are in the store then, too, and others not."""
        parts = []
        for run in way.runs:
            d_pushes = list(way.d_outputs.values())
            if len(way.runs) > 1:
                d_pushes = [given[run.share.vertices] for given in d_pushes]
            if way.scale != 1.0 or not self.stays:
                d_pushes = [way.scale * given for given in d_pushes]
            flat = tuple(DeviceRows.of(given.reshape(-1)) for given in d_pushes)
            parts.append(Part(run.layout.backward, 1.0, way.seed, flat))
        _, flat, rows, pulled = self.go_back(way, parts)
        store = self._executor.model.store
        named = {n: part_of_store(store, flat, n) for n in store.trained if n not in rows}
        return Gradients(named, pulled, rows)

    def go_back(self, way: WayBack, parts: Sequence[Part]) -> tuple[Any, ...]:
        """Go back by launches; return the arenas, and the last three fields of `LossAndGradients`.

        Args:
            parts: of each run.
        """
        runs, executor, like = way.runs, self._executor, self._like
        store = executor.model.store
        if self.stays:
            arenas = [self._here.launch_between(runs[0], parts[0])]
            touched, live = executor.model.touched(runs[0]), self._here.gradients_here()
        else:
            executor.begin_gradients(runs)
            arenas = executor.launch(runs, parts)
            executor.collect_gradients()
            touched, live = store.touched, store.gradients
        rows, pulled = {}, {}
        with self._room_for("arrays of gradients"):
            for name, own in touched.items() if way.sparse else ():
                at = like.asarray(own.astype(np.int64))
                rows[name] = at, part_of_store(store, live, name)[at]
            for name in way.pulls:
                table, _ = table_of(way.batch, runs[0].variant.program.pulls_from(name)[0])
                pulled[name] = like.zeros(table.shape, store.dtype)
                for run, arena in zip(runs, arenas, strict=True):
                    self._add_pulled(way.batch, run, arena, name, pulled[name])
            flat = (live[: store.dense_size] if rows else live).copy()
        return arenas, flat, rows, pulled

    def _add_pulled(self, batch: GraphBatch, run: Run, arena: Any, name: str, out: Any) -> None:
        """Add gradients of a pull, over the vertices (or edges) of a run that pulled it."""
        like, tensors = self._like, run.variant.table
        for pull in run.variant.program.pulls_from(name):
            to, at = pulled_rows(batch, run, pull)
            number = tensors.numbers.get(("pull_grad", pull.name), len(run.layout.plan.base))
            if number >= len(run.layout.plan.base) or not len(to):
                continue  # it may be younger than the plan of this run
            # The first rows may not exist, so that the tensor begins before the arena.
            base, size = int(run.layout.plan.base[number]), tensors.specs[number].size
            first, end = int(at.min()), int(at.max()) + 1
            given = arena[base + first * size : base + end * size].reshape(-1, size)
            found = given.take(like.asarray(at - first), axis=0).reshape(len(at), *out.shape[1:])
            like.add.at(out, like.asarray(to), found)


def part_of_store(store: ParameterStore, flat: Any, name: str) -> Any:
    """Return a parameter's part of an array in a store's layout."""
    shape, start = store.shapes[name], store.offsets[name]
    return flat[start : start + math.prod(shape)].reshape(shape)


def pulled_rows(batch: GraphBatch, run: Run, pull: Pull) -> tuple[Array, Array]:
    """Find the rows of a pull that a run has a gradient of; several may be one.

    Returns: rows of the pull, and rows of the tensor where their gradients are; int64 [n] each.
    """
    program, inputs, share = run.variant.program, run.inputs, run.share
    functions = inputs.structure.functions
    pulling = np.ones(len(run.row_of), np.bool_)  # whose function pulls it, of its own or of edges
    if len(functions):
        nodes = (n for n in program.nodes if n.op == "pull_grad" and n["name"] == pull.name)
        pulling = np.isin(functions, [n.function for n in nodes])
    if pull.of:
        edge = edges_in_slot(program, pull, inputs.structure)
        own = np.flatnonzero((edge >= 0) & pulling)
        mine, at = share.edges(edge[own]), run.row_of[own]
    elif pull.edges:
        s = run.layout.schedule
        at = np.flatnonzero((s.child_row >= 0) & pulling[s.order[s.edge_row]])
        at = at[at >= s.every_ptr[0]]  # edges of slots come before, and have no values
        edges, edge_of = s.edge_order[at] - len(run.row_of), inputs.structure.edge_of
        mine = share.edges(edges if edge_of is None else edge_of[edges])
    else:
        own = np.flatnonzero(pulling)
        mine, at = share.vertices[own], run.row_of[own]
    _, index = table_of(batch, pull)
    if index is None:
        return mine, at
    has = np.flatnonzero(index[mine] >= 0)
    return index[mine][has], at[has]


def table_of(batch: GraphBatch, pull: Pull) -> tuple[Any, Array | None]:
    """Return the rows of a pull, and which of them each vertex pulls, if not its own."""
    return parts_of((batch.edge_pulls if pull.of_edges else batch.pulls)[pull.source])
