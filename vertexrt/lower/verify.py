"""Verify what task programs are lowered to: kernels, kernels of threads, and plans of launches.

Under VERTEXRT_CHECK and in all tests. What lies in tensors is written by other launches, whose
order `engine.verify_tasks` looks at; here it is what lies in temporaries, scratch rows and
registers.

Of a kernel: what each read was written by, and that nothing is written while it is read. Of a
kernel of threads: no register leaves its loop, and no thread reads too early; what a thread stores,
another one of its row may read after a wait only. Of a plan of launches: that each product runs
once, and what temporaries hold. Which steps run depends on the rows and edges of a launch, and on
whether its rows are listed. Steps change at the bounds of their ranges only, so launches just below
and above each bound show all the lists of steps that can run; each list is walked in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise, product
from typing import NamedTuple, NoReturn

from vertexrt.errors import PlanError
from vertexrt.lower.kernel import (
    AddLookups,
    Choose,
    Compute,
    Expression,
    Fill,
    FromParents,
    J,
    KernelIR,
    MatrixProduct,
    Memory,
    Number,
    Operand,
    Outer,
    Picked,
    PlaceRows,
    ReadElement,
    Reduce,
    RowLoop,
    Statement,
    Step,
    SumEdges,
    SumRows,
    Temporary,
    ValuePlace,
    expressions_in,
)
from vertexrt.lower.launches import (
    EVERYTHING,
    BlockProduct,
    FewRowsProducts,
    FinishedRows,
    GroupLaunch,
    LaunchPlan,
    LaunchStep,
    LibraryProduct,
    LookupSum,
    RowRange,
    RowSum,
    TiledProduct,
)
from vertexrt.lower.threads import (
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    RowWait,
    ThreadKernel,
    ThreadPart,
    read_by,
    stored_by,
)

WARP = 32  # threads that can wait for each other without the rest of their block


def verify(kernel: KernelIR) -> KernelIR:
    """Return the kernel.

    Raises: PlanError, naming the statement, when something is read that nothing has written, when a
        fill reads other elements of what it writes, or when a place is outside of its memory.
    """
    verifier = _KernelVerifier(kernel)
    rows, edges, once = kernel.needs
    for t in kernel.temporaries:
        if t.rows > rows or t.edges > edges or t.once > once:
            verifier.fail(f"a temporary begins at {t}", f"inside of {kernel.needs}")
    for step in kernel.steps:
        verifier.step(step)
    return kernel


@dataclass(slots=True)
class _KernelVerifier:
    """Walks a kernel in the order in which it runs.

    Attributes:
        written: (memory, number) of temporaries so far; of a loop, scratch rows and numbers too.
    """

    kernel: KernelIR
    written: set[tuple[Memory, int]] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)
    what: object = None

    def step(self, step: Step | Statement) -> None:
        """Verify a step, or a statement of a loop, after those before it."""
        self.what = step
        match step:
            case RowLoop():
                before = set(self.written)
                self.numbers = set()
                for statement in step.body:
                    self.step(statement)
                kept = {key for key in self.written if key[0] == Memory.TEMPORARY}
                self.written = before | kept
            case MatrixProduct():
                self._read(step.x.place)
                self._write(step.y.place)
            case Outer():
                self._read(step.d.place)
                self._read(step.x.place)
            case AddLookups() | Reduce():
                self._read(step.source)
            case Compute() | SumRows():
                self._expression(step.value)
            case Fill():
                self._fill(step.to, step.value)
                self._write(step.to)
            case SumEdges():
                for source in step.sources:
                    if not isinstance(source, FromParents):
                        self._fill(step.to, source)
                self._write(step.to)
            case Choose():
                self.step(step.several)
                self.written.add((Memory.CHOSEN, step.number))
        if isinstance(step, Compute | Reduce):
            self.numbers.add(step.number)

    def _expression(self, expression: Expression) -> None:
        for e in expressions_in(expression):
            if isinstance(e, (ReadElement, Picked)):
                self._read(e.place)
            elif isinstance(e, Number) and e.value not in self.numbers:
                self.fail(f"number {e.value} is read", "a statement of this loop that makes it")

    def _fill(self, to: ValuePlace, value: Expression) -> None:
        """Check that a fill reads of what it writes at most the element that it writes."""
        self._expression(value)
        for e in expressions_in(value):
            if isinstance(e, ReadElement) and share_memory(to, e.place):
                aligned = e.place.start + e.index.shift == to.start
                if not (aligned and (e.index.moves or to.size == 1)):
                    expected = "what no iteration of its loop writes"
                    self.fail(f"it reads {e}, which it writes", expected)

    def _read(self, place: ValuePlace) -> None:
        if place.memory != Memory.TENSOR and (place.memory, place.number) not in self.written:
            self.fail(f"{place} is read", "a statement before that writes it")
        self._inside(place)

    def _write(self, place: ValuePlace) -> None:
        if place.memory == Memory.CHOSEN:
            self.fail(f"{place} is written", "a place that nothing else has")
        self.written.add((place.memory, place.number))
        self._inside(place)

    def _inside(self, place: ValuePlace) -> None:
        if place.stride and place.start + place.size > place.stride:
            self.fail(f"{place} is used", "elements inside of its rows")

    def fail(self, got: str, expected: str) -> NoReturn:
        """Raise PlanError about the statement."""
        _fail(self.kernel, self.what, got, expected)


def share_memory(a: ValuePlace, b: ValuePlace) -> bool:
    """Tell whether two places have elements of the same row of the same memory."""
    if (a.memory, a.number, a.rows, a.slot) != (b.memory, b.number, b.rows, b.slot):
        return False
    return a.start < b.start + b.size and b.start < a.start + a.size


# Kernels of threads.


def verify_threads(kernel: ThreadKernel) -> ThreadKernel:
    """Return the kernel.

    Raises: PlanError, naming the statement, when a register or a number is read where it is not
        known, when memory is read that other threads of the row may still write, or when scratch
        does not fit.
    """
    verifier = _RaceVerifier(kernel)
    for part in kernel.parts:
        verifier.part(part)
    return kernel


@dataclass(slots=True)
class _RaceVerifier:
    """Walks a kernel in the order in which it runs.

    Attributes:
        numbers: that all threads have; registers: that are made in the open loop.
        unread: what was stored since the last wait; here: in the open loop.
        scratch: what was stored in rows of scratch so far.
    """

    kernel: ThreadKernel
    numbers: set[int] = field(default_factory=set)
    registers: set[int] = field(default_factory=set)
    unread: list[ValuePlace] = field(default_factory=list)
    here: list[ValuePlace] = field(default_factory=list)
    scratch: list[ValuePlace] = field(default_factory=list)
    what: object = None

    def part(self, part: ThreadPart) -> None:
        """Verify a part, after those before it."""
        self.what = part
        match part:
            case RowWait():
                self._wait()
            case ElementLoop():
                self._loop(part)
            case MakeNumber():
                self._reads_and_stores(part)
                self.numbers.add(part.number)
            case PublishNumber():
                self._reads_and_stores(part)
        self.unread += self.here
        self.here = []

    def _wait(self) -> None:
        self.unread = []

    def _loop(self, loop: ElementLoop) -> None:
        if loop.size % loop.width:
            self._fail(f"{loop.size} elements in vectors of {loop.width}", "whole vectors")
        self.registers = set()
        for x in loop.before:
            if isinstance(x, RowWait):
                self._wait()
        for statement in loop.statements:
            self.what = statement
            self._statement(statement)
        # Numbers that it makes are known after it; their partial results begin before it.
        reduced = {x.number for x in loop.statements if isinstance(x, ReduceElements)}
        if reduced != {x for x in loop.before if not isinstance(x, RowWait)}:
            self._fail(f"{sorted(reduced)} are reduced", f"what begins before: {loop.before}")
        self.numbers |= reduced
        self.registers = set()

    def _statement(self, x: ElementStatement) -> None:
        self._reads_and_stores(x)
        if isinstance(x, MakeElements | PublishElements):
            self.registers.add(x.register)

    def _reads_and_stores(self, x: ElementStatement | ThreadPart) -> None:
        self._reads(x)
        for place in stored_by(x):
            self.here.append(place)
            if place.memory == Memory.SCRATCH:
                self.scratch.append(place)
                end, room = place.number + place.start + place.size, self.kernel.scratch
                if not end <= room <= self.kernel.most:
                    self._fail(f"{place} is stored", f"a place in {room} of {self.kernel.most}")

    def _reads(self, x: ElementStatement | ThreadPart) -> None:
        for e in read_by(x):
            match e:
                case Number(value=number) if number not in self.numbers:
                    self._fail(f"{e} is read", "a number that all threads have")
                case ReadElement(place=ValuePlace(memory=Memory.REGISTER, number=k), index=index):
                    if k not in self.registers or index != J:
                        self._fail(f"{e} is read", "what this thread has made in this loop")
                case ReadElement(place=place) | Picked(place=place):
                    if any(share_memory(place, other) for other in (*self.unread, *self.here)):
                        expected = "a wait between, since other threads store it"
                        self._fail(f"{place} is read", expected)
                    written = any(share_memory(place, other) for other in self.scratch)
                    if place.memory == Memory.SCRATCH and not written:
                        self._fail(f"{place} is read", "scratch that was stored before")

    def _fail(self, got: str, expected: str) -> NoReturn:
        _fail(self.kernel, self.what, got, expected)


# Plans of launches.


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
        case TiledProduct(product=p) | LibraryProduct(product=p):
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
            if isinstance(step, TiledProduct) and step.splits > 1:
                self._takes(step.partial, step.end)
            if isinstance(step, (FewRowsProducts, RowSum)) and step.elements:
                at = step.partial
                self._takes(at, Temporary(at.rows, at.edges, at.once + step.elements))

    def _each_once(self, steps: Sequence[LaunchStep]) -> None:
        """Check that each product runs once, if it has rows; a gradient may be added to twice."""
        found = Counter(chain.from_iterable(map(_products, steps)))
        forms = Counter(chain.from_iterable(map(_products, self.plan.steps)))
        for p, times in forms.items():
            expected = times if isinstance(p, Outer) else 1
            has_rows = (self.launch.m if p.edges else self.launch.n) > 0
            if found[p] != expected and has_rows:
                self.step = next(step for step in self.plan.steps if p in _products(step))
                self._fail(f"{p} is there {found[p]} times", f"it to be there {expected} times")

    def _step(self, step: LaunchStep) -> None:
        match step:
            case GroupLaunch(kernel=kernel):
                for part in kernel.parts:
                    if isinstance(part, ElementLoop):
                        self._statements(part.statements)
                    else:
                        self._statements((part,))
            case RowSum(source=source) | LookupSum(source=source):
                self._reads(source)
            case _:
                reads, writes = _operands(step)
                for operand in reads:
                    self._reads(self._rows_of(operand))
                for operand in writes:
                    self._writes(self._rows_of(operand))
                if isinstance(step, FewRowsProducts):
                    for each in step.parts:
                        if isinstance(each.of.finished, FinishedRows):
                            self._statements(each.of.finished.statements)

    def _statements(self, statements: Iterable[ElementStatement | ThreadPart]) -> None:
        for x in statements:
            for e in read_by(x):
                if isinstance(e, (ReadElement, Picked)):
                    self._reads(e.place)
            for place in stored_by(x):
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


def _fail(whole: object, step: object, got: str, expected: str) -> NoReturn:
    what = "launches" if isinstance(whole, LaunchPlan) else "kernel"
    do = f"report this as a bug, with the {what}:\n{whole}"
    raise PlanError.at("lower", f"{step}: {got}", expected, do)
