"""Read what users declare: numbers, shapes, slots and state, whatever they pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertexrt.checks import is_whole, read_shape
from vertexrt.errors import TraceError
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.ir.user_line import user_line


def read_pulled(name: str, shape: object, dtype: object) -> tuple[int, ...]:
    """Return the shape of a pull.

    Raises: TraceError, when shape or dtype are none of a pull.
    """
    if dtype is not None and (not isinstance(dtype, str) or dtype not in ("int", "float")):
        raise TraceError.at(
            "pull",
            f"dtype {dtype!r} of {name!r} at {user_line()}",
            "'int' or 'float'",
            "leave dtype out, or name one of them",
        )
    extents = read_shape(() if shape is None else shape)
    if extents is None or (dtype == "int" and extents):
        raise TraceError.at(
            "pull",
            f"shape {shape!r} of {name!r} at {user_line()}",
            "a tuple of positive integers, and () for an integer",
            "pull reals by shape, and integers one by one",
        )
    return extents


def read_named_inputs(inputs: object) -> dict[str, Any]:
    """Return what a function reads of others, by relation.

    Raises: TraceError, when it is no dict of names.
    """
    given = {} if inputs is None else inputs
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TraceError.at(
            "inputs",
            f"inputs is {given!r:.60}",
            "a dict of names of relations to vertex functions",
            "write inputs={'spelling': self.char}",
        )
    return dict(given)


def read_arity(arity: object) -> int | None:
    """Return the number of slots.

    Raises: TraceError, when it is not 1 to MOST_SLOTS, or None.
    """
    if arity is None:
        return None
    if not is_whole(arity) or not 1 <= arity <= MOST_SLOTS:
        raise TraceError.at(
            "arity",
            f"arity is {arity!r}",
            f"1 to {MOST_SLOTS}, or None where only gather_all is used",
            "read many children by gather_all",
        )
    return int(arity)


def read_state(state: object) -> dict[str, int]:
    """Return the fields of the state with their elements.

    Raises: TraceError, when it is not names with positive integers.
    """
    action = "write state={'h': hidden}, or state={} for none"
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise TraceError.at(
            "state", f"state is {state!r}", "a dict of names to numbers of elements", action
        )
    for name, size in state.items():
        if not is_whole(size) or size < 1:
            raise TraceError.at(
                "state", f"field {name!r} has {size!r} elements", "1 or more", action
            )
    return {name: int(size) for name, size in state.items()}
