"""Cells on the path of the persistent engine against `reference`, on the CPU in place of a GPU."""

from __future__ import annotations

import functools
from typing import cast

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_cell_scripts import few_places
from tests.backend.test_models import CASES as OF_MODELS
from tests.declared import Declared
from tests.devices import shim
from tests.functions import FUNCTIONS, E, H
from tests.launches import launch_of
from tests.runs import ALL, PLAIN, TOLERANCE, Way, assert_same, evaluate, train
from tests.shim_device import ShimDevice
from tests.strategies import CLASSES, WORDS, with_pulls
from vertexrt import nn
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cuda.cell_script import LEVEL
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.verify_cells import verify_launch
from vertexrt.models import TreeLSTM

pytestmark = shim

TREE = [[], [], [0, 1], [], [2, 3], [], [4, 5]]
CHAIN = [[], [0], [1], [2]]
DAG = [[], [], [0, 1], [0, 2], [2, 3]]  # vertices with several parents
WIDE = [[] for _ in range(40)] + [[*range(40)], [40]]  # more children than a level takes
PARENTS = [[], [0], *([1] for _ in range(140)), [2, 3]]  # more parents than a row may have
COMB = [[], *(each for k in range(12) for each in ([], [2 * k, 2 * k + 1]))]
# Runs of rows with a right child alone, between rows with both.
RIGHT = [[], *([-1, k] for k in range(6)), [6, 5], *([-1, k] for k in range(7, 12)), [12, 3]]
BOTH = 2  # sides run cells
BY_OP = Passes(segment=False, fuse=False)


class Started(Declared, arity=1, state={"h": H, "c": H}, u=(3 * H, H)):
    """Vectors that are pulled, and read on the path: first states in full, and inputs."""

    def forward(self) -> None:
        before, x = self.gather(0), self.pull("x", shape=(H,))
        h = before.h + self.pull("h_first", shape=(H,))
        a, b, c = vrt.split(self.u @ h, 3)
        c = vrt.sigmoid(a) * (before.c + self.pull("c_first", shape=(H,))) + vrt.tanh(b + x)
        h = vrt.sigmoid(c) * vrt.tanh(c) + x
        self.scatter(h=h, c=c)
        self.push("h", h)
        self.push("c", c)
        self.push("loss", vrt.sum(h * c))


class Passed(Declared, arity=1, state={"h": H, "x": H, "y": H}, e=(WORDS, H), u=(H, H)):
    """States that are made before the path: one that parents read in full, and one at own units."""

    def forward(self) -> None:
        before, x = self.gather(0), vrt.embed(self.e, self.pull("word"))
        h = vrt.tanh(self.u @ (before.h * before.x) + before.y)
        self.scatter(h=h, x=x, y=vrt.sigmoid(x))
        self.push("h", h)
        self.push("loss", vrt.sum(h * x))


