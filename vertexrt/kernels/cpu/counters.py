"""How processors wait for each other: counters, and the error record.

Counters lie 64 bytes apart. A wait spins, gives its time slice away now and then (there may be more
processors than cores), and ends with an error record when its time is up or another processor has
failed, so that nothing hangs.

The processors of one group share `counters`: the error record, then the counters.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.extending import intrinsic

from vertexrt.cache.compiled import njit

APART = 16  # int32 words from one counter to the next
FAILED, PROCESSOR, INSTRUCTION, WAITED = range(4)  # the error record, before the counters
SECONDS = 30.0  # of a wait: on a machine with much to do a thread may not run for a while


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@intrinsic  # type: ignore[untyped-decorator]
def add_one(typing: Any, array: Any, index: Any) -> Any:
    """Add one to array[index]; return what it was.

    Reading the sum implies seeing all that was written before; the last to add sees what all
    others wrote.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ll.Constant(ll.IntType(32), 1)
        at = _pointer(context, builder, signature, args)
        return builder.atomic_rmw("add", at, one, "acq_rel")

    return types.int32(array, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def read_counter(typing: Any, array: Any, index: Any) -> Any:
    """Return array[index]; what was written before its last change can be read afterwards."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", 4)

    return types.int32(array, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def cycles(typing: Any) -> Any:
    """Return the processor's cycle counter."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic(
            "llvm.readcyclecounter", fnty=ll.FunctionType(ll.IntType(64), [])
        )
        return builder.call(function, [])

    return types.int64(), code


_give_way = types.ExternalFunction("sched_yield", types.int32())


@njit(cache=True, nogil=True)
def wait_for(counters: Any, counter: int, threshold: int, limit: int) -> bool:
    """Wait until a counter has reached a threshold; False after `limit` cycles or a failure."""
    spins, start = 0, cycles()
    while read_counter(counters, (counter + 1) * APART) < threshold:
        spins += 1
        if spins % 64 == 0:
            _give_way()
            if read_counter(counters, FAILED) != 0 or cycles() - start > limit:
                return False
    return True


@njit(cache=True, nogil=True)
def signal(counters: Any, counter: int) -> None:
    """Add one to a counter."""
    add_one(counters, (counter + 1) * APART)


@njit(cache=True, nogil=True)
def fail(counters: Any, part: int, instruction: int, counter: int) -> None:
    """Leave the error record, unless another processor has left one."""
    if read_counter(counters, FAILED) == 0:
        counters[PROCESSOR] = part
        counters[INSTRUCTION] = instruction
        counters[WAITED] = counter
        add_one(counters, FAILED)


@njit(cache=True, nogil=True)
def _cycles() -> int:
    return cycles()  # type: ignore[no-any-return]


@functools.cache
def cycles_per_second() -> float:
    """Measure the cycle counter against the clock."""
    _cycles()
    start, first = time.perf_counter(), _cycles()
    while time.perf_counter() - start < 0.005:
        pass
    return float((_cycles() - first) / (time.perf_counter() - start))
