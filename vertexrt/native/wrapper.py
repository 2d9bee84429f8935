"""The function of Python that calls a translated one: arguments are read, results are made.

NumPy's arrays are read where their fields lie in memory, which is part of NumPy's stable binary
interface. What is not of the types that the function was translated for is handed on to `self`.
New arrays are handed over to NumPy, which frees them; all other memory is freed here.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from types import FunctionType
from typing import Any

import numpy as np

from vertexrt.config import config
from vertexrt.errors import DeviceError
from vertexrt.native.code import REALS, Code, Register, module_of
from vertexrt.native.fingerprint import parts_of
from vertexrt.native.foreign import pointer_in
from vertexrt.native.load import LoadedCode, load
from vertexrt.native.scope import (
    DOUBLE,
    FAILURE,
    INT,
    TRUTH,
    WORD,
    Array,
    ArrayType,
    Type,
    Value,
    held_in,
    is_number,
    type_of,
)
from vertexrt.native.translate import Module, Translation, message, translated

ENTRY = "vrt_entry"
C_ORDER, OWNS_DATA, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400  # flags of an array
BIG_ENDIAN = ord(">")
PYARRAY_NEW = 93  # of NumPy's table of functions

GLOBALS = (
    message("@no_memory", ""),
    message("@read_only", "an array that is written to is read-only"),
    *(f"@{name} = external global i8" for name in ("ndarray", "tuple_type", "none")),
    *(f"@PyExc_{name} = external global ptr" for name in ("AssertionError", "ValueError")),
)
NULL, NONE, NDARRAY, TUPLE, NO_MEMORY, READ_ONLY = (
    Register("ptr", name)
    for name in ("null", "@none", "@ndarray", "@tuple_type", "@no_memory", "@read_only")
)


@functools.cache
def imports() -> dict[str, int]:
    """Return the addresses of what a wrapper uses of this process."""
    core = getattr(np, "_core", None) or np.core
    table = pointer_in(core._multiarray_umath._ARRAY_API)
    functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    _check_fields()
    new = functions[PYARRAY_NEW]
    assert new is not None
    return {
        "ndarray": id(np.ndarray),
        "tuple_type": id(tuple),
        "none": id(None),
        "PyArray_New": new,
    }


def _check_fields() -> None:
    """Look whether the fields of an array lie where wrappers read them.

    Raises: DeviceError, where they do not: Python or NumPy were built in another way.
    """
    array = np.zeros((2, 3), np.int16)
    at, dtype, pair = id(array), id(array.dtype), (array, array)
    read: dict[str, Any] = {"q": ctypes.c_int64, "i": ctypes.c_int32, "b": ctypes.c_char}
    fields = (
        (at, 8, "q", id(np.ndarray)),
        (at, 16, "q", array.ctypes.data),
        (at, 24, "i", array.ndim),
        (at, 56, "q", dtype),
        (at, 64, "i", array.flags.num),
        (dtype, 26, "b", array.dtype.byteorder.encode()),
        (dtype, 28, "i", array.dtype.num),
        (id(pair), 16, "q", len(pair)),
        (id(pair), 24, "q", at),
    )
    for base, offset, kind, wanted in fields:
        if read[kind].from_address(base + offset).value != wanted:
            versions = f"Python {sys.version.split()[0]} with NumPy {np.__version__}"
            expected = "the fields of an array where 64 bits have them"
            action = "set VERTEXRT_PLAIN=1, which is slow, or install another build of them"
            raise DeviceError.at("native", versions, expected, action)


def type_numbers(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return NumPy's number of a dtype, and that of the other one that is the same."""
    alike = [np.dtype(c) for c in "bBhHiIlLqQ?fd"]
    same = [each.num for each in alike if each == dtype]
    return same[0], same[-1]


# A call has a list of the memory that it took, and why it failed. After what is taken lie the rest
# of the list, and where it begins.


def _new() -> Code:
    """Write what takes memory; null, where there is none."""
    code = Code("new", "ptr*call bytes i1:zero", result="noalias ptr", internal=True)
    call, size, zero = code.arguments
    size = code.most(size, 0) + 15 & -16
    total, taken = size + 16, code.place("ptr")

    def take(function: str, *given: Register | int) -> None:
        taken[0] = code.call("ptr", function, given)

    code.either(zero, lambda: take("calloc", 1, total), lambda: take("malloc", total))
    memory = taken[0]
    with code.when(memory.equals(NULL)):
        code.store(NO_MEMORY, call.to("i8") + FAILURE)
        code.leave(NULL)
    link = (memory.to("i8") + size).to("ptr")
    link[0] = call[0]
    link[1] = memory
    call[0] = link
    code.leave(memory)
    return code


