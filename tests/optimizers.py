"""The optimizers, stores and gradients that several test files drive."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vertexrt.api import optim
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.parameters import ParameterStore
from vertexrt.ir.updates import OPTIMIZERS as OPTIMIZER_ROWS
from vertexrt.ir.updates import OptimizerRow

Make = Callable[..., Optimizer]

SHAPES: dict[str, tuple[int, ...]] = {
    "table": (11, 5),
    "w": (9, 7),
    "u": (4, 7),
    "b": (9,),
    "other": (6, 3),
}
SPARSE = ("table", "other")
STEPS = 5

# Options that the tests give instead of the defaults.
CHOSEN: dict[str, Any] = {"alpha": 0.9, "betas": (0.8, 0.97), "eps": 1e-6, "momentum": 0.9}
LR = {"Adam": 0.02, "AdamW": 0.02}


def maker(row: OptimizerRow, left_out: str = "") -> Make:
    """Return what makes an optimizer of a row; an option that is left out is 0."""
    given = {option.name: CHOSEN[option.name] for option in row.options}
    given |= {left_out: 0.0} if left_out else {}
    return lambda **options: optim.OPTIMIZERS[row.title](
        LR.get(row.title, 0.1), **{**given, **options}
    )


def every_maker() -> dict[str, Make]:
    """Return what makes each optimizer of the table, with and without slots that are optional."""
    found: dict[str, Make] = {}
    for row in OPTIMIZER_ROWS:
        optional = {slot.option for slot in row.state if slot.option}
        found[row.name] = maker(row, *optional)
        for option in optional:
            found[f"{row.name}_{option}"] = maker(row)
    return found


OPTIMIZERS = every_maker()


def make_store(dtype: str, shapes: dict[str, tuple[int, ...]] = SHAPES) -> ParameterStore:
    store = ParameterStore(shapes, dtype, sparse=[name for name in SPARSE if name in shapes])
    rng = np.random.default_rng(3)
    for name in store.names:
        store.value(name)[...] = rng.standard_normal(store.shapes[name])
    return store


def set_gradients(store: ParameterStore, step: int) -> None:
    """Draw the gradients of a step; "other" has none in odd steps."""
    store.zero_gradients()
    rng = np.random.default_rng([4, step])
    for name in store.names:
        if name in store.sparse:
            count = 0 if name == "other" and step % 2 else 4
            rows = np.sort(rng.choice(store.shapes[name][0], count, replace=False))
            store.touched[name] = rows
            store.gradient(name)[rows] = rng.standard_normal((count, store.shapes[name][1]))
        else:
            store.gradient(name)[...] = rng.standard_normal(store.shapes[name])


def run(optimizer: Optimizer, store: ParameterStore, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        set_gradients(store, step)
        optimizer.update(store)


def state_of(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """Copy an optimizer's state."""
    return {name: np.array(array) for name, array in optimizer.state().items()}


def squares_of(name: str) -> list[str]:
    """Name what an optimizer keeps that is never negative."""
    row = OPTIMIZERS[name]().row
    assert row is not None
    return [slot.name for slot in row.state if slot.squares]
