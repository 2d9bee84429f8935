"""Mistakes in F and in batches: each text says what was got, what was expected and what to do."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.runs import Way, train
from tests.strategies import CLASSES, WORDS
from vertexrt.errors import (
    DeviceError,
    GraphError,
    NumericError,
    PullError,
    TraceError,
    UsageError,
    VertexrtError,
)

FORM = re.compile(r"\[[^\]]+\] .+; .+; .+", re.S)


def text_of(kind: type[VertexrtError], call: Callable[[], object]) -> str:
    """Return the text of an error, which must have the form of all errors."""
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert FORM.fullmatch(text), text
    return text


class F(vrt.VertexFunction):
    """A vertex function whose forward is given."""

    def __init__(self, body: Callable[[Any], None], arity: int | None = 2) -> None:
        super().__init__(arity=arity, state={"c": 3, "h": 3})
        self.body = body
        self.w = vrt.Parameter((4, 3))
        self.b = vrt.Parameter((3,))

    def forward(self) -> None:
        self.body(self)

    def done(self, value: Any = 0.0) -> None:
        """Scatter and push something, so that nothing else is missing."""
        self.scatter(c=self.b * 1.0, h=self.b * 1.0)
        self.push("out", value)


# (body of forward, where the error is found, what it says)
MISTAKES: list[tuple[Callable[[Any], None], str, str]] = [
    # scatter
    (lambda f: f.scatter(c=f.b * 1.0), "scatter", "fields ['c']"),
    (lambda f: f.scatter(c=f.b * 1.0, x=f.b), "scatter", "the declared state ['c', 'h']"),
    (
        lambda f: f.scatter(c=f.w @ f.b, h=f.b * 1.0),
        "scatter",
        "field 'c' has shape [4]",
    ),
    (lambda f: f.scatter(c=f.b, h=0.5), "scatter", "field 'h' has shape []"),
    (lambda f: (f.done(), f.done()), "scatter", "called a second time"),
    (lambda f: f.push("out", f.b), "scatter", "forward() does not scatter"),
    (
        lambda f: f.scatter(c=f.gather_all().c, h=f.b),
        "scatter",
        "'c' is a value per child",
    ),
    # gather
    (lambda f: f.gather(2), "gather", "slot 2"),
    (lambda f: f.gather(-1), "gather", "F declares slots 0..1"),
    # push
    (lambda f: (f.done(), f.push("out", f.b)), "push", "name 'out' a second time"),
    (lambda f: f.push("loss", f.b), "push", "the loss has shape [3]"),
    (lambda f: f.push("each", f.gather_all().h), "push", "'each' is a value per child"),
    (lambda f: f.scatter(c=f.b * 1.0, h=f.b * 1.0), "push", "forward() pushes nothing"),
    # pull, present
    (lambda f: f.pull("x", dtype="double"), "pull", "dtype 'double' of 'x'"),
    (
        lambda f: (f.pull("x", shape=(2,)), f.pull("x", shape=(3,))),
        "pull",
        "'x' of shape [3]",
    ),
    (
        lambda f: (f.pull("i") * 2.0, vrt.cross_entropy(f.b * 1.0, f.pull("i"))),
        "pull",
        "'i' is used as a number and as an index",
    ),
    (lambda f: f.present("x"), "present", "pull 'x'"),
    (lambda f: f.present(2), "present", "slot 2"),
    (lambda f: [f.pull(f"p{k}") for k in range(31)], "pull", "at most 30 names"),
    # shapes
    (lambda f: f.b + f.pull("x", shape=(4,)), "add", "operands are param float[3], float[4]"),
    (lambda f: f.w @ f.pull("x", shape=(4,)), "matmul", "a right operand of shape [3]"),
    (lambda f: f.w @ f.w, "matmul", "a right operand of shape [3]"),
    (lambda f: f.b @ f.b, "matmul", "a parameter of shape [M, N]"),
    (lambda f: f.b * f.pull("i", dtype="int"), "mul", "an integer is an index"),
    (lambda f: vrt.embed(f.b, f.pull("i")), "embed", "a parameter of shape [N, E]"),
    (lambda f: vrt.embed(f.w, f.b), "embed", "an integer pull as the index"),
    (lambda f: vrt.cross_entropy(f.b, 1), "nll", "an integer label per vertex"),
    (lambda f: vrt.cross_entropy(f.w @ f.gather_all().h, f.pull("i")), "nll", "per vertex"),
    (lambda f: vrt.softmax(f.pull("x")), "logsumexp", "a vector"),
    (lambda f: vrt.sum(f.pull("x")), "reduce_sum", "a vector"),
    # what a reduction goes over
    (lambda f: vrt.softmax(f.gather_all().h), "softmax", "a value per child"),
    (
        lambda f: vrt.softmax(f.gather_all().h[0]),
        "softmax",
        "write vrt.softmax(x, over='children')",
    ),
    (lambda f: vrt.log_softmax(f.gather_all().h), "log_softmax", "over='children' or over="),
    (lambda f: vrt.logsumexp(f.gather_all().h), "logsumexp", "over='children' or over='elements'"),
    (
        lambda f: vrt.softmax(f.b, over="children"),
        "softmax",
        "over='children' of a value per vertex",
    ),
    (lambda f: vrt.sum(f.b, over="children"), "sum", "read the children by gather_all"),
    (lambda f: vrt.mean(f.b, over="child"), "mean", "'children' or 'elements'"),
    (lambda f: vrt.max(f.gather_all().h, over=0), "max", "over=0"),
    (lambda f: vrt.sum(f.gather_all().h[0], over="elements"), "reduce_sum", "a vector"),
    # nothing is repeated to fit a target
    (lambda f: vrt.squared_error(f.b, f.pull("x")), "squared_error", "shapes [3] and []"),
    (lambda f: vrt.squared_error(f.pull("x"), f.b), "squared_error", "shapes [] and [3]"),
    (lambda f: vrt.split(f.b, 2), "split", "shape [3] in 2 parts"),
    (lambda f: vrt.concat(f.b, 1.0), "concat", "operands of shapes [[3], []]"),
    (lambda f: f.b[3], "slice", "elements 3..3 inside the operand"),
    (lambda f: f.b[2:1], "slice", "at least one element"),
    (lambda f: f.b[::2], "slice", "a step-1 slice"),
    (lambda f: f.w[0], "slice", "of a value of shape (4, 3)"),
    # Python
    (lambda f: f.done() if f.b * 1.0 else None, "trace", "the truth of a traced value"),
    (lambda f: (f.b * 1.0) ** 3, "pow", "exponent is 3"),
    (lambda f: f.b + np.ones(3), "trace", "an operand is a ndarray"),
    (lambda f: f.b + "1", "trace", "an operand is a str"),
    (lambda f: f.b + vrt.Parameter((3,)), "trace", "a parameter of shape (3,) has no name"),
    (lambda f: vrt.dropout(f.b, 1.0), "dropout", "p is 1.0"),
]

WITHOUT_LINE = ("forward() does not scatter", "forward() pushes nothing")  # no line is at fault


def without_source(text: str) -> str:
    """Leave out the user's line, in which a case also says what it expects."""
    number = re.search(r"test_errors_f\.py:(\d+): ", text)
    return text.replace(linecache.getline(__file__, int(number[1])).strip(), "") if number else text


