"""Arithmetic on a CPU against NumPy: products by register tiles and by BLAS, functions of float32.

Also for processors other than this one: AVX2 alone, run here, and NEON, whose assembly is read.
"""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.package_source import ROOT
from vertexrt.kernels.cpu.arithmetic import FUSED, Arithmetic
from vertexrt.kernels.cpu.choose_products import ANY_ROWS
from vertexrt.kernels.cpu.products import library, library_of
from vertexrt.native.code import Code, module_of
from vertexrt.native.load import load

TOLERANCE = {"float": 2e-6, "double": 1e-14}
DTYPES = {"float": np.float32, "double": np.float64}
VECTORS = (4, 8, 16)  # float32 elements of a register, whatever this processor has
MANY = 1000  # elements of a product, of which not all sums cancel
# Rows, outputs and inner elements: with tiles and blocks that are not full, sums of several blocks,
# few outputs, and widths that are no multiple of a vector.
SIZES = (
    "0x32x32 1x16x16 3x1024x256 17x512x1024 24x768x256 45x96x208 127x256x320 129x256x256 "
    "31x250x130 40x32x4096 300x5x256 513x640x64 7x3x2 65x150x300"
)
# From how many rows on tiles make a product, and tiles of a weight transpose it.
BY_BLAS, AS_ROWS_SAY, AS_IT_LIES, TRANSPOSED = (0, 1), (64, 40), (ANY_ROWS, ANY_ROWS), (ANY_ROWS, 1)


def call(real: str, name: str, size: int = 0) -> Callable[..., None]:
    """Return a function of the library, for vectors of a size."""
    kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * (7 if name == "vrt_product" else 6)
    function = ctypes.CFUNCTYPE(None, *kinds)(library_of(real, size)[name])

    def run(*arguments: Any) -> None:
        function(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments))

    return run


