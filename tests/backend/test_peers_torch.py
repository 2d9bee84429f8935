"""The PyTorch peers agree with one another, so that a comparison with them means something."""

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.levels import Trees, build_levels

torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")

from benchmarks.peers_torch import LevelBatched, recursive  # noqa: E402
from benchmarks.peers_torch_manual import LevelBatchedManual  # noqa: E402

WORDS, EMBED, HIDDEN, CLASSES = 30, 5, 7, 4


def random_trees(rng: np.random.Generator, leaves: list[int], shuffle: bool) -> Trees:
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
    return Trees(
        graph_ptr=np.array(graph_ptr, np.int32),
        child_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        child=np.array([kid for kids in renamed for kid in kids], np.int32),
        word=word.astype(np.int32),
        label=rng.integers(-1, CLASSES, size=len(sizes)).astype(np.int32),
    )


def random_parameters(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw float64 parameters by the names of the vertex function."""
    shapes = {
        "embedding": (WORDS, EMBED),
        "w": (4 * HIDDEN, EMBED),
        "u_iou": (3 * HIDDEN, HIDDEN),
        "u_f": (HIDDEN, HIDDEN),
        "b": (4 * HIDDEN,),
        "v": (CLASSES, HIDDEN),
    }
    return {name: rng.normal(scale=0.5, size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("peer", [LevelBatched, LevelBatchedManual])
@pytest.mark.parametrize("leaves", [[1], [2], [9], [1, 6, 1, 40, 3], [60] * 4, [2] * 100])
def test_level_batched_agrees_with_recursive(peer: type, leaves: list[int]) -> None:
    rng = np.random.default_rng([7, *leaves])
    trees = random_trees(rng, leaves, shuffle=True)
    parameters = random_parameters(rng)
    expected = recursive(trees, parameters)
    loss, gradients = peer(parameters).gradients(trees)
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-10)
    for name in parameters:
        # 1e-6 is asked; float64 leaves only the order of sums
        np.testing.assert_allclose(
            gradients[name], expected.gradients[name], rtol=1e-8, atol=1e-11, err_msg=name
        )


@pytest.mark.parametrize("peer", [LevelBatched, LevelBatchedManual])
def test_step_is_sgd_also_when_batches_change_size(peer: type) -> None:
    rng = np.random.default_rng(3)
    expected = random_parameters(rng)
    model = peer(expected)
    for leaves in ([3, 5], [30, 2, 8], [4]):
        trees = random_trees(rng, leaves, shuffle=False)
        result = recursive(trees, expected)
        assert model.step(trees, 0.1) == pytest.approx(result.loss, rel=1e-9)
        expected = {name: p - 0.1 * result.gradients[name] for name, p in expected.items()}
    for name, value in model.weights.to_named().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-8, atol=1e-11, err_msg=name)


def test_recursive_reads_an_empty_slot_as_zeros() -> None:
    rng = np.random.default_rng(5)
    parameters = random_parameters(rng)
    arrays = {"word": np.array([3, -1], np.int32), "label": np.array([-1, 2], np.int32)}
    one = Trees(np.array([0, 2]), np.array([0, 0, 1]), np.array([0]), **arrays)
    two = Trees(np.array([0, 2]), np.array([0, 0, 2]), np.array([0, -1]), **arrays)
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
    trees = Trees(np.array([0, len(word)], np.int32), *arrays, label=arrays[2])
    with pytest.raises(ValueError, match=text):
        build_levels(trees)
