"""Steps of processes whose devices are linked: launched, and not waited for.

A step is one sequence on the main stream: the gradients of the shares, packing, the exchange, the
sum, the update. What processes tell each other goes with the gradients, so that the host of none
waits for that of another, and each looks at it when the step lands. What must not be updated is
refused on the devices, by all alike: see `agree` of update.cu.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Destination
from vertexrt.engine.diagnose import Attempt
from vertexrt.engine.executor import Request
from vertexrt.engine.shared_step import (
    SharedPushes,
    SharedWork,
    divide_step,
    refuse_differences,
    total_of,
)
from vertexrt.engine.update import Update, updated_ranges
from vertexrt.errors import DeviceError
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
from vertexrt.kernels.cuda.flights import Flight, LaunchingExecutor
from vertexrt.kernels.cuda.session import DeviceArena
from vertexrt.kernels.cuda.step_end import StepEnd, end_of, starts_and_widths
from vertexrt.parallel.group import ProcessGroup
from vertexrt.parallel.sums import add_in_pairs, parts_over

Array = npt.NDArray[Any]


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
