"""Say which number of an update is not finite, where nothing else than the store is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Update, try_update
from vertexrt.errors import message

SMALLER = "lower the learning rate, or clip the gradient norm"


def first_bad(values: npt.NDArray[Any]) -> list[int] | None:
    """Return the place of the first number that is not finite."""
    bad = np.argwhere(~np.isfinite(values))
    return bad[0].tolist() if len(bad) else None


def refused_update(store: ParameterStore, update: Update, norm: float) -> str:
    """Return the error text for an update that would write what is not finite.

    Args:
        norm: of the gradients, where they were to be clipped.
    """
    where = f"{update.optimizer}.update"
    if any(first_bad(store.gradient(name)) is not None for name in store.trained):
        return _refused_gradient(where, store)
    if not math.isfinite(norm):
        return message(
            where,
            f"the gradients have the norm {norm}",
            "a finite norm; nothing was changed",
            "use a smaller loss, or no clip_norm",
        )
    values, moments = try_update(store, update, norm)
    kept = [slot.name for slot in update.rule.state]
    for what, flat in (("its value", values), *zip(kept, moments, strict=True)):
        for name, made in store.views(flat).items():
            bad = first_bad(made)
            if bad is None:
                continue
            at = tuple(bad)
            own = what if flat is values else f"its {what!r}"
            return message(
                where,
                f"the update of {name!r} at {bad} makes {own} {made[at]}, from the value "
                f"{store.value(name)[at]:.6g} and the gradient {store.gradient(name)[at]:.6g}",
                "finite numbers; nothing was changed",
                SMALLER,
            )
    return message(
        where,
        "the update makes a number that is not finite, though not when it is done again",
        "finite numbers; nothing was changed",
        SMALLER,
    )


def refused_gradient(optimizer: object, store: ParameterStore) -> str:
    """Return the error text for a gradient that is not finite, of a store that has one."""
    return _refused_gradient(f"{type(optimizer).__name__}.update", store)


def _refused_gradient(where: str, store: ParameterStore) -> str:
    name, at = next(
        (n, bad) for n in store.trained if (bad := first_bad(store.gradient(n))) is not None
    )
    return message(
        where,
        f"the gradient of {name!r} is {store.gradient(name)[tuple(at)]} at {at}",
        "finite gradients; nothing was changed",
        f"look for a division or log of zero in F, or {SMALLER}",
    )


def written_by(optimizer: object, store: ParameterStore) -> str:
    """Return the error text for an optimizer that wrote what is not finite, by itself."""
    name, at = next((n, bad) for n in store.names if (bad := first_bad(store.value(n))) is not None)
    return message(
        f"{type(optimizer).__name__}.update",
        f"it made {name!r} at {at} {store.value(name)[tuple(at)]}, from finite gradients",
        "finite parameters; nothing was changed",
        "correct the `update`",
    )
