"""Rows that processors of a cluster hand each other: small rings, on the shim and on a GPU."""

from __future__ import annotations

import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, require
from tests.functions import CLASSES, FUNCTIONS, WORDS
from tests.launches import launch_of
from tests.runs import PLAIN, TOLERANCE, Way, assert_same, evaluate, train
from tests.wide import wide
from vertexrt.kernels.cuda import ring
from vertexrt.kernels.cuda.instruction import (
    FOR_ALL,
    FOR_RING,
    HAS_OPERAND,
    IS_SENT,
    USES,
)
from vertexrt.script.isa import WAIT

HIDDEN = 5
CASES = [  # with a ring of so many rows
    ("tree-lstm", 2, "float64", 8),
    ("gru", 2, "float32", 8),
    ("attention", 3, "float64", 192),
]


class Handed(vrt.VertexFunction):
    """Two states that are gathered in full, made in one of several ways."""

    def __init__(self, way: str) -> None:
        self.way, self.other = way, 1 if way == "one element" else HIDDEN
        super().__init__(arity=2, state={"h": HIDDEN, "p": self.other})
        self.embedding = vrt.Parameter((WORDS, HIDDEN))
        self.u, self.q = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((self.other, HIDDEN))
        self.r = vrt.Parameter((HIDDEN, self.other))
        self.v = vrt.Parameter((CLASSES, HIDDEN))

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        z = self.u @ left.h
        x = vrt.embed(self.embedding, self.pull("word"))
        if self.way == "an operand":  # that a product makes, beside a state of the same segment
            p = vrt.tanh(z + right.p)
            h = vrt.tanh(x + self.q @ z + self.r @ left.p)
        else:
            h = vrt.tanh(x + z + self.r @ right.p)
            p = left.h if self.way == "a copy" else self.q @ left.h
        self.scatter(h=h, p=p)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


@pytest.mark.parametrize("way", ["a product", "one element", "an operand", "a copy"])
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_whatever_makes_a_state_it_is_handed_on(device: str, way: str) -> None:
    require(device)
    batch = wide("tree-lstm", 2)
    persistent = Way(device=device, dtype="float64", engine="persistent", processors=2)
    here, there = (each.compile(Handed(way)) for each in (persistent, PLAIN))
    assert_same(train(here, batch), train(there, batch), TOLERANCE["float64"])


@pytest.mark.parametrize(("name", "processors", "dtype", "rows"), CASES)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_rows_are_handed_on(
    device: str,
    name: str,
    processors: int,
    dtype: str,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(device)
    monkeypatch.setattr(ring, "MOST_ROWS", rows)
    batch = wide(name, 2)
    way = Way(device=device, dtype=dtype, engine="persistent", processors=processors)
    here, there = way.compile(FUNCTIONS[name][0]()), PLAIN.compile(FUNCTIONS[name][0]())
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE[dtype])
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])

    written = launch_of(here, batch).written
    paths = written.script[written.common :]
    assert len(written.child_slot), "the groups have no ring"
    assert ((written.child_slot >= 0) & (written.child_slot < rows)).any()
    assert (paths[:, WAIT] == FOR_RING).any()
    assert (paths[:, USES] & IS_SENT).any()
    if rows == 8:
        assert (paths[:, USES] & HAS_OPERAND).any()
        assert (paths[:, WAIT] == FOR_ALL).any(), "a ring of eight rows was enough"
