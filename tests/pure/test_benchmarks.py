"""The benchmark harness takes turns fairly, compares before it times, and says where it ran."""

import json
import time

import numpy as np
import pytest

from benchmarks.machine import describe
from benchmarks.tree_lstm import difference, measure, parse, table
from vertexrt.graph import GraphBatch, InputGraph


def ten_chains() -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(length) for length in range(1, 11)])


def test_contenders_take_turns_over_the_same_minibatches() -> None:
    calls: list[tuple[str, int]] = []

    def contender(name: str):
        def step(batch: GraphBatch) -> None:
            calls.append((name, batch.num_vertices))
            time.sleep(0.001)

        return step

    contenders = {"vertexrt": contender("vertexrt"), "other": contender("other")}
    result = measure(contenders, ten_chains(), 4, rounds=3, seconds=0.004)
    count = result["batches_a_sample"]
    assert count >= 1
    timed = calls[8:]  # each contender first runs four minibatches untimed
    assert len(timed) == 3 * 2 * count
    for turn in range(3):
        first, second = (
            timed[(2 * turn + who) * count : (2 * turn + who + 1) * count] for who in (0, 1)
        )
        assert {name for name, _ in first} == {"vertexrt"}
        assert {name for name, _ in second} == {"other"}
        assert [size for _, size in first] == [size for _, size in second]
    for entry in result["graphs_per_s"].values():
        low, high = entry["quartiles"]
        assert 0 < low <= entry["median"] <= high < 4 / 0.001
        assert len(entry["samples"]) == 3
    lines = table(result, header=True).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["batch", "contender"],
        ["4", "vertexrt"],
        ["4", "other"],
    ]


def test_a_minibatch_is_never_larger_than_the_data() -> None:
    result = measure({"vertexrt": lambda batch: None}, ten_chains(), 64, rounds=1, seconds=1e-5)
    assert result["batch_size"] == 10


def test_difference_is_relative_to_the_largest_element() -> None:
    exact = (2.0, {"w": np.array([4.0, 0.0]), "v": np.array([1e-3])})
    assert difference(exact, exact) == 0.0
    assert difference((2.0, exact[1] | {"w": np.array([4.0, 0.4])}), exact) == pytest.approx(0.1)
    assert difference((2.0, exact[1] | {"v": np.array([2e-3])}), exact) == pytest.approx(1.0)
    assert difference((2.5, exact[1]), exact) == pytest.approx(0.25)
    with pytest.raises(AssertionError, match="'v'"):
        difference((2.0, {"w": exact[1]["w"]}), exact)


def test_options_and_machine() -> None:
    options = parse(["--threads", "1", "--batch-sizes", "1,16"])
    assert options.batch_sizes == [1, 16]
    assert (options.hidden, options.dtype, options.peer) == (256, "float32", "torch")
    machine = json.loads(json.dumps(describe(threads=1)))
    assert machine["cores"] >= 1
    assert machine["processor"]
    assert machine["versions"]["numpy"] == np.__version__
