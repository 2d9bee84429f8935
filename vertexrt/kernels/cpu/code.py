"""Text of LLVM functions: values, loops, and values that are made once a row.

llvmlite's own builder has no distinct metadata that names itself, which is how a loop says that its
accesses do not depend on each other; and text is what LLVM reads in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

Lines = list["str | Lines"]

# Metadata: of accesses that no other iteration of their loop touches, and of the loops of these.
INDEPENDENT = ", !llvm.access.group !0"
METADATA = """!0 = distinct !{}
!1 = !{!"llvm.loop.parallel_accesses", !0}
!2 = distinct !{!2, !1}"""
VECTORISE = ", !llvm.loop !2"


class Register(NamedTuple):
    """A register or a literal, with its type in LLVM's words."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def int64(value: int) -> Register:
    """Return a literal."""
    return Register("i64", str(value))


class Code:
    """A function under construction.

    What is made `once` is made at the head of a scope: the function, the open loop over rows, or
    the loop over the edges of a row inside it.

    Args:
        name, arguments: of the function, which returns nothing.
        real: `float` or `double`.
    """

    def __init__(self, name: str, arguments: Sequence[Register], real: str) -> None:
        self.real = real
        self._title = f"define void @{name}({', '.join(map(str, arguments))}) #0 {{"
        self._made = 0
        self._lines: Lines = []
        self._all = self._lines
        self._label = "entry"
        self._scopes: list[tuple[Lines, dict[Hashable, Register]]] = []
        self.used: set[str] = set()  # functions that are called
        self._open_scope()

    def text(self) -> str:
        """Return the function; its module has METADATA."""
        lines = [self._title, "entry:"]

        def add(part: Lines) -> None:
            for line in part:
                if isinstance(line, str):
                    lines.append(line)
                else:
                    add(line)

        add(self._all)
        return "\n".join([*lines, "  ret void", "}"])

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
        if self.real == "float":
            value = struct.unpack("f", struct.pack("f", value))[0]
        return Register(self.real, f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}")

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

    def call(
        self, type: str, function: str, arguments: Sequence[Register], flags: str = ""
    ) -> Register:
        """Call a function that makes a value."""
        self.used.add(function)
        given = ", ".join(map(str, arguments))
        return self.op(type, f"call {flags}{type} @{function}({given})")

    def do(self, function: str, arguments: Sequence[Register]) -> None:
        """Call a function that makes nothing."""
        self.used.add(function)
        self.line(f"call void @{function}({', '.join(map(str, arguments))})")

    # Memory.

    def at(self, pointer: Register, index: Register | int, type: str) -> Register:
        """Return the address of an element of an array."""
        index = index if isinstance(index, Register) else int64(index)
        if index.name == "0":
            return pointer
        return self.op("ptr", f"getelementptr {type}, {pointer}, {index}")

    def load(
        self, type: str, pointer: Register, index: Register | int = 0, independent: bool = False
    ) -> Register:
        """Load an element; `independent`: no other iteration of the open loop writes it."""
        at = self.at(pointer, index, type)
        return self.op(type, f"load {type}, {at}{INDEPENDENT if independent else ''}")

    def load_index(self, pointer: Register, index: Register | int = 0) -> Register:
        """Load an element of an array of int32 as an int64."""
        return self.op("i64", f"sext {self.load('i32', pointer, index)} to i64")

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

    def variable(self, value: Register) -> Register:
        """Return the address of a variable, which has this value now."""
        self._made += 1
        at = Register("ptr", f"%v{self._made}")
        self._scopes[0][0].append(f"  {at.name} = alloca {value.type}")
        self.store(value, at)
        return at

    def array(self, type: str, count: int) -> Register:
        """Return the address of an array on the stack, on 64 bytes; it holds anything."""
        self._made += 1
        at = Register("ptr", f"%v{self._made}")
        self._scopes[0][0].append(f"  {at.name} = alloca [{count} x {type}], align 64")
        return at

    # Blocks.

    @contextmanager
    def loop(
        self, first: Register | int, end: Register | int, independent: bool = False
    ) -> Iterator[Register]:
        """Count from `first` to `end`, which is not reached.

        Args:
            independent: no iteration touches what another one writes.
        """
        first, end = (x if isinstance(x, Register) else int64(x) for x in (first, end))
        self._made += 1
        k, before = self._made, self._label
        index = Register("i64", f"%i{k}")
        self.line(f"br label %head{k}")
        self._open(f"head{k}")
        # The label of the block that jumps back is known at its end.
        phi: Lines = []
        self._lines.append(phi)
        self.line(f"%more{k} = icmp slt {index}, {end.name}")
        self.line(f"br i1 %more{k}, label %body{k}, label %end{k}")
        self._open(f"body{k}")
        yield index
        self.line(f"%next{k} = add nsw nuw {index}, 1")
        self.line(f"br label %head{k}" + (VECTORISE if independent else ""))
        phi.append(
            f"  {index.name} = phi i64 [ {first.name}, %{before} ], [ %next{k}, %{self._label} ]"
        )
        self._open(f"end{k}")

    @contextmanager
    def repeat(self, test: Callable[[], Register]) -> Iterator[None]:
        """Run instructions as long as a test holds."""
        self._made += 1
        k = self._made
        self.line(f"br label %test{k}")
        self._open(f"test{k}")
        self.line(f"br {test()}, label %turn{k}, label %done{k}")
        self._open(f"turn{k}")
        yield
        self.line(f"br label %test{k}")
        self._open(f"done{k}")

    @contextmanager
    def when(self, test: Register) -> Iterator[None]:
        """Run instructions only where a test holds."""
        self._made += 1
        k = self._made
        self.line(f"br {test}, label %then{k}, label %fi{k}")
        self._open(f"then{k}")
        yield
        self.line(f"br label %fi{k}")
        self._open(f"fi{k}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Make here what is made `once` inside."""
        self._open_scope()
        yield
        self._scopes.pop()

    def leave(self) -> None:
        """Return from the function."""
        self._made += 1
        self.line("ret void")
        self._open(f"after{self._made}")

    def _open(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._label = label

    def _open_scope(self) -> None:
        head: Lines = []
        self._lines.append(head)
        self._scopes.append((head, {}))

    def once(self, scope: int, key: Hashable, make: Callable[[], Register]) -> Register:
        """Return a value that is made at the head of a scope, by instructions without blocks.

        Args:
            scope: 0 for the function, 1 for the loop over rows, 2 for that over a row's edges; the
                innermost, where that many are not open.
        """
        head, made = self._scopes[min(scope, len(self._scopes) - 1)]
        if key not in made:
            outside, self._lines = self._lines, head
            made[key] = make()
            self._lines = outside
        return made[key]
