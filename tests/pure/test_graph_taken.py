"""Graphs that were taken are copied when they are looked at, and not before."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backend.test_on_device import Lent
from tests.strategies import graph_batches
from vertexrt.data import Loader
from vertexrt.errors import GraphError
from vertexrt.graph import GraphBatch, InputGraph, Rows
from vertexrt.graph.batch import fill, source_of, starts_of


def pool() -> GraphBatch:
    chains = [InputGraph.chain(n, {"word": np.arange(n, dtype=np.int32)}) for n in (3, 1, 2, 5)]
    return GraphBatch.from_graphs(chains)


def copied(batch: GraphBatch) -> bool:
    """Tell whether a batch holds arrays; to ask for one would make it copy them."""
    return batch._fields is not None and len(batch._fields.child_ptr) > 0


def assert_same(found: GraphBatch, expected: GraphBatch) -> None:
    for name in ("graph_ptr", "child_ptr", "child"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for pull, value in expected.pulls.items():
        np.testing.assert_array_equal(found.pulls[pull], value)


def test_sizes_and_graphs_of_graphs_are_known_without_a_copy() -> None:
    batch = pool().take([3, 0, 2])
    assert (batch.num_graphs, batch.num_vertices, batch.num_edges, len(batch)) == (3, 10, 7, 3)
    assert [each.tolist() for each in starts_of(batch)] == [[0, 5, 8, 10], [0, 4, 6, 7]]
    inner = batch.take([2, 0])
    assert not copied(batch)
    assert not copied(inner)
    assert_same(inner, pool().take([2, 3]))
    assert copied(inner)
    assert not copied(batch)
    source, ids = source_of(inner)
    assert source is source_of(batch)[0]
    assert ids.tolist() == [2, 3]
    fill(batch)
    assert source_of(batch.take([1, 2]))[0] is source, "copied or not"


@given(graph_batches(), st.data())
def test_graphs_of_taken_graphs_are_the_same_copied_or_not(
    batch: GraphBatch, data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.integers(0, batch.num_graphs - 1), min_size=1, max_size=6))
    inner = data.draw(st.lists(st.integers(0, len(some) - 1), min_size=1, max_size=6))
    here, there = batch.take(some), batch.take(some)
    fill(there)
    assert_same(here.take(inner), there.take(inner))
    for one, other in zip(starts_of(here), starts_of(there), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrong", [[-1], [2], [0, 7]])
def test_a_number_that_is_no_graph_is_refused_at_once(wrong: list[int]) -> None:
    taken = pool().take([3, 0])
    with pytest.raises(GraphError, match=r"\[take\] graph -?\d; the batch has the graphs 0..1"):
        taken.take(wrong)
    assert not copied(taken)


def test_a_batch_lives_as_long_as_what_was_taken_from_it() -> None:
    whole = pool()
    taken, dead = whole.take([0]), ref(whole)
    del whole
    fill(taken)
    gc.collect()
    assert dead() is source_of(taken)[0]
    del taken
    gc.collect()
    assert dead() is None


def test_pulls_keep_their_order_whichever_is_looked_at_first() -> None:
    taken = pool().with_pulls({"x": np.ones(11)}).take([1, 3])
    assert np.asarray(taken.pulls["x"]).shape == (6,)
    assert [*taken.with_pulls({}).pulls] == ["word", "x"]


def test_what_was_not_copied_goes_to_another_process() -> None:
    taken = pool().take([1, 3])
    found = pickle.loads(pickle.dumps(taken))
    assert_same(found, pool().take([1, 3]))
    assert source_of(found)[0] is found


def test_threads_may_look_at_once() -> None:
    rng = np.random.default_rng(0)
    whole = GraphBatch.from_graphs([InputGraph.chain(int(n)) for n in rng.integers(1, 60, 300)])
    for _ in range(20):
        chosen = rng.integers(0, 300, 200)
        taken = whole.take(chosen)
        with ThreadPoolExecutor(4) as threads:
            found = list(
                threads.map(lambda _, b=taken: b.child.sum() + b.child_ptr.sum(), range(8))
            )
        assert len(set(found)) == 1


def test_a_worker_of_a_loader_copies() -> None:
    assert not any(copied(batch) for batch in Loader(pool(), 2))
    assert all(copied(batch) for batch in Loader(pool(), 2, workers=1))


def test_rows_on_a_gpu_are_shared() -> None:
    rows = Lent(np.arange(22, dtype=np.float32).reshape(11, 2))
    batch = pool().with_pulls({"x": Rows(rows)}).take([1, 3])
    pulled = batch.pulls["x"]
    assert isinstance(pulled, Rows)
    assert pulled.index is not None
    assert pulled.index.tolist() == [3, 6, 7, 8, 9, 10]
    assert len(pulled.table) == 11
