"""Functions of float32 on a CPU: against those of float64, in units in the last place."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from vertexrt.kernels.cpu.arithmetic import FUSED, Arithmetic
from vertexrt.native.code import Code, module_of
from vertexrt.native.load import load

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
}
# Beyond these exp is 0 or infinite; below -86.5 it loses digits.
RANGES = {"exp": (-86.5, 88.7), "tanh": (-12.0, 12.0), "sigmoid": (-86.5, 60.0)}
UNITS = {"exp": 1.0, "sigmoid": 3.0, "tanh": 3.0}


def computed(name: str, x: Floats) -> Floats:
    """Run a loop over an array, in vectors."""
    code = Code("apply", "*x *y n", "float")
    source, to, count = code.arguments
    with code.loop(0, count, independent=True) as k:
        to[k] = Arithmetic(code, FUSED).call(name, [source[k]])
    kinds = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    loaded = load(module_of([code]), ["apply"], {})  # freed when nothing holds it
    found = ctypes.CFUNCTYPE(None, *kinds)(loaded["apply"])
    y = np.empty_like(x)
    found(x.ctypes.data, y.ctypes.data, len(x))
    return y


def units_off(name: str, x: Floats) -> float:
    """Return the largest error in units in the last place of the exact result."""
    exact = EXACT[name](x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(computed(name, x) - exact) / unit).max())


@pytest.mark.parametrize("name", EXACT)
def test_results_are_within_units_in_the_last_place(name: str) -> None:
    """Of numbers spread evenly, and of all sizes."""
    low, high = RANGES[name]
    rng = np.random.default_rng(4)
    sizes = np.exp2(rng.uniform(-40.0, np.log2(min(-low, high)), 1_000_000))
    some = [np.linspace(low, high, 2_000_001), sizes, -sizes]
    for x in some:
        assert units_off(name, x.astype(np.float32)) <= UNITS[name]


def test_exp_loses_its_digits_one_by_one() -> None:
    """Rounded twice, to 24 bits and to those that are left."""
    assert units_off("exp", np.linspace(-104.0, -86.5, 100_000).astype(np.float32)) < 1.01


@pytest.mark.parametrize("name", EXACT)
def test_numbers_at_the_edges(name: str) -> None:
    inf = float("inf")
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-30, 20.0, 90.0, 1e30, inf, -inf], np.float32)
    with np.errstate(over="ignore"):
        exact = EXACT[name](x.astype(np.float64)).astype(np.float32)
    found = computed(name, x)
    np.testing.assert_allclose(found, exact, rtol=3e-7, atol=1.2e-38)
    assert np.isnan(computed(name, np.array([np.nan], np.float32))).all()
