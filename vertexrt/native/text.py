"""The text of one LLVM function, while it is written: registers, variables, blocks, memory.

Every variable has a place on the stack; LLVM puts what it can in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vertexrt.native.values import (
    INT,
    TRUTH,
    Array,
    Scalar,
    ScalarType,
    TupleType,
    Type,
    Value,
    arrays_in,
    count_arrays,
    element_type,
    held_in,
    registers,
    stored_as,
    words,
)

Lines = list["str | Lines"]


@dataclass(slots=True)
class Variable:
    """A variable: its type, its places, and the roots of its arrays."""

    type: Type
    places: list[str]
    roots: list[frozenset[int]]


def whole(value: int) -> Scalar:
    """Return a whole number that is known."""
    return Scalar(INT, str(value))


class FunctionText:
    """The text of a function under construction."""

    def __init__(self) -> None:
        self._places: Lines = []  # made at the entry
        self._lines: Lines = []
        self._made = 0

    def lines(self) -> list[str]:
        """Return all that was written."""

        def flat(lines: Lines) -> Iterator[str]:
            for line in lines:
                if isinstance(line, str):
                    yield line
                else:
                    yield from flat(line)

        return ["entry:", *flat(self._places), *flat(self._lines)]

    # Instructions.

    def line(self, text: str) -> None:
        """Append an instruction that makes nothing."""
        self._lines.append("  " + text)

    def made(self, text: str) -> str:
        """Append an instruction and return the register that it makes."""
        self._made += 1
        self.line(f"%v{self._made} = {text}")
        return f"%v{self._made}"

    def number(self, type: ScalarType, text: str) -> Scalar:
        """Append an instruction that makes a number."""
        return Scalar(type, self.made(text))

    @contextmanager
    def later(self, lines: Lines) -> Iterator[None]:
        """Append what is written inside to `lines`, which `gap` left."""
        outside, self._lines = self._lines, lines
        yield
        self._lines = outside

    def gap(self) -> Lines:
        """Leave a place for instructions that are known later."""
        lines: Lines = []
        self._lines.append(lines)
        return lines

    # Variables.

    def place(self, word: str) -> str:
        """Return the address of a new place on the stack."""
        self._made += 1
        self._places.append(f"  %p{self._made} = alloca {word}")
        return f"%p{self._made}"

    def variable(self, type: Type) -> Variable:
        """Return a new variable."""
        places = [self.place(word) for word in words(type)]
        return Variable(type, places, [frozenset()] * count_arrays(type))

    def clear(self, variable: Variable) -> None:
        """Make a variable zero at the entry."""
        for word, place in zip(words(variable.type), variable.places, strict=True):
            self._places.append(f"  store {word} zeroinitializer, ptr {place}")

    def assign(self, variable: Variable, value: Value) -> None:
        """Give a variable a value of its type."""
        found = zip(variable.roots, arrays_in(value), strict=True)
        variable.roots = [before | array.roots for before, array in found]
        names = zip(words(variable.type), registers(value), variable.places, strict=True)
        for word, name, place in names:
            self.line(f"store {word} {name}, ptr {place}")

    def read_part(self, variable: Variable, at: int) -> Value:
        """Return a part of a variable that is a tuple."""
        assert isinstance(variable.type, TupleType)
        parts = variable.type.parts
        place = sum(len(words(part)) for part in parts[:at])
        root = sum(count_arrays(part) for part in parts[:at])
        part = parts[at]
        places = variable.places[place : place + len(words(part))]
        return self.read(Variable(part, places, variable.roots[root : root + count_arrays(part)]))

    def read(self, variable: Variable) -> Value:
        """Return the value of a variable."""
        kinds = zip(words(variable.type), variable.places, strict=True)
        names = [self.made(f"load {word}, ptr {place}") for word, place in kinds]
        return held_in(variable.type, iter(names), iter(variable.roots))

    # Blocks.

    def new_label(self) -> str:
        """Return a label that is not used yet."""
        self._made += 1
        return f"b{self._made}"

    def begin(self, label: str) -> None:
        """Begin a block after one that has ended."""
        self._lines.append(f"{label}:")

    def open(self, label: str) -> None:
        """Begin a block; the one before goes on in it."""
        self.line(f"br label %{label}")
        self.begin(label)

    def leave(self, text: str) -> None:
        """End a block otherwise; what follows in the source is not reached."""
        self.line(text)
        self.begin(self.new_label())

    def branch(self, test: Scalar, yes: str, no: str) -> None:
        """End a block with a choice, and begin that of `yes`."""
        self.line(f"br {test}, label %{yes}, label %{no}")
        self.begin(yes)

    def go(self, label: str, after: str) -> None:
        """End a block with a jump, and begin another one."""
        self.line(f"br label %{label}")
        self.begin(after)

    @contextmanager
    def count(
        self, first: Scalar, end: Scalar, step: Scalar, rises: bool = True
    ) -> Iterator[Count]:
        """Count from `first` to `end`, which is not reached, in steps."""
        label = self.new_label
        labels = Count(label(), label(), label(), label(), first)
        place = self.place("i64")
        self.line(f"store {first}, ptr {place}")
        self.open(labels.head)
        now = self.number(INT, f"load i64, ptr {place}")
        test = self.number(TRUTH, f"icmp {'slt' if rises else 'sgt'} {now}, {end.text}")
        self.branch(test, labels.body, labels.end)
        labels.index = now
        yield labels
        self.open(labels.next)
        after = self.number(INT, f"add nsw {now}, {step.text}")
        self.line(f"store {after}, ptr {place}")
        self.go(labels.head, labels.end)

    # Memory.

    def address(self, array: Array, element: Scalar) -> str:
        """Return the address of an element, counted over all axes."""
        stored = stored_as(array.type.dtype)
        return self.made(f"getelementptr inbounds {stored}, ptr {array.data}, {element}")

    def load(self, array: Array, element: Scalar) -> Scalar:
        """Read an element."""
        dtype, at = array.type.dtype, self.address(array, element)
        stored, type = stored_as(dtype), element_type(dtype)
        found = self.made(f"load {stored}, ptr {at}")
        if type is TRUTH:
            return self.number(TRUTH, f"icmp ne i8 {found}, 0")
        if stored == type.name:
            return Scalar(type, found)
        widen = "zext" if dtype.kind == "u" else "sext"
        return self.number(type, f"{widen} {stored} {found} to {type.name}")

    def store(self, value: Scalar, array: Array, element: Scalar) -> None:
        """Write an element; the value has the type of elements."""
        stored, at = stored_as(array.type.dtype), self.address(array, element)
        text = value.text
        if stored != value.type.name:
            change = "zext" if value.type is TRUTH else "trunc"
            text = self.made(f"{change} {value} to {stored}")
        self.line(f"store {stored} {text}, ptr {at}")


@dataclass(slots=True)
class Count:
    """A loop that counts: its blocks, and the register that counts."""

    head: str
    body: str
    next: str
    end: str
    index: Scalar
