"""Processors other than this one: AVX2 alone, run here; NEON, whose assembly is looked at."""

import os
import re
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from tests.package_source import ROOT
from vertexrt.kernels.cpu.products import library

# What LLVM is told of the host, before the package asks it.
AVX2 = """
import sys
import llvmlite.binding as llvm
import numpy as np
features = llvm.get_host_cpu_features()
for name in features:
    features[name] &= not name.startswith(("avx512", "avx10", "amx", "evex"))
llvm.get_host_cpu_features = lambda: features
llvm.get_host_cpu_name = lambda: "haswell"
sys.path.insert(0, ".")
"""
PRODUCTS = """
from tests.pure import test_cpu_products as products
from vertexrt.kernels.cpu.products import register_size
assert register_size() == 8, register_size()
for real in products.DTYPES:
    for rows, m, n in products.SIZES:
        products.test_products_of_a_weight(rows, m, n, real, 0, 1 << 40, 1)
        products.test_sums_of_outer_products(rows, m, n, real, 0, 1 << 40)
print("right")
"""
TRAINING = """
import vertexrt as vrt
from tests.pure.test_product_choice import batch
from vertexrt.kernels.cpu.products import register_size
from vertexrt.models import TreeLSTM
assert register_size() == 8, register_size()
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
@pytest.mark.parametrize("work", [PRODUCTS, TRAINING], ids=["products", "training"])
def test_with_avx2_alone(work: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", AVX2 + work],
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
        assert len(re.findall(rf"\bfmla\s+v\d+\.{lanes}", functions[name])) >= rows * max(
            outputs, 1
        ), name
        assert not re.search(r"\bbl\s+fmaf?\b", functions[name]), name


def test_tiles_are_in_registers_of_256_bits_with_avx2() -> None:
    text = assembly(library("float", 8), "x86_64-unknown-linux-gnu", "haswell", "")
    assert len(re.findall(r"vfmadd\w+ps\s.*%ymm", text)) > 100
    assert "zmm" not in text
