"""Forward passes that can be gone back through, and whose memory is where.

A run computes in its executor's arenas. When the next run comes, the arenas of a pass that somebody
still holds are set aside, and new ones are taken; they are freed with the pass. So a pass that is
gone back through at once costs nothing, and any number of them may be alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.executor import Arenas, Asked, Executor
from vertexrt.engine.host import HostResults
from vertexrt.engine.results import (
    Gradients,
    PassResults,
    PushRows,
    WayBack,
)
from vertexrt.engine.variant import Use
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch

Array = np.ndarray[Any, Any]


@dataclass(eq=False, slots=True, weakref_slot=True)
class ForwardPass:
    """A forward pass: what its backward pass takes.

    Attributes:
        seed: of its random draws.
        results: how it runs.
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
        self.on_host = HostResults(executor)
        self._zero = np.zeros(1, executor.model.store.dtype)
        self.here: weakref.ref[ForwardPass] | None = None  # whose values the arenas have

    def evaluate(self, asked: Asked, wanted: Sequence[PushRows], way: PassResults) -> list[Any]:
        """Evaluate F on a batch, without a way back; return what is wanted."""
        return self._run(asked, wanted, way)[1]

    def begin(
        self, asked: Asked, wanted: Sequence[PushRows], way: PassResults
    ) -> tuple[ForwardPass, list[Any]]:
        """Evaluate F on a batch; return the pass, which keeps what the way back needs as long as
        it lives, and what is wanted.
        """
        runs, found = self._run(asked, wanted, way)
        return self.note(ForwardPass(asked.batch, runs, asked.use, asked.seed, way)), found

    def _run(
        self, asked: Asked, wanted: Sequence[PushRows], way: PassResults
    ) -> tuple[list[Run], list[Any]]:
        self.make_room()
        runs, zeros = self._executor.model.prepare(asked.use, asked.batch), self.no_seeds(asked.use)
        return runs, way.forward(runs, [run.forward(asked.seed, zeros) for run in runs], wanted)

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
        pulls, reals = sorted(made.use.pulls), made.reals
        way = WayBack(made.batch, made.runs, made.seed, d_outputs, scale, pulls, sparse, reals)
        return made.results.backward(way)

    def restore(self, made: ForwardPass) -> None:
        """Let the executor have the arenas of a pass, which its backward pass then overwrites."""
        made.done = True
        if self.here is None or self.here() is not made:
            self.make_room()
            self._executor.use_arenas(made.arenas)
        self.here = made.arenas = None