@pytest.mark.parametrize(("body", "where", "part"), MISTAKES)
def test_mistakes_in_forward(body: Callable[[Any], None], where: str, part: str) -> None:
    text = text_of(TraceError, F(body).trace)
    assert text.startswith(f"[{where}] ")
    assert part in without_source(text)
    assert ("test_errors_f.py:" in text) != (part in WITHOUT_LINE)


class Misfit(vrt.VertexFunction):
    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.w = vrt.Parameter((4, 3))

    def forward(self) -> None:
        before = self.gather(0)
        h = vrt.tanh(self.w @ before.h + before.h)  # the mistake
        self.scatter(h=h)
        self.push("h", h)


def test_a_shape_error_shows_the_users_line() -> None:
    line = inspect.getsourcelines(Misfit.forward)[1] + 2
    assert text_of(TraceError, lambda: vrt.compile(Misfit(), device="reference")) == (
        "[add] operands are float[4], float[3], at "
        f"test_errors_f.py:{line}: h = vrt.tanh(self.w @ before.h + before.h)  # the mistake; "
        "equal shapes, or a scalar with any shape; change that line."
    )


def test_gather_where_no_slot_is_declared() -> None:
    text = text_of(TraceError, F(lambda f: f.gather(0), arity=None).trace)
    assert "F declares no slots; declare a larger arity." in text


