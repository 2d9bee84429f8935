"""What a level of the persistent path does where states are whole vectors of elements.

Operands are read where children left them, sums of products are taken by the groups behind them,
elements of the ring are sent as soon as they are there, and products of few rows are made by warps.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.devices import SHIM_AND_GPU, require, shim
from tests.functions import LSTMChain
from tests.paper_device import on_paper
from tests.runs import TOLERANCE, Result, Way, assert_same, evaluate, train
from tests.strategies import CLASSES, WORDS, with_pulls
from vertexrt.engine.variant import Passes, Use
from vertexrt.errors import NoKernelError
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.models import TreeLSTM

HIDDEN, EMBED = 16, 24
TREE = [[], [], [0, 1], [], [2, 3], [], [4, 5]]
CHAIN = [[], [0], [1], [2]]


class States(vrt.VertexFunction):
    """Two states, a table of words, and weights between states."""

    def __init__(self, embed: int = HIDDEN) -> None:
        super().__init__(arity=2, state={"h": HIDDEN, "p": HIDDEN})
        self.embedding = vrt.Parameter((WORDS, embed))
        self.u, self.q = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((HIDDEN, HIDDEN))
        self.r, self.v = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((CLASSES, HIDDEN))

    def classify(self, h: vrt.Value) -> None:
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Operands(States):
    """Products of a child's state, of a sum of states, and of something made of them."""

    def __init__(self) -> None:
        super().__init__(EMBED)
        self.w = vrt.Parameter((HIDDEN, EMBED))

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        x = self.w @ vrt.embed(self.embedding, self.pull("word"))
        h = vrt.tanh(x + self.u @ left.h + self.q @ (left.p * right.h - right.p))
        p = vrt.sigmoid(self.r @ (left.h + right.p)) * h
        self.scatter(h=h, p=p)
        self.classify(h)


class Shared(States):
    """Three products: the third comes behind two others, and reads what one of them reads."""

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        x = vrt.embed(self.embedding, self.pull("word"))
        below = self.u @ (left.h * right.p) + self.q @ (right.h + right.p) + self.r @ left.h
        h = vrt.tanh(x + below)
        self.scatter(h=h, p=vrt.sigmoid(h + left.p))
        self.classify(h)


class Residual(States):
    """An operand of which a part is wanted behind the product, and is a state."""

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        y = left.h * right.p
        x = vrt.embed(self.embedding, self.pull("word"))
        h = vrt.tanh(self.u @ (y + right.h) + x + y)
        self.scatter(h=h, p=y)
        self.classify(h)


