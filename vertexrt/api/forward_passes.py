"""Forward passes that can be gone back through: whose memory is where, and which one is meant.

A run computes in its executor's arenas. When the next run comes, the arenas of a pass whose outputs
somebody still holds are set aside, and new ones are taken; they are freed with the outputs. So a
pass that is gone back through at once costs nothing, and any number of them may be alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.executor import Arenas, Asked, Executor, loss_scale
from vertexrt.engine.host_results import HostResults
from vertexrt.engine.results import (
    Gradients,
    LossAndGradients,
    LossResults,
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
        version: of the parameters.
        thread: which called it; numbers of threads are given away again.
    """

    batch: GraphBatch
    runs: list[Run]
    use: Use
    seed: int
    results: PassResults
    reals: tuple[Any, ...] | None = None
    arenas: Arenas | None = None
    version: int = field(init=False)
    thread: threading.Thread = field(default_factory=threading.current_thread)


class ForwardOutputs(dict[str, Array]):
    """What `Network.forward(batch, train=True)` returns: pushes by name, of one pass.

    While it lives, `Network.backward(..., of=outputs)` may go back through its pass, once.
    """

    def __init__(self, pushes: Mapping[str, Array], of: ForwardPass) -> None:
        super().__init__(pushes)
        self._pass = of

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the arrays alone: a dict."""
        return dict, (dict(self),)


class ForwardPasses:
    """The forward passes of a network that are alive."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.on_host = HostResults(executor)
        self._zero = np.zeros(1, executor.model.store.dtype)
        self.here: ForwardPass | None = None  # whose values the executor's arenas have
        self._outputs: weakref.ref[ForwardOutputs] | None = None  # of that pass
        self._alive: weakref.WeakSet[ForwardPass] = weakref.WeakSet()  # not gone back through
        self._last: weakref.WeakKeyDictionary[threading.Thread, weakref.ref[ForwardPass]] = (
            weakref.WeakKeyDictionary()
        )
        self._overtaken: set[threading.Thread] = set()  # whose pass another followed

    def run(self, asked: Asked, results: PassResults | None = None) -> ForwardOutputs:
        """Evaluate F on a batch, and keep what the way back needs; return the pushes.

        Args:
            results: how it runs, and where what it gives back lies; by default the host.
        """
        way = self.on_host if results is None else results
        outputs, found = self.begin(asked, [PushRows(name) for name in asked.outputs], way)
        outputs.update(zip(asked.outputs, found, strict=True))
        return outputs

    def evaluate(self, asked: Asked, wanted: Sequence[PushRows], way: PassResults) -> list[Any]:
        """Evaluate F on a batch, without a way back; return what is wanted."""
        return self._run(asked, wanted, way)[1]

    def begin(
        self, asked: Asked, wanted: Sequence[PushRows], way: PassResults
    ) -> tuple[ForwardOutputs, list[Any]]:
        """Evaluate F on a batch, and keep what the way back needs.

        Returns: what keeps it, as long as it lives, and names no push; what is wanted.
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

    def loss(
        self, asked: Asked, reduction: str, sparse: bool, results: LossResults
    ) -> LossAndGradients:
        """Evaluate the loss that `Network.step` minimises; go back from it, if the use says so.

        Args:
            reduction: of the loss.
            sparse: return of tables the rows that were looked up.
            results: how it runs, and where what it gives back lies.
        """
        self.make_room()
        runs = self._executor.model.prepare(asked.use, asked.batch)
        scale = loss_scale(reduction, asked.batch, runs)
        pulls = sorted(asked.use.pulls)
        way = WayBack(asked.batch, runs, asked.seed, {}, scale, pulls, sparse)
        return results.loss(way)

    def note(self, made: ForwardPass) -> ForwardOutputs:
        """Note a pass that the executor's arenas have now; return what keeps it."""
        made.version = self._executor.model.store.versions.item()
        outputs = ForwardOutputs({}, made)
        self.here, self._outputs = made, weakref.ref(outputs)
        self._alive.add(made)
        self._last[made.thread] = weakref.ref(made)
        self._overtaken.discard(made.thread)
        return outputs

    def make_room(self) -> None:
        """Let another run have the arenas: those of a pass that may still be wanted are kept."""
        made = self.here
        if made is None:
            return
        if self._outputs is not None and self._outputs() is not None:
            made.arenas = self._executor.arenas  # before they are exchanged: a signal may come
            self._executor.use_arenas()
        else:
            self._alive.discard(made)
        if made.thread != threading.current_thread():
            self._overtaken.add(made.thread)
        self.here = None

    def keeps(self, outputs: object) -> bool:
        """Tell whether outputs are of a pass that was not gone back through."""
        return self.pass_of(outputs) is not None

    def pass_of(self, outputs: object) -> ForwardPass | None:
        """Return the pass that left outputs; None, if it is no pass of these that is alive."""
        made = outputs._pass if isinstance(outputs, ForwardOutputs) else None
        return made if made in self._alive else None

    def find(
        self, of: Mapping[str, Array] | None, results: PassResults | None = None
    ) -> ForwardPass:
        """Return the pass that `backward` means.

        Args:
            of: outputs of a forward pass; None for the last of this thread.
            results: how it has to have run; by default on the host.
        Raises: UsageError, when there is none, or the parameters are others since.
        """
        made = self._last_pass() if of is None else self._named_pass(of)
        self.check(made, results or self.on_host)
        return made

    def check(self, made: ForwardPass, results: PassResults) -> None:
        """Refuse a pass that ran in another way, or with other parameters. Raises: UsageError."""
        if made.results is not results:
            got = "a forward pass whose arrays are elsewhere"
            action = (
                "net.on_device.backward for net.on_device.forward, net.backward for net.forward"
            )
            _refuse(got, "forward and backward of one of the two", action)
        if made.version != self._executor.model.store.versions.item():
            _refuse(
                "the parameters have changed since that forward pass",
                "gradients of what was computed",
                "call backward before optimizer.step, net.step and net.parameters[name] = array",
            )

    def go_back(
        self,
        made: ForwardPass,
        d_outputs: Mapping[str, Array],
        scale: float,
        sparse: bool,
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
        self._alive.discard(made)
        self._overtaken.discard(made.thread)
        if made is not self.here:
            self.make_room()
            self._executor.use_arenas(made.arenas)
        self.here = made.arenas = None

    def _named_pass(self, of: object) -> ForwardPass:
        if not isinstance(of, ForwardOutputs):
            got = f"of is a {type(of).__name__}"
            _refuse(got, "what forward(batch, train=True) returned", "keep that, and pass it")
        made = self.pass_of(of)
        if made is None:
            got = "a forward pass of another network, or one that was gone back through"
            _refuse(got, "one of this network, once", "call forward(batch, train=True) again")
        return made

    def _own_pass(self, caller: threading.Thread) -> ForwardPass | None:
        """Return the last pass of a thread, if it can be gone back through."""
        last = self._last.get(caller)
        own = None if last is None else last()
        return own if own is not None and own in self._alive else None

    def _last_pass(self) -> ForwardPass:
        """Return the last pass of this thread; else the only one, which is another thread's.

        A thread of autograd may go back through what another has evaluated; but not where threads
        came between each other, since it cannot be known whose pass it means then.
        """
        caller = threading.current_thread()
        lost, own = caller in self._overtaken, self._own_pass(caller)
        if own is not None:
            return own
        alive = [made for made in self._alive if made.thread is not caller]
        if lost or (self._overtaken and alive):
            self._overtaken.discard(caller)
            _refuse(
                "another thread used the network after forward(batch, train=True)",
                "forward and backward of one thread with nothing between them",
                "keep what forward returned, and pass it as backward(..., of=outputs)",
            )
        if len(alive) != 1:
            _refuse(
                "no forward pass to go back through",
                "forward(batch, train=True) just before, or outputs of one that are kept",
                "call it once for each backward",
            )
        return alive[0]


def _refuse(got: str, expected: str, action: str) -> NoReturn:
    raise UsageError.at("backward", got, expected, action)
