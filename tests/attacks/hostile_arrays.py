"""Arrays that users should not pass, or may pass and then write to: made of right ones."""

from __future__ import annotations

import array as plain_array
import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

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


def small_numbers(rng: random.Random, a: Array) -> Array:
    """Put small random numbers in the place of elements."""
    if a.dtype.kind == "f":
        return a[::-1]
    return np.array([rng.randrange(-1, int(a.max(initial=0)) + 2) for _ in a], a.dtype)


def misaligned(rng: random.Random, a: Array) -> Array:
    """Take the elements out of records of an odd size; or the records."""
    pair = np.zeros(a.shape, [("a", a.dtype), ("b", "i1")])
    pair["a"] = a
    return pair if rng.random() < 0.5 else pair["a"]


def spread(rng: random.Random, a: Array) -> Array:
    """Lay the elements out with others between them."""
    found = np.full((len(a), 3, *a.shape[1:]), 77, a.dtype)
    found[:, 1] = a
    return found[:, 1]


def closed(rng: random.Random, a: Array) -> Array:
    """Return a view that may not be written to."""
    found = a[:]
    found.flags.writeable = False
    return found


def endless(rng: random.Random, a: Array) -> list[Any]:
    """Return a list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


# By name what may be done to an array.
CHANGES: dict[str, tuple[Callable[[random.Random, Array], Any], ...]] = {
    "values": (bounds,),
    "shuffled": (lambda r, a: a[r.sample(range(len(a)), len(a))], small_numbers),
    "dtypes": (
        *(lambda r, a: a.astype(r.choice(DTYPES)),) * 8,
        lambda r, a: a.view(a.dtype.str.replace("f", "i")),
        lambda r, a: np.zeros(a.shape, "V4"),
        misaligned,
    ),
    "layouts": (
        lambda r, a: a[::-1].copy()[::-1],
        lambda r, a: np.asfortranarray(a),
        lambda r, a: np.broadcast_to(a[:1], a.shape) if len(a) else a,
        lambda r, a: np.frombuffer(b"x" + a.tobytes(), "u1")[1:].view(a.dtype).reshape(a.shape),
        lambda r, a: np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape),
        closed,
        spread,
    ),
    "shapes": (
        lambda r, a: a[:, None],
        lambda r, a: a[None],
        lambda r, a: a.reshape(-1),
        lambda r, a: a.flat[0] if a.size else np.zeros((), a.dtype),
        lambda r, a: np.zeros((len(a), 0), a.dtype),
        lambda r, a: np.zeros((0, *a.shape[1:]), a.dtype),
        lambda r, a: np.broadcast_to(a.dtype.type(1), (len(a), 2 ** r.choice((40, 50, 55)))),
        lambda r, a: a.reshape(a.shape + (1,) * r.randrange(1, 30)),
    ),
    "lengths": (
        lambda r, a: a[1:],
        lambda r, a: a[:-1],
        lambda r, a: np.concatenate([a, a[-1:]]),
        lambda r, a: np.concatenate([a, a]),
        lambda r, a: a[: r.randrange(len(a) + 1)],
    ),
    "subclasses": (
        lambda r, a: np.matrix(a) if a.ndim < 3 else a,
        lambda r, a: np.ma.MaskedArray(a, mask=r.random() < 0.5),
        lambda r, a: a.view(np.recarray),
        lambda r, a: a.view(type("Odd", (np.ndarray,), {"__len__": lambda self: 10**6, "ndim": 1})),
    ),
    "objects": (
        *(lambda r, a: r.choice((a.tolist(), tuple(a.tolist()), len(a), range(len(a)))),) * 4,
        lambda r, a: [*a.tolist(), r.choice(([1, 2], None, 2**70))],
        lambda r, a: r.choice((None, "abc", b"\0\0\0\0", {"a": 1}, set(range(3)), 3.5)),
        lambda r, a: (x for x in a.tolist()),
        lambda r, a: memoryview(np.ascontiguousarray(a)),
        lambda r, a: plain_array.array("i", range(len(a))),
        lambda r, a: r.choice((object(), np.ndarray)),
        endless,
    ),
    "liars": (
        lambda r, a: Liar(a),
        lambda r, a: Liar(a, np.concatenate([a, a])),
        lambda r, a: Liar(a, np.zeros(0)),
        lambda r, a: Liar(a, bounds(r, a)),
        lambda r, a: Liar(TypeError("no array today")),
        lambda r, a: Liar(RuntimeError("it requires a gradient")),
        lambda r, a: Liar(a.astype(object)),
    ),
}


def change(name: str, rng: random.Random, a: Array) -> Any:
    """Change an array in one of the ways that have a name."""
    return rng.choice(CHANGES[name])(rng, a)


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
        acts: list[Callable[[], Any]] = [
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
