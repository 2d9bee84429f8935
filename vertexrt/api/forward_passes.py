"""Forward passes that can be gone back through, and whose memory is where.

A run computes in its executor's arenas. When the next run comes, the arenas of a pass that somebody
still holds are set aside, and new ones are taken; they are freed with the pass. So a pass that is
gone back through at once costs nothing, and any number of them may be alive.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.executor import Arenas, Executor, Request
from vertexrt.engine.lazy import Outputs
from vertexrt.engine.results import Gradients, PassResults, WayBack
from vertexrt.engine.variant import Use
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch

Array = np.ndarray[Any, Any]


@dataclass(eq=False, slots=True, weakref_slot=True)
class ForwardPass:
    """A forward pass: what its backward pass takes.

    Attributes:
        seed: of its random draws.
        results: how it goes back.
        reals: of `Part`.
        arenas: what it computed, where that is set aside.
        done: it was gone back through, which overwrites what it computed.
        version: of the parameters.
    """

    batch: GraphBatch
    runs: list[Run]
    use: Use
    seed: int
    results: PassResults
    reals: tuple[Any, ...] | None = None
    arenas: Arenas | None = None
    done: bool = False
    version: int = field(init=False)


class ForwardPasses:
    """The forward passes of a network; whoever calls has its lock."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.on_host = self.on_device = PassResults(executor, stays=False)
        if not executor.on_host:
            self.on_device = PassResults(executor, stays=True)
        self._zero = np.zeros(1, executor.model.store.dtype)
        self.here: weakref.ref[ForwardPass] | None = None  # whose values the arenas have

    def evaluate(self, call: Request, results: PassResults) -> Outputs:
        """Evaluate F on a batch, without a way back."""
        executor, model, use, batch = self._executor, self._executor.model, call.use, call.batch
        if self.here is not None:
            self.make_room()
        start = time.perf_counter()
        runs = model.prepare(use, batch, executor.on_host or results.stays)
        prepared = time.perf_counter()
        found = self._push(call, runs, results)
        if model.tuner is not None and not results.stays:
            model.time_runs(use, batch, runs, start, prepared, found.settle)
        return found

    def begin(self, call: Request, results: PassResults) -> tuple[ForwardPass, Outputs]:
        """Evaluate F on a batch; return the pass, which keeps what the way back needs as long as
        it lives, and what it pushes.
        """
        self.make_room()
        runs = self._executor.model.prepare(call.use, call.batch)
        found = self._push(call, runs, results)
        return self.note(ForwardPass(call.batch, runs, call.use, call.seed, results)), found

    def _push(self, call: Request, runs: Sequence[Run], results: PassResults) -> Outputs:
        zeros, parts = self.no_seeds(call.use), []
        for run in runs:
            parts.append(run.forward(call.seed, zeros))
        return self._executor.push(runs, parts, call.outputs, call.vertices, results.stays)

    def no_seeds(self, use: Use) -> tuple[Array, ...]:
        """Return what stands for the gradients of pushes on the way forward, which reads none."""
        return (self._zero,) * len(use.seeds)

    def note(self, made: ForwardPass) -> ForwardPass:
        """Note a pass that the executor's arenas have now; return it."""
        made.version = self._executor.model.store.versions.item()
        self.here = weakref.ref(made)
        return made

    def make_room(self) -> None:
        """Let another run have the arenas: those of a pass that may still be wanted are kept."""
        made = None if self.here is None else self.here()
        if made is not None:
            made.arenas = self._executor.arenas  # before they are exchanged: a signal may come
            self._executor.use_arenas()
        self.here = None

    def check(self, made: ForwardPass) -> None:
        """Refuse a pass of other parameters. Raises: UsageError."""
        if made.version != self._executor.model.store.versions.item():
            raise UsageError.at(
                "backward",
                "the parameters have changed since that forward pass",
                "gradients of what was computed",
                "call backward before optimizer.step, net.step and net.parameters[name] = array",
            )

    def go_back(
        self, made: ForwardPass, d_outputs: Mapping[str, Array], scale: float, sparse: bool
    ) -> Gradients:
        """Go back through a pass; on the host, its gradients are in the store then, too.

        Args:
            d_outputs: gradients of its pushes; scale: factor of them.
            sparse: return of tables the rows that were looked up.
        """
        self.restore(made)
        pulls = sorted(made.use.pulls)
        way = WayBack(made.batch, made.runs, made.seed, d_outputs, scale, pulls, sparse)
        return made.results.backward(way)

    def restore(self, made: ForwardPass) -> None:
        """Let the executor have the arenas of a pass, which its backward pass then overwrites."""
        made.done = True
        if self.here is None or self.here() is not made:
            self.make_room()
            self._executor.use_arenas(made.arenas)
        self.here = made.arenas = None
