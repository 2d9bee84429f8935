"""Where the weights of the path, and their gradients, lie on chip while a side of it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from vertexrt.errors import NoKernelError, message
from vertexrt.kernels.cuda.rows import Cuts

# As in the CUDA sources; each kernel asserts that they agree.
THREADS = 256  # of a processor
WARPS = THREADS // 32
TILE_ROWS = 8  # that products take at a time
MOST_BLOCKS = 2  # of columns of an operand that a lane holds, where fewer warps share the depth
SHARED_STATE_BYTES = 16768  # of shared memory, in front of what is the path's

MOST_PROCESSORS = 128  # of a group

# Places of gradients that are summed up on chip.
REGISTERS, SHARED = "registers", "shared memory"
# Elements of a thread in shared memory, at most: each tile reads and writes them. Of 32 floats that
# is 64 KiB, or 512 cycles at the 128 bytes that a multiprocessor moves in each.
MOST_SHARED = 32


class FitError(NoKernelError):
    """Weights do not fit on chip.

    Args:
        got, expected: for the text.
        fitting: sizes of larger groups, ascending, in which they fit; rows are padded to 16, so
            that beyond some size more processors take as much of each.
        most: processors that there are.
    """

    def __init__(
        self, got: str, expected: str, fitting: Sequence[int], most: int = MOST_PROCESSORS
    ) -> None:
        self.got, self.expected, self.fitting = got, expected, tuple(fitting)
        within = [size for size in fitting if size <= most]
        action = "take engine='batched'; more processors a group do not help"
        if within:
            action = f"take processors={within[0]}, or engine='batched'"
        super().__init__(message("cuda", got, expected, action))

    def within(self, most: int) -> FitError:
        """Return the same for a device with so many processors."""
        return FitError(self.got, self.expected, self.fitting, most)


@dataclass(frozen=True, slots=True)
class Held:
    """A weight, or the gradient of one, that processors hold while a side of the path runs.

    Attributes:
        word: of the weight or the gradient; pitch: elements of its rows.
        turned: own rows are columns of the weight.
        cuts: where its rows (or columns) are cut in pieces that are shared out evenly.
        deep: elements of an own row.
    """

    word: str
    pitch: int
    turned: bool
    cuts: Cuts
    deep: int

    @property
    def name(self) -> str:
        """Name it in the source."""
        turned = "_turned" if self.turned else ""
        return f"{self.word}{turned}_{'_'.join(map(str, self.cuts))}"

    def rows(self, processors: int) -> int:
        """Return the most rows that a processor owns."""
        return sum(-(-(b - a) // processors) for a, b in pairwise(self.cuts))


def own_range(a: int, b: int, processors: int) -> tuple[str, str]:
    """Return the text of a processor's first element of a piece, and of its end."""
    size = b - a
    if processors == 1:
        return str(a), str(b)
    if size % processors == 0:
        each = size // processors
        return f"{a} + rank * {each}", f"{a} + (rank + 1) * {each}"
    return f"{a} + rank * {size} / {processors}", f"{a} + (rank + 1) * {size} / {processors}"


def own_row(cuts: Cuts, processors: int) -> str:
    """Return the body of a function from own row `q` to the row of the weight, or -1."""
    lines = []
    for a, b in pairwise(cuts):
        first, end = own_range(a, b, processors)
        lines.append(f"if (q < ({end}) - ({first})) return {first} + q;")
        lines.append(f"q -= ({end}) - ({first});")
    return " ".join([*lines, "return -1;"])


