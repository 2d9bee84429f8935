"""Check what is handed to a network: batches, names of pushes, optimizers, real arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_real, is_whole
from vertexrt.errors import UsageError, VertexrtError, nearest
from vertexrt.graph import GraphBatch
from vertexrt.graph.owned import read_array
from vertexrt.parallel.group import ProcessGroup

Array = np.ndarray[Any, Any]


def check_batch(where: str, given: object) -> None:
    """Refuse what is no batch, a list of graphs above all. Raises: UsageError."""
    if not isinstance(given, GraphBatch):
        action = "build a GraphBatch: vrt.GraphBatch.from_graphs([...])"
        if isinstance(getattr(given, "batch", None), GraphBatch):
            action = "pass its attribute `batch`"
        raise UsageError.at(
            where, f"the batch is a {type(given).__name__}", "expected a GraphBatch", action
        )


def check_optimizer(where: str, given: object) -> None:
    """Refuse what cannot update parameters. Raises: UsageError."""
    known = (type, dict, set)  # of which all have something else called update
    if isinstance(given, known) or not hasattr(given, "update"):
        raise UsageError.at(
            where,
            f"the class {given.__name__}"
            if isinstance(given, type)
            else repr(given).partition("\n")[0][:60],
            "expected an optimizer",
            "pass an optimizer such as vrt.Adam(lr=1e-3)",
        )


def shared(group: object) -> ProcessGroup | None:
    """Return a group that has anything to share; None for one process. Raises: UsageError."""
    if group is None:
        return None
    if not isinstance(group, ProcessGroup):
        raise UsageError.at(
            "step",
            f"group={group!r:.60}",
            "expected a group",
            "pass what vrt.parallel.init returns",
        )
    return group if group.shares > 1 else None


def check_option(where: str, name: str, value: object, fits: bool, expected: str) -> None:
    """Refuse an option that does not fit. Raises: UsageError."""
    if not fits:
        got = f"{name}={value!r:.60}"
        raise UsageError.at(where, got, f"{name} must be {expected}", "correct it")


def check_not_negative(where: str, **options: object) -> None:
    """Refuse options that are no finite numbers from 0 on. Raises: UsageError."""
    for name, value in options.items():
        check_option(where, name, value, is_real(value) and value >= 0.0, "a finite number >= 0")


def check_mapping(where: str, given: object, error: type[VertexrtError]) -> None:
    """Refuse what are no arrays by name. Raises: an error of that class."""
    if not isinstance(given, Mapping):
        raise error.at(where, f"a {type(given).__name__}", "expected arrays by name", "pass a dict")


def check_loss(where: str, function: str, pushes: Collection[str]) -> None:
    """Refuse to go down along a loss where none is pushed. Raises: UsageError."""
    if "loss" not in pushes:
        raise UsageError.at(
            where,
            f"{function} pushes {', '.join(pushes)}",
            "a push named 'loss'",
            "push a loss, or use net.record and gradients of your own",
        )


def check_draw(where: str, given: object) -> None:
    """Refuse a seed of a pass, if given, that is no whole number of 32 bits. Raises: UsageError."""
    if given is not None and not (is_whole(given) and 0 <= int(given) < 2**32):
        got = f"seed={given!r:.60}"
        raise UsageError.at(where, got, "a whole number below 2**32", "leave seed out")


def check_pulled(given: object, known: frozenset[str]) -> frozenset[str]:
    """Return names of real pulls. Raises: UsageError, when another is among them."""
    names = _listed(given)
    if names is not None and all(isinstance(name, str) and name in known for name in names):
        return frozenset(names)
    real = ", ".join(sorted(known)) or "none"
    raise UsageError.at(
        "record", f"pulls is {given!r:.60}", f"the real pulls are {real}", "name some of these"
    )


def read_vertices(where: str, given: object, batch: GraphBatch) -> npt.NDArray[np.int64]:
    """Return numbers of vertices, int64 [n]. Raises: UsageError, when they are not the batch's."""
    count = batch.num_vertices
    array = read_array(given)
    if isinstance(array, str) or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError.at(
            where,
            f"vertices is {given!r:.60}",
            "expected numbers of vertices",
            "pass batch.roots, batch.of_type(name), or a list of numbers",
        )
    wrong = np.flatnonzero((array < 0) | (array >= count)) if array.size else array
    if wrong.size:
        raise UsageError.at(
            where,
            f"vertices has {array[wrong[0]]}",
            f"0 to {count - 1}, vertices of the batch",
            "correct it",
        )
    return array.astype(np.int64)


def check_known(names: Collection[str], pushes: Collection[str], function: str) -> None:
    """Refuse names that F does not push. Raises: UsageError."""
    for name in names:
        if name not in pushes:
            raise UsageError.at(
                "outputs",
                f"{name!r}",
                f"{function} pushes {', '.join(pushes)}",
                f"ask for one of these.{nearest(name, pushes)}",
            )


def check_pushes(
    where: str, names: Collection[str], pushes: Collection[str], function: str
) -> None:
    """Refuse names of which F pushes none, and no name at all. Raises: UsageError."""
    if not names:
        raise UsageError.at(
            where,
            "outputs names no push",
            f"{function} pushes {', '.join(pushes)}",
            "name one, or leave outputs out for all",
        )
    check_known(names, pushes, function)


def names_of(where: str, outputs: object) -> tuple[str, ...]:
    """Return names of pushes as a tuple; whether F pushes them is not looked at.

    Raises: UsageError, when they are one text, or no texts.
    """
    names = _listed(outputs)
    if names is not None and all(isinstance(name, str) for name in names):
        return names
    raise UsageError.at(
        where,
        f"outputs is {outputs!r:.60}",
        "expected names of pushes",
        f"write outputs=[{outputs!r}]" if isinstance(outputs, str) else "pass a list of names",
    )


def _listed(outputs: Any) -> tuple[Any, ...] | None:
    """Return what is in a list or the like; None for a text and for what holds nothing."""
    bare = isinstance(outputs, np.ndarray) and outputs.ndim == 0  # which cannot be iterated over
    if bare or isinstance(outputs, str) or not isinstance(outputs, Iterable):
        return None
    return tuple(outputs)


def real_array(
    given: object, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> tuple[Array | None, str]:
    """Return real numbers as a contiguous array of a dtype, or None and what was given instead.

    Args:
        given: whole or real numbers of that shape, in an array or lists.
        dtype: float32 or float64; what goes beyond its range becomes infinite.
    """
    array = read_array(given)
    if isinstance(array, str):
        return None, f"is {array}"
    if array.shape != shape:
        return None, f"has shape {list(array.shape)}"
    if array.dtype.kind not in "fiu":
        return None, f"has dtype {array.dtype}"
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype).reshape(shape), ""
