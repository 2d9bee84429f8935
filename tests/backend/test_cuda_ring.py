"""Rows that processors of a cluster hand each other: small rings, on the shim and on a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import vertexrt as vrt
from tests.devices import require
from tests.functions import CLASSES, FUNCTIONS, WORDS
from tests.runs import PLAIN, TOLERANCE, Way, assert_same, evaluate, train
from tests.shim.build import available
from tests.wide import wide
from vertexrt.kernels.cuda import device_executor, ring
from vertexrt.kernels.cuda.instruction import (
    FAR,
    FOR_ALL,
    FOR_RING,
    HAS_OPERAND,
    IS_SENT,
    USES,
)
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.script.isa import WAIT

shim = pytest.mark.skipif(not available(), reason="no C++ compiler to run CUDA kernels on the CPU")
DEVICES = [pytest.param("shim", marks=shim), pytest.param("cuda", marks=pytest.mark.gpu)]
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
        self.push("loss", vrt.cross_entropy(logits, self.pull("label")))


@pytest.mark.parametrize("way", ["a product", "one element", "an operand", "a copy"])
@pytest.mark.parametrize("device", DEVICES)
def test_whatever_makes_a_state_it_is_handed_on(device: str, way: str) -> None:
    require(device)
    batch = wide("tree-lstm", 2)
    persistent = Way(device=device, dtype="float64", engine="persistent", processors=2)
    here, there = (each.compile(Handed(way)) for each in (persistent, PLAIN))
    assert_same(train(here, batch), train(there, batch), TOLERANCE["float64"])


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[WrittenScripts]:
    """Collect what is launched."""
    found: list[WrittenScripts] = []
    write = device_executor.write_launch

    def noted(*given: Any) -> Any:
        everything = write(*given)
        found.append(everything[-1])
        return everything

    monkeypatch.setattr(device_executor, "write_launch", noted)
    return found


@pytest.mark.parametrize(("name", "processors", "dtype", "rows"), CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_handed_on(
    device: str,
    name: str,
    processors: int,
    dtype: str,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    scripts: list[WrittenScripts],
) -> None:
    require(device)
    monkeypatch.setattr(ring, "MOST_ROWS", rows)
    batch = wide(name, 2)
    way = Way(device=device, dtype=dtype, engine="persistent", processors=processors)
    here, there = way.compile(FUNCTIONS[name][0]()), PLAIN.compile(FUNCTIONS[name][0]())
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE[dtype])
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])

    seen: Counter[str] = Counter()
    for written in scripts:
        paths = written.script[written.common :]
        assert len(written.child_slot), "the groups have no ring"
        seen["all"] += int((paths[:, WAIT] == FOR_ALL).sum())
        seen["ring"] += int((paths[:, WAIT] == FOR_RING).sum())
        seen["far"] += int(paths[:, FAR].sum())
        seen["near"] += int(((written.child_slot >= 0) & (written.child_slot < rows)).sum())
        seen["sent"] += int((paths[:, USES] & IS_SENT != 0).sum())
        seen["operands"] += int((paths[:, USES] & HAS_OPERAND != 0).sum())
    assert seen["ring"] > 0 < seen["sent"]
    assert seen["near"] > 0
    if rows == 8:
        assert seen["operands"] > 0
        assert seen["all"] > 0, "a ring of eight rows was enough"
