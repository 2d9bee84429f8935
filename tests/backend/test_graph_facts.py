"""What processes know of graphs that they do not compute: found once, wherever graphs lie."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import edge_models, relation_models, typed_models
from tests.backend.test_parallel_step import SETTINGS, dataset
from tests.processes import ThreadCommunicator, together
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import Use
from vertexrt.errors import PullError
from vertexrt.graph.batch import fill
from vertexrt.models import get
from vertexrt.parallel import ProcessGroup

USE = Use(frozenset({"loss"}), loss=True)
MODELS: dict[str, Callable[[], tuple[Any, vrt.GraphBatch]]] = {
    "types": lambda: (typed_models.CharTagger(), typed_models.sentences()),
    "edges": lambda: (edge_models.WeighedDag(), edge_models.weighed()),
    "relations": lambda: (edge_models.RelatedDag(), edge_models.related()),
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
    model: CompiledModel = vrt.compile(function, device="reference", seed=0)._model
    return model


@pytest.mark.parametrize("name", MODELS)
def test_facts_are_those_of_graphs_wherever_they_lie(name: str) -> None:
    function, pool = MODELS[name]()
    model, rng = model_of(function), np.random.default_rng(0)
    for _ in range(4):
        chosen = rng.integers(0, pool.num_graphs, 7)
        facts, graphs = model.facts_of(USE, pool.take(chosen))
        assert graphs.tolist() == chosen.tolist()
        assert len(facts.costs) == pool.num_graphs
        copied = vrt.GraphBatch.from_graphs(list(pool.take(chosen)))
        own, all_of_it = model.facts_of(USE, copied)
        assert all_of_it.tolist() == list(range(7))
        for field in ("costs", "with_loss", "structure", "pulled"):
            np.testing.assert_array_equal(
                getattr(facts, field)[chosen], getattr(own, field), err_msg=field
            )
        (run,) = model.prepare(USE, copied)
        assert own.with_loss.sum() == run.with_loss
        rows, expected = model.looked_up(facts, graphs), model.touched(run)
        assert rows.keys() == expected.keys()
        for table, found in rows.items():
            np.testing.assert_array_equal(found, expected[table])


def test_other_graphs_and_other_pulls_have_other_sums() -> None:
    def sums(children: list[list[int]], words: list[int]) -> tuple[int, int]:
        graph = vrt.InputGraph.from_children(children, {"word": words, "label": [0] * len(words)})
        function, _ = _catalogue("tree-lstm")
        facts, _ = model_of(function).facts_of(USE, vrt.GraphBatch.from_graphs([graph]))
        return int(facts.structure[0]), int(facts.pulled[0])

    tree, words = [[], [], [0, 1]], [1, 2, -1]
    first = sums(tree, words)
    assert sums([[], [], [1, 0]], words)[1] == first[1]
    seen = {first[0], sums([[], [], [1, 0]], words)[0], sums([[], [0], [1]], words)[0]}
    seen.add(sums([[], [], [0]], words)[0])
    assert len(seen) == 4
    assert len({first[1], sums(tree, [2, 1, -1])[1], sums(tree, [1, 2, 0])[1]}) == 3


def test_a_process_copies_its_own_graphs_alone() -> None:
    function, pool = _catalogue("tree-lstm")
    whole = pool.take(np.arange(12))

    def work(communicator: ThreadCommunicator) -> Any:
        net = vrt.compile(function, device="cpu", seed=0, threads=1)
        net.step(whole, vrt.SGD(0.1), group=ProcessGroup(communicator, 4))
        return whole._taken

    for taken in together(2, work):
        assert not isinstance(taken, Exception), taken
        assert taken.kept is pool


class Log(vrt.VertexFunction):
    """Looks a word up, of four."""

    def __init__(self) -> None:
        super().__init__(state={"h": 2})
        self.table = vrt.Parameter((4, 2))

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


def test_a_process_may_have_looked_at_the_batch() -> None:
    """It has forgotten then where graphs are from; the steps are those of the others."""

    def work(communicator: ThreadCommunicator) -> np.ndarray:
        net, group = vrt.compile(Log(), device="reference", seed=0), ProcessGroup(communicator, 2)
        for chosen in ([0, 1, 3], [2, 2, 1]):
            pool = words(0, 1, 3, 2)
            batch = pool.take(chosen)
            if communicator.rank == 1:
                fill(batch)
                del pool
                gc.collect()
                assert batch._taken is not None
                assert batch._taken.source() is None
            net.step(batch, vrt.SGD(0.1), group=group)
        return np.array(net.parameters["table"])

    one, other = together(2, work)
    assert isinstance(one, np.ndarray), one
    assert np.array_equal(one, other)
