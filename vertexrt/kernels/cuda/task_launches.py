"""Lower a task program to what it launches: kernels of fused groups, products, sums over rows.

The result is records (`lower.launches`), which `launch_text` prints. It does not depend on a
minibatch: how many rows of products there are is known when a step is launched.

Where a group only gathers rows for products, or only scatters what they make to edges, kernels of
few rows do it themselves: they read the rows of children, of tables or of pulls, and write the rows
of edges. They also make what a group makes of each element of theirs, as a bias and a nonlinearity.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from types import MappingProxyType

from vertexrt.config import config
from vertexrt.ir.ops import OPS, SUMS_OF_ROWS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.thread_groups import (
    SHARED_ELEMENTS,
    GroupContext,
    lower_group,
    row_threads,
    width_of,
)
from vertexrt.kernels.layout import PAD, Binding
from vertexrt.kernels.task_tensors import by_rows, edge_key, gradients_of
from vertexrt.lower.kernel import (
    AddLookups,
    J,
    MatrixProduct,
    Operand,
    Outer,
    PlaceRows,
    ReadElement,
    Step,
    Temporary,
    ValuePlace,
)
from vertexrt.lower.launches import (
    EVERYTHING,
    BlockProduct,
    ChildRows,
    CopiedProduct,
    FewRowsProducts,
    Finished,
    FinishedRows,
    Gathered,
    GroupLaunch,
    LaunchPlan,
    LaunchStep,
    LibraryProduct,
    LookupSum,
    RowRange,
    RowsGiven,
    RowSum,
    TableRows,
    TiledProduct,
)
from vertexrt.lower.lowering import Memories, Shares, ValuePlaces, lower_product
from vertexrt.lower.threads import ElementLoop, StoreElements, ThreadKernel, with_register
from vertexrt.lower.verify import verify_launches

NOTHING: Mapping[int, Finished] = MappingProxyType({})
NO_PLACES: Mapping[int, ValuePlace] = MappingProxyType({})
APART = frozenset(SUMS_OF_ROWS)  # sums over rows are steps of their own


class LaunchLowering:
    """Lowers a task program to its launches, one after the other.

    Args:
        vector: elements of 16 bytes.
        block: threads of all blocks, 0 for as many as suit each kernel. Otherwise products of
            many rows are kernels as well, and not cuBLAS's.
        shared: elements of shared memory that a block may have.
        places: where values lie that the task neither makes room for nor reads (`in_place`).
        processors: that take turns at blocks, where all have so many threads.
    """

    def __init__(
        self,
        task: TaskProgram,
        binding: Binding,
        vector: int,
        block: int = 0,
        shared: int = SHARED_ELEMENTS,
        places: Mapping[int, ValuePlace] = NO_PLACES,
        processors: int = LIMITS.blocks,
    ) -> None:
        self.task, self.nodes = task, task.program.nodes
        self.vector, self.block, self.processors = vector, block, processors if block else 0
        self.listed = by_rows(task.stage)
        self.steps: list[LaunchStep] = []
        self.memories = Memories()
        self.values = ValuePlaces(self.nodes, binding)
        self.place = self.values.place
        self.place |= {i: self.values.stored(i, read) for i, read in task.reads.items()}
        for i in sorted(task.local):
            kind = self.nodes[i].type
            self.place[i] = self.memories.temporary(kind.size, kind.domain == Domain.EDGE)
        self.place |= places
        self.shares = Shares(task, None)
        self.context = GroupContext(self.values, self.memories, vector, block, self.listed, shared)
        self.readers = defaultdict[int, list[int]](list)  # of each value, among what the task makes
        for k in task.members:
            for i in self.nodes[k].inputs:
                self.readers[i].append(k)
        self.before: list[Group] = []  # gathers that the next products may read themselves
        self.products: list[int] = []  # which do not need each other
        self.packed: set[ValuePlace] = set()  # places to which rows of a list have been copied

    def plan(self) -> LaunchPlan:
        """Lower all of it."""
        for step in self.task.steps:
            if isinstance(step, Product) and self.nodes[step.node].op == "matmul":
                # Products next to each other depend on each other only where one is the operand of
                # another.
                if self.nodes[step.node].inputs[1] in self.products:
                    self._products()
                self.products.append(step.node)
            elif isinstance(step, Product):
                self._products()
                op = self.nodes[step.node].op
                if op == "sum_rows":
                    self._row_sum(step.node)
                elif op == "embed_grad":
                    self._lookup_sum(step.node)
                else:
                    self._outers(step.node)
            elif finished := self._finished(step):
                self._products(step, finished)
            else:
                self._products()
                if self._only_gathers(step):
                    self.before.append(step)
                else:
                    self._group(step)
        self._products()
        assert not self.before, "a copy for products comes before products"
        taken, needs = tuple(self.memories.taken), self.memories.elements
        plan = LaunchPlan(tuple(self.steps), self.listed, taken, needs)
        return verify_launches(plan, LIMITS.counters) if config().check else plan

    # What kernels of few rows do in place of groups.

    def _only_gathers(self, group: Group) -> bool:
        """Tell whether a group only copies, for products: rows of children, tables or pulls."""
        local = self.task.local
        return not local.isdisjoint(group.nodes) and all(
            self._is_gathered(k) if k in local else self._is_read_again(k) for k in group.nodes
        )

    def _is_read_again(self, k: int) -> bool:
        """Tell whether a value is a leaf that its readers read where it comes from."""
        return is_free(self.nodes[k]) and k not in self.task.homes

    def _is_gathered(self, k: int) -> bool:
        """Tell whether a value is rows that are copied, and that products alone read."""
        node = self.nodes[k]
        return (
            node.op in ("embed", "pull", "gather")
            and node.type.domain == Domain.VERTEX
            and all(self.nodes[r].op == "matmul" for r in self.readers[k])
        )

    def _gathered(self, k: int) -> Gathered:
        """Return what products read in place of a copy."""
        node, binding = self.nodes[k], self.values.binding
        if node.op == "pull":
            return RowsGiven(binding.floats[node["name"]])
        if node.op == "gather":
            return ChildRows(binding.tensors["state", node["field"]], node["slot"], self.listed)
        table, index = (self.nodes[i]["name"] for i in node.inputs)
        return TableRows(binding.params[table], binding.ints[index])

    def _finished(self, group: Group) -> Mapping[int, Finished]:
        """Return what the products before a group write in its place; nothing for most groups."""
        if not self.listed and all(map(self._only_scatters, group.nodes)):
            tensors, nodes = self.values.binding.tensors, [self.nodes[k] for k in group.nodes]
            keys = [edge_key(n["field"], n["every"]) for n in nodes]
            return {
                n.inputs[0]: ChildRows(tensors[key], n["slot"])
                for n, key in zip(nodes, keys, strict=True)
            }
        if not self._only_finishes(group):
            return {}
        (k,) = self.products
        kernel = self._lowered_group(group)
        (loop,) = kernel.parts
        assert isinstance(loop, ElementLoop), f"{loop} is no loop over elements"
        statements = tuple(with_register(x, self.place[k], k) for x in loop.statements)
        return {k: FinishedRows(k, statements, kernel.listed)}

    def _only_scatters(self, k: int) -> bool:
        """Tell whether an effect copies to edges what one of the products makes for it alone."""
        node = self.nodes[k]
        if node.op != "scatter_child":
            return False
        (i,) = node.inputs
        return i in self.products and i in self.task.local and self.readers[i] == [k]

    def _only_finishes(self, group: Group) -> bool:
        """Tell whether a group makes other elements of those of a product, one by one."""
        local = self.task.local
        if len(self.products) != 1 or self.products[0] not in local:
            return False
        (k,) = self.products
        made = {i for i in group.nodes if not self._is_read_again(i)}
        read, copied = self.readers[k], local.intersection(group.nodes) - made
        alone = bool(read) and made.issuperset(read) and not copied
        return alone and all(self._is_elementwise(i, k) for i in made)

    def _is_elementwise(self, k: int, product: int) -> bool:
        """Tell whether elements of a value follow from a product's at the same places alone."""
        node, row = self.nodes[k], self.nodes[product].type
        read = [self.nodes[i] for i in node.inputs]
        constant = all(x.op == "const" for x in read if x.type.shape == ())
        op = OPS[node.op]
        fits = node.type == row and row.domain == Domain.VERTEX and len(row.shape) == 1
        return constant and op.role == "scalar" and not op.draws and fits

    def _group(self, group: Group, rows: RowRange | None = None) -> None:
        self.steps.append(GroupLaunch(self._lowered_group(group), rows=rows))

    def _lowered_group(self, group: Group) -> ThreadKernel:
        for k in group.nodes:
            if k in self.task.homes:
                self.place[k] = self.values.home(k, self.task.homes[k])
        return lower_group(self.context, group)

    def _lowered(self, k: int) -> Sequence[Step]:
        """Lower a product, or a sum by what was looked up, to the records of every device."""
        return lower_product(k, self.task, self.values, self.shares, self.memories)

    # Sums over rows.

    def _row_sum(self, k: int) -> None:
        place = self.place[self.nodes[k].inputs[0]]
        size, names = place.size, gradients_of(self.task, k)
        step = RowSum(
            place,
            place.rows in (PlaceRows.EDGE, PlaceRows.LOCAL_EDGE),
            tuple(self.values.binding.params[name] for name in names),
            self.listed,
            self.memories.end,
            LIMITS.chunks * (-(-size // PAD) * PAD),
            -(-size // LIMITS.sum_columns),
            LIMITS.sum_threads,
        )
        self.steps.append(step)
        self.memories.once += step.elements

    def _lookup_sum(self, k: int) -> None:
        """Lower sums by what was looked up, which the host sorts (`pack.sort_lookups`)."""
        sums = [x for x in self._lowered(k) if isinstance(x, AddLookups)]
        place, params = sums[0].source, tuple(x.param for x in sums)
        aligned = all(n % self.vector == 0 for n in (place.size, place.step, place.start))
        width = self.vector if aligned else 1
        down, threads = -(-place.size // (WARP * width)), LIMITS.sum_threads
        of = sums[0].pull, sums[0].edges
        step = LookupSum(place, params, *of, self.listed, width, down, threads)
        self.steps.append(step)

    def _outers(self, k: int) -> None:
        outers = [x for x in self._lowered(k) if isinstance(x, Outer)]
        self._pack(outers[0].d)
        self._pack(outers[0].x)
        for p in outers:
            self.steps.append(self._tiled(p) if self.block else LibraryProduct(p))

    def _tiled(self, p: MatrixProduct | Outer, rows: RowRange | None = None) -> TiledProduct:
        given = self.memories.end, self.block, self.vector, self.processors
        step = tiled_product(p, rows, *given)
        self.memories.reach(step.end)
        return step

    # Products.

    def _products(
        self, after: Group | None = None, finished: Mapping[int, Finished] = NOTHING
    ) -> None:
        """Lower products that do not need each other: few rows in one kernel, many one by one with
        copies before and after.

        Args:
            after: copies their results to edges, or finishes them. finished: what a kernel of few
                rows writes itself instead, by product.
        """
        products, self.products = self.products, []
        if not products:
            return
        before, self.before = self.before, []
        copies = [k for group in before for k in group.nodes if k in self.task.local]
        of_products = [k for k in copies if all(r in products for r in self.readers[k])]
        sources, given = {k: self._gathered(k) for k in of_products}, []
        for k in products:
            (product,) = self._lowered(k)
            assert isinstance(product, MatrixProduct), f"%{k} is lowered to {product}"
            self._pack(product.x)
            source = sources.get(self.nodes[k].inputs[1])
            given.append(CopiedProduct(product, source, finished.get(k)))
        # No kernel of few rows has a short result and rows that are no whole vectors.
        odd = any(is_short(p.product) and not is_tiled(p.product) for p in given)
        few = self.vector == FLOATS and not odd
        # Groups some of whose copies products do not read themselves come first.
        read = {*sources} if few else set()
        left = [x for x in before if self.task.local.intersection(x.nodes) <= read]
        for group in before:
            if group not in left:
                self._group(group)
        above = None
        if few:
            steps = few_rows_products(given, self.memories.end, self.processors)
            self.steps += steps
            self.memories.once += max(step.elements for step in steps)
            last = steps[-1].rows
            above = RowRange(last.per_row, last.per_edge, last.high)
        for group in left:
            self._group(group, above)
        for p in given:
            self.steps += self._many_rows(p.product, above)
        if after is not None:
            self._group(after, above)
        for p in given:  # copy rows to where they are not contiguous
            y = p.product.y
            if y.packed is not None:
                self.packed.add(y.packed)
                self._move(y.packed, y.place)

    def _many_rows(self, p: MatrixProduct, rows: RowRange | None) -> list[LaunchStep]:
        """Lower a product of many rows, or of any number where it has no form of few."""
        if self.block:
            return [self._tiled(p, rows)]
        if rows is not None or not is_short(p):
            return [LibraryProduct(p, rows)]
        few = replace(all_rows(p), high=LIMITS.shared_rows)
        above = replace(few, low=few.high, high=EVERYTHING)
        short = tiled_product(p, few, self.memories.end, LIMITS.product_threads, self.vector)
        return [short, LibraryProduct(p, above)]

    def _pack(self, operand: Operand) -> None:
        """Copy rows that are not contiguous to where they are, once."""
        if operand.packed is not None and operand.packed not in self.packed:
            self.packed.add(operand.packed)
            self._move(operand.place, operand.packed)

    def _move(self, source: ValuePlace, to: ValuePlace) -> None:
        """Copy the rows of a launch that takes a list of rows."""
        store = StoreElements(to, ReadElement(source, J))
        loop = ElementLoop(source.size, 1, (), (store,))
        loop = replace(loop, width=width_of(loop, self.vector))
        threads, rows = row_threads(source.size, self.vector, self.block)
        kernel = ThreadKernel(threads, rows, 0, 0, False, True, (loop,))
        self.steps.append(GroupLaunch(kernel, only_listed=True))


FLOATS = 4  # of 16 bytes
MOST_TURNS = 2  # in which the processors of a persistent kernel take the blocks of few rows


def is_tiled(p: MatrixProduct | Outer) -> bool:
    """Tell whether the rows of a product can be copied 16 bytes at a time."""
    return p.m % FLOATS == 0 and p.n % FLOATS == 0 and p.x.place.start % FLOATS == 0


def all_rows(*products: MatrixProduct | Outer) -> RowRange:
    """Return that a step with products is there for any number of rows."""
    per_row, per_edge = (
        max((p.each for p in products if p.edges == edges), default=0) for edges in (False, True)
    )
    return RowRange(per_row, per_edge)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """A form of a kernel for few rows.

    Attributes:
        low, high: for which numbers of rows; rows, columns: of the tile of a block.
        down: tiles of rows, at most, where blocks share the depth.
        blocks: most that share the depth, as far as it is too much for one.
        turns: most in which processors take the blocks, where a deep product is done sooner so.
    """

    low: int
    high: int
    rows: int
    columns: int
    blocks: int
    down: int = 1
    warp_columns: int = 0
    turns: int = 1


def few_rows_products(
    products: Sequence[CopiedProduct], partial: Temporary, processors: int = 0
) -> list[FewRowsProducts]:
    """Choose the kernels of independent products of few rows, each for a range of rows.

    Args:
        partial: where blocks that share the depth leave their sums.
        processors: of a persistent kernel, on which blocks take turns; of the fewest rows a warp
            makes columns, if it can. 0: blocks run side by side.
    """
    forms = _of_processors(products, processors) if processors else _of_launches(products)
    return [_few_rows(products, form, partial) for form in forms]


def _of_launches(products: Sequence[CopiedProduct]) -> list[_Tiles]:
    """Choose the forms of kernels that are launched, whose blocks run side by side."""
    size = LIMITS.tile, LIMITS.tile, LIMITS.most_blocks
    fewest = _Tiles(0, LIMITS.few_rows, LIMITS.few_tile, LIMITS.tile, LIMITS.most_blocks)
    if _any_heavy(products):
        return [fewest, _Tiles(LIMITS.few_rows, LIMITS.heavy_rows, *size)]
    # Of more rows than 64 blocks fill the device sooner; they run side by side.
    forms = [fewest, _Tiles(LIMITS.few_rows, LIMITS.shared_rows, *size, down=2)]
    if len(products) > 1:  # one launch instead of several
        forms.append(_Tiles(LIMITS.shared_rows, LIMITS.many_rows, *size))
    return forms


def _of_processors(products: Sequence[CopiedProduct], processors: int) -> list[_Tiles]:
    """Choose the forms in a persistent kernel, where blocks take turns on the processors.

    A second turn takes longer than the rest of the depth does, unless that is much. And what is
    heavy may be a product of many rows: a kernel of its own makes these sooner.
    """
    tile, blocks = LIMITS.tile, LIMITS.blocks
    heavy = _any_heavy(products)
    most = LIMITS.heavy_alone if heavy else LIMITS.shared_rows
    size = tile, tile, blocks, -(-most // tile)
    forms = [
        _Tiles(0, LIMITS.few_rows, LIMITS.few_tile, tile, blocks),
        _Tiles(LIMITS.few_rows, most, *size, turns=MOST_TURNS),
    ]
    every = [of.product for of in products]
    # A warp that makes a column of a product holds that row of the weight.
    if all(not p.transposed and is_tiled(p) and p.n <= LIMITS.deepest_row for p in every):
        each = _warp_columns(products, processors)
        columns = each * (LIMITS.product_threads // WARP)
        forms = [
            _Tiles(0, LIMITS.warp_rows, LIMITS.warp_rows, columns, blocks, warp_columns=each),
            _Tiles(LIMITS.warp_rows, most, *size, turns=MOST_TURNS),
        ]
    if len(products) > 1 and not heavy:
        forms.append(_Tiles(LIMITS.shared_rows, LIMITS.many_rows, tile, tile, blocks))
    wide, deep = LIMITS.light
    light = all(p.wide <= wide and p.deep <= deep and not is_short(p) for p in every)
    # Tiles of small weights are done soon, where each has one block.
    if light and all(_splits_of(p, forms[-1]) == 1 for p in every):
        forms[-1] = replace(forms[-1], high=LIMITS.light_rows)
    return forms


def _any_heavy(products: Sequence[CopiedProduct]) -> bool:
    """Tell whether a weight is so large that few rows of it are much work."""
    return any(p.product.m * p.product.n >= LIMITS.heavy for p in products)


def _warp_columns(products: Sequence[CopiedProduct], processors: int) -> int:
    """Return how many columns a warp makes at once, one or two: the last block ends sooner so."""
    if max(p.product.deep for p in products) > LIMITS.deepest_pair:
        return 1

    def turns(columns: int) -> int:
        width = columns * (LIMITS.product_threads // WARP)
        return -(-sum(-(-p.product.wide // width) for p in products) // processors)

    return 2 if LIMITS.two_columns * turns(2) < turns(1) else 1


def _few_rows(
    products: Sequence[CopiedProduct], form: _Tiles, partial: Temporary
) -> FewRowsProducts:
    """Give each product its range of blocks across the grid, its partial sums and its counters."""
    row_tiles = -(-form.high // form.rows)
    parts, first, used, counted = [], 0, 0, 0
    for of in products:
        tiles, splits = -(-of.product.wide // form.columns), _splits_of(of.product, form)
        width = _width(of.product, of.product.y.place.start, FLOATS)
        parts.append(BlockProduct(of, first, tiles * splits, splits, used, counted, width))
        first += tiles * splits
        if splits > 1:
            used += row_tiles * tiles * splits * form.rows * form.columns
            counted += row_tiles * tiles
    every = all_rows(*(of.product for of in products))
    rows = RowRange(every.per_row, every.per_edge, form.low, form.high)
    size, threads = (form.rows, form.columns), LIMITS.product_threads
    return FewRowsProducts(tuple(parts), rows, *size, form.warp_columns, threads, partial, used)


def _splits_of(p: MatrixProduct, form: _Tiles) -> int:
    """Return how many blocks share the depth of a product, so that the device is done first."""
    if form.warp_columns or form.high > LIMITS.shared_rows:
        return 1
    tiles, chunks = form.down * -(-p.wide // form.columns), p.deep // LIMITS.chunk
    best, least = 1, math.inf
    for turns in range(1, form.turns + 1):  # each begins a pipeline of chunks anew
        splits = max(1, min(turns * LIMITS.blocks // tiles, chunks // 2))
        chunks_in_all = turns * (chunks / splits + LIMITS.beside)
        if chunks_in_all < least:
            best, least = splits, chunks_in_all
    return max(best, min(form.blocks // tiles, p.deep // LIMITS.deep_split))


def is_short(p: MatrixProduct) -> bool:
    """Tell whether a warp makes a row of the result at once."""
    return p.wide <= LIMITS.short and not p.transposed


def tiled_product(
    p: MatrixProduct | Outer,
    rows: RowRange | None,
    partial: Temporary,
    block: int,
    vector: int,
    processors: int = LIMITS.blocks,
) -> TiledProduct:
    """Choose the kernel of a product of many rows, or of a gradient.

    Args:
        rows: None for any number of rows.
        partial: where splits of the depth leave their sums, if there are several.
        block: threads.
        vector: elements that may be loaded at once.
        processors: that share the blocks of a gradient: no more splits, since a second turn takes
            longer than the rows of a split do.
    """
    given = rows or all_rows(p)
    if isinstance(p, MatrixProduct) and is_short(p):
        return TiledProduct(p, given, 1, block // WARP, 0, block, 1, 1, partial, True)
    tile = LIMITS.large_rows * LIMITS.large_columns
    if isinstance(p, Outer):
        start = p.d.place.start
        across = -(-p.m // LIMITS.large_rows) * -(-p.n // LIMITS.large_columns)
        most = min(LIMITS.splits, processors // across, LIMITS.partial // (across * tile))
        splits = max(1, most)
    else:
        start, across, splits = p.y.place.start, -(-p.wide // LIMITS.large_columns), 1
        # Few tiles across would leave most of the device idle, however deep they are.
        while 2 * splits <= LIMITS.row_splits and p.deep >= 2 * splits * LIMITS.split_depth:
            if across * 2 * splits > LIMITS.split_tiles:
                break
            splits *= 2
    width = _width(p, start, vector)
    return TiledProduct(p, given, across, LIMITS.large_rows, tile, block, width, splits, partial)


def _width(p: MatrixProduct | Outer, start: int, vector: int) -> int:
    """Return how many elements of the operands are loaded at once; `start` is of the other one."""
    return gcd(vector, p.m, p.n, p.x.place.start, start)
