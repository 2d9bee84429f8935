"""What is handed to a network is refused by name before anything is computed."""

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from vertexrt.errors import CheckpointError, PullError, UsageError, VertexrtError

GRAPH = vrt.InputGraph.from_children(
    [[], [], [0, 1]], {"word": np.zeros(3, np.int32), "label": np.zeros(3, np.int32)}
)
BATCH = vrt.GraphBatch.from_graphs([GRAPH])


@pytest.fixture(scope="module")
def net() -> vrt.Network:
    return vrt.compile(FUNCTIONS["tree-lstm"][0](), device="reference")


def text_of(error: type[VertexrtError], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("given", [[GRAPH], GRAPH, None])
def test_what_is_no_batch(net: vrt.Network, given: Any) -> None:
    calls = {
        "step": lambda: net.step(given, vrt.SGD(0.1)),
        "call": lambda: net(given),
        "record": lambda: net.record(given),
        "plan": lambda: net.plan(given),
        "explain_batch": lambda: net.explain_batch(given),
        "warm": lambda: net.warm(given),
    }
    for where, call in calls.items():
        assert text_of(UsageError, call) == (
            f"[{where}] the batch is a {type(given).__name__}; expected a GraphBatch; "
            "build a GraphBatch: vrt.GraphBatch.from_graphs([...])."
        )


def test_what_a_reader_returns_is_no_batch(net: vrt.Network) -> None:
    read = vrt.data.from_records([{"chain": 1}])
    text = text_of(UsageError, lambda: net(read))  # type: ignore[arg-type]
    assert text.endswith("is a Examples; expected a GraphBatch; pass its attribute `batch`.")


def test_no_output_is_asked_for(net: vrt.Network) -> None:
    for where, call in (
        ("call", lambda: net(BATCH, outputs=())),
        ("record", lambda: net.record(BATCH, outputs=[])),
    ):
        assert text_of(UsageError, call) == (
            f"[{where}] outputs names no push; TreeLSTM pushes logits, loss; "
            "name one, or leave outputs out for all."
        )


def test_outputs_that_are_no_list_of_names(net: vrt.Network) -> None:
    text = text_of(UsageError, lambda: net(BATCH, outputs="logits"))
    assert text.endswith("expected names of pushes; write outputs=['logits'].")
    for given in (7, [["logits"]], [None]):
        wrong: Any = given
        text_of(UsageError, lambda wrong=wrong: net(BATCH, outputs=wrong))
        text_of(UsageError, lambda wrong=wrong: net.step(BATCH, vrt.SGD(0.1), outputs=wrong))


def test_what_is_no_optimizer(net: vrt.Network) -> None:
    text = text_of(UsageError, lambda: net.step(BATCH, vrt.Adam))  # type: ignore[arg-type]
    assert text.startswith("[step] the class Adam; expected an optimizer;")
    text_of(UsageError, lambda: net.step(BATCH, None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.array(["1.0"] * 3), "has dtype <U3"),
        (np.zeros(3, complex), "has dtype complex128"),
        ([[1.0], [1.0, 2.0], []], "is rows of unequal length"),
        (np.array([None] * 3), "has dtype object"),
        (np.ma.masked_all(3), "is a masked array, whose mask would be lost"),
    ],
)
def test_gradients_of_other_dtypes(net: vrt.Network, given: Any, text: str) -> None:
    run = net.record(BATCH)
    found = text_of(PullError, lambda: run.backward({"loss": given}))
    assert found.startswith(f"[backward] the gradient of 'loss' {text}; real numbers of shape [3]")


@pytest.mark.parametrize("dtype", ["<U3", "complex128", "object", "bool", "datetime64[s]"])
def test_parameters_of_other_dtypes_change_nothing(net: vrt.Network, dtype: str) -> None:
    before = dict(net.parameters)
    last = list(before)[-1]
    values = {name: value + 1.0 for name, value in before.items()}
    values[last] = np.zeros(before[last].shape, dtype)
    found = text_of(CheckpointError, lambda: net.parameters.update(values))
    assert found.startswith(f"[parameters] {last!r} has dtype {values[last].dtype}; real numbers")
    assert all((net.parameters[name] == value).all() for name, value in before.items())


def test_gradients_of_any_layout_are_the_same(net: vrt.Network) -> None:
    plain = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)

    def gradient(given: Any) -> np.ndarray:
        run = net.record(BATCH, outputs=["logits"])
        found = run.backward({"logits": given}).parameters
        return np.concatenate([value.ravel() for value in found.values()])

    want = gradient(plain)
    spread = np.zeros((3, 6), np.float32)[:, ::2]
    spread[...] = plain
    layouts: list[Any] = [plain.astype(">f4"), np.asfortranarray(plain), spread, plain.tolist()]
    layouts += [plain[::-1].copy()[::-1], plain.astype(np.float64)]
    for given in layouts:
        assert (gradient(given) == want).all()


def test_what_is_no_mapping(net: vrt.Network) -> None:
    run = net.record(BATCH)
    wrong: Any = [np.zeros(3)]
    assert text_of(UsageError, lambda: run.backward(wrong)).startswith("[backward] a list; expect")
    text_of(CheckpointError, lambda: net.parameters.update(wrong))


def test_a_table_of_words_without_a_row(net: vrt.Network) -> None:
    pulls = {"word": vrt.Rows(np.zeros(0, np.int32), [-1, -1, -1]), "label": np.zeros(3, int)}
    none = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [], [0, 1]], pulls)])
    absent = pulls | {"word": np.full(3, -1)}
    want = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [], [0, 1]], absent)])
    assert (net(none)["logits"] == net(want)["logits"]).all()
