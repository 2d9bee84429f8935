"""Where pushes lie: what a vertex scatters as well is not stored twice."""

from __future__ import annotations

import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack
from tests.chain_cells import CELLS, chains
from tests.declared import Declared
from tests.paper_device import on_paper
from tests.runs import use_of
from vertexrt.engine.variant import Pushes, Variant
from vertexrt.ir.passes.store import Key

STATE, OWN = ("state", "h"), ("push", "h")


class Both(Declared, arity=1, state={"h": 4, "m": 4}):
    """A state that is pushed twice, and one that is another's half."""

    def forward(self) -> None:
        before = self.gather(0)
        h, m = vrt.tanh(before.m + self.pull("x", (4,))), 0.5 * before.h
        self.scatter(h=h, m=m)
        self.push("h", h)
        self.push("again", h)
        self.push("half", m + 1.0)


def variant_of(kind: str) -> Variant:
    net, batch = on_paper(CELLS["lstm"](), 1), chains((3,))
    model = net.executor.model
    (run,) = model.prepare(use_of(kind, model.function), batch)
    return run.variant


def test_what_is_scattered_is_read_where_states_are() -> None:
    pushes = Pushes.of(Both().trace(), {"h", "again", "half"})
    assert sorted(pushes.keys.values()) == [("push", "h"), ("push", "half"), STATE]
    assert pushes.shapes == dict.fromkeys(("h", "again", "half"), (4,))
    assert len(pushes.without_copies(Both().trace()).find("push")) == 2


@pytest.mark.parametrize(("layers", "key"), [(1, ("state", "layers.0.h")), (2, OWN)])
def test_types_that_do_not_push_what_they_scatter_have_zeros(layers: int, key: Key) -> None:
    assert Pushes.of(Stack(Form("LSTM", 4, layers)).trace(), {"h"}).keys["h"] == key


def test_only_evaluations_read_it_there() -> None:
    """Arrays of results may take the place of tensors; a step back would read these."""
    assert variant_of("inference").pushes.keys["h"] == STATE
    assert variant_of("training").pushes.keys["h"] == OWN
