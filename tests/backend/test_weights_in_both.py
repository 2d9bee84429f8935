"""Weights that lie in registers and, for the rest, in shared memory: neither has room for them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, ragged_batch
from tests.bfloat16 import rounded
from tests.devices import on_gpus
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, train
from tests.shim_device import put_in_place
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cuda.persistent import IN_BOTH, PersistentExecutable
from vertexrt.kernels.cuda.weights import THREADS

CASES = [  # cell, hidden, dtype, sequences: rows by lanes; by matrix units; more than these take
    ("LSTM", 112, "float32", 2),
    ("LSTM", 112, "float32", 13),
    ("GRU", 128, "float32", 6),
    ("GRU", 76, "float64", 3),
]


def batch_of(form: Form, sequences: int) -> GraphBatch:
    """Make sequences of two to four steps."""
    lengths = 2 + np.arange(sequences) % 3
    x = np.random.default_rng(sequences).standard_normal((int(lengths.sum()), form.hidden))
    return ragged_batch(form, lengths, x.astype(np.float32))


def divided(net: vrt.Network) -> list[int]:
    """Return how many quartets of a weight each side of the path has in registers."""
    executables = [v.ready().processors for v in net.executor.model.variants.values()]
    mine = [x for x in executables if isinstance(x, PersistentExecutable)]
    return [side.divided for x in mine for side in x.writer.sides]


@pytest.mark.parametrize(("cell", "hidden", "dtype", "sequences"), CASES)
@on_gpus
def test_a_processor_alone_holds_them(
    device: str, cell: str, hidden: int, dtype: str, sequences: int
) -> None:
    form = Form(cell, hidden)
    way = Way(device, dtype, engine="persistent", processors=1)
    here, there = (each.compile(Stack(form)) for each in (way, PLAIN))
    batch = batch_of(form, sequences)
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])
    assert len(divided(here)) >= 2, "sides of the path"
    assert all(divided(here))
    said = re.findall(
        r"weight_hh: .* of \d+, ([\d,]+) in registers, [\d,]+ in shared memory",
        here.explain_batch(batch),
    )
    # 144 registers of a thread; on a GPU fewer, where its compiler finds that code needs them.
    registers = IN_BOTH if device == "cuda" else IN_BOTH[:1]
    assert said in [[f"{n * THREADS * 4:,}"] * 2 for n in registers]


@on_gpus
def test_pairs_of_bfloat16_do_too(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "shim":
        put_in_place(monkeypatch, precision="bf16")
    form = Form("GRU", 144)
    options = {"device": "cuda", "engine": "persistent", "processors": 1, "precision": "bf16"}
    here, there = vrt.compile(Stack(form), **options), PLAIN.compile(Stack(form))
    batch = batch_of(form, 2)
    held = {k: v for k, v in here.parameters.items() if k.endswith("weight_hh")}
    there.parameters.update({**here.parameters, **{k: rounded(v) for k, v in held.items()}})
    got, want = (each(batch)["h"] for each in (here, there))
    assert_close(got, want, 1e-2, "the inputs' product is rounded, too")
    assert any(divided(here))
