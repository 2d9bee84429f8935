"""A compiled vertex function on a device: parameters, moments and arena live there.

The store's arrays on the host are a copy. It is filled when the caller asks for parameters or an
optimizer's state, and goes back to the device before the next step, since the caller may have
written to it. A step is launched and not waited for: its loss is, when it is read (VPPS, section
III-C1; its call returns that of the step before). A plan has its run to itself, ready to be
launched again.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.batched import Destination, Part, Run
from vertexrt.engine.diagnose import Attempt
from vertexrt.engine.executor import (
    Arenas,
    Planned,
    Pushed,
    Request,
    Trainer,
    loss_scale,
    step_with_host_update,
)
from vertexrt.engine.lazy import NOTHING, Loss, Outputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.results import PushPlaces, PushRows
from vertexrt.engine.shared_step import step_in_group
from vertexrt.engine.update import Outcome, Update
from vertexrt.engine.variant import ending_with
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.device import Allocation, Array, Device, InAChild, no_memory
from vertexrt.kernels.cuda.device_group import DeviceGroup, DeviceGroups
from vertexrt.kernels.cuda.device_memory import ReadyRun, UploadSlot
from vertexrt.kernels.cuda.explain import DeviceExplanation
from vertexrt.kernels.cuda.finish_step import update_apart
from vertexrt.kernels.cuda.flights import Commit, Flight, Flights, GroupSteps, Landing
from vertexrt.kernels.cuda.persistent_launch import PersistentLaunch
from vertexrt.kernels.cuda.ready_runs import (
    PLANNED,
    change,
    keep_upload,
    launch_watched,
    ready_again,
    ready_scripts,
    ready_table,
)
from vertexrt.kernels.cuda.session import DeviceArena, Session
from vertexrt.kernels.cuda.step_end import NORM, REFUSED, StepEnd, ending_of
from vertexrt.kernels.cuda.streams import Streams
from vertexrt.locks import share

DONE = Outcome(True)
LEAST_GIVEN = 1 << 17  # bytes: a copy of less takes no longer than memory of its own
MOST_GIVEN = 1 << 26  # bytes that results hold at a time; more are copied


class CudaExecutor:
    """Runs the batches of a model on a device; see the module."""

    on_host = False

    def __init__(self, model: CompiledModel, device: Device) -> None:
        self.model = model
        store = model.store
        poisons = config().check
        self.session = Session(device, store, model.param_at, poisons)
        count = model.passes.streams
        self.streams = Streams(self.session, count) if count > 1 else None
        self.persistent_launch = PersistentLaunch(self.session)
        self._given = GivenResults(device)
        self._groups, self._group_steps = DeviceGroups(device), GroupSteps(self)
        self.flights = Flights(self)
        self.land_all = self.flights.land_all  # before anything else is asked for
        store.on_refresh, store.on_write = self.to_host, self.session.written
        self._gradients_left = False  # on the device, of a run without an update
        self._calls = 0  # evaluations that were launched
        self._launching = False  # a run; where an exception has ended that, it stays
        self._own_update = False  # a step with an update of the user's own is under way
        self.failures: list[DeviceError] = []  # of launches that gave up
        self.lock: Any = threading.RLock()
        share(self)

    def explanation(self) -> DeviceExplanation:
        """Return what `explain` asks of a GPU."""
        return DeviceExplanation(self.persistent_launch, self.streams)

    def after_fork(self) -> None:
        """Refuse every use."""
        self.lock = InAChild()

    def to_host(self) -> None:
        """Bring parameters and moments to the host, where they may be changed."""
        self.land_all()
        self.session.to_host()

    def share_values(self) -> Any:
        """Return the parameters on the device, [total], which others may write to from now on."""
        self.before_launch()
        self.session.shared = True
        return self.session.device.array(self.session.values, self.session.dtype)

    def launch(self, runs: Sequence[Run], parts: Sequence[Part]) -> list[Array]:
        """Run a part of a batch's launches; the arrays that it returns copy what is read."""
        self.before_launch()
        (run,) = runs
        slot = self._launch(run, parts[0], None)
        if run.configuration.persistent:
            self.session.device.wait(slot.event)
            self.look()
        if self._own_update:
            self.session.host_newer = True  # from now on
        return [DeviceArena(self.session)]  # type: ignore[list-item]

    def arrays(self) -> Any:
        """Return CuPy."""
        return self.session.device.arrays()

    def no_memory(self, what: str) -> DeviceError:
        """Return what is raised where there is no memory for arrays."""
        return no_memory(what)

    def gradients_here(self) -> Any:
        """Return the gradients on the device."""
        return self.session.device.array(self.session.gradients, self.session.dtype)

    def launch_between(self, run: Run, part: Part, stream: int | None = None) -> Any:
        """Run launches on the caller's stream; do not wait.

        It may read the arena and the gradients; what is asked for next comes after that, since the
        stream stays in use until another takes its place.
        """
        device = self.session.device
        caller = device.caller() if stream is None else stream
        self.before_launch(caller)
        if self.session.gave_up[0]:
            self.look()
        slot = self._launch_now(run, part)
        if slot is not None:
            self.session.uploaded(slot)
        device.lead_caller(caller)
        return self.session.arena_here()

    def look(self, known: int | None = None) -> None:
        """Raise DeviceError, if a launch that is over has given up: the device has told the host.

        Args:
            known: how many failures were when it was launched; a later one may be its own.
        """
        if known is not None and len(self.failures) > known:
            raise self.failures[known]
        if not self.session.gave_up[0]:
            return
        self.session.memory.synchronize()
        self.failures.append(self.persistent_launch.failure())
        self.session.forgive()
        self.session.memory.era += 1
        self._gradients_left = True
        raise self.failures[-1]

    def push(
        self,
        runs: Sequence[Run],
        parts: Sequence[Part],
        names: Sequence[str],
        vertices: npt.NDArray[np.int64] | None = None,
        stays: bool = False,
    ) -> Outputs:
        """Launch; what is pushed comes after it, and is read when asked for."""
        (run,), (part,) = runs, parts
        if not stays:
            self.before_launch()
        left = leave(self.session, run, names, vertices, stays)
        launches, scale, seed, d_pushes, seed_rows, _, reals = part
        part = Part(launches, scale, seed, d_pushes, seed_rows, left.to, reals)
        if stays:
            self.launch_between(run, part)
            return Outputs(left.arrays)
        given = self._given.take(left.size)
        slot = self._launch(run, part, None, left.size, given)
        known = len(self.failures)
        self._calls += 1
        number = self._calls

        def wait() -> Pushed:
            self.session.device.wait(slot.event)
            if run.configuration.persistent:
                try:
                    self.look(known)
                except DeviceError as error:  # it may be read much later
                    raise DeviceError(f"{error} It was found in call {number}.") from None
            if given is not None:
                return left.read(given, self.session.dtype, given=True)
            return left.read(slot.results, self.session.dtype)

        found = Outputs(None, wait, self.lock)
        slot.reader = found.settle
        return found

    def plan(self, runs: Sequence[Run], call: Request) -> Planned:
        """Keep what a run reads on the device, and give it an arena of its own.

        A request copies to the device what is new of the pulls, and launches.
        """
        self.before_launch()
        session, (run,) = self.session, runs
        session.device.follow_caller()  # its work may still read the memory that is taken now
        run.kept = {PLANNED: True}
        places = PushPlaces.of(run, [PushRows(name, call.vertices) for name in call.outputs])
        before = session.arena
        try:
            session.arena = Allocation()
            session.take_arena(run)
            ready = self.ready(run, run.forward()._replace(to=Destination(rows=places.rows)))
            arena = session.arena
        finally:
            session.arena = before
        if ready.slot is not None:
            session.uploaded(ready.slot)

        def launch(new: Sequence[int], seed: int) -> Pushed:
            if new:
                change(run, new)
            part, before = run.forward(seed), session.arena
            try:
                session.arena = arena
                return self.push(runs, [part], call.outputs, call.vertices, call.stays)._read()
            finally:
                session.arena = before

        return launch

    def before_launch(self, stream: int | None = None) -> None:
        """Look at the steps that have been launched, and bring parameters to the device.

        Args:
            stream: of a caller, on which the launch is to be; by default the device's own.
        """
        self.session.device.use(stream)
        self.land_all()
        if self.session.host_newer:
            self.session.to_device()

    @property
    def arenas(self) -> Arenas:
        """The arena of runs."""
        return [self.session.arena]

    def use_arenas(self, arenas: Arenas | None = None) -> None:
        """Let runs have another arena."""
        self.land_all()
        self.session.memory.synchronize()  # nothing computes in the other any more
        self.session.arena = arenas[0] if arenas else Allocation()

    def begin_gradients(self, runs: Sequence[Run]) -> None:
        """Note the rows that a step touches; the gradients are zero by then."""
        self.model.store.touched.update(self.model.touched(runs[0]))

    def collect_gradients(self) -> None:
        """Bring the gradients to the host."""
        self.session.memory.download(self.model.store.gradients, self.session.gradients.address)

    def apply_update(self, update: Update) -> Outcome:
        """Update parameters on the device, by the gradients of the store, and wait."""
        self.session.device.use()
        self.land_all()
        if self.session.shared:
            self.session.device.follow_caller()
        self.prepare_update(update.moments)
        self._gradients_left = True
        found = update_apart(self.session, self.model.store, update, partial(self.begin, update))
        self.flights.settle()
        if found[REFUSED]:
            self.to_host()  # to say what was refused
        return Outcome(not found[REFUSED], float(found[NORM]))

    def begin(self, update: Update, end: StepEnd) -> Commit:
        """Note an update that is launched next: it counts when the device has done it."""
        self._own_update, self.session.device_newer = False, True
        self.flights.begun = commit = Commit(update.counts, end)
        return commit

    def _launch(
        self,
        run: Run,
        part: Part,
        ending: StepEnd | None,
        size: int = 0,
        given: Array | None = None,
    ) -> UploadSlot:
        """Upload and launch, in the order of the caller's stream where it has lent memory.

        Args:
            size: bytes of rows that the launch copies on their way to the host.
            given: memory that these are brought to; None for that of the slot.
        """
        lent = run.inputs.lent or self.session.shared or bool(part.to.places and not size)
        if lent:
            self.session.device.follow_caller()
        slot = self._launch_now(run, part, ending)
        if lent:
            self.session.device.lead_caller()
        slot = slot or self.session.buffers.next()
        own = slot.results
        if given is not None:
            # What had this memory before may be on its way to the device by a caller's copy.
            self.session.device.follow_caller()
            slot.results = given
        self.session.bring(slot, ending is not None and not ending.told, size)
        if given is not None:
            slot.results = own
        return slot

    def _launch_now(self, run: Run, part: Part, ending: StepEnd | None = None) -> UploadSlot | None:
        """Upload and launch; return what was uploaded from, if anything was."""
        session, left = self.session, self._gradients_left
        if self._launching:  # an exception has ended the last one, nobody knows where
            session.memory.synchronize()
            session.memory.era += 1
        self._launching = self._gradients_left = True
        if part.to.gradients:
            session.device.clear(part.to.gradients, session.gradients.size)
        elif left:
            session.clear_gradients()
            left = False
        session.take_arena(run)
        if session.memory.poisons:
            # Backward reads what forward left.
            kept = run.layout.plan.temporary if part.launches.start else 0
            session.memory.poison(session.arena, kept * session.dtype.itemsize)
        if self.model.timeline is not None and run.ready.executable is None:
            slot = launch_watched(self.persistent_launch, self.model.timeline, run, part, ending)
        else:
            ready = self.ready(run, part, ending)
            ready.launch(part)
            slot = ready.slot
        if ending is not None:
            left |= bool(ending.groups)  # of parameters that are in none
        elif part.launches.stop is None and not part.to.gradients:
            left |= run.variant.use.backward
        self._gradients_left, self._launching = left, False
        return slot

    def ready(self, run: Run, part: Part, ending: StepEnd | None = None) -> ReadyRun:
        """Upload what a part of a run reads; return what launches it: once, if it is not kept."""
        session, keeps = self.session, run.kept is not None and ending is None
        found = ready_again(session, run, part) if keeps else None
        if found is not None:
            return found
        if run.ready.executable is None:
            made, _ = ready_scripts(self.persistent_launch, run, part, ending)
        else:
            replays = self.model.passes.replay and run.kept is None
            made = ready_table(session, run, part, ending, self.streams, replays)
        if keeps:
            keep_upload(session, run, part, made)
        return made

    def step(self, call: Request) -> Loss:
        """Launch a step; it is waited for where outputs are asked for that are of the host."""
        self.flights.settle()
        try:
            return self._step(call)
        except BaseException:
            with suppress(DeviceError):
                self.flights.settle()  # what the caller can see is whole at once
            raise

    def _step(self, call: Request) -> Loss:
        use, batch, optimizer, seed = call.use, call.batch, call.optimizer, call.seed
        self.session.device.use()
        devices = self._groups.of(call.group) if call.group is not None and call.built_in else None
        if devices is not None:
            return self._step_in_devices(call, devices)
        if call.group is not None or not call.built_in:
            return self._step_by_host(call)
        start = time.perf_counter()
        update = optimizer._next_update(self.model.store, call.draws)
        use = ending_with(use, update.rule_in_step)
        runs = self.model.prepare(use, batch, keeps=False)
        (run,) = runs
        scale = loss_scale(call.reduction, batch, runs)
        self.prepare_update(update.moments)
        ending = ending_of(self.model, run, update, scale)
        left = leave(self.session, run, call.outputs, call.vertices, call.stays)
        part = Part(loss_scale=scale, random_seed=seed, to=left.to)
        attempt = Attempt(use, batch, scale, seed, 1, update)
        commit, prepared = self.begin(update, ending), time.perf_counter()
        slot = self._launch(run, part, ending, left.size)
        if self.model.tuner is not None:
            wait = partial(self.session.device.wait, slot.event)
            self.model.time_runs(use, batch, runs, start, prepared, wait)
        flight = Flight(slot.event, slot.found, attempt, commit)
        self._launched(flight, optimizer, bool(left.shapes))
        return self._loss_of(flight.landing, left.read(slot.results, self.session.dtype))

    def _launched(self, flight: Flight, optimizer: Trainer, wait: bool) -> None:
        """Note a step that was launched: it counts; what was found is looked at when it lands."""
        optimizer._settle(DONE)
        self.flights.add(flight, wait)

    def _loss_of(self, landing: Landing, pushed: Pushed) -> Loss:
        """Return the loss of a step, which waits for it when it is read."""

        def wait() -> float:
            with self.lock:
                return self.flights.loss_of(landing)

        return Loss(landing.loss, Outputs(pushed) if pushed else NOTHING, wait)

    def _step_in_devices(self, call: Request, devices: DeviceGroup) -> Loss:
        """Launch a step of a group whose devices are linked."""
        update = call.optimizer._next_update(self.model.store, call.draws)
        wait = bool(call.outputs) or not devices.group.warm  # which others have to know alike
        flight, pushes = self._group_steps.launch(call, update, devices)
        self._launched(flight, call.optimizer, wait)
        return self._loss_of(flight.landing, pushes.gathered(devices.group))

    def launch_share(self, run: Run, part: Part) -> UploadSlot:
        """Launch a share of a step of a group, whose gradients are alone in the session's."""
        return self._launch(run, part, None)

    def prepare_update(self, moments: Array) -> None:
        """Bring parameters and moments to the device, where an update reads them."""
        self.session.to_device(moments if len(moments) else None)

    def _step_by_host(self, call: Request) -> Loss:
        """Do a step whose update, or whose sum over processes, the host asks for."""
        self.to_host()
        self._own_update = not call.built_in
        try:
            if call.group is not None:
                return step_in_group(self, call)
            return step_with_host_update(self, call)
        finally:
            self.session.host_newer |= self._own_update
            self._own_update = False
            if self.session.shared:
                self.to_host()

    def wait(self) -> None:
        """Wait for all steps."""
        self.land_all()


