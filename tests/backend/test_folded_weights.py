"""Weights of which a processor owns few rows: parts of the depth lie below each other."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, require
from tests.runs import assert_close
from tests.shim_device import put_in_place
from vertexrt import nn
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.persistent import PersistentExecutable

N, PROCESSORS, WORDS = 128, 32, 7


class Chain(vrt.VertexFunction):
    """An LSTM; a column of its recurrent weights has 512 elements."""

    def __init__(self) -> None:
        super().__init__(state={"h": N, "c": N}, arity=1)
        self.table, self.cell = vrt.Parameter((WORDS, N)), nn.LSTMCell(N, N)

    def forward(self) -> None:
        before = self.gather(0)
        h, c = self.cell(vrt.embed(self.table, self.pull("word")), (before.h, before.c))
        self.scatter(h=h, c=c)
        self.push("loss", vrt.losses.squared_error(h, 0.3))


def chains(count: int) -> GraphBatch:
    rng, graphs = np.random.default_rng(count), []
    for n in rng.integers(2, 5, count):
        lists = [[], *([k] for k in range(n - 1))]
        graphs.append(InputGraph.from_children(lists, {"word": rng.integers(0, WORDS, n)}))
    return GraphBatch.from_graphs(graphs)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_gradients_of_a_large_group(
    device: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one row, of rows by plain arithmetic, and of more by matrix units."""
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=PROCESSORS, precision=precision)
    here = vrt.compile(
        Chain(),
        device="cuda",
        engine="persistent",
        processors=PROCESSORS,
        seed=4,
        precision=precision,
    )
    there = vrt.compile(Chain(), device="cpu", dtype="float64", seed=4)
    there.parameters.update(here.parameters)
    rule = vrt.SGD(0.0)
    for count in (1, 3, 13):
        batch = chains(count)
        here.zero_grad()
        there.zero_grad()
        found, wanted = (net.record(batch).backward() for net in (here, there))
        for name, value in wanted.parameters.items():
            bound = 2e-6 if precision == "float32" else 2e-3
            assert_close(found.parameters[name], value, bound, f"{name}, {count} chains")
        assert here.step(batch, rule) is not None
    (variant,) = (v for v in here.executor.model.variants.values() if v.use.loss)
    executable = variant.ready().processors
    assert isinstance(executable, PersistentExecutable)
    layouts = [h.layout(PROCESSORS) for h in executable.writer.sides[1].held]
    assert [layout.fold for layout in layouts] == [4]
