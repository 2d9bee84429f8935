"""Memory that interpreted processors share: which wrote and read each element, in which order.

An element that no wait has brought to a processor reads as NaN, and two accesses that no wait puts
in order are an error when one of them writes.

Source: the clocks are those of a race detector (Fidge 1988, Mattern 1989).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError
from vertexrt.kernels.layout import Array
from vertexrt.kernels.reference.expressions import Elements
from vertexrt.script.isa import Instruction, describe

Tile = tuple[int, ...]  # program, first row, first entry of the list, rows
EVERYTHING_BEFORE = -1  # writer of what was in memory before the run
ALL = 1 << 40  # more instructions than a script has


class SharedMemory:
    """An array of which every element knows which processor wrote and read it last.

    Attributes:
        writer: [elements] processor, or EVERYTHING_BEFORE; written: its instruction.
        read: [processors, elements] instruction of each processor's last read, -1 for none.
    """

    def __init__(self, array: Array, processors: int) -> None:
        self.array = array
        self.writer = np.full(len(array), EVERYTHING_BEFORE, np.int32)
        self.written = np.zeros(len(array), np.int32)
        self.read = np.full((processors, len(array)), -1, np.int32)

    def of(self, processor: Processor) -> Elements:
        """Return the array as a processor sees it during an instruction.

        Returns: `load` gives NaN where no wait has brought an element to the processor. `store`
            raises DeviceError, when another processor wrote or read an element and nothing says in
            which order.
        """
        known = np.append(processor.clock, ALL)  # the last: of EVERYTHING_BEFORE
        known[processor.number] = ALL
        return Elements(
            partial(self._load, processor, known), partial(self._store, processor, known)
        )

    def _load(self, processor: Processor, known: Array, at: Array) -> Array:
        self.read[processor.number, at] = processor.instruction
        seen = self.written.take(at) < known.take(self.writer.take(at))
        return np.where(seen, self.array.take(at), self.array.dtype.type(np.nan))

    def _store(self, processor: Processor, known: Array, at: Array, value: Any) -> None:
        writer = self.writer.take(at)
        unknown = self.written.take(at) >= known.take(writer)
        if unknown.any():
            raise _race(processor, int(writer[unknown][0]), "written")
        unknown = self.read.take(at.reshape(-1), axis=1) >= known[:-1, None]
        if unknown.any():
            raise _race(processor, int(np.argwhere(unknown)[0, 0]), "read")
        self.array[at] = value
        self.writer[at] = processor.number
        self.written[at] = processor.instruction


@dataclass(slots=True)
class Processor:
    """Where one processor is.

    Attributes:
        instruction: the one that it runs or waits at.
        clock: [processors] how many instructions of each are known to be done.
        temporary: element at which its temporaries start.
        kept: by where their temporaries start from there, the tiles under way.
    """

    number: int
    script: list[Instruction]
    names: list[str]
    clock: Array
    temporary: int
    instruction: int = 0
    kept: dict[int, Tile] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Tell whether it has done all of its script."""
        return self.instruction == len(self.script)

    def where(self) -> str:
        """Name processor and instruction, for messages."""
        line = describe(self.script[self.instruction], self.names)
        return f"processor {self.number}, instruction {self.instruction} ({line})"


def _race(processor: Processor, other: int, verb: str) -> DeviceError:
    return DeviceError.at(
        "interpreter",
        f"{processor.where()} writes what processor {other} has {verb}, in no order",
        "a wait between two processors that share elements",
        "report this as a bug; engine='batched' goes on",
    )