class GivenResults:
    """Page-locked memory for the results of one request after another, each the caller's from then
    on.

    A copy out of a buffer would take as long as the transfer, and memory that is new to a process
    longer still. Memory that nobody holds any more is the device's again, for later results.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held = 0

    def take(self, size: int) -> Array | None:
        """Return memory of the caller's own: uint8 [size]. None: results are to be copied."""
        if size < LEAST_GIVEN or self._held + size > MOST_GIVEN:
            return None
        room = self._device.pinned(size)
        self._held += size
        weakref.finalize(room, self._let_go, size).atexit = False
        return room

    def _let_go(self, size: int) -> None:
        self._held -= size


Int64 = npt.NDArray[np.int64]


class LeftPushes(NamedTuple):
    """Where the pushes of a run go.

    Attributes:
        to: of `Part`; arrays: of the device, by name, that get them.
        shapes: by name, of those that are brought to the host; size: bytes of all.
    """

    to: Destination
    arrays: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    size: int

    def read(self, results: Array, dtype: npt.DTypeLike, given: bool = False) -> Mapping[str, Any]:
        """Return them, given the bytes of those of the host: a copy, unless these are given."""
        if not self.shapes:
            return self.arrays
        whole = (results if given else results[: self.size].copy()).view(dtype)
        found, first = {}, 0
        for name, shape in self.shapes.items():
            end = first + math.prod(shape)
            found[name], first = whole[first:end].reshape(shape), end
        return found


