"""Passes whose pushes and gradients stay in the memory of a GPU, and are waited for by nobody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vertexrt.engine.batched import Destination, Part, RowCopies, Run
from vertexrt.engine.results import (
    Gradients,
    LaunchesHere,
    PulledRows,
    PushPlaces,
    PushRows,
    WayBack,
    pulled_rows,
    table_of,
)
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.ir.program import Pull
from vertexrt.kernels.cuda.device import no_memory
from vertexrt.kernels.cuda.session import Session

Array = np.ndarray[Any, Any]


class LaunchesOnDevice(LaunchesHere, Protocol):
    """What launches: the executor of a GPU."""

    session: Session


def new_arrays(
    session: Session, run: Run, wanted: Sequence[PushRows]
) -> tuple[Destination, list[Any]]:
    """Allocate an array for each push that is wanted of a run; return where they go, and these."""
    if not wanted:
        return Destination(), []
    places = PushPlaces.of(run, wanted)
    made = [session.device.empty(shape, session.dtype) for shape in places.shapes]
    copies = RowCopies(places.places, [at for _, at in made])
    return Destination(copies=copies, rows=places.rows), [array for array, _ in made]


class DeviceResults:
    """PassResults are arrays of the device: CuPy's, on a GPU."""

    def __init__(self, executor: LaunchesOnDevice) -> None:
        self._executor = executor

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return an array of the device."""
        like, dtype = self._executor.session.device.arrays(), self._executor.session.dtype
        try:
            if given is None:
                return like.zeros(shape, dtype)
            return like.ascontiguousarray(like.asarray(given, dtype))
        except MemoryError as error:  # CuPy's is one
            raise no_memory(f"an array {list(shape)} ({error})") from None

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return new arrays of the pushes."""
        (run,), (part,) = runs, parts
        to, found = new_arrays(self._executor.session, run, wanted)
        self._executor.launch_between(run, part._replace(to=to))
        return found

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients of the store on the host stay as they are."""
        try:
            return self._backward(way)
        except MemoryError as error:
            raise no_memory(f"arrays of gradients ({error})") from None

    def _backward(self, way: WayBack) -> Gradients:
        (run,) = way.runs
        seeds = [
            given if way.scale == 1.0 else given * way.scale for given in way.d_outputs.values()
        ]
        part = Part(
            run.layout.backward,
            1.0,
            way.seed,
            tuple(DeviceRows.of(given.reshape(-1)) for given in seeds),
        )
        arena = self._executor.launch_between(run, part)
        found = self._gradients(run, way.sparse)
        for name in way.pulls:
            found.pulled[name] = self._pulled(way, run, arena, name)
        return found

    def _gradients(self, run: Run, sparse: bool) -> Gradients:
        """Return copies of the gradients of parameters."""
        model, session = self._executor.model, self._executor.session
        store, like = model.store, session.device.arrays()
        live = self._executor.gradients_here()
        if not sparse:
            whole = live.copy()
            return Gradients({name: self._of(whole, name) for name in store.trained}, {})
        dense = live[: store.dense_size].copy()
        names = [name for name in store.trained if name not in store.sparse]
        rows = {}
        for name, touched in model.touched(run).items():
            at = like.asarray(touched.astype(np.int64))
            rows[name] = (at, self._of(live, name)[at])
        return Gradients({name: self._of(dense, name) for name in names}, {}, rows)

    def _of(self, flat: Any, name: str) -> Any:
        """Return a parameter's part of an array in the store's layout."""
        store = self._executor.model.store
        shape, start = store.shapes[name], store.offsets[name]
        return flat[start : start + math.prod(shape)].reshape(shape)

    def _pulled(self, way: WayBack, run: Run, arena: Any, name: str) -> Any:
        """Return the gradient of a pull, added up over the vertices (or edges) that pulled it."""
        like = self._executor.session.device.arrays()
        pulls = run.variant.program.pulls_from(name)
        table, _ = table_of(way.batch, pulls[0])
        out = like.zeros(table.shape, self._executor.session.dtype)
        for pull in pulls:
            self._add_pulled(run, arena, pull, pulled_rows(way.batch, run, pull), out)
        return out

    def _add_pulled(self, run: Run, arena: Any, pull: Pull, rows: PulledRows, out: Any) -> None:
        """Add what one pull has to the gradient of what the batch gives for it."""
        like = self._executor.session.device.arrays()
        tensors, key, (to, at) = run.variant.table, ("pull_grad", pull.name), rows
        if key not in tensors.numbers or not len(to):
            return
        number = tensors.numbers[key]
        start, size = int(run.layout.plan.base[number]), tensors.specs[number].size
        given = arena[start : start + (int(at.max()) + 1) * size].reshape(-1, size)
        found = given.take(like.asarray(at), axis=0).reshape(len(at), *out.shape[1:])
        if np.max(np.bincount(to)) == 1:  # each row has one
            out[like.asarray(to)] += found
        else:
            like.add.at(out, like.asarray(to), found)
