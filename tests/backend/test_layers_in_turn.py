"""Layers of a network's functions run one after the other, whatever engine and device.

Gradients that no function leaves are not missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.agreement import Feature, agree, holds, rows
from tests.devices import on_gpus
from tests.launches import launch_of
from tests.read_by_others import (
    Body,
    Forks,
    every,
    forks,
    marks,
    marks_of_every,
    one,
)
from tests.runs import PLAIN, Way
from tests.strategies import one_typed
from tests.typed_models import CharTagger, sentences
from vertexrt.data.edges import chain, stacked, typed_batch
from vertexrt.engine.variant import Passes

HIDDEN = 16
DEEP, ROOM = 30, 4096  # so many layers have more bytes of arguments than shared memory has room for
CASES = [  # cell, layers, residual, processors of a group, dtype, steps of the sequences
    ("LSTM", 4, False, 4, "float32", (9, 9)),
    ("RNN", DEEP, True, 2, "float64", (4, 4)),
    ("GRU", 3, False, 2, "float64", (7, 5, 1)),
    ("LSTM", 3, False, 1, "float32", (9,)),
]
ON_GPU = 3  # of them: each compiles kernels of several layers


def batch_of(layers: int, lengths: tuple[int, ...]) -> vrt.GraphBatch:
    sizes = np.array(lengths)
    x = np.random.default_rng(7).standard_normal((sizes.sum(), HIDDEN)).astype(np.float32)
    return stacked(sizes, chain(sizes), layers, ("", ""), {"layers.0": {"x": x}})


@pytest.mark.parametrize(
    ("device", "cell", "layers", "residual", "processors", "dtype", "lengths"),
    [
        *(("shim", *case) for case in CASES),
        *(("cuda", *case) for case in CASES[:ON_GPU]),
    ],
)
def test_stacks_agree_with_the_reference(
    device: str,
    cell: str,
    layers: int,
    residual: bool,
    processors: int,
    dtype: str,
    lengths: tuple[int, ...],
) -> None:
    form, batch = Form(cell, HIDDEN, layers, residual), batch_of(layers, lengths)
    way = Way(device=device, dtype=dtype, engine="persistent", processors=processors)
    launch = launch_of(agree(lambda: Stack(form), batch, way, PLAIN), batch)
    writer = launch.executable.writer
    assert [phase.layer for phase in writer.phases] == [*range(layers), *reversed(range(layers))]
    assert (8 * len(launch.executable.numbers) > ROOM) == (layers == DEEP)


def test_layers_that_are_alike_share_their_code() -> None:
    source = {}
    for layers in (3, 6):
        way = Way(device="shim", engine="persistent", processors=2)
        net = way.compile(Stack(Form("LSTM", HIDDEN, layers)))
        launch = launch_of(net, batch_of(layers, (4,)))
        source[layers] = launch.executable.writer.source
    functions = {
        layers: text.count("__forceinline__ bool side_") for layers, text in source.items()
    }
    # The lowest and those above it forward; the top one, those between and the lowest back.
    assert functions == {3: 5, 6: 5}
    steps = {layers: text.count("VRT_STEP(") for layers, text in source.items()}
    assert steps[6] == steps[3] > 0


class Low(vrt.VertexFunction):
    """What has no path: it reads nothing."""

    def __init__(self, w: vrt.Parameter) -> None:
        super().__init__(state={"h": HIDDEN})
        self.w = w

    def forward(self) -> None:
        self.scatter(h=vrt.tanh(self.w @ self.pull("x", (HIDDEN,))))


class Up(vrt.VertexFunction):
    """A chain above it, with the same weight."""

    def __init__(self, low: Low) -> None:
        super().__init__(state={"h": HIDDEN}, inputs={"below": low})
        self.w = low.w

    def forward(self) -> None:
        h = vrt.tanh(self.w @ self.gather("before").h + self.gather("below").h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class OneWeight(vrt.Model):
    """Two layers of one weight, of which one has a path."""

    def __init__(self) -> None:
        self.low = Low(vrt.Parameter((HIDDEN, HIDDEN)))
        self.up = Up(self.low)


def batch_of_two_layers(
    low: str = "low", up: str = "up", read: slice = slice(None)
) -> vrt.GraphBatch:
    """Chains, which read some of as many vertices below them."""
    sizes = np.array([5, 3, 4])
    x = np.random.default_rng(3).standard_normal((sizes.sum(), HIDDEN)).astype(np.float32)
    own = np.arange(sizes.sum())[read]
    edges = {(low, "below", up): np.stack([own, own], 1), (up, "before", up): chain(sizes)}
    return typed_batch(dict.fromkeys((low, up), sizes), edges, {low: {"x": x}})


@pytest.mark.parametrize("processors", [1, 2])
@on_gpus
def test_two_layers_add_to_one_gradient(device: str, processors: int) -> None:
    way = Way(device, engine="persistent", processors=processors)
    agree(OneWeight, batch_of_two_layers(), way)


class Reader(vrt.VertexFunction):
    """A vertex whose state is a constant where it has neither a child nor a word."""

    def __init__(self, words: bool) -> None:
        super().__init__(state={"h": 3})
        self.w, self.words = vrt.Parameter((3, 3)), words

    def forward(self) -> None:
        below = self.gather("of").h
        x = vrt.embed(self.w, self.pull("word")) if self.words else below
        h = vrt.tanh(self.w @ (x * below) + x)
        self.scatter(h=h)
        if self.words:
            self.push("loss", vrt.sum(h))


class TwoReaders(vrt.Model):
    """A layer over another, of vertices that may be each other's children."""

    def __init__(self) -> None:
        self.high, self.low = Reader(True), Reader(False)
        self.high.inputs["of"] = (self.high, self.low)
        self.low.inputs["of"] = self.low