class Parts(vrt.VertexFunction):
    """Slices of products: as states, of what is dropped out, and one number."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": HIDDEN, "p": HIDDEN})
        self.embedding = vrt.Parameter((WORDS, HIDDEN))
        self.t, self.w = (vrt.Parameter((2 * HIDDEN, HIDDEN)) for _ in range(2))
        self.u, self.v = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((CLASSES, HIDDEN))

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        x = vrt.embed(self.embedding, self.pull("word"))
        a, b = vrt.split(vrt.random.dropout(self.t @ left.h, 0.4), 2)
        number = vrt.tanh((self.u @ right.p)[3])
        h = vrt.tanh(a - b + x) * number
        self.scatter(h=h + x, p=(self.w @ right.h)[HIDDEN:])
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


MODELS: dict[str, tuple[Callable[[], vrt.VertexFunction], list[list[int]]]] = {
    "tree-lstm": (lambda: TreeLSTM(WORDS, EMBED, HIDDEN, CLASSES), TREE),
    "lstm": (lambda: LSTMChain(WORDS, EMBED, HIDDEN), CHAIN),
    "operands": (Operands, TREE),
    "shared": (Shared, TREE),
    "residual": (Residual, TREE),
    "parts": (Parts, TREE),
}
# Each model is evaluated in one case and trained in another: a kernel takes seconds to compile.
CASES = [
    ("tree-lstm", 1, "float32", train),
    ("tree-lstm", 4, "float32", evaluate),
    ("lstm", 1, "float64", evaluate),
    ("lstm", 4, "float32", train),
    ("operands", 4, "float64", train),
    ("operands", 2, "float32", evaluate),
    ("shared", 1, "float64", evaluate),
    ("shared", 4, "float32", train),
    ("residual", 2, "float64", evaluate),
    ("residual", 4, "float32", train),
    ("parts", 1, "float64", train),
    ("parts", 2, "float32", evaluate),
]


def batch_of(name: str, graphs: int) -> GraphBatch:
    """Make graphs of one shape with pulls of their own."""
    return with_pulls([MODELS[name][1]] * graphs)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize(("name", "processors", "dtype", "run"), CASES)
def test_it_agrees_with_the_reference(
    name: str, processors: int, dtype: str, run: Callable[..., Result], device: str
) -> None:
    require(device)
    way = Way(device, dtype, engine="persistent", processors=processors)
    here, there = way.compile(MODELS[name][0]()), Way().compile(MODELS[name][0]())
    # Enough rows for matrix units and a second chunk, few, and one a tile; the most kinds first, so
    # that one kernel is compiled.
    for graphs in (11, 3, 1):
        batch = batch_of(name, graphs)
        first = run(here, batch)
        assert_same(first, run(there, batch), TOLERANCE[dtype])
        for key, value in run(here, batch).parameters.items():
            assert np.array_equal(value, first.parameters[key]), f"{key} has other bits"


def source_of(name: str, processors: int, outputs: set[str]) -> str:
    """Return the kernel of an evaluation."""
    model = on_paper(MODELS[name][0](), processors).executor.model
    (run,) = model.prepare(Use(frozenset(outputs)), batch_of(name, 2))
    executable = run.ready.processors
    assert isinstance(executable, PersistentExecutable)
    return executable.writer.source()


def test_operands_and_sums_stay_out_of_shared_memory() -> None:
    source = source_of("lstm", 4, {"logits"})
    assert "return [=](int j)" in source, "the state of the child is read by the product"
    assert "total_of_parts<W, 8, 16, 16>" in source, "the cell adds up partial sums"
    assert "multiply(partial," not in source
    assert "hand_on<PROCESSORS, T, APART>(ring_row" in source, "elements are sent at once"
    assert "send_rows<" not in source


@pytest.mark.parametrize("processors", [8, 3])  # two elements each; five, or six
def test_shares_that_are_no_whole_vectors_are_sent_element_by_element(processors: int) -> None:
    source = source_of("lstm", processors, {"logits"})
    assert "hand_on_alone<PROCESSORS, T, APART>(ring_row" in source
    assert "hand_on<" not in source
    assert "send_rows<" not in source
    assert "send_some<" not in source


def test_an_operand_that_is_wanted_elsewhere_is_stored_behind_the_products() -> None:
    net = on_paper(MODELS["tree-lstm"][0](), 4)
    (run,) = net.executor.model.prepare(
        Use(frozenset({"loss"}), loss=True), batch_of("tree-lstm", 2)
    )
    executable = run.ready.processors
    assert isinstance(executable, PersistentExecutable)
    source = executable.writer.source()
    path = source[source.index("bool side_0(") : source.index("bool side_1(")]
    reading, _, behind = path.partition("prefetch_next();")
    assert "make_all_partial_sums<" in reading
    assert "store<W>(b_tensor" not in reading, "nothing is written before the products"
    assert behind.count("store<W>(b_tensor") > 2


def test_gates_of_the_input_are_copied_while_the_state_is_multiplied() -> None:
    net = on_paper(Stack(Form("GRU", 64)), 2)
    batch = stack_batch(Form("GRU", 64), np.zeros((1, 3, 64), np.float32))
    (run,) = net.executor.model.prepare(Use(frozenset({"h"})), batch)
    source = run.ready.processors.writer.source()  # type: ignore[union-attr]
    assert re.search(r"from = tensor_\d+ \+ \(long long\)row \* 192", source)
    assert "copy_ahead<4>(t_0_0_0 + i * 96 + k, from + j);" in source, "a half of each gate"


def test_products_of_few_rows_are_made_by_warps_beside_the_path() -> None:
    source = source_of("tree-lstm", 4, {"logits"})
    assert f"product_by_warps<{4 * HIDDEN}, {EMBED}, 1>" in source
    assert re.search(r"const int at = int_\d+\[order\[row\]\]", source), "reads the table of words"


def test_more_processors_than_there_are_cannot_be_a_group() -> None:
    net = on_paper(MODELS["lstm"][0](), 99)
    with pytest.raises(NoKernelError, match=r"a group of 99 processors; at most the device's"):
        net(batch_of("lstm", 1))


@shim
def test_one_processor_follows_segments_of_one_step_each() -> None:
    way = Way("shim", engine="persistent", processors=1, passes=Passes(segment=False))
    batch = batch_of("residual", 3)
    here, there = (each.compile(MODELS["residual"][0]()) for each in (way, Way()))
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE["float64"])
