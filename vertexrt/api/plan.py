"""A batch that is prepared once, and evaluated with other pulled values: `net.plan(batch)`.

Its runs are those of `net(batch)`, pinned: they have their memory to themselves, and each request
reads other pulls into them. Kinds depend on which vertices have a whole number, so these stay, and
what depends on the numbers is left out: equal vertices are not merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vertexrt.api.arguments import check_draw, check_mapping
from vertexrt.engine.batched import Run
from vertexrt.engine.executor import Executor, Planned
from vertexrt.engine.inputs import read_inputs, vertex_name
from vertexrt.engine.kinds import find_kinds
from vertexrt.engine.layouts import is_within
from vertexrt.engine.lazy import Outputs
from vertexrt.errors import PullError, nearest
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.batch import edge_pulls_of, pulls_of, source_of, take_unread, with_values
from vertexrt.graph.device_rows import DeviceRows, on_device
from vertexrt.graph.digest import BatchForm, parts_of_pull
from vertexrt.graph.owned import INT32
from vertexrt.graph.pulls import (
    PullValue,
    check_pulls,
    held_table,
    rows_unchecked,
)

Array = np.ndarray[Any, Any]


class Plan:
    """The structure of a batch, ready to run with other pulls. Made by `Network.plan`.

    Graphs are read, scheduled and laid out once, and the memory of the run is the plan's own; on a
    GPU its indices and scripts are there already, and a request is one launch. So a plan stays
    right whatever else the network runs, and it computes with the parameters as they are at each
    request. Identical vertices are not merged, since which are identical depends on the pulls. Its
    memory is freed with it.

    Attributes:
        pulls: what a request may give, shapes by name.
        outputs: names of the pushes that it returns.
    """

    def __init__(
        self,
        executor: Executor,
        batch: GraphBatch,
        runs: Sequence[Run],
        launch: Planned,
        outputs: tuple[str, ...],
        seed: Callable[[int | None], int],
        convert: Callable[[Any], Any] | None,
    ) -> None:
        self._executor, self._batch, self._runs = executor, batch, runs
        self._launch, self._seed, self._convert = launch, seed, convert
        self._dtype, self._reader = executor.model.store.dtype, runs[0].variant.reader
        of_vertices, of_edges = pulls_of(batch), edge_pulls_of(batch)
        self._tables: dict[str, Any] = {}  # as they were planned
        self._rooms: dict[str, Array] = {}  # of whole numbers, which are copied, and one of none
        for name, value in (*of_vertices.items(), *of_edges.items()):
            table, _ = parts_of_pull(value)
            self._tables[name] = table
            if table.dtype.kind == "i":
                self._rooms[name] = np.append(table, INT32.type(-1))
        self._read: dict[str, list[int]] = {}  # places in `Reader.pulls` of what may be given
        for k, pull in enumerate(self._reader.pulls):
            given = of_edges if pull.of_edges else of_vertices
            if self._reader.is_used[k] and pull.source in given:
                self._read.setdefault(pull.source, []).append(k)
        # Which row each column of the index of a run has is found by reading their numbers.
        rows = {name: np.arange(len(room) - 1, dtype=INT32) for name, room in self._rooms.items()}
        reader = replace(self._reader, bounds=np.full_like(self._reader.bounds, -1))
        numbered = with_tables(batch, rows)
        self._sources = []  # of each run the row that each column of its index has
        for run in runs:
            own = numbered
            if len(runs) > 1:
                own = take_unread(numbered, source_of(run.share.batch)[1])
            read = read_inputs(reader, own, self._dtype, False, run.inputs.structure)
            self._sources.append(read.index)
        self._floats = runs[0].inputs.floats
        self._integers = len(runs[0].inputs.ints)
        self._given: tuple[str, ...] = ()  # by the last request
        self.pulls: dict[str, tuple[int, ...]] = {
            name: tuple(self._tables[name].shape) for name in self._read
        }
        self.outputs = outputs

    def __repr__(self) -> str:
        pulls = ", ".join(f"{name} {list(shape)}" for name, shape in self.pulls.items()) or "none"
        name, device = self._executor.model.function.name, self._executor.model.backend.name
        return f"Plan({name} on {device}; pulls: {pulls}; outputs: {', '.join(self.outputs)})"

    def __call__(
        self, pulls: Mapping[str, Any] | None = None, *, seed: int | None = None
    ) -> Outputs:
        """Evaluate F with other pulled values.

        Args:
            pulls: by name, of vertices or edges, in the shapes of `pulls`; of `Rows`, its
                table. Those left out are as the batch had them. Whole numbers are -1 at the same
                vertices. Real ones may lie on a GPU, for a network that does.
            seed: of what is drawn, from 0 to 2**32 - 1; by default the next of the network's.
        Returns: name -> [V, *shape], or [n, *shape] of the vertices chosen: new arrays, of the kind
            that the plan was made for. Those of NumPy are waited for.
        Raises: PullError, when a pull is unknown or does not fit; the plan is as it was then.
        """
        if seed is not None:
            check_draw("plan", seed)
        given = {} if pulls is None else pulls
        if type(given) is not dict:
            check_mapping("plan", given, PullError)
        with self._executor.lock:
            new = self._take(given) if given or self._given else ()
            found, convert = self._launch(new, self._seed(seed)), self._convert
            if convert is not None:
                found = {name: convert(x) for name, x in found.items()}
            return Outputs(found)

    def _take(self, pulls: Mapping[str, Any]) -> Sequence[int]:
        """Let runs read what is given; return the places of all that is not as it was."""
        tables = {}
        for name, given in pulls.items():
            if name in self._read:
                tables[name] = self._fitting(name, given)
            elif name not in self._tables:
                expected = f"the batch was planned with {', '.join(self._tables) or 'none'}"
                near = nearest(str(name), list(self._tables))
                action = f"name one of these, or plan a batch that has it.{near}"
                raise PullError.at("plan", f"a pull {name!r:.60}", expected, action)
        new: list[int] = []
        floats: list[Any] = list(self._floats)
        numbers, names = [], tuple(tables)
        for name in names if names == self._given else {**tables, **dict.fromkeys(self._given)}:
            places = self._read[name]
            table: Any = tables.get(name)
            new += places
            if name in self._rooms:
                room = self._rooms[name]  # what is checked is a copy
                room[:-1] = self._tables[name] if table is None else table
                numbers += [(k, room) for k in places]
            elif table is not None:
                if type(table) is not DeviceRows:
                    table = np.ascontiguousarray(table, self._dtype).reshape(-1)
                for k in places:
                    floats[k - self._integers] = table
        if numbers:
            self._put(numbers, tables)
        if names != self._given:  # a signal may come before all runs have them
            self._given = (*self._given, *names)
        for run in self._runs:
            run.inputs.floats = tuple(floats)
        self._given = names
        return new

    def _put(self, numbers: Sequence[tuple[int, Array]], tables: Mapping[str, Any]) -> None:
        """Write whole numbers where runs read them, once all are known to fit.

        Args:
            numbers: places in `Reader.pulls`, and what their rows are.
        """
        reader, indices = self._reader, []
        for run, sources in zip(self._runs, self._sources, strict=True):
            now, fits, count = run.inputs.index, True, run.share.batch.num_vertices
            index = now.copy()
            for k, room in numbers:
                row = index[k] = room.take(sources[k])
                either = row[:count] ^ now[k, :count]  # is absent: where this is below 0
                fits &= int(either.min(initial=0)) >= 0
            if not (fits and is_within(index, reader.used, reader.bounds)):
                self._refuse_numbers(tables)
            indices.append(index)
        self._given = (*self._given, *tables)  # a signal may come before all is there
        for run, index in zip(self._runs, indices, strict=True):
            run.inputs.index[:] = index

    def _refuse_numbers(self, tables: Mapping[str, Any]) -> None:
        """Say which whole number does not fit, if one does not; it may be within bounds of some."""
        reader, batch = self._reader, self._batch
        for name in tables.keys() & self._rooms:
            self._checked(name, self._rooms[name][:-1])
        given = self._dtype, False
        then = read_inputs(reader, batch, *given)
        now = read_inputs(reader, with_tables(batch, tables), *given)
        count = batch.num_vertices
        for k, vertex in np.argwhere((now.ints[:, :count] < 0) != (then.ints[:, :count] < 0)):
            number, expected = now.index[k, vertex], "absent"
            if number < 0:
                number, expected = "absent", "present"
            raise PullError.at(
                "plan",
                f"{reader.pulls[k].source!r} of {vertex_name(batch, vertex)} is {number}",
                f"{expected}, as it was planned: which vertices have a number decides what runs",
                "plan a batch in which the same vertices have one",
            )
        find_kinds(self._runs[0].variant, batch, now)

    def _checked(self, name: str, given: Any) -> Any:
        """Return an array of the host for a pull. Raises: PullError."""
        of_edges = self._reader.pulls[self._read[name][0]].of_edges
        count, each = len(self._tables[name]), "edge" if of_edges else "vertex"
        return check_pulls({name: given}, count, "plan", each)[name]

    def _fitting(self, name: str, given: Any) -> Any:
        """Return the table that is given for a pull, as it was planned. Raises: PullError."""
        planned, table = self._tables[name], given
        lent = planned.dtype.kind == "f" and on_device(given)
        if lent:
            rows = DeviceRows.like(given, planned.shape, self._dtype)
            table = rows or DeviceRows.of(given)
        elif type(given) is not np.ndarray or not (
            given.dtype == planned.dtype and given.flags.c_contiguous and given.flags.aligned
        ):
            table = self._checked(name, given)
        indexed, dtype = isinstance(table, Rows), self._dtype if lent else planned.dtype
        has: Any = held_table(table) if indexed else table
        same = has.dtype == dtype or (not lent and has.dtype.kind == dtype.kind)
        if indexed or not same or has.shape != planned.shape:
            if table is given:
                self._checked(name, given)  # whose error says more
            raise PullError.at(
                "plan",
                f"pull {name!r} is {'Rows of ' if indexed else ''}{has.dtype} {list(has.shape)}",
                f"an array {dtype} {list(planned.shape)}, as it was planned",
                "give that, or plan a batch that has the other",
            )
        return has


def with_tables(batch: GraphBatch, tables: Mapping[str, Any]) -> GraphBatch:
    """Return a batch whose pulls all are `Rows` with an index, some of them of other tables.

    So shares of it have whole tables.
    """
    found: list[dict[str, PullValue]] = []
    for pulls in (pulls_of(batch), edge_pulls_of(batch)):
        rows = {name: parts_of_pull(value) for name, value in pulls.items()}
        found.append({n: rows_unchecked(tables.get(n, own), at) for n, (own, at) in rows.items()})
    return with_values(batch, found[0], found[1], BatchForm())