class Largest(Declared, state={"h": H}, e=(WORDS, H), u=(H, H), b=(H,)):
    """A product of the largest elements of all children's states, each with a bias."""

    def forward(self) -> None:
        kids, x = self.gather_all(), vrt.embed(self.e, self.pull("word"))
        h = vrt.tanh(self.u @ vrt.max(kids.h * kids.h - self.b) + x)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Normed(vrt.VertexFunction):
    """An LSTM with layer normalisation: sums over exchanged vectors, and numbers of rows."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": H, "c": H})
        self.table, self.cell = vrt.Parameter((WORDS, H)), nn.LSTMCell(H, H, layer_norm=True)

    def forward(self) -> None:
        before, x = self.gather(0), vrt.embed(self.table, self.pull("word"))
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)
        self.push("h", h)
        self.push("loss", vrt.sum(h * c))


class Shares(Declared, arity=2, state={"h": H}, e=(WORDS, H), u=(H, H)):
    """Softmax over a vector that a child has sent, and over one of the row."""

    def forward(self) -> None:
        x = vrt.embed(self.e, self.pull("word"))
        first = vrt.softmax(self.gather(0).h, axis="elements")
        y = self.u @ (first + self.gather(1).h) + x
        h = vrt.tanh(y) + vrt.softmax(y, axis="elements") * vrt.logsumexp(self.gather(1).h)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Attentive(Declared, state={"h": H}, e=(WORDS, H), score=(H,), u=(H, H)):
    """Attention over children: numbers of edges."""

    def forward(self) -> None:
        kids, x = self.gather_all(), vrt.embed(self.e, self.pull("word"))
        scores = vrt.sum(self.score * kids.h, axis="elements")
        share = vrt.softmax(scores, axis="children")
        h = vrt.tanh(self.u @ vrt.sum(share * kids.h) + x)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Last(Declared, arity=2, state={"h": H}, u=(H, H)):
    """A state of the last child alone: edges of others have no gradient."""

    def forward(self) -> None:
        h = vrt.tanh(self.u @ self.gather(1).h + self.pull("x", shape=(H,)))
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Sided(Declared, arity=2, state={"h": H, "c": H}, u=(H, H)):
    """A product with the state of one child alone: rows without it exchange nothing backward."""

    def forward(self) -> None:
        left, right, x = self.gather(0), self.gather(1), self.pull("x", shape=(H,))
        c = vrt.tanh(self.u @ left.h + right.c + x)
        self.scatter(h=c * c, c=c)
        self.push("c", c)
        self.push("loss", vrt.sum(c * c))


class Curves(Declared, arity=1, state={"s": 64, "t": 64}):
    """Sigmoid and tanh of what is pulled."""

    def forward(self) -> None:
        x, before = self.pull("x", shape=(64,)), self.gather(0)
        s, t = vrt.sigmoid(x + before.s), vrt.tanh(x + before.t)
        self.scatter(s=s, t=t)
        self.push("s", s)
        self.push("t", t)


def given(batch: GraphBatch) -> GraphBatch:
    """Add what `Started` pulls: states of the first vertices, and an input of all."""
    rng, n = np.random.default_rng(5), batch.num_vertices
    first = np.where(np.arange(n) % 3 == 0, np.arange(n) % 4, -1)
    rows = {name: vrt.Rows(rng.standard_normal((4, H)), first) for name in ("h_first", "c_first")}
    return batch.with_pulls({"x": rng.standard_normal((n, H)), **rows})


MODELS = {name: OF_MODELS[name]() for name in ("bilstm-tagger", "bilstm-char-tagger", "seq2seq")}
MORE = {
    "started": Started,
    "passed": Passed,
    "largest": Largest,
    "normed": Normed,
    "shares": Shares,
    "attentive": Attentive,
    "last": Last,
    "sided": Sided,
    "curves": Curves,
    **{name: case.model for name, case in MODELS.items()},
    "dropped": lambda: TreeLSTM(WORDS, E, H, CLASSES, dropout=0.3),
}
MAKES = {name: make for name, (make, _) in FUNCTIONS.items()} | MORE

CASES = [
    ("tree-lstm", 4, "float64", TREE, BOTH),
    ("tree-lstm", 2, "float32", DAG, BOTH),
    ("tree-lstm-3", 3, "float64", TREE, BOTH),
    ("tree-fc", 1, "float32", TREE, BOTH),
    ("lstm-lm", 2, "float64", CHAIN, BOTH),
    ("gru", 4, "float32", TREE, BOTH),
    ("forget-all", 2, "float64", DAG, BOTH),
    ("tied", 4, "float32", CHAIN, BOTH),
    ("started", 2, "float64", CHAIN, BOTH),
    ("started", 3, "float32", CHAIN, BOTH),
    ("dropped", 2, "float64", TREE, BOTH),
    ("passed", 2, "float64", CHAIN, BOTH),
    ("largest", 3, "float64", DAG, BOTH),
    ("normed", 2, "float64", CHAIN, BOTH),
    ("normed", 1, "float32", CHAIN, BOTH),
    ("shares", 3, "float64", TREE, BOTH),
    ("attentive", 2, "float64", DAG, BOTH),
    ("attentive", 4, "float32", TREE, BOTH),
    ("last", 2, "float64", TREE, BOTH),
]


@functools.cache
def net(
    name: str,
    processors: int,
    dtype: str,
    shuffle: int = 0,
    total: int = 4,
    passes: Passes = ALL,
) -> Network:
    """Compile once for all tests."""
    if not processors:
        return PLAIN.compile(MAKES[name]())
    way = Way("shim", dtype, passes=passes, engine="persistent", processors=processors)
    traced = MAKES[name]().trace()
    device = ShimDevice(shuffle, processors=total)
    return way.with_values(vrt.Network(compile_on(device, traced, way.options()), 3, "mean_graphs"))


def executables(network: Network) -> list[PersistentExecutable]:
    """Return the kernels that a network has."""
    variants = network.executor.model.variants.values()
    found = (v.loaded.processors for v in variants if v.loaded is not None)
    return [cast("PersistentExecutable", each) for each in found]


def agree(name: str, here: Network, batch: GraphBatch, dtype: str) -> None:
    there = net(name, 0, "")
    batch = given(batch) if name in ("started", "last", "sided") else batch
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE[dtype])
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])


@pytest.mark.parametrize(("name", "processors", "dtype", "shape", "sides"), CASES)
def test_cells_agree_with_the_reference(
    name: str, processors: int, dtype: str, shape: list[list[int]], sides: int
) -> None:
    here = net(name, processors, dtype)
    for graphs in (5, 1):
        agree(name, here, with_pulls([shape] * graphs), dtype)
    most = max(len(each.writer.cells) for each in executables(here))
    assert most == sides, "these sides run cells, not the path as it was before"


@pytest.mark.parametrize(
    ("name", "processors", "sides"),
    [("bilstm-tagger", 2, 2), ("bilstm-char-tagger", 3, 4), ("seq2seq", 2, 1)],
)
def test_functions_of_a_layer_share_its_levels(name: str, processors: int, sides: int) -> None:
    here, batch = net(name, processors, "float64"), MODELS[name].batch
    agree(name, here, batch, "float64")
    assert max(len(each.writer.cells) for each in executables(here)) == sides


def test_sigmoid_and_tanh_are_right_for_small_numbers_and_large_ones() -> None:
    """Relative to each value, where exponents are exact; infinities are limits, and NaN stays."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-8, 8, (60, 64)) * 10.0 ** rng.integers(-9, 2, (60, 64))
    x = x.astype(np.float32).astype(np.float64)
    x[-1, :5] = 0.0, 200.0, np.inf, -np.inf, np.nan
    graphs = [vrt.InputGraph.chain(1, {"x": row[None]}) for row in x]
    here = net("curves", 2, "float32")
    got = here(GraphBatch.from_graphs(graphs))
    assert any(each.writer.cells for each in executables(here))
    with np.errstate(over="ignore"):
        wanted = {"s": 1 / (1 + np.exp(-x)), "t": np.tanh(x)}
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=2.5e-7, atol=0)


