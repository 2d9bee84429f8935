"""The records of what a GPU launches for a task program: kernels, and calls of a library.

A step is one kernel, and works on all rows of a launch. Blocks that share a sum leave partial sums,
and the last of them, by a counter, adds these up in order. Which of the forms of a product runs
depends on how many rows there are:

    kernel of products, 1 block of 256 threads across, 1 to 16 rows:
      blocks 0:1: temporary 0[local][0:24] = tensor 23[row][0:8] param 2 [24, 8]^T, rows
    cuBLAS, weight [24, 8], rows, above 128 rows:
      temporary 0[local][0:24] = tensor 23[row][0:8] param 2 [24, 8]^T, rows

Which forms there are is decided where launches are lowered for a device; `verify_launches` checks
that every number of rows has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from vertexrt.errors import number_of
from vertexrt.lower.kernel import (
    MatrixProduct,
    Operand,
    Outer,
    Temporary,
    ValuePlace,
    register_name,
)
from vertexrt.lower.threads import ElementStatement, ThreadKernel


@dataclass(frozen=True, slots=True)
class ChildRows:
    """The children's rows of a tensor, or the rows of the edges to them.

    Attributes:
        listed: a launch may have a list of rows, whose children these are.
    """

    tensor: int
    slot: int
    listed: bool = False

    def __str__(self) -> str:
        return f"tensor {self.tensor}[child in slot {self.slot}]"


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a table that an integer pull names."""

    param: int
    pull: int

    def __str__(self) -> str:
        return f"param {self.param}[pull {self.pull}]"


@dataclass(frozen=True, slots=True)
class RowsGiven:
    """The rows of a pull of real numbers."""

    pull: int

    def __str__(self) -> str:
        return f"rows of pull {self.pull}"


@dataclass(frozen=True, slots=True)
class FinishedRows:
    """What a group makes of a product, element by element: the product's is in a register.

    Attributes:
        listed: a launch may have a list of rows.
    """

    register: int
    statements: tuple[ElementStatement, ...]
    listed: bool

    def __str__(self) -> str:
        statements = "; ".join(map(str, self.statements))
        return f"{statements}; where {register_name(self.register)}"


Gathered = ChildRows | TableRows | RowsGiven  # what is read where it lies
Finished = ChildRows | FinishedRows  # what a product writes in place of a group


@dataclass(frozen=True, slots=True)
class CopiedProduct:
    """A product, and what groups copy for it, which some forms of it do themselves.

    Attributes:
        gathered, finished: what is read instead of its operand, and written instead of its result.
    """

    product: MatrixProduct
    gathered: Gathered | None = None
    finished: Finished | None = None

    @property
    def source(self) -> Operand | Gathered:
        """What is read."""
        return self.gathered or self.product.x

    @property
    def target(self) -> Operand | Finished:
        """What is written."""
        return self.finished or self.product.y

    def __str__(self) -> str:
        return f"{self.target} = {self.source} {self.product.weight}, {self.product.counted}"


EVERYTHING = 1 << 40  # rows that no launch has


@dataclass(frozen=True, slots=True)
class RowRange:
    """For which launches a step is there: with more than `low` rows of products, at most `high`.

    Attributes:
        per_row, per_edge: these rows are the most of n * per_row and m * per_edge, for n rows and
            m edges of the launch.
    """

    per_row: int
    per_edge: int
    low: int = 0
    high: int = EVERYTHING

    def __str__(self) -> str:
        if self.high < EVERYTHING:
            return f", {self.low + 1} to {self.high} rows"
        return f", above {self.low} rows" if self.low else ""

    def rows(self, n: int, m: int) -> int:
        """Return the rows of the products of a launch of n rows and m edges."""
        return max(n * self.per_row, m * self.per_edge)


def _where(rows: RowRange | None) -> str:
    return "" if rows is None else str(rows)


def _blocks(count: int, threads: int) -> str:
    return f"{number_of(count, 'block')} of {threads} threads"


def _at_once(width: int) -> str:
    return f", {width} at a time" if width > 1 else ""


def _added(params: Sequence[int], what: object) -> str:
    return f"{', '.join(f'gradient {k}' for k in params)} += {what}"


# Steps.


@dataclass(frozen=True, slots=True)
class GroupLaunch:
    """A kernel over the rows (or edges) of a launch.

    Attributes:
        only_listed: it runs where a launch takes a list of rows; else they are contiguous.
        rows: None for any number of rows.
    """

    kernel: ThreadKernel
    only_listed: bool = False
    rows: RowRange | None = None

    def __str__(self) -> str:
        first, *rest = str(self.kernel).splitlines()
        listed = ", where rows are listed" if self.only_listed else ""
        how = f"{first.removesuffix(':')}, {self.kernel.rows} a block{listed}{_where(self.rows)}"
        return "\n".join([f"kernel {how}:", *rest])


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """One of the products of a launch, and its range of blocks across the grid.

    Attributes:
        splits: blocks that share the depth of a tile. They leave partial sums, and a counter for
            each tile counts those that are done: both begin after so many others of the launch.
        width: elements that are loaded at once.
    """

    of: CopiedProduct
    first: int
    blocks: int
    splits: int = 1
    partial: int = 0
    counter: int = 0
    width: int = 1

    def __str__(self) -> str:
        text = f"blocks {self.first}:{self.first + self.blocks}: {self.of}{_at_once(self.width)}"
        if self.splits == 1:
            return text
        at = f"partial sums from {self.partial}, counters from {self.counter}"
        return f"{text}; {self.splits} share the depth, {at}"


