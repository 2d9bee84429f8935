"""Mistakes in batches and in calls of a network, and losses that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.messages import text_of
from tests.runs import Way, train
from tests.strategies import CLASSES, WORDS
from vertexrt.errors import (
    GraphError,
    NumericError,
    PullError,
    UsageError,
)

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
    assert text_of(GraphError, lambda: net(batch)) == (
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
    got = text_of(GraphError, lambda: net(vrt.GraphBatch.from_graphs([graph])))
    assert got == f"[gather] vertex {children} of graph 0 has {children} children; {text}"


def test_empty_slots_beyond_the_arity_do_no_harm() -> None:
    net = network()
    long = batch_of(([[], [], [0, 1, -1, -1]], pulls(3)))
    short = batch_of((TREE, pulls(3)))
    np.testing.assert_array_equal(net(long)["loss"], net(short)["loss"])


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


@pytest.mark.parametrize("threads", [1, 3])
def test_a_mistake_is_reported_once(threads: int) -> None:
    """A traceback had the same error twice, the second while the first was handled."""
    batch = batch_of((TREE, pulls(3)), (TREE, pulls(3, word=np.full(3, WORDS, np.int32))))
    with pytest.raises(PullError, match="of graph 1 is") as caught:
        network(threads=threads)(batch)
    assert caught.value.__context__ is None


def test_a_missing_pull() -> None:
    batch = batch_of((TREE, {"words": np.zeros(3, np.int32), "label": np.zeros(3, np.int32)}))
    assert text_of(PullError, lambda: network()(batch)) == (
        "[pull] TreeLSTM pulls 'word', which the batch does not give; it gives label, words; "
        "add the array to the graphs, or compute what does without it, by "
        "net(batch, outputs=[...]). Nearest: 'words'."
    )
    nothing = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(TREE)])
    assert "; it gives nothing; " in text_of(PullError, lambda: network()(nothing))


def test_labels_need_not_be_given_for_inference() -> None:
    batch = batch_of((TREE, {"word": np.zeros(3, np.int32)}))
    assert network()(batch, outputs=["logits"])["logits"].shape == (3, CLASSES)
    assert "pulls 'label'" in text_of(PullError, lambda: network()(batch))


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
        ("mark", vrt.Rows(np.zeros((5, 1)), np.array([0, -1, 1])), "'mark' is float64 of shape"),
        ("gain", np.zeros(3, np.int32), "'gain' is int32 of shape [3]"),
        ("gain", np.zeros((3, 1)), "'gain' is float64 of shape [3, 1]"),
    ],
)
def test_misshapen_pulls(name: str, given: Any, text: str) -> None:
    whole = {"mark": np.zeros((3, 2)), "gain": np.zeros(3), name: given}
    assert text in text_of(PullError, lambda: network("marks")(batch_of((TREE, whole))))


def test_a_real_array_for_an_index() -> None:
    batch = batch_of((TREE, pulls(3, word=np.zeros(3))))
    assert text_of(PullError, lambda: network()(batch)) == (
        "[pull] 'word' is float64 of shape [3]; TreeLSTM reads an integer per vertex: [3]; "
        "pass an integer array with -1 where a vertex has none."
    )


# Running.


def test_a_record_is_gone_back_through_once() -> None:
    run = network().record(batch_of((TREE, pulls(3))))
    run.backward({"loss": np.ones(3)})
    assert text_of(UsageError, lambda: run.backward({"loss": np.ones(3)})) == (
        "[backward] a record that was gone back through; one, once; call net.record(batch) again."
    )


def test_gradients_that_do_not_fit() -> None:
    net, batch = network(), batch_of((TREE, pulls(3)))
    run = net.record(batch, outputs=["logits"])
    text = text_of(PullError, lambda: run.backward({"logits": np.ones((3, 1))}))
    assert text.startswith("[backward] the gradient of 'logits' has shape [3, 1]; real numbers of")
    run = net.record(batch, outputs=["logits"])
    text = text_of(UsageError, lambda: run.backward({"loss": np.ones(3)}))
    assert "the record was asked for ['logits']" in text
    run = net.record(batch)
    text = text_of(UsageError, lambda: run.backward({"losss": np.ones(3)}))
    assert text.endswith("ask for one of these. Nearest: 'loss', 'logits'.")


def test_outputs_that_are_not_pushed() -> None:
    text = text_of(UsageError, lambda: network()(batch_of((TREE, pulls(3))), outputs=["h"]))
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
    before = dict(net.parameters)
    x = np.ones((4, 2))
    x[2, 1] = -3.0
    graphs = [vrt.InputGraph.chain(4, {"x": np.ones((4, 2))}), vrt.InputGraph.chain(4, {"x": x})]
    batch = vrt.GraphBatch.from_graphs(graphs)
    with np.errstate(all="ignore"):
        text = text_of(NumericError, lambda: net.step(batch, vrt.SGD(0.1)))
    assert text.startswith(
        "[loss] the loss is nan: the first value that is not finite is made by log of vertex 2 of "
        "graph 1, at test_errors_batches.py:"
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
    net.executor.model.store.value("v")[1, 2] = np.nan
    batch = batch_of((TREE, pulls(3)))
    with np.errstate(all="ignore"):
        text = text_of(NumericError, lambda: net.step(batch, vrt.SGD(0.1)))
    assert "parameter 'v' is not finite at [1, 2]; finite parameters;" in text


def test_a_failed_step_leaves_nothing_behind() -> None:
    """A step that failed leaves nothing behind in the gradients of the next one."""
    net = Way().compile(FUNCTIONS["tree-lstm"][0]())
    batch = batch_of((TREE, pulls(3)))
    want = train(net, batch).parameters
    net.executor.model.store.value("v")[0, 0] = np.nan
    with np.errstate(all="ignore"), pytest.raises(NumericError):
        net.step(batch, vrt.SGD(0.1))
    net.parameters.update(Way().compile(FUNCTIONS["tree-lstm"][0]()).parameters)
    for name, value in train(net, batch).parameters.items():
        np.testing.assert_array_equal(value, want[name])
