"""The emitter: text of LLVM functions, for kernels and for loops of the host.

llvmlite's own builder has no distinct metadata that names itself, which is how a loop says that its
accesses do not depend on each other; and text is what LLVM reads in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

Lines = list["str | Lines"]

REALS = {"float": 32, "double": 64}  # and their bits
# The instructions of operators, and the tests of comparisons: with nan only `!=` holds.
OF_REALS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
SIGNED = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}
ORDERED = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}

# Metadata: of accesses that no other iteration of their loop touches, and of the loops of these.
INDEPENDENT = ", !llvm.access.group !0"
METADATA = """!0 = distinct !{}
!1 = !{!"llvm.loop.parallel_accesses", !0}
!2 = distinct !{!2, !1}"""
VECTORISE = ", !llvm.loop !2"
ATTRIBUTES = "attributes #0 = { nounwind }"


def word(type: str) -> str:
    """Return a type in LLVM's words: u8 to u64 are here whole numbers without a sign."""
    return f"i{type[1:]}" if type[0] == "u" else type


class Register(NamedTuple):
    """A register or a literal, with its type."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{word(self.type)} {self.name}"


def constant(value: float, type: str) -> Register:
    """Return a literal."""
    if type not in REALS:
        return Register(type, str(int(value)))
    if type == "float":
        value = struct.unpack("f", struct.pack("f", value))[0]
    return Register(type, f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}")


def int64(value: int) -> Register:
    """Return a literal."""
    return Register("i64", str(value))


def arguments_of(text: str) -> list[Register]:
    """Return arguments: names, those that begin with * are pointers, the rest are integers."""
    return [
        Register("ptr", f"%{name[1:]}") if name[0] == "*" else Register("i64", f"%{name}")
        for name in text.split()
    ]


class Code:
    """A function under construction.

    What is made `once` is made at the head of a scope: the function, the open loop over rows, or
    the loop over the edges of a row inside it.

    Args:
        name, arguments: of the function.
        real: `float` or `double`, of constants.
        internal: no other module sees it; inline: calls of it may be copies.
    Attributes:
        result: the type that it returns.
        used: the functions that it calls, and how they are declared.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[Register],
        real: str = "double",
        result: str = "void",
        internal: bool = False,
        inline: bool = True,
    ) -> None:
        self.name, self.arguments, self.real, self.result = name, list(arguments), real, result
        self._linkage = "internal " if internal else ""
        self._attributes = "#0" if inline else "noinline #0"
        self._made = 0
        self._lines: Lines = []
        self._all = self._lines
        self._label = "entry"
        self._scopes: list[tuple[Lines, dict[Hashable, Register]]] = []
        self._loops: list[tuple[str, str]] = []
        self._targets: set[str] = set()
        self.used: dict[str, str] = {}
        self._open_scope()

    def text(self) -> str:
        """Return the function; its module has ATTRIBUTES and METADATA."""
        given = ", ".join(map(str, self.arguments))
        title = f"define {self._linkage}{self.result} @{self.name}({given}) {self._attributes} {{"
        lines = [title, "entry:"]

        def add(part: Lines) -> None:
            for line in part:
                if isinstance(line, str):
                    lines.append(line)
                else:
                    add(line)

        add(self._all)
        return "\n".join([*lines, "  ret void" if self.result == "void" else "  unreachable", "}"])

    # Values.

    def line(self, text: str) -> None:
        """Append an instruction that makes nothing."""
        self._lines.append("  " + text)

    def op(self, type: str, text: str) -> Register:
        """Append an instruction that makes a value."""
        self._made += 1
        value = Register(type, f"%v{self._made}")
        self.line(f"{value.name} = {text}")
        return value

    def const(self, value: float) -> Register:
        """Return a real literal."""
        return constant(value, self.real)

    def integer(self, instruction: str, a: Register, b: Register | int) -> Register:
        """Append arithmetic of integers; that of literals is done here."""
        b = b if isinstance(b, Register) else Register(a.type, str(b))
        neutral = {"add": "0", "mul": "1"}.get(instruction)
        if neutral in (a.name, b.name):
            return a if b.name == neutral else b
        flags = " nsw" if instruction in ("add", "sub", "mul") and a.type == "i64" else ""
        return self.op(a.type, f"{instruction}{flags} {a}, {b.name}")

    def add(self, a: Register, b: Register | int) -> Register:
        """Return the sum of two integers."""
        return self.integer("add", a, b)

    def mul(self, a: Register, b: Register | int) -> Register:
        """Return the product of two integers."""
        return self.integer("mul", a, b)

    def compare(self, test: str, a: Register, b: Register | int) -> Register:
        """Compare integers (`slt`, `eq`, ...)."""
        return self.op("i1", f"icmp {test} {a}, {b.name if isinstance(b, Register) else b}")

    def select(self, test: Register, yes: Register, no: Register) -> Register:
        """Return one of two values."""
        return self.op(yes.type, f"select {test}, {yes}, {no}")

    def least(self, a: Register, b: Register | int) -> Register:
        """Return the smaller of two integers."""
        b = b if isinstance(b, Register) else Register(a.type, str(b))
        return self.select(self.compare("slt", a, b), a, b)

    def most(self, a: Register, b: Register | int) -> Register:
        """Return the larger of two integers."""
        b = b if isinstance(b, Register) else Register(a.type, str(b))
        return self.select(self.compare("sgt", a, b), a, b)

    def convert(self, value: Register, type: str) -> Register:
        """Return a number as one of another type; a real becomes whole towards zero."""
        given, to = value.type, word(type)
        if word(given) == to:
            return Register(type, value.name)
        if type == "i1":
            return self.not_zero(value)
        unsigned = given == "i1" or given[0] == "u"
        bits, wanted = (REALS.get(name) or int(name[1:]) for name in (given, type))
        if given in REALS and type in REALS:
            change = "fpext" if wanted > bits else "fptrunc"
        elif given in REALS:
            change = "fptoui" if type[0] == "u" else "fptosi"
        elif type in REALS:
            change = "uitofp" if unsigned else "sitofp"
        elif wanted < bits:
            change = "trunc"
        else:
            change = "zext" if unsigned else "sext"
        return self.op(type, f"{change} {value} to {to}")

    def not_zero(self, value: Register) -> Register:
        """Tell whether a number is not zero."""
        if value.type in REALS:
            return self.op("i1", f"fcmp une {value}, 0.0")
        return self.compare("ne", value, 0)

    def call(
        self, type: str, function: str, arguments: Sequence[Register], flags: str = ""
    ) -> Register:
        """Call a function that makes a value."""
        return self.op(type, self._called(word(type), function, arguments, flags))

    def do(self, function: str, arguments: Sequence[Register]) -> None:
        """Call a function that makes nothing."""
        self.line(self._called("void", function, arguments))

    def _called(
        self, result: str, function: str, arguments: Sequence[Register], flags: str = ""
    ) -> str:
        kinds = ", ".join(word(each.type) for each in arguments)
        self.used[function] = f"declare {result} @{function}({kinds})"
        return f"call {flags}{result} @{function}({', '.join(map(str, arguments))})"

    # Memory.

    def as_address(self, number: Register) -> Register:
        """Return a number as an address."""
        return self.op("ptr", f"inttoptr {number} to ptr")

    def at(self, pointer: Register, index: Register | int, type: str) -> Register:
        """Return the address of an element of an array."""
        index = index if isinstance(index, Register) else int64(index)
        if index.name == "0":
            return pointer
        return self.op("ptr", f"getelementptr {word(type)}, {pointer}, {index}")

    def load(
        self, type: str, pointer: Register, index: Register | int = 0, independent: bool = False
    ) -> Register:
        """Load an element; `independent`: no other iteration of the open loop writes it."""
        at = self.at(pointer, index, type)
        return self.op(type, f"load {word(type)}, {at}{INDEPENDENT if independent else ''}")

    def load_index(self, pointer: Register, index: Register | int = 0) -> Register:
        """Load an element of an array of int32 as an int64."""
        return self.convert(self.load("i32", pointer, index), "i64")

    def field(self, type: str, pointer: Register, offset: int) -> Register:
        """Load what lies so many bytes from the begin of a record."""
        return self.load(type, self.at(pointer, offset, "i8"))

    def store(
        self,
        value: Register,
        pointer: Register,
        index: Register | int = 0,
        independent: bool = False,
    ) -> None:
        """Store an element of an array; see `load`."""
        at = self.at(pointer, index, value.type)
        self.line(f"store {value}, {at}{INDEPENDENT if independent else ''}")

    def place(self, type: str, zero: bool = False) -> Register:
        """Return the address of memory on the stack; it holds anything, or is zero at first."""
        self._made += 1
        at, head = Register("ptr", f"%v{self._made}"), self._scopes[0][0]
        head.append(f"  {at.name} = alloca {word(type)}")
        if zero:
            head.append(f"  store {word(type)} zeroinitializer, {at}")
        return at

    def variable(self, value: Register) -> Register:
        """Return the address of a variable, which has this value now."""
        at = self.place(value.type)
        self.store(value, at)
        return at

    def array(self, type: str, count: int) -> Register:
        """Return the address of an array on the stack, on 64 bytes; it holds anything."""
        return self.place(f"[{count} x {type}], align 64")

    # Blocks.

    def label(self) -> str:
        """Return a label that no block has yet."""
        self._made += 1
        return f"b{self._made}"

    def open(self, label: str) -> None:
        """Begin a block; the one before has ended."""
        self._lines.append(f"{label}:")
        self._label = label

    def enter(self, label: str) -> None:
        """Begin a block, in which the one before goes on."""
        self.jump(label)
        self.open(label)

    def jump(self, label: str, metadata: str = "") -> None:
        """End a block: what follows is elsewhere."""
        self._targets.add(label)
        self.line(f"br label %{label}{metadata}")

    def choose_block(self, test: Register, yes: str, no: str) -> None:
        """End a block: what follows is in one of two."""
        self.line(f"br {test}, label %{yes}, label %{no}")

    def go_to(self, label: str) -> None:
        """Go on in another block; no instruction after this is reached."""
        self.jump(label)
        self.open(self.label())

    def leave(self, value: Register | None = None) -> None:
        """Return from the function."""
        self._made += 1
        self.line(f"ret {value or 'void'}")
        self.open(f"after{self._made}")

    @contextmanager
    def loop(
        self,
        first: Register | int,
        end: Register | int,
        independent: bool = False,
        step: Register | None = None,
        falls: bool = False,
    ) -> Iterator[Register]:
        """Count from `first` to `end`, which is not reached.

        Args:
            independent: no iteration touches what another one writes.
            step: where it is not 1, or the count may be negative; `falls`: it is.
        """
        first, end = (x if isinstance(x, Register) else int64(x) for x in (first, end))
        self._made += 1
        k, before = self._made, self._label
        index = Register("i64", f"%i{k}")
        self.enter(f"head{k}")
        # The label of the block that jumps back is known at its end.
        phi: Lines = []
        self._lines.append(phi)
        self.line(f"%more{k} = icmp {'sgt' if falls else 'slt'} {index}, {end.name}")
        self.line(f"br i1 %more{k}, label %body{k}, label %end{k}")
        self.open(f"body{k}")
        with self.inside(f"on{k}", f"end{k}"):
            yield index
        if f"on{k}" in self._targets:
            self.enter(f"on{k}")
        flags, by = ("nsw nuw", "1") if step is None else ("nsw", step.name)
        self.line(f"%next{k} = add {flags} {index}, {by}")
        self.jump(f"head{k}", VECTORISE if independent else "")
        phi.append(
            f"  {index.name} = phi i64 [ {first.name}, %{before} ], [ %next{k}, %{self._label} ]"
        )
        self.open(f"end{k}")

    @contextmanager
    def repeat(self, test: Callable[[], Register]) -> Iterator[None]:
        """Run instructions as long as a test holds."""
        self._made += 1
        k = self._made
        self.enter(f"test{k}")
        self.choose_block(test(), f"turn{k}", f"done{k}")
        self.open(f"turn{k}")
        with self.inside(f"test{k}", f"done{k}"):
            yield
        self.jump(f"test{k}")
        self.open(f"done{k}")

    @contextmanager
    def inside(self, after: str, end: str) -> Iterator[None]:
        """Say where the innermost loop goes on with its next iteration, and where it ends."""
        self._loops.append((after, end))
        yield
        self._loops.pop()

    def next_iteration(self) -> None:
        """Go on with the next iteration of the innermost loop."""
        self.go_to(self._loops[-1][0])

    def end_loop(self) -> None:
        """Leave the innermost loop."""
        self.go_to(self._loops[-1][1])

    @contextmanager
    def when(self, test: Register, holds: bool = True) -> Iterator[None]:
        """Run instructions only where a test holds, or only where it does not."""
        self._made += 1
        k = self._made
        labels = (f"then{k}", f"fi{k}") if holds else (f"fi{k}", f"then{k}")
        self.choose_block(test, *labels)
        self.open(f"then{k}")
        yield
        self.enter(f"fi{k}")

    def either(self, test: Register, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Run some instructions where a test holds, and others where it does not."""
        self._made += 1
        k = self._made
        self.choose_block(test, f"then{k}", f"else{k}")
        for label, append in ((f"then{k}", yes), (f"else{k}", no)):
            self.open(label)
            append()
            self.jump(f"fi{k}")
        self.open(f"fi{k}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Make here what is made `once` inside."""
        self._open_scope()
        yield
        self._scopes.pop()

    def _open_scope(self) -> None:
        self._scopes.append((self.gap(), {}))

    def gap(self) -> Lines:
        """Leave a place for instructions that are known later."""
        lines: Lines = []
        self._lines.append(lines)
        return lines

    @contextmanager
    def filling(self, gap: Lines) -> Iterator[None]:
        """Append instructions, without blocks, to what `gap` left."""
        outside, self._lines = self._lines, gap
        yield
        self._lines = outside

    def once(self, scope: int, key: Hashable, make: Callable[[], Register]) -> Register:
        """Return a value that is made at the head of a scope, by instructions without blocks.

        Args:
            scope: 0 for the function, 1 for the loop over rows, 2 for that over a row's edges; the
                innermost, where that many are not open.
        """
        head, made = self._scopes[min(scope, len(self._scopes) - 1)]
        if key not in made:
            with self.filling(head):
                made[key] = make()
        return made[key]


def module_of(functions: Sequence[Code], *constants: str) -> str:
    """Return the module of functions, with declarations of what they use."""
    used = {name: text for code in functions for name, text in code.used.items()}
    defined = {code.name for code in functions}
    declared = [used[name] for name in sorted(used) if name not in defined]
    texts = [code.text() for code in functions]
    return "\n".join([*constants, *declared, *texts, ATTRIBUTES, METADATA])
