"""Which vertices of chains, and of trees, are of one kind on the path, and which are merged."""

from __future__ import annotations

import pytest

import vertexrt as vrt
from tests.chain_cells import CELLS, HIDDEN, chains
from tests.paper_device import on_paper
from tests.runs import use_of
from vertexrt.api.network import Network
from vertexrt.graph import GraphBatch, InputGraph

LEVELS = 9


class Words(vrt.VertexFunction):
    """A simple layer over words, or trees of them."""

    def __init__(self, arity: int) -> None:
        super().__init__(arity=arity, state={"h": HIDDEN})
        self.table = vrt.Parameter((7, HIDDEN))
        self.w, self.u = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        x = vrt.embed(self.table, self.pull_index("word"))
        h = self.push("h", vrt.tanh(self.w @ x + self.u @ self.gather(0).h))
        self.scatter(h=h)


def path_kinds(net: Network, batch: GraphBatch) -> int:
    """Return how many kinds the vertices of a batch are of on the path."""
    (run,) = net.executor.model.prepare(use_of("inference", net.executor.model.function), batch)
    return len(run.variant.path_kinds)


@pytest.mark.parametrize(("engine", "kinds"), [("persistent", 1), ("batched", 2)])
def test_first_vertices_of_chains_are_made_on_the_path(engine: str, kinds: int) -> None:
    """A product with zeros takes less time than a step of all processors, and a barrier."""
    batch = chains((LEVELS,) * 3)
    assert path_kinds(on_paper(CELLS["lstm"](), 1, engine=engine), batch) == kinds


@pytest.mark.parametrize(("arity", "kinds", "rows"), [(1, 1, 4), (2, 2, 3)])
def test_words_of_trees_that_are_alike_are_one_row_and_those_of_chains_a_row_each(
    arity: int, kinds: int, rows: int
) -> None:
    graphs = [InputGraph.chain(2, {"word": words}) for words in ([1, 2], [1, 3])]
    net, batch = on_paper(Words(arity), 1), GraphBatch.from_graphs(graphs)
    assert path_kinds(net, batch) == kinds
    (run,) = net.executor.model.prepare(use_of("inference", net.executor.model.function), batch)
    assert len(run.layout.schedule.order) == rows
