"""Functions drawn at random run the same with every pass on and with none, compiled and plain."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

import vertexrt as vrt
from tests.random_functions import OPS, RandomFunction, Recipe, recipes
from tests.runs import PLAIN, TOLERANCE, Way, assert_output_gradients, assert_same, evaluate, train
from tests.strategies import full_batches, pulls_for
from vertexrt.engine.variant import Passes

# Values that are equal but for rounding may take either side of `maximum` or share a `max`; the
# yardstick then has another gradient. That takes equal words and marks, so few vertices draw them.


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(recipes(), full_batches(2, max_vertices=6, max_graphs=2))
def test_passes_change_nothing(recipe: Recipe, batch: vrt.GraphBatch) -> None:
    """Unspecialised, unfused, one vertex a task, against everything on."""
    plain, whole = PLAIN.compile(RandomFunction(recipe)), Way().compile(RandomFunction(recipe))
    assert_same(evaluate(whole, batch), evaluate(plain, batch), TOLERANCE["float64"])
    assert_same(train(whole, batch), train(plain, batch), TOLERANCE["float64"])


def fixed_batch() -> vrt.GraphBatch:
    lists = [[], [], [0, 1], [-1, 2], [3, 0], [4, 4], [5, -1], [1]]
    graphs = [vrt.InputGraph.from_children(lists, pulls_for(8, seed)) for seed in (3, 4)]
    return vrt.GraphBatch.from_graphs(graphs)


@pytest.mark.parametrize("seed", range(4))
def test_compiled_functions_agree(seed: int) -> None:
    """Between them these four recipes hold every step."""
    order = [(7 * k + 3 * seed) % len(OPS) for k in range(seed, len(OPS), 4)]
    steps = tuple((op, k + seed, 2 * k + 1, k) for k, op in enumerate(order))
    recipe = (steps, seed)
    compiled = Way("cpu", passes=Passes(specialise=False)).compile(
        RandomFunction(recipe, everything=True)
    )
    plain = PLAIN.compile(RandomFunction(recipe, everything=True))
    batch = fixed_batch()
    assert_same(evaluate(compiled, batch), evaluate(plain, batch), TOLERANCE["float64"])
    assert_output_gradients(plain, batch)
