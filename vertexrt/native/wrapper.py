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
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from vertexrt.config import config
from vertexrt.errors import DeviceError
from vertexrt.native.fingerprint import parts_of
from vertexrt.native.load import LoadedCode, load_made
from vertexrt.native.module import NativeModule, Translated, called
from vertexrt.native.text import FunctionText
from vertexrt.native.values import (
    INT,
    TRUTH,
    Array,
    ArrayType,
    Scalar,
    Static,
    Tuple,
    TupleType,
    Type,
    Value,
    held_in,
    words,
)

ENTRY = "vrt_entry"
C_ORDER, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # flags of an array
PYARRAY_NEW = 93  # of NumPy's table of functions

RUNTIME = (Path(__file__).parent / "runtime.ll").read_text("ascii")


@functools.cache
def imports() -> dict[str, int]:
    """Return the addresses of what a wrapper uses of this process."""
    core = getattr(np, "_core", None) or np.core
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = api.PyCapsule_GetPointer(core._multiarray_umath._ARRAY_API, None)
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


def wrapper(made: Translated, arguments: list[Type]) -> str:
    """Return the text of the function that Python calls."""
    text = FunctionText()
    call = text.place("{ptr, ptr}")
    text.line(f"store {{ptr, ptr}} zeroinitializer, ptr {call}")
    enough = text.made(f"icmp eq i64 %count, {len(arguments)}")
    _go_on(text, enough, "other")
    passed, arrays = [f"ptr {call}"], list[str]()
    for k, type in enumerate(arguments):
        at = text.made(f"getelementptr ptr, ptr %given, i64 {k}")
        passed += _unpacked(text, type, text.made(f"load ptr, ptr {at}"), arrays)
    for k in sorted(made.written):
        _refuse_read_only(text, arrays[k])
    thread = text.made("call ptr @PyEval_SaveThread()")
    names = called(text, made, passed)
    text.line(f"call void @PyEval_RestoreThread(ptr {thread})")
    if made.fails:
        _raise_failure(text, call)
    root = text.place("ptr")
    text.line(f"store ptr null, ptr {root}")
    result: Value = Static(None)
    if made.result is not None:
        result = held_in(made.result, iter(names()), itertools.repeat(frozenset[int]()))
    made_of = _object(text, call, root, result)
    text.line(f"call void @release(ptr {call}, ptr null, ptr null, i64 0)")
    text.line(f"ret ptr {made_of}")
    text.begin("short")  # of memory for the result
    text.line(f"call void @release(ptr {call}, ptr null, ptr null, i64 0)")
    begun = text.made(f"load ptr, ptr {root}")
    text.line(f"call void @Py_DecRef(ptr {begun})")
    text.line("ret ptr null")
    text.begin("wrong")
    text.line("ret ptr null")
    text.begin("other")
    other = text.made("call ptr @PyObject_Vectorcall(ptr %self, ptr %given, i64 %count, ptr null)")
    text.line(f"ret ptr {other}")
    title = f"define ptr @{ENTRY}(ptr %self, ptr %given, i64 %count) {{"
    return "\n".join([title, *text.lines(), "}"])


def _go_on(text: FunctionText, test: str, otherwise: str) -> None:
    text.branch(Scalar(TRUTH, test), text.new_label(), otherwise)


def _field(text: FunctionText, of: str, offset: int, kind: str = "ptr") -> str:
    at = text.made(f"getelementptr i8, ptr {of}, i64 {offset}")
    return text.made(f"load {kind}, ptr {at}")


def _unpacked(text: FunctionText, type: Type, given: str, arrays: list[str]) -> list[str]:
    """Read an argument; return it as the translated function takes it.

    Args:
        given: its object; arrays: gets the objects that are arrays.
    """
    if isinstance(type, TupleType):
        size = len(type.parts)
        _go_on(text, text.made(f"call i1 @is_tuple(ptr {given}, i64 {size})"), "other")
        found: list[str] = []
        for k, part in enumerate(type.parts):
            found += _unpacked(text, part, _field(text, given, 24 + 8 * k), arrays)
        return found
    if isinstance(type, ArrayType):
        arrays.append(given)
        number, alike = type_numbers(type.dtype)
        asked = f"i32 {type.ndim}, i32 {number}, i32 {alike}, i32 {C_ORDER | ALIGNED}"
        _go_on(text, text.made(f"call i1 @is_array(ptr {given}, {asked})"), "other")
        extents = _field(text, given, 32)
        sizes = [f"i64 {_field(text, extents, 8 * k, 'i64')}" for k in range(type.ndim)]
        return [f"ptr {_field(text, given, 16)}", *sizes]
    return [] if not words(type) else [_number(text, type, given)]


def _refuse_read_only(text: FunctionText, array: str) -> None:
    """Raise an error for an array that the function writes to and that is read-only."""
    flags = _field(text, array, 64, "i32")
    test = text.made(f"icmp ne i32 {text.made(f'and i32 {flags}, {WRITEABLE}')}, 0")
    good, bad = text.new_label(), text.new_label()
    text.line(f"br i1 {test}, label %{good}, label %{bad}")
    text.begin(bad)
    kind = text.made("load ptr, ptr @PyExc_ValueError")
    text.line(f"call void @PyErr_SetString(ptr {kind}, ptr @read_only)")
    text.go("wrong", good)


