"""Write the kernel of one fused group: its values, in an order that keeps loops together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.rows import Cuts, MustCloseError, NeedsMemoryError, Rows
from vertexrt.kernels.cuda.values import J, Values
from vertexrt.kernels.layout import Binding, by_rows, edge_key, per_edge, stored_size
from vertexrt.kernels.location import SUMS_OVER_EDGES, Location

UNROLLED = '_Pragma("unroll 8")'  # a word that many read has many parents: loads must overlap
REDUCTIONS = ("reduce_sum", "reduce_max", "logsumexp")


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a row in the source: `counter` runs over them.

    Attributes:
        begin, end: of the counter.
        start: the statement with which the body of the loop begins.
        source: writes what an edge has.
    """

    counter: str
    begin: str
    end: str
    start: str
    source: Callable[[], str]

    @property
    def all(self) -> str:
        """Return the head of the loop over all."""
        e = self.counter
        return f"for (int {e} = {self.begin}; {e} < {self.end}; ++{e})"


@dataclass(frozen=True, slots=True)
class RowKernel:
    """The source of a group and how it is launched.

    Attributes:
        body: the kernel, named NAME.
        words: what `a.w` holds, in order.
        edges: a row of it is an edge.
        rows: of a block; threads: of a block.
    """

    body: str
    words: tuple[str, ...]
    edges: bool
    rows: int
    threads: int


def write_group(
    task: TaskProgram,
    group: Group,
    binding: Binding,
    vector: int,
    place: Mapping[int, Location],
    temporary: Callable[[int, bool], Location],
    block: int = 0,
) -> RowKernel:
    """Write a group as a kernel.

    Args:
        vector: elements of 16 bytes.
        place: where values of earlier steps and stages lie, and where this group's belong.
        temporary: sets aside global memory with the rows (or edges) of the task.
        block: see `Rows`.
    """
    scratch: dict[int, Location | None] = {}
    while True:
        writer = GroupWriter(task, group, binding, vector, place, scratch, temporary, block)
        try:
            return writer.kernel()
        except NeedsMemoryError as need:
            again = need.value in scratch
            scratch[need.value] = None
        assert not again, f"a value of {group.nodes} is in memory and was not found there"


