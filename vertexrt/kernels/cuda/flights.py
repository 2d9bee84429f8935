"""Steps that were launched on a device and have not been looked at: they land in order.

A step that is refused on the device has changed nothing, and so have those after it. Whoever asks
for anything else of the device lands all steps first, so that an error is known where it belongs.

A step of processes whose devices are linked is one sequence on the main stream, too: the gradients
of the shares, packing, the exchange, the sum, the update. What processes tell each other goes with
the gradients, so that the host of none waits for that of another, and each looks at it when the
step lands. What must not be updated is refused on the devices, by all alike: see `agree` of
update.cu.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Destination, Part, Run
from vertexrt.engine.diagnose import Attempt, refused_loss, refused_step
from vertexrt.engine.executor import Request
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.shared_step import (
    SharedPushes,
    SharedWork,
    divide_step,
    refuse_differences,
    total_of,
)
from vertexrt.engine.update import Update, updated_ranges
from vertexrt.errors import DeviceError, NumericError, ParallelError, UsageError, VertexrtError
from vertexrt.graph.batch import with_host_pulls
from vertexrt.kernels.cuda.device import address_of
from vertexrt.kernels.cuda.device_group import (
    DeviceFlat,
    DeviceGradients,
    DeviceGroup,
    Packed,
    PackingRoom,
    told_bytes,
)
from vertexrt.kernels.cuda.device_memory import SLOTS, UploadSlot
from vertexrt.kernels.cuda.finish_step import finish_step, make_room
from vertexrt.kernels.cuda.session import DeviceArena, Session
from vertexrt.kernels.cuda.step_end import (
    LOSS,
    NORM,
    REFUSED,
    Found,
    StepEnd,
    end_of,
    starts_and_widths,
)
from vertexrt.kernels.store_update import Counts
from vertexrt.parallel.group import ProcessGroup
from vertexrt.parallel.sums import add_in_pairs, parts_over

Array = npt.NDArray[Any]


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
        shared: of a step of a group: what is special about it.
        landing: where it is told how it has ended.
    """

    event: Any
    found: Found
    attempt: Attempt
    commit: Commit
    shared: SharedFlight | None = None
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


# Steps of processes whose devices are linked.


class SharedFlight(NamedTuple):
    """What is special about a step of a group that was launched.

    Attributes:
        ready: event of this process's own part, before the exchange.
        told: [processes, *] what they told each other, valid when the event has come.
        same: numbers that all must have alike, without that of the parameters.
    """

    devices: DeviceGroup
    ready: Any
    told: Array
    same: tuple[float, ...]

    def wait(self, event: Any) -> None:
        """Wait for the event of the step: for the own part as long as it takes, then for others.

        Raises: ParallelError, when a process is lost; UsageError, where exchanges wait for ever
            because batches, and with them arrays, differ in size.
        """
        group = self.devices.group
        self.devices.wait(self.ready, event, partial(_refuse_differences, group, self.same))
        group.began()

    def loss(self) -> float:
        """Return the loss of the whole batch, and tell the signal of the group.

        Raises: DeviceError, when a launch of another process has given up; UsageError, when
            processes do not have the same.
        """
        group, told = self.devices.group, self.told.tolist()
        others = [rank for rank, each in enumerate(told) if each[0] and rank != group.rank]
        if others:
            raise DeviceError.at(
                "parallel",
                f"a kernel of process {others[0]} gave up waiting",
                "kernels that end; nothing was updated",
                "see the error of that process",
            )
        return total_of(group, [numbers[1:] for numbers in told])


def _refuse_differences(group: ProcessGroup, same: tuple[float, ...]) -> None:
    """Refuse processes that do not have the same, by their hosts. Raises: UsageError."""
    refuse_differences(group.gather(np.array(same)).tolist())


