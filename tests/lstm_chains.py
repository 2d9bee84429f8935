"""An LSTM over chains, as the oracle evaluates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.agreement import PERSISTENT, by_oracle
from tests.declared import Declared
from tests.runs import Way

STEPS, WIDTH, HIDDEN = 9, 5, 4
ON_CPU = Way("cpu", "float32")
ON_SHIM = Way("shim", "float32", engine="persistent", processors=4)
ON_GPU = replace(ON_SHIM, device="cuda")
PAIR = replace(PERSISTENT, dtype="float32")
WAYS = [Way(device, "float32") for device in ("reference", "shim", "cuda")]
WAYS += [ON_CPU, replace(ON_CPU, threads=3), replace(PAIR, device="reference"), PAIR]
WAYS += [ON_SHIM, ON_GPU]


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