class GroupWriter(Values):
    """One attempt to write a group; see `write_group`."""

    def __init__(
        self,
        task: TaskProgram,
        group: Group,
        binding: Binding,
        vector: int,
        place: Mapping[int, Location],
        scratch: dict[int, Location | None],
        temporary: Callable[[int, bool], Location],
        block: int = 0,
    ) -> None:
        self.task = task
        nodes = task.program.nodes
        held = {*place, *scratch}
        members = [k for k in group.nodes if k in held or not _inline(nodes[k])]
        read = {i for k in members for i in (k, *nodes[k].inputs)}
        sizes = [nodes[i].type.size for i in read if nodes[i].type.domain != Domain.PARAM]
        self.in_parts = {k for k in members if k not in held and self._read_in_parts(k, held)}
        rows = self.new_rows(max(sizes, default=1), vector, block)
        self._cuts: Cuts = ()
        super().__init__(nodes, binding, rows, dict(place))
        members = [k for k in members if k not in self.in_parts]
        self.members, self.inside = members, set(members)
        self.edge_rows = group.domain == Domain.EDGE
        if self.edge_rows:
            self.t.for_edges()
        self._alias_parts()
        for k in scratch:
            if k in self.place:
                continue
            if scratch[k] is None:
                size = max(self.nodes[k].type.size, 1)
                edges = self.nodes[k].type.domain == Domain.EDGE
                scratch[k] = self.t.scratch(size) or temporary(size, edges)
            elif scratch[k].row == "scratch":  # type: ignore[union-attr]
                scratch[k] = self.t.scratch(max(self.nodes[k].type.size, 1))
            self.place[k] = scratch[k]  # type: ignore[assignment]
        if scratch:
            self._alias_parts()

    def new_rows(self, widest: int, vector: int, block: int) -> Rows:
        """Return what the lines are written to."""
        return Rows(widest, vector, block)

    def cuts_of(self, k: int) -> Cuts:
        """Return the elements of a value that are made here: () for all."""
        return ()

    def _read_in_parts(self, k: int, held: Collection[int]) -> bool:
        """Tell whether all that is read of a value is slices: each makes its elements then."""
        nodes = self.task.program.nodes
        readers = [i for i, node in enumerate(nodes) if k in node.inputs]
        return (
            OPS[nodes[k].op].role == "scalar"
            and bool(readers)
            and all(nodes[i].op == "slice" and i not in held for i in readers)
        )

    def kernel(self) -> RowKernel:
        """Write all members; raises NeedsMemoryError, when one more value needs memory."""
        self.write()
        listed = by_rows(self.task.stage)
        if listed and not self.edge_rows:
            self.t.word("rows", "const int*")
        body = self.t.kernel(listed)
        return RowKernel(
            body, tuple(self.t.words), self.edge_rows, self.t.rows, self.t.threads * self.t.rows
        )

    def write(self) -> None:
        """Write all members."""
        waiting = list(self.members)
        while waiting:
            k = self._next(waiting)
            waiting.remove(k)
            self._emit(k)
        self.t.close()

    def _next(self, waiting: list[int]) -> int:
        """Pick a member whose operands are there, if possible one of the open loop's size."""
        ready = [k for k in waiting if not self._needs(k) & set(waiting)]
        loop = self.t.loop
        if loop is not None:
            for k in ready:
                if self._loop_size(k) == loop.size and not self._needs(k) & loop.pending:
                    return k
        return ready[0]

    def _needs(self, k: int) -> set[int]:
        """List the members that a member reads, also through views."""
        found: set[int] = set()
        stack = list(self.nodes[k].inputs)
        while stack:
            i = stack.pop()
            if i in self.inside:
                found.add(i)
            elif i in self.in_parts or _inline(self.nodes[i]):
                stack.extend(self.nodes[i].inputs)
        return found

    def _loop_size(self, k: int) -> int:
        node = self.nodes[k]
        if node.op in REDUCTIONS or OPS[node.op].role == "effect":
            return max(self.nodes[node.inputs[0]].type.size, 1)
        return 0 if node.type.shape == () or node.op == "concat" else node.type.size

    def _alias_parts(self) -> None:
        """Let the parts of a stored concat be made where they end up."""
        for k in self.members:
            if self.nodes[k].op != "concat" or k not in self.place:
                continue
            start = 0
            for i in self.nodes[k].inputs:
                part = self.nodes[i]
                movable = i in self.inside and i not in self.place and not is_free(part)
                if movable and part.type.size > 1 and OPS[part.op].role in ("scalar", "row"):
                    self.place[i] = self.place[k].part(start, part.type.size)
                start += part.type.size

    # Statements.

    def _emit(self, k: int) -> None:
        node = self.nodes[k]
        self._cuts = self.cuts_of(k)
        if OPS[node.op].role == "effect":
            self._effect(k, node)
        elif node.op in REDUCTIONS:
            self._in_loop(self._loop_size(k), lambda: self._reduce(k, node))
        elif node.op == "concat":
            self._concat(k, node)
        elif node.type.shape == ():
            self._scalar(k, node)
        else:
            self._in_loop(node.type.size, lambda: self._vector(k, node))

    def _in_loop(self, size: int, write: Callable[[], None]) -> None:
        """Write a statement in the open loop if it can stand there, else in a new one."""
        t = self.t
        fresh = t.loop is None
        t.open(size, self._cuts)
        try:
            with t.attempt():
                write()
        except MustCloseError:
            assert not fresh, "a new loop makes nothing yet"
            t.close()
            t.open(size, self._cuts)
            write()

    def _vector(self, k: int, node: Node) -> None:
        """Make the elements of a thread in a register, and store them where they belong."""
        t, register = self.t, f"r{k}"
        if node.op in SUMS_OVER_EDGES:
            self._sum_over_edges(k, node, register)
        else:
            text = self._expression(k, node)
            t.line(f"Vec<W> {register};")
            t.line(f"VRT_LANES {register}.v[c] = {text};")
        assert t.loop is not None
        t.loop.made.add(k)
        if k in self.place:
            self._store(k, self.place[k], register)

    def _expression(self, k: int, node: Node) -> str:
        if OPS[node.op].role == "scalar":
            return self.scalar_op(node, J)
        if node.op == "nll_grad":
            logits, label, total, d = node.inputs
            index = self.index(label)
            scale, x, log = self.element(d, J), self.element(logits, J), self.element(total, J)
            return (
                f"{index} >= 0 ? {scale} * (vrt_exp({x} - {log}) - real(j + c == {index})) "
                ": real(0)"
            )
        return self.leaf(k, node, J)  # a leaf or a view that is stored

    def _store(self, k: int, place: Location, register: str) -> None:
        self._write(k, place, register)

    def _write(self, k: int, to: Location, register: str) -> None:
        """Store elements; `k` is what readers know that place by."""
        self.t.write(k, f"{self.t.base(to)} + j", register, self.aligned(to))

    def _scalar(self, k: int, node: Node) -> None:
        t = self.t
        t.close()
        name = f"v{k}"
        if node.op in SUMS_OVER_EDGES:
            t.line(f"real {name} = 0;")
            self._over_edges(node, None, name)
        else:
            t.line(f"const real {name} = {self._scalar_text(k, node)};")
        self.variable[k] = name
        for to in self.places_of(k):
            t.line(f"if (lane == 0) *({t.base(to)}) = {name};")
            t.written(k)

    def _scalar_text(self, k: int, node: Node) -> str:
        if OPS[node.op].role == "scalar":
            return self.scalar_op(node, "0")
        if node.op == "nll":
            logits, label, total = node.inputs
            index = self.index(label)
            picked = f"{self._pointer(logits)}[max({index}, 0)]"
            return f"{index} >= 0 ? {self.element(total, '0')} - {picked} : real(0)"
        if node.op in REDUCTIONS:  # of one number
            return self.element(node.inputs[0], "0")
        return self.leaf(k, node, "0")

    def _pointer(self, k: int) -> str:
        """Return where the row of a value starts, other threads' elements included."""
        node, start = self.nodes[k], 0
        while k not in self.place and node.op in ("slice", "to_edges"):
            start += node["start"] if node.op == "slice" else 0
            k = node.inputs[0]
            node = self.nodes[k]
        if k not in self.place:
            raise NeedsMemoryError(k)
        self.t.needs(k)
        return f"({self.t.base(self.place[k])} + {start})"

    def _reduce(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        if self.nodes[i].type.shape == ():
            self._scalar(k, node)
            return
        t, loop = self.t, self.t.loop
        assert loop is not None
        name, part = f"v{k}", f"part{k}"
        kind = {"reduce_sum": "RowSum", "reduce_max": "RowMax", "logsumexp": "RowLogSumExp"}
        value = self.element(i, J)
        loop.before.append(f"{kind[node.op]} {part};")
        t.line(f"VRT_LANES {part}.add({value});")
        t.crosses = True
        loop.after.append(f"const real {name} = {part}.of<T>();")
        loop.pending.add(k)
        self.variable[k] = name
        for to in self.places_of(k):
            loop.after.append(f"if (lane == 0) *({t.base(to)}) = {name};")
            loop.written.add(k)

    def places_of(self, k: int) -> list[Location]:
        """Return where a number is stored."""
        return [self.place[k]] if k in self.place else []

    def _concat(self, k: int, node: Node) -> None:
        if k not in self.place:
            raise NeedsMemoryError(k)
        whole, start = self.place[k], 0
        for i in node.inputs:
            size = max(self.nodes[i].type.size, 1)
            part = whole.part(start, size)
            self._cuts = part_of(self.cuts_of(k), start, size)
            if self.place.get(i) != part:
                self._in_loop(size, lambda i=i, part=part: self._copy(k, i, part))  # type: ignore[misc]
            elif self.t.loop is not None and i in self.t.loop.made:
                self.t.loop.written.add(k)
            else:
                self.t.written(k)
            start += size

    def _copy(self, k: int, i: int, to: Location) -> None:
        """Store a value in another place; `k` is what readers know that place by."""
        self._write(k, to, self._copied(i))

    def _copied(self, i: int) -> str:
        """Return a register with elements of a value that may be made elsewhere."""
        value = self.element(i, J)
        register = self.t.fresh("s")
        self.t.line(f"Vec<W> {register};")
        self.t.line(f"VRT_LANES {register}.v[c] = {value};")
        return register

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        t = self.t
        size = max(stored_size(node, self.nodes[i]), 1)
        if node.op in TENSOR_OF_EFFECT:
            edges = per_edge(node, self.nodes[i])
            to = self._tensor(TENSOR_OF_EFFECT[node.op](node), size, "edge" if edges else "row")
        else:
            every = node.op == "scatter_children"
            row = "edge" if every else f"slot{node['slot']}"
            to = self._tensor(edge_key(node["field"], every), size, row)
        if self.place.get(i) == to:
            return
        has = f"if ({self.child(node['slot'])} >= 0) " if to.row.startswith("slot") else ""
        if size == 1 and self.nodes[i].type.shape == ():
            t.close()
            value = self.element(i, "0")
            t.line(f"{has or 'if (true) '}if (lane == 0) *({t.base(to)}) = {value};")
            return

        def write() -> None:
            register = self._copied(i)
            if not self.aligned(to):
                t.unaligned()
            self._store_if(has, to, register)

        self._in_loop(size, write)

    def _store_if(self, condition: str, to: Location, register: str) -> None:
        """Store elements which nobody reads here, on a condition."""
        self.t.store(f"{condition}store<W>({self.t.base(to)} + j, {register});")

    def _tensor(self, key: tuple[object, ...], size: int, row: str) -> Location:
        name = self.t.word(f"tensor_{self.binding.tensors[key]}", "real*")
        return Location(name, size, row)

    # Sums over edges.

    def _sum_over_edges(self, k: int, node: Node, register: str) -> None:
        self.t.line(f"Vec<W> {register};")
        self.t.line(f"VRT_LANES {register}.v[c] = 0;")
        self._over_edges(node, J, f"{register}.v[c]")

    def _over_edges(self, node: Node, j: str | None, total: str) -> None:
        """Add what the edges of a row have to a total, or find the largest."""
        t, each = self.t, "" if j is None else "VRT_LANES "
        for edges in self._edge_sources(node, j):
            if node.op != "segment_max":
                self._add_edges(edges, j, total)
                continue
            first = t.fresh("first")
            t.line(f"bool {first} = true;")
            t.line(UNROLLED)
            with t.edges(edges.all, edges.start):
                new = edges.source()
                t.line(f"{each}{total} = {first} ? {new} : vrt_max({total}, {new});")
                t.line(f"{first} = false;")

    def _add_edges(self, edges: Edges, j: str | None, total: str) -> None:
        """Add up the edges of a row, as a sum of short sums.

        A vertex may have any number of children and of parents, and float32 would lose digits.
        """
        t, e = self.t, edges.counter
        kind, each, element = ("real", "", "") if j is None else ("Vec<W>", "VRT_LANES ", ".v[c]")
        some, until = t.fresh("some"), t.fresh("until")
        t.line(f"for (int {e} = {edges.begin}; {e} < {edges.end};) {{")
        t.line(f"const int {until} = min({e} + ROWS_A_SUM, {edges.end});")
        t.line(f"{kind} {some};")
        t.line(f"{each}{some}{element} = 0;")
        t.line(UNROLLED)
        with t.edges(f"for (; {e} < {until}; ++{e})", edges.start):
            t.line(f"{each}{some}{element} += {edges.source()};")
        t.line(f"{each}{total} += {some}{element};")
        t.line("}")

    def _reads_parents(self) -> None:
        """Take note that what the parents left is read in the open loop."""

    def _edge_sources(self, node: Node, j: str | None) -> Iterator[Edges]:
        t, size = self.t, max(node.type.size, 1)
        if node.op == "gather_parents":
            self._reads_parents()
            pointer = t.word("parent_ptr", "const int*")
            edges = t.word("parent_edge", "const int*")
            for every in (False, True):
                if node["every" if every else "slots"]:
                    tensor = t.word(
                        f"tensor_{self.binding.tensors[edge_key(node['field'], every)]}", "real*"
                    )
                    begin = t.row_value("first_parent", "int", f"{pointer}[row]")
                    end = t.row_value("end_parent", "int", f"{pointer}[row + 1]")
                    at = f"const auto parent = {tensor} + (long long){edges}[p] * {size};"

                    def source() -> str:
                        return "(*parent)" if j is None else t.read("parent + j", size % 4 == 0)

                    yield Edges("p", begin, end, at, source)
            return
        (i,) = node.inputs
        child = t.word("child_row", "const int*")
        skip = f"if ({child}[e] < 0) continue;"
        begin, end = t.first_edge(), t.end_edge()
        yield Edges("e", begin, end, skip, lambda: self.element(i, j or "0"))


def part_of(cuts: Cuts, start: int, size: int) -> Cuts:
    """Return the cuts of a part of a value."""
    inside = [c - start for c in cuts if start < c < start + size]
    return (0, *inside, size) if cuts else ()


def _inline(node: Node) -> bool:
    """Tell whether a value is written where it is read: leaves, views of them."""
    return is_free(node) or (OPS[node.op].role == "view" and node.op != "concat")
