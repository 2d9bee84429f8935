"""Lower a task program to a kernel: what shares a loop is given; here each value gets its place.

A group becomes one loop over rows. Inside it every value that must exist in memory (a tensor, a
temporary, or a scratch row that stays in the first-level cache) becomes one fill with one output,
since LLVM vectorises that and not loops with several. Values used once are part of the expression
that uses them. A product works on all rows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split, rows_in_storage
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key, Read, is_free
from vertexrt.ir.program import PARENTS, Domain, Node, Type
from vertexrt.kernels.layout import PAD, Binding
from vertexrt.kernels.task_tensors import by_rows, edge_key, gradients_of, per_edge, stored_size
from vertexrt.lower.kernel import (
    FIRST,
    AddLookups,
    Apply,
    Choose,
    Compute,
    Constant,
    Expression,
    Fill,
    FromParents,
    Index,
    J,
    KernelIR,
    Leaf,
    MatrixProduct,
    Memory,
    Number,
    Operand,
    Outer,
    OwnPart,
    Picked,
    PlaceRows,
    RandomDraw,
    ReadElement,
    Reduce,
    RowLoop,
    Span,
    Spans,
    Statement,
    Step,
    SumEdges,
    SumRows,
    Temporary,
    ValuePlace,
)

# Absent labels cost nothing: whatever their row holds.
NLL = "x0 - x1 if x2 != 0.0 else 0.0"
NLL_GRAD = "x3 * (exp(x0 - x1) - x2) if x4 != 0.0 else 0.0"


class Memories:
    """Temporary memory that a kernel takes, piece by piece."""

    def __init__(self) -> None:
        self.taken: list[Temporary] = []
        self.rows = self.edges = self.once = 0

    @property
    def elements(self) -> tuple[int, int, int]:
        """Return the elements for each row, for each edge, and once."""
        return self.rows, self.edges, self.once

    @property
    def end(self) -> Temporary:
        """Return where the next temporary starts."""
        return Temporary(*self.elements)

    def temporary(self, size: int, edges: bool) -> ValuePlace:
        """Set aside elements for each row (or edge) of a launch."""
        size = max(size, 1)
        self.taken.append(self.end)
        if edges:
            self.edges += size
        else:
            self.rows += size
        rows = PlaceRows.LOCAL_EDGE if edges else PlaceRows.LOCAL
        number = len(self.taken) - 1
        return ValuePlace(Memory.TEMPORARY, number, size, rows)

    def reach(self, end: Temporary) -> None:
        """Set aside what there is up to an end."""
        self.rows, self.edges, self.once = end.rows, end.edges, end.once

    def scratch(self, size: int) -> ValuePlace:
        """Set aside one row that every row of the loop uses again."""
        size = max(size, 1)
        self.taken.append(self.end)
        self.once += -(-size // PAD) * PAD
        return ValuePlace(Memory.SCRATCH, len(self.taken) - 1, size, PlaceRows.ONE)


class ValuePlaces:
    """Where the values of a program are while it is lowered.

    Attributes:
        place: position -> where it lies in memory.
        numbers: positions of the numbers of the current row that are in registers.
    """

    def __init__(self, nodes: Sequence[Node], binding: Binding) -> None:
        self.nodes = nodes
        self.binding = binding
        self.place: dict[int, ValuePlace] = {}
        self._packed: dict[ValuePlace, ValuePlace] = {}
        self.numbers: set[int] = set()

    def tensor(self, key: Key, size: int, edges: bool) -> ValuePlace:
        """Return where the rows of a tensor lie."""
        rows = PlaceRows.EDGE if edges else PlaceRows.ROW
        return ValuePlace(Memory.TENSOR, self.binding.tensors[key], max(size, 1), rows)

    def home(self, k: int, key: Key) -> ValuePlace:
        """Return where a value lies in a tensor of its own rows."""
        kind = self.nodes[k].type
        return self.tensor(key, kind.size, kind.domain == Domain.EDGE)

    def stored(self, k: int, read: Read) -> ValuePlace:
        """Return where a value lies that another stage has stored, maybe as a part of a tensor."""
        whole = self.home(k, read.key)
        if read.width == whole.size:
            return whole
        return replace(whole, start=read.start, stride=read.width)

    def pack(self, place: ValuePlace, memories: Memories) -> ValuePlace:
        """Return where rows of a list are copied for products, the same place for the same rows."""
        if place not in self._packed:
            self._packed[place] = memories.temporary(place.size, False)
        return self._packed[place]

    def integer(self, k: int) -> int:
        """Return the number of an integer pull."""
        return self.binding.ints[self.nodes[k]["name"]]

    def element(self, k: int, index: Index) -> Expression:
        """Return an element of a value; a number stands for each of a row's elements."""
        if k in self.numbers:
            return Number(k)
        if k in self.place:
            return ReadElement(self.place[k], FIRST if self.nodes[k].type.shape == () else index)
        return self.expression(k, index)

    def expression(self, k: int, index: Index) -> Expression:
        """Return what makes an element of a value, wherever it is kept."""
        node = self.nodes[k]
        if OPS[node.op].role == "scalar":
            return self._apply(node, index)
        if node.op == "nll":
            return self._nll(node)
        if node.op == "nll_grad":
            return self._nll_grad(node)
        if node.op in ("slice", "spread", "to_edges", "repeat"):
            return self._view(node, index)
        if node.op == "sum_repeated":
            whole, start = self.kept_row(node.inputs[0])
            size, rows = node.type.size, self.nodes[node.inputs[0]].type.size // node.type.size
            apart = (1, rows) if node["each"] > 1 else (size, 1)
            found = replace(index, terms=rows, step=apart[0], stride=apart[1], start=start)
            return ReadElement(self.place[whole], found)
        return self._leaf(node, FIRST if node.type.shape == () else index)

    def _apply(self, node: Node, index: Index) -> Apply:
        """Return an elementwise op of what it reads."""
        expression = OPS[node.op].scalar
        assert expression is not None
        operands = tuple(self.element(i, index) for i in node.inputs)
        if not OPS[node.op].draws:
            return Apply(expression, operands)
        by = self.integer(node.inputs[1]) if node.op == "dropout_by" else -1
        edges = node.type.domain == Domain.EDGE and by < 0
        p = node["p"] if node.has("p") else None
        index = FIRST if node.type.shape == () else index
        return Apply(expression, operands, RandomDraw(node["key"], p, edges, by), index)

    def _nll(self, node: Node) -> Apply:
        logits, label, total = node.inputs
        pull = self.integer(label)
        whole, start = self.kept_row(logits)
        picked = Picked(self.place[whole], pull, start)
        given = Leaf("has_integer", FIRST, pull)
        return Apply(NLL, (self.element(total, FIRST), picked, given))

    def _nll_grad(self, node: Node) -> Apply:
        logits, label, total, d = node.inputs
        pull = self.integer(label)
        operands = (
            self.element(logits, J),
            self.element(total, FIRST),
            Leaf("is_index", J, pull),
            self.element(d, FIRST),
            Leaf("has_integer", FIRST, pull),
        )
        return Apply(NLL_GRAD, operands)

    def kept_row(self, k: int) -> tuple[int, int]:
        """Return the value in whose row the elements of a view begin, and at which of them."""
        start = 0
        while k not in self.place and self.nodes[k].op in ("slice", "to_edges"):
            start += self.nodes[k]["start"] if self.nodes[k].op == "slice" else 0
            (k,) = self.nodes[k].inputs
        return k, start

    def sources(self, node: Node) -> tuple[Expression | FromParents, ...]:
        """Return what a sum over edges adds up: see `SumEdges`."""
        if node.op != "gather_parents":
            index = FIRST if node.type.shape == () else J
            return (self.element(node.inputs[0], index),)
        tensors = self.binding.tensors
        kinds = [every for every in (False, True) if node["every" if every else "slots"]]
        found = (tensors[edge_key(node["field"], every)] for every in kinds)
        if not node.has(PARENTS):
            return tuple(map(FromParents, found))
        layer = self.binding.layers[node.function]
        return tuple(FromParents(tensor, node[PARENTS], layer) for tensor in found)

    def order(self, node: Node) -> tuple[Expression, bool] | None:
        """Return the key of edges by which a sum is over those before each, see `SumEdges`."""
        if node.op != "segment_before":
            return None
        return self.element(node.inputs[1], FIRST if node.type.shape == () else J), node["after"]

    def target(self, node: Node) -> tuple[ValuePlace, int]:
        """Return where an effect stores its operand, and the slot that must have a child, or -1."""
        value = self.nodes[node.inputs[0]]
        size = stored_size(node, value)
        if node.op in TENSOR_OF_EFFECT:
            return self.tensor(TENSOR_OF_EFFECT[node.op](node), size, per_edge(node, value)), -1
        to = self.tensor(edge_key(node["field"], node["every"]), size, True)
        if node.op == "scatter_children":
            return to, -1
        slot = node["slot"]  # a vertex may have fewer slots than F
        return replace(to, rows=PlaceRows.SLOT, slot=slot), slot

    def _view(self, node: Node, index: Index) -> Expression:
        (i,) = node.inputs
        if node.op == "repeat":
            return self.element(i, index.repeated(node["each"], self.nodes[i].type.size))
        if node.op != "slice":
            return self.element(i, index)
        index = FIRST if node.type.shape == () else index
        return self.element(i, replace(index, shift=index.shift + node["start"]))

    def _leaf(self, node: Node, index: Index) -> Expression:
        """Return an input of the function."""
        size = max(node.type.size, 1)
        if node.op in ("arange", "loss_scale", "weight", "has_child", "degree", "present"):
            slot = node["slot"] if node.op == "present" else -1
            return Leaf(node.op, index, slot=slot, relation=node.relation)
        if node.op in ("has_pull", "pull", "edge_pull", "seed"):
            return self._given(node, index, size)
        if node.op == "const":
            is_real = node.type.dtype == "float"
            return Constant(float(node["value"]) if is_real else int(node["value"]))
        if node.op == "param":
            return Leaf("param", index, self.binding.params[node["name"]], size=size)
        if node.op == "embed":
            table, pulled = node.inputs
            param = self.binding.params[self.nodes[table]["name"]]
            edges = self.nodes[pulled].op == "edge_pull"
            return Leaf("embed", index, param, -1, size, self.integer(pulled), edges)
        assert node.op in ("gather", "gather_all"), f"{node.op} has no expression"
        slot = node["slot"] if node.op == "gather" else -1
        tensor = self.binding.tensors["state", node["field"]]
        return Leaf("gather", index, tensor, slot, size, relation=node.relation)

    def _given(self, node: Node, index: Index, size: int) -> Leaf:
        """Return what the user gives with a batch: a pull, whether there is one, or a gradient."""
        name, b = node["name"], self.binding
        if node.op == "seed":
            return Leaf("seed", index, b.d_pushes[name], size=size)
        if node.op == "has_pull":
            if name in b.ints:
                return Leaf("has_integer", FIRST, b.ints[name])
            return Leaf("has_real", FIRST, b.floats[name])
        edges = node.op == "edge_pull"
        if node.type.dtype == "int":
            return Leaf("integer", FIRST, b.ints[name], edges=edges)
        return Leaf("pull", index, b.floats[name], size=size, edges=edges)


