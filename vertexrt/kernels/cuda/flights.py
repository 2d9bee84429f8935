"""Steps that were launched on a device and have not been looked at: they land in order.

A step that is refused on the device has changed nothing, and so have those after it. Whoever asks
for anything else of the device lands all steps first, so that an error is known where it belongs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from vertexrt.engine.batched import Part, Run
from vertexrt.engine.diagnose import Attempt, refused_loss, refused_step
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.update import Update
from vertexrt.errors import DeviceError, NumericError, ParallelError, UsageError, VertexrtError
from vertexrt.graph.batch import with_host_pulls
from vertexrt.kernels.cuda.device_memory import UploadSlot
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import LOSS, NORM, REFUSED, Found, StepEnd
from vertexrt.kernels.store_update import Counts


class SharedLanding(Protocol):
    """What is special about landing a step of a group: see `group_steps.SharedFlight`."""

    def wait(self, event: Any) -> None:
        """Wait for the event of the step. Raises: ParallelError, when a process is lost."""

    def loss(self) -> float:
        """Return the loss of the whole batch. Raises: see `group_steps.SharedFlight`."""


@dataclass(slots=True)
class Commit:
    """What is counted when the device has done an update.

    Attributes:
        counts: of `Update`; before: what these are until then.
        end: of the step.
    """

    counts: Counts
    end: StepEnd
    before: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.before = tuple([int(each[0]) for each in self.counts])

    def count(self, done: bool) -> None:
        """Count the update if it has been done. It may be said again, where a signal came."""
        for each, before in zip(self.counts, self.before, strict=True):
            each[0] = before + done


@dataclass(slots=True, eq=False)
class Landing:
    """How a step has ended, which its loss is read from: it holds no batch.

    Attributes:
        loss: when it has landed; error: why it was refused.
    """

    loss: float | None = None
    error: VertexrtError | None = None


@dataclass(slots=True)
class Flight:
    """A step that was launched, and what is needed if it was refused.

    Attributes:
        event: comes after the step; found: see `step_end`, valid then.
        shared: of a step of a group.
        landing: where it is told how it has ended.
    """

    event: Any
    found: Found
    attempt: Attempt
    commit: Commit
    shared: SharedLanding | None = None
    landing: Landing = field(default_factory=Landing)


class LaunchingExecutor(Protocol):
    """What a step that was refused, or is of a group, asks of the executor that launches it."""

    model: CompiledModel
    session: Session

    def launch_share(self, run: Run, part: Part) -> UploadSlot:
        """Launch a share, whose gradients are alone in the session's; do not wait for it."""

    def prepare_update(self, moments: Any) -> None:
        """Bring to the device what an update needs."""

    def land_all(self) -> None:
        """Wait for all steps, and look at what they found."""

    def begin(self, update: Update, end: StepEnd) -> Commit:
        """Note an update that is launched next."""

    def look(self) -> None:
        """Raise DeviceError, if a processor gave up waiting."""

    def to_host(self) -> None:
        """Bring parameters and moments to the host."""

    def begin_gradients(self, runs: Sequence[Run]) -> None:
        """Note the rows that a step touches."""


