"""Turn a task program into launches: kernels of fused groups, products, sums over rows.

The kernels are text; what calls them is data, rows of a table that the driver reads
(`driver.py`). Nothing of it depends on a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.groups import write_group
from vertexrt.kernels.cuda.products import (
    EVERYTHING,
    FEW_ROWS,
    FLOATS,
    MANY_ROWS,
    SHARED_ROWS,
    WARP_ROWS,
    by_warps,
    large_product,
    outer_product,
    product_by_warps,
    product_kernel,
    tiled,
)
from vertexrt.kernels.cuda.rows import WARP, Rows
from vertexrt.kernels.cuda.steps import (
    ALWAYS,
    BY_EDGE,
    BY_ROW,
    CHUNKED,
    CHUNKS,
    EDGES,
    FIXED,
    LISTED,
    OUTER,
    PLAIN,
    ROW_OR_TEMPORARY,
    ROWS,
    SEGMENTS,
    TEMPORARY,
    TRANSPOSED,
    Gemm,
    Kernel,
    Launches,
    Lookup,
    Operand,
    Slot,
    Tiles,
)
from vertexrt.kernels.layout import PAD, Binding, by_rows, edge_key, gradients_of
from vertexrt.kernels.location import Location, Temporary

APART = frozenset(("sum_rows", "embed_grad"))  # sums over rows are steps of their own
COLUMNS_A_BLOCK = 4 * WARP  # of a sum over rows


class Emitter:
    """The launches of one task program.

    Args:
        vector: elements of 16 bytes.
        block: threads of all blocks, 0 for as many as each kernel likes; then products of many rows
            are kernels as well, and not cuBLAS's.
    """

    def __init__(self, task: TaskProgram, binding: Binding, vector: int, block: int = 0) -> None:
        self.task = task
        self.nodes = task.program.nodes
        self.binding = binding
        self.vector = vector
        self.block = block
        self.listed = by_rows(task.stage)
        self.launches = Launches()
        self.used = [0, 0, 0]
        self.place: dict[int, Location] = {}
        self.before: list[Group] = []  # gathers that the next products may read themselves
        self.readers: dict[int, list[int]] = {}
        for k in task.members:
            for i in self.nodes[k].inputs:
                self.readers.setdefault(i, []).append(k)

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
                if self.nodes[step.node].inputs[1] in matmuls:  # which is another launch
                    self._products(matmuls)
                    matmuls = []
                matmuls.append(step.node)
                continue
            if isinstance(step, Group) and self._only_scatters(step, matmuls):
                self._products(matmuls, step)
                matmuls = []
                continue
            self._products(matmuls)
            matmuls = []
            if isinstance(step, Group) and self._only_copies(step):
                self.before.append(step)
            elif isinstance(step, Group):
                self._group(step)
            elif op == "sum_rows":
                self._sum_rows(step.node)
            elif op == "embed_grad":
                self._embed_grad(step.node)
            else:
                self._outer(step.node)
        self._products(matmuls)
        assert not self.before, "a copy for products comes before products"
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

    def _group(self, group: Group, tiles: Tiles | None = None) -> None:
        for k in group.nodes:
            if k in self.task.homes:
                self.place[k] = self._tensor(k, self.task.homes[k])
        kernel = write_group(
            self.task,
            group,
            self.binding,
            self.vector,
            self.place,
            self._temporary,
            self.block,
        )
        over = EDGES if kernel.edges else ROWS
        self.launches.steps.append(
            Kernel(kernel.body, kernel.words, over, kernel.rows, kernel.threads, tiles=tiles)
        )

    # Copies that products of few rows make by themselves.

    def _only_copies(self, group: Group) -> bool:
        """Tell whether a group only copies, for products: rows of children, or of tables."""
        copies = [k for k in group.nodes if k in self.task.local]
        rest = [k for k in group.nodes if k not in copies]
        plain = all(is_free(self.nodes[k]) and k not in self.task.homes for k in rest)
        ops = {"embed"} if self.listed else {"embed", "gather"}
        return bool(copies and plain) and all(
            self.nodes[k].op in ops
            and self.nodes[k].type.domain == Domain.VERTEX
            and all(self.nodes[r].op == "matmul" for r in self.readers[k])
            for k in copies
        )

    def _only_scatters(self, group: Group, products: Sequence[int]) -> bool:
        """Tell whether a group does nothing but copy what products made to edges."""
        return not self.listed and all(
            self.nodes[k].op == "scatter_child"
            and self.nodes[k].inputs[0] in products
            and self.nodes[k].inputs[0] in self.task.local
            and self.readers[self.nodes[k].inputs[0]] == [k]
            for k in group.nodes
        )

    def _slots(
        self, positions: Sequence[int], after: Group | None
    ) -> tuple[dict[int, Slot | Lookup], dict[int, Slot]]:
        """Name what products read and write in place of copies, by value."""
        sources: dict[int, Slot | Lookup] = {}
        targets: dict[int, Slot] = {}
        for group in self.before:
            for k in group.nodes:
                node = self.nodes[k]
                if k not in self.task.local or any(r not in positions for r in self.readers[k]):
                    continue
                if node.op == "embed":
                    table, index = (self.nodes[i] for i in node.inputs)
                    word = f"param_{self.binding.params[table['name']]}"
                    sources[k] = Lookup(word, f"int_{self.binding.ints[index['name']]}")
                else:
                    tensor = self.binding.tensors["state", node["field"]]
                    sources[k] = Slot(f"tensor_{tensor}", node["slot"])
        for k in after.nodes if after is not None else ():
            node = self.nodes[k]
            tensor = self.binding.tensors[edge_key(node["field"], False)]
            targets[node.inputs[0]] = Slot(f"tensor_{tensor}", node["slot"])
        return sources, targets

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
                    adds=True,
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
            f"sum_segment<{width}>({size}, {member}, {ptr}[a.first + VRT_BLOCK.x], "
            f"{ptr}[a.first + VRT_BLOCK.x + 1], {where}, [&](int j, Vec<{width}> x) {{"
        )
        for name in names:
            at = f"{name} + (long long){word}[a.first + VRT_BLOCK.x] * {size} + j"
            t.line(f"  add_to<{width}>({at}, x);")
        t.line("});")
        columns = -(-size // (WARP * width))
        self.launches.steps.append(
            Kernel(t.plain_kernel(256), tuple(t.words), SEGMENTS, columns, 256, adds=True)
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
            self._gemm(Gemm(OUTER, self._gradient(name), m, n, edges, times, at_x, at_d))

    def _gemm(self, g: Gemm) -> None:
        vector = self.vector if self.vector == FLOATS else 1
        if not self.block:
            self.launches.steps.append(g)
        elif g.form == OUTER:
            kernels, partial = outer_product(g, Temporary(*self.used), self.block, vector)
            self.launches.steps += kernels
            self.used[2] += partial
        else:
            self.launches.steps.append(large_product(g, self.block, vector))

    def _products(self, positions: Sequence[int], after: Group | None = None) -> None:
        """Make products that do not need each other: few rows in one kernel, many by cuBLAS.

        Products next to each other depend on each other only where one is the operand of another.

        Args:
            after: copies their results to edges; a kernel of few rows does that itself.
        """
        if not positions:
            return
        sources, targets = self._slots(positions, after)
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
                    gathered=sources.get(x),
                    scattered=targets.get(k),
                )
            )
        per_row = max((g.times for g in gemms if not g.edges), default=0)
        per_edge = max((g.times for g in gemms if g.edges), default=0)
        above, largest = None, 0
        few = self.vector == FLOATS and all(tiled(g) for g in gemms)
        copies = {group: set(group.nodes) & self.task.local for group in self.before}
        early = [g for g in self.before if few and copies[g] <= set(sources)]
        for group in self.before:
            if group not in early:
                self._group(group)
        self.before = []
        if few:
            ranges = [(0, FEW_ROWS, 8), (FEW_ROWS, SHARED_ROWS, 32)]
            if self.block and all(by_warps(g) for g in gemms):
                ranges = [(WARP_ROWS, SHARED_ROWS, 32)]
                tiles = Tiles(per_row, per_edge, 0, WARP_ROWS, WARP_ROWS)
                self.launches.steps.append(product_by_warps(gemms, tiles))
            if len(gemms) > 1:  # one launch instead of several
                ranges.append((SHARED_ROWS, MANY_ROWS, 32))
            for low, high, rows in ranges:
                tiles = Tiles(per_row, per_edge, low, high, rows)
                kernel, partial = product_kernel(gemms, tiles, Temporary(*self.used))
                self.launches.steps.append(kernel)
                largest = max(largest, partial)
            self.used[2] += largest
            above = Tiles(per_row, per_edge, ranges[-1][1], EVERYTHING)
        for group in early:
            self._group(group, above)
        for g in gemms:
            self._gemm(replace(g, tiles=above))
        if after is not None:
            self._group(after, above)
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
        t = Rows(size, self.vector, self.block)
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


def emit(task: TaskProgram, binding: Binding, vector: int, block: int = 0) -> Launches:
    """Write the launches of a task program; see `Emitter`."""
    return Emitter(task, binding, vector, block).emit()
