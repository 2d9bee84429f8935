"""The PyTorch peers compute what the vertex functions do, so that a comparison means something."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.peers.levels import build_levels
from benchmarks.peers.suites import LSTM, cut_or_pad
from tests.devices import gpu, require
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
from benchmarks.peers.complete import build_complete  # noqa: E402
from benchmarks.peers.ours import Ours  # noqa: E402
from benchmarks.peers.recursive import recursive  # noqa: E402
from benchmarks.peers.torch_peer import Peer, pack_floats, unpack_floats  # noqa: E402
from vertexrt.bench.measure import compare  # noqa: E402
from vertexrt.bench.record import (  # noqa: E402
    Results,
    read,
)

WORDS, EMBED, HIDDEN, CLASSES = 30, 5, 7, 4
TREE_LSTM = [tree_lstm.LevelBatched, tree_lstm_manual.LevelBatchedManual]
TREE_FC = [tree_fc.LevelBatched, tree_fc.LevelBatchedManual]
LSTMS = [lstm.StepBatched, lstm_manual.StepBatchedManual, lstm.CudnnLstm]


def random_trees(rng: np.random.Generator, leaves: list[int], shuffle: bool) -> GraphBatch:
    """Draw binary trees with words at the leaves; `shuffle` mixes the order of the vertices."""
    children: list[list[int]] = []
    graph_ptr = [0]
    for count in leaves:
        base = len(children)
        roots = list(range(base, base + count))
        children.extend([] for _ in range(count))
        while len(roots) > 1:
            left = roots.pop(int(rng.integers(len(roots))))
            right = roots.pop(int(rng.integers(len(roots))))
            roots.append(len(children))
            children.append([left, right])
        graph_ptr.append(len(children))
    name = np.arange(len(children))
    if shuffle:
        for begin, end in pairwise(graph_ptr):
            name[begin:end] = begin + rng.permutation(end - begin)
    renamed: list[list[int]] = [[] for _ in children]
    for v, kids in enumerate(children):
        renamed[name[v]] = [int(name[kid]) for kid in kids]
    sizes = np.array([len(kids) for kids in renamed])
    word = np.where(sizes == 0, rng.integers(WORDS, size=len(sizes)), -1)
    label = rng.integers(-1, CLASSES, size=len(sizes))
    return GraphBatch.from_arrays(
        graph_ptr,
        np.concatenate([[0], np.cumsum(sizes)]),
        np.array([kid for kids in renamed for kid in kids], np.int32),
        {"word": word, "label": label},
    )


def complete_trees(rng: np.random.Generator, leaves: int, count: int) -> GraphBatch:
    """Draw complete trees, a target at each root."""
    one = GraphBatch.from_graphs([InputGraph.complete_tree(leaves)])
    batch = one.take(np.zeros(count, np.int32))
    is_leaf = np.diff(batch.child_ptr) == 0
    at_root = np.full(batch.num_vertices, -1)
    at_root[batch.roots] = rng.permutation(count)
    pulls = {
        "word": np.where(is_leaf, rng.integers(WORDS, size=len(is_leaf)), -1),
        "target": vrt.Rows(rng.normal(size=(count, 1)).astype(np.float32), at_root),
    }
    return GraphBatch.from_arrays(batch.graph_ptr, batch.child_ptr, batch.child, pulls)


def sentences(rng: np.random.Generator, lengths: list[int]) -> GraphBatch:
    """Draw chains; some words have no label."""
    batch = GraphBatch.from_graphs([InputGraph.chain(length) for length in lengths])
    size = batch.num_vertices
    pulls = {
        "word": rng.integers(WORDS, size=size),
        "label": rng.integers(-1, CLASSES, size=size),
    }
    return GraphBatch.from_arrays(batch.graph_ptr, batch.child_ptr, batch.child, pulls)


def random_parameters(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw float64 parameters by the names of the Tree-LSTM."""
    shapes = {
        "embedding": (WORDS, EMBED),
        "w": (4 * HIDDEN, EMBED),
        "u_iou": (3 * HIDDEN, HIDDEN),
        "u_f": (HIDDEN, HIDDEN),
        "b": (4 * HIDDEN,),
        "v": (CLASSES, HIDDEN),
    }
    return {name: rng.normal(scale=0.5, size=shape) for name, shape in shapes.items()}


def assert_peer_agrees(
    peer: type[Peer], function: vrt.VertexFunction, batch: GraphBatch, output: str
) -> None:
    """Compare loss, gradients and outputs with the reference backend, in float64."""
    rng = np.random.default_rng(2)
    oracle = Ours(vrt.compile(function, device="reference", dtype="float64"), output)
    drawn = {n: rng.normal(scale=0.5, size=p.shape) for n, p in oracle.parameters().items()}
    oracle.set_parameters(drawn)
    contender = peer(drawn)
    for name, value in contender.parameters().items():
        np.testing.assert_array_equal(value, drawn[name])
    # float64 leaves the order of sums, and what a step of rate 1024 rounds
    contenders = {"reference": oracle, "peer": contender}
    compare(Results("peers", (), {}), contenders, batch, "test", dtype="float64")