class GroupSteps:
    """Launches steps of groups; see the module."""

    def __init__(self, launches: LaunchingExecutor) -> None:
        self._launches, self._room = launches, PackingRoom(launches.session)

    def launch(
        self, call: Request, update: Update, devices: DeviceGroup
    ) -> tuple[Flight, SharedPushes]:
        """Launch a step; return what lands, and the pushes of this process.

        Raises: PullError, GraphError: in every process alike.
        """
        launches, group = self._launches, devices.group
        model, session = launches.model, launches.session
        signal, group.signal = group.signal, 0  # until this step lands
        start = time.perf_counter()
        work = divide_step(model, call, group)
        if not group.warm:  # a wait on the device may take long until all have compiled
            _refuse_differences(group, work.same)
        # Not by the own shares: processes look at a step alike, and some may have fewer.
        if call.outputs or work.room > SLOTS or model.tuner is not None:
            launches.land_all()  # what follows waits for launches, without a limit
        launches.prepare_update(update.moments)
        slot, rows, end, updated = self._uploaded(group, work, update)
        gradients = DeviceGradients(self._room, model.store, devices, work, rows, signal)
        pushes = SharedPushes(model, call, work)
        packed = self._packed(call, work, gradients, pushes, start)
        total = add_in_pairs(packed, gradients.add)
        ready = session.device.record()  # a new one: a step may raise before the last has landed
        parts = parts_over(group.rank, group.size, total, gradients, group.limit)
        joined = gradients.joined(parts, address_of(slot.results))
        end.tell_to(slot.found, slot.found_at)
        commit = launches.begin(update, end)
        session.launch_each(finish_step(session, end, 0, updated, joined))
        session.bring(slot, not end.told)
        told = slot.results[: told_bytes(group, work)].view(np.float64)
        shared = SharedFlight(devices, ready, told.reshape(group.size, -1), work.same)
        scale = work.part.loss_scale
        attempt = Attempt(call.use, call.batch, scale, call.seed, work.parts, update)
        return Flight(slot.event, slot.found, attempt, commit, shared), pushes

    def _uploaded(
        self, group: ProcessGroup, work: SharedWork, update: Update
    ) -> tuple[UploadSlot, Packed, StepEnd, npt.NDArray[np.int64]]:
        """Upload ranges of rows of tables, and make room for what the step finds.

        Returns: what from; where rows are; how the step ends; the addresses of starts and widths
            of what it updates.
        """
        session, store = self._launches.session, self._launches.model.store
        starts, widths = starts_and_widths(updated_ranges(store, store.sparse, work.rows))
        packed = store.dense_size + np.append(0, np.cumsum(widths))
        end = end_of(store, update, work.rows)
        apart = starts_and_widths(end.ranges) if end.groups else ()
        arrays = starts, packed, widths, *apart
        slot, at = self._room.upload(arrays, told_bytes(group, work))
        make_room(session, end)  # what grows waits for the stream: before it waits for others
        rows = Packed(at[0], at[1], at[2], len(starts), int(packed[-1]))
        return slot, rows, end, np.array(at[3:] or [rows.start, rows.width], np.int64)

    def _packed(
        self,
        call: Request,
        work: SharedWork,
        gradients: DeviceGradients,
        pushes: SharedPushes,
        start: float,
    ) -> Iterator[DeviceFlat]:
        """Launch each share of this process; return its packed gradients.

        Args:
            pushes: get what is pushed and wanted; start: when the host began.
        """
        launches, session = self._launches, self._launches.session
        if not work.own:  # launches clear what is left of gradients, and there is none
            session.clear_gradients()
        for k, (share, (run,)) in enumerate(zip(work.shares, work.own, strict=True)):
            flat, packed = gradients.share(k, True)
            to = Destination(packed=packed)
            prepared = time.perf_counter()
            launched = launches.launch_share(run, work.part._replace(to=to))
            wait = partial(session.device.wait, launched.event)
            launches.model.time_runs(call.use, share.batch, [run], start, prepared, wait)
            pushes.place([run], [DeviceArena(session)])  # type: ignore[list-item]
            yield flat
        for k in range(len(work.own), work.room):  # there are fewer graphs than shares
            yield gradients.nothing(k)
