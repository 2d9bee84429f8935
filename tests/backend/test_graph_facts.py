"""What processes know of graphs that they do not compute: found once, wherever graphs lie."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import relation_models, typed_models
from tests.backend.test_parallel_step import SETTINGS, dataset
from tests.declared import Declared
from tests.processes import ThreadCommunicator, together
from tests.pure.test_graph import copied
from tests.runs import assert_bits
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import Use
from vertexrt.errors import PullError
from vertexrt.models import get
from vertexrt.parallel import ProcessGroup

USE = Use(frozenset({"loss"}), loss=True)
MODELS: dict[str, Callable[[], tuple[Any, vrt.GraphBatch]]] = {
    "types": lambda: (typed_models.CharTagger(), typed_models.sentences()),
    "circuits": lambda: (relation_models.Circuit(), relation_models.circuits()),
    "trees": lambda: _catalogue("tree-lstm"),
    "language": lambda: _catalogue("lstm-lm"),
}


def _catalogue(model: str) -> tuple[Any, vrt.GraphBatch]:
    data = dataset(model)
    return get(model).build(data, **dict(get(model).options) | SETTINGS[model]), data.splits[
        "train"
    ]


def model_of(function: Any) -> CompiledModel:
    model: CompiledModel = vrt.compile(function, device="reference", seed=0).executor.model
    return model


@pytest.mark.parametrize("name", MODELS)
def test_facts_are_those_of_graphs_wherever_they_lie(name: str) -> None:
    function, pool = MODELS[name]()
    model, rng = model_of(function), np.random.default_rng(0)
    for count in (1, 1, 2, 7):
        chosen = rng.integers(0, pool.num_graphs, count)
        facts, graphs = model.facts_of(USE, pool.take(chosen))
        assert graphs.tolist() == chosen.tolist()
        assert len(facts.costs) == pool.num_graphs
        copied = vrt.GraphBatch.from_graphs(list(pool.take(chosen)))
        own, all_of_it = model.facts_of(USE, copied)
        assert all_of_it.tolist() == list(range(count))
        for field in ("costs", "with_loss"):
            np.testing.assert_array_equal(
                getattr(facts, field)[chosen], getattr(own, field), err_msg=field
            )
        for one, other in zip(facts.digests[1:], own.digests[1:], strict=True):
            np.testing.assert_array_equal(one[chosen], other)
        (run,) = model.prepare(USE, copied)
        assert own.with_loss.sum() == run.layout.with_loss
        rows, expected = model.looked_up(facts, graphs), model.touched(run)
        assert rows.keys() == expected.keys()
        assert_bits(expected, rows)


def test_a_process_copies_its_own_graphs_alone() -> None:
    function, pool = _catalogue("tree-lstm")
    whole = pool.take(np.arange(12))

    def work(communicator: ThreadCommunicator) -> None:
        net = vrt.compile(function, device="cpu", seed=0, threads=1)
        net.step(whole, vrt.SGD(0.1), group=ProcessGroup(communicator, 4))

    assert together(2, work) == [None, None]
    assert not copied(whole)
    repr(whole)
    assert copied(whole)


def test_facts_convert_no_rows_of_a_data_set() -> None:
    """They may be as large as memory, and of another dtype than the network."""
    graph = vrt.InputGraph.from_children([[], [0]], {"x": np.ones((2, 4096))})
    pool = vrt.GraphBatch.from_graphs([graph] * 400)  # 26 MB
    net = vrt.compile(Rows(4096), device="reference", seed=0)
    group = ProcessGroup(shares=2)
    tracemalloc.start()
    net.step(pool.take([3, 5]), vrt.SGD(0.1), group=group)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


class Log(Declared, state={"h": 2}, table=(4, 2)):
    """Looks a word up, of four."""

    def forward(self) -> None:
        h = vrt.embed(self.table, self.pull("word"))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def words(*given: int) -> vrt.GraphBatch:
    graphs = [vrt.InputGraph.from_children([[]], {"word": [word]}) for word in given]
    return vrt.GraphBatch.from_graphs(graphs)


def test_a_graph_that_nobody_draws_may_be_wrong() -> None:
    pool = words(0, 1, 7, 2, 3)

    def work(communicator: ThreadCommunicator) -> list[str]:
        net, group = vrt.compile(Log(), device="reference", seed=0), ProcessGroup(communicator, 2)
        texts = []
        for chosen in ([0, 1, 3], [4, 0, 2], [3, 4]):
            try:
                net.step(pool.take(chosen), vrt.SGD(0.1), group=group)
                texts.append("")
            except PullError as error:
                texts.append(str(error))
        return texts

    for found in together(2, work):
        assert not isinstance(found, Exception), found
        first, second, third = found
        assert first == third == ""
        assert "'word' of vertex 0 of graph 2 is 7" in second


class Rows(vrt.VertexFunction):
    """A chain that pulls real numbers, of which a graph drops the same."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(arity=1, state={"h": 4})
        self.w, self.size = vrt.Parameter((4, size)), size

    def forward(self) -> None:
        x = vrt.random.dropout(self.pull("x", shape=(self.size,)), 0.3, per="graph")
        h = vrt.tanh(self.w @ x + self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def rows() -> vrt.GraphBatch:
    rng = np.random.default_rng(2)
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.from_children([[], [0]], {"x": rng.standard_normal((2, 3))})
            for _ in range(20)
        ]
    )


def many_translations() -> vrt.GraphBatch:
    return vrt.GraphBatch.concat([typed_models.translations() for _ in range(7)])


@pytest.mark.parametrize("split", ["of its own", "taken"])
@pytest.mark.parametrize(
    ("function", "data"), [(Rows, rows), (typed_models.Translator, many_translations)]
)
def test_a_process_may_look_at_what_it_trains_on(
    function: Callable[[], Any], data: Callable[[], vrt.GraphBatch], split: str
) -> None:
    """What others know of graphs, and the order of kinds, is as if it had not: the same bits."""

    def work(communicator: ThreadCommunicator | None) -> dict[str, np.ndarray]:
        group = ProcessGroup(communicator, 4)
        net, whole = vrt.compile(function(), device="cpu", seed=3, threads=1), data()
        rng = np.random.default_rng(0)
        if split == "taken":
            whole = whole[rng.permutation(whole.num_graphs)[:16]]
        for _ in range(4):
            batch = whole[rng.integers(0, whole.num_graphs, 8)]
            if group.rank == 0:
                repr(whole)
                repr(batch)
            net.step(batch, vrt.SGD(0.05), group=group)
        return dict(net.parameters)

    one = work(None)
    for found in together(2, work):
        assert isinstance(found, dict), found
        assert_bits(found, one)


def test_costs_are_by_true_levels() -> None:
    """Also where parents come before their children, as roots do first in some data."""
    deep = [[v + 1] for v in range(9)] + [[]]
    wide = [[*range(1, 10)], *([] for _ in range(9))]
    graphs = [vrt.InputGraph.from_children(c, {"word": [0] * 10}) for c in (deep, wide)]
    facts, _ = model_of(Log()).facts_of(USE, vrt.GraphBatch.from_graphs(graphs))
    per_level = (facts.costs[0] - facts.costs[1]) / (10 - 2)
    np.testing.assert_allclose(facts.costs, 10 + per_level * np.array([10, 2]))
