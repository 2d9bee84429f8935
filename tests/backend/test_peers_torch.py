"""The PyTorch peers compute what the vertex functions do, so that a comparison means something."""

from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.peers.levels import build_levels
from benchmarks.peers.suites import LSTM, cut_or_pad
from tests.devices import gpu
from tests.runs import assert_bits
from tests.strategies import joined, renumbered
from vertexrt import GraphBatch, InputGraph, models

torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")

from benchmarks.peers import (  # noqa: E402
    lstm,
    lstm_manual,
    tree_fc,
    tree_fc_graph,
    tree_lstm,
    tree_lstm_manual,
)
from benchmarks.peers.__main__ import main  # noqa: E402
from benchmarks.peers.ours import Ours  # noqa: E402
from benchmarks.peers.torch_peer import Peer  # noqa: E402
from vertexrt.bench.measure import compare  # noqa: E402
from vertexrt.bench.record import Results, read  # noqa: E402

WORDS, EMBED, HIDDEN, CLASSES = 30, 5, 7, 4


def forest(*leaves: int) -> GraphBatch:
    """Draw binary trees with words at their leaves, vertices in any order."""
    rng, graphs = np.random.default_rng([7, *leaves]), []
    for count in leaves:
        children = joined(rng, count)
        mixed = renumbered(children, rng.permutation(len(children)).tolist())
        word = [-1 if kids else rng.integers(WORDS) for kids in mixed]
        label = rng.integers(-1, CLASSES, size=len(mixed))
        label[-1] = 0
        graphs.append(InputGraph.from_children(mixed, {"word": word, "label": label}))
    return GraphBatch.from_graphs(graphs)


def complete_trees(leaves: int, count: int) -> GraphBatch:
    """Draw complete trees, a target at each root."""
    rng = np.random.default_rng(leaves)
    one = GraphBatch.from_graphs([InputGraph.complete_tree(leaves)])
    batch = one.take(np.zeros(count, np.int32))
    is_leaf = np.diff(batch.child_ptr) == 0
    at_root = np.full(batch.num_vertices, -1)
    at_root[batch.roots] = rng.permutation(count)
    pulls = {
        "word": np.where(is_leaf, rng.integers(WORDS, size=len(is_leaf)), -1),
        "target": vrt.Rows(rng.normal(size=(count, 1)).astype(np.float32), at_root),
    }
    return batch.with_pulls(pulls)


def sentences(*lengths: int) -> GraphBatch:
    """Draw chains; some words have no label."""
    rng = np.random.default_rng(len(lengths))
    batch = GraphBatch.from_graphs([InputGraph.chain(length) for length in lengths])
    size = batch.num_vertices
    label = rng.integers(-1, CLASSES, size=size)
    return batch.with_pulls({"word": rng.integers(WORDS, size=size), "label": label})


def padded() -> GraphBatch:
    batch = cut_or_pad(sentences(3, 9, 1), 5, pad=2)
    assert batch.sizes().tolist() == [5, 5, 5]
    return batch


TREES = models.TreeLSTM(WORDS, EMBED, HIDDEN, CLASSES)
# What peers compute, what inference returns, the peers, and batches, which change their size.
SUITES: dict[str, tuple[vrt.VertexFunction, str, list[type[Peer]], list[GraphBatch]]] = {
    "tree-lstm": (
        TREES,
        "logits",
        [tree_lstm.LevelBatched, tree_lstm_manual.LevelBatchedManual],
        [forest(1), forest(2), forest(1, 6, 1, 40, 3), *[forest(*[60] * 4), forest(*[2] * 100)]],
    ),
    "tree-fc": (
        models.TreeFC(WORDS, HIDDEN),
        "output",
        [tree_fc.LevelBatched, tree_fc.LevelBatchedManual],
        [complete_trees(*each) for each in ((2, 1), (8, 1), (16, 5), (4, 60))],
    ),
    "lstm": (
        LSTM(WORDS, EMBED, HIDDEN, CLASSES),
        "logits",
        [lstm.StepBatched, lstm_manual.StepBatchedManual, lstm.CudnnLstm],
        [sentences(1), sentences(6), sentences(3, 9, 1, 9), sentences(*[2] * 60), padded()],
    ),
}


@pytest.mark.parametrize("suite", SUITES)
def test_peers_agree_with_the_reference(suite: str) -> None:
    function, output, peers, batches = SUITES[suite]
    oracle = Ours(vrt.compile(function, device="reference", dtype="float64"), output)
    rng = np.random.default_rng(2)
    drawn = {n: rng.normal(scale=0.5, size=p.shape) for n, p in oracle.parameters().items()}
    oracle.set_parameters(drawn)
    contenders = {"reference": oracle} | {peer.__name__: peer(drawn) for peer in peers}
    for contender in contenders.values():
        assert_bits(drawn, contender.parameters())
    for batch in batches:
        # float64 leaves the order of sums, and what a step of rate 1024 rounds
        compare(Results("peers", (), {}), contenders, batch, "test", dtype="float64")


@gpu
def test_a_cuda_graph_computes_what_the_peer_does() -> None:
    net = vrt.compile(models.TreeFC(WORDS, HIDDEN), device="cpu", seed=1)
    parameters = dict(net.parameters)
    peers = {
        "manual": tree_fc.LevelBatchedManual(parameters, "cuda"),
        "graph": tree_fc_graph.CapturedLevels(parameters),
    }
    for count in (2, 5, 2):
        batch = complete_trees(8, count)
        compare(Results("peers", (), {}), peers, batch, "tree-fc", kinked=True)


@pytest.mark.parametrize(
    ("child_ptr", "child", "word", "text"),
    [
        ([0, 0, 1], [0], [1, -1], "neither 0 nor 2 children"),
        ([0, 0, 2], [0, -1], [1, -1], "neither 0 nor 2 children"),
        ([0, 0, 2, 4], [0, 0, 0, 1], [1, -1, -1], "two parents"),
        ([0, 0, 0, 2], [0, 1], [1, -1, -1], "a leaf has no word"),
        ([0, 0, 0, 2], [0, 1], [1, 1, 1], "an inner vertex has a word"),
    ],
)
def test_levels_refuse_what_is_no_binary_tree(
    child_ptr: list[int], child: list[int], word: list[int], text: str
) -> None:
    arrays = [np.array(values, np.int32) for values in (child_ptr, child, word)]
    pulls = {"word": arrays[2], "label": arrays[2]}
    trees = GraphBatch(np.array([0, len(word)], np.int32), arrays[0], arrays[1], pulls)
    with pytest.raises(ValueError, match=text):
        build_levels(trees)


def test_all_suites_run_beside_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--hidden 8 --batch-sizes 2 --seconds 0.02 --leaves 4 --length 6 --trees generated "
    words = [*small.split(), "--text", "generated", "--device", "cpu"]
    assert main([*words, "--threads", "1", "--out", str(tmp_path)]) == 0
    record = read(tmp_path / "peers.json")
    assert [tuple(e.key.values()) for e in record.entries] == [
        (suite, mode, 2, variant)
        for suite, more in (
            ("tree-lstm", []),
            ("tree-fc", []),
            ("var-lstm", ["torch-nn.LSTM"]),
            ("fixed-lstm", ["torch-nn.LSTM"]),
        )
        for mode in ("train", "infer")
        for variant in ("vertexrt", "torch", "torch-manual", *more)
    ]
    assert all(e.against == "vertexrt" for e in record.entries if e.key["variant"] != "vertexrt")
    assert capsys.readouterr().out.count("torch-manual") == 4 * 2  # of each suite and mode
