"""Write the kernel of one fused group: its values, in an order that keeps loops together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.edge_sums import write_edge_sum
from vertexrt.kernels.cuda.group_plan import GroupPlan, Scratch, lay_out, plan_group
from vertexrt.kernels.cuda.row_text import Cuts, MustCloseError, NeedsMemoryError, RowText
from vertexrt.kernels.cuda.steps import EDGES, ROWS, Kernel, Tiles
from vertexrt.kernels.cuda.values import J, ValueText
from vertexrt.kernels.layout import Binding, by_rows, edge_key, per_edge, stored_size
from vertexrt.lower.group_places import SUMS_OVER_EDGES
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.lower.values import Memories

REDUCTIONS = ("reduce_sum", "reduce_max", "logsumexp")


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What the groups of a task program are written with.

    Attributes:
        vector: elements of 16 bytes; block: see `RowText`.
        place: where values of earlier steps and stages lie, and where groups' own belong.
        temporaries: of a launch; groups take more.
    """

    task: TaskProgram
    binding: Binding
    vector: int
    block: int
    place: Mapping[int, ValuePlace]
    temporaries: Memories


def write_group(context: GroupContext, group: Group, tiles: Tiles | None = None) -> Kernel:
    """Write a group as a kernel.

    Args:
        tiles: for how many rows it is there, None for any number.
    """
    nodes = context.task.program.nodes

    def begin(scratch: Scratch) -> GroupWriter:
        plan = plan_group(nodes, group, {*context.place, *scratch})
        taken = context.temporaries.taken
        rows = RowText(plan.widest, context.vector, context.block, taken)
        place = lay_out(plan, context.place, scratch, rows, context.temporaries)
        return GroupWriter(plan, context.binding, rows, place)

    t = write_in_memory(begin, {}).t
    listed = by_rows(context.task.stage)
    edges = group.domain == Domain.EDGE
    if listed and not edges:
        t.word("rows", "const int*")
    body = t.kernel(listed)
    over = EDGES if edges else ROWS
    return Kernel(body, tuple(t.words), over, t.rows, t.threads * t.rows, tiles=tiles)


def write_in_memory(begin: Callable[[Scratch], GroupWriter], scratch: Scratch) -> GroupWriter:
    """Write a group, again for each value that turns out to need memory; `scratch` lists these."""
    while True:
        writer = begin(scratch)
        missing = writer.write()
        if missing is None:
            return writer
        assert missing not in scratch, f"%{missing} is in memory and was not found there"
        scratch[missing] = None


class GroupWriter(ValueText):
    """One attempt to write a group; see `write_group`.

    Args:
        rows: what the lines are written to.
        place: of `lay_out`.
    """

    def __init__(
        self, plan: GroupPlan, binding: Binding, rows: RowText, place: dict[int, ValuePlace]
    ) -> None:
        super().__init__(plan.nodes, binding, rows, place)
        self.plan = plan
        self.inside, self.in_parts = set(plan.members), plan.in_parts
        self._cuts: Cuts = ()
        if plan.edges:
            self.t.for_edges()

    def cuts_of(self, k: int) -> Cuts:
        """Return the elements of a value that are made here: () for all."""
        return ()

    def write(self) -> int | None:
        """Write all members; return a value that needs memory first, None when there is none."""
        waiting = list(self.plan.members)
        try:
            while waiting:
                k = self._next(waiting)
                waiting.remove(k)
                self.write_member(k)
        except NeedsMemoryError as need:
            return need.value
        self.t.close()
        return None

    def _next(self, waiting: list[int]) -> int:
        """Pick a member whose operands are there, if possible one of the open loop's size."""
        ready = [k for k in waiting if not self.plan.needs(k) & set(waiting)]
        loop = self.t.loop
        if loop is not None:
            for k in ready:
                if self._loop_size(k) == loop.size and not self.plan.needs(k) & loop.pending:
                    return k
        return ready[0]

    def _loop_size(self, k: int) -> int:
        node = self.nodes[k]
        if node.op in REDUCTIONS or OPS[node.op].role == "effect":
            return max(self.nodes[node.inputs[0]].type.size, 1)
        return 0 if node.type.shape == () or node.op == "concat" else node.type.size

    # Statements.

    def write_member(self, k: int) -> None:
        """Write a member."""
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
            t.line(f"Vec<W> {register};")
            t.line(f"VRT_LANES {register}.v[c] = 0;")
            write_edge_sum(self, node, J, f"{register}.v[c]")
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
        return self.leaf(k, J)  # a leaf or a view that is stored

    def _store(self, k: int, place: ValuePlace, register: str) -> None:
        self._write(k, place, register)

    def _write(self, k: int, to: ValuePlace, register: str) -> None:
        """Store elements; `k` is what readers know that place by."""
        self.t.write(k, f"{self.t.base(to)} + j", register, self.aligned(to))

    def _scalar(self, k: int, node: Node) -> None:
        t = self.t
        t.close()
        name = f"v{k}"
        if node.op in SUMS_OVER_EDGES:
            t.line(f"real {name} = 0;")
            write_edge_sum(self, node, None, name)
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
        return self.leaf(k, "0")

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

    def places_of(self, k: int) -> list[ValuePlace]:
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

    def _copy(self, k: int, i: int, to: ValuePlace) -> None:
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
        to = self._target(node)
        if self.place.get(i) == to:
            return
        has = f"if ({self.child(node['slot'])} >= 0) " if to.rows == Rows.SLOT else ""
        if to.size == 1 and self.nodes[i].type.shape == ():
            self.t.close()
            value = self.element(i, "0")
            self.t.line(f"{has or 'if (true) '}if (lane == 0) *({self.t.base(to)}) = {value};")
            return

        def write() -> None:
            register = self._copied(i)
            if not self.aligned(to):
                self.t.unaligned()
            self._store_if(has, to, register)

        self._in_loop(to.size, write)

    def _target(self, node: Node) -> ValuePlace:
        """Return where an effect stores its operand."""
        value = self.nodes[node.inputs[0]]
        size = max(stored_size(node, value), 1)
        if node.op in TENSOR_OF_EFFECT:
            rows = Rows.EDGE if per_edge(node, value) else Rows.ROW
            return self._tensor(TENSOR_OF_EFFECT[node.op](node), size, rows)
        every = node.op == "scatter_children"
        rows, slot = (Rows.EDGE, -1) if every else (Rows.SLOT, node["slot"])
        return self._tensor(edge_key(node["field"], every), size, rows, slot)

    def _store_if(self, condition: str, to: ValuePlace, register: str) -> None:
        """Store elements on a condition; this kernel does not read them."""
        self.t.store(f"{condition}store<W>({self.t.base(to)} + j, {register});")

    def _tensor(self, key: tuple[object, ...], size: int, rows: Rows, slot: int = -1) -> ValuePlace:
        place = ValuePlace(Memory.TENSOR, self.binding.tensors[key], size, rows, slot=slot)
        self.t.origin(place)
        return place


def part_of(cuts: Cuts, start: int, size: int) -> Cuts:
    """Return the cuts of a part of a value."""
    inside = [c - start for c in cuts if start < c < start + size]
    return (0, *inside, size) if cuts else ()
