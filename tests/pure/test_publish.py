"""Products of children's states, made by the child: what is rewritten, and that nothing changes."""

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.runs import Way, assert_same, train
from vertexrt.engine.variant import Passes
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.publish import publish_products
from vertexrt.ir.program import Program
from vertexrt.ir.verify import verify
from vertexrt.models import TreeLSTM

HIDDEN = 4


class Shared(vrt.VertexFunction):
    """One weight for two slots and for all children, another for one slot, a third for a sum."""

    def __init__(self) -> None:
        super().__init__(arity=3, state={"h": HIDDEN})
        self.table = vrt.Parameter((9, HIDDEN))
        self.w = vrt.Parameter((HIDDEN, HIDDEN))
        self.u = vrt.Parameter((2, HIDDEN))
        self.once = vrt.Parameter((HIDDEN, HIDDEN))
        self.added = vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        left, right = self.gather(0).h, self.gather(2).h
        every = self.gather_all().h
        x = self.w @ vrt.embed(self.table, self.pull("word"))
        x = x + vrt.sigmoid(self.w @ left) * vrt.tanh(self.w @ right)
        x = x + self.once @ left + self.added @ (left + right)
        h = vrt.tanh(x + vrt.sum(vrt.softmax(self.u @ every, axis="children")[0] * every))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class Constant(vrt.VertexFunction):
    """What is scattered is a parameter: there is nothing to make for each vertex."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": HIDDEN})
        self.b = vrt.Parameter((HIDDEN,))
        self.w = vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        y = self.w @ self.gather(0).h - self.w @ self.gather(1).h
        self.scatter(h=self.b)
        self.push("loss", vrt.sum(y * y))


def published(program: Program) -> dict[str, list[int]]:
    """Return the slots that read each field that the pass has added; -1 for all children."""
    verify(program, "publish", placed=False)
    fields = sorted(program.nodes[k]["field"] for k in program.find("scatter"))
    assert fields == sorted(program.state)
    found: dict[str, list[int]] = {name: [] for name in program.state if " " in name}
    for node in program.nodes:
        if node.op in ("gather", "gather_all") and node["field"] in found:
            found[node["field"]].append(node["slot"] if node.op == "gather" else -1)
    return found


def test_products_that_several_slots_or_all_children_share_are_published() -> None:
    found = published(publish_products(Shared().trace()))
    assert found == {"w h": [0, 2], "u h": [-1]}
    (product,) = published(publish_products(TreeLSTM(9, 4, 4, 3).trace()))
    assert product == "u_f h"


@pytest.mark.parametrize("function", [Constant(), FUNCTIONS["gru"][0](), TreeLSTM(9, 4, 4, 3, 1)])
def test_what_one_slot_multiplies_and_constants_stay(function: vrt.VertexFunction) -> None:
    program = function.trace()
    assert publish_products(program) == program


def test_a_vertex_with_many_parents_makes_its_product_once() -> None:
    """Identical leaves are one: fewer rows of products than edges, and the same numbers."""
    lists = [[], [], [0, 1], [], [], [3, 4, 2], [5, 2, 0], [6]]
    pulls = {"word": np.array([1, 2, -1, 1, 2, 3, -1, 4])}
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls)] * 2)
    plain = Way(passes=Passes(merge=False))
    one, other = (way.compile(Shared()) for way in (Way(), plain))
    assert_same(train(one, batch), train(other, batch), 1e-11)
