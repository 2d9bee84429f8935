"""Write several arrays in one call, so that no signal and no exception comes between them.

Python handles signals between two of its own instructions. So what belongs together, such as
parameters, moments and counts, is made beside what is there, and takes its place in one call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from vertexrt.native.foreign import Foreign
from vertexrt.native.load import LoadedCode, load

Array = np.ndarray[Any, Any]

TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @vrt_copy_all(ptr %rows, i64 %count) {
begin:
  br label %test
test:
  %k = phi i64 [0, %begin], [%next, %copy]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %copy, label %end
copy:
  %at = mul i64 %k, 3
  %row = getelementptr i64, ptr %rows, i64 %at
  %to = load ptr, ptr %row
  %second = getelementptr i64, ptr %row, i64 1
  %made = load ptr, ptr %second
  %third = getelementptr i64, ptr %row, i64 2
  %bytes = load i64, ptr %third
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %made, i64 %bytes, i1 false)
  %next = add i64 %k, 1
  br label %test
end:
  ret void
}
"""
COPY_ALL = Foreign("void", "ptr i64")
Write = tuple[Array, Array] | tuple[Array, Array, Array]
_WHOLE = np.zeros(1, np.int64)


@functools.cache
def _code() -> LoadedCode:
    return load(TEXT, ["vrt_copy_all"], {})


def write_at_once(writes: Iterable[Write]) -> None:
    """Copy arrays to where they belong: all of them, or none.

    Args:
        writes: an array in C order, what it is to be, and the numbers of its rows that this is;
            without these, of the whole array.
    """
    kept, spans = [], [np.zeros((0, 3), np.int64)]
    for to, given, *listed in writes:
        made = np.ascontiguousarray(given, to.dtype)
        kept.append(made)
        rows = listed[0] if listed else _WHOLE
        width = to[0].nbytes if listed else to.nbytes
        assert to.flags.c_contiguous
        assert made.nbytes == width * len(rows)
        first = to.ctypes.data, made.ctypes.data
        numbers = rows, np.arange(len(rows))
        begins = [at + width * each for at, each in zip(first, numbers, strict=True)]
        spans.append(np.stack([*begins, np.full(len(rows), width)], axis=1))
    whole = np.concatenate(spans)
    COPY_ALL(_code()["vrt_copy_all"], whole, len(whole))
