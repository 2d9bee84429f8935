"""The translation of loops: the same function as machine code and as Python does the same."""

import ctypes
import re
import resource
from typing import Any

import numpy as np
import pytest

from tests import native_loops as loops
from tests.messages import table
from vertexrt.config import config
from vertexrt.native.compiled import compiled
from vertexrt.native.scope import TranslationError

rng = np.random.default_rng(7)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int64) -> Any:
    return rng.integers(low, high, shape).astype(dtype)


def copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        parts = [copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    elif wanted is None:
        assert found is None
    else:
        assert found == wanted


CASES = table(__file__, "CASES")


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", CASES)
def test_machine_code_does_what_python_does(name: str) -> None:
    function = getattr(loops, name.split()[0])
    for _ in range(3):
        given = eval(CASES[name])
        other = copied(given)
        assert_same(function(*given), function.__wrapped__(*other))
        assert_same(given, other)


def test_a_call_of_other_types_is_another_translation() -> None:
    for dtype in (np.int32, np.float64, np.int32, np.uint8, np.bool_):
        assert loops.reads_at(np.array([0, 1], dtype), 1) == 1


def test_functions_are_called_by_address() -> None:
    square = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: x * x)
    address = ctypes.cast(square, ctypes.c_void_p).value
    for function in (loops.by_address, loops.by_address.__wrapped__):  # type: ignore[attr-defined]
        assert function(address, 3.0) == 10.0

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    def fill(at: int, count: int, value: int) -> None:
        np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(at))[:] = value

    address = ctypes.cast(fill, ctypes.c_void_p).value
    assert loops.filled_by(address, 3).tolist() == [7, 7, 7]


def test_read_only_memory_is_filled_where_a_loop_says_so() -> None:
    for function in (loops.fill_read_only, loops.fill_read_only.__wrapped__):  # type: ignore[attr-defined]
        whole = np.frombuffer(bytes(24), np.int64)
        function(whole, np.arange(3))
        assert whole.tolist() == [0, 1, 2]


READ_ONLY = np.zeros(5, np.int32)
READ_ONLY.flags.writeable = False
# The call of a loop -> the error of Python that it raises, also the second time. An index is looked
# at under VERTEXRT_CHECK.
ERRORS = table(__file__, "ERRORS")


@pytest.mark.parametrize("call", ERRORS)
def test_what_fails_is_an_error_of_python(call: str) -> None:
    kinds = AssertionError, MemoryError, OverflowError, TypeError, ValueError
    for _ in range(2):
        with pytest.raises(kinds) as caught:
            eval(call, {**vars(loops), "np": np, "READ_ONLY": READ_ONLY})
        assert re.match(ERRORS[call], f"{type(caught.value).__name__}: {caught.value}", re.DOTALL)
    assert loops.fails(3)[0] == 3


@pytest.mark.parametrize(
    ("function", "line", "text"),
    [
        (loops.makes_a_list, "for k in [1, 2]:", r"the expression \[1, 2\]"),
        (loops.changes_type, "total = total + 0.5", "a value of type double; one of type i64"),
        (loops.has_a_step, "return values[::2]", "a slice with a step"),
        (loops.counts_by_a_call, "values[abs(-1)] += 1", "a call in .*, which is read twice"),
    ],
)
def test_what_is_not_translated_is_refused_by_line(function: Any, line: str, text: str) -> None:
    with open(loops.__file__, encoding="utf-8") as file:
        number = [each.strip() for each in file].index(line) + 1
    argument = np.zeros(4) if function in (loops.has_a_step, loops.counts_by_a_call) else 1
    with pytest.raises(TranslationError, match=rf"native_loops\.py:{number}\] .*{text}"):
        function(argument)


def test_loops_may_run_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do with VERTEXRT_PLAIN=1: what is not translated runs too."""
    monkeypatch.setenv("VERTEXRT_PLAIN", "1")
    config.cache_clear()
    try:
        assert compiled(loops.makes_a_list.__wrapped__)(1) == 3  # type: ignore[attr-defined]
    finally:
        monkeypatch.undo()
        config.cache_clear()


def test_memory_is_freed_on_every_path() -> None:
    def size() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for k in range(400):
        if k == 100:
            before = size()
        loops.takes_and_drops(200_000)
        loops.takes(200_000)
        with pytest.raises(AssertionError):
            loops.fails(200_000)
    assert size() - before < 50_000  # KiB; a leak of one array a call would be 470,000
