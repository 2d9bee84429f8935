"""Print kernels whose rows are the work of several threads as CUDA; everything is decided before.

An element is in a register `r17` of the thread that makes it, a number of the row in `v17`.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.kernels.cuda.edge_sums import write_edge_sums
from vertexrt.kernels.cuda.row_text import LANES, ElementText, RowText
from vertexrt.lower.kernel import Temporary, ValuePlace, register_name
from vertexrt.lower.threads import (
    EdgeSum,
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    RowWait,
    StoreElements,
    ThreadKernel,
)

WAIT = "row_wait<T>();"
PARTIAL = {"reduce_sum": "RowSum", "reduce_max": "RowMax", "logsumexp": "RowLogSumExp"}
EDGE_ROW = ["const int e = (int)a.elo + i;", "const int row = edge_row[e];"]


class ThreadText:
    """The text of a kernel.

    Args:
        taken: temporaries by number.
    """

    def __init__(self, kernel: ThreadKernel, taken: Sequence[Temporary]) -> None:
        self.kernel = kernel
        edges = kernel.edges, kernel.splits_edges, kernel.relations
        self.t = RowText(taken, *edges)
        self.elements = ElementText(self.t)
        self._stores: list[str] = []  # of a loop, after its body: no load waits for them
        self._after: list[str] = []  # a loop
        self._joined: list[tuple[EdgeSum, str]] = []  # sums that wait for the last one of them
        for part in kernel.parts:
            match part:
                case ElementLoop():
                    self._loop(part)
                case RowWait():
                    self.t.line(WAIT)
                case MakeNumber():
                    self._make_number(part)
                case PublishNumber(to=to, child=child):
                    self.t.origin(to)
                    where = self._if_child(child) or "if (true) "
                    value = self.elements.element(part.value)
                    self.t.line(f"{where}if (lane == 0) *({self.t.base(to)}) = {value};")

    def row_kernel(self) -> str:
        """Return a kernel in which a block has some rows of a launch."""
        kernel, counter = self.kernel, "threadIdx.x / T"
        lane, i = "threadIdx.x", "VRT_BLOCK.x"
        if kernel.rows > 1:
            lane, i = "threadIdx.x % T", f"VRT_BLOCK.x * {kernel.rows} + {counter}"
        first = [
            f"constexpr int T = {kernel.threads};",
            f"const int lane = {lane};",
            f"const int i = {i};",
            f"if (i >= a.{'m' if kernel.edges else 'n'}) return;",
        ]
        rows = EDGE_ROW
        if not kernel.edges and kernel.listed:
            listed = self.t.word("rows", "const int*")
            rows = [f"const int row = a.lo >= 0 ? (int)a.lo + i : {listed}[a.at + i];"]
        elif not kernel.edges:
            rows = ["const int row = (int)a.lo + i;"]
        if kernel.scratch:
            mine = f" + {counter} * {kernel.scratch}" if kernel.rows > 1 else ""
            rows = [
                *rows,
                f"VRT_SCRATCH(real, all_scratch, {kernel.rows * kernel.scratch});",
                f"real* const scratch = all_scratch{mine};",
            ]
        return self.t.kernel(kernel.threads * kernel.rows, first, rows)

    # Between loops.

    def _make_number(self, part: MakeNumber) -> None:
        name = f"v{part.number}"
        if isinstance(part.value, EdgeSum):
            self.t.line(f"real {name} = 0;")
            write_edge_sums(self.elements, [(part.value, name)])
        else:
            self.t.line(f"const real {name} = {self.elements.value(part.value)};")
        for to in part.to:
            self.t.line(self._store_number(to, name))

    def _store_number(self, to: ValuePlace, name: str) -> str:
        return f"if (lane == 0) *({self.t.base(to)}) = {name};"

    def _if_child(self, slot: int) -> str:
        return f"if ({self.elements.child(slot)} >= 0) " if slot >= 0 else ""

    # Loops.

    def _loop(self, loop: ElementLoop) -> None:
        self._stores, self._after = [], []
        ahead: dict[str, str] = {}
        with self.elements.in_loop(ahead if loop.ahead > 1 or loop.sums_edges else None) as body:
            for statement in loop.statements:
                self._statement(statement)
        kinds = {x.number: x.how for x in loop.statements if isinstance(x, ReduceElements)}
        for x in loop.before:
            self.t.line(WAIT if isinstance(x, RowWait) else f"{PARTIAL[kinds[x]]} part{x};")
        write = self._several if loop.ahead > 1 else self._once
        write(loop, ahead, [*body, *self._stores])
        self.t.lines += self._after

    def _once(self, loop: ElementLoop, ahead: dict[str, str], lines: Sequence[str]) -> None:
        """Print a loop whose statements follow each other.

        What it needs once it has added up edges is on its way before that.
        """
        loads = [f"const Vec<W> {name} = {text};" for name, text in ahead.items()]
        step, declare, head = self.kernel.threads * loop.width, list[str](), ""
        if loop.size == step:
            declare = ["const int j = lane * W;"]
        elif loop.size < step:
            head = f"if (int j = lane * W; j < {loop.size})"
        else:
            head = f"for (int j = lane * W; j < {loop.size}; j += {step})"
        inner = [f"  {line}" for line in (*loads, *lines)]
        inner = [f"constexpr int W = {loop.width};", *declare, f"{head} {{", *inner, "}"]
        self.t.lines += ["{", *(f"  {line}" for line in inner), "}"]

    def _several(self, loop: ElementLoop, ahead: dict[str, str], lines: Sequence[str]) -> None:
        """Print a loop that takes elements several times, with all loads first."""
        step = self.kernel.threads * loop.width
        each = [
            "#pragma unroll",
            f"for (int turn = 0; turn < {loop.ahead}; ++turn) {{",
            f"  const int j = begin + turn * {step};",
            f"  if (j >= {loop.size}) break;",
        ]
        loads = [f"  {name}s[turn] = {text};" for name, text in ahead.items()]
        held = [f"  const Vec<W> {name} = {name}s[turn];" for name in ahead]
        inner = [
            *(f"Vec<W> {name}s[{loop.ahead}];" for name in ahead),
            *([*each, *loads, "}"] if ahead else []),
            *[*each, *held, *(f"  {line}" for line in lines), "}"],
        ]
        self.t.lines += [
            "{",
            f"  constexpr int W = {loop.width};",
            f"  for (int begin = lane * W; begin < {loop.size}; begin += {step * loop.ahead}) {{",
            *(f"    {line}" for line in inner),
            "  }",
            "}",
        ]

    def of_element(self, statements: Sequence[ElementStatement]) -> list[str]:
        """Return statements for one element j, and then their stores."""
        self._stores = []
        with self.elements.in_loop() as lines:
            for x in statements:
                self._statement(x)
        return [*lines, *self._stores]

    def _statement(self, x: ElementStatement) -> None:
        match x:
            case MakeElements():
                self._make(x)
            case StoreElements(to=to):
                self._stores.append(self._store(to, self.elements.vector(x.value)))
            case PublishElements(to=to, register=register):
                self.t.origin(to)
                where = self._if_child(x.child)
                self._make(MakeElements(register, x.value))
                self._stores.append(f"{where}{self._store(to, register_name(register))}")
            case ReduceElements(number=number):
                self.t.line(f"{LANES}part{number}.add({self.elements.element(x.value)});")
                self._after.append(f"const real v{number} = part{number}.of<T>();")
                self._after += [self._store_number(to, f"v{number}") for to in x.to]

    def _make(self, x: MakeElements) -> None:
        name = register_name(x.register)
        if isinstance(x.value, EdgeSum):
            self.t.line(f"Vec<W> {name};")
            self.t.line(f"{LANES}{name}.v[c] = 0;")
            self._joined.append((x.value, f"{name}.v[c]"))
            if not x.joined:
                write_edge_sums(self.elements, self._joined)
                self._joined = []
            return
        is_copy = x.register < 0
        text = self.elements.element(x.value) if is_copy else self.elements.value(x.value)
        self.t.line(f"Vec<W> {name};")
        self.t.line(f"{LANES}{name}.v[c] = {text};")

    def _store(self, to: ValuePlace, register: str) -> str:
        return f"store<W>({self.t.base(to)} + j, {register});"