def test_declarations() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: vrt.VertexFunction(state={"h": 0}),
            "[state] field 'h' has 0 elements; 1 or more;",
        ),
        (lambda: vrt.VertexFunction(state={"h": 2.0}), "[state] field 'h' has 2.0 elements;"),
        (lambda: vrt.VertexFunction(arity=0, state={}), "[arity] arity is 0; 1 to 32,"),
        (lambda: vrt.VertexFunction(arity=33, state={}), "[arity] arity is 33;"),
        (
            lambda: vrt.VertexFunction(state={"h": 2}, initial={"c": vrt.Parameter((2,))}),
            "[state] initial names field 'c'; fields are ['h'];",
        ),
        (lambda: vrt.Parameter((0, 3)), "[Parameter] shape is (0, 3); a tuple of positive"),
        (lambda: vrt.VertexFunction(state={}).trace(), "[trace] forward() is not written;"),
    ]
    for call, start in cases:
        assert text_of(TraceError, call).startswith(start)


def test_parameters_with_one_name() -> None:
    first, second = F(lambda f: f.done()), F(lambda f: f.done())
    assert set(first.parameters()) == {"w", "b"}
    second.v = first.w  # type: ignore[attr-defined]
    text = text_of(TraceError, second.parameters)
    assert text.startswith("[parameters] two parameters are called 'w': 'v' got its name before")


def test_outside_of_forward() -> None:
    parameter = vrt.Parameter((3,))
    calls = (lambda: parameter + 1.0, lambda: F(F.done).gather(0), lambda: F(F.done).pull("x"))
    for call in calls:
        assert text_of(TraceError, call).startswith(
            "[trace] an operation on parameters runs outside"
        )


def test_a_value_of_another_function() -> None:
    kept: list[Any] = []
    F(lambda f: (kept.append(f.b * 1.0), f.done())).trace()
    text = text_of(TraceError, F(lambda f: f.done(f.b + kept[0])).trace)
    assert text.startswith("[trace] a value of another vertex function is used here;")


# Options.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"policy": "fronteir"},
            UsageError,
            "[compile] policy is 'fronteir'; one of frontier, depth, agenda, serial; "
            "choose one of these. Nearest: 'frontier'.",
        ),
        ({"engine": "batch"}, UsageError, "choose one of these. Nearest: 'batched'."),
        (
            {"dtype": "float23"},
            UsageError,
            "[compile] dtype is 'float23'; one of float32, float64;",
        ),
        ({"dtype": "float16"}, UsageError, "[compile] dtype is 'float16'; one of float32,"),
        ({"dtype": np.int32}, UsageError, "[compile] dtype is 'int32'; one of float32, float64;"),
        ({"dtype": object()}, UsageError, "[compile] dtype is '<object"),
        ({"reduction": "graphs"}, UsageError, "choose one of these. Nearest: 'graph'."),
        ({"policy": None}, UsageError, "[compile] policy is None; one of frontier,"),
        ({"threads": 0}, UsageError, "[compile] threads is 0; 1 to 1024;"),
        (
            {"device": "cpuu"},
            DeviceError,
            "[device] device is 'cpuu'; one of auto, cpu, cuda, reference; choose one of these. "
            "Nearest: 'cpu', 'cuda'.",
        ),
    ],
)
def test_unknown_options(options: dict[str, Any], error: type[VertexrtError], text: str) -> None:
    options = {"device": "reference", **options}
    assert text in text_of(error, lambda: vrt.compile(FUNCTIONS["tree-lstm"][0](), **options))


