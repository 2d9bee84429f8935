"""Graphs are shared out whole, each once, and evenly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import graph_batches
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.scheduler.balance import (
    LEVEL,
    Share,
    assign_graphs,
    divide,
    graph_costs,
    number_levels,
)
from vertexrt.scheduler.compiled import find_levels


@given(graph_batches(), st.integers(1, 6))
def test_every_vertex_is_in_one_share(batch: GraphBatch, parts: int) -> None:
    shares = divide(Share(batch), parts)
    assert len(shares) == min(parts, batch.num_graphs)
    vertices = np.concatenate([share.vertices for share in shares])
    assert sorted(vertices.tolist()) == list(range(batch.num_vertices))
    for share in shares:
        assert share.batch.num_vertices == len(share.vertices)
        degrees = np.diff(batch.child_ptr)[share.vertices]
        np.testing.assert_array_equal(np.diff(share.batch.child_ptr), degrees)
        below = share.batch.child[share.batch.child >= 0]
        slots = np.concatenate(
            [np.arange(batch.child_ptr[v], batch.child_ptr[v + 1]) for v in share.vertices]
        )
        expected = batch.child[slots]
        np.testing.assert_array_equal(share.vertices[below], expected[expected >= 0])


def costs_of(batch: GraphBatch, level: float) -> np.ndarray:
    levels = number_levels(batch.child_ptr, batch.child)
    found: np.ndarray = graph_costs(batch.graph_ptr, levels, level)
    return found


def test_shares_cost_about_the_same() -> None:
    sizes = np.random.default_rng(0).integers(5, 100, 200)
    batch = GraphBatch.from_graphs([InputGraph.chain(int(n)) for n in sizes])
    loads = [costs_of(s.batch, LEVEL).sum() for s in divide(Share(batch), 7)]
    assert max(loads) - min(loads) <= 0.02 * np.mean(loads)


def test_a_deep_graph_costs_more_than_a_flat_one() -> None:
    chain, tree = InputGraph.chain(63), InputGraph.complete_tree(32)
    batch = GraphBatch.from_graphs([chain, tree])
    assert batch.sizes().tolist() == [63, 63]
    for level in (0.5, LEVEL, 8.0):
        costs = costs_of(batch, level)
        assert costs.tolist() == [63 + 63 * level, 63 + 6 * level]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 40))
def test_each_graph_goes_to_the_share_with_the_least_so_far(costs: list[int], parts: int) -> None:
    """Of several the first; graphs in falling order, those of one cost as they come (Graham)."""
    load, expected = [0.0] * parts, [0] * len(costs)
    for g in sorted(range(len(costs)), key=lambda g: -costs[g]):
        expected[g] = load.index(min(load))
        load[expected[g]] += costs[g]
    assert assign_graphs(np.array(costs, np.float64), parts).tolist() == expected


def test_the_largest_graph_stands_alone() -> None:
    batch = GraphBatch.from_graphs([InputGraph.chain(n) for n in (1000, 1, 1, 1)])
    assert sorted(s.batch.num_graphs for s in divide(Share(batch), 2)) == [1, 3]


def test_the_cost_of_a_graph_is_its_vertices_and_its_depth() -> None:
    graphs = [[[], [0], [1]], [[], [], [0, 1]], [[]], [[], [0], [0, 1], [2]]]
    batch = GraphBatch.from_graphs([InputGraph.from_children(each) for each in graphs])
    levels = number_levels(batch.child_ptr, batch.child)
    assert np.array_equal(levels, find_levels(batch.child_ptr, batch.child) + 1)
    assert costs_of(batch, 3.0).tolist() == [12.0, 9.0, 4.0, 16.0]
