"""Every public name, called with what it does not take: an error of ours, with its form of text.

The table has a row for each name of `vertexrt.__all__`, so a new one needs a row too.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.pure.test_errors_f import FORM
from vertexrt.api.optim import OPTIMIZERS
from vertexrt.errors import VertexrtError
from vertexrt.ir.updates import OPTIMIZERS as ROWS

NUMBERS = itertools.count()


class F(vrt.VertexFunction):
    """A vertex function that runs a body with itself on the way."""

    def __init__(self, body: Callable[[Any], object] = lambda f: None) -> None:
        super().__init__(arity=2, state={"c": 3, "h": 3})
        self.body = body
        self.w = vrt.Parameter((4, 3))
        self.b = vrt.Parameter((3,))

    def forward(self) -> None:
        self.body(self)
        self.scatter(c=self.b * 1.0, h=self.b * 1.0)
        self.push("out", self.b)
        self.push("loss", vrt.sum(self.b * self.gather(0).h))


def left_over() -> Any:
    """Return a value of a forward() that is over."""
    kept: list[Any] = []
    F(lambda f: kept.append(f.b * 1.0)).trace()
    return kept[0]


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
    F,
    F(),
    left_over(),
    vrt.Parameter((3,)),
    vrt.SGD,
    vrt.SGD(0.1),
]


def values(f: Any) -> list[Any]:
    """Return what a forward() computes with, of every kind."""
    kids, first = f.gather_all(), f.gather(0)
    integer, matrix = f.pull("i", dtype="int"), f.pull("m", shape=(2, 2))
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
        F(inside).trace()

    def inside(f: Any) -> None:
        pool = [*values(f), *ODD]
        for args in itertools.product(pool, repeat=min(count, 2)):
            attempt(call, *args, *args[: count - len(args)], *rest)

    return check


def reduction(call: Callable[..., object]) -> Callable[[], None]:
    def check() -> None:
        of_values(call, 1)()
        F(inside).trace()

    def inside(f: Any) -> None:
        for x, over in itertools.product(values(f), [*ODD, "children", "elements"]):
            attempt(call, x, over=over)

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
            for option in ("weight_decay", "clip_norm", *options):
                attempt(make, 0.1, **{option: x})
            attempt(make(0.1).update, x)

    return check


OPTIONS = ("device", "engine", "dtype", "policy", "seed", "reduction", "precision", "passes")


def compile_() -> None:
    of_odd(vrt.compile)()
    for option, x in itertools.product((*OPTIONS, "threads", "processors"), ODD):
        if x is not None or option not in ("threads", "processors"):
            attempt(vrt.compile, F(), **{"device": "reference", option: x})


def vertex_function() -> None:
    for x, y in itertools.product(ODD, repeat=2):
        attempt(vrt.VertexFunction, arity=x, state=y)
        attempt(vrt.VertexFunction, state={"h": x}, initial={"h": y})
        attempt(vrt.VertexFunction, state={"h": 2}, initial=x)
    F(methods).trace()
    counts: list[int] = []
    F(lambda f: counts.append(len(values(f)))).trace()
    for k in range(counts[0] + len(ODD)):  # a function scatters once
        attempt(F(lambda f, k=k: scatter([*values(f), *ODD][k], f)).trace)


def scatter(x: Any, f: Any) -> None:
    f.scatter(c=x, h=x)


def methods(f: Any) -> None:
    pool = [*values(f), *ODD]
    for x in pool:
        for method in (f.gather, f.present, f.pull, F().pull, F().gather):
            attempt(method, x)
        attempt(f.pull, "p", shape=x)
        attempt(f.pull, "q", dtype=x)
        attempt(f.push, x, f.b)
        attempt(f.push, f"push {next(NUMBERS)}", x)


def network() -> None:
    net = vrt.compile(F(), device="reference")
    graph = vrt.InputGraph.from_children([[], [0]], {})
    batch = vrt.GraphBatch.from_graphs([graph])
    for x in ODD:
        attempt(net.step, batch, x)
        attempt(net.step, batch, vrt.SGD(0.1), x)
        attempt(net.submit, batch, x)
        attempt(net.forward, batch, True, x)
        attempt(net.set_parameters, x)
        attempt(net.set_parameters, {"w": x, "b": x})
        attempt(operator.setitem, net.parameters, "w", x)
        for gradients in (x, {"out": x}):
            net.forward(batch, train=True)
            attempt(net.backward, gradients)


def graphs_of_odd_parts() -> None:
    net = network_of()
    of_odd(vrt.InputGraph.from_children, 2)()
    of_odd(vrt.GraphBatch.from_graphs)()
    of_odd(vrt.Pulled, 2)()
    for x in ODD:
        attempt(vrt.GraphBatch.from_graphs, [x])
        attempt(vrt.GraphBatch.from_arrays, x, [0, 0, 1], [0], {})
        attempt(vrt.GraphBatch.from_arrays, [0, 2], x, [0], {})
        attempt(vrt.GraphBatch.from_arrays, [0, 2], [0, 0, 1], x, {})
        attempt(vrt.GraphBatch.from_arrays, [0, 2], [0, 0, 1], [0], {"word": x})
        attempt(vrt.InputGraph.from_children, [[], [x]], {})
        attempt(vrt.InputGraph.from_children, [[], [0]], {"word": x})
        attempt(net.submit, x)
        attempt(net.step, x, vrt.SGD(0.1))
        attempt(net.explain_batch, x)


INIT = [vrt.init.constant, vrt.init.normal, vrt.init.uniform]

TABLE: dict[str, Callable[[], None]] = {
    **{n: of_values(getattr(vrt, n), 1) for n in ("exp", "log", "relu", "sigmoid", "sqrt", "tanh")},
    **{n: reduction(getattr(vrt, n)) for n in ("sum", "max", "mean")},
    **{n: reduction(getattr(vrt, n)) for n in ("softmax", "log_softmax", "logsumexp")},
    **{n: of_values(getattr(vrt, n), 2) for n in ("maximum", "minimum", "concat", "embed")},
    **{n: of_values(getattr(vrt, n), 2) for n in ("cross_entropy", "squared_error", "split")},
    "dropout": of_values(vrt.dropout, 2),
    "where": of_values(vrt.where, 3),
    "Parameter": of_odd(vrt.Parameter, 2),
    "Optimizer": of_odd(vrt.Optimizer, 3),
    **{
        row.title: optimizer(OPTIMIZERS[row.title], *(option.name for option in row.options))
        for row in ROWS
    },
    "init": lambda: [of_odd(make)() for make in INIT] and None,
    "compile": compile_,
    "VertexFunction": vertex_function,
    "Network": network,
    **dict.fromkeys(("GraphBatch", "InputGraph", "Pulled"), graphs_of_odd_parts),
}

# Checked where their subject is, or made by vertexrt alone.
ELSEWHERE = {
    "Checkpoint",
    "Gradients",
    "VertexrtError",
    "__version__",
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


BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.mod, operator.floordiv, operator.and_, operator.or_),
]
UNARY: list[Callable[[Any], object]] = [
    *(operator.neg, abs, float, int, len, bool, list, operator.invert, operator.index),
    *(np.asarray, np.tanh, np.sum, repr, str, hash),
]


@pytest.mark.filterwarnings("ignore")
def test_operators_on_what_a_forward_computes_with() -> None:
    def body(f: Any) -> None:
        made = values(f)
        for apply, x, y in itertools.product(BINARY, made, [*made, *ODD]):
            attempt(apply, x, y)
            attempt(apply, y, x)
        for apply, x in itertools.product(UNARY, made):
            attempt(apply, x)
        for x, key in itertools.product(made, ODD):
            attempt(operator.getitem, x, key)
            attempt(operator.contains, x, key)

    F(body).trace()


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


def traced(body: Callable[[Any], object]) -> Callable[[], object]:
    return F(body).trace


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no such field": (traced(lambda f: f.gather(0).x), "field 'x' at"),
    "a whole state": (traced(lambda f: vrt.tanh(f.gather(0))), "write .c after gather()"),
    "a sum of states": (traced(lambda f: sum([f.gather(0)])), "a whole state is used as a value"),
    "no super().__init__()": (
        lambda: vrt.compile(NoSuper(), device="reference"),
        "[trace] NoSuper has no arity and no state; a call of super().__init__ in its __init__;",
    ),
    "a class": (
        lambda: vrt.compile(F),  # type: ignore[arg-type]
        "[compile] the class F; an instance of a subclass of vrt.VertexFunction; "
        "write vrt.compile(F(...)).",
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
    "an array as constant": (traced(lambda f: f.b * np.ones(3)), "which is not trained"),
    "infinity": (traced(lambda f: f.b * float("-inf")), "such as -1e30"),
    "and of masks": (traced(lambda f: (f.b > 0) & (f.b < 1)), "multiply the masks"),
    "if of a mask": (traced(lambda f: 1 if f.b > 0 else 2), "multiply by a comparison"),
    "in a list": (traced(lambda f: f.b in [f.w * 1.0]), "objects are compared by `is`"),
    "an integer with a real": (
        traced(lambda f: f.pull("i", dtype="int") == 0.5),
        "an integer pull and 0.5",
    ),
    "an integer with a value": (
        traced(lambda f: f.pull("i", dtype="int") == f.b),
        "real operands; an integer is an index of embed, a label, or compared with integers",
    ),
    "a value that outlived its forward": (lambda: left_over() + 1.0, "outlived its forward()"),
    "a comparison outside of forward": (
        lambda: vrt.Parameter((3,)) == 1.0,
        "[trace] an operation on parameters runs outside of forward()",
    ),
    "another function's gather": (
        traced(lambda f: F().gather(0)),
        "F.gather in the forward() of another function",
    ),
    "one string of outputs": (
        lambda: network_of().forward(graphs(), outputs="loss"),
        "outputs is 'loss'; expected names of pushes; write outputs=['loss'].",
    ),
}


def network_of() -> vrt.Network:
    return vrt.compile(F(), device="reference")


def graphs() -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0]], {})])


def gradients() -> Any:
    net = network_of()
    net.forward(graphs(), train=True)
    return net.backward({"loss": np.ones(2)})


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_say_what_to_write(name: str) -> None:
    call, part = MISTAKES[name]
    with pytest.raises(VertexrtError) as error:
        call()
    text = str(error.value)
    assert FORM.fullmatch(text), text
    assert part in text


def test_what_a_state_has_can_be_asked() -> None:
    found: list[bool] = []
    F(lambda f: found.extend([hasattr(f.gather(0), "h"), hasattr(f.gather(0), "x")])).trace()
    assert found == [True, False]


def test_shapes_may_be_numbers() -> None:
    assert vrt.Parameter(5).shape == (5,)
    assert vrt.Parameter(np.int64(5)).shape == (5,)
    assert vrt.Parameter((np.int32(2), 3)).shape == (2, 3)


def shown() -> Iterator[tuple[object, str]]:
    net = network_of()
    yield net, "Network(F on reference, engine='batched', float32, 15 parameters, pushes out, loss)"
    yield net.parameters, "Parameters(w: [4, 3], b: [3]; float32)"
    yield F(), "F(arity=2, state={'c': 3, 'h': 3}, 15 parameters)"
    yield NoSuper(), "NoSuper(without super().__init__())"
    yield vrt.Parameter((4, 3)), "Parameter((4, 3))"
    yield (
        vrt.SGD(0.1, 0.9),
        "SGD(lr=0.1, momentum=0.9, weight_decay=0.0, clip_norm=None; 0 steps done)",
    )
    yield gradients(), "Gradients(parameters: w [4, 3], b [3]; pulled: none)"
    evaluation = net.submit(graphs())
    evaluation.result()
    yield evaluation, "Evaluation(out [2, 3], loss [2])"
    kept: list[Any] = []
    F(lambda f: kept.extend([repr(f.b > 0), repr(f.gather(0)), repr(f.w)])).trace()
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
