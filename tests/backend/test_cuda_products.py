"""Products of few rows by the kernel of ours: every shape of tile against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.devices import SHIM_AND_GPU
from tests.runs import PLAIN, TOLERANCE, Way, assert_same, evaluate
from vertexrt.kernels.cuda.cupy_device import CupyDevice
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.driver import addresses_of, encode, launch
from vertexrt.kernels.cuda.executable import kernel_name, kernel_sources
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.launch_text import Kernel, write_launches
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.kernels.cuda.task_launches import few_rows_products
from vertexrt.lower.kernel import MatrixProduct, Memory, Operand, PlaceRows, Temporary, ValuePlace
from vertexrt.lower.launches import CopiedProduct, LaunchPlan

Shapes = Sequence[tuple[bool, int, int, int]]  # transposed, m, n, rows of it for each row
Edit = Callable[[np.ndarray, np.ndarray], None]

WHOLE = (LIMITS.shared_rows, LIMITS.many_rows)  # of several products: no blocks share the depth
RANGES = ((0, LIMITS.few_rows), (LIMITS.few_rows, LIMITS.shared_rows), WHOLE)
SHAPES = [
    [(False, 36, 40, 1)],
    [(True, 40, 36, 1)],
    [(False, 100, 256, 1), (False, 36, 256, 2)],
    [(True, 520, 64, 1), (True, 260, 64, 2)],
]
CASES = [
    (shapes, limits) for shapes in SHAPES for limits in RANGES if len(shapes) > 1 or limits != WHOLE
]


def device_named(name: str) -> Device:
    """Return a device."""
    if name == "cuda":
        return CupyDevice()
    from tests.shim_device import ShimDevice

    return ShimDevice(seed=1)


def product(number: int, transposed: bool, m: int, n: int, each: int) -> CopiedProduct:
    """Return a product of rows of one tensor, which writes rows of the next."""
    wide, deep = (n, m) if transposed else (m, n)
    x, y = (
        Operand(ValuePlace(Memory.TENSOR, 2 * number + k, each * size, PlaceRows.ROW), None)
        for k, size in enumerate((deep, wide))
    )
    return CopiedProduct(MatrixProduct(number, transposed, x, y, False, each, m, n, ((0, wide),)))


def run(
    device: Device,
    shapes: Shapes,
    n: int,
    limits: tuple[int, int],
    edit: Edit | None = None,
    processors: int = 0,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return what the kernel makes of drawn operands, and what NumPy does.

    Args:
        edit: changes operands, the weight and what it is multiplied by.
        processors: of `few_rows_products`.
    """
    rng = np.random.default_rng(n)
    products, wanted, arrays = [], [], {}
    for k, (transposed, m, deep, each) in enumerate(shapes):
        w = rng.standard_normal((m, deep)).astype(np.float32)
        x = rng.standard_normal((n * each, m if transposed else deep)).astype(np.float32)
        if edit is not None:
            edit(w, x)
        exact = x.astype(np.float64) @ (w if transposed else w.T)
        wanted.append(exact)
        arrays[f"param_{k}"], arrays[f"tensor_{2 * k}"] = w, x
        arrays[f"tensor_{2 * k + 1}"] = np.full(exact.shape, np.nan, np.float32)
        products.append(product(k, transposed, m, deep, each))
    (step,) = (
        step
        for step in few_rows_products(products, Temporary(0, 0, 0), processors)
        if (step.rows.low, step.rows.high) == limits
    )
    launches = write_launches(LaunchPlan((step,), needs=(0, 0, step.elements)))
    (kernel,) = launches.steps
    assert isinstance(kernel, Kernel)
    function = device.load(list(kernel_sources([launches]).values()), np.dtype(np.float32))
    memory = {name: device.allocate(array.nbytes) for name, array in arrays.items()}
    memory |= {
        "temporary": device.allocate(4 * step.elements),
        "arrived": device.allocate(4 * LIMITS.counters),
    }
    memory["zero"] = device.allocate(0)
    for name, array in arrays.items():
        pinned = device.pinned(array.nbytes)
        pinned[:] = array.reshape(-1).view(np.uint8)
        device.upload(memory[name].address, pinned)
        device.wait(device.record())
    device.clear(memory["arrived"].address, 4 * LIMITS.counters)
    names = [*ADDRESSES, *arrays]
    numbers = {name: k for k, name in enumerate(names)}
    program = encode([launches], lambda step: function[kernel_name(step.body)], numbers)
    words = np.array([memory[name].address for name in names], np.int64)
    table = np.array([[0, n, 0, 0, 0, 0]], np.int64)
    lookups = np.zeros(2, np.int64), np.zeros(2, np.int64)
    calls = addresses_of(device.calls, np.array([0, 1], np.float32), 0, (0,) * 4)
    for _ in range(2):  # the counters are as they were
        code, *_ = launch(table, program, words, lookups, calls)
        device.check(code, 0, 0)
    found = []
    for k, exact in enumerate(wanted):
        pinned = device.pinned(4 * exact.size)
        device.download(pinned, memory[f"tensor_{2 * k + 1}"].address)
        device.wait(device.record())
        found.append((pinned.view(np.float32).reshape(exact.shape).copy(), exact))
    return found


