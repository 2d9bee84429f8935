"""Arrays that users should not pass, or may pass and then write to: made of right ones."""

from __future__ import annotations

import array as plain_array
import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

Thunks = list[Callable[[], Any]]

NUMBERS = (-1, -2, 0, 1, 2, 3, 6, 7, 8, 127, -128, 2**15, 900_000, 10**9, 2**31 - 1, -(2**31))
WIDE = (2**31, 2**32, 2**32 + 3, -(2**31) - 1, 2**63 - 1, -(2**63), 2**33 + 1)
UNREADABLE = "unreadable"
REALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, 5e-324, -3.5)
DTYPES = (
    *("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "?", "c8", "c16"),
    *("O", "U5", "S5", ">i2", ">i4", ">i8", ">u4", ">f4", ">f8", "M8[s]", "m8[s]"),
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


def bounds(rng: random.Random, a: Array) -> Array:
    """Set one element, or a few, to a number that is at a bound or far outside."""
    real = a.dtype.kind == "f"
    out = a.astype(np.int64) if not real and rng.random() < 0.3 else a.copy()
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if out.size:
            choice = REALS if real else NUMBERS + (WIDE if out.dtype.itemsize == 8 else ())
            out.flat[rng.randrange(out.size)] = rng.choice(choice)
    return out


def values(rng: random.Random, a: Array) -> Thunks:
    return [lambda: bounds(rng, a)]


def shuffled(rng: random.Random, a: Array) -> Thunks:
    """Put the elements in another order, or small random numbers in their place."""
    found: Thunks = [lambda: a[rng.sample(range(len(a)), len(a))]]
    if a.dtype.kind != "f":
        top = int(a.max(initial=0)) + 2
        found.append(lambda: np.array([rng.randrange(-1, top) for _ in a], a.dtype))
    return found


def dtypes(rng: random.Random, a: Array) -> Thunks:
    """Convert to another dtype, or read the bytes as one."""
    pair = np.zeros(a.shape, [("a", a.dtype), ("b", "i1")])
    pair["a"] = a
    read = a.dtype.str.replace("f", "i")
    found: Thunks = [lambda: a.view(read), lambda: pair, lambda: pair["a"]]  # it is not aligned
    found.append(lambda: np.zeros(a.shape, "V4"))
    return found + [lambda name=name: a.astype(name) for name in DTYPES]


def wide(a: Array) -> Array:
    """Lay the elements out with others between them."""
    found = np.full((len(a), 3, *a.shape[1:]), 77, a.dtype)
    found[:, 1] = a
    return found[:, 1]


def closed(a: Array) -> Array:
    """Return a view that may not be written to."""
    found = a[:]
    found.flags.writeable = False
    return found


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def layouts(rng: random.Random, a: Array) -> Thunks:
    """Lay the same elements out otherwise in memory."""
    return [
        lambda: a[::-1].copy()[::-1],
        lambda: wide(a),
        lambda: np.asfortranarray(a),
        lambda: np.broadcast_to(a[:1], a.shape) if len(a) else a,
        lambda: np.frombuffer(b"x" + a.tobytes(), "u1")[1:].view(a.dtype).reshape(a.shape),
        lambda: closed(a),
        lambda: np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape),
    ]


def shapes(rng: random.Random, a: Array) -> Thunks:
    """Give it another number of axes, or axes of no or of many elements."""
    return [
        lambda: a[:, None],
        lambda: a[None],
        lambda: a.reshape(-1),
        lambda: a.flat[0] if a.size else np.zeros((), a.dtype),
        lambda: np.zeros((len(a), 0), a.dtype),
        lambda: np.zeros((0, *a.shape[1:]), a.dtype),
        lambda: np.broadcast_to(a.dtype.type(1), (len(a), 2 ** rng.choice((40, 50, 55)))),
        lambda: a.reshape(a.shape + (1,) * rng.randrange(1, 30)),
    ]


def lengths(rng: random.Random, a: Array) -> Thunks:
    """Leave elements out, or repeat them."""
    return [
        lambda: a[1:],
        lambda: a[:-1],
        lambda: np.concatenate([a, a[-1:]]),
        lambda: np.concatenate([a, a]),
        lambda: a[: rng.randrange(len(a) + 1)],
    ]


def subclasses(rng: random.Random, a: Array) -> Thunks:
    """Make it an array of a class that behaves otherwise."""
    return [
        lambda: np.matrix(a) if a.ndim < 3 else a,
        lambda: np.ma.MaskedArray(a, mask=rng.random() < 0.5),
        lambda: a.view(np.recarray),
        lambda: a.view(type("Odd", (np.ndarray,), {"__len__": lambda self: 10**6, "ndim": 1})),
    ]


def objects(rng: random.Random, a: Array) -> Thunks:
    """Hand over something else than an array, with the same elements or without."""
    lists = a.tolist()
    return [
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
        lambda: endless(),
    ]


def liars(rng: random.Random, a: Array) -> Thunks:
    """Hand over an object that says something else each time, or fails."""
    return [
        lambda: Liar(a),
        lambda: Liar(a, np.concatenate([a, a])),
        lambda: Liar(a, np.zeros(0)),
        lambda: Liar(a, bounds(rng, a)),
        lambda: Liar(TypeError("no array today")),
        lambda: Liar(RuntimeError("it requires a gradient")),
        lambda: Liar(a.astype(object)),
    ]


CHANGES: dict[str, Callable[[random.Random, Array], Thunks]] = {
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


def change(name: str, rng: random.Random, a: Array) -> Any:
    """Change an array in one of the ways that have a name."""
    return rng.choice(CHANGES[name](rng, a))()


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
    for _ in range(4):
        if not isinstance(given, np.ndarray):
            break
        number = rng.choice((10**9, -7, 1, 2**31 - 1))
        changed = rng.choice(
            (
                ("shape", (-1, 1)),
                ("dtype", np.dtype(rng.choice(("u1", "i8", "f8", "i2")))),
                ("strides", (0,) * given.ndim),
            )
        )
        acts: Thunks = [
            lambda given=given: given.setflags(write=True),
            lambda given=given, number=number: np.copyto(given, np.array(number), casting="unsafe"),
            lambda given=given: given.resize((len(given) * 3 + 50,), refcheck=True),
            lambda given=given, changed=changed: setattr(given, *changed),
        ]
        for act in acts:  # NumPy or Python says no
            with contextlib.suppress(ValueError, TypeError, AttributeError, RuntimeError):
                act()
        given = given.base
    if isinstance(given, bytearray):
        given[:] = b"\x7f" * len(given)
    elif isinstance(given, list):
        given[:] = [10**9] * (len(given) + 1)
