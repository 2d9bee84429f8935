"""Which gradients an update needs no trial for, and which states and optimizers are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vertexrt as vrt
from tests.optimizers import OPTIMIZERS, make_store, set_gradients, squares_of, state_of
from vertexrt.engine.update import NOTHING, apply_update, limit_of
from vertexrt.errors import CheckpointError, NumericError, UsageError
from vertexrt.ir.updates import ABOVE_ZERO, RULES
from vertexrt.kernels.cpu.update import code_of
from vertexrt.kernels.cuda.step_end import kernels, struct_name, structs, update_cases

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)

# What is known without a trial.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_optimizer
def test_whatever_is_within_the_limit_stays_finite(name: str, dtype: str) -> None:
    """Gradients up to the limit, any finite values, moments within reach: no rule overflows."""
    rng = np.random.default_rng([7, *name.encode()])
    largest = float(np.finfo(dtype).max)
    known = 0
    for _ in range(300):
        lr, eps = 10.0 ** rng.uniform(-8, 25), 10.0 ** rng.uniform(-20, 3)
        decay = float(rng.choice([0.0, 0.0, 10.0 ** rng.uniform(-6, 1)]))
        optimizer = OPTIMIZERS[name](weight_decay=decay)
        optimizer.lr = lr
        row = optimizer.row
        assert row is not None
        for option in row.options:  # those that are not 0
            drawn = [eps if option.range is ABOVE_ZERO else 1.0 - 10.0 ** rng.uniform(-8, -0.01)]
            drawn *= max(1, len(option.parts))
            if getattr(optimizer, option.name) != 0.0:
                setattr(optimizer, option.name, tuple(drawn) if option.parts else drawn[0])
        store = make_store(dtype)
        update = optimizer._next_update(store)
        limit, reach = limit_of(update, store.dtype)
        if limit == NOTHING:
            continue
        known += 1
        sign = rng.choice([-1.0, 1.0], store.values.size)
        set_gradients(store, 0)
        store.gradients[store.gradients != 0.0] = -limit
        store.gradients *= sign
        bound = limit if update.whole.decay else largest
        store.values[:] = rng.choice([bound, bound / 3, 1.0, 0.0], store.values.size) * sign
        for slot, most, moment in zip(update.rule.state, reach, update.moments, strict=True):
            moment[:] = min(most, largest) * (1.0 if slot.squares else sign)
        with np.errstate(all="ignore"):
            outcome = apply_update(store, update)
        assert outcome.done
        assert np.isfinite(store.values).all()
        assert np.isfinite(update.moments).all()
        for most, moment in zip(reach, update.moments, strict=True):
            assert np.abs(moment).max() <= most
    assert known > 50


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_optimizer
def test_a_trial_is_exact(name: str, dtype: str) -> None:
    """Of numbers of any size, an update is refused just when it would write one too large."""
    rng = np.random.default_rng([8, *name.encode()])
    largest, found = float(np.finfo(dtype).max), []
    for k in range(60):
        store, optimizer = make_store(dtype), OPTIMIZERS[name](weight_decay=0.1 * (k % 2))
        update = optimizer._next_update(store)
        set_gradients(store, k)
        top = math.log10(largest)
        top = top * rng.uniform(-1.0, 0.98) if k % 2 else top - rng.uniform(0.35, 1.0)
        store.gradients[:] = np.clip(store.gradients, -2.0, 2.0) * 10.0**top
        if k % 3:
            size = rng.uniform(0.5, 0.97, store.values.size) * largest
            store.values[:] = np.where(store.values > 0.0, size, -size)
        values, moments = store.values.copy(), update.moments.copy()
        with np.errstate(all="ignore"):
            outcome = apply_update(store, update._replace(reach=(math.inf,) * len(update.moments)))
        found.append(outcome.done)
        if outcome.done:
            assert np.isfinite(store.values).all()
            assert np.isfinite(update.moments).all()
        else:
            np.testing.assert_array_equal(store.values, values)
            np.testing.assert_array_equal(update.moments, moments)
    row = OPTIMIZERS[name]().row
    assert row is not None
    overflows = not row.decoupled or squares_of(name)  # the sign of a mean does not
    assert 5 < sum(found) < 60 if overflows else sum(found) == 60


def test_a_large_moment_is_found_again() -> None:
    """Momentum that is loaded, or that a trial let through, is not taken to be small."""
    store, optimizer = make_store("float32"), vrt.SGD(1e8, 0.5)
    optimizer.update(store)
    state = state_of(optimizer)
    state["velocity/w"][1, 2] = 1e32
    optimizer.load_state(state)
    with pytest.raises(NumericError, match=r"the update of 'w' at \[1, 2\] makes its value -inf"):
        optimizer.update(store)
    optimizer.lr = 1.0
    optimizer.update(store)
    optimizer.lr = 1e8
    with pytest.raises(NumericError, match=r"the update of 'w' at \[1, 2\] makes its value -inf"):
        optimizer.update(store)


# What cannot work.


@pytest.mark.parametrize("number", [np.nan, np.inf, -1.0, 1e300])
def test_a_state_that_no_optimizer_can_have_made_is_refused(number: float) -> None:
    store, optimizer = make_store("float32"), vrt.Adagrad(0.1)
    optimizer.update(store)
    state = state_of(optimizer)
    state["sum/w"] = state["sum/w"].astype(np.float64)
    state["sum/w"][1, 2] = number
    with pytest.raises(CheckpointError, match=r"the state holds .* in 'sum/w' at \[1, 2\]"):
        optimizer.load_state(state)
    assert np.isfinite(optimizer.state()["sum/w"]).all()


def test_an_eps_that_is_zero_in_float32_is_refused() -> None:
    with pytest.raises(UsageError, match=r"eps=1e-50; at least 1.18e-38 in float32"):
        vrt.Adam(eps=1e-50).update(make_store("float32"))
    vrt.Adam(eps=1e-50).update(make_store("float64"))


def test_an_optimizer_that_nothing_computes_is_refused() -> None:
    class Nothing(vrt.Optimizer):
        def __init__(self) -> None:
            super().__init__(0.1)

    with pytest.raises(UsageError) as caught:
        Nothing().update(make_store("float32"))
    assert str(caught.value) == (
        "[Nothing.update] the class Nothing, which has no row; a class with an `update` of its "
        "own, or of an optimizer of vrt; write def update(self, store)."
    )


def test_every_rule_has_kernels_of_its_own() -> None:
    """A fifth rule was Adam's on a GPU, and nothing at all on a CPU."""
    for rule in RULES:
        assert f"VRT_KERNEL(update_{rule.name}, " in kernels()
        assert f"struct {struct_name(rule)} {{" in structs()
        assert f"update_staged<{struct_name(rule)}>(" in "".join(update_cases([rule]))
    found = {code_of(rule, np.dtype("float32"))["vrt_rule"] for rule in RULES}
    assert len(found) == len(RULES)
