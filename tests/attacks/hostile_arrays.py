"""Arrays that users should not pass, or may pass and then write to: made of right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

NUMBERS = (-1, -2, 0, 1, 2, 3, 6, 7, 8, 127, -128, 2**15, 900_000, 10**9, 2**31 - 1, -(2**31))
WIDE = (2**31, 2**32, 2**32 + 3, -(2**31) - 1, 2**63 - 1, -(2**63), 2**33 + 1)
UNREADABLE = "unreadable"
REALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, 5e-324, -3.5)
DTYPES = "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 g ? c8 O U5 S5 >i2 >i4 >i8 >u4 >f4 >f8 M8[s]"


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


def bounds(rng: Rng, a: Array) -> Array:
    """Set one element, or a few, to a number that is at a bound or far outside."""
    real = a.dtype.kind == "f"
    out = a.copy() if real or rng.random() < 0.7 else a.astype(np.int64)
    for _ in range(rng.integers(1, 4) if out.size else 0):
        numbers = REALS if real else NUMBERS + (WIDE if out.dtype.itemsize == 8 else ())
        out.flat[rng.integers(out.size)] = numbers[rng.integers(len(numbers))]
    return out


def misaligned(rng: Rng, a: Array) -> Array:
    """Take the elements out of records of an odd size; or the records."""
    pair = np.zeros(a.shape, [("a", a.dtype), ("b", "i1")])
    pair["a"] = a
    return pair if rng.random() < 0.5 else pair["a"]


def endless(rng: Rng, a: Array) -> list[Any]:
    """Return a list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


# By name what may be done to an array.
CHANGES: dict[str, tuple[Callable[[Rng, Array], Any], ...]] = {
    "values": (bounds,),
    "shuffled": (
        lambda r, a: r.permutation(a),
        lambda r, a: r.integers(-1, int(a.max(initial=0)) + 2, a.shape).astype(a.dtype),
    ),
    "dtypes": (
        *(lambda r, a: a.astype(r.choice(DTYPES.split())),) * 8,
        lambda r, a: a.view(a.dtype.str.replace("f", "i")),
        lambda r, a: np.zeros(a.shape, "V4"),
        misaligned,
    ),
    "layouts": (
        lambda r, a: a[::-1].copy()[::-1],
        lambda r, a: np.broadcast_to(a[:1], a.shape),
        lambda r, a: np.frombuffer(b"x" + a.tobytes(), "u1")[1:].view(a.dtype).reshape(a.shape),
        lambda r, a: np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape),
        lambda r, a: np.repeat(a, 3, axis=0)[1::3],
    ),
    "shapes": (
        lambda r, a: a[:, None],
        lambda r, a: a[None],
        lambda r, a: a.flat[0] if a.size else np.zeros((), a.dtype),
        lambda r, a: np.zeros((len(a), 0), a.dtype),
        lambda r, a: np.broadcast_to(a.dtype.type(1), (len(a), 2**50)),
        lambda r, a: a.reshape(a.shape + (1,) * int(r.integers(1, 30))),
    ),
    "lengths": (
        lambda r, a: a[1:],
        lambda r, a: np.concatenate([a, a[-1:]]),
        lambda r, a: np.concatenate([a, a]),
        lambda r, a: a[: r.integers(len(a) + 1)],
    ),
    "subclasses": (
        lambda r, a: np.matrix(a) if a.ndim < 3 else a,
        lambda r, a: np.ma.MaskedArray(a, mask=r.random() < 0.5),
        lambda r, a: a.view(np.recarray),
        lambda r, a: a.view(type("Odd", (np.ndarray,), {"__len__": lambda self: 10**6, "ndim": 1})),
    ),
    "objects": (
        *(lambda r, a: (a.tolist(), tuple(a.tolist()), len(a), range(len(a)))[r.integers(4)],) * 3,
        lambda r, a: [*a.tolist(), ([1, 2], None, 2**70)[r.integers(3)]],
        lambda r, a: (None, "abc", b"\0\0\0\0", {"a": 1}, {1, 2}, object())[r.integers(6)],
        lambda r, a: (x for x in a.tolist()),
        lambda r, a: memoryview(np.ascontiguousarray(a)),
        endless,
    ),
    "liars": (
        lambda r, a: Liar(a),
        lambda r, a: Liar(a, np.concatenate([a, a])),
        lambda r, a: Liar(a, bounds(r, a)),
        lambda r, a: Liar(RuntimeError("it requires a gradient")),
        lambda r, a: Liar(a.astype(object)),
    ),
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
