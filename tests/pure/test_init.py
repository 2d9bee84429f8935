"""Initializers: their distributions, their seeds, and the text of every refusal."""

import numpy as np
import pytest

from vertexrt.api import init
from vertexrt.errors import UsageError


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_constants() -> None:
    np.testing.assert_array_equal(init.zeros((2, 3), rng()), np.zeros((2, 3)))
    np.testing.assert_array_equal(init.ones((2,), rng()), np.ones(2))
    np.testing.assert_array_equal(init.constant(-1.5)((2, 2), rng()), np.full((2, 2), -1.5))


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


def test_bounds() -> None:
    assert 0.29 < np.abs(init.uniform(0.3)((100, 100), rng())).max() <= 0.3
    bound = np.sqrt(6 / (4 + 2 * 3))
    assert np.abs(init.xavier_uniform((2, 3, 4), rng())).max() <= bound
    assert np.abs(init.xavier_uniform((5,), rng())).max() <= 1.0


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


def test_draw_refuses_what_an_initializer_should_not_return() -> None:
    with pytest.raises(UsageError) as caught:
        init.draw("w", (2, 3), lambda shape, rng: np.zeros((3, 2)), seed=0)
    assert str(caught.value) == (
        "[init] what the initializer of 'w' returned has shape [3, 2]; finite numbers of shape "
        "(2, 3); correct the initializer."
    )
    with pytest.raises(UsageError, match="returned has numbers that are not finite"):
        init.draw("w", (2,), lambda shape, rng: np.array([0.0, np.nan]), seed=0)


def test_refused_options() -> None:
    with pytest.raises(UsageError) as caught:
        init.normal(-1.0)
    assert str(caught.value) == ("[normal] std=-1.0; std must be a finite number >= 0; correct it.")
    with pytest.raises(UsageError, match="a=nan"):
        init.uniform(float("nan"))
    with pytest.raises(UsageError, match="value=inf"):
        init.constant(float("inf"))
    with pytest.raises(UsageError, match="seed=-1"):
        init.generator(-1, "w")
    with pytest.raises(UsageError, match=r"shape=\(3,\); shape must be of two axes"):
        init.orthogonal((3,), rng())
    with pytest.raises(UsageError, match="at least one axis"):
        init.xavier_uniform((), rng())
