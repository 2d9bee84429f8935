"""How processors wait for each other: counters, the error record, and a gate for decisions.

Counters lie 64 bytes apart. A wait spins, gives its time slice away now and then (there may be more
processors than cores), and ends with an error record when its time is up or another processor has
failed, so that nothing hangs.

The processors of one group share `counters`: the error record, then the counters. A `gate` is one
for all groups of a step. What is decided there is decided once, by an exchange that succeeds for
the first who tries, so all processors act on the same word: it cannot be that one gives up waiting
while another goes on and changes a parameter.
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

# Words of a gate: who has arrived and what is decided, about the loss, the norm and the update;
# then who has arrived of each group, and how far each processor is.
GROUPS_HERE, LOSS, ALL_HERE, NORM, ALL_CHECKED, UPDATE, OF_GROUP = range(7)

# What can be decided; 0 is undecided.
GO = 1
REFUSED = 2  # the loss, the norm of the gradients or the update is not finite
ABANDONED = 3  # a script ended early
EXPIRED = 4  # somebody waited too long


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@intrinsic  # type: ignore[untyped-decorator]
def add_one(typing: Any, array: Any, index: Any) -> Any:
    """Add one to array[index]; return what it was.

    Who reads the sum sees all that was written before, and who adds last, what all others wrote.
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
def _set(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index] where others look at it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _pointer(context, builder, signature, args)
        builder.store_atomic(args[2], at, "monotonic", 4)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int32), code


@intrinsic  # type: ignore[untyped-decorator]
def _set_first(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index] if it is zero; return what it was."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _pointer(context, builder, signature, args)
        zero = ll.Constant(ll.IntType(32), 0)
        both = builder.cmpxchg(at, zero, args[2], "acq_rel", "acquire")
        return builder.extract_value(both, 0)

    return types.int32(array, types.int64, types.int32), code


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


def gate_words(groups: int, processors: int) -> int:
    """Return the int32 words of a gate for groups of some processors each."""
    return (OF_GROUP + groups + groups * processors) * APART


@njit(cache=True, nogil=True)
def arrive(gate: Any, word: int, expected: int) -> bool:
    """Tell whether the caller is the last of those who are expected; it sees what all wrote."""
    return add_one(gate, word * APART) == expected - 1  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def decide(gate: Any, word: int, value: int) -> int:
    """Decide, unless that has been done; return what is decided."""
    before = _set_first(gate, word * APART, value)
    return value if before == 0 else before


@njit(cache=True, nogil=True)
def abandon(gate: Any) -> None:
    """Tell all groups that a script ended early."""
    decide(gate, LOSS, ABANDONED)


@njit(cache=True, nogil=True)
def move_on(gate: Any, groups: int, who: int, done: int) -> None:
    """Note that a processor has done so many instructions."""
    _set(gate, (OF_GROUP + groups + who) * APART, done)


@njit(cache=True, nogil=True)
def await_decision(gate: Any, word: int, groups: int, limit: int) -> int:
    """Wait until something is decided and return it; EXPIRED, when nobody moves for `limit` cycles.

    Shares of a batch may differ by more than the limit, so it counts from the last instruction that
    any processor has done.
    """
    spins, start, before = 0, cycles(), _moves(gate, groups)
    while True:
        found = read_counter(gate, word * APART)
        if found != 0:
            return found  # type: ignore[no-any-return]
        spins += 1
        if spins % 64 == 0:
            _give_way()
            if cycles() - start > limit:
                now = _moves(gate, groups)
                if now == before:
                    return decide(gate, word, EXPIRED)
                start, before = cycles(), now


@njit(cache=True, nogil=True)
def _moves(gate: Any, groups: int) -> int:
    total = 0
    for word in range(OF_GROUP + groups, len(gate) // APART):
        total += read_counter(gate, word * APART)
    return total


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
