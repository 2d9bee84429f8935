"""A data set of JSON lines: a folder of splits, files by name, or one file that is divided."""

import json
from pathlib import Path

import numpy as np
import pytest

from vertexrt.data import load
from vertexrt.errors import DataError, UsageError


def line(word: str, label: object) -> str:
    return json.dumps({"chain": 1, "pulls": {"word": [word], "label": [label]}}) + "\n"


def numbers(batch: object, name: str) -> list[int]:
    pull = batch.pulls[name]  # type: ignore[attr-defined]
    assert isinstance(pull, np.ndarray)
    return pull.tolist()


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(line("b", "no") + line("b", "yes") + line("a", "no"))
    (tmp_path / "dev.jsonl").write_text(line("c", "yes") + line("a", "no"))
    data = load(tmp_path, format="json-lines")
    assert list(data.splits) == ["train", "dev"]  # a folder need not have one of test
    assert (data.labels, data.vocabulary.words) == (("no", "yes"), ("<unk>", "b", "a"))
    assert data.sizes() == {"vocab": 3, "classes": 2, "num_word": 3, "num_label": 2}
    dev = data.splits["dev"]
    assert (numbers(dev, "word"), numbers(dev, "label")) == ([0, 2], [1, 0])
    again = load(
        tmp_path, format="json-lines", splits=("dev",), vocabularies=dict(data.vocabularies)
    )
    assert numbers(again.splits["dev"], "word") == [0, 2]
    with pytest.raises(DataError, match="no file for the split 'test'"):
        load(tmp_path, format="json-lines", splits=("test",))
    (tmp_path / "other").write_text(line("a", "no") * 3)
    named = load(tmp_path, format="json-lines", dev=str(tmp_path / "other"), test="0.4")
    assert {split: graphs.num_graphs for split, graphs in named.splits.items()} == {
        "train": 2,
        "dev": 3,
        "test": 1,
    }


def test_a_file_is_divided_the_same_way_each_time(tmp_path: Path) -> None:
    whole = tmp_path / "my.jsonl"
    whole.write_text("".join(line(f"w{number}", number) for number in range(30)))
    data = load(whole, format="json-lines")
    sizes = {split: graphs.num_graphs for split, graphs in data.splits.items()}
    assert sizes == {"train": 24, "dev": 3, "test": 3}
    labels = {split: numbers(graphs, "label") for split, graphs in data.splits.items()}
    assert sorted(n for each in labels.values() for n in each) == list(range(30))
    assert data.classes == 30
    assert data.description.endswith("my.jsonl; 0.1 of train for dev; 0.1 of train for test")
    again = load(whole, format="json-lines", splits=("train", "dev"))
    assert [numbers(graphs, "label") for graphs in again.splits.values()] == [
        labels["train"],
        labels["dev"],
    ]
    other = tmp_path / "other.jsonl"
    other.write_text(line("w1", 0))
    named = load(whole, format="json-lines", dev=str(other))
    assert {split: graphs.num_graphs for split, graphs in named.splits.items()} == {
        "train": 27,
        "dev": 1,
        "test": 3,
    }
    assert load(other, format="json-lines", splits=("all",)).splits["all"].num_graphs == 1
    with pytest.raises(DataError, match="1 graph to divide into train, dev and test; expected mo"):
        load(other, format="json-lines")


def test_streams_are_not_divided(tmp_path: Path) -> None:
    text = tmp_path / "my.txt"
    text.write_text("a b\n" * 40)
    assert load(text, format="text").splits["dev"].num_graphs == 4
    whole = load(text, format="text", pieces=5, streams=2, dev="0", test="0")
    assert list(whole.splits) == ["train"]
    with pytest.raises(UsageError, match="for dev and test, and streams of text; expected files"):
        load(text, format="text", pieces=5, streams=2)


def test_there_are_none_by_name() -> None:
    with pytest.raises(UsageError, match="'sst' is data of the format trees; for json-lines there"):
        load("sst", format="json-lines")
