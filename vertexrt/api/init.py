"""Initializers of parameters: functions of a shape and a random generator.

An initializer returns float64 whatever the dtype of the network, so that a float32 and a float64
network with one seed start from the same numbers. Every parameter draws from a generator of its
own, keyed by the seed and its name: adding a parameter does not change the others.
"""

import math
import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from vertexrt.api.arguments import check_not_negative, check_option, real_array
from vertexrt.checks import is_real, is_whole
from vertexrt.errors import UsageError

__all__ = [
    "constant",
    "normal",
    "ones",
    "orthogonal",
    "uniform",
    "xavier_uniform",
    "zeros",
]

Array = npt.NDArray[np.float64]
Shape = tuple[int, ...]
Initializer = Callable[[Shape, np.random.Generator], Array]

LARGEST_SEED = 2**64 - 1


def zeros(shape: Shape, rng: np.random.Generator) -> Array:
    """Return zeros: the default of parameters with fewer than two axes."""
    return np.zeros(shape)


def ones(shape: Shape, rng: np.random.Generator) -> Array:
    """Return ones."""
    return np.ones(shape)


def constant(value: npt.ArrayLike) -> Initializer:
    """Make an initializer that sets every element to a number, or all of them to an array.

    Raises: UsageError, when it is neither of finite real numbers.
    """
    if is_real(value):
        return lambda shape, rng: np.full(shape, float(value))
    array = None
    if isinstance(value, (np.ndarray, list, tuple)):
        array, _ = real_array(value, np.shape(value), np.float64)
    fits = array is not None and bool(np.isfinite(array).all())
    check_option("constant", "value", value, fits, "a finite number, or an array of them")
    assert array is not None
    kept = array.copy()
    return lambda shape, rng: kept


def normal(std: float) -> Initializer:
    """Make an initializer that draws from N(0, std^2).

    Raises: UsageError, when std is negative or not finite.
    """
    check_not_negative("normal", std=std)
    return lambda shape, rng: std * rng.standard_normal(shape)


def uniform(a: float) -> Initializer:
    """Make an initializer that draws evenly from [-a, a).

    Raises: UsageError, when a is negative or not finite.
    """
    check_not_negative("uniform", a=a)
    return lambda shape, rng: a * (2.0 * rng.random(shape) - 1.0)


def xavier_uniform(shape: Shape, rng: np.random.Generator) -> Array:
    """Draw evenly from [-a, a), a = sqrt(6 / (fan_in + fan_out)): the default for 2-D parameters.

    fan_in is the last axis, fan_out the product of the others (1 when there are none). A stack of
    several gates counts as one matrix; draw the gates as parameters of their own to avoid that.

    Raises: UsageError, when the shape has no axis.
    Source: Glorot and Bengio, AISTATS 2010, equation 16.
    """
    check_option("xavier_uniform", "shape", shape, len(shape) >= 1, "of at least one axis")
    fan_in, fan_out = shape[-1], math.prod(shape[:-1])
    return uniform(math.sqrt(6.0 / (fan_in + fan_out)))(shape, rng)


def orthogonal(shape: Shape, rng: np.random.Generator) -> Array:
    """Draw a matrix with orthonormal rows, or columns when there are more rows than columns.

    The matrix is evenly distributed over all such matrices: Q of a normal matrix, its columns
    signed by the diagonal of R.

    Raises: UsageError, when the shape is not 2-D.
    Source: Saxe et al., ICLR 2014; Mezzadri, Notices of the AMS 54 (2007), for the signs.
    """
    check_option("orthogonal", "shape", shape, len(shape) == 2, "of two axes")
    tall = (max(shape), min(shape))
    q, r = np.linalg.qr(rng.standard_normal(tall))
    diagonal = np.diagonal(r)
    q = q * np.where(diagonal < 0.0, -1.0, 1.0)
    return np.ascontiguousarray(q if shape == tall else q.T)


def default(shape: Shape) -> Initializer:
    """Return what a parameter without `init` gets: xavier_uniform from two axes on, else zeros."""
    return xavier_uniform if len(shape) >= 2 else zeros


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the generator that the parameter `name` draws from.

    Raises: UsageError, when the seed is negative.
    """
    check_option("init", "seed", seed, is_whole(seed) and seed >= 0, "a whole number >= 0")
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def draw(name: str, shape: Shape, init: Initializer | None, seed: int) -> Array:
    """Return the initial values of a parameter, float64 [*shape].

    Args:
        name: of the parameter; with the seed it fixes the random numbers.
        shape: of the parameter.
        init: what draws them; None for the default of the shape.
        seed: at least 0.
    Raises: UsageError, when `init` returns another shape or numbers that are not finite.
    """
    values, wrong = real_array((init or default(shape))(shape, generator(seed, name)), shape, float)
    if values is None or not np.isfinite(values).all():
        raise UsageError.at(
            "init",
            f"what the initializer of '{name}' returned "
            + (wrong or "has numbers that are not finite"),
            f"finite numbers of shape {shape}",
            "correct the initializer",
        )
    return values
