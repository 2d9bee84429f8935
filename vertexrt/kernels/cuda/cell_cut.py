"""Cut the path phases of a function into cells: stages, and where each value is placed.

A *cell* is what one kind of rows does on a side of the path, for the machine of `cell.cuh`. Its
stages are the segments of its task program: a product whose operand has been made in parts needs an
exchange before it. All else follows by placing each value where fewest numbers are sent:

- what a product reads of a child in full is *sent* by the child's row, into its state place;
- what is read of a child at own units alone is *kept* by its owner, in the same place;
- what a product reads of its own row in full is sent into a buffer of the level;
- what a later stage reads at own units is *carried* by its owner;
- what a row leaves for a child lies in an edge place, own units alone: the parent multiplies by the
  turned weights, so that the child adds up numbers of its parents' owners, which are its own;
- what other phases made is *read* from memory, some levels ahead, and what they read is stored.

A phase that the machine has no form for is no cell (`NoCell` says why), and runs as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from vertexrt.ir.layers import OF_ALL_CHILDREN, Phase, is_within_layer
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import Segment, SegmentedTask, Split
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key, is_free
from vertexrt.ir.program import ABOVE, OWN, PARENTS, Domain, Node, Program, Stage
from vertexrt.kernels.cuda.cell import (
    ABOVE_IT,
    EACH,
    ITSELF,
    CellFold,
    CellProduct,
    CellSide,
    CellStage,
    Combined,
    EachEdge,
    FixedNumber,
    Give,
    KindCell,
    Made,
    Make,
    OfChild,
    OnChip,
    Operand,
    OperandPlace,
    OverChildren,
    Present,
    RowNumber,
    Sort,
    Statement,
    Sum,
    Total,
    Vector,
    own_places,
)
from vertexrt.kernels.cuda.weights import ResidentWeight
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import edge_key, gradients_of
from vertexrt.lower.lowering import rows_of

MOST_SLOTS = 8


class NoCell(Exception):
    """Why a phase is no cell."""


class SideCut:
    """Cuts the tasks of a phase into the cells of a side.

    Args:
        tasks: of the phase, by number; segmented for several processors.
        summed: parameters whose gradients cells sum up: see `sums_of`.
    Raises: NoCell, here and in `cut`, where the machine has no form for what they do.

    Attributes:
        sent, kept, left: the fields of states and of edges, in the order of their vectors.
        parameters: numbers of those that are held.
    """

    def __init__(
        self,
        phase: Phase,
        tasks: Mapping[int, SegmentedTask],
        binding: Binding,
        processors: int,
        summed: Collection[str],
    ) -> None:
        self.phase, self.tasks, self.binding = phase, tasks, binding
        self.processors, self.summed = processors, summed
        (*_, plan) = tasks.values()
        self.layered = bool(plan.task.program.layers)
        self.units = _units(tasks.values())
        self.back = phase.stage == Stage.PATH_BACKWARD
        self.sent: list[str] = []
        self.kept: list[str] = []
        self.left: list[tuple[str, bool]] = []
        self.parameters: dict[tuple[int, int], int] = {}
        for plan in tasks.values():
            self._fields(plan)
        # What rows of one function have lies side by side.
        self.sent.sort(key=_function_of)
        self.kept = [name for name in self.kept if name not in self.sent]

    def _fields(self, plan: SegmentedTask) -> None:
        """Collect what rows hand to each other: fields read in full, at own units, and left."""
        program = plan.task.program
        nodes = program.nodes
        full: set[int] = set()
        stack = [nodes[k].inputs[1] for k in plan.task.members if nodes[k].op == "matmul"]
        stack += [nodes[k].inputs[0] for k in plan.task.members if nodes[k].op in FOLDS]
        while stack:
            k = stack.pop()
            if k not in full:
                full.add(k)
                if OPS[nodes[k].op].role != "product":
                    stack += nodes[k].inputs
        for k in plan.task.members:
            node = nodes[k]
            if self.gathers_on_chip(program, node):
                found = self.sent if k in full else self.kept
                if node["field"] not in found:
                    found.append(node["field"])
            leaves = node.op in SCATTERS and self.leaves_on_chip(program, node)
            if leaves and (node["field"], node["every"]) not in self.left:
                self.left.append((node["field"], node["every"]))

    def gathers_on_chip(self, program: Program, node: Node) -> bool:
        """Tell whether a node reads states of children that have places."""
        return node.op in GATHERS and not self.back and is_within_layer(program, node)

    def leaves_on_chip(self, program: Program, node: Node) -> bool:
        """Tell whether a gradient of children has edge places, which backward sides have alone.

        Zeros, of a child that a row does not read, may be made forward: these go to memory alone.
        """
        return self.back and is_within_layer(program, node)

    def cut(self, rows: int) -> CellSide:
        """Return the side, of which a level has so many rows at most."""
        cells = tuple(_Cut(self, p, plan).cut() for p, plan in self.tasks.items())
        tensors = self.binding.tensors
        sent, kept = (
            tuple(tensors["state", name] for name in names) for names in (self.sent, self.kept)
        )
        return CellSide(
            self.phase,
            self.units,
            self.processors,
            cells,
            sent,
            kept,
            tuple(tensors[edge_key(*of)] for of in self.left),
            tuple(self.parameters),
            rows,
            self.phase.layer if self.layered else -1,
            self.summed,
        )


class _Cut:
    """Cuts a task into the stages of a cell."""

    def __init__(self, side: SideCut, number: int, plan: SegmentedTask) -> None:
        self.side, self.number = side, number
        self.task, self.segments = plan.task, [*_before_folds(plan)]
        self.program = self.task.program
        self.nodes = self.program.nodes
        self.units, self.tensors = side.units, side.binding.tensors
        self.effects = {k for k, x in enumerate(self.nodes) if OPS[x.op].role == "effect"}
        # Nodes that are made, or whose effect is done, for each edge.
        self.edges = {k for k, x in enumerate(self.nodes) if x.op == "scatter_children"}
        for k, node in enumerate(self.nodes):
            made = self.nodes[node.inputs[0]] if k in self.effects else node
            if made.type.domain == Domain.EDGE:
                self.edges.add(k)
        self.made_in: dict[int, int] = {}  # the stage that makes each value
        # Operands that are copied ahead: of rows, of edges, and those that are read in full.
        self.reads = [dict[OperandPlace, int]() for _ in range(3)]
        self.on_chip: set[int] = set()
        self.over_children = False  # a vector of each child is being stated
        self.carried: dict[Made, int] = {}
        self.sent: dict[Made, int] = {}  # vectors in buffers
        self.sends: list[list[Made]] = [[] for _ in self.segments]  # of each stage
        self.products: dict[int, int] = {}  # the number of each in its stage
        # Numbers that are made of whole vectors: of a row, and of an edge.
        self.folds: dict[int, OnChip] = {}
        # Of each stage, of which later ones may want more.
        self.statements: list[list[Statement]] = [[] for _ in self.segments]
        self.known: list[dict[Made, Operand]] = [{} for _ in self.segments]
        # Of the loop over edges that is being stated, if one is.
        self.each: list[Make | Give | Sum] = []
        self.of_edge: dict[Made, Operand] | None = None

    def cut(self) -> KindCell:
        """Return the cell."""
        segments = self.segments
        members = [self.nodes[k] for k in self.task.members]
        lists = self.program.arity is None or not self.edges.isdisjoint(self.task.members)
        lists |= any(x["every"] for x in members if x.op in ("gather_parents", *SCATTERS))
        lists |= any(x.op in OF_ALL_CHILDREN for x in members)
        if lists and any(x.op in OF_SLOTS for x in members):
            raise NoCell("slots and lists of children together")
        if lists and self.side.binding.splits_edges:  # scripts have the edges of slots
            raise NoCell("lists of children beside slots")
        for s, segment in enumerate(segments):
            if segment.split == Split.SUMS:
                raise NoCell("sums over rows on the path")
            for k in segment.members:
                if self.nodes[k].relation:
                    raise NoCell("children of several relations")
                if not is_free(self.nodes[k]):
                    self.made_in.setdefault(k, s)
        self._find_sends()
        stages = tuple(self._stage(s) for s in range(len(segments)))
        if not self.side.back:
            given = {(x.what, x.number) for stage in stages for x in stage.gives}
            scattered = [x["field"] for x in self.nodes if x.op == "scatter"]
            functions = {*map(_function_of, scattered)}
            for what, names in (("hand", self.side.sent), ("keep", self.side.kept)):
                mine = [n for n, name in enumerate(names) if _function_of(name) in functions]
                if any((what, n) not in given for n in mine):
                    raise NoCell("states that are not made on the path")
        reading = [s for s, stage in enumerate(stages) if _reads_states(stage)]
        if any(stage.count("hand") for stage in stages[: max(reading, default=0)]):
            # A member that has met over them may send the next row to the place of a child.
            raise NoCell("states that are sent before those of children have been read")
        slots = 0 if lists else self.program.arity or 0
        if slots > MOST_SLOTS:
            raise NoCell(f"{slots} children")
        found = [self._carry(s, stages[s]) for s in reversed(range(len(stages)))]
        reads, edge_reads, full_reads = self.reads
        return KindCell(
            self.number,
            slots,
            (*found[-1:0:-1], self._with_zeros(found)),
            tuple(reads),
            tuple(edge_reads),
            tuple(full_reads),
            frozenset(self.on_chip),
        )

    def _with_zeros(self, found: Sequence[CellStage]) -> CellStage:
        """Return the last stage, which leaves in edge places what no stage of the path does.

        Gradients of fields that a row does not read of a child are zeros, which are made before.

        Args:
            found: the stages, the last one first.
        """
        left = {(x.slot, x.number) for stage in found for x in stage.gives if x.what == "leave"}
        more: list[Give] = []
        for slot in sorted({slot for slot, number in left if number >= 0}):
            names = {self.side.left[number][0] for at, number in left if at == slot and number >= 0}
            functions = {*map(_function_of, names)}
            for number, (name, every) in enumerate(self.side.left):
                if (slot, number) in left or _function_of(name) not in functions:
                    continue
                nodes = [x for x in self.nodes if x.op in SCATTERS and x["field"] == name]
                mine = [x for x in nodes if x["every"] == every and x["slot"] == max(slot, 0)]
                if any(self.nodes[x.inputs[0]].op != "const" for x in mine) or not mine:
                    raise NoCell("gradients of children that another stage leaves")
                value = FixedNumber(float(self.nodes[mine[0].inputs[0]]["value"]))
                more.append(Give("leave", value, number, slot=slot))
        zeros: tuple[Statement, ...] = tuple(more)
        if any(x.slot == EACH for x in more):
            zeros = (EachEdge(tuple(more)),)
        return replace(found[0], statements=found[0].statements + zeros)

    # What is exchanged.

    def _find_sends(self) -> None:
        """Find the vectors that products of later stages read in full."""
        for s, segment in enumerate(self.segments):
            for step in segment.steps:
                if isinstance(step, Product):
                    for of in self._operand_vectors(step.node):
                        for node, piece in of:
                            self._find_sent(s, node, piece)
                for k in self._folds_of(step):
                    for piece in range(self._pieces(self.nodes[k].inputs[0])):
                        self._find_sent(s, self.nodes[k].inputs[0], piece)
        for edges in (False, True):
            made = (x for s in range(len(self.segments)) for x in self._sends(s, edges))
            self.sent |= {x: n for n, x in enumerate(made)}

    def _sends(self, s: int, edges: bool) -> list[Made]:
        """List the vectors of rows, or of edges, that a stage sends to buffers."""
        return [x for x in self.sends[s] if (x.node in self.edges) == edges]

    def _find_sent(self, s: int, k: int, piece: int) -> None:
        k, piece = self._viewed(k, piece)
        node = self.nodes[k]
        if k in self.task.reads or node.op in FOLDS:
            return
        if self.made_in.get(k, s) < s and not self._is_whole(k):
            vectors = self.sends[self.made_in[k]]
            if Made(k, piece) not in vectors:
                vectors.append(Made(k, piece))
        elif OPS[node.op].role == "scalar" or node.op in (*SEGMENTS, "to_edges", "spread"):
            for i in node.inputs:
                self._find_sent(s, i, piece)

    def _folds_of(self, step: Group | Product) -> list[int]:
        return [k for k in step.nodes if self.nodes[k].op in FOLDS and k not in self.task.reads]

    def _is_whole(self, k: int) -> bool:
        """Tell whether each processor can make a value in full from what lies on chip."""
        node = self.nodes[k]
        if k in self.task.reads:
            return k not in self.edges and node.type.shape != ()
        if node.op in FOLDS:
            return k not in self.edges
        if node.op in (*GATHERS, "const", "param", "has_child", "present"):
            return not (self.side.back and node.op in GATHERS)
        passes = OPS[node.op].role in ("scalar", "view") or node.op in (*SEGMENTS, "to_edges")
        return passes and all(self._is_whole(i) for i in node.inputs)

    def _operand_vectors(self, k: int) -> list[list[tuple[int, int]]]:
        """Return the pieces of the operand of a product: of each of its rows for a row."""
        node = self.nodes[k]
        edges, times = rows_of(node.type)
        if node.op != "matmul" or (edges and times > 1):
            raise NoCell(f"{node.op} on the path")
        x = node.inputs[1]
        pieces = self._pieces(x)
        if pieces % times:
            raise NoCell("rows of a product that are no vectors")
        each = pieces // times
        return [[(x, t * each + piece) for piece in range(each)] for t in range(times)]

    def _pieces(self, k: int) -> int:
        """Return how many vectors a value has."""
        size = self.nodes[k].type.size
        if self.nodes[k].type.shape == ():
            raise NoCell("numbers that are kept")
        if size % self.units:
            raise NoCell(f"values of {size} elements beside vectors of {self.units}")
        return size // self.units

    def _parts(self, k: int) -> int:
        """Return how many vectors a value has; 1 for a number."""
        return 1 if self.nodes[k].type.shape == () else self._pieces(k)

    def _viewed(self, k: int, piece: int) -> tuple[int, int]:
        """Return what a piece of a view is a piece of, where that has the same rows."""
        while k not in self.task.reads:
            node = self.nodes[k]
            if node.op == "slice":
                if node["start"] % self.units or node.type.shape == ():
                    raise NoCell("a slice that is no vector")
                k, piece = node.inputs[0], piece + node["start"] // self.units
            elif node.op == "concat":
                for i in node.inputs:
                    pieces = self._pieces(i)
                    if piece < pieces:
                        k = i
                        break
                    piece -= pieces
            else:
                break
        return k, piece

    def _vector(self, k: int, piece: int) -> Vector:
        """Return a vector on chip that a product reads."""
        k, piece = self._viewed(k, piece)
        node = self.nodes[k]
        if Made(k, piece) in self.sent:
            return OnChip("sent", self.sent[Made(k, piece)], k in self.edges)
        if k in self.task.reads:
            if node.type.shape == () or k in self.edges:
                raise NoCell("a product of numbers, or of values of edges, from memory")
            return self._copied("full", self._stored(k, piece))
        if node.op == "const":
            return FixedNumber(float(node["value"]))
        if self.side.gathers_on_chip(self.program, node):
            return self._of_child(node)
        if node.op in FOLDS:
            return self.folds[k]
        if node.op == "spread":
            return self._vector(node.inputs[0], 0)
        if node.op == "param":
            return self._parameter(k, piece)
        if node.op in SEGMENTS:
            self.over_children = True
            vector = self._vector(node.inputs[0], piece)
            self.over_children = False
            return OverChildren(vector, node.op == "segment_max")
        if node.op == "to_edges" and self.over_children:
            return self._vector(node.inputs[0], piece)
        expression = OPS[node.op].scalar
        if expression is None or OPS[node.op].draws:
            raise NoCell(f"a product of {node.op}, which is not on chip")
        return Combined(expression, tuple(self._vector(i, self._of(i, piece)) for i in node.inputs))

    def _of(self, k: int, piece: int) -> int:
        """Return which piece of an operand a piece of a result is made of; numbers have one."""
        return 0 if self.nodes[k].type.shape == () else piece

    # Stages.

    def _stage(self, s: int) -> CellStage:
        segment, statements = self.segments[s], self.statements[s]
        folds = tuple(self._fold(s, k) for step in segment.steps for k in self._folds_of(step))
        products: list[CellProduct] = []
        for step in segment.steps:
            if isinstance(step, Product):
                held = self._weight(step.node)
                rows = self._operand_vectors(step.node)
                operands = tuple(tuple(self._vector(k, p) for k, p in of) for of in rows)
                self.products[step.node] = len(products)
                edges, _ = rows_of(self.nodes[step.node].type)
                products.append(self._with_sums(step.node, CellProduct(held, operands, edges)))
        self._each_edge(s)
        for n, made in enumerate(self._sends(s, False)):
            statements.append(Give("send", self._at(s, made.node, made.piece), n))
        for k in dict.fromkeys(segment.members):
            if k not in self.edges and (self.made_in.get(k, s) == s or k in self.effects):
                self._give(s, k)
        if s == len(self.segments) - 1 and not self.side.back:
            self._pass_on(s)
        stage = CellStage(tuple(products), folds, tuple(statements))
        states = sorted(x.number for x in stage.gives if x.what == "hand")
        if states != [*range(stage.first_state, stage.first_state + len(states))]:
            raise NoCell("states that are sent in another order")
        return stage

    def _with_sums(self, k: int, product: CellProduct) -> CellProduct:
        """Let a product add to its weight's gradient what an earlier stage carries for it."""
        for name, _, outer, of in sums_of(self.task):
            if of == k and name in self.side.summed:
                x = self.nodes[outer].inputs[1]
                assert self.made_in.setdefault(x, 0) < self.made_in[k], "the operand was sent"
                made = [Made(x, piece) for piece in range(self._pieces(x))]
                first, *_ = [self.carried.setdefault(each, len(self.carried)) for each in made]
                word = product.held.word.replace("param", "gradient")
                return replace(product, sums=replace(product.held, word=word), first=first)
        return product

    def _each_edge(self, s: int) -> None:
        """State what is done for edges, in as few loops as sums over them allow."""
        roots: dict[int, list[int]] = {}
        for k in dict.fromkeys(self.segments[s].members):
            made, effect = self.made_in.get(k) == s, k in self.effects
            sums = made and self.nodes[k].op in SEGMENTS
            goes = k in self.task.homes or any(x.node == k for x in self.sends[s])
            if sums or (k in self.edges and (effect or (made and goes))):
                roots.setdefault(self._loop_of(s, k), []).append(k)
        for loop in sorted(roots):
            self.each, self.of_edge = [], {}
            sums_made: list[Made] = []
            for k in roots[loop]:
                node = self.nodes[k]
                if node.op in SEGMENTS:
                    if self._is_whole(k) and not self._is_read(s, k):
                        continue
                    for piece in range(self._parts(k)):
                        x = self._at(s, node.inputs[0], piece)
                        sums_made.append(Made(k, piece))
                        self.each.append(Sum(Made(k, piece), x, node.op == "segment_max"))
                else:
                    self._give(s, k)
            if self.each:
                self.statements[s].append(EachEdge(tuple(self.each)))
            self.known[s] |= {made: made for made in sums_made}
        self.of_edge = None

    def _is_read(self, s: int, k: int) -> bool:
        """Tell whether a value is read other than as the operand of a product."""
        if k in self.task.homes:
            return True
        members = (self.nodes[i] for i in self.segments[s].members)
        return any(k in x.inputs and x.op != "matmul" for x in members)

    def _fold(self, s: int, k: int) -> CellFold:
        """Return how a number is made of a vector."""
        node = self.nodes[k]
        (x,) = node.inputs
        vectors = tuple(self._vector(x, piece) for piece in range(self._pieces(x)))
        mine = {to for i, to in self.folds.items() if self.made_in[i] == s}
        edges = k in self.edges
        number = sum(x.edges == edges for x in self.folds.values())
        self.folds[k] = OnChip("folded", number, edges)
        return CellFold(node.op, vectors, self.folds[k], not mine.isdisjoint(_leaves(vectors)))

    def _loop_of(self, s: int, k: int) -> int:
        """Return in which loop over the edges a value is made: after the sums that it needs."""
        found = 0
        for i in self.nodes[k].inputs:
            if self.made_in.get(i) == s:
                found = max(found, self._loop_of(s, i) + (self.nodes[i].op in SEGMENTS))
        return found

    def _give(self, s: int, k: int) -> None:
        """Say where a value goes that others read: of a row, or of each edge in a loop."""
        node, edges = self.nodes[k], k in self.edges
        to: list[Any] = self.each if edges else self.statements[s]
        if node.op in SCATTERS:
            to.append(self._left(s, node))
            return
        given: list[tuple[int, Key]] = []
        if k in self.task.homes and self.task.homes[k][0] != "exchange":
            given.append((k, self.task.homes[k]))
        if node.op in TENSOR_OF_EFFECT:
            given.append((node.inputs[0], TENSOR_OF_EFFECT[node.op](node)))
        what = "store_edge" if edges else "store"
        for value, key in given:
            size = max(self.nodes[value].type.size, 1)
            for piece in range(self._pieces(value) if key[0] == "state" else self._parts(value)):
                x = self._at(s, value, piece)
                to.append(Give(what, x, self.tensors[key], size, piece * self.units))
                if key[0] == "state" and not self.side.back:
                    self._publish(s, str(key[1]), x)
        for n, made in enumerate(self._sends(s, True)):
            if made.node == k:
                to.append(Give("send_edge", self._at(s, k, made.piece), n))

    def _publish(self, s: int, field: str, x: Operand) -> None:
        """Say where a state goes on chip, if parents read it there."""
        for what, fields in (("hand", self.side.sent), ("keep", self.side.kept)):
            if field in fields:
                self.statements[s].append(Give(what, x, fields.index(field)))

    def _pass_on(self, s: int) -> None:
        """Give states that were made before the path."""
        for node in self.nodes:
            if node.op != "scatter" or node.stage != Stage.EAGER:
                continue
            name = node["field"]
            if name not in (*self.side.sent, *self.side.kept):
                continue
            if self.nodes[node.inputs[0]].type.size != self.units:
                raise NoCell("states that are no vectors")
            tensor = self.tensors["state", name]
            self._publish(
                s, name, self._copied("read", OperandPlace(tensor, self.units, 0, ITSELF))
            )

    def _left(self, s: int, node: Node) -> Give:
        of, every = (node["field"], node["every"]), node.op == "scatter_children"
        if self.nodes[node.inputs[0]].type.size != self.units or node["every"] != every:
            raise NoCell("gradients of children that are no vectors")
        x, tensor = self._at(s, node.inputs[0], 0), self.tensors[edge_key(*of)]
        on_chip = self.side.leaves_on_chip(self.program, node)
        number = self.side.left.index(of) if on_chip else -1
        slot = EACH if every else node["slot"]
        if on_chip and not every:
            self.on_chip.add(slot)
        return Give("leave", x, number, self.units, slot=slot, edge=tensor)

    def _weight(self, k: int) -> ResidentWeight:
        """Return what a product multiplies by, whose columns are vectors as they lie on chip."""
        node = self.nodes[k]
        matrix = self.nodes[node.inputs[0]]
        m, n = matrix.type.shape
        turned = bool(node["transpose"])
        deep, wide = (m, n) if turned else (n, m)
        if deep % self.units or wide % self.units:
            raise NoCell(f"a weight of {m} x {n} beside vectors of {self.units}")
        chip = own_places(self.units, self.side.processors) * self.side.processors
        cuts = tuple(range(0, wide + 1, self.units))
        word = f"param_{self.side.binding.params[matrix['name']]}"
        return ResidentWeight(word, n, turned, cuts, deep // self.units * chip)

    # Values at a unit.

    def _at(self, s: int, k: int, piece: int) -> Operand:
        """Return a piece of a value at the unit of a row; state what makes it first.

        Of each edge, in the loop that is being stated.
        """
        k, piece = self._viewed(k, piece)
        node, made = self.nodes[k], Made(k, piece)
        edges = k in self.edges
        known = self.of_edge if edges else self.known[s]
        if known is None:
            raise NoCell("values of edges")
        if made not in known:
            if k in self.folds:
                known[made] = self.folds[k]
            elif k in self.task.reads:
                sort: Sort = "read" if node.type.shape != () else "read_number"
                known[made] = self._copied(sort, self._stored(k, piece), edges)
            elif not edges and not is_free(node) and self.made_in.get(k, s) < s:
                known[made] = OnChip("carried", self.carried.setdefault(made, len(self.carried)))
            else:
                known[made] = self._new(s, k, node, piece)
        return known[made]

    def _new(self, s: int, k: int, node: Node, piece: int) -> Operand:
        match node.op:
            case "const":
                return FixedNumber(float(node["value"]))
            case "degree" | "loss_scale" | "weight":
                return RowNumber(node.op)
            case "present":
                return Present(node["slot"])
            case "has_child":
                return Present(EACH)
            case "param":
                return self._parameter(k, piece)
            case "gather" | "gather_all":
                return self._gathered(node, piece)
            case "gather_parents":
                return self._from_parents(s, k, node, piece)
            case "matmul":
                if self.made_in[k] != s:
                    raise NoCell("products of edges that a later stage reads")
                edges, times = rows_of(node.type)
                each = self._pieces(k) // times
                return Total(self.products[k], piece // each, piece % each, edges)
            case "spread" | "to_edges":
                return self._at(s, node.inputs[0], self._of(node.inputs[0], piece))
        expression = OPS[node.op].scalar
        if expression is None or OPS[node.op].draws:
            raise NoCell(f"{node.op} on the path")
        if node.type.shape != ():
            self._pieces(k)
        operands = tuple(self._at(s, i, self._of(i, piece)) for i in node.inputs)
        make = Make(Made(k, piece), expression, operands)
        (self.each if k in self.edges else self.statements[s]).append(make)
        return make.to

    def _parameter(self, k: int, piece: int) -> OnChip:
        key = self.side.binding.params[self.nodes[k]["name"]], piece * self.units
        self._pieces(k)
        number = self.side.parameters.setdefault(key, len(self.side.parameters))
        return OnChip("parameter", number)

    def _from_parents(self, s: int, k: int, node: Node, piece: int) -> Operand:
        """Return what the parents left: those of the layer in places, the others in memory."""
        of = node["field"], node["every"]
        if node["every"] and node["slots"]:
            raise NoCell("gradients of slots and lists")
        which = node[PARENTS] if node.has(PARENTS) else ""
        found: list[Operand] = []
        if which != ABOVE and of in self.side.left:
            found.append(OnChip("from_parents", self.side.left.index(of)))
        elif which != ABOVE and not self.side.layered:
            raise NoCell("gradients that no parent of this side leaves")
        if self.side.layered and which != OWN:
            if node["every"]:
                raise NoCell("lists of children of several layers")
            tensor = self.tensors[edge_key(*of)]
            found.append(self._copied("read", OperandPlace(tensor, self.units, 0, ABOVE_IT)))
        if not found:
            return FixedNumber(0.0)
        if len(found) == 1:
            return found[0]
        self.statements[s].append(Make(Made(k, piece), "x0 + x1", tuple(found)))
        return Made(k, piece)

    def _gathered(self, node: Node, piece: int) -> Operand:
        every = node.op == "gather_all"
        if not self.side.gathers_on_chip(self.program, node):
            tensor = self.tensors["state", node["field"]]
            slot = 0 if every else node["slot"]
            place = OperandPlace(tensor, node.type.size, piece * self.units, slot)
            return self._copied("read", place, every)
        if node.type.size != self.units:
            raise NoCell("states that are no vectors")
        return self._of_child(node)

    def _of_child(self, node: Node) -> OfChild:
        name, slot = node["field"], EACH if node.op == "gather_all" else node["slot"]
        if slot != EACH:
            self.on_chip.add(slot)
        sent = name in self.side.sent
        return OfChild(slot, (self.side.sent if sent else self.side.kept).index(name), sent)

    def _stored(self, k: int, piece: int) -> OperandPlace:
        read, kind = self.task.reads[k], self.nodes[k].type
        if kind.dtype != "float" or (kind.shape == () and read.width != 1):
            raise NoCell("numbers from memory that are parts of vectors, or indices")
        tensor = self.tensors[read.key]
        return OperandPlace(tensor, read.width, read.start + piece * self.units, ITSELF)

    def _copied(self, sort: Sort, place: OperandPlace, edges: bool = False) -> OnChip:
        of = self.reads[2 if sort == "full" else int(edges)]
        return OnChip(sort, of.setdefault(place, len(of)), edges)

    def _carry(self, s: int, stage: CellStage) -> CellStage:
        """Add to a stage what later ones want of it."""
        for made, n in [*self.carried.items()]:
            if self.made_in[made.node] == s:
                x = self._at(s, made.node, made.piece)
                self.statements[s].append(Give("carry", x, n))
        return replace(stage, statements=tuple(self.statements[s]))


def sums_of(task: TaskProgram) -> Iterator[tuple[str, Key, int, int]]:
    """Yield the gradients of weights that a task of the path can sum up: products after the path.

    Returns: the parameter, where the first operand lies after the path, the node, and that of the
        path's product of this operand and the weight.
    """
    nodes, at_hand = task.program.nodes, {*task.reads}  # in memory, or following from what is
    for k, node in enumerate(nodes):
        follows = node.op == "concat" or (OPS[node.op].role == "scalar" and not OPS[node.op].draws)
        if node.op in ("gather", "const") or (follows and at_hand.issuperset(node.inputs)):
            at_hand.add(k)
    outers = [k for k, node in enumerate(nodes) if node.op == "outer"]
    for product in task.members:
        if nodes[product].op == "matmul" and nodes[product]["transpose"]:
            weight, d = nodes[product].inputs
            name = nodes[weight]["name"]
            made = d in task.homes and nodes[d].type.domain != Domain.EDGE
            mine = [k for k in outers if nodes[k].inputs[0] == d and name in gradients_of(task, k)]
            if made and len(mine) == 1 and nodes[mine[0]].inputs[1] in at_hand:
                yield name, task.homes[d], mine[0], product


def _units(tasks: Iterable[SegmentedTask]) -> int:
    """Return the elements of a vector: of all pieces that processors share out."""
    found: set[int] = set()
    for plan in tasks:
        nodes = plan.task.program.nodes
        for k in plan.task.members:
            if nodes[k].type.size > 1 and nodes[k].type.dtype == "float":
                found |= {b - a for a, b in pairwise(plan.cuts.get(k, ()))}
    if len(found) != 1 or found == {1}:  # rows of one element are numbers
        raise NoCell(f"vectors of {', '.join(map(str, sorted(found))) or 'no'} elements")
    return found.pop()


GATHERS, SCATTERS = ("gather", "gather_all"), ("scatter_child", "scatter_children")
FOLDS = ("reduce_sum", "reduce_max", "logsumexp")
SEGMENTS = ("segment_sum", "segment_max")
OF_SLOTS = ("gather", "present", "scatter_child")


def _before_folds(plan: SegmentedTask) -> Iterator[Segment]:
    """Yield the segments of a task, cut before each number that is made of a vector.

    But where the vector is simple arithmetic of what has been sent, and of such numbers, every
    processor makes it in full. A product is cut off what is made of numbers of edges.
    """
    nodes, task = plan.task.program.nodes, plan.task
    whole = ("const", "param", *GATHERS) if task.stage == Stage.PATH else ("const", "param")
    made: set[int] = set()  # in segments before
    for segment in plan.segments:
        simple: set[int] = set()  # what every processor has in full, or can make so
        of_edges: set[int] = set()  # what is made of numbers of edges, in loops over them
        after: dict[int, int] = {}
        for k in segment.members:
            node = nodes[k]
            folds, inputs = node.op in FOLDS, {i for i in node.inputs if i not in made}
            passes = OPS[node.op].role in ("scalar", "view") and inputs <= simple
            if k in made or node.op in whole or folds or passes:
                simple.add(k)
            before = (after.get(i, 0) for i in node.inputs if i not in task.reads)
            if (folds and node.type.domain == Domain.EDGE) or not inputs.isdisjoint(of_edges):
                of_edges.add(k)
            cut = folds and not inputs <= simple
            cut |= node.op == "matmul" and not inputs.isdisjoint(of_edges)
            after[k] = max(before, default=0) + int(cut)
        for n in range(max(after.values(), default=0) + 1):
            steps: list[Group | Product] = []
            for step in segment.steps:
                chosen = tuple(k for k in step.nodes if is_free(nodes[k]) or after[k] == n)
                if isinstance(step, Group):
                    if not all(is_free(nodes[k]) for k in chosen):
                        steps.append(replace(step, nodes=chosen))
                elif chosen:
                    steps.append(step)
            yield replace(segment, steps=tuple(steps))
        made.update(k for k in segment.members if not is_free(nodes[k]))


def _leaves(vectors: Iterable[Vector]) -> Iterator[Vector]:
    for x in vectors:
        if isinstance(x, Combined):
            yield from _leaves(x.operands)
        else:
            yield x


def _reads_states(stage: CellStage) -> bool:
    """Tell whether a stage reads vectors in full that children have sent."""
    read = [x for fold in stage.folds for x in fold.vectors]
    read += [x for product in stage.products for of in product.operands for x in of]
    return any(isinstance(x, OfChild | OverChildren) for x in _leaves(read))


def _function_of(field: str) -> str:
    """Return by which functions a field is scattered, as it is named: `function.field`."""
    return field.rpartition(".")[0]
