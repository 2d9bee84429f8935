"""Print the cells of a side of the path: facts and scalar expressions, for `cell.cuh`.

    struct side_0_cell_6 {
      static constexpr int SLOTS = 1;
      struct stage_0 {
        ...
        template <class M, class Rows>
        static __device__ __forceinline__ void multiply(M& m, const Rows& rows, int count) {
          make_all_partial_sums<8, 4, 64, 256>(m.held.param_1_0_256, 0, count, [&](int i) {
            return m.state(rows, i, 0, 0);
          }, m.partial + 0);
        }
        template <class E>
        static __device__ __forceinline__ void elements(const E& e) {
          const real v12_0 = (e.read(0) + e.template sum<8, 64, 256>(0, 1, 0, 0));
          ...

A cell may be written by hand in the same form: `docs/device.md` says how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from vertexrt.ir.expressions import CUDA, translate
from vertexrt.kernels.cuda.cell import (
    EACH,
    ROW_WORDS,
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
    Sum,
    Total,
    Vector,
    operands_of,
)
from vertexrt.kernels.cuda.weights import SideWeights

PARTIAL = {"reduce_sum": "RowSum", "reduce_max": "RowMax", "logsumexp": "RowLogSumExp"}
INLINE = "__device__ __forceinline__"
OF_CELLS = {"tanh": "cell_tanh", "sigmoid": "cell_sigmoid"}  # cell_functions.cuh
CELLS = replace(CUDA, functions={**CUDA.functions, **OF_CELLS})
TO_MEMORY = ("store", "leave")
QUARTET = 4  # elements of an operand that a lane reads at once
MOST_TOGETHER = 2  # operands of a product, where products of one row take their steps together


def cell_places(side: CellSide, left: int) -> tuple[int, int]:
    """Return how many state places and edge places there are in so many elements."""
    state, edge = side.sizes["STATE"], len(side.left) * side.own
    return (
        min(MOST_PLACES, left // state) if state else 0,
        min(MOST_PLACES, left // edge) if edge else 0,
    )


MOST_PLACES = 4096
PIECE, BUFFERS = 1024, 4  # as in cell.cuh


def least_places(side: CellSide) -> int:
    """Return the elements of the fewest places that a level needs."""
    slots = max(cell.slots for cell in side.cells)
    most = 1 + side.rows * (slots + 1) + (0 if slots else side.edges)
    return most * max(side.sizes["STATE"], len(side.left) * side.own)


def fixed_bytes(side: CellSide, itemsize: int) -> int:
    """Count the bytes of shared memory that a side takes besides places and weights."""
    n, own, on_chip, rows, edges = side.sizes, side.own, side.on_chip, side.rows, side.edges
    reals = (
        n["PARAMETERS"] * on_chip,
        BUFFERS * rows * n["READS"] * own,
        rows * n["STAGED"] * own,
        rows * n["CARRIED"] * own,
        2 * rows * n["EXCHANGED"] * on_chip,
        rows * n["FOLDS"],
        edges * n["EDGE_FOLDS"],
        BUFFERS * edges * n["EDGE_READS"] * own,
        BUFFERS * rows * n["FULL_READS"] * on_chip,
        edges * n["STAGED_EDGES"] * own,
        2 * edges * n["EXCHANGED_EDGES"] * on_chip,
        n["PARTIAL"],
    )
    operands = n["CELLS"] * (n["READS"] + n["EDGE_READS"] + n["FULL_READS"])
    tables = (16 * PIECE, 16 * operands)
    return sum(-(-n // 16) * 16 for n in (*tables, *(n * itemsize for n in reals))) + 32


OF_KERNEL = "const long long* const own = job.w;"
# Words that a processor has at hand: in place of the arguments of a step, which it has none of.
MOST_WORDS = 96


@dataclass(frozen=True, slots=True)
class SharedSide:
    """A function of a kernel.

    Attributes:
        name: of the function; lines: its text, and that of its tables.
        sides: the numbers of those that it is; words: what they are given.
    """

    name: str
    lines: tuple[str, ...]
    sides: tuple[int, ...]
    words: frozenset[str]


Placed = tuple[CellSide, SideWeights, tuple[int, int]]


def share_cells(sides: Mapping[int, Placed], words: Mapping[str, int]) -> list[SharedSide]:
    """Return the functions of the sides that run cells: sides that are alike have one.

    Such sides differ in what they are given, which a table says then.

    Args:
        words: numbers of what the kernel is given, by name.
    """
    alike: dict[str, dict[int, _Given]] = {}
    for number, placed in sides.items():
        given = _Given()
        text = "\n".join(CellText("side_K", *placed, given, "").lines())
        alike.setdefault(text, {})[number] = given
    found = []
    for members in alike.values():
        first, *others = members
        name, numbers = f"side_{first}", tuple(members)
        read = frozenset(word for given in members.values() for word in given)
        tables = [[words[word] for word in given] for given in members.values()]
        count = len(tables[0])
        if not others or count > MOST_WORDS:
            for k in numbers:
                lines = CellText(f"side_{k}", *sides[k], words).lines()
                found.append(SharedSide(f"side_{k}", tuple(lines), (k,), read))
            continue
        rows = ", ".join(f"{{{', '.join(map(str, table))}}}" for table in tables)
        turns = " : ".join(f"side == {k} ? {turn}" for turn, k in enumerate(numbers[:-1]))
        own = f"own_words<{count}>(job.w, {name}_words[{turns} : {len(numbers) - 1}])"
        own = f"const long long* const own = {own};"
        table = f"__constant__ const short {name}_words[][{count}] = {{{rows}}};"
        lines = CellText(name, *sides[first], _Given(), own).lines()
        found.append(SharedSide(name, (table, *lines), numbers, read))
    return found


class _Given(dict[str, int]):
    """Numbers what a side is given, in the order in which its text names it."""

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]


class CellText:
    """The text of a side.

    Args:
        name: of the side; places: of `cell_places`.
        words: numbers of what the side is given, by name; own: the statement that finds it.
    """

    def __init__(
        self,
        name: str,
        side: CellSide,
        weights: SideWeights,
        places: tuple[int, int],
        words: Mapping[str, int],
        own: str = OF_KERNEL,
    ) -> None:
        self.side, self.weights, self.own = side, weights, own
        self.held = {h: f"weight_{k}" for k, h in enumerate(weights.held)}
        self.places, self.words = places, words
        self.name, self.sizes = name, side.sizes

    def lines(self) -> list[str]:
        """Return the text of the side: its cells, its facts and its function."""
        found: list[str] = []
        for cell in self.side.cells:
            found += self._cell(cell)
        return [*found, *self._facts(), *self._function()]

    # Cells.

    def _cell(self, cell: KindCell) -> list[str]:
        lines = [
            f"struct {self._cell_name(cell)} {{",
            f"  static constexpr int SLOTS = {cell.slots}, CHAIN = {cell.chain};",
            f"  static constexpr int EXCHANGED = {cell.count('send')};",
            f"  static constexpr int EXCHANGED_EDGES = {cell.count('send_edge')};",
        ]
        stages, last = cell.stages, len(cell.stages) - 1
        meeting = [s for s, x in enumerate(stages) if x.vectors + x.count("send_edge")]
        fetches = max(meeting, default=last)
        lines.append(f"  static constexpr bool FETCHES_LAST = {_true(fetches == last)};")
        name = self._cell_name(cell)
        for s, stage in enumerate(stages):
            text = self._stage(s, stage, stages[:s], s == fetches)
            lines += [f"  {line}" for line in text]
        lines += [
            "  template <class M, class Rows>",
            f"  static {INLINE} void run(M& m, const Rows& rows, int count, int edges,",
            "                           int sent) {",
        ]
        for s in range(len(stages)):
            which = f"{name}, stage_{s}, {_true(s == 0)}, {_true(s == last)}"
            lines.append(f"    m.template stage<{which}>(rows, count, edges, sent);")
        return [*lines, "  }", "};"]

    def _cell_name(self, cell: KindCell) -> str:
        return f"{self.name}_cell_{self.side.cells.index(cell)}"

    def _stage(
        self, s: int, stage: CellStage, before: Sequence[CellStage], fetches: bool
    ) -> Iterator[str]:
        yield f"struct stage_{s} {{"
        yield f"  using Stage = stage_{s};"
        yield f"  static constexpr bool FETCHES = {_true(fetches)};"
        multiplies = bool(stage.products or stage.folds)
        yield f"  static constexpr bool MULTIPLIES = {_true(multiplies)};"
        for name, what in (("BUFFER", "send"), ("STATE", "hand"), ("EDGE", "send_edge")):
            first = sum(x.count(what) for x in before)
            if what == "hand":
                first = stage.first_state
            yield f"  static constexpr int FIRST_{name} = {first};"
            yield f"  static constexpr int TO_{name}S = {stage.count(what)};"
        yield "  template <class M, class Rows>"
        yield f"  static {INLINE} void multiply(M& m, const Rows& rows, int count, int edges) {{"
        for fold in stage.folds:
            yield from (f"    {line}" for line in self._fold(fold))
        if stage.folds and stage.products:
            yield "    __syncthreads();"
        yield from (f"    {line}" for line in self._products(stage))
        yield "  }"
        yield "  template <class E>"
        yield f"  static {INLINE} void elements(const E& e) {{"
        yield from (f"    {line}" for line in self._elements(stage))
        yield "  }"
        yield "};"

    def _elements(self, stage: CellStage) -> Iterator[str]:
        """Print the expressions of a stage: first all that is loaded, last what goes to memory."""
        loaded: dict[Operand, str] = {}
        for operand in operands_of(stage.statements):
            if not _is_of_edge(operand):
                loaded[operand] = f"x{len(loaded)}"
                yield f"const real {loaded[operand]} = {self._load(stage, operand)};"
        for x in stage.statements:
            if isinstance(x, Make):
                yield _make(loaded, x)
            elif isinstance(x, EachEdge):
                yield from self._each_edge(stage, x, loaded)
        gives = [x for x in stage.statements if isinstance(x, Give)]
        for x in sorted(gives, key=lambda x: x.what in TO_MEMORY):
            yield self._give(stage, x, _value(loaded, x.value))

    def _shape(self, product: CellProduct) -> str:
        return f"{product.held.rows(self.side.processors)}, {product.held.deep}"

    def _products(self, stage: CellStage) -> Iterator[str]:
        """Print products, one after the other; of one row, several take each step together."""
        products, side = stage.products, self.side
        for n, product in enumerate(products):
            times = len(product.operands)
            of = f" / {times}, of = at % {times}" if times > 1 else ""
            yield f"const auto row_{n} = [&](int at) {{"
            yield f"  const int i = at{of};"
            yield from _OperandText(self.side).lines(product.operands)
            yield "};"
        for n, product in enumerate(products):
            if product.sums is not None:
                times, each = len(product.operands), len(product.held.cuts) - 1
                row = f"at / {times} * M::Side::CARRIED + {product.first} + at % {times} * {each}"
                yield f"add_to_sums<{self._shape(product)}>("
                yield f"  m.held.{self.held[product.sums]}, count * {times}, row_{n},"
                yield "  [&](int at, int q) {"
                yield f"    return m.carried[({row} + q / M::U::MOST) * M::OWN + q % M::U::MOST];"
                yield "  }, m.channel.thread);"
        together = all(not x.edges and len(x.operands) <= MOST_TOGETHER for x in products)
        if together and len(products) > 1:
            yield "if constexpr (Rows::ONE) {"
            for n, x in enumerate(products):
                held = f"m.held.{self.held[x.held]}"
                yield f"  LaneSums<{len(x.operands)}, {QUARTET}, {self._shape(x)}> sums_{n};"
                yield f"  sums_{n}.multiply({held}, 0, row_{n}, m.channel.thread);"
            yield from (f"  sums_{n}.add_up();" for n, _ in enumerate(products))
            for n, x in enumerate(products):
                to = f"m.partial + {side.partial_at(stage, n)}, m.channel.thread"
                yield f"  sums_{n}.template put<{side.most(x)}>({to});"
            yield "  return;"
            yield "}"
        for n, x in enumerate(products):
            rows = f"{'edges' if x.edges else 'count'} * {len(x.operands)}"
            yield f"make_all_partial_sums<{side.most(x)}, {QUARTET}, {self._shape(x)}>("
            partial = f"m.partial + {side.partial_at(stage, n)}"
            yield f"  m.held.{self.held[x.held]}, 0, {rows}, row_{n}, {partial},"
            yield "  m.channel.thread);"

    def _fold(self, fold: CellFold) -> list[str]:
        """Print how a number is made of all elements of a vector."""
        lines = ["__syncthreads();"] if fold.waits else []
        kind = f"{PARTIAL[fold.op]}, {len(fold.vectors)}"
        rows, name = ("edges", "edge_folds") if fold.to.edges else ("count", "folds")
        where = f"{rows}, m.{name} + {fold.to.number}, {self.sizes[name.upper()]}"
        lines.append(f"m.template fold<{kind}>({where}, [&](int i) {{")
        return [*lines, *_OperandText(self.side).lines([fold.vectors]), "});"]

    def _each_edge(
        self, stage: CellStage, loop: EachEdge, loaded: Mapping[Operand, str]
    ) -> Iterator[str]:
        """Print a loop over the children of a row."""
        here = dict(loaded)
        sums = [x for x in loop.statements if isinstance(x, Sum)]
        for total in sums:
            yield f"real {_name(total.to)} = 0;"
            if total.largest:
                yield f"bool {_name(total.to)}_first = true;"
        yield "for (int c = 0; c < e.children(); ++c) {"
        for operand in operands_of(loop.statements):
            if _is_of_edge(operand):
                here[operand] = f"y{len(here)}"
                yield f"  const real {here[operand]} = {self._load(stage, operand)};"
        for x in loop.statements:
            if isinstance(x, Make):
                yield f"  {_make(here, x)}"
        for x in loop.statements:
            if isinstance(x, Give):
                yield f"  {self._give(stage, x, _value(here, x.value))}"
        if sums:
            yield "  if (!e.present(c)) continue;"
        for total in sums:
            value, name = _value(here, total.value), _name(total.to)
            if total.largest:
                yield f"  {name} = {name}_first ? {value} : vrt_max({name}, {value});"
                yield f"  {name}_first = false;"
            else:
                yield f"  {name} += {value};"
        yield "}"

    def _give(self, stage: CellStage, x: Give, value: str) -> str:
        each = "c, " if x.what.endswith("_edge") else ""
        match x.what:
            case "send" | "send_edge":
                return f"e.template {x.what}<Stage>({each}{x.number}, {value});"
            case "hand":
                at = stage.count("send") + x.number - stage.first_state
                return f"e.template send<Stage>({at}, {value});"
            case "keep" | "carry":
                return f"e.{x.what}({x.number}, {value});"
            case "store" | "store_edge":
                word = self.words[f"tensor_{x.number}"]
                if x.width == 1:
                    return f"e.{x.what}_number({word}, {each}{value});"
                return f"e.{x.what}({word}, {x.width}, {x.start}, {each}{value});"
        assert x.what == "leave", x.what
        slot = _slot(x.slot)
        place = f"e.leave({slot}, {x.number}, {value}); " if x.number >= 0 else ""
        if x.edge < 0:
            return place
        word = self.words[f"tensor_{x.edge}"]
        return f"{place}e.store_for_child({word}, {x.width}, {slot}, {value});"

    def _load(self, stage: CellStage, x: Operand) -> str:
        match x:
            case OnChip(of=of, number=n, edges=edges):
                return f"e.edge_{of}({n}, c)" if edges else f"e.{of}({n})"
            case OfChild(slot=slot, number=n, sent=sent):
                return f"e.{'state' if sent else 'kept'}({_slot(slot)}, {n})"
            case RowNumber(op="loss_scale"):
                return "e.m.scale"
            case RowNumber(op=op):
                return f"e.{op}({self.words[ROW_WORDS[op]] if op in ROW_WORDS else ''})"
            case Total(product=p, of=of, piece=piece, edges=edges):
                product, at = stage.products[p], self.side.partial_at(stage, p)
                shape = f"{self.side.most(product)}, {self._shape(product)}"
                if edges:
                    return f"e.template edge_sum<{shape}>({at}, c, {piece})"
                where = f"{at}, {len(product.operands)}, {of}, {piece}"
                return f"e.template sum<{shape}>({where})"
            case Present(slot=slot):
                return f"real(e.present({_slot(slot)}))"
        raise AssertionError(f"{x} is not loaded")

    # Facts of the side.

    def _facts(self) -> Iterator[str]:
        side, weights = self.side, self.weights
        yield f"struct {self.name}_weights {{"
        for k, h in enumerate(weights.held):
            yield f"  {self._share(k)} {self.held[h]};"
        yield "};"
        yield f"struct {self.name}_facts {{"
        yield f"  using Weights = {self.name}_weights;"
        facts = {
            "PROCESSORS": side.processors,
            "ROWS": side.rows,
            "EDGES": side.edges,
            "SCALE": self.words["scale"] if side.scaled else -1,
            **self.sizes,
            "STATE_PLACES": self.places[0],
            "EDGE_PLACES": self.places[1],
        }
        for name, value in facts.items():
            yield f"  static constexpr int {name} = {value};"
        yield f"  static constexpr int ROOM = {side.room} * (int)(sizeof(real) / sizeof(float));"
        yield f"  static constexpr bool BACK = {_true(side.back)};"
        yield f"  static constexpr bool READS_NUMBERS = {_true(side.reads_numbers)};"
        first = any(cell.stages[0].products or cell.stages[0].folds for cell in side.cells)
        yield f"  static constexpr bool MULTIPLIES_FIRST = {_true(first)};"
        yield from self._words("state_word", (*side.sent, *side.kept))
        yield from self._words("edge_word", side.left)
        yield "  template <class M>"
        yield f"  static {INLINE} void find_operands(M& m) {{"
        for c, cell in enumerate(side.cells):
            reads = cell.reads, cell.edge_reads, cell.full_reads
            room = [self.sizes[name] for name in ("READS", "EDGE_READS", "FULL_READS")]
            for n, x in enumerate(_padded(reads, room)):
                if x is None:
                    yield f"    m.operand({c}, {n}, -1, 0, 0, 0);"
                else:
                    word = self.words[f"tensor_{x.tensor}"]
                    yield f"    m.operand({c}, {n}, {word}, {x.width}, {x.start}, {x.slot});"
        for n, (number, start) in enumerate(side.parameters):
            yield f"    m.parameter({n}, {self.words[f'param_{number}']}, {start});"
        yield "  }"
        yield "  template <class M>"
        yield f"  static {INLINE} void run(M& m, int cell, const LevelWords& level) {{"
        yield "    switch (cell) {"
        for c, cell in enumerate(side.cells):
            name = self._cell_name(cell)
            yield f"      case {c}:"
            yield f"        m.template levels<{name}>(level);"
            yield "        break;"
        yield "    }"
        yield "  }"
        yield "};"

    def _words(self, name: str, tensors: Sequence[int]) -> Iterator[str]:
        """Print a function from a vector to the word of its tensor."""
        yield f"  static {INLINE} int {name}(int v) {{"
        words = [self.words[f"tensor_{t}"] for t in tensors]
        chosen = "".join(f"v == {k} ? {word} : " for k, word in enumerate(words[:-1]))
        yield f"    return {chosen}{words[-1] if words else 0};"
        yield "  }"

    def _share(self, k: int) -> str:
        """Return the type of a share of a weight."""
        weights, h = self.weights, self.weights.held[k]
        kind = f"{h.rows(self.side.processors)}, {h.deep}"
        if quartets := weights.divided_quartets(k):
            return f"WeightsInBoth<{kind}, {quartets}>"
        where = "Registers" if k < weights.in_registers else "SharedMemory"
        return f"WeightsIn{where}<{kind}>"

    # The function of the side.

    def _function(self) -> Iterator[str]:
        yield f"{INLINE} bool {self.name}(const Work& job, int group, int side, bool waits, int at,"
        yield "    unsigned& met, GroupBarrier& group_barrier, Timestamps& stamps) {"
        yield "  if (group >= job.o.groups) {"
        yield "    if (waits) come_to_grid(job.o);"
        yield "    stamps.waited();"
        yield "    const bool all = !waits || wait_for_grid(job.o, met, at);"
        yield "    stamps.end();"
        yield "    return all;"
        yield "  }"
        yield f"  {self.own}"
        yield f"  using Facts = {self.name}_facts;"
        yield f"  {self.name}_weights held;"
        yield "  __syncthreads();  // all have read what lies where weights come"
        yield "  unsigned char* free = shared_memory() + SHARED_STATE_BYTES;"
        for k, h in enumerate(self.weights.held):
            if k >= self.weights.in_registers:
                yield f"  held.{self.held[h]}.take(free);"
                yield f"  free += {self._share(k)}::BYTES;"
        yield "  const int* section = job.o.cell_sections + 2 * (side * (int)job.o.groups + group);"
        yield "  CellMachine<Facts> machine(job.o, own, held, free, group_barrier,"
        yield "                             job.o.cells + section[0], at);"
        yield "  machine.open(section[1], waits);"
        sums = [h for h in self.weights.held if h.is_sum]
        for h in self.weights.held:
            if h in sums:
                yield f"  clear_sums(held.{self.held[h]});"
                continue
            kind = f"{_true(h.turned)}, {h.rows(self.side.processors)}, {h.deep}"
            weight = f"(const real*)own[{self.words[h.word]}]"
            yield f"  load_share<CellMachine<Facts>::U, {kind}>("
            yield f"      held.{self.held[h]}, {weight}, {h.pitch}, machine.channel.rank);"
        yield "  stamps.waited();"
        yield "  if (waits && !wait_for_grid(job.o, met, at)) return false;"
        yield "  stamps.end();"
        if sums:  # the groups in turn, so that the bits are the same whenever they come
            yield "  if (!machine.follow()) return false;"
            yield "  unsigned* const turn = job.o.counters + 2 + gridDim.x / PROCESSORS + side;"
            yield "  if (!wait_for(job.o, turn, group * PROCESSORS, GRID_WAIT, at)) return false;"
        for h in sums:
            kind = f"CellMachine<Facts>::U, {h.rows(self.side.processors)}, {h.deep}"
            to = f"(real*)own[{self.words[h.word]}], {h.pitch}, machine.channel.rank"
            yield f"  leave_sums<{kind}>(held.{self.held[h]}, {to});"
        if sums:
            yield "  come_to(turn);"
        yield f"  return {'true' if sums else 'machine.follow()'};"
        yield "}"


class _OperandText:
    """Prints the vectors of a product's operand, a quartet of elements at a time."""

    def __init__(self, side: CellSide) -> None:
        self.side, self.fresh = side, count()
        self.pointers: dict[str, str] = {}  # text -> name
        self.over_children = self.by_reference = False

    def lines(self, operands: Sequence[Sequence[Vector]]) -> list[str]:
        """Return the body of a function from a product's row to its operand."""
        starts = [self._start(of) for of in operands]
        if all(starts):
            found = starts[-1]
            for k in reversed(range(len(starts) - 1)):
                found = f"of == {k} ? {starts[k]} : {found}"
            return [f"  return {found};"]
        lines: list[str] = []
        bodies = []
        for of in operands:
            body: list[str] = []
            for n, vector in enumerate(of):
                before, value = self._quartet(vector, n)
                text = " ".join([*before, f"return {value};"])
                last = n == len(of) - 1
                test = "" if last else f"if (j < {(n + 1) * self.side.on_chip}) "
                body.append(f"{test}{{ {text} }}")
            bodies.append(" ".join(body))
        lines += [f"  const real* const {name} = {text};" for text, name in self.pointers.items()]
        held = "=, &m, &rows" if self.by_reference else "="
        lines.append(f"  return [{held}](int j) -> Vec<4> {{")
        for k, text in enumerate(bodies):
            last = k == len(bodies) - 1
            lines.append(f"    {'' if last else f'if (of == {k}) '}{{ {text} }}")
        return [*lines, "  };"]

    def _start(self, of: Sequence[Vector]) -> str:
        """Return where an operand begins that lies on chip as it is; '' for others."""
        first = of[0]
        if not isinstance(first, OfChild | OnChip):
            return ""
        if isinstance(first, OnChip) and first.of not in ("sent", "full"):
            return ""
        together = all(x == replace(first, number=first.number + n) for n, x in enumerate(of))
        return self._at(first) if together else ""

    def _at(self, x: OnChip | OfChild) -> str:
        """Return where a vector begins, or a number lies."""
        match x:
            case OfChild(slot=slot) if slot == EACH and not self.over_children:
                return f"m.edge_state(rows, i, {x.number})"
            case OfChild(slot=slot):
                return f"m.state(rows, i, {_slot(slot)}, {x.number})"
            case OnChip(of="parameter"):
                return f"m.parameters + {x.number * self.side.on_chip}"
        return f"m.{'edge_' if x.edges else ''}{x.of}(i, {x.number})"

    def _quartet(self, vector: Vector, n: int) -> tuple[list[str], str]:
        """Return statements, and the name of four elements from column `j` of the operand on."""
        match vector:
            case OverChildren(vector=inner, largest=largest):
                self.over_children = True
                before, each = self._quartet(inner, n)
                self.over_children = False
                self.by_reference = True
                name = f"q{next(self.fresh)}"
                total = f"{name}.v[k] + {each}.v[k]"
                if largest:
                    total = f"{name}_found ? vrt_max({name}.v[k], {each}.v[k]) : {each}.v[k]"
                return [
                    f"Vec<4> {name}{{}};",
                    *([f"bool {name}_found = false;"] if largest else []),
                    "for (int c = 0; c < rows.children(i); ++c) {",
                    "if (rows.child(i, c).row < 0) continue;",
                    *before,
                    f"for (int k = 0; k < 4; ++k) {name}.v[k] = {total};",
                    *([f"{name}_found = true;"] if largest else []),
                    "}",
                ], name
            case Combined(expression=expression, operands=operands):
                parts = [self._quartet(x, n) for x in operands]
                name = f"q{next(self.fresh)}"
                names = {f"x{k}": f"{operand}.v[c]" for k, (_, operand) in enumerate(parts)}
                text = translate(expression, names, CELLS)
                return [
                    *(line for lines, _ in parts for line in lines),
                    f"Vec<4> {name};",
                    f"for (int c = 0; c < 4; ++c) {name}.v[c] = {text};",
                ], name
        name, at = f"q{next(self.fresh)}", f"j - {n * self.side.on_chip}" if n else "j"
        if isinstance(vector, FixedNumber):
            return [_filled(name, f"real({vector.value!r})")], name
        start = self._at(vector)
        if not (isinstance(vector, OfChild) and vector.slot == EACH and self.over_children):
            start = self.pointers.setdefault(start, f"p{len(self.pointers)}")
        if isinstance(vector, OnChip) and vector.of == "folded":
            return [_filled(name, f"*{start}")], name
        return [f"const Vec<4> {name} = load<4>({start} + {at});"], name