@pytest.mark.parametrize(("shapes", "limits"), CASES)
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_products_of_few_rows(name: str, shapes: Shapes, limits: tuple[int, int]) -> None:
    device = device_named(name)
    most = max(times for *_, times in shapes)
    for n in (limits[0] // most + 1, limits[1] // most):
        for found, exact in run(device, shapes, n, limits):
            assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max() * np.sqrt(10)


# Rows of the weight, elements of one, processors that take turns, and columns that a warp makes.
BY_WARPS = [(72, 256, 9, 1), (72, 256, 8, 2), (72, 512, 2, 2), (36, 100, 1, 2)]


@pytest.mark.parametrize(("wide", "deep", "processors", "columns"), BY_WARPS)
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_warps_that_make_one_column_or_two(
    name: str, wide: int, deep: int, processors: int, columns: int
) -> None:
    given = [product(0, False, wide, deep, 1)]
    first, *_ = few_rows_products(given, Temporary(0, 0, 0), processors)
    assert first.warp_columns == columns
    limits, shapes = (0, LIMITS.warp_rows), [(False, wide, deep, 1)]
    for n in (1, 20, LIMITS.warp_rows):
        ((found, exact),) = run(device_named(name), shapes, n, limits, processors=processors)
        assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max() * np.sqrt(10)


@pytest.mark.parametrize(("cell", "rows"), [("LSTM", 640), ("GRU", 1290)])
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_many_rows_of_small_weights_in_a_persistent_kernel(name: str, cell: str, rows: int) -> None:
    """Those of the inputs of a layer, forward and back; the last tile has few rows, or two."""
    form = Form(cell, 12)
    x = np.random.default_rng(0).standard_normal((rows // 10, 10, 12)).astype(np.float32)
    batch = stack_batch(form, x)
    way = Way(device=name, dtype="float32", engine="persistent", processors=1)
    here, there = way.compile(Stack(form)), PLAIN.compile(Stack(form))
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE["float32"])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_what_is_infinite_or_large_stays_so(name: str, transposed: bool) -> None:
    def edit(w: np.ndarray, x: np.ndarray) -> None:
        w[...] = np.abs(w) + 0.1
        (w if not transposed else w.T)[:, 5] = 0.5
        x[2, 5], x[3, 5], x[4] = np.inf, np.finfo(np.float32).max, np.nan

    ((found, exact),) = run(device_named(name), [(transposed, 40, 40, 1)], 20, RANGES[1], edit)
    assert (found[2] == np.inf).all()
    np.testing.assert_allclose(found[3], exact[3], rtol=1e-6)
    assert np.isnan(found[4]).all()
    assert np.isfinite(np.delete(found, [2, 4], 0)).all()
