"""`vertexrt eval`, `explain` and `data` answer from a run, a model and the catalogue."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import DEV, SMALL, TEST, records, train, write_trees
from vertexrt.cli.main import main
from vertexrt.data import Vocabulary, load
from vertexrt.models.tree_lstm import TreeLSTM


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert train(data, out, "--epochs", "2") == 0
    return out


def test_eval_repeats_what_training_found(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = vrt.load_checkpoint(run / "best.safetensors").meta["state"]["best_epoch"]
    lines = {line["split"]: line for line in records(run) if line["epoch"] == best}
    for split, count in (("dev", DEV), ("test", TEST)):
        assert main(["eval", str(run), "--split", split]) == 0
        shown = capsys.readouterr().out
        accuracy = 100 * lines[split]["root_accuracy"]
        assert shown.startswith(f"{split}: loss {lines[split]['loss']:.4f}, ")
        assert f"root accuracy {accuracy:.2f} %, vertex accuracy " in shown
        assert f"; {count} graphs of {data}, " in shown
        assert shown.endswith(f"graphs/s; {run / 'best.safetensors'}\n")


def test_eval_takes_one_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run / "last.safetensors")]) == 0
    assert capsys.readouterr().out.endswith("last.safetensors\n")


def test_eval_of_a_truncated_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (run / "best.safetensors").read_bytes()
    (tmp_path / "best.safetensors").write_bytes(content[:-100])
    assert main(["eval", str(tmp_path)]) == 1
    assert "best.safetensors is damaged or truncated" in capsys.readouterr().err


def test_eval_of_a_checkpoint_from_elsewhere(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = vrt.load_checkpoint(run / "best.safetensors")
    net = SimpleNamespace(parameters=checkpoint.parameters)
    vrt.save_checkpoint(tmp_path / "own.safetensors", net, meta={"format": 1})
    assert main(["eval", str(tmp_path / "own.safetensors")]) == 1
    shown = capsys.readouterr().err
    assert "it does not say how it was trained; expected a checkpoint written by `vert" in shown


def test_eval_of_parameters_of_another_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = vrt.load_checkpoint(run / "best.safetensors")

    net = SimpleNamespace(parameters={**checkpoint.parameters, "v": np.zeros((5, 7), np.float32)})
    vrt.save_checkpoint(tmp_path / "best.safetensors", net, meta=checkpoint.meta)
    assert main(["eval", str(tmp_path)]) == 1
    assert "'v'" in capsys.readouterr().err


def test_eval_numbers_the_words_of_other_data_as_the_run_did(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The same dev trees beside other training trees: other numbers for the words.
    other = write_trees(tmp_path / "other")
    lines = (other / "train.txt").read_text().splitlines()
    (other / "train.txt").write_text("".join(f"{line}\n" for line in reversed(lines)))
    assert main(["eval", str(run)]) == 0
    expected = capsys.readouterr().out.split(";")[0]
    assert main(["eval", str(run), "--data", str(other)]) == 0
    assert capsys.readouterr().out.split("\n")[1].split(";")[0] == expected  # after unknown words


def test_eval_needs_its_split_alone_and_tells_unknown_words(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = "(3 (2 zzz) (3 (2 a) (3 yyy)))\n"
    for path in (tmp_path / "test.txt", tmp_path / "any"):
        path.write_text(tree)
    for given, split in ((tmp_path, "test"), (tmp_path / "any", "all")):  # a folder, and one file
        assert main(["eval", str(run), "--split", "test", "--data", str(given)]) == 0
        first, result = capsys.readouterr().out.splitlines()
        unknown = 2 + (load(data, format="trees").vocabulary.find("a") == 0)
        assert first.startswith(f"{unknown} of 3 (")
        assert first.endswith("of the values of 'word' are unknown words, <unk>")
        assert result.startswith(f"{split}: loss ")


def test_words_are_numbered_by_a_vocabulary_that_is_given(data: Path) -> None:
    dataset = load(str(data), format="trees")
    trained = Vocabulary(("<unk>", *reversed(dataset.vocabulary.words[1:-1])))  # one word less
    result = load(data, format="trees", splits=("dev",), vocabularies={"word": trained})
    assert list(result.splits) == ["dev"]
    before, after = dataset.splits["dev"].pulls["word"], result.splits["dev"].pulls["word"]
    assert isinstance(before, np.ndarray)
    assert isinstance(after, np.ndarray)
    for old, new in zip(before.tolist(), after.tolist(), strict=True):
        assert new == (-1 if old < 0 else trained.index(dataset.vocabulary.words[old]))


def test_eval_of_data_with_other_classes(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "binary"
    assert train(data, out, "--epochs", "1", "--binary") == 0
    assert vrt.load_checkpoint(out / "last.safetensors").parameters["v"].shape[0] == 2
    assert main(["eval", str(out), "--split", "test"]) == 0
    assert "root accuracy" in capsys.readouterr().out


def test_explain(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tree-lstm", "--data", str(data), *SMALL]) == 0
    shown = capsys.readouterr().out
    assert f"8 graphs of {data}" in shown
    for word in ("gather", "scatter", "eager", "path", "lazy", "kind"):
        assert word in shown
    for word in ("levels", "peak", "FLOP"):
        assert word in shown


def test_explain_prints_kernels(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["explain", "tree-lstm", "--data", str(data), *SMALL]
    assert main(given) == 0
    plain = capsys.readouterr().out
    assert main([*given, "--kernels"]) == 0  # as `ir`
    shown = capsys.readouterr().out
    added = [line for line in shown.splitlines() if line not in plain.splitlines()]
    assert "Kernels: what each task program is lowered to" in added
    assert sum("task program" in line for line in added) == plain.count("(task program ")
    assert any(line.strip().startswith("chosen") for line in added)


def test_only_explain_prints_kernels(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "tree-lstm", "--data", str(data), *SMALL, "--kernels"]) == 2
    assert "--kernels" in capsys.readouterr().err
    with pytest.raises(vrt.errors.VertexrtError, match="kernels='cuda'; one of ir, llvm"):
        vrt.compile(TreeLSTM(5, 4, 4, 3)).explain(kernels="cuda")


def test_explain_of_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "lstm-ml"]) == 2
    assert "Nearest: 'lstm-lm'" in capsys.readouterr().err


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "format", "cached", "licence", "home"]
    assert [row.split()[:2] for row in rows].count(["sst", "trees"]) == 1
    assert {row.split()[0] for row in rows} == {"generated", "sst", "ptb"}


def test_data_fetch_of_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "stt"]) == 2
    assert "Nearest: 'sst'" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["lstm-lm", "tree-fc"])
def test_other_models_train(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", model, "--hidden", "4", "--epochs", "1", "--batch-size", "64"]
    out = tmp_path / "run"
    if model == "lstm-lm":
        text = "the cat sees a dog\na dog sees the cat\n"
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.txt").write_text(text * 6)
        words += ["--data", str(tmp_path), "--embed", "4"]
    assert main([*words, "--device", "reference", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    name = "perplexity" if model == "lstm-lm" else "mean squared error"
    assert f"best dev {name} " in shown
    first = records(out)[0]
    assert ("perplexity" in first) == (model == "lstm-lm")
    assert "root_accuracy" not in first
    assert main(["eval", str(out), "--split", "test"]) == 0