SUMS_OVER_EDGES = ("gather_parents", "segment_sum", "segment_max", "segment_before")
REDUCTIONS = ("reduce_sum", "reduce_max", "logsumexp")
READ_AS_ROWS = (*REDUCTIONS, "nll", "repeat", "sum_repeated")


def lower(task: TaskProgram, binding: Binding, plan: SegmentedTask | None = None) -> KernelIR:
    """Lower a task program; with a plan, to what one of several processors does of it."""
    return _Lowering(task, binding, plan).kernel()


def can_move(node: Node) -> bool:
    """Tell whether a value can be made as a part of a concat, where that lies."""
    return not is_free(node) and OPS[node.op].role in ("scalar", "row")


class Shares:
    """What a processor makes of each value of a task program.

    Args:
        plan: how processors share the task; None, when one runs all of it.

    Attributes:
        split: of the segment that is being lowered.
    """

    def __init__(self, task: TaskProgram, plan: SegmentedTask | None) -> None:
        self.task, self.plan = task, plan
        self.nodes = task.program.nodes
        self.split: Split | None = None

    def is_private(self, k: int) -> bool:
        """Tell whether all processors make a value for themselves, of a segment split by units."""
        return self.split == Split.UNITS and self.plan is not None and k in self.plan.whole

    def of_value(self, k: int, start: int = 0, size: int | None = None) -> Spans:
        """Return the elements of a value that this processor makes.

        Args:
            start, size: only these elements, counted from `start`.
        """
        whole = max(self.nodes[k].type.size, 1)
        if self.plan is None or self.split == Split.ROWS or k in self.plan.whole:
            return ((0, whole if size is None else size),)
        # Where it is cut into ranges that are shared out one by one.
        cuts = self.plan.cuts.get(k, (0, whole)) if self.split == Split.UNITS else (0, whole)
        end = cuts[-1] if size is None else start + size
        assert {start, end} <= set(cuts), f"%{k}: cuts {cuts} do not meet {start}"
        inside = cuts[cuts.index(start) : cuts.index(end) + 1]
        return tuple(OwnPart(a - start, b - a) for a, b in pairwise(inside))

    def own_rows(self, name: str, rows: int) -> Span:
        """Return the rows of a gradient that this processor adds to."""
        if self.split != Split.SUMS:
            return 0, rows
        begin, whole = rows_in_storage(self.task.program, name)
        return OwnPart(0, rows) if rows == whole else OwnPart(0, rows, whole, begin)


