"""Runs that are prepared once: their structure stays, and other pulled values take their places.

Kinds depend on which vertices have a whole number, so these stay; numbers and rows may change. What
depends on numbers is left out: equal vertices are not merged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.inputs import (
    Inputs,
    Reader,
    edges_read,
    in_slot,
    read_inputs,
    refuse,
    refuse_edge,
    rows_of_edges,
    vertex_name,
)
from vertexrt.engine.structure import edges_in_slot
from vertexrt.errors import PullError, nearest
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.batch import edge_pulls_of, pulls_of
from vertexrt.graph.device_rows import DeviceRows, on_device
from vertexrt.graph.owned import INT32
from vertexrt.graph.pulls import check_pulls, held_index, held_table
from vertexrt.ir.program import Pull
from vertexrt.scheduler.kinds import NOT_BOUNDED

Array = np.ndarray[Any, Any]
MOST = np.iinfo(np.int32).max


class NewPulls(NamedTuple):
    """Pulled values of a request.

    Attributes:
        ints: rows of `Inputs.index` that have changed; they have the new numbers.
        reals: number of a real pull and its table, flat; what it was planned with, where that is
            `planned`.
    """

    ints: list[int]
    reals: list[tuple[int, Array | DeviceRows]]


class PlannedLaunches(Protocol):
    """Runs that have their memory on a device to themselves, and are launched again and again.

    Attributes:
        outputs: names of the pushes that they return.
    """

    outputs: Sequence[str]

    def forward(self, new: NewPulls, seed: int) -> dict[str, Any]:
        """Launch with other pulled values; return pushes by name.

        Args:
            seed: 32 random bits.
        """


class PlanRequest(NamedTuple):
    """What is to be planned.

    Attributes:
        runs: prepared.
        outputs: names of pushes, in order.
        vertices: int64, those whose pushes are wanted; None for all.
        stays: results stay in the device's memory.
    """

    runs: Sequence[Run]
    outputs: Sequence[str]
    vertices: npt.NDArray[np.int64] | None
    stays: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """A pull that other values may take the place of.

    Attributes:
        number: row of `Inputs.index`; real: among the real pulls, -1 for whole numbers.
        table: what was planned.
        source: int32, of whole numbers: the row of the table that each vertex or edge has, -1 for
            none; low, high: the numbers that each may have.
        shares: the same of each run, where there are several.
    """

    pull: Pull
    number: int
    real: int
    table: Array | DeviceRows
    source: Array
    low: Array
    high: Array
    shares: tuple[Array, ...]


class PlannedPulls:
    """The pulled values of runs, and what may take their places.

    Args:
        batch: by index, see `pulls_by_index`; runs: of it, merging nothing.
        dtype: of reals.
    """

    def __init__(self, batch: GraphBatch, runs: Sequence[Run], dtype: npt.DTypeLike) -> None:
        self._batch, self._runs, self._dtype = batch, runs, np.dtype(dtype)
        self._reader = runs[0].variant.reader
        several = len(runs) > 1
        self._whole = read_inputs(self._reader, batch, dtype) if several else runs[0].inputs
        self._given: tuple[str, ...] = ()
        self._places = self._find()
        self._planned = {place.pull.source: place for place in self._places}
        self._known = {**pulls_of(batch), **edge_pulls_of(batch)}
        self._changing: list[_Place] = []

    def _find(self) -> list[_Place]:
        """List the pulls that are read, but for what the structure gives."""
        found, integers = [], len(self._whole.ints)
        for k, pull in enumerate(self._reader.pulls):
            given = _given(self._batch, pull)
            if not self._reader.is_used[k] or given is None:
                continue
            table, none = held_table(given), np.zeros(0, np.int32)
            if k >= integers:
                place = _Place(pull, k, k - integers, table, none, none, none, ())
            else:
                source = _source(self._reader, k, self._whole, self._batch)
                low, high = _bounds(self._reader, self._whole, k, source)
                shares = [
                    _source(self._reader, k, run.inputs, run.share.batch) for run in self._runs
                ]
                shares = shares if len(shares) > 1 else []
                place = _Place(pull, k, -1, table, source, low, high, tuple(shares))
            found.append(place)
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what may be given, by name."""
        return {name: tuple(place.table.shape) for name, place in self._planned.items()}

    def take(self, pulls: Mapping[str, Any]) -> NewPulls:
        """Check the pulls of a request; those that it does not give are as they were planned.

        Raises: PullError, when one is unknown or does not fit; nothing has changed then.
        """
        names = tuple(pulls)
        places, after = self._changing, self._changing
        if names != self._given:
            self._check_names(names)
            places, after = self._places_of({*names, *self._given}), self._places_of(names)
        tables = self._tables(places, pulls)
        reals = [(p.real, table) for p, table in tables if p.real >= 0]
        ints = []
        if len(reals) < len(tables):
            ints = [(p, *self._numbers(p, table)) for p, table in tables if p.real < 0]
        for each in ints:
            self._put(*each)
        self._given, self._changing = names, after
        return NewPulls([place.number for place, _, _ in ints], reals)

    def _places_of(self, names: Collection[str]) -> list[_Place]:
        return [place for place in self._places if place.pull.source in names]

    def _tables(
        self, places: Sequence[_Place], pulls: Mapping[str, Any]
    ) -> list[tuple[_Place, Any]]:
        """Return what is given for each place that changes. Raises: PullError."""
        if len(places) == 1:
            return [(places[0], self._table(places[0], pulls))]
        names = dict.fromkeys(place.pull.source for place in places)
        by_name = {name: self._table(self._planned[name], pulls) for name in names}
        return [(place, by_name[place.pull.source]) for place in places]

    def _put(self, place: _Place, table: Array, numbers: Array) -> None:
        """Write whole numbers where the runs read them."""
        if not place.shares:
            self._runs[0].inputs.index[place.number] = numbers
        for run, source in zip(self._runs, place.shares, strict=bool(place.shares)):
            run.inputs.index[place.number] = _taken(table, source)

    def _table(self, place: _Place, pulls: Mapping[str, Any]) -> Any:
        """Return what is given for a pull, in the shape that was planned. Raises: PullError."""
        name, planned = place.pull.source, place.table
        given, dtype, shape = pulls.get(name, planned), planned.dtype, planned.shape
        if given is planned or _alike(given, planned):
            return given
        table: Any = self._rows(place, given) if place.real >= 0 else None
        if table is not None:
            return table
        each = "edge" if place.pull.of_edges else "vertex"
        table = check_pulls({name: given}, shape[0], "plan", each)[name]
        if isinstance(table, Rows) or table.dtype.kind != dtype.kind or table.shape != shape:
            self._misfit(place, table)
        return table

    def _rows(self, place: _Place, given: Any) -> DeviceRows | None:
        """Return an array of a GPU as rows; None for one of the host. Raises: PullError."""
        shape = place.table.shape
        rows = DeviceRows.like(given, shape, self._dtype)
        if rows is None and on_device(given):
            rows = DeviceRows.of(given)
            if rows.dtype != self._dtype or rows.shape != shape:
                self._misfit(place, rows)
        return rows

    def _misfit(self, place: _Place, given: Any) -> NoReturn:
        """Say in what form a pull was planned."""
        indexed = isinstance(given, Rows)
        has = given.table if indexed else given
        dtype = self._dtype if isinstance(has, DeviceRows) else place.table.dtype
        raise PullError.at(
            "plan",
            f"pull {place.pull.source!r} is {'Rows of ' if indexed else ''}{has.dtype} "
            f"{list(has.shape)}",
            f"an array {dtype} {list(place.table.shape)}, as it was planned",
            "give that, or plan a batch that has the other",
        )

    def _numbers(self, place: _Place, table: Array) -> tuple[Array, Array]:
        """Return a table, and the whole number of each vertex or edge. Raises: PullError.

        The caller may write to it meanwhile: what is checked is a copy, and so is what is used.
        """
        if place.shares:
            table = table.copy()
        new = _taken(table, place.source)
        if not ((new >= place.low) & (new <= place.high)).all():
            each = "edge" if place.pull.of_edges else "vertex"
            check_pulls({place.pull.source: table}, len(table), "plan", each)  # none is below -1
            self._refuse(place, new)
        return table, new

    def _refuse(self, place: _Place, new: Array) -> NoReturn:
        """Say which number does not fit."""
        inputs, batch, k = self._whole, self._batch, place.number
        wrong = int(np.flatnonzero((new < place.low) | (new > place.high))[0])
        number, edge = int(new[wrong]), wrong - batch.num_vertices
        if edge >= 0:
            vertex = int(np.searchsorted(inputs.child_ptr, edge, side="right")) - 1
            refuse_edge(self._reader, k, batch, (vertex, number, int(place.high[wrong])))
        if number < 0 or place.high[wrong] < 0:
            now, then = ("absent", "present") if number < 0 else (number, "absent")
            raise PullError.at(
                "plan",
                f"{place.pull.source!r} of {vertex_name(batch, wrong)} is {now}",
                f"{then}, as it was planned: which vertices have a number decides what runs",
                "plan a batch in which the same vertices have one",
            )
        index = inputs.index.copy()
        index[k] = new
        refuse(self._reader, batch, replace(inputs, index=index), NOT_BOUNDED, wrong)

    def _check_names(self, names: Iterable[object]) -> None:
        """Refuse pulls that the batch does not have. Raises: PullError."""
        for name in names:
            if name not in self._known:
                known = list(self._known)
                expected = f"the batch was planned with {', '.join(known) or 'none'}"
                near = nearest(str(name), known)
                action = f"name one of these, or plan a batch that has it.{near}"
                raise PullError.at("plan", f"a pull {name!r:.60}", expected, action)


