"""An LSTM over chains, as the oracle evaluates it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import by_oracle
from tests.declared import Declared
from tests.devices import gpu, shim
from tests.runs import Way

STEPS, WIDTH, HIDDEN = 9, 5, 4
WAYS = [
    pytest.param("reference", "batched", 1, id="reference"),
    pytest.param("reference", "persistent", 2, id="reference-persistent"),
    pytest.param("cpu", "batched", 1, id="cpu"),
    pytest.param("cpu", "batched", 3, id="cpu-shares"),
    pytest.param("cpu", "persistent", 2, id="cpu-persistent"),
    *(pytest.param("shim", e, 1, marks=shim, id=f"shim-{e}") for e in ("batched", "persistent")),
    *(pytest.param("cuda", e, 1, marks=gpu, id=f"cuda-{e}") for e in ("batched", "persistent")),
]


class Lstm(
    Declared,
    arity=1,
    state={"c": HIDDEN, "h": HIDDEN},
    table=(6, WIDTH),
    w=(4 * HIDDEN, WIDTH),
    u=(4 * HIDDEN, HIDDEN),
):
    """An LSTM along a chain, over vectors and words."""

    def forward(self) -> None:
        x = self.pull("x", shape=(WIDTH,)) + vrt.embed(self.table, self.pull("word"))
        before = self.gather(0)
        i, f, o, g = vrt.split(self.w @ x + self.u @ before.h, 4)
        c = vrt.sigmoid(i) * vrt.tanh(g) + vrt.sigmoid(f) * before.c
        h = self.push("h", vrt.sigmoid(o) * vrt.tanh(c))
        self.scatter(c=c, h=h)
        self.push("sum", vrt.sum(h))


def exact(
    values: Any, lengths: list[int], x: np.ndarray[Any, Any], words: list[int]
) -> np.ndarray[Any, Any]:
    """Return the states over sequences in a row, by the oracle; a word of -1 adds nothing."""
    return by_oracle(Lstm(), chains(lengths, x, words), dict(values))[0].outputs["h"]


def chains(lengths: list[int], x: np.ndarray[Any, Any], words: list[int]) -> vrt.GraphBatch:
    ends = np.cumsum(lengths)
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.chain(n, {"x": x[end - n : end], "word": np.array(words[end - n : end])})
            for n, end in zip(lengths, ends, strict=True)
        ]
    )


def drawn(seed: int, count: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, WIDTH)).astype(np.float32), rng.integers(0, 6, count).tolist()


def compiled(device: str, engine: str, threads: int = 1, function: Any = Lstm) -> vrt.Network:
    processors = (threads if device in ("cpu", "reference") else 4) if engine != "batched" else None
    way = Way(device, "float32", engine=engine, processors=processors, threads=threads)
    return way.compile(function())