SIZES = 1, 2, 8, 16, 20
GROUPS = [(name, size) for name in ("lstm-lm", "tree-lstm") for size in SIZES]


@pytest.mark.parametrize(("name", "processors"), [*GROUPS, ("normed", 8), ("attentive", 20)])
def test_groups_of_any_size_agree(name: str, processors: int) -> None:
    """Alone, as a cluster, and through words with flags in memory; some without a unit."""
    here = net(name, processors, "float32", total=40)
    shape = TREE if name in ("tree-lstm", "attentive") else CHAIN
    agree(name, here, with_pulls([shape] * 3), "float32")


@pytest.mark.parametrize("shuffle", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "processors", "graphs"),
    [
        ("tree-lstm", 2, [COMB] * 3),
        ("forget-all", 2, [COMB] * 3),
        ("sided", 1, [RIGHT]),
        ("sided", 2, [RIGHT]),
    ],
)
def test_threads_run_in_any_order(
    name: str, processors: int, graphs: list[list[list[int]]], shuffle: int
) -> None:
    agree(name, net(name, processors, "float32", shuffle), with_pulls(graphs), "float32")


@pytest.mark.parametrize("shuffle", [1, 2])
@pytest.mark.parametrize(("name", "shape"), [("gru", COMB), ("lstm-lm", CHAIN)])
def test_stages_that_send_nothing_agree(name: str, shape: list[list[int]], shuffle: int) -> None:
    """A stage of every op: products follow each other, and stages without one."""
    here = net(name, 2, "float32", shuffle, passes=BY_OP)
    agree(name, here, with_pulls([shape]), "float32")
    assert max(len(each.writer.cells) for each in executables(here)) == BOTH