class Flights:
    """The steps of a device that are under way; see the module.

    Attributes:
        under_way: the steps, oldest first.
        begun: an update that is being launched. Where an exception ends that, it stays until it is
            known whether the device has done it: see `settle`.
    """

    def __init__(self, executor: LaunchingExecutor) -> None:
        self._executor = executor
        self.under_way: deque[Flight] = deque()
        self.begun: Commit | None = None
        executor.session.memory.before_waiting = self._wait_for_others

    def settle(self) -> None:
        """Find out whether an update was done whose launch an exception has ended; count it then.

        The device decides: an update is one launch, which leaves what was found.
        """
        begun = self.begun
        if begun is None:
            return
        session = self._executor.session
        session.memory.synchronize()
        begun.count(begun.end.done)
        refused = any(flight.found[REFUSED] for flight in self.under_way)
        if not refused and not session.gave_up[0]:  # else that is said first
            session.clear_found()
        self.begun = None

    def add(self, flight: Flight, wait: bool) -> None:
        """Note a step that was launched; land those before it, and it, where it is waited for."""
        flight.commit.count(True)
        self.under_way.append(flight)
        self.begun = None
        left = 0 if wait else 1
        while len(self.under_way) > left:
            self._land()

    def land_all(self) -> None:
        """Wait for all steps, and look at what they found."""
        if self.begun is not None:
            self.settle()
        while self.under_way:
            self._land()

    def _wait_for(self, flight: Flight) -> None:
        """Wait for a step.

        Raises: ParallelError, UsageError; of the steps that were launched none is left then.
        """
        if flight.shared is None:
            return self._executor.session.device.wait(flight.event)
        try:
            return flight.shared.wait(flight.event)
        except (ParallelError, UsageError):
            self._skip_all()
            self._executor.session.forgive()
            raise

    def _wait_for_others(self) -> None:
        """Wait for steps of groups, with a limit, where the stream would be waited for without."""
        for flight in list(self.under_way):
            if flight.shared is not None:
                self._wait_for(flight)

    def _skip_all(self) -> None:
        """Give up the steps that were launched, and take back those that have changed nothing.

        A step whose exchange was whole has been done, although its error or that of another
        process was found before it was looked at.
        """
        launched = list(self.under_way)
        self.under_way.clear()
        self._executor.session.memory.synchronize()
        for flight in reversed(launched):
            flight.commit.count(flight.commit.end.done)  # else it did not get as far as its update

    def loss_of(self, landing: Landing) -> float:
        """Return the loss of a step, waiting for it. Raises: as `_land`, whenever it is asked."""
        if self.begun is not None:
            self.settle()
        while landing.loss is None and landing in [each.landing for each in self.under_way]:
            self._land()
        if landing.loss is not None:
            return landing.loss
        raise landing.error or DeviceError.at(
            "step",
            "the loss of a step that an exception of the program has ended",
            "a step that was waited for",
            "take another step, and read its loss",
        )

    def _land(self) -> None:
        """Wait for the oldest step and look at what it found.

        Raises: NumericError, when it was refused; the steps after it have changed nothing then.
            Of a step of a group also ParallelError, UsageError and DeviceError.
        """
        launched = list(self.under_way)
        flight = launched[0]
        try:
            self._wait_for(flight)
            if flight.found[REFUSED] or self._executor.session.gave_up[0]:
                raise self._refused(flight)
        except VertexrtError as error:  # it may be a later call that raises it
            said = error
            if isinstance(error, (NumericError, DeviceError)):
                said = type(error)(f"{error} It was found in step {flight.commit.before[0] + 1}.")
            if not self.under_way:  # what came after it was given up, too
                for each in launched:
                    each.landing.error = said
            raise said from None
        shared = flight.shared
        loss = float(flight.found[LOSS]) if shared is None else shared.loss()
        flight.landing.loss = loss
        self.under_way.popleft()

    def _refused(self, flight: Flight) -> NumericError:
        """Skip all steps; return why the oldest was refused. Raises: as `_land`."""
        executor, found = self._executor, flight.found.copy()
        with suppress(ParallelError, UsageError):  # other processes may not have launched these
            for each in list(self.under_way):
                self._wait_for(each)
        self._skip_all()
        executor.look()
        try:
            loss = float(found[LOSS]) if flight.shared is None else flight.shared.loss()
        finally:
            executor.session.forgive()
        executor.to_host()
        model, lent = executor.model, flight.attempt
        host = with_host_pulls(lent.batch, executor.session.memory.download)
        attempt = lent._replace(batch=host)
        if not math.isfinite(loss):
            return NumericError(refused_loss(model, attempt, loss))
        executor.begin_gradients(model.prepare(attempt.use, attempt.batch, keeps=False))
        return NumericError(refused_step(model, attempt, float(found[NORM]), False))
