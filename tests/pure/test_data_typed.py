"""Data sets of several vertex types: built for all graphs at once, as one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vertexrt.data import load
from vertexrt.data.edges import chain, pairs, typed_batch
from vertexrt.data.readers import pyramids
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, InputGraph


def test_many_graphs_are_those_built_one_by_one() -> None:
    sizes = np.array([2, 1, 3])
    words = np.arange(6)
    x = np.arange(12.0).reshape(6, 2)
    together = typed_batch(
        {"word": sizes, "top": np.array([1, 1, 1])},
        {
            ("word", "before", "word"): chain(sizes),
            ("word", "all", "top"): pairs(words, np.repeat([0, 1, 2], sizes)),
        },
        {"word": {"word": words, "x": x}, "top": {"label": np.array([7, 8, 9])}},
    )
    starts = [0, 2, 3]
    apart = GraphBatch.from_graphs(
        InputGraph.from_types(
            {"word": n, "top": 1},
            {
                ("word", "before", "word"): [(k, k + 1) for k in range(n - 1)],
                ("word", "all", "top"): [(k, 0) for k in range(n)],
            },
            {
                "word": {"word": words[at : at + n], "x": x[at : at + n]},
                "top": {"label": [7 + graph]},
            },
        )
        for graph, (at, n) in enumerate(zip(starts, sizes.tolist(), strict=True))
    )
    for name in ("graph_ptr", "child_ptr", "child"):
        np.testing.assert_array_equal(getattr(together, name), getattr(apart, name))
    assert together.types is not None
    assert apart.types is not None
    np.testing.assert_array_equal(together.types.of_vertex, apart.types.of_vertex)
    np.testing.assert_array_equal(together.types.of_edge, apart.types.of_edge)
    for name in ("word", "label"):
        np.testing.assert_array_equal(together.pulls[name], apart.pulls[name])
    rows = [batch.pulls["x"].table[batch.pulls["x"].index] for batch in (together, apart)]  # type: ignore[union-attr]
    chosen = together.of_type("word")
    np.testing.assert_array_equal(rows[0][chosen], rows[1][chosen])


def test_a_pyramid_has_a_vertex_less_on_each_level() -> None:
    trees = GraphBatch.from_graphs(
        InputGraph.from_children(lists, {"word": word, "label": label})
        for lists, word, label in (
            ([[], [], [0, 1], [], [2, 3]], [4, 5, -1, 6, -1], [0, 0, 0, 0, 3]),
            ([[]], [7], [1]),
        )
    )
    found = pyramids(trees)
    assert found.sizes().tolist() == [6, 1]
    assert found.child.tolist() == [0, 1, 1, 2, 3, 4]
    assert np.asarray(found.pulls["word"]).tolist() == [4, 5, 6, -1, -1, -1, 7]
    assert np.asarray(found.pulls["label"]).tolist() == [-1, -1, -1, -1, -1, 3, 1]


def test_streams_go_on_from_piece_to_piece(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c d e f g\n")
    data = load(tmp_path, format="text", pieces=3, streams=2)
    train, words = data.splits["train"], data.vocabulary.words
    label = [words[k] for k in np.asarray(train.pulls["label"])]
    assert train.sizes().tolist() == [3, 3, 1, 1]
    assert label == ["a", "b", "c", "e", "f", "g", "d", "<eos>"]
    with pytest.raises(UsageError, match=r"^\[data\] 2 streams of sentences; expected pieces; set"):
        load(tmp_path, format="text", streams=2)


def test_malformed_data_name_file_and_line(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.tsv").write_text("a b\tX\n")
        (tmp_path / f"{split}.txt").write_text("Ann|PER saw|O\n")
    assert load(tmp_path, format="pairs").splits["dev"].num_graphs == 1
    assert load(tmp_path, format="tagged").vocabularies["label"].words == ("O", "PER")
    (tmp_path / "train.tsv").write_text("a\u00a0b\u2028c d\tX <eos>\r\n\t\n", "utf-8")
    found = load(tmp_path, format="pairs")
    assert found.vocabularies["word"].words == ("<unk>", "a\u00a0b\u2028c", "d")
    assert found.splits["train"].num_vertices == 4
    (tmp_path / "dev.tsv").write_text("a b\tX\u2028\nno translation\n", "utf-8")
    (tmp_path / "dev.txt").write_text("Ann|PER\nsaw\n")
    with pytest.raises(DataError, match=r"dev\.tsv, line 2\] 1 sentences"):
        load(tmp_path, format="pairs")
    with pytest.raises(DataError, match=r"dev\.txt, line 2\] 'saw' with 1 parts"):
        load(tmp_path, format="tagged")


def test_unknown_tags_are_no_labels(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("Ann|PER saw|O\n")
    (tmp_path / "dev.txt").write_text("Rome|LOC saw|O\n")
    data = load(tmp_path, format="tagged", letters=False)
    dev = data.splits["dev"]
    assert np.asarray(dev.pulls["label"])[dev.of_type("tag")].tolist() == [-1, 0]
    assert "test" not in data.splits


def test_a_word_without_letters_reads_none(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("Rome\tLOC\n\tO\n\nok\tO\n\tO\n")
    train = load(tmp_path, format="tagged", separator="tab").splits["train"]
    assert train.types is not None
    words = train.of_type("word")
    assert np.diff(train.child_ptr)[words].tolist() == [2, 0, 2, 0]
