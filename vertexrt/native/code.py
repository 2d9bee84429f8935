"""The emitter: text of LLVM functions, for kernels and for loops of the host.

A number is a `Register`: its operators append instructions to the function that it belongs to. An
address has elements, `x[k]`, that are read and set, and `x + k` is the address k elements on.

llvmlite's own builder has no distinct metadata that names itself, which is how a loop says that its
accesses do not depend on each other; and text is what LLVM reads in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeAlias

Lines = list["str | Lines"]

REALS = {"float": 32, "double": 64}  # and their bits
# The instructions of operators, and the tests of comparisons: with nan only `!=` holds. Whole
# numbers are divided towards zero.
OF_REALS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
OF_WHOLES = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "//": "sdiv",
    "%": "srem",
    "<<": "shl",
    ">>": "ashr",
    "&": "and",
    "|": "or",
    "^": "xor",
}
WITHOUT_SIGN = {"sdiv": "udiv", "srem": "urem", "ashr": "lshr"}
NEUTRAL = {"+": "0", "*": "1"}
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
    if type == "index":
        return "i32"
    return f"i{type[1:]}" if type[0] == "u" else type


def is_real(type: str) -> bool:
    """Tell whether a type is that of reals, or of vectors of them."""
    return type.rstrip(">").endswith(tuple(REALS))


def _operator(sign: str) -> Callable[[Register, Register | int], Register]:
    return lambda a, b: a.function(b).apply(sign, a, b)


@dataclass(frozen=True, slots=True)
class Register:
    """A register or a literal, with its type.

    Attributes:
        of: what an address has elements of: a type, or `index`, an int32 that is read as an int64.
        code: the function that it belongs to; None, where it is of no single one.
    """

    type: str
    name: str
    of: str = field(default="", compare=False)
    code: Code | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{word(self.type)} {self.name}"

    def function(self, other: object = None) -> Code:
        """Return the function that it belongs to, or another number does."""
        code = self.code or (other.code if isinstance(other, Register) else None)
        assert code is not None, f"{self} is of no function"
        return code

    __add__ = _operator("+")
    __sub__ = _operator("-")
    __mul__ = _operator("*")
    __floordiv__ = _operator("//")
    __mod__ = _operator("%")
    __lshift__ = _operator("<<")
    __rshift__ = _operator(">>")
    __and__ = _operator("&")
    __or__ = _operator("|")
    __xor__ = _operator("^")
    __lt__ = _operator("<")
    __le__ = _operator("<=")
    __gt__ = _operator(">")
    __ge__ = _operator(">=")
    equals = _operator("==")
    differs = _operator("!=")

    def __getitem__(self, index: Register | int) -> Register:
        return self.function(index).load(self, index)

    def __setitem__(self, index: Register | int, value: Register) -> None:
        self.function(value).store(value, self + index)

    def __iter__(self) -> NoReturn:
        raise TypeError("what an address is of has no end that is known here")

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a test is known when it runs: `when` and `select` append what depends on it"
        )

    def to(self, type: str) -> Register:
        """Return the same address, of elements of another type."""
        return replace(self, of=type)


Make: TypeAlias = Callable[..., "Register"]


def once(scope: int) -> Callable[[Make], Make]:
    """Let a method make a value at the head of a scope, by instructions without blocks.

    It is made once for all calls with the same arguments.

    Args:
        scope: 0 for the function, 1 for the loop over rows, 2 for that over a row's edges; the
            innermost, where that many are not open. A call may name another one.
    """

    def decorated(make: Make) -> Make:
        def found(code: Code, *given: Hashable, scope: int = scope) -> Register:
            head, made = code.scopes[min(scope, len(code.scopes) - 1)]
            key = make.__name__, *given
            if key not in made:
                with code.filling(head):
                    made[key] = make(code, *given)
            return made[key]

        return found

    return decorated


class Code:
    """A function under construction.

    Args:
        arguments: names of whole numbers; `*x` is the address of reals, `i32*x` that of another
            type, and `i1:x` is a number of another type.
        real: `float` or `double`, of constants.
        internal: no other module sees it; inline: calls of it may be copies.
    Attributes:
        result: the type that it returns.
        used: the functions that it calls, and how they are declared.
        loops: that are open: where each goes on with its next iteration, and where it ends.
        scopes: the function, the open loop over rows, or the loop over the edges of a row inside
            it: the place at its head, and what was made there.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        real: str = "double",
        result: str = "void",
        internal: bool = False,
        inline: bool = True,
    ) -> None:
        self.name, self.real, self.result = name, real, result
        self.arguments = []
        for text in arguments.split():
            type, _, number = text.rpartition(":")
            of, star, address = text.rpartition("*")
            self.arguments.append(
                Register("ptr", f"%{address}", of or real, self)
                if star
                else Register(type or "i64", f"%{number}", "", self)
            )
        self._linkage = "internal " if internal else ""
        self._attributes = "#0" if inline else "noinline #0"
        self._made = 0
        self._lines: Lines = []
        self._all = self._lines
        self._label = "entry"
        self._independent = ""
        self.scopes: list[tuple[Lines, dict[Hashable, Register]]] = [(self.gap(), {})]
        self.loops: list[tuple[str, str]] = []
        self._targets: set[str] = set()
        self.used: dict[str, str] = {}

    def text(self) -> str:
        """Return the function; its module has ATTRIBUTES and METADATA."""
        given = ", ".join(map(str, self.arguments))
        title = f"define {self._linkage}{self.result} @{self.name}({given}) {self._attributes} {{"
        end = "  ret void" if self.result == "void" else "  unreachable"
        return "\n".join([title, "entry:", *_flat(self._all), end, "}"])

    # Values.

    def line(self, text: str) -> None:
        """Append an instruction that makes nothing."""
        self._lines.append("  " + text)

    def op(self, type: str, text: str, of: str = "") -> Register:
        """Append an instruction that makes a value."""
        self._made += 1
        value = Register(type, f"%v{self._made}", of, self)
        self.line(f"{value.name} = {text}")
        return value

    def const(self, value: float, type: str = "") -> Register:
        """Return a literal, a real one where no type is named."""
        type = type or self.real
        if type == "i1":
            text = str(bool(value)).lower()
        elif type in REALS:
            rounded = struct.unpack(type[0], struct.pack(type[0], value))[0]
            text = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
        else:
            text = str(int(value))
        return Register(type, text, "", self)

    def value(self, value: Register | int, type: str = "i64") -> Register:
        """Return a number, which may be a literal of a type."""
        return value if isinstance(value, Register) else self.const(value, type)

    def apply(self, sign: str, a: Register, b: Register | int, flags: str = "") -> Register:
        """Apply an operator to numbers of one type; with a neutral literal nothing is appended.

        Args:
            flags: of reals: what may be done besides what it says.
        """
        b = self.value(b, "i64" if a.type == "ptr" and sign == "+" else a.type)
        if sign in SIGNED:
            test = SIGNED[sign]
            if is_real(a.type):
                return self.op("i1", f"fcmp {ORDERED[sign]} {a}, {b.name}")
            if a.type[0] in "pu":  # addresses have no sign either
                test = test.replace("s", "u", 1)
            return self.op("i1", f"icmp {test} {a}, {b.name}")
        if is_real(a.type):
            return self.op(a.type, f"{OF_REALS[sign]} {flags}{a}, {b.name}")
        neutral = NEUTRAL.get(sign)
        if b.name == neutral:
            return a
        if a.type == "ptr":
            return self.op("ptr", f"getelementptr {word(a.of)}, {a}, {b}", a.of)
        if a.name == neutral:
            return b
        instruction = OF_WHOLES[sign]
        if a.type[0] == "u":
            instruction = WITHOUT_SIGN.get(instruction, instruction)
        flags = " nsw" if sign in ("+", "-", "*") and a.type == "i64" else ""
        return self.op(a.type, f"{instruction}{flags} {a}, {b.name}")

    def select(self, test: Register, yes: Register, no: Register) -> Register:
        """Return one of two values."""
        return self.op(yes.type, f"select {test}, {yes}, {no}", yes.of)

    def least(self, a: Register, b: Register | int) -> Register:
        """Return the smaller of two integers."""
        b = self.value(b, a.type)
        return self.select(a < b, a, b)

    def most(self, a: Register, b: Register | int) -> Register:
        """Return the larger of two integers."""
        b = self.value(b, a.type)
        return self.select(a > b, a, b)

    def convert(self, value: Register, type: str) -> Register:
        """Return a number as one of another type; a real becomes whole towards zero."""
        given, to = value.type, word(type)
        if word(given) == to:
            return replace(value, type=type)
        if type == "i1":
            return self.apply("!=", value, 0)
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

    def call(
        self,
        type: str,
        function: str,
        arguments: Sequence[Register | int],
        flags: str = "",
        of: str = "",
    ) -> Register:
        """Call a function that makes a value."""
        return self.op(type, self._called(word(type), function, arguments, flags), of)

    def do(self, function: str, arguments: Sequence[Register | int]) -> None:
        """Call a function that makes nothing."""
        self.line(self._called("void", function, arguments))

    def _called(
        self, result: str, function: str, arguments: Sequence[Register | int], flags: str = ""
    ) -> str:
        given = list(map(self.value, arguments))
        kinds = ", ".join(word(each.type) for each in given)
        self.used[function] = f"declare {result} @{function}({kinds})"
        return f"call {flags}{result} @{function}({', '.join(map(str, given))})"

    # Memory: no other iteration of an independent loop touches what one does.

    def load(self, pointer: Register, index: Register | int = 0) -> Register:
        """Load an element; an address is one of addresses."""
        at = self.apply("+", pointer, index)
        type = "i32" if pointer.of == "index" else pointer.of
        found = self.op(type, f"load {word(type)}, {at}{self._independent}", type)
        return self.convert(found, "i64") if pointer.of == "index" else found

    def field(self, type: str, pointer: Register, offset: int) -> Register:
        """Load what lies so many bytes from the begin of a record."""
        return self.load(self.apply("+", pointer.to("i8"), offset).to(type))

    def store(self, value: Register, pointer: Register) -> None:
        """Store an element."""
        self.line(f"store {value}, {pointer}{self._independent}")

    def place(self, type: str, zero: bool = False, of: str = "") -> Register:
        """Return the address of memory on the stack; it holds anything, or is zero at first.

        Args:
            of: of elements, where the type is that of several.
        """
        self._made += 1
        at, head = Register("ptr", f"%v{self._made}", of or type, self), self.scopes[0][0]
        head.append(f"  {at.name} = alloca {word(type)}")
        if zero:
            head.append(f"  store {word(type)} zeroinitializer, {at}")
        return at

    def variable(self, value: Register) -> Register:
        """Return the address of a variable, which has this value now."""
        at = self.place(value.type)
        self.store(value, at)
        return at

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
        self.line("ret void" if value is None else f"ret {value}")
        self.open(f"after{self._made}")

    @contextmanager
    def loop(
        self,
        first: Register | int,
        end: Register | int,
        independent: bool = False,
        step: Register | None = None,
    ) -> Iterator[Register]:
        """Count from `first` to `end`, which is not reached.

        Args:
            independent: no iteration touches what another one writes.
            step: where it is not 1, or the count may be negative; a negative one is a literal.
        """
        first, end = map(self.value, (first, end))
        self._made += 1
        k, before, outside = self._made, self._label, self._independent
        index = Register("i64", f"%i{k}", "", self)
        self.enter(f"head{k}")
        # The label of the block that jumps back is known at its end.
        phi = self.gap()
        falls = step is not None and step.name.startswith("-")
        self.line(f"%more{k} = icmp {'sgt' if falls else 'slt'} {index}, {end.name}")
        self.line(f"br i1 %more{k}, label %body{k}, label %end{k}")
        self.open(f"body{k}")
        self._independent = INDEPENDENT if independent else ""
        with self.inside(f"on{k}", f"end{k}"):
            yield index
        self._independent = outside
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
        self.loops.append((after, end))
        yield
        self.loops.pop()

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
        self.scopes.append((self.gap(), {}))
        yield
        self.scopes.pop()

    def gap(self) -> Lines:
        """Leave a place for instructions that are known later."""
        lines: Lines = []
        self._lines.append(lines)
        return lines

    @contextmanager
    def filling(self, gap: Lines) -> Iterator[None]:
        """Append instructions, without blocks, to what `gap` left."""
        outside = self._lines, self._independent
        self._lines, self._independent = gap, ""
        yield
        self._lines, self._independent = outside


def _flat(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flat(line)


def module_of(functions: Sequence[Code], *constants: str) -> str:
    """Return the module of functions, with declarations of what they use."""
    used = {name: text for code in functions for name, text in code.used.items()}
    defined = {code.name for code in functions}
    declared = [used[name] for name in sorted(used) if name not in defined]
    texts = [code.text() for code in functions]
    return "\n".join([*constants, *declared, *texts, ATTRIBUTES, METADATA])
