"""Arrays that users should not pass, or may pass and then write to: made of right ones."""

from __future__ import annotations

import array as plain_array
import random
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Change = Callable[[random.Random, Array], Any]

NUMBERS = (-1, -2, 0, 1, 2, 3, 6, 7, 8, 127, -128, 2**15, 900_000, 10**9, 2**31 - 1, -(2**31))
WIDE = (2**31, 2**32, 2**32 + 3, -(2**31) - 1, 2**63 - 1, -(2**63), 2**33 + 1)
UNREADABLE = "unreadable"
REALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, 5e-324, -3.5)
DTYPES = (
    *("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "?", "c8", "c16"),
    *("O", "U5", "S5", ">i2", ">i4", ">i8", ">u4", ">f4", ">f8", "M8[s]", "m8[s]", "V4"),
)


class Liar:
    """Gives other arrays each time it is asked for one; `given` is the first."""

    def __init__(self, *arrays: Any) -> None:
        self.given, self._left = arrays[0], list(arrays)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(found, Exception):
            raise found
        return found

    def __len__(self) -> int:
        return 10**6


def values(rng: random.Random, a: Array) -> Any:
    """Set one element, or a few, to a number that is at a bound or far outside."""
    real = a.dtype.kind == "f"
    out = a.astype(np.int64) if not real and rng.random() < 0.3 else a.copy()
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if out.size:
            choice = REALS if real else NUMBERS + (WIDE if out.dtype.itemsize == 8 else ())
            out.flat[rng.randrange(out.size)] = rng.choice(choice)
    return out


def shuffled(rng: random.Random, a: Array) -> Any:
    """Put the elements in another order, or small random numbers in their place."""
    if a.dtype.kind == "f" or rng.random() < 0.5:
        return a[rng.sample(range(len(a)), len(a))]
    top = int(a.max(initial=0)) + 2
    return np.array([rng.randrange(-1, top) for _ in a], a.dtype)


def dtypes(rng: random.Random, a: Array) -> Any:
    """Convert to another dtype, or read the bytes as one."""
    name = rng.choice(DTYPES)
    if rng.random() < 0.15:
        return a.view(np.dtype(f"{a.dtype.byteorder.replace('=', '')}i{a.dtype.itemsize}"))
    if rng.random() < 0.15:
        pair = np.zeros(a.shape, [("a", a.dtype), ("b", "i1")])
        pair["a"] = a
        return pair if rng.random() < 0.5 else pair["a"]  # the field is not aligned
    if name == "V4":
        return np.zeros(a.shape, "V4")
    with np.errstate(all="ignore"):
        return a.astype(name)


def layouts(rng: random.Random, a: Array) -> Any:
    """Lay the same elements out otherwise in memory."""
    way = rng.randrange(7)
    if way == 0:
        return a[::-1].copy()[::-1]
    if way == 1:
        wide = np.full((len(a), 3, *a.shape[1:]), 77, a.dtype)
        wide[:, 1] = a
        return wide[:, 1]
    if way == 2:
        return np.asfortranarray(a)
    if way == 3 and len(a):
        return np.broadcast_to(a[:1], a.shape)
    if way == 4:
        odd = np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype)
        return odd.reshape(a.shape)
    if way == 5:
        out = a[:]
        out.flags.writeable = False
        return out
    return np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape)


def shapes(rng: random.Random, a: Array) -> Any:
    """Give it another number of axes, or axes of no or of many elements."""
    way = rng.randrange(8)
    if way == 0:
        return a[:, None]
    if way == 1:
        return a[None]
    if way == 2:
        return a.reshape(-1)
    if way == 3:
        return a.flat[0] if a.size else np.zeros((), a.dtype)
    if way == 4:
        return np.zeros((len(a), 0), a.dtype)
    if way == 5:
        return np.zeros((0, *a.shape[1:]), a.dtype)
    if way == 6:
        return np.broadcast_to(a.dtype.type(1), (len(a), 2 ** rng.choice((40, 50, 55))))
    return a.reshape(a.shape + (1,) * rng.randrange(1, 30))


