"""Run an optimizer's rule over a parameter store: the dense part, then the touched rows.

The CPU kernels serve the `reference` backend as well: both keep parameters in NumPy arrays.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from vertexrt.engine.parameters import FloatArray, ParameterStore, RowArray
from vertexrt.errors import PlanError, message

Rule = Literal["sgd", "momentum", "adagrad", "adam"]  # functions of vertexrt.kernels.cpu.optim

_DENSE: RowArray = np.zeros(1, np.int64)  # the dense part is one row


def gradient_norm(store: ParameterStore) -> float:
    """Return the norm of all gradients of a step: dense part and touched rows.

    Summed in float64 and in a fixed order: the dense part, then the sparse parameters as declared,
    each by `sum_of_squares`. So a run repeats bit for bit.
    """
    from vertexrt.kernels.cpu.optim import sum_of_squares

    total = 0.0
    for start, width, rows in _ranges(store):
        total += sum_of_squares(store.gradients, start, width, rows)
    return math.sqrt(total)


def apply_rule(
    store: ParameterStore,
    rule: Rule,
    moments: Sequence[FloatArray],
    scale: float,
    scalars: Sequence[float],
) -> None:
    """Update the values of a store, and the optimizer's moments, in place.

    Args:
        store: its gradients are read and not changed.
        rule: name of the kernel.
        moments: arrays of the store's layout, in the kernel's order.
        scale: factor of every gradient.
        scalars: what the kernel takes after `scale`.
    Raises: PlanError, when a touched row is not a row of its parameter; nothing is updated then.
    """
    from vertexrt.kernels.cpu import optim

    kernel: Any = getattr(optim, rule)
    for start, width, rows in list(_ranges(store)):
        kernel(store.values, store.gradients, *moments, start, width, rows, scale, *scalars)


def _ranges(store: ParameterStore) -> Iterator[tuple[int, int, RowArray]]:
    """Yield (start, width, rows) of the dense part and of each sparse parameter's touched rows."""
    if store.dense_size:
        yield 0, store.dense_size, _DENSE
    for name in store.sparse:
        rows = store.touched.get(name)
        if rows is None or not rows.size:
            continue
        shape = store.shapes[name]
        if rows[0] < 0 or rows[-1] >= shape[0]:  # sorted; the kernels check no bounds
            raise PlanError(
                message(
                    "update",
                    f"rows {rows[0]} to {rows[-1]} of '{name}' are touched",
                    f"rows 0 to {shape[0] - 1}",
                    "check the pulled indices",
                )
            )
        yield store.offsets[name], math.prod(shape[1:]), rows
