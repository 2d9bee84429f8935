"""Products of many rows outside the path of a persistent kernel: any sizes, deep ones in splits."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import on_gpus
from tests.runs import assert_close
from tests.shim_device import put_in_place
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.lower.launches import TiledProduct

# Vectors of 4, of 2, none; several rows a vertex.
SIZES = [(24, 2048, 20, "x"), (22, 2050, 18, "x"), (21, 2049, 19, "x"), (68, 20, 20, "xabc")]


class Deep(vrt.VertexFunction):
    """Deep products, forward and back."""

    def __init__(self, given: int, wide: int, size: int, names: str) -> None:
        super().__init__(state={"h": size}, arity=1)
        self.given, self.names = given, names
        self.first = vrt.Parameter((wide, given))
        self.second = vrt.Parameter((size, wide))
        self.third = vrt.Parameter((size, given))

    def forward(self) -> None:
        h = self.gather(0).h
        for name in self.names:
            h = self.second @ vrt.tanh(self.first @ self.pull(name, self.given)) + h
        h = self.third @ self.pull("x", self.given) + h
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.2))


@on_gpus
@pytest.mark.parametrize(
    ("dtype", "sizes"), [*(("float32", sizes) for sizes in SIZES), ("float64", SIZES[1])]
)
def test_deep_and_wide_products(
    device: str, dtype: str, sizes: tuple[int, int, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "shim":
        put_in_place(monkeypatch, processors=3)
    here = vrt.compile(
        Deep(*sizes), device="cuda", engine="persistent", processors=1, dtype=dtype, seed=4
    )
    there = vrt.compile(Deep(*sizes), device="cpu", dtype="float64", seed=4)
    there.parameters.update(here.parameters)
    rows = 130 if sizes[0] == 21 else 100
    draw = np.random.default_rng(3).standard_normal
    x = {name: draw((rows, sizes[0])) / 4 for name in sizes[-1]}
    lists = [[] if k % 3 == 0 else [k - 1] for k in range(rows)]
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, x)])
    runs = [net.record(batch) for net in (here, there)]
    bound = 2e-6 if dtype == "float32" else 1e-12
    assert_close(runs[0].outputs["h"], runs[1].outputs["h"], bound, "h")
    found, wanted = (run.backward() for run in runs)
    for name, value in wanted.parameters.items():
        assert_close(found.parameters[name], value, bound, name)
    (variant,) = (v for v in here.executor.model.variants.values() if v.use.backward)
    executable = variant.ready().processors
    assert executable
    large = [s for x in executable.writer.launches for s in x.plan.steps]
    assert {s.splits for s in large if isinstance(s, TiledProduct)} >= {1, sizes[1] // 2000 + 1}