def lengths(rng: random.Random, a: Array) -> Any:
    """Leave elements out, or repeat them."""
    way = rng.randrange(5)
    if way == 0:
        return a[1:]
    if way == 1:
        return a[:-1]
    if way == 2:
        return np.concatenate([a, a[-1:]])
    if way == 3:
        return np.concatenate([a, a])
    return a[: rng.randrange(len(a) + 1)]


def subclasses(rng: random.Random, a: Array) -> Any:
    """Make it an array of a class that behaves otherwise."""
    way = rng.randrange(4)
    if way == 0:
        return np.matrix(a) if a.ndim < 3 else a
    if way == 1:
        return np.ma.MaskedArray(a, mask=rng.random() < 0.5)
    if way == 2:
        return a.view(np.recarray)
    return a.view(type("Odd", (np.ndarray,), {"__len__": lambda self: 10**6, "ndim": 1}))


def objects(rng: random.Random, a: Array) -> Any:
    """Hand over something else than an array, with the same elements or without."""
    lists = a.tolist()
    ways: list[Callable[[], Any]] = [
        lambda: lists,
        lambda: tuple(lists),
        lambda: [*lists, [1, 2]],
        lambda: [*lists, None],
        lambda: [*lists, 2**70],
        lambda: None,
        lambda: "abc",
        lambda: b"\0\0\0\0",
        lambda: {"a": 1},
        lambda: set(range(3)),
        lambda: (x for x in lists),
        lambda: range(len(a)),
        lambda: memoryview(np.ascontiguousarray(a)),
        lambda: plain_array.array("i", range(len(a))),
        lambda: len(a),
        lambda: 3.5,
        lambda: object(),
        lambda: np.ndarray,
        lambda: _endless(),
    ]
    return rng.choice(ways)()


def liars(rng: random.Random, a: Array) -> Any:
    """Hand over an object that says something else each time, or fails."""
    ways: list[Callable[[], Any]] = [
        lambda: Liar(a),
        lambda: Liar(a, np.concatenate([a, a])),
        lambda: Liar(a, np.zeros(0)),
        lambda: Liar(a, values(rng, a)),
        lambda: Liar(TypeError("no array today")),
        lambda: Liar(RuntimeError("it requires a gradient")),
        lambda: Liar(a.astype(object)),
    ]
    return rng.choice(ways)()


def _endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


CHANGES: dict[str, Change] = {
    "values": values,
    "shuffled": shuffled,
    "dtypes": dtypes,
    "layouts": layouts,
    "shapes": shapes,
    "lengths": lengths,
    "subclasses": subclasses,
    "objects": objects,
    "liars": liars,
}


def snapshot(given: Any) -> Any:
    """Return what an object holds now as a plain array, or UNREADABLE where it holds none."""
    if isinstance(given, Liar):
        given = given.given
    if isinstance(given, Exception | np.ma.MaskedArray):
        return UNREADABLE
    if isinstance(given, np.ndarray):
        return np.array(given, subok=False) if given.nbytes < 2**30 else UNREADABLE
    try:
        return np.array(given)
    except (TypeError, ValueError, OverflowError):
        return UNREADABLE


def scribble(rng: random.Random, given: Any) -> None:
    """Write to whatever can be reached from an array, and change its shape, dtype and flags."""
    seen = 0
    while isinstance(given, np.ndarray) and seen < 4:
        for act in (_make_writable, _fill, _reshape):
            try:
                act(rng, given)
            except (ValueError, TypeError, AttributeError, RuntimeError):
                continue  # numpy or Python says no
        given, seen = given.base, seen + 1
    if isinstance(given, bytearray):
        given[:] = b"\x7f" * len(given)
    elif isinstance(given, list):
        given[:] = [10**9] * (len(given) + 1)


def _make_writable(rng: random.Random, given: Array) -> None:
    given.flags.writeable = True


def _fill(rng: random.Random, given: Array) -> None:
    given[...] = np.array(rng.choice((10**9, -7, 1, 2**31 - 1))).astype(given.dtype)


def _reshape(rng: random.Random, given: Array) -> None:
    way = rng.randrange(4)
    if way == 0:
        given.shape = (-1, 1)
    elif way == 1:
        given.dtype = np.dtype(rng.choice(("u1", "i8", "f8", "i2")))
    elif way == 2:
        given.resize((len(given) * 3 + 50,), refcheck=True)
    else:
        given.strides = (0,) * given.ndim
