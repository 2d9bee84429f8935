"""How the threads of a processor hold the rows of a weight that are its own."""

from __future__ import annotations

from dataclasses import dataclass

# As in the CUDA sources; each kernel asserts that they agree.
THREADS = 256  # of a processor
WARPS = THREADS // 32
TILE_ROWS = 8  # that products take at a time
MOST_BLOCKS = 2  # of columns of an operand that a lane holds, where fewer warps share the depth
MOST_BLOCKS_OF_FEW = 4  # where no warps share it, or a warp has two slabs
MOST_FOLDS = 8  # parts of the depth below each other, where a processor owns few rows


@dataclass(frozen=True, slots=True)
class Layout:
    """How threads of a processor hold its rows of a weight: `Layout` of resident_weights.cuh."""

    rows: int
    deep: int

    @property
    def fold(self) -> int:
        """Return how many parts of the depth lie below each other."""
        fold = 1
        while 2 * fold <= MOST_FOLDS and self.rows * 2 * fold <= 16:
            if self.deep < 2 * fold * 16 * WARPS:
                break
            fold *= 2
        return fold if fold > 2 else 1  # two parts would take no less than half a slab does

    @property
    def _shape(self) -> tuple[int, int]:
        """Return parts of 16 rows, and of 16 columns."""
        fold = self.fold
        return (1 if fold > 1 else -(-self.rows // 16)), -(-self.deep // (16 * fold))

    @property
    def _wide(self) -> int:
        _, parts = self._shape
        wide = WARPS if parts >= WARPS else 1 << (parts.bit_length() - 1)
        while wide > 1:
            narrow = wide // 2
            few = narrow == 1 or self._slabs(narrow) == 2
            if self._blocks(narrow) > (MOST_BLOCKS_OF_FEW if few else MOST_BLOCKS):
                break
            if self._slabs(narrow) * self._blocks(narrow) > self._slabs(wide) * self._blocks(wide):
                break
            wide = narrow
        return wide

    def _blocks(self, wide: int) -> int:
        return -(-self._shape[1] // wide)

    def _slabs(self, wide: int) -> int:
        return -(-self._shape[0] * wide // WARPS)

    @property
    def elements(self) -> int:
        """Count the elements of a thread."""
        return self._halves * self._blocks(self._wide) * 4

    @property
    def _halves(self) -> int:
        """Count the slabs of 8 rows of a warp."""
        if self.fold == 1 and self._wide == WARPS:
            return -(-self.rows // 8)
        return 2 * self._slabs(self._wide)

    @property
    def partial(self) -> int:
        """Count the elements of its partial sums."""
        if self.fold > 1:
            return TILE_ROWS * self._wide * max(16 // self.fold, 4)
        return TILE_ROWS * self._halves * WARPS * 8

    @property
    def agrees(self) -> str:
        """Return the text that asserts the same of the kernel's `Layout`."""
        name = f"Layout<{self.rows}, {self.deep}>"
        return (
            f"static_assert({name}::FLOATS == {self.elements} && "
            f'{name}::WIDE * TILE_ROWS * {name}::PADDED == {self.partial}, "as placed");'
        )