# Batches.


def network(name: str = "tree-lstm", **options: Any) -> vrt.Network:
    return vrt.compile(FUNCTIONS[name][0](), device="reference", **options)


def batch_of(*graphs: tuple[list[list[int]], dict[str, Any]]) -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs(
        [vrt.InputGraph.from_children(lists, pulls) for lists, pulls in graphs]
    )


def pulls(size: int, **changes: Any) -> dict[str, Any]:
    return {"word": np.zeros(size, np.int32), "label": np.zeros(size, np.int32), **changes}


TREE: list[list[int]] = [[], [], [0, 1]]


@pytest.mark.parametrize("threads", [1, 3])
def test_more_children_than_the_arity(threads: int) -> None:
    """The vertex and its graph are the user's, however the batch is shared out."""
    wide = [[], [], [0, 1], [2, 0, 1]]
    batch = batch_of((TREE, pulls(3)), (wide, pulls(4)), (TREE, pulls(3)))
    net = network(threads=threads)
    assert text_of(GraphError, lambda: net.forward(batch)) == (
        "[gather] vertex 3 of graph 1 has 3 children; TreeLSTM declares slots 0..1; "
        "binarise the graph, declare arity=3, or read them by gather_all."
    )


class Reads(vrt.VertexFunction):
    """Declares one slot and reads all children by gather_all; the slot too, if asked for."""

    def __init__(self, slot: bool) -> None:
        super().__init__(arity=1, state={"h": 2})
        self.slot = slot
        self.b = vrt.Parameter((2,))

    def forward(self) -> None:
        below = vrt.sum(self.gather_all().h)
        self.scatter(h=below + self.b + (self.gather(0).h if self.slot else 0.0))
        self.push("below", below)


@pytest.mark.parametrize(
    ("slot", "children", "text"),
    [
        (
            True,
            7,
            "Reads declares slots 0..0, which bound the children that gather_all reads too; "
            "declare arity=7 and gather the slots as before, or binarise the graph.",
        ),
        (
            True,
            40,
            "Reads declares slots 0..0, which bound the children that gather_all reads too; "
            "binarise the graph.",
        ),
        (
            False,
            7,
            "Reads declares slots 0..0, though it only reads gather_all; leave arity out.",
        ),
    ],
)
def test_more_children_than_slots_beside_gather_all(slot: bool, children: int, text: str) -> None:
    graph = vrt.InputGraph.from_children([*([[]] * children), list(range(children))])
    net = vrt.compile(Reads(slot), device="reference")
    got = text_of(GraphError, lambda: net.forward(vrt.GraphBatch.from_graphs([graph])))
    assert got == f"[gather] vertex {children} of graph 0 has {children} children; {text}"