class _Lowering:
    """The kernel of one task program, built up step by step.

    Which values of a group are in memory, and where, is decided first: the others never leave a
    register.
    """

    def __init__(self, task: TaskProgram, binding: Binding, plan: SegmentedTask | None) -> None:
        self.task, self.plan = task, plan
        self.nodes = task.program.nodes
        self.values = ValuePlaces(self.nodes, binding)
        self.shares = Shares(task, plan)
        self.memories = Memories()
        self.body: list[Statement] = []
        self.over_edges = False
        self.copied: set[int] = set()  # values that this segment has put into memory
        self.stored: set[int] = set()  # leaves that some segment has put into a tensor
        self.writers: dict[str, Callable[[int, Node], None]] = {
            "concat": self._concat,
            "sum_rows": self._sum_rows,
            **dict.fromkeys(SUMS_OVER_EDGES, self._sum_edges),
        }

    def kernel(self) -> KernelIR:
        """Lower all of it."""
        for i, read in self.task.reads.items():
            self.values.place[i] = self.values.stored(i, read)
        for i in sorted(self.task.local):
            kind = self.nodes[i].type
            place = self.memories.temporary(kind.size, kind.domain == Domain.EDGE)
            self.values.place[i] = place
        if self.plan is None:
            segments = [self._segment(None, self.task.steps)]
        else:
            segments = [self._segment(s.split, s.steps) for s in self.plan.segments]
        taken, needs = tuple(self.memories.taken), self.memories.elements
        binding = self.values.binding
        edges = binding.splits_edges, binding.relations
        return KernelIR(tuple(segments), by_rows(self.task.stage), taken, needs, *edges)

    def _segment(self, split: Split | None, steps: Sequence[Group | Product]) -> tuple[Step, ...]:
        self.shares.split, self.copied = split, set()
        found: list[Step] = []
        for step in steps:
            if isinstance(step, Product):
                of = self.task, self.values, self.shares, self.memories
                found += lower_product(step.node, *of)
            else:
                found.append(self._group(step))
        return tuple(found)

    def _group(self, group: Group) -> RowLoop:
        self.body, self.values.numbers = [], set()
        self.over_edges = group.domain == Domain.EDGE
        self._place(group.nodes)
        for k in group.nodes:
            self._lower(k)
            if k in self.task.homes:
                self._publish(k)
        return RowLoop(self.over_edges, tuple(self.body))

    # Places.

    def _place(self, members: Sequence[int]) -> None:
        """Give places to what a group must have in memory."""
        # A scratch row holds what the last row of its own loop left.
        self.values.place = {k: p for k, p in self.values.place.items() if p.rows != PlaceRows.ONE}
        self.values.place |= {k: self._home(k) for k in members if k in self.task.homes}
        for k in members:
            if self.nodes[k].op == "concat" and k in self.values.place:
                self._make_parts_in_place(k, set(members))
        # What is read as a row, or more than once, gets a scratch row.
        uses = Counter(i for k in members for i in self.nodes[k].inputs)
        rows = {self.nodes[r].inputs[0] for r in members if self.nodes[r].op in READ_AS_ROWS}
        for k in members:
            if k not in self.values.place and (k in rows or self._needs_row(k, uses[k])):
                self.values.place[k] = self.memories.scratch(self.nodes[k].type.size)

    def _home(self, k: int) -> ValuePlace:
        """Return where a value is made: its tensor, or, if all processors make it, a temporary."""
        if self.shares.is_private(k):
            kind = self.nodes[k].type
            return self.memories.temporary(kind.size, kind.domain == Domain.EDGE)
        return self.values.home(k, self.task.homes[k])

    def _make_parts_in_place(self, k: int, inside: set[int]) -> None:
        """Let parts of a stored concat be made where they end up, if the same processors do it."""
        start, private = 0, self.shares.is_private(k)
        for i in self.nodes[k].inputs:
            size = self.nodes[i].type.size
            free = (
                i in inside and i not in self.values.place and self.shares.is_private(i) == private
            )
            if free and size > 1 and can_move(self.nodes[i]):
                self.values.place[i] = self.values.place[k].part(start, size)
            start += size

    def _needs_row(self, k: int, uses: int) -> bool:
        """Tell whether a value must be in memory, though nothing outside of the group reads it."""
        node = self.nodes[k]
        if node.op in SUMS_OVER_EDGES:
            return True
        if node.type.shape == () or is_free(node) or node.type.domain == Domain.PARAM:
            return False
        scalar = OPS[node.op].role == "scalar"
        return node.op in ("nll_grad", "concat", "sum_repeated") or (uses > 1 and scalar)

    # Statements.

    def _lower(self, k: int) -> None:
        node, role = self.nodes[k], OPS[self.nodes[k].op].role
        if role == "effect":
            self._effect(k, node)
        elif node.op in self.writers:
            self.writers[node.op](k, node)
        elif node.type.shape == () and not self._is_read_in_place(k, node):
            self._number(k, node)
        elif k in self.values.place and not self._is_copied(k, node):
            to = self.values.place[k]
            self._fill(to, self.values.expression(k, J), self.shares.of_value(k))
            if to.memory == Memory.TEMPORARY:
                self.copied.add(k)
            elif to.in_tensor:
                self.stored.add(k)

    def _is_read_in_place(self, k: int, node: Node) -> bool:
        """Tell whether a value is a part of the expressions that use it."""
        return is_free(node) or (OPS[node.op].role == "view" and k not in self.values.place)

    def _is_copied(self, k: int, node: Node) -> bool:
        """Tell whether the rows of a leaf are in memory already.

        Those in a tensor are not written again by a later segment: others read them there.
        """
        of_edges = node.type.domain == Domain.EDGE
        written = k in self.copied or k in self.stored
        return is_free(node) and (written or of_edges > self.over_edges)

    def _fill(self, to: ValuePlace, value: Expression, spans: Spans, child: int = -1) -> None:
        self.body.append(Fill(to, value, spans, child))

    def _publish(self, k: int) -> None:
        """Copy the processor's share of a value that all processors make to its tensor."""
        place, to = self.values.place[k], self.values.home(k, self.task.homes[k])
        if place.memory == Memory.TEMPORARY and place.rows != PlaceRows.ONE:
            assert self.plan is not None, f"%{k} is of one processor"
            spans = tuple(OwnPart(a, b - a) for a, b in pairwise(self.plan.cuts[k]))
            self._fill(to, ReadElement(place, J), spans)

    def _number(self, k: int, node: Node) -> None:
        place = self.values.place.get(k)
        if node.op in REDUCTIONS:
            self.body.append(Reduce(k, node.op, self.values.place[node.inputs[0]]))
        else:
            self.body.append(Compute(k, self.values.expression(k, FIRST)))
        self.values.numbers.add(k)
        if place is not None:
            # A number that all processors have made is written by one of them.
            shared = place.memory != Memory.TEMPORARY and self.shares.split == Split.UNITS
            self._fill(place, Number(k), (OwnPart(0, 1) if shared else (0, 1),))

    def _concat(self, k: int, node: Node) -> None:
        whole, start = self.values.place[k], 0
        for i in node.inputs:
            size = self.nodes[i].type.size
            part = whole.part(start, size)
            if self.values.place.get(i) != part:
                self._fill(part, self.values.element(i, J), self.shares.of_value(k, start, size))
            start += size

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        to, child = self.values.target(node)
        if self.values.place.get(i) != to:
            spans = self.shares.of_value(k)
            if not isinstance(spans[0], OwnPart):  # an effect has no elements of its own
                spans = ((0, to.size),)
            self._fill(to, self.values.element(i, J), spans, child)

    # Sums over edges and over rows.

    def _sum_edges(self, k: int, node: Node) -> None:
        to, size = self.values.place[k], max(node.type.size, 1)
        total = None if node.op == "segment_max" else self.memories.scratch(size)
        sources, spans = self.values.sources(node), self.shares.of_value(k)
        found = SumEdges(to, sources, spans, total, node.relation, self.values.order(node))
        slots_or_all = node.op == "gather_parents" and not (node["every"] and node["slots"])
        if slots_or_all and to.memory == Memory.SCRATCH:
            source = found.sources[0]
            assert isinstance(source, FromParents)
            self.body.append(Choose(k, source, size, found))
            self.values.place[k] = ValuePlace(Memory.CHOSEN, k, size, PlaceRows.ONE)
            return
        self.body.append(found)
        if node.type.shape == ():
            self.body.append(Compute(k, ReadElement(to, FIRST)))
            self.values.numbers.add(k)

    def _sum_rows(self, k: int, node: Node) -> None:
        size = max(node.type.size, 1)
        rows = node.type.shape[0] if node.type.shape else 1
        for name in gradients_of(self.task, k):
            own = self.shares.own_rows(name, rows)
            self.body.append(
                SumRows(
                    self.values.binding.params[name],
                    self.values.element(node.inputs[0], J),
                    own,
                    size // rows,
                    self.memories.scratch(size),
                )
            )


