"""Chains of a minibatch, vertex by vertex."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from vertexrt.errors import UsageError  # noqa: E402
from vertexrt.graph import GraphBatch  # noqa: E402
from vertexrt.torch.chains import ChainLayout, chains_of  # noqa: E402

LENGTHS = (5, 3, 3, 1)
STARTS = (0, 4, 7, 10, 11)
COUNTS = np.array([4, 3, 3, 1, 1])  # at each time


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("way", ["forward", "reverse", "resets"])
def test_each_vertex_has_its_step(given: bool, way: str) -> None:
    total = sum(LENGTHS)
    cuts = np.zeros(total, np.bool_)
    if way == "resets":
        cuts[[0, 5, 9, 10]] = True  # at first and later steps
    marks = cuts.tobytes() if way == "resets" else b""
    layout = ChainLayout(COUNTS.tobytes(), marks, (("h", 2),), given, way == "reverse")
    chains = chains_of(layout)
    graphs, begins, v = chains.graphs, [], 0
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            row, at_end = STARTS[t] + b, t == (length - 1 if way == "reverse" else 0)
            cut = bool(cuts[row])
            child = v + (1 if way == "reverse" else -1)
            assert graphs.child[v] == (-1 if at_end or cut else child)
            assert graphs.pulls["x"].index[v] == row  # type: ignore[union-attr, index]
            state = b if given and at_end and not cut else -1
            assert graphs.pulls["h_first"].index[v] == state  # type: ignore[union-attr, index]
            assert chains.steps.vertices[row] == v
            begins += [v] if t == 0 or cut else []
            v += 1
        assert chains.last.vertices[b] == (v - length if way == "reverse" else v - 1)
    assert graphs.graph_ptr.tolist() == [*begins, total]
    assert chains.steps.row_of is not None
    np.testing.assert_array_equal(chains.steps.row_of[chains.steps.vertices], np.arange(total))
    again = GraphBatch(graphs.graph_ptr, graphs.child_ptr, graphs.child, graphs.pulls)  # checks
    assert again.num_vertices == total
    assert chains_of(layout) is chains


def test_sequences_that_begin_later() -> None:
    layout = ChainLayout(np.array([2, 3]).tobytes(), b"", (("h", 2),), False, False)
    with pytest.raises(UsageError, match=r"batch_sizes \[2, 3\]"):
        chains_of(layout)