def _filled(name: str, number: str) -> str:
    return f"const Vec<4> {name}{{{{{', '.join([number] * QUARTET)}}}}};"


def _padded(
    given: Sequence[Sequence[OperandPlace]], room: Sequence[int]
) -> Iterator[OperandPlace | None]:
    for places, most in zip(given, room, strict=True):
        yield from places
        yield from [None] * (most - len(places))


def _is_of_edge(x: Operand) -> bool:
    """Tell whether a value is of the child whose turn it is in a loop."""
    match x:
        case OfChild(slot=slot) | Present(slot=slot):
            return slot == EACH
        case Total(edges=edges) | OnChip(edges=edges):
            return edges
    return False


def _make(loaded: Mapping[Operand, str], x: Make) -> str:
    names = {f"x{k}": _value(loaded, y) for k, y in enumerate(x.operands)}
    return f"const real {_name(x.to)} = {translate(x.expression, names, CELLS)};"


def _true(holds: bool) -> str:
    return str(holds).lower()


def _slot(slot: int) -> str:
    return "c" if slot == EACH else str(slot)


def _value(loaded: Mapping[Operand, str], x: Operand) -> str:
    """Return the text of a value that has been loaded or made."""
    if isinstance(x, FixedNumber):
        return f"real({x.value!r})"
    return _name(x) if isinstance(x, Made) else loaded[x]


def _name(made: Made) -> str:
    return f"v{made.node}_{made.piece}"
