"""What errors say to write where something was written by mistake, and what `repr` prints."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import networkx as nx
import numpy as np
import pytest

import vertexrt as vrt
from tests.bodies import WithBody, left_over, network_of
from tests.messages import text_of
from tests.package_source import ROOT
from vertexrt.config import usable_threads
from vertexrt.errors import VertexrtError


class NoSuper(vrt.VertexFunction):
    def __init__(self) -> None:
        self.w = vrt.Parameter((2, 2))


class OnlyAll(vrt.VertexFunction):
    def __init__(self, arity: int | None = None) -> None:
        self.h0 = vrt.Parameter((2,))
        super().__init__(arity=arity, state={"h": 2}, initial={"h": self.h0})

    def forward(self) -> None:
        self.scatter(h=vrt.sum(self.gather_all().h))
        self.push("h", self.h0)


class Takes(vrt.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={})

    def forward(self, x: Any) -> None:  # type: ignore[override]
        self.push("x", x)


class Returns(Takes):
    def forward(self) -> Any:  # type: ignore[override]
        return self.pull("x")


# What is written, and what is said of it; mistakes in forward() are in test_errors_f.py.
MISTAKES: dict[str, str] = {
    'vrt.compile(NoSuper(), device="reference")': (
        "[trace] NoSuper has no arity and no state; a call of super().__init__ in its __init__;"
    ),
    "vrt.compile(WithBody)": (
        "[compile] the class WithBody; an instance of a subclass of vrt.VertexFunction or "
        "vrt.Model; write vrt.compile(WithBody(...))."
    ),
    "net().step(batch(), vrt.Adam)": (
        "[step] the class Adam; expected an optimizer; pass an optimizer such as vrt.Adam(lr="
    ),
    "OnlyAll().trace()": (
        "[initial] initial gives ['h'], and forward() gathers no slot; gather(slot), which reads "
        "it where a child is absent; gather_all does not; leave initial out, or gather slots."
    ),
    "OnlyAll(2).trace()": "forward() gathers no slot",
    'vrt.VertexFunction(state={"h": 2}, initial={"h": vrt.Parameter((3,))})': (
        "[state] the initial state of 'h' is Parameter((3,)); a vrt.Parameter of shape (2,);"
    ),
    "vrt.Adam().update(gradients())": (
        "[Adam.update] a Gradients; the parameters of a network, which net.step(batch, optimizer)"
    ),
    "left_over() + 1.0": "outlived its forward()",
    "vrt.Parameter((3,)) == 1.0": "[trace] an operation of vertexrt runs outside of forward()",
    'net()(batch(), outputs="loss")': (
        "outputs is 'loss'; expected names of pushes; write outputs=['loss']."
    ),
    # PyTorch's habits: networks, losses, outputs, optimizers, batches, modules.
    "net().eval()": "write net(batch), in which dropout does not drop.",
    "net().train()": "write net.record(batch), in which dropout drops, or net.step(",
    "net().state_dict()": "write net.state().",
    "net().load_state_dict({})": "write net.load_state(state).",
    'net().to("cuda")': "write vrt.compile(function, device=..., dtype=...).",
    "net().cuda()": "write vrt.compile(function, device=..., dtype=...).",
    "net().fit(batch())": "write for batch in loader: loss = net.step(batch, optimizer).",
    'net().save("x")': "write vrt.save_checkpoint(path, net).",
    "net().parameters()": "an optimizer takes none: vrt.Adam(",
    "net().weights": "one of device, executor, explain",
    "stepped().backward()": "it went back and updated; or net.record(",
    "stepped().item()": "write float(loss): it is a number.",
    "outputs().detach()": "write outputs['h'], an array",
    'outputs()["lost"]': "no 'lost' among the outputs; out, loss;",
    "vrt.Adam().step()": "no network; a network, what vrt.compile",
    "vrt.Adam().zero_grad()": "nothing: net.step keeps no gradients",
    "vrt.Adam().param_groups": "write optimizer.lr = rate",
    "vrt.Adam(net().parameters)": (
        "lr is a Parameters; a rate: an optimizer takes no parameters; write vrt.Adam(lr=1e-3);"
    ),
    "vrt.SGD(net())": "lr is a Network; a rate",
    'vrt.Adam(lr="0.1")': "lr='0.1'; lr >= 0; set it to a number.",
    "net().step(vrt.Adam(), batch())": "[step] GraphBatch(1 graph, 2 vertices, 1 edge; pulls",
    "WithBody().step()": "write net = vrt.compile(function)",
    'batch().to("cuda")': "networks copy batches to their device",
    "batch().x": "write graph.pulls['x'].",
    "batch().batch_size": "write graph.num_graphs.",
    "vrt.no_grad": "write net(batch), which keeps nothing.",
    "vrt.tensor": "write self.pull(name, shape), or vrt.Parameter(shape).",
    "vrt.optim": "write vrt.Adam(lr=1e-3) and the like.",
    "vrt.cross_entropy": "write vrt.losses.cross_entropy.",
    "vrt.dropout": "write vrt.random.dropout.",
    "vrt.nn.Module": "write vrt.VertexFunction, or vrt.Model.",
    "vrt.nn.LSTM": "write a cell, such as vrt.nn.LSTMCell, along chains.",
    "vrt.losses.mse_loss": "write vrt.losses.squared_error.",
    "vrt.data.read_json": "Nearest: 'read_jsonl'",
    "vrt.nn.Linear(3, 0)": "out_features=64); data without a field have 0 labels or words.",
    "vrt.Parameter(3, 4)": "write vrt.Parameter((3, 4)).",
    "vrt.Parameter(np.ones((3, 4)))": "net.parameters[name] =",
    "vrt.Parameter(3, np.ones(3))": "init=lambda shape, random: array",
    "vrt.tanh(np.ones(3))": "arrays are NumPy's to compute with",
    # Declarations, graphs and data.
    "Takes().trace()": "read what a vertex is given by self.pull",
    "Returns().trace()": "what forward() returns is not read",
    "vrt.InputGraph.from_edges(4, np.zeros((2, 3), int))": "edge_index.T",
    "vrt.InputGraph.from_networkx(nx.Graph())": "a Graph; expected",
    "vrt.InputGraph.from_networkx([])": "takes a list of them",
    'vrt.data.from_networkx([dag()], ["wrod"])': (
        "no 'wrod'; the data have word; correct the name or leave it out. Nearest: 'word'."
    ),
    'vrt.InputGraph.from_networkx(dag(), ["wrod"])': (
        "they have word; correct the name, or leave it out of the pulls. Nearest: 'word'."
    ),
    'vrt.InputGraph.chain(1, {"w": ["a"]})': "vrt.data.from_records does",
    'vrt.InputGraph.chain(1, {"w": [True]})': "astype(np.int32)",
    "vrt.InputGraph.from_edges(2, [(0, 1), (1, 0)])": "or unroll it: vrt.data.edges.rounds.",
    'vrt.InputGraph.from_brackets(["(1 a)"])': "a tree at a time",
    'batch().of_type("word")': "a batch with vertex types",
    'vrt.save_checkpoint(net(), "x")': "write save_checkpoint(path, net).",
}


def graphs() -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0]], {})])


def stepped() -> Any:
    return network_of().step(graphs(), vrt.SGD(0.1))


def outputs() -> Any:
    return network_of()(graphs())


def dag() -> Any:
    found: Any = nx.DiGraph()
    found.add_node(0, word=1)
    return found


def gradients() -> Any:
    net = network_of()
    run = net.record(graphs())
    return run.backward({"loss": np.ones(2)})


NAMES = {**globals(), "net": network_of, "batch": graphs, "left_over": left_over}


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_say_what_to_write(code: str) -> None:
    assert MISTAKES[code] in text_of(VertexrtError, lambda: eval(code, NAMES))


TEXTS = tomllib.loads((ROOT / "vertexrt" / "instead.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("owner", TEXTS)
def test_names_to_write_are_there(owner: str) -> None:
    for text in TEXTS[owner].values():
        for name in re.findall(r"\bvrt\.([\w.]*\w)", text):
            attrgetter(name)(vrt)


class Ways(vrt.VertexFunction):
    """What the errors say to write."""

    def __init__(self) -> None:
        super().__init__(state={"h": 3})
        self.t3, self.w, self.m = (vrt.Parameter(shape) for shape in ((5, 4, 3), (4, 3), (4, 3)))
        self.c = vrt.Parameter(3, lambda shape, random: np.arange(3.0), trainable=False)

    def forward(self) -> None:
        x, k, w = self.pull("x", 3), self.pull_index("k"), self.w
        self.scatter(h=x)
        self.push("chosen", sum((k == i) * (self.t3[i] @ x) for i in range(5)))
        rows = range(w.shape[0])
        self.push("tanh", vrt.stack(*(vrt.dot(vrt.tanh(w[i]), x) for i in rows)))
        self.push("masked", vrt.stack(*(vrt.dot(w[i] * self.m[i], x) for i in rows)))
        self.push("constant", x * self.c)
        self.push("count", vrt.sum(0.0 * self.gather_all().h[0] + 1.0))
        self.push("element", w[1][2])


def test_ways_to_multiply() -> None:
    net = vrt.compile(Ways(), device="reference", dtype="float64")
    x, k = np.random.default_rng(0).normal(size=(3, 3)), [0, 4, 2]
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], {"x": x, "k": k})
    out, p = net(vrt.GraphBatch.from_graphs([graph])), net.parameters
    wanted = {
        "chosen": np.einsum("vij,vj->vi", p["t3"][k], x),
        "tanh": x @ np.tanh(p["w"]).T,
        "masked": x @ (p["w"] * p["m"]).T,
        "constant": x * np.arange(3.0),
        "count": np.array([0.0, 0.0, 2.0]),
        "element": np.full(3, p["w"][1, 2]),
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(out[name], value)


class Apart(WithBody):
    """Reads `read` for a push that is no loss, and `lost` nowhere."""

    def __init__(self) -> None:
        super().__init__(lambda f: f.push("other", f.w @ f.b + f.read))
        self.read, self.lost = vrt.Parameter(4), vrt.Parameter(4)


def test_parameters_that_are_not_trained_are_warned_of_once() -> None:
    with pytest.warns(UserWarning, match=r"^\[compile\] nothing reads lost; parameters") as found:
        net = vrt.compile(Apart(), device="reference")
    with pytest.warns(UserWarning, match=r"^\[step\] 'loss' does not depend on read, w;") as later:
        net.step(graphs(), vrt.SGD(0.1))
    net.step(graphs(), vrt.SGD(0.1), outputs=["other"])
    assert [each.filename for each in (*found, *later)] == [__file__] * 2


def test_what_a_state_has_can_be_asked() -> None:
    found: list[bool] = []
    WithBody(lambda f: found.extend([hasattr(f.gather(0), "h"), hasattr(f.gather(0), "x")])).trace()
    assert found == [True, False]


def test_shapes_may_be_numbers() -> None:
    assert vrt.Parameter(5).shape == (5,)
    assert vrt.Parameter(np.int64(5)).shape == (5,)
    assert vrt.Parameter((np.int32(2), 3)).shape == (2, 3)


def shown() -> Iterator[tuple[object, str]]:
    net = network_of()
    yield (
        net,
        f"Network(WithBody on reference, engine='auto', threads={usable_threads()}, float32, "
        "15 parameters, pushes out, loss)",
    )
    yield net.parameters, "Parameters(w: [4, 3], b: [3]; float32)"
    yield WithBody(), "WithBody(arity=2, state={'c': 3, 'h': 3}, 15 parameters)"
    yield NoSuper(), "NoSuper(without super().__init__())"
    yield vrt.Parameter((4, 3)), "Parameter((4, 3))"
    yield (
        vrt.SGD(0.1, 0.9),
        "SGD(lr=0.1, momentum=0.9, weight_decay=0.0, clip_norm=None; 0 steps done)",
    )
    yield gradients(), "Gradients(parameters: w [4, 3], b [3]; pulled: none)"
    evaluation = net(graphs())
    yield evaluation, "Outputs(out [2, 3], loss [2])"
    kept: list[Any] = []
    WithBody(lambda f: kept.extend([repr(f.b > 0), repr(f.gather(0)), repr(f.w)])).trace()
    yield (
        " ".join(kept),
        " ".join(
            [
                "Value(greater: float[3])",
                "State(c: float[3], h: float[3])",
                "Parameter('w', (4, 3))",
            ]
        ),
    )


def test_what_is_printed_is_one_line() -> None:
    for thing, text in shown():
        assert (thing if isinstance(thing, str) else repr(thing)) == text
