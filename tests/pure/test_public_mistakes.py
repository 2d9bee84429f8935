"""What errors say to write where something was written by mistake, and what `repr` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.bodies import WithBody, left_over, network_of
from tests.messages import text_of
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


def traced(body: Callable[[Any], object]) -> Callable[[], object]:
    return WithBody(body).trace


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
    "an array as constant": (traced(lambda f: f.b * np.ones(3)), "which is not trained"),
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
}


def graphs() -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0]], {})])


def gradients() -> Any:
    net = network_of()
    run = net.record(graphs())
    return run.backward({"loss": np.ones(2)})


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_say_what_to_write(name: str) -> None:
    call, part = MISTAKES[name]
    assert part in text_of(VertexrtError, call)


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