NONE_LEFT = LeftPushes(Destination(), {}, {}, 0)


def leave(
    session: Session, run: Run, names: Sequence[str], vertices: Int64 | None, stays: bool
) -> LeftPushes:
    """Say where pushes of some vertices go, of all by default.

    Args:
        stays: to new arrays of the device.
    """
    if not names:
        return NONE_LEFT
    wanted, real = [PushRows(name, vertices) for name in names], session.dtype.itemsize
    if stays:
        shapes, rows, places = PushPlaces.of(run, wanted)
        made = [session.device.empty(shape, session.dtype) for shape in shapes]
        to = Destination(0, 0, None, places, [at for _, at in made], rows)
        return LeftPushes(to, {n: array for n, (array, _) in zip(names, made, strict=True)}, {}, 0)

    def find() -> LeftPushes:
        shapes, rows, places = PushPlaces.of(run, wanted)
        starts, size = [], 0
        for shape in shapes:
            starts.append(size)
            size += math.prod(shape) * real
        taken = session.taken = session.memory.grown(session.taken, size)
        to = Destination(0, 0, None, places, [taken.address + at for at in starts], rows)
        return LeftPushes(to, {}, dict(zip(names, shapes, strict=True)), size)

    session.take_arena(run)  # whose error says more
    found = run.once(("left", *names), (vertices, session.taken), find)
    session.memory.scratch(session.taken, found.size)
    return found
