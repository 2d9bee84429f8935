"""Turn a task program into launches: kernels of fused groups, products, sums over rows.

The kernels are text; what calls them is data, rows of a table that the driver reads
(`driver.py`). Nothing of it depends on a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.groups import write_group
from vertexrt.kernels.cuda.rows import PAD, WARP, Location, Rows, Temporary
from vertexrt.kernels.layout import Binding, by_rows, gradients_of

APART = frozenset(("sum_rows", "embed_grad"))  # sums over rows are steps of their own
CHUNKS = 32  # partial sums over rows, at most
ROWS_A_CHUNK = 64
FLOATS = 4  # of 16 bytes
COLUMNS_A_BLOCK = 4 * WARP  # of a sum over rows

# Products of few rows are made by a kernel of ours, independent ones in one launch: up to so
# many rows with 8 or 32 rows a block, and blocks sharing the depth; up to the last bound without,
# where that saves launches; above by cuBLAS.
FEW_ROWS, SHARED_ROWS, MANY_ROWS = 16, 128, 256
BLOCKS = 128  # to aim at: about one for each multiprocessor
CHUNK = 32  # of the depth, see product.cuh; a block takes at least two
TILE = 32  # outputs of a block, see product.cuh
PRODUCT_THREADS = 256
ARRIVED = 1 << 16  # counters of blocks that share a tile, all that a launch may need

# What the grid of a kernel covers.
ROWS, EDGES, FIXED, SEGMENTS, TILES = range(5)
# When it is launched.
ALWAYS, LISTED, CHUNKED = range(3)
# Products: y = x w^T, y = x w, g += d^T x.
PLAIN, TRANSPOSED, OUTER = range(3)
# How the first row of an operand is found.
BY_ROW, BY_EDGE, TEMPORARY, ROW_OR_TEMPORARY = range(4)


NOTHING = Temporary(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How many rows the products of a launch have, and for how many a step is there.

    Attributes:
        per_row, per_edge: the most rows of a product are n * per_row or m * per_edge.
        low, high: the step runs if these are more than `low` and at most `high`.
        rows: of a block.
    """

    per_row: int
    per_edge: int
    low: int
    high: int
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of a kernel of this program.

    Attributes:
        body: its source, named NAME.
        words: what it is given, by name.
        over: what its grid covers.
        each: how much of it a block does; the blocks of the grid where it covers nothing of the
            launch, or tiles; its second extent where it covers segments.
        edges: of a sum over rows: whether the rows are edges.
        tiles: of products.
    """

    body: str
    words: tuple[str, ...]
    over: int
    each: int
    threads: int
    when: int = ALWAYS
    edges: bool = False
    tiles: Tiles | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """The rows of a product's operand: see BY_ROW and its like."""

    word: str
    by: int
    step: int
    start: int = 0
    temporary: Temporary = NOTHING


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product over all rows of a launch: `weight` is [m, k]."""

    form: int
    weight: str
    m: int
    k: int
    edges: bool
    times: int  # rows of the product for each row of the launch
    x: Operand
    y: Operand
    tiles: Tiles | None = None


@dataclass(slots=True)
class Launches:
    """What runs for one row of the launch table.

    Attributes:
        steps: in order.
        lookups: the integer pull of each step that adds to the rows of a table.
        scratch: elements of temporary memory for each row, for each edge, and once.
    """

    steps: list[Kernel | Gemm] = field(default_factory=list)
    lookups: list[int] = field(default_factory=list)
    scratch: tuple[int, int, int] = (0, 0, 0)


class Emitter:
    """The launches of one task program.

    Args:
        vector: elements of 16 bytes.
    """

    def __init__(self, task: TaskProgram, binding: Binding, vector: int) -> None:
        self.task = task
        self.nodes = task.program.nodes
        self.binding = binding
        self.vector = vector
        self.listed = by_rows(task.stage)
        self.launches = Launches()
        self.used = [0, 0, 0]
        self.place: dict[int, Location] = {}

    def emit(self) -> Launches:
        """Return the launches."""
        for i, read in self.task.reads.items():
            whole = self._tensor(i, read.key)
            size = max(self.nodes[i].type.size, 1)
            if read.width != size:
                whole = Location(whole.base, size, whole.row, read.start, read.width)
            self.place[i] = whole
        for i in sorted(self.task.local):
            node = self.nodes[i]
            self.place[i] = self._temporary(node.type.size, node.type.domain == Domain.EDGE)
        matmuls: list[int] = []
        for step in self.task.steps:
            op = "" if isinstance(step, Group) else self.nodes[step.node].op
            if op == "matmul":
                assert not isinstance(step, Group)
                matmuls.append(step.node)
                continue
            self._products(matmuls)
            matmuls = []
            if isinstance(step, Group):
                self._group(step)
            elif op == "sum_rows":
                self._sum_rows(step.node)
            elif op == "embed_grad":
                self._embed_grad(step.node)
            else:
                self._outer(step.node)
        self._products(matmuls)
        rows, edges, once = self.used
        self.launches.scratch = (rows, edges, once)
        return self.launches

    def _temporary(self, size: int, edges: bool) -> Location:
        """Set aside elements for each row (or edge) of a launch."""
        at = Temporary(*self.used)
        size = max(size, 1)
        self.used[1 if edges else 0] += size
        return Location("", size, "local_edge" if edges else "local", temporary=at)

    def _tensor(self, i: int, key: tuple[object, ...]) -> Location:
        node = self.nodes[i]
        row = "edge" if node.type.domain == Domain.EDGE else "row"
        return Location(
            f"tensor_{self.binding.tensors[key]}", max(node.type.size, 1), row, 0, 0, None
        )

    def _gradient(self, name: str) -> str:
        return f"gradient_{self.binding.params[name]}"

    def _group(self, group: Group) -> None:
        for k in group.nodes:
            if k in self.task.homes:
                self.place[k] = self._tensor(k, self.task.homes[k])
        kernel = write_group(
            self.task, group, self.binding, self.vector, self.place, self._temporary
        )
        over = EDGES if kernel.edges else ROWS
        self.launches.steps.append(
            Kernel(kernel.body, kernel.words, over, kernel.rows, kernel.threads)
        )

    # Sums over rows.

    def _sum_rows(self, k: int) -> None:
        """Add up the rows of a value in a fixed order: chunks of rows, then the chunks."""
        (i,) = self.nodes[k].inputs
        place, size = self.place[i], max(self.nodes[i].type.size, 1)
        partial = Temporary(self.used[0], self.used[1], self.used[2])
        self.used[2] += CHUNKS * (-(-size // PAD) * PAD)
        blocks = -(-size // COLUMNS_A_BLOCK)
        edges = place.row in ("edge", "local_edge")
        targets = [self._gradient(name) for name in gradients_of(self.task, k)]
        for second in (False, True):
            t = Rows(1, self.vector)
            names = [t.word(name, "real*") for name in targets]
            part = t.origin(Location("", size, "local", temporary=partial))
            if second:
                t.line(f"add_partial_sums({part}, {size}, (int)a.chunks, [&](int j, real x) {{")
            else:
                where = self._row_pointer(t, place)
                t.line(
                    f"sum_columns({size}, (int)a.{'m' if edges else 'n'}, {where}, {part}, "
                    "[&](int j, real x) {"
                )
            for name in names:
                t.line(f"  {name}[j] += x;")
            t.line("});")
            body = t.plain_kernel(256)
            self.launches.steps.append(
                Kernel(
                    body,
                    tuple(t.words),
                    FIXED,
                    -(-size // 256) if second else blocks,
                    256,
                    CHUNKED if second else ALWAYS,
                    edges,
                )
            )

    def _row_pointer(self, t: Rows, place: Location) -> str:
        """Return a function from the number of a row (or edge) of the launch to its elements."""
        origin = t.origin(place)
        start = f" + {place.start}" if place.start else ""
        number = "i"
        if place.row == "edge":
            number = "(a.elo + i)"
        elif place.row == "row":
            number = "(a.lo + i)"
            if self.listed:
                rows = t.word("rows", "const int*")
                number = f"(a.lo >= 0 ? a.lo + i : {rows}[a.at + i])"
        return (
            "[&](int i) -> const real* { return "
            f"{origin} + (long long){number} * {place.step}{start}; }}"
        )

    def _embed_grad(self, k: int) -> None:
        """Add rows to the rows of a table that were looked up, a block for each of these.

        The host sorts the rows of a launch by what they looked up (`driver.sort_lookups`).
        """
        index, d = self.nodes[k].inputs
        place, size = self.place[d], self.nodes[k].type.shape[1]
        t = Rows(size, self.vector)
        names = [t.word(self._gradient(name), "real*") for name in gradients_of(self.task, k)]
        word, ptr = t.word("segment_word", "const int*"), t.word("segment_ptr", "const int*")
        member = t.word("segment_row", "const int*")
        where = self._row_pointer(t, place)
        width = self.vector if size % self.vector == 0 and place.step % self.vector == 0 else 1
        width = width if place.start % self.vector == 0 else 1
        t.line(
            f"sum_segment<{width}>({size}, {member}, {ptr}[a.first + blockIdx.x], "
            f"{ptr}[a.first + blockIdx.x + 1], {where}, [&](int j, Vec<{width}> x) {{"
        )
        for name in names:
            at = f"{name} + (long long){word}[a.first + blockIdx.x] * {size} + j"
            t.line(f"  add_to<{width}>({at}, x);")
        t.line("});")
        columns = -(-size // (WARP * width))
        self.launches.steps.append(
            Kernel(t.plain_kernel(256), tuple(t.words), SEGMENTS, columns, 256)
        )
        self.launches.lookups.append(self.binding.ints[self.nodes[index]["name"]])

    # Products.

    def _outer(self, k: int) -> None:
        d, x = self.nodes[k].inputs
        m, n = self.nodes[k].type.shape
        kind = self.nodes[d].type
        edges = kind.domain == Domain.EDGE
        times = kind.shape[0] if len(kind.shape) == 2 else 1
        at_d, at_x = self._operand(d), self._operand(x)
        for name in gradients_of(self.task, k):
            self.launches.steps.append(
                Gemm(OUTER, self._gradient(name), m, n, edges, times, at_x, at_d)
            )

    def _products(self, positions: Sequence[int]) -> None:
        """Make products that do not need each other: few rows in one kernel, many by cuBLAS."""
        gemms: list[Gemm] = []
        spread: list[tuple[Location, Location]] = []
        for k in positions:
            node = self.nodes[k]
            if k in self.task.homes:
                self.place[k] = self._tensor(k, self.task.homes[k])
            weight, x = node.inputs
            m, n = self.nodes[weight].type.shape
            at_x, place, packed = self._operand(x), self.place[k], None
            if place.row == "row" and self.listed:
                packed = self._temporary(place.size, False)
                spread.append((packed, place))
            gemms.append(
                Gemm(
                    TRANSPOSED if node["transpose"] else PLAIN,
                    f"param_{self.binding.params[self.nodes[weight]['name']]}",
                    m,
                    n,
                    node.type.domain == Domain.EDGE,
                    node.type.shape[0] if len(node.type.shape) == 2 else 1,
                    at_x,
                    self._at(place, packed),
                )
            )
        per_row = max((g.times for g in gemms if not g.edges), default=0)
        per_edge = max((g.times for g in gemms if g.edges), default=0)
        above, largest = None, 0
        if gemms and self.vector == FLOATS and all(_tiled(g) for g in gemms):
            ranges = [(0, FEW_ROWS, 8), (FEW_ROWS, SHARED_ROWS, 32)]
            if len(gemms) > 1:  # one launch instead of several
                ranges.append((SHARED_ROWS, MANY_ROWS, 32))
            for low, high, rows in ranges:
                tiles = Tiles(per_row, per_edge, low, high, rows)
                kernel, partial = product_kernel(gemms, tiles, Temporary(*self.used))
                self.launches.steps.append(kernel)
                largest = max(largest, partial)
            self.used[2] += largest
            above = Tiles(per_row, per_edge, ranges[-1][1], 1 << 40)
        self.launches.steps += [replace(g, tiles=above) for g in gemms]
        for packed, place in spread:
            self._move(packed, place)

    def _operand(self, k: int) -> Operand:
        """Return where the rows of an operand start, packing those that are not contiguous."""
        place = self.place[k]
        packed = None
        if place.row == "row" and self.listed:
            packed = self._temporary(place.size, False)
            self._move(place, packed)
        return self._at(place, packed)

    def _at(self, place: Location, packed: Location | None) -> Operand:
        if packed is not None:
            assert packed.temporary is not None
            return Operand(place.base, ROW_OR_TEMPORARY, place.step, place.start, packed.temporary)
        if place.temporary is not None:
            return Operand("temporary", TEMPORARY, place.step, place.start, place.temporary)
        by = BY_EDGE if place.row == "edge" else BY_ROW
        return Operand(place.base, by, place.step, place.start)

    def _move(self, source: Location, to: Location) -> None:
        """Copy the rows of a launch that takes a list of rows."""
        size = source.size
        t = Rows(size, self.vector)
        t.open(size)
        aligned = all(
            p.start % self.vector == 0 and p.step % self.vector == 0 for p in (source, to)
        )
        t.read(f"{t.base(source)} + j", aligned)
        assert t.loop is not None
        register = next(iter(t.loop.known.values()))
        t.write(-1, f"{t.base(to)} + j", register, aligned)
        t.close()
        t.word("rows", "const int*")
        body = t.kernel(True)
        self.launches.steps.append(
            Kernel(body, tuple(t.words), ROWS, t.rows, t.threads * t.rows, LISTED)
        )


def _tiled(g: Gemm) -> bool:
    """Tell whether the rows of a product can be copied 16 bytes at a time."""
    return g.m % FLOATS == 0 and g.k % FLOATS == 0 and g.x.start % FLOATS == 0


def splits_of(wide: int, deep: int, tiles: Tiles) -> int:
    """Return how many blocks share the depth of a product, so that the device is busy."""
    if tiles.high > SHARED_ROWS:
        return 1
    row_tiles = 1 if tiles.rows == 8 else 2
    wanted = BLOCKS // (row_tiles * -(-wide // TILE))
    return max(1, min(wanted, deep // (2 * CHUNK)))


def product_kernel(gemms: Sequence[Gemm], tiles: Tiles, partial: Temporary) -> tuple[Kernel, int]:
    """Write independent products as one kernel: each has its range of blocks across the grid.

    Args:
        partial: where blocks that share the depth leave their sums.
    Returns: the kernel, and how many elements it needs there.
    """
    t = Rows(1, FLOATS)
    t.line(f"__shared__ TileMemory<{tiles.rows}> memory;")
    blocks, used, counted = 0, 0, 0
    for g in gemms:
        wide, deep = (g.k, g.m) if g.form == TRANSPOSED else (g.m, g.k)
        splits = splits_of(wide, deep, tiles)
        mine = -(-wide // TILE) * splits
        count = f"(int)a.{'m' if g.edges else 'n'} * {g.times}"
        kind = f"{tiles.rows}, {str(g.form == TRANSPOSED).lower()}, {wide}, {deep}, {splits}"
        weight, x, y = t.word(g.weight, "const real*"), _first(t, g.x), _first(t, g.y)
        left = arrived = "nullptr"
        if splits > 1:
            left = t.origin(Location("", 0, "local", temporary=partial)) + f" + {used}"
            arrived = t.word("arrived", "int*") + f" + {counted}"
            row_tiles = -(-tiles.high // tiles.rows)
            used += row_tiles * mine * tiles.rows * TILE
            counted += row_tiles * (mine // splits)
        block = f"(int)blockIdx.x - {blocks}" if blocks else "(int)blockIdx.x"
        t.line(f"if (blockIdx.x < {blocks + mine}) {{")
        t.line(f"  product_tile<{kind}>(memory, blockIdx.y, {block}, {count},")
        t.line(f"    {x}, {weight}, {y}, {left}, {arrived});")
        t.line("  return;")
        t.line("}")
        blocks += mine
    assert counted <= ARRIVED, f"{counted} tiles of products in a launch"
    body = t.plain_kernel(PRODUCT_THREADS)
    words = tuple(t.words)
    return Kernel(body, words, TILES, blocks, PRODUCT_THREADS, tiles=tiles), used


def _first(t: Rows, operand: Operand) -> str:
    """Return the pointer to the first row of an operand."""
    at = operand.temporary
    start = f" + {operand.start}" if operand.start else ""
    if operand.by == TEMPORARY:
        return t.origin(Location("", 0, "local", temporary=at)) + start
    word = t.word(operand.word, "real*")
    if operand.by == BY_EDGE:
        return f"{word} + a.elo * {operand.step}{start}"
    rows = f"{word} + a.lo * {operand.step}{start}"
    if operand.by == BY_ROW:
        return rows
    packed = t.origin(Location("", 0, "local", temporary=at))
    return f"(a.lo >= 0 ? {rows} : {packed})"


def emit(task: TaskProgram, binding: Binding, vector: int) -> Launches:
    """Write the launches of a task program."""
    return Emitter(task, binding, vector).emit()
