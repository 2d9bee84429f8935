"""Chains of a minibatch, vertex by vertex."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from vertexrt.engine.model import MOST_OF_A_BATCH  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402
from vertexrt.graph import GraphBatch  # noqa: E402
from vertexrt.graph.batch import key_of  # noqa: E402
from vertexrt.torch.recurrent import ChainLayout, chains_of, type_of  # noqa: E402

LENGTHS = (5, 3, 3, 1)
STARTS = (0, 4, 7, 10, 11)
COUNTS = np.array([4, 3, 3, 1, 1])  # at each time


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_each_vertex_has_its_step(
    layers: int, directions: int, with_resets: bool, given: bool
) -> None:
    total, kinds, count = sum(LENGTHS), layers * directions, len(LENGTHS)
    cuts = np.zeros(total, np.bool_)
    if with_resets and kinds == 1:
        cuts[[0, 5, 9, 10]] = True  # at first and later steps
    marks = np.packbits(cuts).tobytes() if cuts.any() else b""
    layout = ChainLayout(COUNTS.tobytes(), marks, (("h", 2),), given, layers, directions)
    chains = chains_of(layout, total)
    steps, last = chains.rows
    graphs, begins, v = chains.graphs, [], 0
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            row = STARTS[t] + b
            begins += [v] if t == 0 or cuts[row] else []
            for kind in range(kinds):
                layer, way = divmod(kind, directions)
                at_end = t == (length - 1 if way else 0)
                child = v + (-kinds if way == 0 else kinds)
                below = v - kind + (layer - 1) * directions
                wanted = [-1 if at_end or cuts[row] else child]
                wanted += range(below, below + directions) if layer else []
                mine = slice(*graphs.child_ptr[v : v + 2])
                assert graphs.child[mine].tolist() == wanted
                if kinds > 1:
                    assert graphs.types.of_edge[mine].tolist() == list(range(len(wanted)))
                    assert graphs.types.names[graphs.types.of_vertex[v]] == type_of(layer, way)
                x, state = (graphs.pulls[name].index[v] for name in ("x", "h_first"))
                assert x == (-1 if layer else row)
                first = given and at_end and not cuts[row]
                assert state == (kind * count + b if first else -1)
                if layer == layers - 1:
                    assert steps.vertices[row * directions + way] == v
                if t == (0 if way else length - 1):
                    assert last.vertices[kind * count + b] == v
                v += 1
    assert graphs.graph_ptr.tolist() == [*begins, total * kinds]
    if kinds == 1:
        np.testing.assert_array_equal(steps.row_of[steps.vertices], np.arange(total))
    parts = graphs.graph_ptr, graphs.child_ptr, graphs.child, graphs.pulls, graphs.types
    assert GraphBatch(*parts).num_vertices == total * kinds  # checks
    assert chains_of(layout, total) is chains_of(layout, total), "they came before"


def test_digests_tell_layouts_apart() -> None:
    """Each bit of the resets, and whatever else decides how chains run."""
    plain, total = ChainLayout(COUNTS.tobytes(), b"", (("h", 2),), False), sum(LENGTHS)
    layouts = [
        plain._replace(resets=np.packbits(each).tobytes()) for each in np.eye(total, dtype=bool)
    ]
    layouts += [plain, plain._replace(given=True), layouts[0]._replace(given=True)]
    layouts += [plain._replace(layers=2), plain._replace(directions=2)]
    layouts += [plain._replace(counts=np.array([4, 3, 3, 2]).tobytes())]
    batches = [chains_of(each, total).graphs for each in layouts]
    found = [key_of(each, what) for what in ("structure", "numbers") for each in batches]
    assert len(set(found)) == len(layouts)
    again = [chains_of(each, total).graphs for each in layouts]
    assert found == [key_of(each, what) for what in ("structure", "numbers") for each in again]


@pytest.mark.parametrize(("counts", "in_order"), [([1, 1, 1], True), ([3], True), ([2, 1], False)])
def test_rows_in_the_order_of_vertices(counts: list[int], in_order: bool) -> None:
    layout = ChainLayout(np.array(counts).tobytes(), b"", (("h", 2),), False)
    assert (chains_of(layout, sum(counts)).rows[0].vertices is None) == in_order


@pytest.mark.parametrize("sizes", [[2, -1], [2000, -1990], [1, 2], [0], []])
def test_numbers_that_are_no_batch_sizes_are_refused(sizes: list[int]) -> None:
    """Chains are written without bounds."""
    counts = np.array(sizes, np.int64).tobytes()
    with pytest.raises(UsageError, match=r"batch_sizes \[.*numbers from 1 on that never rise"):
        chains_of(ChainLayout(counts, b"", (("h", 3),), False), 10)


def test_batch_sizes_of_another_dtype() -> None:
    layer, x = vt.LSTM(3, 4), torch.randn(3, 3)
    packs = [
        torch.nn.utils.rnn.PackedSequence(x, torch.tensor([2, 1], dtype=dtype))
        for dtype in (torch.int32, torch.int64)
    ]
    one, other = (layer(packed)[0].data for packed in packs)
    assert torch.equal(one, other)


def test_large_layouts_and_new_ones_are_not_kept() -> None:
    """They would take memory, and preparing them takes less than running them."""
    few, many = (np.full(n, 8, np.int64).tobytes() for n in (4, MOST_OF_A_BATCH))
    found = [
        [chains_of(ChainLayout(counts, b"", (("h", 3),), False), len(counts)) for _ in range(3)]
        for counts in (few, many)
    ]
    assert found[0][1] is found[0][2], "which came again"
    assert found[1][1] is not found[1][2]


def test_states_and_steps_that_do_not_fit_are_refused() -> None:
    cell = vt.Recurrent(vrt.nn.GRUCell(3, 4), 3)
    x = torch.randn(5, 2, 3)
    with pytest.raises(UsageError, match=r"h of shape \[3, 4\]; \[2, 4\]"):
        cell(x, torch.zeros(3, 4))
    packed = torch.nn.utils.rnn.PackedSequence(torch.randn(4, 3), torch.tensor([2, 1]))
    with pytest.raises(UsageError, match="4 steps; 3, as batch_sizes say"):
        cell(packed)
