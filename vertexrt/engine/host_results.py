"""Passes whose pushes and gradients are arrays of the host, copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.engine.batched import Run, rows_of_tensor
from vertexrt.engine.executor import Executor, total_loss
from vertexrt.engine.outputs import chosen_rows, outputs_of
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.part import Part
from vertexrt.engine.results import (
    Gradients,
    LossAndGradients,
    PushRows,
    WayBack,
    pulled_rows,
    table_of,
)
from vertexrt.graph import GraphBatch

Array = np.ndarray[Any, Any]


class HostResults:
    """PassResults are arrays of the host."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return an array of the host."""
        dtype = self._executor.model.store.dtype
        return np.zeros(shape, dtype) if given is None else np.ascontiguousarray(given, dtype)

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return copies of the pushes."""
        arenas = self._executor.launch(runs, parts)
        chosen = {id(push.vertices): chosen_rows(runs, push.vertices) for push in wanted}
        return [outputs_of(runs, arenas, push.name, chosen[id(push.vertices)]) for push in wanted]

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients are in the store then, too."""
        runs, executor = way.runs, self._executor
        touched = executor.begin_gradients(runs)
        arenas = executor.launch(runs, [_part(way, run) for run in runs])
        executor.collect_gradients(touched)
        found = gradients_of(executor.model.store, way.sparse)
        for name in way.pulls:
            found.pulled[name] = _pulled_gradient(way.batch, runs, arenas, name)
        return found

    def loss(self, way: WayBack) -> LossAndGradients:
        """Evaluate the loss, and go back from it; the gradients are in the store then, too."""
        runs, executor = way.runs, self._executor
        store, back = executor.model.store, runs[0].variant.use.backward
        touched = executor.begin_gradients(runs) if back else []
        arenas = executor.launch(
            runs, [Part(loss_scale=way.scale, random_seed=way.seed)] * len(runs)
        )
        loss = np.array(total_loss(runs, arenas) * way.scale, store.dtype)
        if not back:
            return LossAndGradients(loss, None, {}, {})
        executor.collect_gradients(touched)
        looked_up = _looked_up(store, way.sparse)
        flat = store.gradients[: store.dense_size] if looked_up else store.gradients
        pulled = {n: _pulled_gradient(way.batch, runs, arenas, n) for n in way.pulls}
        return LossAndGradients(loss, flat.copy(), looked_up, pulled)


def _part(way: WayBack, run: Run) -> Part:
    """Return the launches of a way back, and what they start from."""
    own = [way.scale * given[run.share.vertices] for given in way.d_outputs.values()]
    seeds = tuple(np.ascontiguousarray(given).reshape(-1) for given in own)
    return Part(run.layout.backward, 1.0, way.seed, seeds)


def gradients_of(store: ParameterStore, sparse: bool) -> Gradients:
    """Return copies of the gradients in a store; none of pulls."""
    looked_up = _looked_up(store, sparse)
    whole = {n: store.gradient(n).copy() for n in store.trained if n not in looked_up}
    return Gradients(whole, {}, looked_up)


def _looked_up(store: ParameterStore, sparse: bool) -> dict[str, tuple[Array, Array]]:
    """Return the rows of tables that have a gradient, and copies of these, if they are wanted."""
    if not sparse:
        return {}
    touched = {name: rows.astype(np.int64) for name, rows in store.touched.items()}
    return {name: (rows, store.gradient(name)[rows]) for name, rows in touched.items()}


def _pulled_gradient(
    batch: GraphBatch, runs: Sequence[Run], arenas: Sequence[Array], name: str
) -> Array:
    """Add up the gradients of pulled values over the vertices (or edges) that pulled them."""
    pulls, tensors = runs[0].variant.program.pulls_from(name), runs[0].variant.table.numbers
    table, _ = table_of(batch, pulls[0])
    out = np.zeros(table.shape, arenas[0].dtype)
    for pull in pulls:
        key = "pull_grad", pull.name
        for run, data in zip(runs, arenas, strict=True):
            to, at = pulled_rows(batch, run, pull)
            if key not in tensors or not len(to):  # it may be younger than the plan of this run
                continue
            found = rows_of_tensor(run, data, key, at)
            np.add.at(out, to, found.reshape(-1, *table.shape[1:]))
    return out