@dataclass(frozen=True, slots=True)
class Layout:
    """How a share of a weight lies over the threads: as `Layout` of resident_weights.cuh."""

    rows: int
    deep: int

    @property
    def _wide(self) -> int:
        parts = -(-self.deep // 16)
        wide = WARPS if parts >= WARPS else 1 << (parts.bit_length() - 1)
        while wide > 1 and self._blocks(wide // 2) <= MOST_BLOCKS:
            narrow = wide // 2
            if self._slabs(narrow) * self._blocks(narrow) > self._slabs(wide) * self._blocks(wide):
                break
            wide = narrow
        return wide

    def _blocks(self, wide: int) -> int:
        parts = (self.deep + 15) // 16
        return (parts + wide - 1) // wide

    def _slabs(self, wide: int) -> int:
        parts = (self.rows + 15) // 16
        return (parts * wide + WARPS - 1) // WARPS

    @property
    def elements(self) -> int:
        """Count the elements of a thread."""
        return self._slabs(self._wide) * self._blocks(self._wide) * 8

    @property
    def partial(self) -> int:
        """Count the elements of its partial sums."""
        return TILE_ROWS * self._slabs(self._wide) * WARPS * 16

    @property
    def agrees(self) -> str:
        """Return the text that asserts the same of the kernel's `Layout`."""
        name = f"Layout<{self.rows}, {self.deep}>"
        return (
            f"static_assert({name}::FLOATS == {self.elements} && "
            f'{name}::WIDE * TILE_ROWS * {name}::PADDED == {self.partial}, "as placed");'
        )


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the path, forward or backward.

    Attributes:
        held: weights; in_registers: how many of them, the first ones.
        partial: elements of partial sums.
        shared: bytes of weights in shared memory.
        memory: bytes of weights that each product reads from memory anew (an ablation); then no
            weight is anywhere else.
        sums: gradients that are summed up; sums_in_registers: how many of them, the first ones.
            The others are in shared memory, in `shared` bytes of it as well.
    """

    held: tuple[Held, ...]
    in_registers: int
    partial: int
    shared: int
    memory: int = 0
    sums: tuple[Held, ...] = ()
    sums_in_registers: int = 0


def place_weights(
    held: Sequence[Held],
    partial: int,
    processors: int,
    itemsize: int,
    shared_bytes: int,
    registers: int,
    hold: bool = True,
) -> Side:
    """Say where the weights of one side of the path lie: in registers, then in shared memory.

    Args:
        partial: elements of partial sums that products need.
        shared_bytes: of a processor.
        registers: of a thread that may hold weights.
        hold: False to leave all weights in memory.
    Raises: FitError, when they do not fit.
    """
    if not hold:
        size = _bytes(held, processors, itemsize)
        return Side(tuple(held), 0, partial, 0, size)
    room = max(shared_bytes - SHARED_STATE_BYTES - partial * itemsize, 0)
    kept, shared = _in_registers(held, processors, itemsize, registers)
    size = _bytes(shared, processors, itemsize)
    if size > room:
        larger = range(processors + 1, MOST_PROCESSORS + 1)
        fitting = [
            n
            for n in larger
            if _bytes(_in_registers(held, n, itemsize, registers)[1], n, itemsize) <= room
        ]
        total = _bytes(held, processors, itemsize)
        plain = sum(h.rows(processors) * h.deep for h in held) * itemsize
        raise FitError(
            f"the weights of the path take {total / 1024:,.0f} KiB of each of {processors} "
            f"processor{'s' if processors > 1 else ''}, {(total - plain) / 1024:,.0f} KiB of it "
            "padding to tiles of 16 by 16",
            f"each weight whole in {registers * THREADS * 4 / 1024:,.0f} KiB of registers or "
            f"{room / 1024:,.0f} KiB of shared memory",
            fitting,
        )
    return Side((*kept, *shared), len(kept), partial, size)


def _bytes(held: Sequence[Held], processors: int, itemsize: int) -> int:
    """Count the bytes that weights take of a processor."""
    layouts = [Layout(h.rows(processors), h.deep) for h in held]
    return sum(x.elements for x in layouts) * THREADS * itemsize


def _in_registers(
    held: Sequence[Held], processors: int, itemsize: int, registers: int
) -> tuple[list[Held], list[Held]]:
    """Share weights out, in order: those for which registers are left, and the others."""
    kept: list[Held] = []
    shared: list[Held] = []
    for h in held:
        need = Layout(h.rows(processors), h.deep).elements * (itemsize // 4)
        (kept if need <= registers else shared).append(h)
        registers -= need if need <= registers else 0
    return kept, shared


def place_gradients(
    side: Side,
    gradients: Sequence[Held],
    places: Collection[str],
    processors: int,
    itemsize: int,
    room: int,
    registers: int,
) -> Side:
    """Say which gradients are summed up on chip, and where: weights have had their places before.

    Args:
        side: the backward one; gradients: of weights that the path multiplies by.
        places: REGISTERS, SHARED, both or none.
        room: bytes of shared memory that nothing else wants.
        registers: of a thread that may hold weights and gradients.
    Returns: the side with those that have a place; the others stay behind the path.
    """
    words = itemsize // 4
    layouts = {h: Layout(h.rows(processors), h.deep) for h in (*side.held, *gradients)}
    taken = sum(layouts[h].elements for h in side.held[: side.in_registers]) * words
    left = registers - taken if REGISTERS in places else 0
    each = MOST_SHARED if SHARED in places else 0
    kept, shared = [], []
    for h in gradients:
        need = layouts[h].elements
        if need * words <= left:
            kept.append(h)
            left -= need * words
        elif need <= each and need * THREADS * itemsize <= room:
            shared.append(h)
            each -= need
            room -= need * THREADS * itemsize
    size = sum(layouts[h].elements for h in shared) * THREADS * itemsize
    return replace(
        side,
        shared=side.shared + size,
        sums=(*kept, *shared),
        sums_in_registers=len(kept),
    )
