"""Verify a plan of launches: that each product runs once, and what temporaries hold.

Under VERTEXRT_CHECK and in all tests. Which steps run depends on the rows and edges of a launch,
and on whether its rows are listed. Steps change at the bounds of their ranges only, so launches
just below and above each bound show all the lists of steps that can run; each list is walked in
order. What lies in tensors is written by other launches, see `engine.verify_tasks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise, product
from typing import NamedTuple, NoReturn

from vertexrt.errors import PlanError
from vertexrt.lower.copied_products import FinishedRows
from vertexrt.lower.expressions import Expression, Picked, ReadElement
from vertexrt.lower.kernel import FromParents, MatrixProduct, Operand, Outer
from vertexrt.lower.launches import (
    EVERYTHING,
    BlockProduct,
    FewRowsProducts,
    GroupLaunch,
    LargeProduct,
    LaunchPlan,
    LaunchStep,
    LibraryProduct,
    LookupSum,
    OuterProduct,
    RowRange,
    RowSum,
)
from vertexrt.lower.places import Memory, PlaceRows, Temporary, ValuePlace
from vertexrt.lower.threads import (
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    StoreElements,
    ThreadKernel,
    ThreadPart,
    expressions_of,
)
from vertexrt.lower.verify import share_memory

Statement = ElementStatement | ThreadPart


class LaunchSize(NamedTuple):
    """Rows and edges of a launch, and whether it takes a list of rows."""

    n: int
    m: int
    listed: bool


def verify_launches(plan: LaunchPlan, counters: int) -> LaunchPlan:
    """Return the plan.

    Args:
        counters: that a launch may use.
    Raises: PlanError, naming the step, when a launch of some number of rows does not run a product
        once, reads a temporary that nothing has written, or has two things in the same memory; or
        when products of one kernel share blocks, partial sums or counters, or need each other.
    """
    for step in plan.steps:
        if isinstance(step, FewRowsProducts):
            _verify_blocks(plan, step, counters)
    seen = set()
    for launch in _launches(plan):
        steps = tuple(k for k, step in enumerate(plan.steps) if _runs(step, launch))
        if (steps, launch.listed) not in seen:
            seen.add((steps, launch.listed))
            _LaunchVerifier(plan, launch).verify([plan.steps[k] for k in steps])
    return plan


def _launches(plan: LaunchPlan) -> Iterator[LaunchSize]:
    """Yield launches for which all lists of steps run that there are."""
    ranges = {rows for step in plan.steps if (rows := _range(step)) is not None}
    counts = {1}.union(*(_around(r, r.per_row) for r in ranges)) - {0}
    edges = {0, 1}.union(*(_around(r, r.per_edge) for r in ranges))
    for n, m, listed in product(sorted(counts), sorted(edges), {False, plan.listed}):
        yield LaunchSize(n, m, listed)


def _around(r: RowRange, each: int) -> set[int]:
    """Return the rows (or edges) of launches that are last below a bound, and first above it."""
    bounds = [bound // each for bound in (r.low, r.high) if each and bound < EVERYTHING]
    return {*bounds, *(bound + 1 for bound in bounds)}


def _range(step: LaunchStep) -> RowRange | None:
    return None if isinstance(step, (RowSum, LookupSum)) else step.rows


def _runs(step: LaunchStep, launch: LaunchSize) -> bool:
    """Tell whether a step is there for a launch, as `driver.extent` decides."""
    if isinstance(step, GroupLaunch) and step.only_listed and not launch.listed:
        return False
    rows = _range(step)
    return rows is None or rows.low < rows.rows(launch.n, launch.m) <= rows.high


def _products(step: LaunchStep) -> Sequence[MatrixProduct | Outer]:
    match step:
        case FewRowsProducts(parts=parts):
            return [part.of.product for part in parts]
        case LargeProduct(product=p) | OuterProduct(product=p) | LibraryProduct(product=p):
            return [p]
    return ()


def _operands(step: LaunchStep) -> tuple[list[Operand], list[Operand]]:
    """Return what products read and write where a group has not to copy it."""
    if isinstance(step, FewRowsProducts):
        given = [part.of for part in step.parts]
        reads = [of.product.x for of in given if of.gathered is None]
        return reads, [of.product.y for of in given if of.finished is None]
    (p,) = _products(step)
    return ([p.x, p.d], []) if isinstance(p, Outer) else ([p.x], [p.y])


# One kernel of several products.


def _verify_blocks(plan: LaunchPlan, step: FewRowsProducts, counters: int) -> None:
    first = 0
    sums: list[tuple[int, int]] = []
    counts: list[tuple[int, int]] = []
    for part in step.parts:
        p, row_tiles = part.of.product, -(-step.rows.high // step.tile_rows)
        tiles = -(-p.wide // step.tile_columns)
        if (part.first, part.blocks) != (first, tiles * part.splits):
            expected = f"{tiles * part.splits} blocks from {first} on"
            _fail(plan, step, f"{part.blocks} from {part.first} on are a product's", expected)
        first += part.blocks
        if part.splits > 1:
            left = row_tiles * part.blocks * step.tile_rows * step.tile_columns
            sums.append((part.partial, part.partial + left))
            counts.append((part.counter, part.counter + row_tiles * tiles))
    if not (_fit(sums, step.elements) and _fit(counts, counters)):
        got = f"products have partial sums {sums} and counters {counts}"
        _fail(plan, step, got, f"what is apart, and within {step.elements} and {counters}")
    for a, b in combinations(step.parts, 2):
        if _needs(a, b) or _needs(b, a):
            _fail(plan, step, f"a product reads what another writes: {a}; {b}", "two launches")


def _fit(spans: list[tuple[int, int]], room: int) -> bool:
    """Tell whether ranges are apart, and within what there is."""
    spans.sort()
    return all(a[1] <= b[0] for a, b in pairwise([(0, 0), *spans, (room, room)]))


def _needs(reader: BlockProduct, writer: BlockProduct) -> bool:
    if reader.of.gathered is not None or writer.of.finished is not None:
        return False
    return share_memory(reader.of.product.x.place, writer.of.product.y.place)


# The steps of a launch.


@dataclass(slots=True)
class _LaunchVerifier:
    """Walks the steps of a launch in the order in which they run.

    Attributes:
        written: elements of each temporary so far, by its number.
        regions: memory that is in use: where it begins and ends, in elements a row, an edge, once.
    """

    plan: LaunchPlan
    launch: LaunchSize
    written: dict[int, set[int]] = field(default_factory=dict)
    regions: dict[Temporary, Temporary] = field(default_factory=dict)
    step: LaunchStep | None = None

    def verify(self, steps: Sequence[LaunchStep]) -> None:
        """Verify that these steps are all that a launch needs."""
        self._each_once(steps)
        for step in steps:
            self.step = step
            self._step(step)
            if isinstance(step, (FewRowsProducts, OuterProduct, RowSum)) and step.elements:
                at = step.partial
                self._takes(at, Temporary(at.rows, at.edges, at.once + step.elements))

    def _each_once(self, steps: Sequence[LaunchStep]) -> None:
        """Check that each product runs once, if it has rows; a gradient may be added to twice."""
        found = Counter(chain.from_iterable(map(_products, steps)))
        forms = Counter(chain.from_iterable(map(_products, self.plan.steps)))
        for p, times in forms.items():
            expected = times if isinstance(p, Outer) else 1
            if found[p] != expected and self._has_rows(p):
                self.step = next(step for step in self.plan.steps if p in _products(step))
                self._fail(f"{p} is there {found[p]} times", f"it to be there {expected} times")

    def _has_rows(self, p: MatrixProduct | Outer) -> bool:
        return (self.launch.m if p.edges else self.launch.n) > 0

    def _step(self, step: LaunchStep) -> None:
        match step:
            case GroupLaunch(kernel=kernel):
                self._statements(_statements_of(kernel))
            case RowSum(source=source) | LookupSum(source=source):
                self._reads(source)
            case _:
                reads, writes = _operands(step)
                for operand in reads:
                    self._reads(self._rows_of(operand))
                for operand in writes:
                    self._writes(self._rows_of(operand))
                for finished in _finished_by(step):
                    self._statements(finished.statements)
                if isinstance(step, LargeProduct):
                    self._splits(step)

    def _splits(self, step: LargeProduct) -> None:
        """Check that several splits of the depth have room for their sums."""
        p, size = step.product, 0 if step.partial is None else step.partial.size
        expected = step.splits * p.wide * p.each if step.splits > 1 else 0
        if size != expected:
            self._fail(f"{step.splits} splits leave {size} elements a row", f"{expected}")
        if step.partial is not None:
            self._writes(step.partial)

    def _statements(self, statements: Iterable[Statement]) -> None:
        for values, to in _accesses(statements):
            for e in values:
                if isinstance(e, (ReadElement, Picked)):
                    self._reads(e.place)
            for place in to:
                self._writes(place)

    def _rows_of(self, operand: Operand) -> ValuePlace:
        """Return where the rows of an operand are, which must be contiguous."""
        place = operand.place
        if self.launch.listed and place.rows == PlaceRows.ROW:
            if operand.packed is None:
                self._fail(f"{place} is an operand", "rows that are packed where they are listed")
            return operand.packed
        return place

    def _reads(self, place: ValuePlace) -> None:
        rows = self.launch.m if place.rows == PlaceRows.LOCAL_EDGE else self.launch.n
        if place.memory == Memory.TEMPORARY and rows:
            elements = {*range(place.start, place.start + place.size)}
            if elements - self.written.get(place.number, set()):
                self._fail(f"{place} is read", "a step before that writes it")

    def _writes(self, place: ValuePlace) -> None:
        if place.memory != Memory.TEMPORARY:
            return
        elements = range(place.start, place.start + place.size)
        self.written.setdefault(place.number, set()).update(elements)
        at, step = self.plan.temporaries[place.number], place.step
        edges = place.rows == PlaceRows.LOCAL_EDGE
        end = Temporary(at.rows + step * (not edges), at.edges + step * edges, at.once)
        self._takes(at, end)

    def _takes(self, begin: Temporary, end: Temporary) -> None:
        """Check that memory is within what there is, and apart from all that is in use."""
        if not _before(end, Temporary(*self.plan.needs)):
            self._fail(f"memory from {begin} to {end}", f"memory within {self.plan.needs}")
        for other, its_end in self.regions.items():
            same = (other, its_end) == (begin, end)
            if not (same or _before(end, other) or _before(its_end, begin)):
                self._fail(f"memory from {begin} to {end}", f"apart from {other} to {its_end}")
        self.regions[begin] = end

    def _fail(self, got: str, expected: str) -> NoReturn:
        n, m, listed = self.launch
        where = f"{n} rows{' of a list' if listed else ''}, {m} edges"
        _fail(self.plan, self.step, f"with {where}, {got}", expected)


def _before(a: Temporary, b: Temporary) -> bool:
    """Tell whether memory up to `a` ends where `b` begins or earlier, for any number of rows."""
    return a.rows <= b.rows and a.edges <= b.edges and a.once <= b.once


def _finished_by(step: LaunchStep) -> list[FinishedRows]:
    """Return what a kernel makes of its products, element by element."""
    parts = step.parts if isinstance(step, FewRowsProducts) else ()
    return [part.of.finished for part in parts if isinstance(part.of.finished, FinishedRows)]


def _statements_of(kernel: ThreadKernel) -> Iterator[Statement]:
    for part in kernel.parts:
        yield from part.statements if isinstance(part, ElementLoop) else (part,)


def _accesses(
    statements: Iterable[Statement],
) -> Iterator[tuple[Iterator[Expression | FromParents], Sequence[ValuePlace]]]:
    """Yield what each statement reads, and where it stores that, in order."""
    for x in statements:
        match x:
            case StoreElements() | PublishElements() | PublishNumber():
                yield expressions_of(x.value), (x.to,)
            case MakeNumber() | ReduceElements():
                yield expressions_of(x.value), x.to
            case MakeElements():
                yield expressions_of(x.value), ()


def _fail(plan: LaunchPlan, step: LaunchStep | None, got: str, expected: str) -> NoReturn:
    do = f"report this as a bug, with the launches:\n{plan}"
    raise PlanError.at("lower", f"{step}: {got}", expected, do)
