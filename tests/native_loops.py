"""Loops for the tests of the translation: each is compared with itself as Python."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import Foreign, filled_here

Array = np.ndarray[Any, Any]

PRIME = np.uint64(0x100000001B3)
SIZES = (3, 5, 7)
SQUARE = Foreign("double", "double")
FILL = Foreign("void", "ptr i64 i32")


class Pair(NamedTuple):
    first: Any
    second: Any


class Named(NamedTuple):
    values: Array
    count: int
    factor: float


@compiled
def whole_arithmetic(a: Array, b: Array) -> Any:
    out = np.zeros((11, len(a)), np.int64)
    for i in range(len(a)):
        x, y = int(a[i]), int(b[i])
        out[0, i], out[1, i], out[2, i] = x + y, x - y, x * y
        if y != 0:
            out[3, i], out[4, i] = x // y, x % y
        out[5, i], out[6, i], out[7, i] = x & y, x | y, x ^ y
        out[8, i], out[9, i] = (x << 3) + (x >> 2), -x + ~y
        out[10, i] = x // 7 - x % 16 + abs(x)
    return out


@compiled
def real_arithmetic(a: Array, b: Array, factor: float) -> Any:
    out = np.zeros((6, len(a)), a.dtype)
    for i in range(len(a)):
        out[0, i], out[1, i] = a[i] + b[i], a[i] - b[i] * 2
        out[2, i] = max(a[i], b[i])
        out[3, i] = min(a[i], 0.5)
        out[4, i] = abs(a[i])
        out[5, i] = a[i] if math.isfinite(b[i]) else -b[i]
    total = 0.0
    for x in a:
        total += np.float64(x) * factor
    return out, total, math.sqrt(abs(total)), 7 / 2, total > 1, int(total)


@compiled
def hashes(values: Array, shift: int) -> Any:
    keys = np.zeros(len(values), np.uint64)
    places = np.zeros(len(values), np.int64)
    key = np.uint64(1)
    for i in range(len(values)):
        key = (key ^ np.uint64(int(values[i]) & 0xFFFFFFFF)) * PRIME
        keys[i] = key
        places[i] = int((key * PRIME) >> shift)
    return keys, places, key


@compiled
def conversions(a: Array) -> Any:
    out = np.zeros((4, len(a)), np.int64)
    short = np.zeros(len(a), np.int8)
    flags = np.zeros(len(a), np.bool_)
    for i in range(len(a)):
        out[0, i] = np.int64(np.uint8(a[i]))
        out[1, i] = int(np.float64(a[i]) / 3)
        out[2, i] = int(bool(a[i]))
        out[3, i] = int(a[i] > 2) + int(flags[i - 1] if i > 0 else False)
        flags[i] = a[i] != 0
        short[i] = a[i] % 100
    return out, short, flags


@compiled
def comparisons(a: Array, low: int, high: int) -> Any:
    found = np.zeros((5, len(a)), np.bool_)
    for i in range(len(a)):
        found[0, i] = low < a[i] <= high
        found[1, i] = a[i] in (low, high, 3)
        found[2, i] = a[i] not in (low, high)
        found[3, i] = not (a[i] == low or a[i] >= high)
        found[4, i] = i > 0 and a[i - 1] > 0 and a[i] > 0
    return found


@compiled
def loops(a: Array, step: int) -> Any:
    out = np.zeros(8, np.int64)
    for i in range(0, len(a), step):
        if a[i] < 0:
            continue
        out[0] += i
    for i in range(len(a) - 1, -1, -1):
        if a[i] > 5:
            break
        out[1] += a[i]
    k = 0
    while True:
        if k >= len(a) or a[k] == 0:
            break
        out[2] += a[k]
        k += 1
    for x in a:
        for y in a:
            if y > x:
                out[3] += 1
                continue
            out[4] += x - y
    for n, x in enumerate(a):
        out[5] += n * x
    for i in range(3, 1):
        out[6] = i
    last = -1
    for last in range(4):
        out[6] += last
    out[7] = last
    return out


@compiled
def parts(a: Array, table: Array, k: int) -> Any:
    row = table[k]
    piece = a[k : k + 100]
    head, tail = a[:-1], a[-2:]
    block = table[1:]
    own = a.copy()
    own[1:3] = a[:2]
    own[-1] = 99
    nothing = a[len(a) :]
    cut = table[k, 1:]
    p, q = table[0]
    flat = table.reshape(-1)
    square = flat[: flat.size // 2 * 2].reshape(flat.size // 2, 2)
    sizes = len(row), piece.size, head.size, tail.shape[0], block.shape, len(nothing), cut[0]
    return own, sizes, (p, q, square[0, 1], table[k, 0], a.itemsize, table.ndim)


@compiled
def written(a: Array, table: Array) -> None:
    a[:] = 3
    a[0], a[1] = a[1], 7
    table[1] = a[:2]
    table[0, 1:] = 5
    a[2] += 10
    table[1, 0] -= 2
    x = y = 4
    a[-1] = x + y
    table[2:] = 0


@compiled
def bits(a: Array) -> Any:
    words = a.view(np.uint64)
    count = 0
    for w in range(len(words)):
        if words[w] != 0:
            count += 1
    words[0] = 0
    return count, len(words)


@compiled
def returned(a: Array, n: int) -> Any:
    new = np.full((n, 2), 1.5, np.float32)
    other = np.full(n, -1, np.int32)
    return new, new, new[1:], a, a[1:], Pair(other, (n, None)), other[:0]


def _inside(pair: Pair, of: Array, extra: int = 2) -> Any:
    if of.itemsize == 4:
        return pair.first + extra
    return pair.second * extra


@compiled
def calls(small: Array, large: Array, named: Named, rest: Any) -> Any:
    given = Pair(5, 7)
    a, b = _inside(given, small), _inside(given, large, 3)
    total = 0
    for size in SIZES:
        total += size
    for n, part in enumerate(rest):
        for value in part:
            total += (n + 1) * value
    both = (*given, total) + (len(rest), len(SIZES))  # noqa: RUF005
    return both[:2], both[-1], a, b, named.values[named.count], named.factor * 2, total


@compiled
def by_address(address: int, x: float) -> float:
    return SQUARE(address, x) + 1.0


@compiled
def filled_by(address: int, n: int) -> Any:
    values = np.zeros(n, np.int64)
    FILL(address, values, n, np.int32(7))
    return values


@compiled
def fill_read_only(whole: Array, values: Array) -> None:
    out = filled_here(whole)
    out[: values.size] = values


@compiled
def fails(n: int) -> Array:
    values = np.zeros(100)
    assert n > 0, "n is not positive"
    values[0] = _fails_inside(n)
    return values


def _fails_inside(n: int) -> int:
    room = np.zeros(n)
    assert n < 10, "n is too large"
    return len(room)


@compiled
def takes(n: int) -> Array:
    return np.empty(n, np.float64)


@compiled
def reads_at(values: Array, k: int) -> float:
    return values[k]


@compiled
def copies(to: Array, values: Array) -> None:
    to[:] = values


@compiled
def takes_and_drops(n: int) -> float:
    total = 0.0
    for _ in range(4):
        total += _drops(n)
    kept = np.zeros(n)
    return total + kept[0]


def _drops(n: int) -> float:
    room, other = np.zeros(n), np.zeros(n)
    other[0] = 1
    return room[n - 1] + other[0]


@compiled
def makes_a_list(n: int) -> Any:
    found = 0
    for k in [1, 2]:
        found += k
    return found


@compiled
def changes_type(n: int) -> Any:
    total = 0
    total = total + 0.5
    return total


@compiled
def counts_by_a_call(values: Array) -> Array:
    values[abs(-1)] += 1
    return values


@compiled
def has_a_step(values: Array) -> Any:
    return values[::2]
