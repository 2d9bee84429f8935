"""A segment of the path while it is written: its text, and what it reads and writes of the ring.

The ring (`ring.py`) has rows of states and operands that processors send each other. Which of them
a segment reads, and when it may send its own, is noted as its groups and products are written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.partial_sums import PartialSums
from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.ring import InRing
from vertexrt.kernels.cuda.row_text import tensor_word
from vertexrt.kernels.cuda.weights import ResidentWeight
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.lower.threads import Cuts, ThreadKernel


class RingUses:
    """What a segment reads and writes of the ring.

    Args:
        rows: what the task has in rows of the ring, by tensor.
        before: values that earlier segments made in parts.
        deferred: of `rows`, what may not be sent before the segment is over.

    Attributes:
        puts: what it writes to the tile's rows; late: of these, by tensor, what is sent when the
            segment is over; gathers: what it reads of children.
        operand: it reads there what an earlier segment has written.
        needs_all: it reads in full what others made in parts and the ring does not have.
        fields: of states that it gathers in full.
    """

    def __init__(
        self,
        task: PathTask,
        rows: Mapping[str, InRing],
        before: Collection[int],
        deferred: Collection[str],
    ) -> None:
        self.task, self.rows, self.before = task, rows, before
        self.deferred = deferred
        self.puts: dict[str, InRing] = {}
        self.late: set[str] = set()
        self.gathers: dict[str, InRing] = {}
        self.operand = self.needs_all = False
        self.fields: set[str] = set()
        self._sent: set[str] = set()  # tensors whose elements are sent as soon as they are made
        self._reads_now = False  # the step that is being written reads rows of the ring

    def new_step(self) -> None:
        """Begin a step: a barrier separates it from the last one."""
        self._reads_now = False

    def put(self, home: ValuePlace) -> InRing | None:
        """Return where elements that are stored in a tensor go in the tile's row of the ring."""
        word = tensor_word(home)
        entry = self.rows.get(word) if home.memory == Memory.TENSOR else None
        if entry is None or home.rows != Rows.ROW:
            return None
        self.puts[word] = entry
        if word in self.deferred:
            self.late.add(word)
        return replace(entry, start=entry.start + home.start)

    @property
    def sent_at_end(self) -> list[InRing]:
        """List what is sent when the segment is over."""
        return [entry for word, entry in self.puts.items() if entry.cuts and word in self.late]

    def sends_at_once(self, tensor: int, threads: int, cuts: Cuts) -> bool:
        """Tell whether elements of a tensor are sent by the threads that make them.

        Args:
            tensor: its number.
            threads: that have neighbouring elements of a row; cuts: of the loop that makes them.
        """
        word = f"tensor_{tensor}"
        entry = self.rows[word]
        if not entry.cuts:
            return False
        each, rest = divmod(cuts[1], self.task.processors) if len(cuts) == 2 else (0, 0)
        alike = each > 0 and rest == 0 and each == threads and each % self.task.vector == 0
        if not alike or word in self.deferred:
            self.late.add(word)  # all of it, then
            return False
        self._sent.add(word)
        if self._reads_now:
            self.late.add(word)
        return True

    def operand_row(self, home: ValuePlace) -> InRing | None:
        """Return where an operand that is stored in a tensor is in the tile's row of the ring."""
        in_tensor = home.memory == Memory.TENSOR
        entry = self.rows.get(tensor_word(home)) if in_tensor else None
        if entry is not None:
            self.operand = True
            self.reads_row()
        return entry

    def reads_row(self) -> None:
        """Note that this step reads rows of the ring.

        Receiving a processor's data implies that it has finished reading its own inputs. So what is
        sent in this step, or was sent before it, has to wait until the segment is over.
        """
        self._reads_now = True
        self.late |= self._sent

    def gathered(self, tensor: int) -> InRing | None:
        """Return where a state of children, read in full, is in a row of the ring."""
        if self.task.plan.task.stage != Stage.PATH:
            return None  # a barrier of all groups is between
        node = self.task.gathers[tensor]
        if node.type.shape == ():
            self.reads_all()
            return None
        self.fields.add(node["field"])
        entry = self.rows.get(f"tensor_{tensor}")
        if entry is None:
            self.reads_all()
        else:
            self.gathers[entry.tensor] = entry
            self.reads_row()
        return entry

    def reads_all(self) -> None:
        """Note that something is read in full that the ring does not have."""
        self.needs_all |= self.task.processors > 1


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """What the groups and products of a segment are written with.

    Attributes:
        by_units: the processors of a group share elements; else each has rows of its own.
        place: where values lie, prefetched ones in shared memory.
        sums: partial sums of products that a group adds up.
    """

    task: PathTask
    ring: RingUses
    by_units: bool
    place: Mapping[int, ValuePlace]
    sums: Mapping[int, PartialSums] = field(default_factory=dict)

    def cuts_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts, () for what every processor makes."""
        return self.task.cuts_of(k) if self.by_units else ()

    def shares_of(self, k: int) -> Cuts:
        """Return the cuts of a value that is made in parts; one processor makes all of each."""
        if self.task.processors == 1:
            return (0, max(self.task.nodes[k].type.size, 1))
        return self.cuts_of(k)


@dataclass(slots=True)
class PathSegment:
    """The text of a segment.

    Attributes:
        ring: what it reads and writes of the ring.
        lines: statements over a tile `a`, temporaries from `temporary` on.
        prefetch: those that copy operands to shared memory, maybe before the segment's barrier.
        words: that they name, with their types.
        scratch: elements of temporaries for each row, for each edge, and once.
        held: weights that it multiplies by; partial: elements of their partial sums.
        kernels: of its groups, in order.
    """

    ring: RingUses
    lines: list[str] = field(default_factory=list)
    prefetch: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    scratch: tuple[int, int, int] = (0, 0, 0)
    held: list[ResidentWeight] = field(default_factory=list)
    partial: int = 0
    kernels: list[ThreadKernel] = field(default_factory=list)
