"""Parameters: how they are initialised, their store, and how gradients are cleared."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import table, text_of
from vertexrt.api import init
from vertexrt.engine.parameters import ALIGNMENT, ParameterStore
from vertexrt.errors import UsageError

SHAPES = {"embedding": (7, 5), "w": (6, 5), "b": (6,), "u": (3, 5), "gain": ()}


def store(dtype: str = "float32") -> ParameterStore:
    return ParameterStore(SHAPES, dtype, sparse=["embedding"], stacks=[("u", "w")])


@given(
    extents=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=8),
    dtype=st.sampled_from(["float32", "float64"]),
    data=st.data(),
)
def test_parameters_are_aligned_and_apart(
    extents: list[tuple[int, int]], dtype: str, data: st.DataObject
) -> None:
    shapes: dict[str, tuple[int, ...]] = {f"p{i}": shape for i, shape in enumerate(extents)}
    sparse = data.draw(st.sets(st.sampled_from(sorted(shapes))))
    stack = [name for name in shapes if shapes[name][1] == 3 and name not in sparse]
    made = ParameterStore(shapes, dtype, sparse, [tuple(stack)] if stack else [])
    assert made.values.ctypes.data % 64 == made.gradients.ctypes.data % 64 == 0
    for number, name in enumerate(shapes):
        assert made.offsets[name] % ALIGNMENT == 0 or name in stack[1:]
        assert (made.offsets[name] >= made.dense_size) == (name in sparse)
        made.value(name)[...] = number
        made.gradient(name)[...] = -number
    for number, name in enumerate(shapes):
        assert (made.value(name) == number).all()
        assert (made.gradient(name) == -number).all()
    if stack:
        joined = np.concatenate([made.value(name).ravel() for name in stack])
        start = made.offsets[stack[0]]
        np.testing.assert_array_equal(made.values[start : start + joined.size], joined)


def test_zero_gradients_leaves_no_trace() -> None:
    made = store()
    made.gradients[: made.dense_size] = 1.0
    made.gradient("embedding")[[1, 4]] = 1.0
    made.touched["embedding"] = np.array([1, 4])
    made.zero_gradients()
    assert not made.gradients.any()
    assert made.touched == {}
    made.gradients[...] = 1.0
    made.touched["embedding"] = np.array([2])
    made.zero_gradients()
    assert not made.gradients[: made.dense_size].any()
    np.testing.assert_array_equal(made.gradient("embedding")[:, 0], [1, 1, 0, 1, 1, 1, 1])


# What is given besides shapes -> a part of what the error says.
REFUSED_STORES = table(__file__, "REFUSED_STORES")


@pytest.mark.parametrize("code", REFUSED_STORES)
def test_refused_stores(code: str) -> None:
    given = {"shapes": SHAPES, "stacks": (), **eval(f"dict({code})")}
    given["stacks"] = [tuple(names) for names in given["stacks"]]
    assert REFUSED_STORES[code] in text_of(UsageError, lambda: ParameterStore(**given))


def test_no_parameters_are_a_store_too() -> None:
    assert ParameterStore({}).values.size == 0


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert text_of(UsageError, lambda: store().value("embeding")) == (
        "[parameters] no parameter is called 'embeding'; the parameters are embedding, w, b, u, "
        "gain; correct the name. Nearest: 'embedding'."
    )
    assert "'x'" in text_of(UsageError, lambda: store().gradient("x"))


def test_frozen_parameters_come_last_and_have_values_alone() -> None:
    shapes = {"a": (3, 4), "table": (9, 4), "b": (2, 4), "c": (5, 4), "words": (7, 4)}
    made = ParameterStore(shapes, sparse=["table"], stacks=[("a", "c")], frozen=["b", "words"])
    assert " ".join(sorted(made.offsets, key=made.offsets.__getitem__)) == "a c table b words"
    assert made.offsets["b"] == made.trained_size < made.values.size
    assert made.views(made.gradients).keys() == {"a", "table", "c"}
    assert made.views(made.values).keys() == shapes.keys()


# Initializers.


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_constants() -> None:
    np.testing.assert_array_equal(init.constant(-1.5)((2, 2), rng()), np.full((2, 2), -1.5))
    np.testing.assert_array_equal([init.zeros(2, rng()), init.ones(2, rng())], [[0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("initializer", "std"),
    [
        (init.normal(0.3), 0.3),
        (init.uniform(0.3), 0.3 / np.sqrt(3)),
        (init.xavier_uniform, np.sqrt(6 / 500) / np.sqrt(3)),
        (init.orthogonal, 1 / np.sqrt(300)),
    ],
)
def test_distributions(initializer: init.Initializer, std: float) -> None:
    drawn = initializer((300, 200), rng())
    assert drawn.dtype == np.float64
    assert drawn.shape == (300, 200)
    assert abs(drawn.mean()) < 5 * std / np.sqrt(drawn.size)
    np.testing.assert_allclose(drawn.std(), std, rtol=0.02)


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9), (1, 5)])
def test_orthogonal(shape: tuple[int, int]) -> None:
    q = init.orthogonal(shape, rng())
    product = q @ q.T if shape[0] <= shape[1] else q.T @ q
    np.testing.assert_allclose(product, np.eye(min(shape)), atol=1e-14)
    assert q.flags.c_contiguous


def test_defaults() -> None:
    assert init.default((3, 4)) is init.xavier_uniform
    assert init.default((3,)) is init.default(()) is init.zeros


def test_a_parameter_draws_by_seed_and_name_alone() -> None:
    first = init.draw("w", (3, 4), None, seed=1)
    np.testing.assert_array_equal(first, init.draw("w", (3, 4), None, seed=1))
    assert (first != init.draw("u", (3, 4), None, seed=1)).all()
    assert (first != init.draw("w", (3, 4), None, seed=2)).all()
    np.testing.assert_array_equal(first, init.xavier_uniform((3, 4), init.generator(1, "w")))


# A call -> what its error says first.
REFUSED = table(__file__, "REFUSED")


@pytest.mark.parametrize("call", REFUSED)
def test_initializers_refuse(call: str) -> None:
    names = {**vars(init), "rng": rng, "np": np, "nan": math.nan, "inf": math.inf}
    assert text_of(UsageError, lambda: eval(call, names)).startswith(REFUSED[call])
