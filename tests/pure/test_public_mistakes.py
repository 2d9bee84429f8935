"""What errors say to write where something was written by mistake, and what `repr` prints."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
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

# What is written by mistake, and what the error says to write.


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


wrong: Any = vrt  # what is written is wrong, as a type checker would say


def named(thing: Callable[[], object], name: str) -> Callable[[], object]:
    return lambda: attrgetter(name)(thing())


def traced(body: Callable[[Any], object]) -> Callable[[], object]:
    function = WithBody(body)
    function.t3 = vrt.Parameter((2, 3, 3))  # type: ignore[attr-defined]
    return function.trace


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no such field": (traced(lambda f: f.gather(0).x), "field 'x' at"),
    "a whole state": (traced(lambda f: vrt.tanh(f.gather(0))), "write .c after gather()"),
    "a sum of states": (traced(lambda f: sum([f.gather(0)])), "a whole state is used as a value"),
    "no super().__init__()": (
        lambda: vrt.compile(NoSuper(), device="reference"),
        "[trace] NoSuper has no arity and no state; a call of super().__init__ in its __init__;",
    ),
    "a class": (
        lambda: vrt.compile(WithBody),  # type: ignore[arg-type]
        "[compile] the class WithBody; an instance of a subclass of vrt.VertexFunction or "
        "vrt.Model; write vrt.compile(WithBody(...)).",
    ),
    "a class of optimizers": (
        lambda: network_of().step(graphs(), vrt.Adam),  # type: ignore[arg-type]
        "[step] the class Adam; expected an optimizer; pass an optimizer such as vrt.Adam(lr=",
    ),
    "initial of nothing": (
        lambda: OnlyAll().trace(),
        "[initial] initial gives ['h'], and forward() gathers no slot; gather(slot), which reads "
        "it where a child is absent; gather_all does not; leave initial out, or gather slots.",
    ),
    "initial beside slots": (lambda: OnlyAll(2).trace(), "forward() gathers no slot"),
    "initial of another shape": (
        lambda: vrt.VertexFunction(state={"h": 2}, initial={"h": vrt.Parameter((3,))}),
        "[state] the initial state of 'h' is Parameter((3,)); a vrt.Parameter of shape (2,);",
    ),
    "update by gradients": (
        lambda: vrt.Adam().update(gradients()),  # type: ignore[arg-type]
        "[Adam.update] a Gradients; the parameters of a network, which net.step(batch, optimizer)",
    ),
    "a function of a parameter as matrix": (
        traced(lambda f: vrt.exp(f.w) @ f.b),
        "a left operand that is a traced value (Value(exp: float[4,3]))",
    ),
    "a dot product by @": (traced(lambda f: (f.b * 1.0) @ f.b), "vrt.sum(x * y) is the dot"),
    "an array as matrix": (traced(lambda f: np.ones((4, 3)) @ f.b), "an operand is a ndarray"),
    "a list as matrix": (traced(lambda f: [1.0] @ f.b), "make the matrix a vrt.Parameter"),
    "a function of NumPy": (traced(lambda f: np.tanh(f.b)), "np.tanh of a traced value"),
    "an array as constant": (
        traced(lambda f: f.b * np.ones(3)),
        "self.c = vrt.Parameter(shape, lambda shape, random: array, trainable=False)",
    ),
    "infinity": (traced(lambda f: f.b * float("-inf")), "such as -1e30"),
    "and of masks": (traced(lambda f: (f.b > 0) & (f.b < 1)), "multiply the masks"),
    "if of a mask": (traced(lambda f: 1 if f.b > 0 else 2), "multiply by a comparison"),
    "in a list": (traced(lambda f: f.b in [f.w * 1.0]), "objects are compared by `is`"),
    "an integer with a real": (
        traced(lambda f: f.pull_index("i") == 0.5),
        "an integer pull and 0.5",
    ),
    "a value that outlived its forward": (lambda: left_over() + 1.0, "outlived its forward()"),
    "a comparison outside of forward": (
        lambda: vrt.Parameter((3,)) == 1.0,
        "[trace] an operation of vertexrt runs outside of forward()",
    ),
    "another function's gather": (
        traced(lambda f: WithBody().gather(0)),
        "WithBody.gather in the forward() of another function",
    ),
    "one string of outputs": (
        lambda: network_of()(graphs(), outputs="loss"),
        "outputs is 'loss'; expected names of pushes; write outputs=['loss'].",
    ),
    # PyTorch's habits: networks, losses, outputs, optimizers, batches, modules.
    **{
        f"net.{name}": (named(network_of, name), f"write {text}")
        for name, text in {
            "eval": "net(batch), in which dropout does not drop.",
            "train": "net.record(batch), in which dropout drops, or net.step(",
            "state_dict": "net.state().",
            "load_state_dict": "net.load_state(state).",
            "to": "vrt.compile(function, device=..., dtype=...).",
            "cuda": "vrt.compile(function, device=..., dtype=...).",
            "fit": "for batch in loader: loss = net.step(batch, optimizer).",
            "save": "vrt.save_checkpoint(path, net).",
        }.items()
    },
    "net.parameters()": (lambda: net().parameters(), "an optimizer takes none: vrt.Adam("),
    "net.weights": (lambda: net().weights, "one of device, executor, explain"),
    "loss.backward()": (lambda: stepped().backward(), "it went back and updated; or net.record("),
    "loss.item()": (lambda: stepped().item(), "write float(loss): it is a number."),
    "outputs.detach()": (lambda: outputs().detach(), "write outputs['h'], an array"),
    "a misspelt output": (lambda: outputs()["lost"], "no 'lost' among the outputs; out, loss;"),
    "optimizer.step()": (lambda: wrong.Adam().step(), "no network; a network, what vrt.compile"),
    "zero_grad": (lambda: wrong.Adam().zero_grad(), "nothing: net.step keeps no gradients"),
    "param_groups": (lambda: wrong.Adam().param_groups, "write optimizer.lr = rate"),
    "an optimizer of parameters": (
        lambda: wrong.Adam(net().parameters),
        "lr is a Parameters; a rate: an optimizer takes no parameters; write vrt.Adam(lr=1e-3);",
    ),
    "an optimizer of a network": (lambda: wrong.SGD(network_of()), "lr is a Network; a rate"),
    "a rate as text": (lambda: wrong.Adam(lr="0.1"), "lr='0.1'; lr >= 0; set it to a number."),
    "optimizer and batch exchanged": (
        lambda: net().step(vrt.Adam(), graphs()),
        "[step] GraphBatch(1 graphs, 2 vertices, 1 slots",
    ),
    "a step of a function": (named(WithBody, "step"), "write net = vrt.compile(function)"),
    "batch.to": (lambda: batch().to("cuda"), "networks copy batches to their device"),
    "batch.x": (lambda: batch().x, "write graph.pulls['x']."),
    "batch.batch_size": (lambda: batch().batch_size, "write graph.num_graphs."),
    **{
        f"vrt.{name}": (named(lambda: vrt, name), f"write {text}")
        for name, text in {
            "no_grad": "net(batch), which keeps nothing.",
            "tensor": "self.pull(name, shape), or vrt.Parameter(shape).",
            "optim": "vrt.Adam(lr=1e-3) and the like.",
            "cross_entropy": "vrt.losses.cross_entropy.",
            "dropout": "vrt.random.dropout.",
            "nn.Module": "vrt.VertexFunction, or vrt.Model.",
            "nn.LSTM": "a cell, such as vrt.nn.LSTMCell, along chains.",
            "losses.mse_loss": "vrt.losses.squared_error.",
        }.items()
    },
    "vrt.data.read_json": (lambda: wrong.data.read_json, "Nearest: 'read_jsonl'"),
    # In forward: functions and methods of other libraries.
    "np.concatenate": (traced(lambda f: np.concatenate([f.b, f.b])), "write vrt.concat(x, y)."),
    "np.sum": (traced(lambda f: np.sum(f.b)), "[numpy] np.sum of a traced value at test_public"),
    "np.where": (traced(lambda f: np.where(f.b > 0, f.b, 0)), "write vrt.where(mask, x, y)."),
    "x.view": (
        traced(lambda f: (f.b * 1.0).view(-1)),
        "values are of one vertex and have no batch",
    ),
    "x.detach": (traced(lambda f: (f.b * 1.0).detach()), "write vrt.stop_gradient(x)."),
    "x.item": (traced(lambda f: f.b[0].item()), "self.push(name, x), then net(batch)[name]."),
    "w.data": (traced(lambda f: f.w.data), "write net.parameters[name]"),
    "a list of values": (traced(lambda f: wrong.sum([f.b, f.b])), "join them by vrt.concat(x, y)"),
    "None": (traced(lambda f: f.b + None), "an operand is a NoneType"),
    "an axis by number": (traced(lambda f: wrong.sum(f.b, axis=-1)), "or leave axis out: values"),
    "the sum of a number": (traced(lambda f: wrong.sum(f.b[0])), "[sum] a number at"),
    "softmax of a number": (traced(lambda f: vrt.softmax(f.b[0])), "[softmax] a number at"),
    "a label first": (
        traced(lambda f: vrt.losses.cross_entropy(f.pull("y"), f.b)),
        "[cross_entropy] operands are float[]",
    ),
    "a shape as numbers": (lambda: wrong.Parameter(3, 4), "write vrt.Parameter((3, 4))."),
    "a parameter of an array": (lambda: wrong.Parameter(np.ones((3, 4))), "net.parameters[name] ="),
    "a first array": (lambda: wrong.Parameter(3, np.ones(3)), "init=lambda shape, random: array"),
    "the shape last": (traced(lambda f: vrt.random.normal(0, 1)), "[normal] shape 0 at"),
    "outside of forward": (lambda: wrong.tanh(np.ones(3)), "arrays are NumPy's to compute with"),
    "an argument of forward": (lambda: Takes().trace(), "read what a vertex is given by self.pull"),
    "a result of forward": (lambda: Returns().trace(), "what forward() returns is not read"),
    "two losses": (
        traced(lambda f: (f.push("loss", f.b[0]), f.push("loss", f.b[1]))),
        "add them, and push the sum: only 'loss' is minimised.",
    ),
    # Products: the way that works (test_ways_to_multiply).
    "x @ w": (traced(lambda f: f.b @ f.w), "write w.T @ x"),
    "(w1 @ w2) @ x": (traced(lambda f: (f.w @ f.w) @ f.b), "a vector first: w1 @ (w2 @ x)."),
    "tanh(w) @ x": (traced(lambda f: vrt.tanh(f.w) @ f.b), "vrt.stack(*(vrt.dot(vrt.tanh(w[k]),"),
    "(w * mask) @ x": (traced(lambda f: (f.w * f.w) @ f.b), "compute with its rows, one by one"),
    "t3[k] @ x": (traced(lambda f: f.t3[f.pull("k")] @ f.b), "sum((index == k) * (w[k] @ x)"),
    "embed(t3, k) @ x": (traced(lambda f: wrong.embed(f.t3, f.pull("k"))), "sum((index == k) *"),
    "t3 @ x": (traced(lambda f: f.t3 @ f.b), "write w[k] @ x."),
    "embed(w, 3)": (traced(lambda f: wrong.embed(f.w, 3)), "a plain number at"),
    "w.T + 1": (traced(lambda f: f.w.T + 1.0), "the transpose of Parameter('w', (4, 3)) at"),
    "w @ w.T": (traced(lambda f: f.w @ f.w.T), "w.T @ x alone"),
    "x[5]": (traced(lambda f: f.b[5]), "element 5 of 3 at"),
    "x[::2]": (traced(lambda f: f.b[::2]), "vrt.stack(x[0], x[2]) picks elements"),
    "w[0, 1]": (traced(lambda f: f.w[0, 1]), "write w[k][j] for an element"),
    "len(children)": (traced(lambda f: len(f.gather_all())), "counts children"),
    # Graphs and data.
    "edge_index": (lambda: wrong.InputGraph.from_edges(4, np.zeros((2, 3), int)), "edge_index.T"),
    "an undirected graph": (
        lambda: wrong.InputGraph.from_networkx(nx.Graph()),
        "a Graph; expected",
    ),
    "a list of graphs": (lambda: wrong.InputGraph.from_networkx([]), "takes a list of them"),
    "a misspelt attribute": (
        lambda: wrong.data.from_networkx([dag()], ["wrod"]),
        "no 'wrod'; the data have word; correct the name or leave it out. Nearest: 'word'.",
    ),
    "a misspelt attribute of a graph": (
        lambda: wrong.InputGraph.from_networkx(dag(), ["wrod"]),
        "they have word; correct the name, or leave it out of the pulls. Nearest: 'word'.",
    ),
    "words as a pull": (
        lambda: wrong.InputGraph.chain(1, {"w": ["a"]}),
        "vrt.data.from_records does",
    ),
    "truths as a pull": (lambda: wrong.InputGraph.chain(1, {"w": [True]}), "astype(np.int32)"),
    "edges both ways": (
        lambda: wrong.InputGraph.from_edges(2, [(0, 1), (1, 0)]),
        "or unroll it: vrt.data.edges.rounds.",
    ),
    "a list of brackets": (lambda: wrong.InputGraph.from_brackets(["(1 a)"]), "a tree at a time"),
    "a type of a batch without": (lambda: batch().of_type("word"), "a batch with vertex types"),
    "the network before the path": (
        lambda: wrong.save_checkpoint(network_of(), "x"),
        "write save_checkpoint(path, net).",
    ),
}


def graphs() -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0]], {})])


def net() -> Any:
    return network_of()


def batch() -> Any:
    return graphs()


def stepped() -> Any:
    return net().step(graphs(), vrt.SGD(0.1))


def outputs() -> Any:
    return net()(graphs())


def dag() -> Any:
    found: Any = nx.DiGraph()
    found.add_node(0, word=1)
    return found


def gradients() -> Any:
    net = network_of()
    run = net.record(graphs())
    return run.backward({"loss": np.ones(2)})


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_say_what_to_write(name: str) -> None:
    call, part = MISTAKES[name]
    assert part in text_of(VertexrtError, call)


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