def _release() -> Code:
    """Write what frees memory taken since `until`."""
    code = Code("release", "ptr*call ptr*until", internal=True)
    call, until = code.arguments
    with code.repeat(lambda: call[0].differs(until)):
        link = call[0]
        call[0] = link[0]
        code.do("free", [link[1]])
    return code


def _array_of() -> Code:
    """Write what makes an array: of memory that this call took, else of a copy."""
    arguments = "ptr*call *data i32:ndim *extents i32:number bytes"
    code = Code("array_of", arguments, result="ptr", internal=True)
    call, data, ndim, extents, number, size = code.arguments

    def made_of(memory: Register, flags: int) -> Register:
        none, own = (code.const(each, "i32") for each in (0, flags))
        given = [NDARRAY, ndim, extents, number, NULL, memory, none, own, NULL]
        return code.call("ptr", "PyArray_New", given)

    at = code.variable(call)
    with code.repeat(lambda: at[0][0].differs(NULL)):
        before = at[0]
        link = before[0]
        with code.when(link[1].equals(data)):
            made = made_of(data, C_ORDER | ALIGNED | WRITEABLE)
            with code.when(made.differs(NULL)):
                before[0] = link[0]
                flags = (made.to("i8") + 64).to("i32")
                flags[0] = flags[0] | OWNS_DATA
            code.leave(made)
        at[0] = link
    made = made_of(NULL, 0)
    with code.when(made.differs(NULL)):
        code.call("ptr", "memcpy", [code.field("ptr", made, 16), data, size])
    code.leave(made)
    return code


OTHER, SHORT = "other", "short"  # blocks that end a call without a result
AS_NUMBERS = {  # functions that read an object, and what they return of an error
    "i64": ("i64", "PyLong_AsLongLong"),
    "double": ("double", "PyFloat_AsDouble"),
    "i1": ("i32", "PyObject_IsTrue"),
}
AS_OBJECTS = {  # functions that make objects of numbers, and of what type these are passed
    INT: ("PyLong_FromLongLong", INT),
    WORD: ("PyLong_FromUnsignedLongLong", WORD),
    TRUTH: ("PyBool_FromLong", INT),
    **dict.fromkeys(REALS, ("PyFloat_FromDouble", DOUBLE)),
}


