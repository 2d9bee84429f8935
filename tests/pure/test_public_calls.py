"""Every public name, called with what it does not take: an error of ours, with its form of text.

The table has a row for each name of `vertexrt.__all__`, so a new one needs a row too.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.bodies import WithBody, left_over, network_of
from tests.messages import FORM
from vertexrt.api.optim import OPTIMIZERS
from vertexrt.errors import VertexrtError
from vertexrt.ir.updates import OPTIMIZERS as ROWS

NUMBERS = itertools.count()


ODD: list[Any] = [
    None,
    "x",
    b"x",
    [1.0],
    (1, 2),
    {},
    1,
    -1,
    2.5,
    True,
    float("nan"),
    10**400,
    1j,
    np.float32(1),
    np.ones(3),
    np.ones((2, 2)),
    np.array("a"),
    np.datetime64("2020-01-01"),
    slice(1),
    object(),
    int,
    WithBody,
    WithBody(),
    left_over(),
    vrt.Parameter((3,)),
    vrt.SGD,
    vrt.SGD(0.1),
]


def values(f: Any) -> list[Any]:
    """Return what a forward() computes with, of every kind."""
    kids, first = f.gather_all(), f.gather(0)
    integer, matrix = f.pull_index("i"), f.pull("m", shape=(2, 2))
    made = [f.b, f.w, f.b * 1.0, vrt.sum(f.b), first, first.h, kids, kids.h, integer, matrix]
    return [*made, vrt.Parameter((3,))]


def attempt(call: Callable[..., object], *args: Any, **options: Any) -> None:
    """Call; what is raised must be an error of ours that says what to do."""
    try:
        call(*args, **options)
    except VertexrtError as error:
        text = str(error)
    else:
        return
    assert FORM.fullmatch(text), text


def of_values(call: Callable[..., object], count: int, *rest: Any) -> Callable[[], None]:
    """Call a function of values inside a forward() and outside of it."""

    def check() -> None:
        for args in itertools.product(ODD, repeat=min(count, 2)):
            attempt(call, *args, *args[: count - len(args)], *rest)
        WithBody(inside).trace()

    def inside(f: Any) -> None:
        pool = [*values(f), *ODD]
        for args in itertools.product(pool, repeat=min(count, 2)):
            attempt(call, *args, *args[: count - len(args)], *rest)

    return check


def reduction(call: Callable[..., object]) -> Callable[[], None]:
    def check() -> None:
        of_values(call, 1)()
        WithBody(inside).trace()

    def inside(f: Any) -> None:
        for x, axis in itertools.product(values(f), [*ODD, "children", "elements"]):
            attempt(call, x, axis=axis)

    return check


def of_odd(call: Callable[..., object], count: int = 1) -> Callable[[], None]:
    def check() -> None:
        for args in itertools.product(ODD, repeat=count):
            attempt(call, *args)

    return check


def optimizer(make: Callable[..., Any], *options: str) -> Callable[[], None]:
    def check() -> None:
        for x in ODD:
            attempt(make, x)
            for option in ("weight_decay", "clip_norm", "clip_value", "groups", *options):
                attempt(make, 0.1, **{option: x})
            attempt(make(0.1).update, x)
            attempt(make(0.1).step, x)
            attempt(make, 0.1, groups={"w": {"lr": x, "frozen": x}})

    return check


OPTIONS = ("device", "engine", "dtype", "policy", "seed", "reduction", "precision", "passes")


def compile_() -> None:
    of_odd(vrt.compile)()
    for option, x in itertools.product((*OPTIONS, "threads", "processors"), ODD):
        if x is not None or option not in ("threads", "processors"):
            attempt(vrt.compile, WithBody(), **{"device": "reference", option: x})


def passes() -> None:
    for field, x in itertools.product(dataclasses.fields(vrt.bench.Passes), ODD):
        chosen = vrt.bench.Passes(**{field.name: x})
        attempt(vrt.compile, WithBody(), device="reference", passes=chosen)


def vertex_function() -> None:
    for x, y in itertools.product(ODD, repeat=2):
        attempt(vrt.VertexFunction, arity=x, state=y)
        attempt(vrt.VertexFunction, state={"h": x}, initial={"h": y})
        attempt(vrt.VertexFunction, state={"h": 2}, initial=x)
    WithBody(methods).trace()
    counts: list[int] = []
    WithBody(lambda f: counts.append(len(values(f)))).trace()
    for k in range(counts[0] + len(ODD)):  # a function scatters once
        attempt(WithBody(lambda f, k=k: scatter([*values(f), *ODD][k], f)).trace)


def scatter(x: Any, f: Any) -> None:
    f.scatter(c=x, h=x)


def methods(f: Any) -> None:
    pool = [*values(f), *ODD]
    for x in pool:
        for method in (f.gather, f.present, f.pull, WithBody().pull, WithBody().gather):
            attempt(method, x)
        attempt(f.pull, "p", shape=x)
        attempt(f.pull, "q", dtype=x)
        attempt(f.push, x, f.b)
        attempt(f.push, f"push {next(NUMBERS)}", x)


def network() -> None:
    net = vrt.compile(WithBody(), device="reference")
    graph = vrt.InputGraph.from_children([[], [0]], {})
    batch = vrt.GraphBatch.from_graphs([graph])
    for x in ODD:
        attempt(net.step, batch, x)
        attempt(net.step, batch, vrt.SGD(0.1), outputs=x)
        attempt(net, batch, outputs=x)
        attempt(net.record, batch, outputs=x)
        attempt(net.load_state, x)
        attempt(net.load_state, {"parameters": x}, strict=False)
        attempt(net.load_state, {"parameters": {"w": x, "b": x}})
        attempt(net.load_state, {"random": x})
        attempt(net.load_state, {"random": {"seed": x, "draws": x}})
        attempt(operator.setitem, net.parameters, "w", x)
        for gradients in (x, {"out": x}):
            attempt(net.record(batch).backward, gradients)


def model() -> None:
    """Set odd attributes and inputs, and build graphs with odd types, edges and pulls."""
    for x in ODD:
        net = vrt.Model()
        vars(net)["part"] = x
        attempt(vrt.compile, net, device="reference")
        attempt(vrt.VertexFunction, state={"h": 2}, inputs=x)
        attempt(vrt.VertexFunction, state={"h": 2}, inputs={"before": x})
        for y in ODD:
            attempt(vrt.InputGraph.from_types, x, y)
            attempt(vrt.InputGraph.from_types, {"word": 2}, {("word", "x", "word"): x}, y)
            attempt(vrt.InputGraph.from_types, {"word": x}, {}, {"word": {"n": y}})
            attempt(vrt.InputGraph.from_types, {"word": 2}, {}, x)
            attempt(vrt.GraphBatch, [0, 1], [0, 0], [], {}, x)


def schedules() -> None:
    """Make every schedule with odd options, and let one look at and load odd values."""
    of = vrt.schedules
    for x in (lambda steps: -1.0, lambda steps: "x"):
        attempt(vrt.SGD, x)
        attempt(vrt.SGD, 0.1, groups={"w": {"lr": x}})
    for x, y in itertools.product(ODD, ODD):
        attempt(of.constant, x)
        attempt(of.linear, x, 0.1, steps=y)
        attempt(of.linear, 0.1, x, steps=y)
        attempt(of.step, x, every=y)
        attempt(of.step, 0.1, every=2, factor=x)
        attempt(of.cosine, x, steps=y)
        attempt(of.cosine, 0.1, steps=2, least=x)
        attempt(of.join, x, at=y)
        attempt(of.join, x, x, at=[y])
        attempt(of.join, of.constant(0.1), of.constant(0.2), at=y)
        attempt(of.Plateau(0.1).load_state, {"rate": x, "best": y, "bad": 0})
        for option in ("mode", "factor", "patience", "threshold", "least"):
            attempt(of.Plateau, x, **{option: y})
    for x in ODD:
        attempt(of.Plateau(0.1).observe, x)
        attempt(of.Plateau(0.1).load_state, x)
        attempt(vrt.ExponentialMovingAverage, network_of(), x)
        attempt(vrt.ExponentialMovingAverage(network_of()).load_state, x)


def cells() -> None:
    """Make every cell with odd sizes and options."""
    for name in set(vrt.nn.__all__) - {"Cell", *ACTIVATIONS}:
        more = (2,) if name == "NaryTreeLSTMCell" else ()
        for x, y in itertools.product(ODD, ODD):
            attempt(getattr(vrt.nn, name), x, y, *more)
        for x in ODD if name not in ("Embedding", "LayerNorm", "ChildSumTreeLSTMCell") else ():
            attempt(getattr(vrt.nn, name), 2, 3, x)


def graphs_of_odd_parts() -> None:
    net = network_of()
    of_odd(vrt.InputGraph.from_children, 2)()
    of_odd(vrt.GraphBatch.from_graphs)()
    of_odd(vrt.Rows, 2)()
    for x in ODD:
        attempt(vrt.GraphBatch.from_graphs, [x])
        attempt(vrt.GraphBatch.from_arrays, x, [0, 0, 1], [0], {})
        attempt(vrt.GraphBatch.from_arrays, [0, 2], x, [0], {})
        attempt(vrt.GraphBatch.from_arrays, [0, 2], [0, 0, 1], x, {})
        attempt(vrt.GraphBatch.from_arrays, [0, 2], [0, 0, 1], [0], {"word": x})
        attempt(vrt.InputGraph.from_children, [[], [x]], {})
        attempt(vrt.InputGraph.from_children, [[], [0]], {"word": x})
        attempt(net, x)
        attempt(net.step, x, vrt.SGD(0.1))
        attempt(net.explain_batch, x)


def data() -> None:
    """Read, write and number what is no file, no batch and no words."""
    for x in ODD:
        attempt(vrt.data.read_jsonl, x)
        for option in ("vocabularies", "labels", "reals", "min_count", "dtype", "label"):
            attempt(vrt.data.read_jsonl, "none.jsonl", **{option: x})
        attempt(vrt.data.write_jsonl, "no folder/x.jsonl", x)
        attempt(vrt.data.Vocabulary, x)
        attempt(vrt.data.from_records, x)
        attempt(vrt.data.from_records, [x])
        one = [vrt.InputGraph.chain(2)]
        attempt(vrt.data.Loader, x, 1)
        attempt(vrt.data.Loader, one, x)
        for option in ("bucket", "seed", "prepare", "workers"):
            attempt(vrt.data.Loader, one, 1, **{option: x})
        attempt(vrt.data.Loader(one, 1).load_state, x)
        for make in (vrt.data.from_nltk, vrt.data.from_pyg, vrt.data.from_dgl):
            attempt(make, x)
        attempt(vrt.data.from_networkx, x)
        attempt(vrt.data.from_networkx, [x])
        for read in (vrt.data.read_trees, vrt.data.read_conllu, vrt.data.read_tagged):
            attempt(read, x)
        attempt(vrt.data.read_embeddings, x, vrt.data.Vocabulary(("<unk>",)), vrt.init.zeros)
        attempt(vrt.data.read_embeddings, __file__, x, vrt.init.zeros)
        attempt(vrt.data.read_conll, x, {"word": 0})
        attempt(vrt.data.read_conll, __file__, x)
        attempt(vrt.data.read_conllu, __file__, x)
        attempt(vrt.data.read_tagged, __file__, x)
        attempt(vrt.data.read_tagged, __file__, ("word",), x)


def parallel() -> None:
    """Share out among what is no number of processes."""
    for x in ODD:
        attempt(vrt.parallel.init, x)
        attempt(vrt.parallel.init, None, x)
        attempt(network_of().step, None, vrt.SGD(0.1), group=x)


def on_device() -> None:
    """Evaluate what is no batch, and go back from what is no gradient."""
    net, batch = network_of(), vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2)])
    for x in ODD:
        attempt(net, x, arrays="device")
        for option in ("outputs", "dropout", "seed"):
            attempt(net, batch, **{"arrays": "device", option: x})
        for option in ("outputs", "pulls", "dropout", "seed"):
            attempt(net.record, batch, **{"arrays": "device", option: x})
        attempt(net.record(batch, arrays="device").backward, x)
        for name in ("out", *net.pushes):
            attempt(net.record(batch, arrays="device").backward, {name: x})
    for x in (*ODD[:3], "cupy"):
        for call in (net, net.record, net.plan):
            attempt(call, batch, arrays=x)


def plan() -> None:
    """Plan what is no batch, ask for what are no vertices, and give what is no pull."""
    net, graphs = network_of(), vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2)])
    for arrays in ("numpy", "device"):
        made = net.plan(graphs, arrays=arrays)
        for x in ODD:
            attempt(net.plan, x, arrays=arrays)
            attempt(made, x)
            attempt(made, {"x": x})
            attempt(made, seed=x)
            for option in ("outputs", "vertices", "dropout"):
                attempt(net.plan, graphs, arrays=arrays, **{option: x})
            attempt(net, graphs, vertices=x, arrays=arrays)


class Speaker(vrt.VertexFunction):
    """Say word 0 after each word."""

    def __init__(self) -> None:
        super().__init__(state={})
        self.next = vrt.Parameter((2, 2), vrt.init.constant([[1.0, 0.0], [1.0, 0.0]]))

    def forward(self) -> None:
        self.push("logits", vrt.embed(self.next, self.pull("word")))


def decoder() -> None:
    """Make decoders of odd parts, and call one with odd options."""
    net = vrt.compile(Speaker(), device="reference")
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {"word": [1]})])
    made = vrt.Decoder(net, batch)
    options = ("length_penalty", "temperature", "top_k", "top_p", "seed", "children", "end")
    for x in ODD:
        attempt(vrt.Decoder, x, batch)
        attempt(vrt.Decoder, net, x)
        attempt(vrt.Decoder, net, batch, word=x)
        attempt(vrt.Decoder, net, batch, num_beams=x)
        attempt(made, x, max_length=2)
        attempt(made, {"word": x}, max_length=2)
        attempt(made, max_length=x, end=0)
        for option in options:
            attempt(made, max_length=2, **{option: x})


INIT = [vrt.init.constant, vrt.init.normal, vrt.init.uniform]

ACTIVATIONS = {"block_diagonal": 2, "elu": 2, "gelu": 1, "leaky_relu": 2, "silu": 1, "softplus": 1}


def of_nn() -> None:
    """Make every cell, and call every activation."""
    cells()
    for name, count in ACTIVATIONS.items():
        of_values(getattr(vrt.nn, name), count)()


def types() -> None:
    """Call what calls return: the rest is looked at where its subject is."""
    on_device()
    plan()


TABLE: dict[str, Callable[[], None]] = {
    **{n: of_values(getattr(vrt, n), 1) for n in ("exp", "log", "relu", "sigmoid", "sqrt", "tanh")},
    **{n: reduction(getattr(vrt, n)) for n in ("sum", "max", "mean")},
    **{n: reduction(getattr(vrt, n)) for n in ("softmax", "log_softmax", "logsumexp")},
    **{n: of_values(getattr(vrt, n), 2) for n in ("maximum", "minimum", "concat", "embed")},
    "split": of_values(vrt.split, 2),
    **{n: of_values(getattr(vrt, n), 1) for n in ("abs", "stack")},
    **{n: of_values(getattr(vrt, n), 1) for n in ("stop_gradient", "ones", "zeros")},
    "straight_through": of_values(vrt.straight_through, 2),
    **{n: of_values(getattr(vrt, n), 1) for n in ("argmax", "floor")},
    "losses": lambda: [of_values(getattr(vrt.losses, n), 2)() for n in vrt.losses.__all__] and None,
    **{n: of_values(getattr(vrt, n), 2) for n in ("dot", "full")},
    "clip": of_values(vrt.clip, 3),
    "random": lambda: [of_values(getattr(vrt.random, n), 3)() for n in vrt.random.__all__] and None,
    "where": of_values(vrt.where, 3),
    "Parameter": of_odd(vrt.Parameter, 2),
    "bench": passes,
    "Optimizer": of_odd(vrt.Optimizer, 3),
    **{
        row.title: optimizer(OPTIMIZERS[row.title], *(option.name for option in row.options))
        for row in ROWS
    },
    "nn": of_nn,
    "parallel": parallel,
    "schedules": schedules,
    "CarriedState": of_odd(vrt.CarriedState),
    "ExponentialMovingAverage": of_odd(vrt.ExponentialMovingAverage, 2),
    "init": lambda: [of_odd(make)() for make in INIT] and None,
    "compile": compile_,
    "Decoder": decoder,
    "data": data,
    "VertexFunction": vertex_function,
    "Model": model,
    "Network": network,
    "types": types,
    **dict.fromkeys(("GraphBatch", "InputGraph", "Rows"), graphs_of_odd_parts),
}

# Checked where their subject is, or made by vertexrt alone.
ELSEWHERE = {
    "__version__",
    "errors",
    "load_checkpoint",
    "save_checkpoint",
}


def test_every_public_name_is_called() -> None:
    assert set(TABLE) | ELSEWHERE == set(vrt.__all__)
    assert not set(TABLE) & ELSEWHERE


@pytest.mark.filterwarnings("ignore")  # NumPy warns of what it makes of odd operands
@pytest.mark.parametrize("name", TABLE)
def test_odd_arguments_are_errors_of_ours(name: str) -> None:
    TABLE[name]()