def drawn(real: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(DTYPES[real])


def require_product(
    got: np.ndarray, a: np.ndarray, b: np.ndarray, real: str, before: Any = 0.0
) -> None:
    """Require what was before plus a product, up to what sums could lose if none cancelled."""
    a, b = a.astype(float), b.astype(float)
    want = before + a @ b
    terms = np.abs(before) + np.abs(a) @ np.abs(b)
    assert (np.abs(got - want) <= TOLERANCE[real] * terms).all()
    if got.size >= MANY:
        assert np.linalg.norm(got - want) <= TOLERANCE[real] * np.linalg.norm(want)


def check_products(
    real: str,
    size: int,
    extents: tuple[int, int, int],
    limits: tuple[int, int],
    outputs: tuple[int, int],
    inputs: tuple[int, int],
) -> None:
    """Check all three products, of some outputs or inputs: what is beside them is left alone."""
    rows, m, n = extents
    w, x, d = drawn(real, m, n), drawn(real, rows, n), drawn(real, rows, m)
    for name, operand, weight, (lo, hi), rows_from in (
        ("vrt_product", x, w.T, outputs, limits),
        ("vrt_product_transposed", d, w, inputs, limits[:1]),
    ):
        y = np.full((rows + 1, weight.shape[1]), 7.0, DTYPES[real])
        call(real, name, size)(w, operand, y, rows, m, n, lo, hi, *rows_from)
        require_product(y[:rows, lo:hi], operand, weight[:, lo:hi], real)
        assert (y[rows:] == 7.0).all()
        assert (np.delete(y, range(lo, hi), 1) == 7.0).all()
    (lo, hi), before = outputs, drawn(real, m, n)
    gradient = before.copy()
    call(real, "vrt_outer", size)(gradient, d, x, rows, m, n, lo, hi, limits[0])
    require_product(gradient[lo:hi], d[:, lo:hi].T, x, real, before[lo:hi])
    others = [*range(lo), *range(hi, m)]
    np.testing.assert_array_equal(gradient[others], before[others])


@pytest.mark.parametrize("limits", [BY_BLAS, AS_ROWS_SAY, AS_IT_LIES, TRANSPOSED])
@pytest.mark.parametrize("size", VECTORS)
@pytest.mark.parametrize("real", DTYPES)
def test_products(real: str, size: int, limits: tuple[int, int]) -> None:
    for extents in SIZES.split():
        rows, m, n = map(int, extents.split("x"))
        for first, end in ((0, 4), (1, 2), (1, 1)):  # quarters
            outputs, inputs = ((width * first // 4, width * end // 4) for width in (m, n))
            check_products(real, size, (rows, m, n), limits, outputs, inputs)


@pytest.mark.parametrize("size", VECTORS)
def test_a_row_has_the_same_bits_whatever_rows_are_with_it(size: int) -> None:
    """Where tiles make all of them, and none or all transpose the weight."""
    w, x, d = drawn("float", 160, 320), drawn("float", 61, 320), drawn("float", 61, 160)
    for name, limits, operand, width in (
        ("vrt_product", AS_IT_LIES, x, 160),
        ("vrt_product", TRANSPOSED, x, 160),
        ("vrt_product_transposed", (ANY_ROWS,), d, 320),
    ):
        product = call("float", name, size)
        whole, one = (np.empty((rows, width), np.float32) for rows in (61, 1))
        product(w, operand, whole, 61, 160, 320, 0, width, *limits)
        for row in (0, 1, 30, 60):
            product(w, operand[row : row + 1].copy(), one, 1, 160, 320, 0, width, *limits)
            np.testing.assert_array_equal(one[0], whole[row])


# Functions of float32 against those of float64, in units in the last place. What they are of other
# numbers, `tests/backend/test_special_values.py` says for every device.

EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
}
# Beyond these exp is 0 or infinite; below -86.5 it loses digits.
RANGES = {"exp": (-86.5, 88.7), "tanh": (-12.0, 12.0), "sigmoid": (-86.5, 60.0)}
UNITS = {"exp": 1.0, "sigmoid": 3.0, "tanh": 3.0}


def computed(name: str, x: np.ndarray) -> np.ndarray:
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


def units_off(name: str, numbers: np.ndarray) -> float:
    """Return the largest error in units in the last place of the exact result."""
    x = numbers.astype(np.float32)
    exact = EXACT[name](x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(computed(name, x) - exact) / unit).max())


@pytest.mark.parametrize("name", EXACT)
def test_results_are_within_units_in_the_last_place(name: str) -> None:
    """Of numbers spread evenly, and of all sizes."""
    low, high = RANGES[name]
    rng = np.random.default_rng(4)
    sizes = np.exp2(rng.uniform(-40.0, np.log2(min(-low, high)), 1_000_000))
    for x in (np.linspace(low, high, 2_000_001), sizes, -sizes):
        assert units_off(name, x) <= UNITS[name]


def test_exp_loses_its_digits_one_by_one() -> None:
    """Rounded twice, to 24 bits and to those that are left."""
    assert units_off("exp", np.linspace(-104.0, -86.5, 100_000)) < 1.01


# Other processors. What LLVM is told of the host, before the package asks it, and a training.
AVX2_ALONE = """
import sys
import llvmlite.binding as llvm
import numpy as np
features = llvm.get_host_cpu_features()
for name in features:
    features[name] &= not name.startswith(("avx512", "avx10", "amx", "evex"))
llvm.get_host_cpu_features = lambda: features
llvm.get_host_cpu_name = lambda: "haswell"
sys.path.insert(0, ".")
import vertexrt as vrt
from tests.pure import test_cpu_products as products
from tests.pure.test_product_choice import batch
from vertexrt.kernels.cpu.products import register_size
from vertexrt.models import TreeLSTM
assert register_size() == 8, register_size()
for real in products.DTYPES:
    products.test_products(real, 0, products.TRANSPOSED)
losses = []
for device, dtype in (("cpu", "float32"), ("reference", "float64")):
    function = TreeLSTM(vocab=20, embed=64, hidden=64, classes=5)
    net = vrt.compile(function, device=device, dtype=dtype, threads=1, seed=3)
    optimizer = vrt.Adam(0.01)
    losses.append([net.step(batch(), optimizer) for _ in range(4)])
np.testing.assert_allclose(*losses, rtol=1e-5)
assert losses[0][-1] < losses[0][0]
print("right")
"""


def has_avx2() -> bool:
    features = llvm.get_host_cpu_features()
    return bool(features.get("avx2") and features.get("fma"))


@pytest.mark.skipif(not has_avx2(), reason="this processor has no AVX2")
def test_with_avx2_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", AVX2_ALONE],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "right\n", done.stderr


def assembly(text: str, triple: str, cpu: str, features: str) -> str:
    """Compile a module for a processor; it cannot run here."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = triple, str(target.target_data)
    module.verify()
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(module, passes)
    found: str = target.emit_assembly(module)
    return found


@pytest.mark.parametrize(("real", "lanes"), [("float", "4s"), ("double", "2d")])
def test_tiles_are_fused_multiply_adds_of_vectors_with_neon(real: str, lanes: str) -> None:
    """Each tile has them; none calls a function for one."""
    text = assembly(library(real, 4), "aarch64-unknown-linux-gnu", "cortex-a72", "+neon")
    functions = dict(re.findall(r"^(vrt_\w+):(.*?)^\.Lfunc_end", text, re.DOTALL | re.MULTILINE))
    tiles = [name for name in functions if re.fullmatch(r"vrt_(dot|across|down)_\d_\d", name)]
    assert len(tiles) == 8 + 36
    for name in tiles:
        rows, outputs = map(int, name.split("_")[2:])
        fused = re.findall(rf"\bfmla\s+v\d+\.{lanes}", functions[name])
        assert len(fused) >= rows * max(outputs, 1), name
        assert not re.search(r"\bbl\s+fmaf?\b", functions[name]), name


def test_tiles_are_in_registers_of_256_bits_with_avx2() -> None:
    text = assembly(library("float", 8), "x86_64-unknown-linux-gnu", "haswell", "")
    assert len(re.findall(r"vfmadd\w+ps\s.*%ymm", text)) > 100
    assert "zmm" not in text