class _Wrapper(Code):
    """The function that Python calls, under construction."""

    def __init__(self, made: Translation, arguments: list[Type]) -> None:
        super().__init__(ENTRY, "*self ptr*given count", result="ptr")
        own, given, count = self.arguments
        self.memory = self.place("{ptr, ptr}", zero=True)  # of the call
        self.root = self.place("ptr", zero=True)  # the tuple that is returned
        self.arrays: list[Register] = []  # objects of the arguments
        self._need(count.equals(len(arguments)))
        passed = [self.memory]
        for k, type in enumerate(arguments):
            passed += self._unpacked(type, given[k])
        for k in sorted(made.written):
            flags = self.field("i32", self.arrays[k], 64) & WRITEABLE
            with self.when(flags.differs(0), holds=False):
                self._raise("ValueError", READ_ONLY)
        thread = self.call("ptr", "PyEval_SaveThread", [])
        held = made.append_call(self, passed)
        self.do("PyEval_RestoreThread", [thread])
        if made.fails:
            failure = self.field("ptr", self.memory, FAILURE)
            with self.when(failure.equals(NULL), holds=False):
                self._release()
                with self.when(failure.equals(NO_MEMORY)):
                    self.call("ptr", "PyErr_NoMemory", [])
                    self.leave(NULL)
                self._raise("AssertionError", failure)
        kind = type_of(made.given_back)
        found = self._object(held_in(kind, held, itertools.repeat(frozenset())))
        self._release()
        self.leave(found)
        self.enter(SHORT)  # of memory for the result
        self._release()
        self.do("Py_DecRef", [self.root[0]])
        self.leave(NULL)
        self.enter(OTHER)
        self.leave(self.call("ptr", "PyObject_Vectorcall", [own, given, count, NULL]))

    def _need(self, test: Register) -> None:
        """Hand the call on, unless a test holds."""
        with self.when(test, holds=False):
            self.go_to(OTHER)

    def _need_instance(self, given: Register, kind: Register) -> None:
        own = self.field("ptr", given, 8)
        with self.when(own.differs(kind)):
            self._need(self.call("i32", "PyType_IsSubtype", [own, kind]).differs(0))

    def _release(self) -> None:
        self.do("release", [self.memory, NULL])

    def _raise(self, error: str, text: Register) -> None:
        kind = self.load(Register("ptr", f"@PyExc_{error}", "ptr"))
        self.do("PyErr_SetString", [kind, text])
        self.leave(NULL)

    def _unpacked(self, type: Type, given: Register) -> list[Register]:
        """Read an argument; return it as the translated function takes it.

        Args:
            given: its object.
        """
        if isinstance(type, tuple):
            self._need_instance(given, TUPLE)
            self._need(self.field("i64", given, 16).equals(len(type)))
            found: list[Register] = []
            for k, part in enumerate(type):
                found += self._unpacked(part, self.field("ptr", given, 24 + 8 * k))
            return found
        if isinstance(type, ArrayType):
            self.arrays.append(given)
            self._need_instance(given, NDARRAY)
            self._need(self.field("i32", given, 24).equals(type.ndim))
            flags = self.field("i32", given, 64) & (C_ORDER | ALIGNED)
            self._need(flags.equals(C_ORDER | ALIGNED))
            dtype = self.field("ptr", given, 56)
            number = self.field("i32", dtype, 28)
            same, alike = (number.equals(k) for k in type_numbers(type.dtype))
            self._need(same | alike)
            self._need(self.field("i8", dtype, 26).differs(BIG_ENDIAN))
            extents = self.field("ptr", given, 32)
            sizes = [self.field("i64", extents, 8 * k) for k in range(type.ndim)]
            return [self.field("ptr", given, 16), *sizes]
        if not is_number(type):
            return []
        # A value that is no number leaves with the error of Python.
        number = self.call(*AS_NUMBERS[type], [given])
        with self.when(number.equals(-1)):
            failed = self.call("ptr", "PyErr_Occurred", [])
            with self.when(failed.equals(NULL), holds=False):
                self.leave(NULL)
        return [self.convert(number, type)]

    def _object(self, value: Value) -> Register:
        """Make an object of Python of a value; where memory is short, leave."""
        if value is None:
            self.do("Py_IncRef", [NONE])
            return NONE
        if isinstance(value, Register):
            way, type = AS_OBJECTS[value.type]
            made = self.call("ptr", way, [self.convert(value, type)])
        elif isinstance(value, Array):
            extents = self.place(f"[{max(1, value.ndim)} x i64]", of=INT)
            size = self.const(value.itemsize, INT)
            for k, extent in enumerate(value.shape):
                extents[k] = extent
                size *= extent
            numbers = value.ndim, type_numbers(value.dtype)[0]
            axes, number = (self.const(each, "i32") for each in numbers)
            given = [self.memory, value.first, axes, extents, number, size]
            made = self.call("ptr", "array_of", given)
        else:
            assert isinstance(value, tuple), value
            made = self.call("ptr", "PyTuple_New", [len(value)])
        with self.when(made.equals(NULL)):
            self.go_to(SHORT)
        if isinstance(value, tuple):
            # The outermost tuple is noted, so that nothing is lost where memory is short.
            with self.when(self.root[0].equals(NULL)):
                self.root[0] = made
            for k, part in enumerate(value):
                self.call("i32", "PyTuple_SetItem", [made, k, self._object(part)])
        return made


def build(function: FunctionType, types: tuple[Type, ...]) -> LoadedCode:
    """Return the code of a function for Python, for arguments of some types."""
    checked = f"checked: {config().check}"
    parts = ["host code", checked, *parts_of(function), *map(repr, types), np.__version__]
    # To unroll loops makes them 3 % faster, and takes a quarter of the compiling.
    return load(lambda: _text(function, types), [ENTRY], imports(), unroll=False, parts=parts)


def _text(function: FunctionType, types: tuple[Type, ...]) -> str:
    """Translate a function, and all that it calls."""
    module: Module = {}
    entry = _Wrapper(translated(module, function, types), list(types))
    made = [each for each in module.values() if each]
    functions = [_new(), _release(), _array_of(), *made, entry]
    constants = [text for each in made for text in each.constants()]
    return module_of(functions, *GLOBALS, *constants)
