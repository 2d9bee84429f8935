"""Rows that products of one weight share are told from vectors that are put together."""

import vertexrt as vrt
from tests.runs import PLAIN, Way, assert_same, evaluate
from tests.strategies import pulls_for
from vertexrt.graph import GraphBatch, InputGraph

HIDDEN = 4


class BothWays(vrt.VertexFunction):
    """The same two states as the rows of one weight's products, and as one vector of another's."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": HIDDEN})
        self.u = vrt.Parameter((HIDDEN, HIDDEN))
        self.wide = vrt.Parameter((HIDDEN, 2 * HIDDEN))
        self.b = vrt.Parameter((HIDDEN,), init=vrt.init.normal(0.5))

    def forward(self) -> None:
        left, right = self.gather(0).h, self.gather(1).h
        x, y = vrt.tanh(left + self.b), vrt.tanh(right - self.b)
        both = self.wide @ vrt.concat(x, y)
        h = vrt.tanh(both + vrt.sigmoid(self.u @ x) * (self.u @ y) + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def test_a_concat_and_rows_of_the_same_vectors_are_two_values() -> None:
    lists = [[], [], [0, 1], [2, 0]]
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls_for(4, 0))])
    stacked, plain = (way.compile(BothWays()) for way in (Way(), PLAIN))
    assert_same(evaluate(stacked, batch), evaluate(plain, batch), 1e-11)