def _number(text: FunctionText, type: Type, given: str) -> str:
    """Read a number; a value that is none leaves with the error of Python."""
    ways = {"i64": "i64 @PyLong_AsLongLong", "double": "double @PyFloat_AsDouble"}
    (word,) = words(type)
    found = text.made(f"call {ways.get(word, 'i32 @PyObject_IsTrue')}(ptr {given})")
    tests = {"i64": "icmp ne i64", "double": "fcmp une double"}
    error = "-1.0" if word == "double" else "-1"
    good, maybe = text.new_label(), text.new_label()
    test = text.made(f"{tests.get(word, 'icmp ne i32')} {found}, {error}")
    text.branch(Scalar(TRUTH, text.made(f"xor i1 {test}, true")), maybe, good)
    failed = text.made("call ptr @PyErr_Occurred()")
    fine = text.made(f"icmp eq ptr {failed}, null")
    text.line(f"br i1 {fine}, label %{good}, label %wrong")
    text.begin(good)
    return f"i1 {text.made(f'icmp ne i32 {found}, 0')}" if word == "i1" else f"{word} {found}"


def _raise_failure(text: FunctionText, call: str) -> None:
    """Raise an error where the function has failed."""
    failure = _field(text, call, 8)
    good, bad, memory, other = (text.new_label() for _ in range(4))
    fine = text.made(f"icmp eq ptr {failure}, null")
    text.branch(Scalar(TRUTH, text.made(f"xor i1 {fine}, true")), bad, good)
    text.line(f"call void @release(ptr {call}, ptr null, ptr null, i64 0)")
    test = text.made(f"icmp eq ptr {failure}, @no_memory")
    text.branch(Scalar(TRUTH, test), memory, other)
    text.made("call ptr @PyErr_NoMemory()")
    text.line("ret ptr null")
    text.begin(other)
    kind = text.made("load ptr, ptr @PyExc_AssertionError")
    text.line(f"call void @PyErr_SetString(ptr {kind}, ptr {failure})")
    text.line("ret ptr null")
    text.begin(good)


def _object(text: FunctionText, call: str, root: str, value: Value) -> str:
    """Make an object of Python of a value; where memory is short, leave."""
    if isinstance(value, Static):
        text.line("call void @Py_IncRef(ptr @none)")
        return "@none"
    if isinstance(value, Scalar):
        made = _object_of_number(text, value)
    elif isinstance(value, Array):
        made = _object_of_array(text, call, value)
    else:
        made = text.made(f"call ptr @PyTuple_New(i64 {len(value.parts)})")
    _go_on(text, text.made(f"icmp ne ptr {made}, null"), "short")
    if isinstance(value, Tuple):
        _fill(text, call, root, made, value)
    return made


def _fill(text: FunctionText, call: str, root: str, made: str, value: Tuple) -> None:
    """Fill a tuple; the outermost is noted, so that nothing is lost where memory is short."""
    none = text.made(f"load ptr, ptr {root}")
    first = text.made(f"icmp eq ptr {none}, null")
    noted = text.made(f"select i1 {first}, ptr {made}, ptr {none}")
    text.line(f"store ptr {noted}, ptr {root}")
    for k, part in enumerate(value.parts):
        item = _object(text, call, root, part)
        text.line(f"call i32 @PyTuple_SetItem(ptr {made}, i64 {k}, ptr {item})")


def _object_of_number(text: FunctionText, value: Scalar) -> str:
    if value.type is TRUTH:
        return text.made(f"call ptr @PyBool_FromLong(i64 {text.made(f'zext {value} to i64')})")
    if value.type.real:
        wide = value.text
        if value.type.name == "float":
            wide = text.made(f"fpext {value} to double")
        return text.made(f"call ptr @PyFloat_FromDouble(double {wide})")
    way = "PyLong_FromUnsignedLongLong" if value.type.unsigned else "PyLong_FromLongLong"
    return text.made(f"call ptr @{way}({value})")


def _object_of_array(text: FunctionText, call: str, value: Array) -> str:
    extents = text.place(f"[{max(1, value.type.ndim)} x i64]")
    size = Scalar(INT, str(value.type.dtype.itemsize)).text
    for k, extent in enumerate(value.extents):
        at = text.made(f"getelementptr i64, ptr {extents}, i64 {k}")
        text.line(f"store {extent}, ptr {at}")
        size = text.made(f"mul i64 {size}, {extent.text}")
    number, _ = type_numbers(value.type.dtype)
    given = f"ptr {call}, ptr {value.data}, i32 {value.type.ndim}, ptr {extents}, i32 {number}"
    return text.made(f"call ptr @array_of({given}, i64 {size})")


def build(function: FunctionType, types: tuple[Type, ...]) -> LoadedCode:
    """Return the code of a function for Python, for arguments of some types."""
    checked = f"checked: {config().check}"
    parts = ["host code", checked, *parts_of(function), *map(type_text, types), np.__version__]
    # To unroll loops makes them 3 % faster, and takes a quarter of the compiling.
    return load_made(parts, lambda: _text(function, types), [ENTRY], imports(), unroll=False)


def type_text(type: Type) -> str:
    """Write a type; of a record, what its fields are called too."""
    if not isinstance(type, TupleType):
        return repr(type)
    names = getattr(type.record, "_fields", ())
    return f"{type.record} {names} {[type_text(part) for part in type.parts]}"


def _text(function: FunctionType, types: tuple[Type, ...]) -> str:
    """Translate a function, and all that it calls."""
    module = NativeModule()
    made = module.translate(function, types)
    return "\n".join([RUNTIME, *module.texts, wrapper(made, list(types))])
