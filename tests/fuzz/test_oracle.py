"""The oracle: independent of the package, right by central differences, and complete."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.fuzz import oracle
from tests.fuzz.batches import parameters
from tests.fuzz.bounded import Array, exact
from tests.fuzz.calls import Expected
from tests.fuzz.campaign import drawn
from tests.fuzz.evaluate import OracleRun, PulledRows
from tests.fuzz.function import source
from vertexrt.api import functional, losses, random

STEP = 1e-6  # of central differences: rounding and curvature are both near 1e-10
INDEPENDENT = (
    *("oracle.py", "oracle_elementwise.py", "oracle_functional.py"),
    *("tape.py", "bounded.py", "evaluate.py"),
)
SEEDS = range(500)  # what they draw holds every op


def functions() -> dict[str, FunctionType]:
    """Return the public functions on traced values."""
    return {
        name: function
        for module in (random, functional, losses)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name in (*vrt.__all__, *losses.__all__, *random.__all__, *vrt.nn.__all__)
    }


def methods() -> dict[str, FunctionType]:
    """Return what a vertex function calls inside `forward`."""
    outside = ("forward", "parameters", "trace")
    found = inspect.getmembers(vrt.VertexFunction, inspect.isfunction)
    return {n: m for n, m in found if not n.startswith("_") and n not in outside}


@pytest.mark.parametrize("file", INDEPENDENT)
def test_the_oracle_imports_nothing_of_the_package(file: str) -> None:
    tree = ast.parse((Path(__file__).parent / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("tests."):
                module = name.split(".")
                assert module[1] == "fuzz"
                assert len(module) == 2 or f"{module[2]}.py" in (*INDEPENDENT, "function.py")
            assert not name.startswith("vertexrt")


@pytest.mark.parametrize("name", functions())
def test_the_oracle_has_every_function(name: str) -> None:
    assert list(inspect.signature(getattr(oracle, name)).parameters) == list(
        inspect.signature(functions()[name]).parameters
    )


@pytest.mark.parametrize("name", methods())
def test_the_oracle_has_every_method(name: str) -> None:
    assert list(inspect.signature(getattr(oracle.VertexFunction, name)).parameters) == list(
        inspect.signature(methods()[name]).parameters
    )


def test_everything_public_is_drawn() -> None:
    """An op that the generator does not know fails here: add it to its steps."""
    called: set[tuple[str, str]] = set()
    operators: set[type] = set()
    for seed in SEEDS:
        for node in ast.walk(ast.parse(source(drawn(seed, 2)[0]))):
            if isinstance(node, ast.Attribute):
                called.add((ast.unparse(node.value), node.attr))
            if isinstance(node, (ast.BinOp, ast.UnaryOp)):
                operators.add(type(node.op))
            if isinstance(node, ast.Compare):
                operators.add(type(node.ops[0]))
            if isinstance(node, ast.Subscript):
                operators.add(type(node.slice))
    homes = ("vrt", "vrt.losses", "vrt.random", "vrt.nn")
    assert set(functions()) <= {name for owner, name in called if owner in homes}
    assert set(methods()) <= {name for owner, name in called if owner == "self"}
    arithmetic = {ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult, ast.Pow, ast.USub}
    compared = {ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE}
    integers = {ast.FloorDiv, ast.Mod, ast.Name}  # x[label]
    assert arithmetic | compared | integers | {ast.Slice, ast.Constant} <= operators


def clear_cases() -> Iterator[tuple[int, Expected, dict[str, Array], dict[str, PulledRows]]]:
    """Yield networks whose comparisons are not nearly tied, and whose gradients are slopes.

    No two rows of their pulls are equal: at a tie there is no slope.
    """
    for seed in SEEDS[:60]:
        network, batches = drawn(seed, 4)
        ops = {node.op for function in network.types.values() for node in function.nodes}
        expected, values = Expected(network, batches), {}
        rng = np.random.default_rng(7)
        pulls = {name: batches[0].rows(name) for name in batches[0].forms}
        for name, rows in pulls.items():
            if rows.table is not None:
                moved = rows.table + 0.01 * rng.normal(size=rows.table.shape)
                pulls[name] = PulledRows(moved, rows.index)
        values = parameters(expected.shapes, 3)
        slopes = ops.isdisjoint(("stop_gradient", "straight_through"))
        if slopes and expected.run(0, values, pulls).closest > 1e-4:
            yield seed, expected, values, pulls


def test_gradients_are_those_of_central_differences() -> None:
    """In a random direction of all trained parameters, and of each pulled table."""
    cases = list(clear_cases())
    assert len(cases) > 20
    for seed, expected, values, pulls in cases:
        rng = np.random.default_rng(seed)
        start = expected.run(0, values, pulls)
        d_pushes = {n: rng.normal(size=start.push(n).shape) for n in start.pushes}
        gradients = start.gradients(d_pushes)
        way = {n: rng.normal(size=values[n].shape) for n in gradients.parameters}  # of trained ones
        tables = {n: rows for n, rows in pulls.items() if rows.table is not None}
        moves = {n: rng.normal(size=rows.table.shape) for n, rows in tables.items()}  # type: ignore[union-attr]
        along = sum(float((gradients.parameters[n].value * d).sum()) for n, d in way.items())
        slopes = [(along, way, {})]
        slopes += [
            (float((gradients.pulled[n].value * d).sum()), {}, {n: d}) for n, d in moves.items()
        ]
        for along, of_values, of_pulls in slopes:
            ends = []
            for h in (STEP, -STEP):
                here = {**values, **{n: values[n] + h * d for n, d in of_values.items()}}
                there = {
                    n: PulledRows(tables[n].table + h * d, tables[n].index)  # type: ignore[operator]
                    for n, d in of_pulls.items()
                }
                found = expected.run(0, here, {**pulls, **there})
                ends.append(
                    sum(float((found.push(n).value * d).sum()) for n, d in d_pushes.items())
                )
            slope = (ends[0] - ends[1]) / (2 * STEP)
            assert along == pytest.approx(slope, rel=1e-5, abs=1e-6), seed


def test_sigmoid_is_right_where_it_is_tiny() -> None:
    """Half of 1 + tanh(x / 2) has lost every digit at -40."""

    def build(vrt: Any) -> Any:
        class F(vrt.VertexFunction):  # type: ignore[misc]
            def __init__(self) -> None:
                self.b = vrt.Parameter((3,))
                super().__init__(arity=None, state={})

            def forward(self) -> None:
                self.push("p", vrt.sigmoid(self.b))

        return F()

    x = np.array([-700.0, -40.0, 40.0])
    got = OracleRun(build(oracle), [[]], {}, {"b": x}).push("p").value
    assert got[0] == pytest.approx([math.exp(-700), math.exp(-40), 1.0], rel=1e-15, abs=0)


@pytest.mark.parametrize("depth", [1, 10, 1000])
def test_bounds_hold_and_are_not_wide(depth: int) -> None:
    """A sum of products in float32 is inside its bound, and the bound is not much wider."""
    rng = np.random.default_rng(depth)
    a, b = (rng.normal(size=(50, depth)).astype(np.float32) for _ in "ab")
    want = exact(a) * exact(b)
    want = want.sum(1)
    off = np.abs(np.cumsum(a * b, axis=1, dtype=np.float32)[:, -1] - want.value)
    bound = want.error * np.finfo(np.float32).eps
    assert (off <= bound).all()
    assert off.max() > bound.mean() / 300
