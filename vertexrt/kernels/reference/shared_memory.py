"""Memory that interpreted processors share: who wrote and read each element, in which order.

An element that no wait has brought to a processor reads as NaN, and two accesses that no wait puts
in order are an error when one of them writes.

Source: the clocks are those of a race detector (Fidge 1988, Mattern 1989).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vertexrt.errors import DeviceError, message
from vertexrt.kernels.layout import Array
from vertexrt.script.isa import Instruction, describe

Tile = tuple[int, ...]  # program, first row, first entry of the list, rows
EVERYTHING_BEFORE = -1  # writer of what was in memory before the run


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

    def load(self, at: Array, processor: Processor) -> Array:
        """Return elements, NaN where no wait has brought them to the processor."""
        self.read[processor.number, at] = processor.instruction
        writer = self.writer[at]
        known = (writer == EVERYTHING_BEFORE) | (writer == processor.number)
        known |= self.written[at] < processor.clock[writer]
        return np.where(known, self.array[at], np.array(np.nan, self.array.dtype))

    def store(self, at: Array, value: Array, processor: Processor) -> None:
        """Set elements.

        Raises: DeviceError, when another processor wrote or read one and nothing says in which
            order.
        """
        writer = self.writer[at]
        others = (writer != EVERYTHING_BEFORE) & (writer != processor.number)
        if np.any(others & (self.written[at] >= processor.clock[writer])):
            other = int(writer[others & (self.written[at] >= processor.clock[writer])][0])
            raise _race(processor, other, "written")
        for other in range(len(self.read)):
            if other != processor.number and np.any(self.read[other, at] >= processor.clock[other]):
                raise _race(processor, other, "read")
        self.array[at] = value
        self.writer[at] = processor.number
        self.written[at] = processor.instruction


@dataclass(slots=True)
class Processor:
    """Where one processor is.

    Attributes:
        instruction: the one that it runs or waits at.
        clock: [processors] how many instructions of each are known to be done.
        kept: by where their temporaries start, the tiles under way and what it has of each.
    """

    number: int
    script: list[Instruction]
    names: list[str]
    clock: Array
    instruction: int = 0
    kept: dict[int, tuple[Tile, dict[int, Array]]] = field(default_factory=dict)

    @property
    def values(self) -> dict[int, Array]:
        """Return what it has of the tile in hand."""
        return self.kept[self.script[self.instruction].temporary][1]

    def where(self) -> str:
        """Name processor and instruction, for messages."""
        line = describe(self.script[self.instruction], self.names)
        return f"processor {self.number}, instruction {self.instruction} ({line})"


def _race(processor: Processor, other: int, verb: str) -> DeviceError:
    return DeviceError(
        message(
            "interpreter",
            f"{processor.where()} writes what processor {other} has {verb}, in no order",
            "a wait between two processors that share elements",
            "report this as a bug; engine='batched' goes on",
        )
    )
