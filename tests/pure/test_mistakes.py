"""Mistakes, as tables: what is written, and the class and the text of its error.

Texts are as a traceback ends; `...` in them stands for anything, as in doctest. Each says what was
got, what was expected and what to do.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
import tomllib
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import networkx as nx
import numpy as np
import pytest

import vertexrt as vrt
from tests.bodies import WithBody, left_over, network_of
from tests.functions import FUNCTIONS
from tests.messages import refused, table
from tests.package_source import ROOT
from tests.runs import Way
from vertexrt.config import usable_threads


class F(WithBody):
    """A vertex function whose body does all that its forward() does."""

    def forward(self) -> None:
        self.body(self)

    def done(self, value: Any = 0.0) -> None:
        """Scatter and push something, so that nothing else is missing."""
        self.scatter(c=self.b * 1.0, h=self.b * 1.0)
        self.push("out", value)


# What is written in forward() of `f`.
IN_FORWARD = table(__file__, "IN_FORWARD")

MISTAKES = table(__file__, "MISTAKES")

IN_BATCHES = table(__file__, "IN_BATCHES")

# What is handed to a network in place of a batch.
for _where, _call in {
    "step": "tree.step({}, vrt.SGD(0.1))",
    "call": "tree({})",
    "record": "tree.record({})",
    "plan": "tree.plan({})",
    "explain_batch": "tree.explain_batch({})",
    "warm": "tree.warm({})",
}.items():
    for _given, _name in {"[GRAPH]": "list", "GRAPH": "InputGraph", "None": "NoneType"}.items():
        IN_BATCHES[_call.format(_given)] = (
            f"UsageError: [{_where}] the batch is a {_name}; expected a GraphBatch; "
            "build a GraphBatch: vrt.GraphBatch.from_graphs([...])."
        )


# What the rows name.


class NoSuper(vrt.VertexFunction):
    def __init__(self) -> None:
        self.w = vrt.Parameter((2, 2))


class Takes(vrt.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={})

    def forward(self, x: Any) -> None:  # type: ignore[override]
        self.push("x", x)


class Returns(Takes):
    def forward(self) -> Any:  # type: ignore[override]
        return self.pull("x")


def of(*graphs: tuple[list[list[int]], dict[str, Any]]) -> vrt.GraphBatch:
    """Build a batch of child lists and pulls."""
    made = [vrt.InputGraph.from_children(lists, pulls) for lists, pulls in graphs]
    return vrt.GraphBatch.from_graphs(made)


def with_a_slot(f: Any) -> None:
    f.done(vrt.sum(f.gather_all().h) + f.gather(0).h)


def star(children: int, body: Callable[[Any], None]) -> object:
    """Evaluate one vertex over so many leaves, of a function that declares one slot."""
    lists = [*([[]] * children), list(range(children))]
    return vrt.compile(F(body, arity=1), device="reference")(of((lists, {})))


@cache
def compiled(name: str = "tree-lstm", **options: Any) -> vrt.Network:
    return vrt.compile(FUNCTIONS[name][0](), **{"device": "reference", **options})


def changed(net: vrt.Network, dtype: str) -> dict[str, Any]:
    """Return other values of all parameters, those of `v` as another dtype."""
    values = net.parameters.items()
    return {name: a.astype(dtype) if name == "v" else a + 1.0 for name, a in values}


def named_twice() -> F:
    first, second = F(F.done), F(F.done)
    assert set(first.parameters()) == {"w", "b", "t3"}
    second.v = first.w  # type: ignore[attr-defined]
    return second


TREE: list[list[int]] = [[], [], [0, 1]]
WIDE = [[], [], [0, 1], [2, 0, 1]]
PULLS: dict[str, Any] = {"word": [0] * 3, "label": [0] * 3}
INITIAL = {"h": vrt.Parameter(3)}
GRAPH = vrt.InputGraph.from_children(TREE, PULLS)
THREE = vrt.GraphBatch.from_graphs([GRAPH])


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Name what the rows compute with."""
    batch, dag = of(([[], [0]], {})), nx.DiGraph()
    dag.add_node(0, word=1)
    modules = {"math": math, "operator": operator}
    here = {"net": network_of(), "batch": batch, "adam": vrt.Adam(), "left": left_over()}
    return globals() | modules | here | {"marks": compiled("marks"), "dag": dag}


@pytest.mark.parametrize("code", IN_FORWARD)
def test_mistakes_in_forward(code: str, names: dict[str, Any]) -> None:
    def body(f: F) -> None:
        eval(compile(code, "mistake.py", "eval"), {**names, "f": f})

    error = refused(F(body).trace, IN_FORWARD[code])
    assert re.search(r"at \w+\.py:\d+: ", str(error))


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_say_what_to_write(code: str, names: dict[str, Any]) -> None:
    refused(lambda: eval(code, names), MISTAKES[code])
    assert names["adam"].groups == {}, "an option was refused and set"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("code", IN_BATCHES)
