"""Turn a task program into launches: kernels of fused groups, products, sums over rows.

The kernels are text; what calls them is data, rows of a table that the driver reads
(`driver.py`). Neither depends on a minibatch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.product_copies import ProductCopies
from vertexrt.kernels.cuda.products import (
    FLOATS,
    few_rows_products,
    large_product,
    outer_product,
    rows_of,
    tiled,
)
from vertexrt.kernels.cuda.row_sums import partial_elements, sum_lookups, sum_rows
from vertexrt.kernels.cuda.row_text import tensor_word
from vertexrt.kernels.cuda.steps import (
    ALWAYS,
    BY_EDGE,
    BY_ROW,
    EDGES,
    LISTED,
    OUTER,
    PLAIN,
    ROW_OR_TEMPORARY,
    ROWS,
    TEMPORARY,
    TRANSPOSED,
    ChildRows,
    Gemm,
    Kernel,
    Launches,
    Lookup,
    OperandRows,
    Tiles,
)
from vertexrt.kernels.cuda.thread_groups import GroupContext, lower_group, row_threads
from vertexrt.kernels.cuda.thread_text import ThreadText
from vertexrt.kernels.cuda.thread_widths import width_of
from vertexrt.kernels.layout import Binding, by_rows, gradients_of
from vertexrt.lower.expressions import J, ReadElement
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.lower.threads import ElementLoop, StoreElements, ThreadKernel
from vertexrt.lower.values import Memories, ValuePlaces

APART = frozenset(("sum_rows", "embed_grad"))  # sums over rows are steps of their own


class LaunchWriter:
    """The launches of one task program.

    Args:
        vector: elements of 16 bytes.
        block: threads of all blocks, 0 for as many as suit each kernel. Otherwise products of
            many rows are kernels as well, and not cuBLAS's.
    """

    def __init__(self, task: TaskProgram, binding: Binding, vector: int, block: int = 0) -> None:
        self.task = task
        self.nodes = task.program.nodes
        self.binding = binding
        self.vector = vector
        self.block = block
        self.listed = by_rows(task.stage)
        self.launches = Launches()
        self.used = Memories()
        self.values = ValuePlaces(self.nodes, binding)
        self.place = self.values.place
        self.place |= {i: self.values.stored(i, read) for i, read in task.reads.items()}
        for i in sorted(task.local):
            node = self.nodes[i]
            self.place[i] = self.used.temporary(node.type.size, node.type.domain == Domain.EDGE)
        self.context = GroupContext(self.values, self.used, vector, block, self.listed)
        self.copies = ProductCopies(task, binding)
        self.before: list[Group] = []  # gathers that the next products may read themselves
        self.products: list[int] = []  # which do not need each other

    def write(self) -> Launches:
        """Return the launches."""
        for step in self.task.steps:
            if isinstance(step, Product) and self.nodes[step.node].op == "matmul":
                self._product(step.node)
            elif isinstance(step, Product):
                self._products()
                self._sum(step.node)
            elif self.copies.only_scatters(step, self.products):
                self._products(step)
            else:
                self._products()
                self._group_or_gathers(step)
        self._products()
        assert not self.before, "a copy for products comes before products"
        self.launches.scratch = self.used.elements
        return self.launches

    def _group_or_gathers(self, group: Group) -> None:
        if self.copies.only_gathers(group):
            self.before.append(group)
        else:
            self._group(group)

    def _group(self, group: Group, tiles: Tiles | None = None) -> None:
        for k in group.nodes:
            self._place_home(k)
        edges = group.domain == Domain.EDGE
        self._add(lower_group(self.context, group), EDGES if edges else ROWS, tiles=tiles)

    def _add(
        self, kernel: ThreadKernel, over: int, when: int = ALWAYS, tiles: Tiles | None = None
    ) -> None:
        """Add a launch of a kernel of threads."""
        text = ThreadText(kernel, self.used.taken)
        body, block = text.row_kernel(), kernel.threads * kernel.rows
        words = tuple(text.t.words)
        self.launches.steps.append(
            Kernel(body, words, over, kernel.rows, block, when, tiles=tiles, ir=kernel)
        )

    def _place_home(self, k: int) -> None:
        if k in self.task.homes:
            self.place[k] = self.values.home(k, self.task.homes[k])

    def _sum(self, k: int) -> None:
        """Write a sum over rows: of rows, of outer products, or by what was looked up."""
        node, steps = self.nodes[k], self.launches.steps
        names = gradients_of(self.task, k)
        targets = [f"gradient_{self.binding.params[name]}" for name in names]
        if node.op == "sum_rows":
            place = self.place[node.inputs[0]]
            steps += sum_rows(place, targets, self.used, self.vector, self.listed)
            self.used.once += partial_elements(place.size)
        elif node.op == "embed_grad":
            index, d = node.inputs
            steps.append(sum_lookups(self.place[d], targets, self.used, self.vector, self.listed))
            self.launches.lookups.append(self.binding.ints[self.nodes[index]["name"]])
        else:
            d, x = node.inputs
            at_d, at_x = self._operand(d), self._operand(x)
            edges, times = self.nodes[d].type.domain == Domain.EDGE, rows_of(self.nodes[d])
            m, n = node.type.shape
            for word in targets:
                self._gemm(Gemm(OUTER, word, m, n, edges, times, at_x, at_d))

    # Products.

    def _gemm(self, g: Gemm) -> None:
        vector = self.vector if self.vector == FLOATS else 1
        if not self.block:
            self.launches.steps.append(g)
        elif g.form == OUTER:
            kernels, partial = outer_product(g, self.used.end, self.block, vector)
            self.launches.steps += kernels
            self.used.once += partial
        else:
            self.launches.steps.append(large_product(g, self.block, vector))

    def _product(self, k: int) -> None:
        """Add a product to those that are launched together.

        Products next to each other depend on each other only where one is the operand of another.
        """
        if self.nodes[k].inputs[1] in self.products:
            self._products()
        self.products.append(k)

    def _products(self, after: Group | None = None) -> None:
        """Write products that do not need each other: few rows in one kernel, many by cuBLAS.

        Args:
            after: copies their results to edges; a kernel of few rows does that itself.
        """
        products, self.products = self.products, []
        if not products:
            return
        before, self.before = self.before, []
        sources = self.copies.sources(before, products)
        gemms, spread = self._matmuls(products, sources, after)
        few = self.vector == FLOATS and all(tiled(g) for g in gemms)
        left = self._gathers(before, sources if few else {})
        above = self._few_rows(gemms) if few else None
        for group in left:
            self._group(group, above)
        self._many_rows(gemms, above)
        if after is not None:
            self._group(after, above)
        for packed, place in spread:
            self._move(packed, place)

    def _many_rows(self, gemms: Sequence[Gemm], above: Tiles | None) -> None:
        """Write products of so many rows that they are launched one by one."""
        for g in gemms:
            self._gemm(replace(g, tiles=above))

    def _matmuls(
        self,
        products: Sequence[int],
        sources: Mapping[int, ChildRows | Lookup],
        after: Group | None,
    ) -> tuple[list[Gemm], list[tuple[ValuePlace, ValuePlace]]]:
        """Describe products, and which packed rows are spread to which place then."""
        targets = self.copies.targets(after) if after is not None else {}
        gemms: list[Gemm] = []
        spread: list[tuple[ValuePlace, ValuePlace]] = []
        for k in products:
            gemm, packed = self._matmul(k)
            x = self.nodes[k].inputs[1]
            gemms.append(replace(gemm, gathered=sources.get(x), scattered=targets.get(k)))
            if packed is not None:
                spread.append((packed, self.place[k]))
        return gemms, spread

    def _gathers(self, groups: Sequence[Group], sources: Collection[int]) -> list[Group]:
        """Write groups some of whose copies products do not read themselves; return the others."""
        left = []
        for group in groups:
            if self.task.local.intersection(group.nodes) <= {*sources}:
                left.append(group)
            else:
                self._group(group)
        return left

    def _matmul(self, k: int) -> tuple[Gemm, ValuePlace | None]:
        """Describe a product, and where its rows are packed that are then spread."""
        node = self.nodes[k]
        self._place_home(k)
        weight, x = node.inputs
        matrix = self.nodes[weight]
        m, n = matrix.type.shape
        at_x, place, packed = self._operand(x), self.place[k], None
        if place.rows == Rows.ROW and self.listed:
            packed = self.used.temporary(place.size, False)
        gemm = Gemm(
            TRANSPOSED if node["transpose"] else PLAIN,
            f"param_{self.binding.params[matrix['name']]}",
            m,
            n,
            node.type.domain == Domain.EDGE,
            rows_of(node),
            at_x,
            self._at(place, packed),
        )
        return gemm, packed

    def _few_rows(self, gemms: Sequence[Gemm]) -> Tiles:
        """Write the kernels of products of few rows; return for how many rows others are there."""
        kernels, partial, above = few_rows_products(gemms, self.used.end, self.block > 0)
        self.launches.steps += kernels
        self.used.once += partial
        return above

    def _operand(self, k: int) -> OperandRows:
        """Return where the rows of an operand start, packing those that are not contiguous."""
        place = self.place[k]
        packed = None
        if place.rows == Rows.ROW and self.listed:
            packed = self.used.temporary(place.size, False)
            self._move(place, packed)
        return self._at(place, packed)

    def _at(self, place: ValuePlace, packed: ValuePlace | None) -> OperandRows:
        if packed is not None:
            at = self.used.taken[packed.number]
            return OperandRows(tensor_word(place), ROW_OR_TEMPORARY, place.step, place.start, at)
        if place.memory == Memory.TEMPORARY:
            at = self.used.taken[place.number]
            return OperandRows("temporary", TEMPORARY, place.step, place.start, at)
        by = BY_EDGE if place.rows == Rows.EDGE else BY_ROW
        return OperandRows(tensor_word(place), by, place.step, place.start)

    def _move(self, source: ValuePlace, to: ValuePlace) -> None:
        """Copy the rows of a launch that takes a list of rows."""
        store = StoreElements(to, ReadElement(source, J))
        loop = ElementLoop(source.size, (), 1, (), (store,))
        loop = replace(loop, width=width_of(loop, self.vector))
        threads, rows = row_threads(source.size, self.vector, self.block)
        self._add(ThreadKernel(threads, rows, 0, 0, False, True, (loop,)), ROWS, LISTED)


def write_launches(task: TaskProgram, binding: Binding, vector: int, block: int = 0) -> Launches:
    """Write the launches of a task program; see `LaunchWriter`."""
    return LaunchWriter(task, binding, vector, block).write()
