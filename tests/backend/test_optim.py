"""Every optimizer against its published rule, written plainly in NumPy float64.

The compiled updates serve all backends, so that there is one case for each rule, not one for each
backend.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.optimizers import OPTIMIZERS, STEPS, make_store, run, set_gradients
from vertexrt.api.optim import SGD
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import updated_ranges
from vertexrt.errors import NumericError, PlanError
from vertexrt.kernels.cpu.update import norm_of

Array = npt.NDArray[Any]

# Relative to the largest value: rounding of a few operations, over five steps.
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


@dataclass
class Element:
    """What a published rule moves: a value, its gradient g, and what it keeps, first zero."""

    value: Array
    g: Array
    step: int
    first: Array
    second: Array


def sgd(x: Element) -> None:
    x.value -= 0.1 * x.g


def sgd_momentum(x: Element) -> None:
    x.first[...] = 0.9 * x.first + x.g
    x.value -= 0.1 * x.first


def adagrad(x: Element) -> None:
    x.first += x.g**2
    x.value -= 0.1 * x.g / (np.sqrt(x.first) + 1e-6)


def adam(x: Element) -> None:
    x.first[...] = 0.8 * x.first + (1 - 0.8) * x.g
    x.second[...] = 0.97 * x.second + (1 - 0.97) * x.g**2
    mean = x.first / (1 - 0.8**x.step)
    square = x.second / (1 - 0.97**x.step)
    x.value -= 0.02 * mean / (np.sqrt(square) + 1e-6)


def rmsprop(x: Element) -> None:
    x.first[...] = 0.9 * x.first + (1 - 0.9) * x.g**2
    x.value -= 0.1 * x.g / (np.sqrt(x.first) + 1e-6)


def rmsprop_momentum(x: Element) -> None:
    x.first[...] = 0.9 * x.first + (1 - 0.9) * x.g**2
    x.second[...] = 0.9 * x.second + x.g / (np.sqrt(x.first) + 1e-6)
    x.value -= 0.1 * x.second


def lion(x: Element) -> None:
    x.value -= 0.1 * np.sign(0.8 * x.first + (1 - 0.8) * x.g)
    x.first[...] = 0.97 * x.first + (1 - 0.97) * x.g


RULES = {
    "sgd": sgd,
    "sgd_momentum": sgd_momentum,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adam,
    "lion": lion,
    "rmsprop": rmsprop,
    "rmsprop_momentum": rmsprop_momentum,
}
RATES_OF_DECOUPLED_DECAY = {"adamw": 0.02, "lion": 0.1}


class Reference:
    """The published rules, one parameter row at a time, in float64."""

    def __init__(self, name: str, values: dict[str, Array], decay: float, clip: float | None):
        self.name, self.decay, self.clip, self.steps = name, decay, clip, 0
        self.values = {key: value.astype(np.float64) for key, value in values.items()}
        self.first = {key: np.zeros_like(value) for key, value in self.values.items()}
        self.second = {key: np.zeros_like(value) for key, value in self.values.items()}

    def update(self, gradients: dict[str, Array], touched: dict[str, Array]) -> None:
        self.steps += 1
        factor = 1.0
        if self.clip is not None:
            norm = math.sqrt(
                sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values())
            )
            factor = min(1.0, self.clip / norm)
        for key, gradient in gradients.items():
            for row in touched.get(key, np.arange(len(gradient))):
                self.move(key, row, factor * gradient[row].astype(np.float64))

    def move(self, key: str, row: int, g: Array) -> None:
        kept = [a[key][row : row + 1] for a in (self.values, self.first, self.second)]
        value, first, second = kept
        rate = RATES_OF_DECOUPLED_DECAY.get(self.name)
        if rate is None:
            g = g + self.decay * value
        else:
            value *= 1 - rate * self.decay
        RULES[self.name](Element(value, g, self.steps, first, second))


def test_every_row_has_a_published_rule() -> None:
    assert set(RULES) == set(OPTIMIZERS)


@every_dtype
@every_optimizer
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("clip", [None, 1.5, 1e3])
def test_rule(name: str, dtype: str, decay: float, clip: float | None) -> None:
    store = make_store(dtype)
    optimizer = OPTIMIZERS[name](weight_decay=decay, clip_norm=clip)
    reference = Reference(name, {key: store.value(key) for key in store.names}, decay, clip)
    start = store.values.copy()
    for step in range(STEPS):
        set_gradients(store, step)
        gradients = {key: store.gradient(key).copy() for key in store.names}
        optimizer.update(store)
        assert not store.gradients.any()
        reference.update(gradients, {key: store.touched[key] for key in store.sparse})
        for key in store.names:
            error = np.abs(store.value(key) - reference.values[key]).max()
            assert error <= TOLERANCE[dtype] * np.abs(reference.values[key]).max(), (key, step)
    assert optimizer.steps == STEPS
    assert store.values.dtype == dtype
    assert (store.value("w") != store.views(start)["w"]).all()


@every_optimizer
def test_only_touched_rows_move(name: str) -> None:
    store = make_store("float64")
    optimizer = OPTIMIZERS[name](weight_decay=0.1)
    run(optimizer, store, 0, 1)
    before, state = store.value("table").copy(), {k: a.copy() for k, a in optimizer.state().items()}
    run(optimizer, store, 1, 2)
    rest = np.setdiff1d(np.arange(11), store.touched["table"])
    np.testing.assert_array_equal(store.value("table")[rest], before[rest])
    assert (store.value("table")[store.touched["table"]] != before[store.touched["table"]]).all()
    for key, array in optimizer.state().items():
        if key.endswith("/table"):
            np.testing.assert_array_equal(array[rest], state[key][rest])


@every_dtype
@every_optimizer
def test_padding_stays_zero(name: str, dtype: str) -> None:
    store = make_store(dtype)
    run(OPTIMIZERS[name](weight_decay=0.1, clip_norm=1.0), store)
    for view in store.views(store.values).values():
        view[...] = 0.0
    assert not store.values.any()


def gradient_norm(store: ParameterStore) -> float:
    return norm_of(store.gradients, updated_ranges(store))


@pytest.mark.parametrize("width", [1, 63, 64, 65, 130, 1000])
@every_dtype
def test_gradient_norm(width: int, dtype: str) -> None:
    store = ParameterStore({"w": (width,), "t": (9, width)}, dtype, sparse=["t"])
    rng = np.random.default_rng(width)
    store.gradient("w")[...] = rng.standard_normal(width)
    store.touched["t"] = np.array([0, 3, 8])
    store.gradient("t")[store.touched["t"]] = rng.standard_normal((3, width))
    expected = math.sqrt(math.fsum(float(g) ** 2 for g in store.gradients))
    assert gradient_norm(store) == pytest.approx(expected, rel=1e-14)
    assert gradient_norm(store) == gradient_norm(store)
    store.gradient("t")[1] = 1e30  # not touched: not part of the step
    assert gradient_norm(store) == pytest.approx(expected, rel=1e-14)


def test_norm_of_large_float32_gradients_does_not_overflow() -> None:
    store = ParameterStore({"w": (100,)})
    store.gradients[:100] = 1e30
    assert gradient_norm(store) == pytest.approx(1e31, rel=1e-6)


@every_optimizer
def test_gradients_that_are_not_finite_change_nothing(name: str) -> None:
    store, optimizer = make_store("float32"), OPTIMIZERS[name](clip_norm=1.0)
    run(optimizer, store, 0, 2)
    before = {key: array.copy() for key, array in optimizer.state().items()}
    values = store.values.copy()
    store.gradient("b")[2] = np.nan
    with pytest.raises(NumericError) as caught:
        optimizer.update(store)
    assert str(caught.value) == (
        f"[{type(optimizer).__name__}.update] the gradient of 'b' is nan at [2]; finite gradients; "
        "nothing was changed; look for a division or log of zero in F, or lower the learning rate, "
        "or clip the gradient norm."
    )
    np.testing.assert_array_equal(store.values, values)
    for key, array in optimizer.state().items():
        np.testing.assert_array_equal(array, before[key])


def test_touched_rows_outside_are_refused() -> None:
    store, optimizer = make_store("float32"), SGD(0.1)
    before = store.values.copy()
    store.touched["table"] = np.array([2, 11])
    with pytest.raises(PlanError) as caught:
        optimizer.update(store)
    assert str(caught.value) == (
        "[update] rows 2 to 11 of 'table' are touched; rows 0 to 10; check the pulled indices."
    )
    np.testing.assert_array_equal(store.values, before)


@every_optimizer
@pytest.mark.parametrize("shapes", [{"w": (3, 2)}, {"table": (4, 2)}, {}])
def test_stores_without_dense_or_sparse_part(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    store = make_store("float32", shapes)
    before = store.values.copy()
    optimizer = OPTIMIZERS[name](clip_norm=1.0)
    run(optimizer, store)
    assert optimizer.steps == STEPS
    assert (store.values != before).any() == bool(shapes)


@every_optimizer
def test_gradients_of_zero_move_nothing(name: str) -> None:
    store, optimizer = make_store("float32"), OPTIMIZERS[name](weight_decay=0.0, clip_norm=1.0)
    before = store.values.copy()
    optimizer.update(store)
    np.testing.assert_array_equal(store.values, before)