def readers() -> vrt.GraphBatch:
    keys = ("high", "of", "high"), ("low", "of", "high"), ("low", "of", "low")
    pulls = {"high": {"word": np.array([-1, 1])}}
    edges = dict(zip(keys, ([], [(0, 1)], [(0, 1)]), strict=True))
    return one_typed({"high": 2, "low": 2}, edges, pulls)


LAYERS = [
    Way(),
    Way(engine="persistent", threads=2),
    Way(policy="agenda"),
    Way(passes=Passes(layers=False)),
    Way(passes=Passes(eager=False, lazy=False)),
    Way(device="shim", engine="persistent", processors=2),
    Way(device="shim", passes=Passes(streams=3)),
]
GRADIENTS = [
    Way(),
    Way(policy="depth", passes=Passes(lazy=False, eager=False, fuse=False, specialise=False)),
    Way(device="cpu", engine="persistent", threads=2, processors=2),
]
BATCHED, ALONE, TWO = (
    [
        Way(device, dtype="float32", engine=engine, processors=processors)
        for device in ("shim", "cuda")
    ]
    for engine, processors in (("batched", None), ("persistent", 1), ("persistent", 2))
)


def read(body: Body, chain: bool, more: Sequence[Way] = ()) -> Feature:
    """Vertices with parents of several layers: gradients that no function leaves are not missed."""
    whole = body in (every, marks_of_every)
    return Feature(lambda: Forks(body, chain), lambda: forks(whole), [*GRADIENTS, *more])


def stack(form: Form) -> Feature:
    """A stack without zeros is as all layers together."""
    x = np.random.default_rng(3).standard_normal((3, 6, form.hidden)).astype("f4")
    together = Way(passes=Passes(layers=False))
    return Feature(lambda: Stack(form), lambda: stack_batch(form, x), GRADIENTS, together)


FEATURES = {
    "two types of a layer": Feature(CharTagger, sentences, LAYERS),
    # Constants of both layers were one program, which ran before what the other waits for.
    "equal programs of two layers": Feature(
        TwoReaders,
        readers,
        [Way("cpu", engine="persistent", processors=n, threads=n) for n in (1, 2)],
    ),
    "one": read(one, True, [*BATCHED, *TWO]),
    "every": read(every, True),
    "marks": read(marks, True, ALONE),
    "marks of every, no chain": read(marks_of_every, False, TWO),
    "residual stack": stack(Form("LSTM", 5, 2, residual=True)),
}


@pytest.mark.parametrize(("name", "way"), rows(FEATURES))
def test_every_way_agrees(name: str, way: Way) -> None:
    holds(FEATURES[name], way)
