"""Record what every processor does and when, and write it as a timeline.

The timeline has the Chrome trace format, which Perfetto (https://ui.perfetto.dev) opens: one row a
processor, one slice an instruction, and one for each wait that came before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from vertexrt.errors import UsageError
from vertexrt.ir.program import Stage
from vertexrt.kernels.backend import Processors
from vertexrt.plain_files import write_atomically
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT, decode
from vertexrt.script.shape import Shape

Array = np.ndarray[Any, Any]
Event = dict[str, Any]
MICROSECONDS = 1e6  # in a second: the unit of the format


class Traced(Protocol):
    """What is recorded: a compiled model."""

    timeline: Timeline | None

    @property
    def persistent(self) -> bool: ...


class Special(NamedTuple):
    """An instruction that runs no task program.

    Attributes:
        waits_last: its wait comes after its work.
        then: what goes on until the next instruction, without one of its own; "" for nothing.
    """

    name: str
    waits_last: bool = False
    then: str = ""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What the processors of one group did in one run.

    Attributes:
        run, group: numbers; first: number of the group's first processor.
        stages: [programs].
        script: [processors, instructions, columns].
        parts: [instructions] which segment, or step, of its program each runs.
        waits_for: [instructions] how many processors each waits for, 0 for none.
        times: [processors, instructions, 3] cycles at the start, the end of the wait, the end.
        numbers: [instructions] by which errors name them.
        special: [instructions] what runs no task program, None for others; () for none.
    """

    run: int
    group: int
    first: int
    stages: Array
    script: Array
    parts: Array
    waits_for: Array
    times: Array
    cycles_per_second: float
    numbers: Array
    special: tuple[Special | None, ...] = ()


@dataclass(slots=True)
class Timeline:
    """Records of the runs made while it was on, in order."""

    records: list[GroupRecord] = field(default_factory=list)
    runs: int = 0
    _group: int = 0

    def begin(self) -> None:
        """Count a run: the next records are those of its groups."""
        self.runs += 1
        self._group = 0

    def add(self, processors: Processors, shape: Shape, script: Array) -> Array:
        """Set aside the times of the next group of this run; return them.

        Args:
            script: [processors, instructions, columns].
        """
        members, count = script.shape[:2]
        times = np.zeros((members, count, 3), np.int64)
        first = script[0]  # all of them run the same segments, and wait at the same places
        self.records.append(
            GroupRecord(
                run=self.runs - 1,
                group=self._group,
                first=self._group * members,
                stages=shape.stage,
                script=script,
                parts=first[:, OP] - shape.segment_ptr[first[:, PROGRAM]],
                waits_for=np.where(first[:, WAIT] != NONE, members, 0),
                times=times,
                cycles_per_second=processors.cycles_per_second(),
                numbers=np.arange(count),
            )
        )
        self._group += 1
        return times

    def clear(self) -> None:
        """Forget all runs so far."""
        self.records.clear()
        self.runs = 0

    def events(self) -> list[Event]:
        """Return the slices and the names of the rows, as dictionaries of the Chrome format.

        A slice has its start `ts` and length `dur` in microseconds from the first of all; `tid` is
        the row. Its `args` say run, instruction, program, rows, first row and what it waited for.
        """
        if not self.records:
            return []
        origin = min(int(r.times[:, :1, 0].min(initial=2**62)) for r in self.records)
        rows: set[int] = set()
        found: list[Event] = []
        for record in self.records:
            for r in range(len(record.script)):
                row = record.first + r
                rows.add(row)
                found += _slices(record, r, row, origin)
        names = [
            {
                "name": "thread_name",
                "ph": "M",
                "pid": 0,
                "tid": row,
                "args": {"name": f"processor {row}"},
            }
            for row in sorted(rows)
        ]
        return names + found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to a file, whole or not at all; a link there is replaced.

        Raises: UsageError, when the file cannot be written.
        """
        whole = {"traceEvents": self.events(), "displayTimeUnit": "ns"}
        try:
            write_atomically(Path(path), json.dumps(whole).encode())
        except OSError as error:
            raise UsageError.at(
                "trace",
                f"{path} cannot be written ({error.strerror or error})",
                "expected a file in a folder that exists and has room",
                "Name another file",
            ) from error


def _slices(record: GroupRecord, processor: int, row: int, origin: int) -> list[Event]:
    at = np.round((record.times[processor] - origin) / record.cycles_per_second * MICROSECONDS, 3)
    found: list[Event] = []
    instructions = decode(record.script[processor])
    for k, i in enumerate(instructions):
        start, ready, end = at[k].tolist()
        wait, work = (start, ready), (ready, end)
        number = int(record.numbers[k])
        args: Event = {"run": record.run, "group": record.group, "instruction": number}
        slices = []
        if record.special and (special := record.special[k]):
            name = stage = special.name
            if special.waits_last:
                work, wait = wait, work
            if special.then and k + 1 < len(at):
                slices.append((special.then, special.then, end, float(at[k + 1, 0]), args))
        else:
            stage = Stage(int(record.stages[i.program])).word
            name, first = f"{stage}.{record.parts[k]}", i.first if i.first != NONE else "listed"
            args |= {"program": i.program, "rows": i.rows, "first": first}
        slices.append((name, stage, *work, args))
        threshold = int(record.waits_for[k])
        if threshold:
            args |= {"wait": i.wait, "threshold": threshold}
            whole = "wait" if threshold <= len(record.script) else "wait for all"
            slices.append((whole, "wait", *wait, args))
        for text, kind, begins, ends, about in sorted(slices, key=lambda x: x[2:4]):
            time = {"ts": begins, "dur": round(ends - begins, 3)}
            of = {"name": text, "cat": kind, "ph": "X", "pid": 0, "tid": row}
            found.append({**of, **time, "args": about})
    return found


@contextmanager
def recording(model: Traced, timeline: Timeline | None = None) -> Iterator[Timeline]:
    """Record all runs of a model inside a `with`.

    Args:
        timeline: to go on with; by default a new one.
    Raises: UsageError, where the engine has no processors.
    """
    if not model.persistent:
        raise UsageError.at(
            "trace",
            "the engine is batched or auto, which may run without processors",
            "a network compiled with engine='persistent'",
            "choose that engine (--engine persistent)",
        )
    timeline = timeline or Timeline()
    model.timeline = timeline
    try:
        yield timeline
    finally:
        model.timeline = None
