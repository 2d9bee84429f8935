"""`vertexrt explain --engine persistent` shows segments, partition, scripts and a disassembly."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import SMALL, write_trees
from vertexrt import data, models
from vertexrt.cli.main import main
from vertexrt.engine import explain_scripts


@cache
def explained(model: str, processors: int, threads: int) -> str:
    """Explain a batch without running it; the same size for every machine's cache."""
    spec = models.get(model)
    dataset = data.load("generated", task=spec.task)
    options = {name: 16 for name in spec.options if name != "dropout"}
    net = vrt.compile(
        spec.build(dataset, **options), engine="persistent", threads=threads, processors=processors
    )
    return net.explain_batch(dataset.splits["train"].take(np.arange(4)))


def line_with(text: str, start: str) -> str:
    """Return the one line that starts so."""
    (found,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return found.strip()


def test_tree_lstm_level_has_one_exchange_each_way() -> None:
    text = explained("tree-lstm", 2, 2)
    k = int(
        re.search(r"\n  path\[(\d+)\]: 1 segment; waits for the tiles of the children", text)[1]
    )
    path = text.partition(f"  path[{k}]:")[2].partition(f"\n  path'[{k + 1}]:")[0]
    assert "own units of all rows: fused 2 ops, product u_iou float[48]" in path
    assert "every processor makes for itself: %9 add float[16], %21 concat float[2,16]" in path
    assert "read in full from other processors: h" in path
    back = text.partition(f"\n  path'[{k + 1}]:")[2].partition(f"\n  final[{k + 2}]:")[0]
    assert back.startswith(" 2 segments\n")
    assert re.search(rf"path'\[{k + 1}\]\.1 .*product u_iou' .*product u_f' ", back)
    assert "exchanged before it: %86 concat float[48], %75 concat float[2,16]" in back
    level = line_with(text, "path: ")
    assert level.startswith("path: 11 tasks, 11 instructions, 1.00 exchanges a task")


def test_statistics_agree_with_the_script() -> None:
    text = explained("tree-lstm", 2, 2)
    count = int(re.search(r"instructions: (\d+); waits", text)[1])
    stages = re.findall(r"(\d+) tasks, (\d+) instructions", text)
    assert sum(int(n) for _, n in stages) == count
    assert f"Script of processor 0, the first 16 of {count} instructions" in text
    script = text.partition(f"of {count} instructions\n")[2].splitlines()
    assert len(script) == explain_scripts.HEAD
    assert script[0] == "    0 eager[0].0 rows 0..30 signal c0"


def test_partition_is_for_the_processors_of_a_group() -> None:
    text = explained("tree-lstm", 4, 4)
    assert "Segments of the task programs, persistent, 1 x 4 processors" in text
    assert "Partition of the path weights over 4 processors, each: core with " in text
    assert "3: u_iou 12..15 28..31 44..47; u_f 12..15; u_iou' 12..15; u_f' 12..15" in text


def test_groups_of_one_exchange_nothing() -> None:
    text = explained("tree-lstm", 1, 2)
    assert "persistent, 2 x 1 processors" in text
    assert "exchanged before it" not in text
    assert "; waits: 0" in text
    assert "replicated: nothing" in text


@pytest.mark.parametrize("model", models.names())
def test_every_model_is_explained(model: str) -> None:
    text = explained(model, 2, 2)
    assert "product w' " in text or "product u' " in text
    assert "Partition of the path weights over 2 processors" in text
    assert "Script of processor 0" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2048K\n", 2 << 20), ("512\n", 512), ("4M", 4 << 20), ("", 1 << 20), ("odd", 1 << 20)],
)
def test_cache_size_is_read_from_the_machine(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "size").write_text(text)
    monkeypatch.setattr(explain_scripts, "CACHE", tmp_path / "size")
    assert explain_scripts.cache_bytes() == expected
    monkeypatch.setattr(explain_scripts, "CACHE", tmp_path / "none")
    assert explain_scripts.cache_bytes() == explain_scripts.USUAL_CACHE_BYTES


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = str(write_trees(tmp_path / "trees"))
    words = ["explain", "tree-lstm", "--data", trees, *SMALL, "--engine", "persistent"]
    assert main([*words, "--threads", "2", "--processors", "2"]) == 0
    shown = capsys.readouterr().out
    for title in ("F and dF", "Segments of the task programs", "Partition", "Script of processor"):
        assert title in shown


def test_processors_need_the_persistent_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tree-lstm", "--processors", "2"]) == 2
    assert "[--processors] the engine is batched" in capsys.readouterr().err
