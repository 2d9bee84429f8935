"""The optimizers, stores and gradients that several test files drive."""

from collections.abc import Callable

import numpy as np

from vertexrt.api.optim import SGD, Adagrad, Adam, AdamW
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.parameters import ParameterStore

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

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda **o: SGD(0.1, **o),
    "momentum": lambda **o: SGD(0.1, 0.9, **o),
    "adagrad": lambda **o: Adagrad(0.1, **o),
    "adam": lambda **o: Adam(0.02, (0.8, 0.97), 1e-6, **o),
    "adamw": lambda **o: AdamW(0.02, (0.8, 0.97), 1e-6, **o),
}


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