@dataclass(frozen=True, slots=True)
class FewRowsProducts:
    """One kernel for products that do not need each other: a block makes a tile of one of them.

    Attributes:
        tile_rows, tile_columns: of a block's tile.
        warp_columns: that a warp makes; 0: a block makes its tile with all its threads.
        partial: where blocks that share the depth leave their sums; elements: of these.
    """

    parts: tuple[BlockProduct, ...]
    rows: RowRange
    tile_rows: int
    tile_columns: int
    warp_columns: int
    threads: int
    partial: Temporary
    elements: int

    @property
    def counters(self) -> int:
        """Return how many counters the tiles need whose depth blocks share."""
        row_tiles = -(-self.rows.high // self.tile_rows)
        shared = [part for part in self.parts if part.splits > 1]
        return max((p.counter + row_tiles * (p.blocks // p.splits) for p in shared), default=0)

    @property
    def across(self) -> int:
        """Return the blocks across the grid."""
        return sum(part.blocks for part in self.parts)

    def __str__(self) -> str:
        how = f", tiles of {self.tile_rows} rows"
        if self.warp_columns:
            how = f", {self.warp_columns} columns a warp"
        blocks = _blocks(self.across, self.threads)
        title = f"kernel of products, {blocks} across{self.rows}{how}:"
        return "\n  ".join([title, *map(str, self.parts)])


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """A kernel for one product, or a gradient: tiles, or of short results a row for each warp.

    Attributes:
        across: tiles for `tile_rows` rows; of a gradient all.
        tile: elements of one.
        width: elements that are loaded at once.
        splits: blocks that share the depth of a tile; of a gradient, whose depth are rows, at most.
        partial: where several leave their sums.
    """

    product: MatrixProduct | Outer
    rows: RowRange
    across: int
    tile_rows: int
    tile: int
    threads: int
    width: int
    splits: int
    partial: Temporary
    is_short: bool = False

    @property
    def end(self) -> Temporary:
        """Return where the partial sums end."""
        p, (rows, edges, once) = self.product, astuple(self.partial)
        if self.splits == 1:
            return self.partial
        left = self.across * self.splits * self.tile
        each = 0 if isinstance(p, Outer) else left // self.tile_rows * p.each
        # The last tile may have fewer rows.
        return Temporary(rows + each * (not p.edges), edges + each * p.edges, once + left)

    def __str__(self) -> str:
        how = f"tiles of {self.tile_rows} rows{_at_once(self.width)}"
        how = "a warp a row" if self.is_short else how
        blocks = _blocks(self.across * self.splits, self.threads)
        title = f"kernel of products, {blocks} across{self.rows}, {how}"
        if self.splits > 1:
            title += f", {self.splits} share the depth"
        return f"{title}:\n  {self.product}"


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """A call of cuBLAS, or several where very many rows are summed up.

    On a Hopper GPU a kernel of ours makes those that fill it: it is known at the launch, by the
    number of rows (`kernels/cuda/driver.py`).
    """

    product: MatrixProduct | Outer
    rows: RowRange | None = None

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """Return x, and y or d."""
        p = self.product
        return p.x, p.d if isinstance(p, Outer) else p.y

    def __str__(self) -> str:
        p = self.product
        return f"cuBLAS, weight [{p.m}, {p.n}], {p.counted}{_where(self.rows)}:\n  {p}"


@dataclass(frozen=True, slots=True)
class RowSum:
    """The sum of the rows of a value, in chunks.

    Attributes:
        params: to whose gradients it is added.
        listed: a launch may have a list of rows.
        partial: where chunks leave their sums; elements: of these.
        across: blocks of a chunk.
    """

    source: ValuePlace
    edges: bool
    params: tuple[int, ...]
    listed: bool
    partial: Temporary
    elements: int
    across: int
    threads: int

    def __str__(self) -> str:
        blocks = _blocks(self.across, self.threads)
        title = f"kernel, sums chunks of {'edges' if self.edges else 'rows'}, {blocks} for each"
        return f"{title}:\n  {_added(self.params, self.source)}"


@dataclass(frozen=True, slots=True)
class LookupSum:
    """Sums of the rows of a value by what they looked up: a block for each row of the tables.

    Attributes:
        pull: that names it, one of each edge or of each row; params: tables to whose gradients a
            sum is added.
        listed: a launch may have a list of rows.
        width: elements that are loaded at once; down: blocks for the elements of a row.
    """

    source: ValuePlace
    params: tuple[int, ...]
    pull: int
    edges: bool
    listed: bool
    width: int
    down: int
    threads: int

    def __str__(self) -> str:
        blocks = f"blocks of {self.threads} threads for each row that was looked up"
        added = _added(self.params, self.source)
        return f"kernel, {blocks}{_at_once(self.width)}:\n  by pull {self.pull}: {added}"


LaunchStep = GroupLaunch | FewRowsProducts | TiledProduct | LibraryProduct | RowSum | LookupSum


def title_of(step: LaunchStep) -> str:
    """Say in a line what a step is."""
    return str(step).splitlines()[0].removesuffix(":")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What one row of the launch table launches.

    Attributes:
        listed: launches may take a list of rows.
        temporaries: by number.
        needs: elements of temporary memory for each row, for each edge (both rounded up to PAD),
            and once.
    """

    steps: tuple[LaunchStep, ...] = ()
    listed: bool = False
    temporaries: tuple[Temporary, ...] = ()
    needs: tuple[int, int, int] = (0, 0, 0)

    def __str__(self) -> str:
        rows, edges, once = self.needs
        title = f"temporaries: {rows} elements a row, {edges} an edge, {once} once"
        return "\n".join([title, *map(str, self.steps)])