def test_empty_slots_beyond_the_arity_do_no_harm() -> None:
    net = network()
    long = batch_of(([[], [], [0, 1, -1, -1]], pulls(3)))
    short = batch_of((TREE, pulls(3)))
    np.testing.assert_array_equal(net.forward(long)["loss"], net.forward(short)["loss"])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"label": np.array([0, CLASSES, -1], np.int32)},
            f"[pull] 'label' of vertex 1 of graph 1 is {CLASSES}; 0 to {CLASSES - 1}, the classes, "
            "or -1 for none; correct the data or declare more.",
        ),
        (
            {"word": np.array([0, -1, WORDS], np.int32)},
            f"[pull] 'word' of vertex 2 of graph 1 is {WORDS}; 0 to {WORDS - 1}, the rows of "
            "'embedding', or -1 for none; correct the data or declare more.",
        ),
    ],
)
def test_numbers_out_of_range(changes: dict[str, Any], text: str, threads: int) -> None:
    batch = batch_of((TREE, pulls(3)), (TREE, pulls(3, **changes)))
    assert text_of(PullError, lambda: train(network(threads=threads), batch)) == text


def test_a_missing_pull() -> None:
    batch = batch_of((TREE, {"words": np.zeros(3, np.int32), "label": np.zeros(3, np.int32)}))
    assert text_of(PullError, lambda: network().forward(batch)) == (
        "[pull] TreeLSTM pulls 'word', which the batch does not give; it gives label, words; "
        "add the array to the graphs. Nearest: 'words'."
    )
    nothing = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(TREE)])
    assert "; it gives nothing; " in text_of(PullError, lambda: network().forward(nothing))


def test_labels_need_not_be_given_for_inference() -> None:
    batch = batch_of((TREE, {"word": np.zeros(3, np.int32)}))
    assert network().forward(batch, outputs=["logits"])["logits"].shape == (3, CLASSES)
    assert "pulls 'label'" in text_of(PullError, lambda: network().forward(batch))


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        (
            "mark",
            np.zeros((3, 3), np.float32),
            "[pull] 'mark' is float32 of shape [3, 3]; Marks reads real numbers of shape [2] per "
            "vertex: [3, 2]; convert or reshape the array, or declare pull(name, shape=..., "
            "dtype=...).",
        ),
        ("mark", vrt.Pulled(np.zeros((5, 1)), np.array([0, -1, 1])), "'mark' is float64 of shape"),
        ("gain", np.zeros(3, np.int32), "'gain' is int32 of shape [3]"),
        ("gain", np.zeros((3, 1)), "'gain' is float64 of shape [3, 1]"),
    ],
)
def test_misshapen_pulls(name: str, given: Any, text: str) -> None:
    whole = {"mark": np.zeros((3, 2)), "gain": np.zeros(3), name: given}
    assert text in text_of(PullError, lambda: network("marks").forward(batch_of((TREE, whole))))


def test_a_real_array_for_an_index() -> None:
    batch = batch_of((TREE, pulls(3, word=np.zeros(3))))
    assert text_of(PullError, lambda: network().forward(batch)) == (
        "[pull] 'word' is float64 of shape [3]; TreeLSTM reads an integer per vertex: [3]; "
        "pass an integer array with -1 where a vertex has none."
    )


# Running.


def test_backward_without_forward() -> None:
    net, batch = network(), batch_of((TREE, pulls(3)))
    net.forward(batch)
    text = text_of(UsageError, lambda: net.backward({}))
    assert text.startswith("[backward] no forward pass to go back through;")
    net.forward(batch, train=True)
    net.backward({"loss": np.ones(3)})
    text_of(UsageError, lambda: net.backward({"loss": np.ones(3)}))


def test_gradients_that_do_not_fit() -> None:
    net, batch = network(), batch_of((TREE, pulls(3)))
    net.forward(batch, train=True, outputs=["logits"])
    text = text_of(PullError, lambda: net.backward({"logits": np.ones((3, 1))}))
    assert text.startswith("[backward] the gradient of 'logits' has shape [3, 1]; real numbers of")
    net.forward(batch, train=True, outputs=["logits"])
    text = text_of(UsageError, lambda: net.backward({"loss": np.ones(3)}))
    assert "forward was asked for ['logits']" in text
    net.forward(batch, train=True)
    text = text_of(UsageError, lambda: net.backward({"losss": np.ones(3)}))
    assert text.endswith("ask for one of these. Nearest: 'loss', 'logits'.")