@pytest.mark.parametrize("peer", TREE_LSTM)
@pytest.mark.parametrize("leaves", [[1], [2], [9], [1, 6, 1, 40, 3], [60] * 4, [2] * 100])
def test_level_batched_agrees_with_recursive(peer: type[Peer], leaves: list[int]) -> None:
    rng = np.random.default_rng([7, *leaves])
    trees = random_trees(rng, leaves, shuffle=True)
    parameters = random_parameters(rng)
    expected = recursive(trees, parameters)
    model = peer(parameters)
    loss, gradients = model.gradients(trees)
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-10)
    for name in parameters:
        # 1e-6 is asked; float64 leaves only the order of sums
        np.testing.assert_allclose(
            gradients[name], expected.gradients[name], rtol=1e-8, atol=1e-11, err_msg=name
        )
    np.testing.assert_allclose(model.infer(trees), expected.logits, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("peer", TREE_LSTM)
def test_step_is_sgd_also_when_batches_change_size(peer: type[Peer]) -> None:
    rng = np.random.default_rng(3)
    expected = random_parameters(rng)
    model = peer(expected)
    for leaves in ([3, 5], [30, 2, 8], [4]):
        trees = random_trees(rng, leaves, shuffle=False)
        result = recursive(trees, expected)
        model.train(trees, 0.1)
        assert model.loss() == pytest.approx(result.loss, rel=1e-9)
        expected = {name: p - 0.1 * result.gradients[name] for name, p in expected.items()}
    for name, value in model.parameters().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-8, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("peer", TREE_FC)
@pytest.mark.parametrize(("leaves", "count"), [(2, 1), (8, 1), (16, 5), (4, 60)])
def test_tree_fc_agrees_with_the_reference(peer: type[Peer], leaves: int, count: int) -> None:
    batch = complete_trees(np.random.default_rng(leaves), leaves, count)
    assert_peer_agrees(peer, models.TreeFC(WORDS, HIDDEN), batch, "output")


def test_words_and_targets_of_complete_trees_need_no_schedule() -> None:
    batch = complete_trees(np.random.default_rng(0), 8, 3)
    levels = build_complete(batch)
    words, targets = tree_fc_graph.words_and_targets(batch)
    assert words.tolist() == levels.word.tolist()
    assert targets.tolist() == levels.target.tolist()


@gpu
def test_a_cuda_graph_computes_what_the_peer_does() -> None:
    require("cuda")
    rng = np.random.default_rng(0)
    net = vrt.compile(models.TreeFC(WORDS, HIDDEN), device="cpu", seed=1)
    parameters = dict(net.parameters)
    peers = {
        "manual": tree_fc.LevelBatchedManual(parameters, "cuda"),
        "graph": tree_fc_graph.CapturedLevels(parameters),
    }
    for count in (2, 5, 2):
        batch = complete_trees(rng, 8, count)
        compare(Results("peers", (), {}), peers, batch, "tree-fc", kinked=True)


@pytest.mark.parametrize("peer", LSTMS)
@pytest.mark.parametrize("lengths", [[1], [6], [3, 9, 1, 9], [5, 5, 5], [2] * 60])
def test_lstm_agrees_with_the_reference(peer: type[Peer], lengths: list[int]) -> None:
    batch = sentences(np.random.default_rng(len(lengths)), lengths)
    assert_peer_agrees(peer, LSTM(WORDS, EMBED, HIDDEN, CLASSES), batch, "logits")


@pytest.mark.parametrize("peer", LSTMS)
def test_lstm_agrees_over_padded_sentences(peer: type[Peer]) -> None:
    batch = cut_or_pad(sentences(np.random.default_rng(1), [3, 9, 1]), 5, pad=2)
    assert batch.sizes().tolist() == [5, 5, 5]
    assert_peer_agrees(peer, LSTM(WORDS, EMBED, HIDDEN, CLASSES), batch, "logits")


def test_recursive_reads_an_empty_slot_as_zeros() -> None:
    rng = np.random.default_rng(5)
    parameters = random_parameters(rng)
    pulls = {"word": np.array([3, -1], np.int32), "label": np.array([-1, 2], np.int32)}
    one = GraphBatch(np.array([0, 2]), np.array([0, 0, 1]), np.array([0]), pulls)
    two = GraphBatch(np.array([0, 2]), np.array([0, 0, 2]), np.array([0, -1]), pulls)
    assert recursive(one, parameters).loss == recursive(two, parameters).loss


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_floats_travel_as_words(dtype: str, count: int) -> None:
    values = np.random.default_rng(0).normal(size=count).astype(dtype)
    words = torch.from_numpy(pack_floats(values))
    np.testing.assert_array_equal(unpack_floats(words, getattr(torch, dtype), count), values)


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
