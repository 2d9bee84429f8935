"""The state of an optimizer: what it holds, how a run continues from it, and what is refused."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.optimizers import OPTIMIZERS, SHAPES, SPARSE, STEPS, make_store, run, set_gradients
from vertexrt.api.optim import Adagrad, Adam
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.parameters import ParameterStore
from vertexrt.errors import CheckpointError, UsageError

Array = npt.NDArray[Any]

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


@every_optimizer
def test_a_state_fits_any_layout_of_its_parameters(name: str) -> None:
    first, store = OPTIMIZERS[name](), make_store("float32")
    run(first, store, 0, 2)
    shapes = {key: SHAPES[key] for key in ("u", "w", "other", "b", "table")}
    other = ParameterStore(shapes, "float32", SPARSE, [("w", "u")])
    for key in shapes:
        other.value(key)[...] = store.value(key)
    second = OPTIMIZERS[name]()
    second.load_state(first.state())
    for step in range(2, STEPS):
        set_gradients(store, step)
        other.zero_gradients()
        for key in shapes:
            other.gradient(key)[...] = store.gradient(key)
        other.touched.update(store.touched)
        first.update(store)
        second.update(other)
    for key in shapes:
        np.testing.assert_array_equal(other.value(key), store.value(key))


def test_an_optimizer_with_moments_belongs_to_one_network() -> None:
    optimizer = Adam()
    run(optimizer, make_store("float32"), 0, 1)
    with pytest.raises(UsageError) as caught:
        run(optimizer, make_store("float32"), 0, 1)
    assert str(caught.value) == (
        "[Adam.update] the parameters of a second network; those of the network that its moments "
        "belong to; make one optimizer for each network."
    )


def misfit(optimizer: Optimizer, state: dict[str, Array]) -> str:
    with pytest.raises(CheckpointError) as caught:
        optimizer.load_state(state)
    return str(caught.value)


def test_states_that_do_not_fit_are_refused() -> None:
    adam, store = Adam(), make_store("float32")
    run(adam, store, 0, 2)
    state = adam.state()
    assert misfit(Adagrad(0.1), state) == (
        "[Adagrad.load_state] the state holds moments m, v; expected: sum; load the state of the "
        "same optimizer and network."
    )
    assert "the state holds no 'm/b'; expected: one array" in misfit(adam, {"steps": np.array(3)})
    assert "the state holds no count of steps" in misfit(Adam(), {"m/w": np.zeros(3)})
    assert "holds no 'm/w'" in misfit(adam, {k: a for k, a in state.items() if k != "m/w"})
    assert "holds 'm/x'" in misfit(adam, {**state, "m/x": np.zeros(2)})
    assert "holds 'v/b' with shape (2,), float64; expected: shape (9,), float" in misfit(
        adam, {**state, "v/b": np.zeros(2)}
    )
    assert adam.steps == 2


def test_a_state_of_another_network_is_refused_at_the_first_update() -> None:
    adam, store = Adam(), make_store("float32")
    run(adam, store, 0, 1)
    fresh, small = Adam(), make_store("float32", {"w": (3, 2)})
    fresh.load_state(adam.state())
    assert fresh.state()["m/w"].shape == (9, 7)
    before = small.values.copy()
    with pytest.raises(CheckpointError, match="the state holds 'm/b'; expected: one array"):
        run(fresh, small, 0, 1)
    np.testing.assert_array_equal(small.values, before)