def test_outputs_that_are_not_pushed() -> None:
    text = text_of(UsageError, lambda: network().forward(batch_of((TREE, pulls(3))), outputs=["h"]))
    assert text.startswith("[outputs] 'h'; TreeLSTM pushes logits, loss;")


def test_a_step_without_a_loss() -> None:
    class Quiet(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={})
            self.b = vrt.Parameter((2,))

        def forward(self) -> None:
            self.push("b", self.b)

    net = vrt.compile(Quiet(), device="reference")
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2)])
    text = text_of(UsageError, lambda: net.step(batch, vrt.SGD(0.1)))
    assert text.startswith("[step] Quiet pushes b; a push named 'loss';")


# A loss that is not finite.


class Logarithm(vrt.VertexFunction):
    """Takes the logarithm of a pull along a chain."""

    def __init__(self, per_child: bool = False) -> None:
        super().__init__(arity=1, state={"h": 2})
        self.per_child = per_child
        self.w = vrt.Parameter((2, 2))

    def forward(self) -> None:
        x = self.pull("x", shape=(2,))
        if self.per_child:
            below = vrt.sum(vrt.log(self.gather_all().h + x))
        else:
            below = self.w @ self.gather(0).h + vrt.log(x)
        self.scatter(h=x)
        self.push("loss", vrt.sum(below))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("per_child", [False, True])
def test_the_first_value_that_is_not_finite_is_named(threads: int, per_child: bool) -> None:
    net = vrt.compile(Logarithm(per_child), device="reference", threads=threads)
    before = {name: value.copy() for name, value in net.parameters.items()}
    x = np.ones((4, 2))
    x[2, 1] = -3.0
    graphs = [vrt.InputGraph.chain(4, {"x": np.ones((4, 2))}), vrt.InputGraph.chain(4, {"x": x})]
    batch = vrt.GraphBatch.from_graphs(graphs)
    with np.errstate(all="ignore"):
        text = text_of(NumericError, lambda: net.step(batch, vrt.SGD(0.1)))
    assert text.startswith(
        "[loss] the loss is nan: the first value that is not finite is made by log of vertex 2 of "
        "graph 1, at test_errors_f.py:"
    )
    assert text.endswith(
        "a finite loss; no parameter was changed; "
        "lower the learning rate, clip the gradient norm, or guard that expression."
    )
    for name, value in net.parameters.items():
        np.testing.assert_array_equal(value, before[name])
    good = vrt.GraphBatch.from_graphs(graphs[:1])
    assert np.isfinite(net.step(good, vrt.SGD(0.1)))  # and the next step starts clean
    gradients = train(net, good).parameters
    assert all(np.isfinite(value).all() for value in gradients.values())


def test_a_parameter_that_is_not_finite_is_named() -> None:
    net = network()
    net.parameters["v"][1, 2] = np.nan
    batch = batch_of((TREE, pulls(3)))
    with np.errstate(all="ignore"):
        text = text_of(NumericError, lambda: net.step(batch, vrt.SGD(0.1)))
    assert "parameter 'v' is not finite at [1, 2]; finite parameters;" in text


def test_a_failed_step_leaves_nothing_behind() -> None:
    """A step that failed leaves nothing behind in the gradients of the next one."""
    net = Way().compile(FUNCTIONS["tree-lstm"][0]())
    batch = batch_of((TREE, pulls(3)))
    want = train(net, batch).parameters
    net.parameters["v"][0, 0] = np.nan
    with np.errstate(all="ignore"), pytest.raises(NumericError):
        net.step(batch, vrt.SGD(0.1))
    net.set_parameters(Way().compile(FUNCTIONS["tree-lstm"][0]()).parameters)
    for name, value in train(net, batch).parameters.items():
        np.testing.assert_array_equal(value, want[name])