def test_zeros_that_are_left_forward_take_no_places() -> None:
    """A side has places for states or for edges, not for both in the same memory."""
    here = net("last", 2, "float64", passes=Passes(lazy=False))
    agree("last", here, with_pulls([RIGHT]), "float64")
    places = [x for each in executables(here) for _, x in each.writer.cells.values()]
    assert places
    assert all(0 in x for x in places)


def test_states_that_are_sent_before_those_of_children_are_read_are_no_cell() -> None:
    """The loss is made of the whole state, from what the child has sent, after this one is."""
    here = net("sided", 2, "float64", passes=Passes(lazy=False))
    agree("sided", here, with_pulls([RIGHT]), "float64")
    found = [why for each in executables(here) for why in each.writer.in_turn.values()]
    assert any("sent before" in why for why in found)


def test_rows_for_which_there_is_no_place_are_taken_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = 30
    few_places(monkeypatch, few)
    here = net.__wrapped__("tree-lstm", 2, "float64")
    leaves: list[list[int]] = [[] for _ in range(64)]
    inner = [[2 * k, 2 * k + 1] for k in range(63)]  # 32 of them are ready at once
    agree("tree-lstm", here, with_pulls([leaves + inner]), "float64")
    (most,) = {int(x.cells.sides[:, 2:4].max()) for x in executables(here) if x.writer.cells}
    assert most == few


@pytest.mark.parametrize("shape", [WIDE, PARENTS], ids=["children", "parents"])
def test_a_batch_that_does_not_fit_runs_without_cells(shape: list[list[int]]) -> None:
    here = net("forget-all", 2, "float64")
    agree("forget-all", here, with_pulls([shape]), "float64")
    assert any("without_cells" in x.__dict__ for x in executables(here))


@pytest.mark.parametrize("name", ["lstm-lm", "tied"])
def test_levels_of_a_chain_are_one_instruction(name: str) -> None:
    """Sequences of one length are so, forward and back; the ends are levels of their own."""
    here = net(name, 2, "float64")
    chain = [[], *([k] for k in range(50))]
    word = np.arange(len(chain)) % WORDS
    pulls = {"word": word, "label": word % CLASSES}
    batch = GraphBatch.from_graphs([vrt.InputGraph.from_children(chain, pulls)] * 2)
    agree(name, here, batch, "float64")
    launch = launch_of(here, batch)
    words = launch.written.cells.reshape(-1, 4)
    levels = [x for x in words.tolist() if x[0] & 0xFF == LEVEL and x[2] > 40]
    assert len(levels) == BOTH * launch.written.groups


def test_a_script_with_a_wrong_place_is_refused() -> None:
    """A level that reads what is not its child's."""
    launch = launch_of(net("tree-lstm", 2, "float64"), with_pulls([TREE] * 2))
    words = launch.written.cells.reshape(-1, 4)
    sizes = words[:, 1] >> 16  # those of levels; no pair of rows and places is so large
    at = np.flatnonzero((words[:, 0] & 0xFF == LEVEL) & (sizes > 2))[0]
    count = words[at, 1] & 0xFF
    words[at + 2 + count, 1] += 1  # the place of the first child
    with pytest.raises(PlanError, match="group 0, instruction"):
        verify_launch(*launch)