def lower_product(
    k: int, task: TaskProgram, values: ValuePlaces, shares: Shares, memories: Memories
) -> Sequence[Step]:
    """Lower what works on all rows at once, or sums them into rows of a table.

    Its result lies where the task program says.
    """
    nodes = task.program.nodes
    node = nodes[k]
    if k in task.homes:
        values.place[k] = values.home(k, task.homes[k])

    def operand(i: int) -> Operand:
        """Return rows of memory, which are packed where they are not contiguous."""
        place = values.place[i]
        scattered = place.rows == PlaceRows.ROW and by_rows(task.stage)
        return Operand(place, values.pack(place, memories) if scattered else None)

    if node.op == "embed_grad":
        pull, source = node.inputs
        m, size = node.type.shape[0], node.type.size // node.type.shape[0]
        found: list[Step] = []
        for name in gradients_of(task, k):
            words: Span = shares.own_rows(name, m)
            columns: Span = (0, size)
            if shares.split == Split.SUMS and shares.plan and name in shares.plan.by_columns:
                words, columns = (0, m), OwnPart(0, size)
            param, number = values.binding.params[name], values.integer(pull)
            edges = nodes[pull].op == "edge_pull"
            place = values.place[source]
            found.append(AddLookups(param, number, size, place, words, columns, edges))
        return found
    if node.op == "outer":
        d, x = (operand(i) for i in node.inputs)
        (m, n), rows = node.type.shape, rows_of(nodes[node.inputs[0]].type)
        return [
            Outer(values.binding.params[name], d, x, *rows, m, n, shares.own_rows(name, m))
            for name in gradients_of(task, k)
        ]
    weight, x_at = node.inputs
    m, n = nodes[weight].type.shape
    param = values.binding.params[nodes[weight]["name"]]
    spans = shares.of_value(k, 0, n if node["transpose"] else m)
    rows = rows_of(node.type)
    x = operand(x_at)
    return [MatrixProduct(param, node["transpose"], x, operand(k), *rows, m, n, spans)]


def rows_of(kind: Type) -> tuple[bool, int]:
    """Return whether a product has rows of edges, and how many for each."""
    return kind.domain == Domain.EDGE, kind.shape[0] if len(kind.shape) == 2 else 1
