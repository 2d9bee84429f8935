"""Updates of a store: norms, padding, rows that rest, and what is refused.

`tests.fuzz.optimizers` has the rules, in float64.
"""

import math

import numpy as np
import pytest

from tests.optimizers import OPTIMIZERS, STEPS, make_store, run
from tests.runs import assert_bits
from vertexrt.api.optim import SGD
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import updated_ranges
from vertexrt.errors import NumericError, PlanError
from vertexrt.kernels.cpu.update import norm_of

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@every_optimizer
@pytest.mark.parametrize("clip", [None, 1.5, 1e3])
def test_updates_in_float32_are_those_in_float64(name: str, clip: float | None) -> None:
    single, double = make_store("float32"), make_store("float64")
    for store in (single, double):
        run(OPTIMIZERS[name](weight_decay=0.3, clip_norm=clip), store)
        assert not store.gradients.any()
    for key in double.names:
        error = np.abs(single.value(key) - double.value(key)).max()
        assert error <= 2e-6 * np.abs(double.value(key)).max(), key


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
    assert_bits(before, optimizer.state())


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