def test_mistakes_in_batches(code: str, threads: int, names: dict[str, Any]) -> None:
    """The vertex and its graph are the user's, however the batch is shared out."""
    tree = compiled(threads=threads)
    before = dict(tree.parameters)
    error = refused(lambda: eval(code, {**names, "tree": tree}), IN_BATCHES[code])
    assert error.__context__ is None, "the traceback has the same error twice"
    for name, value in tree.parameters.items():
        np.testing.assert_array_equal(value, before[name])


def test_a_shape_error_shows_the_users_line() -> None:
    def body(f: F) -> None:
        f.done(f.w @ f.b + f.b)  # the mistake

    line = inspect.getsourcelines(body)[1] + 1
    refused(
        F(body).trace,
        "TraceError: [add] operands are float[4], param float[3], at "
        f"test_mistakes.py:{line}: f.done(f.w @ f.b + f.b)  # the mistake; "
        "equal shapes, or a scalar with any shape; change that line.",
    )


TEXTS = tomllib.loads((ROOT / "vertexrt" / "instead.toml").read_text(encoding="utf-8"))


def test_names_to_write_are_there() -> None:
    for texts in TEXTS.values():
        for name in re.findall(r"\bvrt\.([\w.]*\w)", " ".join(texts.values())):
            attrgetter(name)(vrt)


# What is no mistake.


def test_empty_slots_beyond_the_arity_do_no_harm() -> None:
    found = compiled()(of(([[], [], [0, 1, -1, -1]], PULLS)))
    np.testing.assert_array_equal(found["loss"], compiled()(THREE)["loss"])


def test_gradients_of_any_layout_are_the_same() -> None:
    plain = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    layouts = [plain, plain.astype(">f4"), plain.astype(np.float64), plain.tolist()]
    layouts += [np.asfortranarray(plain), np.repeat(plain, 2, 1)[:, ::2], plain[::-1].copy()[::-1]]
    runs = [compiled().record(THREE, outputs=["logits"]) for _ in layouts]
    pairs = zip(runs, layouts, strict=True)
    first, *others = [run.backward({"logits": given}).parameters for run, given in pairs]
    for found in others:
        for name, value in found.items():
            np.testing.assert_array_equal(value, first[name])


# A loss that is not finite.


@pytest.mark.filterwarnings("ignore:(invalid|divide)")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_value_that_is_not_finite_is_named(threads: int) -> None:
    def body(f: F) -> None:
        x = f.pull("x", shape=3)
        f.scatter(c=x, h=x)
        f.push("loss", vrt.sum(vrt.sum(vrt.log(f.gather_all().h + x))))

    net = vrt.compile(F(body, arity=1), device="reference", threads=threads)
    x = np.ones((4, 3))
    x[2, 1] = -3.0
    graphs = [vrt.InputGraph.chain(4, {"x": np.ones((4, 3))}), vrt.InputGraph.chain(4, {"x": x})]
    refused(
        lambda: net.step(vrt.GraphBatch.from_graphs(graphs), vrt.SGD(0.1)),
        "NumericError: [loss] the loss is nan: the first value that is not finite is made by log "
        "of vertex 2 of graph 1, at test_mistakes.py:...a finite loss; no parameter was changed; "
        "lower the learning rate, clip the gradient norm, or guard that expression.",
    )
    assert np.isfinite(net.step(vrt.GraphBatch.from_graphs(graphs[:1]), vrt.SGD(0.1)))


def test_a_parameter_that_is_not_finite_is_named() -> None:
    net = Way().compile(FUNCTIONS["tree-lstm"][0]())
    net.executor.model.store.value("v")[1, 2] = np.nan
    refused(
        lambda: net.step(THREE, vrt.SGD(0.1)),
        "NumericError: ...parameter 'v' is not finite at [1, 2]; finite parameters;...",
    )


class Apart(WithBody):
    """Reads `read` for a push that is no loss, and `lost` nowhere."""

    def __init__(self) -> None:
        super().__init__(lambda f: f.push("other", f.w @ f.b + f.read))
        self.read, self.lost = vrt.Parameter(4), vrt.Parameter(4)


def test_parameters_that_are_not_trained_are_warned_of_once(names: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"^\[compile\] nothing reads lost, t3;") as found:
        net = vrt.compile(Apart(), device="reference")
    with pytest.warns(UserWarning, match=r"^\[step\] 'loss' does not depend on read, w;") as later:
        net.step(names["batch"], vrt.SGD(0.1))
    net.step(names["batch"], vrt.SGD(0.1), outputs=["other"])
    assert [each.filename for each in (*found, *later)] == [__file__] * 2


# What is printed, in one line.

SHOWN = table(__file__, "SHOWN") | {
    "net": (
        "Network(WithBody on reference, engine='auto', threads={threads}, float32, 33 parameters, "
        "pushes out, loss)"
    ),
}


def in_forward(call: Callable[[Any], object]) -> Any:
    """Return what prints as the value of a call in a forward() does there."""
    kept: list[str] = []
    WithBody(lambda f: kept.append(repr(call(f)))).trace()
    return type("Shown", (), {"__repr__": lambda self: kept[0]})()


@pytest.mark.parametrize("code", SHOWN)
def test_what_is_printed_is_one_line(code: str, names: dict[str, Any]) -> None:
    assert repr(eval(code, names)) == SHOWN[code].replace("{threads}", str(usable_threads()))
