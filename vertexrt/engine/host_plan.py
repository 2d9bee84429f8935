"""Planned runs in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vertexrt.engine.batched import BoundRun, Jobs, Run, Worker, bind, make_jobs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.outputs import chosen_rows, outputs_of
from vertexrt.engine.planned import NewPulls, PlanRequest
from vertexrt.graph.device_rows import refuse_device_rows

Array = np.ndarray[Any, Any]


class CallsJobs(Protocol):
    """What does jobs: the executor of the host."""

    model: CompiledModel

    def call(self, jobs: Sequence[Jobs]) -> None:
        """Do jobs at once, the first in this thread."""


class HostPlan:
    """Runs whose kernels are bound to arrays of their own: a request writes pulls and calls them.

    Args:
        executor: calls them.
        request: what is planned.
    """

    def __init__(self, executor: CallsJobs, request: PlanRequest) -> None:
        self.outputs = request.outputs
        self._executor, self._runs = executor, request.runs
        self._chosen = chosen_rows(request.runs, request.vertices)
        self._bound = [self._bind(run) for run in request.runs]
        self._own: dict[int, Array] = {}  # tables of real pulls that were given, by number

    def _bind(self, run: Run) -> BoundRun:
        model = self._executor.model
        worker = Worker(model.store.gradients)
        return bind(run, model.store, worker, model.param_at, run.forward())

    def forward(self, new: NewPulls, seed: int) -> dict[str, Any]:
        """Write real pulls, call the kernels, copy what they pushed."""
        for number, table in new.reals:
            self._put(number, table)
        for bound in self._bound:
            bound.buffers.random_seed = seed
        jobs = [make_jobs(bound) for bound in self._bound]
        self._executor.call(jobs)
        arenas = [job.arena for job in jobs]
        return {name: outputs_of(self._runs, arenas, name, self._chosen) for name in self.outputs}

    def _put(self, number: int, table: Any) -> None:
        """Copy a table to where kernels read it: the first one that is given, to a new array."""
        refuse_device_rows([table])
        own = self._own.get(number)
        if own is None:
            own = np.empty(table.size, self._executor.model.store.dtype)
            self._own[number] = own
            for run, bound in zip(self._runs, self._bound, strict=True):
                floats = list(run.inputs.floats)
                floats[number] = own
                run.inputs.floats = bound.buffers.floats = tuple(floats)
                bound.buffers.kept = None
        np.copyto(own.reshape(table.shape), table, casting="same_kind")