def _alike(given: Any, planned: Any) -> bool:
    """Tell whether what is given is an array as it was planned."""
    plain = type(given) is np.ndarray
    return plain and given.shape == planned.shape and given.dtype == planned.dtype


def _given(batch: GraphBatch, pull: Pull) -> Any:
    """Return what a batch gives for a pull; None for what its structure says."""
    return (edge_pulls_of(batch) if pull.of_edges else pulls_of(batch)).get(pull.source)


def _taken(table: Array, source: Array) -> Array:
    """Return the numbers of rows, -1 for none."""
    if len(table) == 0:
        return np.full(len(source), -1, np.int32)
    return np.where(source >= 0, table.take(np.maximum(source, 0)), -1).astype(INT32)


def _source(reader: Reader, k: int, inputs: Inputs, batch: GraphBatch) -> Array:
    """Return for each column of `Inputs.index` which row of a table it has, -1 for none."""
    pull, count = reader.pulls[k], batch.num_vertices
    own = held_index(_given(batch, pull))
    whole = np.full(inputs.index.shape[1], -1, np.int32)
    if pull.of:
        whole[:count] = in_slot(own, edges_in_slot(reader.program, pull, inputs.structure))
    elif pull.edges:
        edges = edges_read(batch, inputs.structure)
        pulled = reader.of_relations[k]
        whole[count:] = rows_of_edges(reader.program, pulled, inputs.structure, own, edges)
    else:
        whole[:count] = own
    return whole


def _bounds(reader: Reader, inputs: Inputs, k: int, source: Array) -> tuple[Array, Array]:
    """Return the least and the largest number that each vertex, and each edge, may have.

    A vertex that has one keeps one; an edge may have one or none.
    """
    count = len(inputs.child_ptr) - 1
    functions = inputs.functions if len(inputs.functions) else np.zeros(count, np.int32)
    low = np.where(inputs.index[k] >= 0, 0, -1)
    has = low == 0
    if len(low) > count:
        parents = np.repeat(np.arange(count), np.diff(inputs.child_ptr))
        functions = np.concatenate([functions, functions[parents]])
        low[count:], has[count:] = -1, source[count:] >= 0
    most = reader.bounds[k][functions]
    high = np.where(has, np.where(most < 0, MOST, most - 1), -1)
    return low.astype(INT32), high.astype(INT32)
