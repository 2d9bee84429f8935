"""States of any size in groups: rows that are no whole vectors, pieces that no group divides.

Of weights of which a processor owns few rows, parts of the depth lie below each other.
"""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import on_gpus
from tests.runs import assert_close
from tests.shim_device import put_in_place
from vertexrt import nn
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.persistent import PersistentExecutable

WORDS = 7
COUNTS = {4: (1, 3, 19, 70), 32: (1, 3, 13)}  # graphs, by processors: more rows than a tile has
BOUND = {"float32": 2e-6, "tf32": 2e-3, "float64": 1e-12}
FOLDED = 4  # parts of a weight of 512 elements a column, where 32 processors have 16 rows each


class Layers(vrt.VertexFunction):
    """LSTMs one above the other, whose states are `size` numbers each."""

    def __init__(self, size: int, layers: int) -> None:
        super().__init__(state={f"{x}{k}": size for k in range(layers) for x in "hc"}, arity=1)
        self.table = vrt.Parameter((WORDS, size))
        self.cells = [nn.LSTMCell(size, size) for _ in range(layers)]

    def forward(self) -> None:
        before, state = self.gather(0), {}
        x = vrt.embed(self.table, self.pull("word"))
        for k, cell in enumerate(self.cells):
            x, c = cell(x, (getattr(before, f"h{k}"), getattr(before, f"c{k}")))
            state |= {f"h{k}": x, f"c{k}": c}
        self.scatter(**state)
        self.push("loss", vrt.losses.squared_error(x, 0.3))


def chains(count: int) -> GraphBatch:
    """Return chains of one to three words."""
    rng = np.random.default_rng(count)
    return GraphBatch.from_graphs(
        [
            InputGraph.chain(int(n), {"word": rng.integers(0, WORDS, n)})
            for n in rng.integers(1, 4, count)
        ]
    )


@on_gpus
@pytest.mark.parametrize(
    ("precision", "size", "layers", "processors"),
    [
        ("float32", 50, 2, 4),
        ("float32", 51, 2, 4),
        ("float32", 38, 2, 16),
        ("float64", 50, 2, 4),
        ("float32", 130, 2, 20),
        ("tf32", 130, 2, 20),
        ("float32", 128, 1, 32),
        ("tf32", 128, 1, 32),
    ],
)
def test_gradients(
    device: str,
    precision: str,
    size: int,
    layers: int,
    processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one row, of rows by plain arithmetic, and of more by matrix units.

    Groups of 20 take more than eight rows at a time.
    """
    dtype = "float64" if precision == "float64" else "float32"
    chosen = "float32" if precision == "float64" else precision
    if device == "shim":
        put_in_place(monkeypatch, processors=processors, precision=chosen)
    given = {"engine": "persistent", "processors": processors, "precision": chosen, "seed": 4}
    here = vrt.compile(Layers(size, layers), device="cuda", dtype=dtype, **given)  # type: ignore[arg-type]
    there = vrt.compile(Layers(size, layers), device="cpu", dtype="float64", seed=4)
    there.parameters.update(here.parameters)
    for count in COUNTS.get(processors, (1, 3, 19)):
        batch = chains(count)
        found, wanted = (net.record(batch).backward() for net in (here, there))
        for name, value in wanted.parameters.items():
            assert_close(found.parameters[name], value, BOUND[precision], f"{name}, {count} chains")
    if layers == 1:
        here.step(batch, vrt.SGD(0.0))
        (variant,) = (v for v in here.executor.model.variants.values() if v.use.loss)
        executable = variant.ready().processors
        assert isinstance(executable, PersistentExecutable)
        held = executable.writer.sides[1].held
        assert [each.layout(processors).fold for each in held] == [FOLDED]
