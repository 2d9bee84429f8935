"""`vertexrt export` writes a folder that a fresh process predicts with, to the same bits."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import vertexrt as vrt
from tests.train.cli_runs import COMMAND, ROOT, SIZES, records, train, write_trees
from vertexrt.cli.main import main
from vertexrt.data import Vocabulary, load
from vertexrt.hub import load_pretrained
from vertexrt.models.tree_lstm import TreeLSTM

LOAD = """
import sys
import numpy as np
from vertexrt.hub import load_pretrained
model = load_pretrained(sys.argv[1])
np.save(sys.argv[3], model.net(model.read(sys.argv[2]))["logits"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data, a run on them, and what was exported of it."""
    path = tmp_path_factory.mktemp("export")
    data = write_trees(path / "data")
    assert train(data, path / "run", "--epochs", "2") == 0
    assert main(["export", str(path / "run"), str(path / "out")]) == 0
    return path


def process(*words: str) -> None:
    subprocess.run(words, cwd=ROOT, env=dict(os.environ), check=True, capture_output=True)


def test_a_fresh_process_finds_the_same_bits(folder: Path, tmp_path: Path) -> None:
    test = folder / "data" / "test.txt"
    process(sys.executable, "-c", LOAD, str(folder / "out"), str(test), str(tmp_path / "got.npy"))
    # The network is built by hand here, from the checkpoint of the run.
    stored = vrt.load_checkpoint(folder / "run" / "best.safetensors")
    words = Vocabulary(tuple(stored.meta["vocabularies"]["word"]))
    data = load(str(test), format="trees", splits=("all",), vocabularies={"word": words})
    hidden, embed = int(SIZES["--hidden"]), int(SIZES["--embed"])
    net = vrt.compile(
        TreeLSTM(vocab=len(words), classes=5, hidden=hidden, embed=embed), device="reference"
    )
    net.parameters.update(stored.parameters)
    wanted = net(data.splits["all"])["logits"]
    assert np.array_equal(np.load(tmp_path / "got.npy"), wanted)
    # So does the command line, of the run and of the folder.
    lines = []
    for source in ("run", "out"):
        out = tmp_path / f"{source}.jsonl"
        process(*COMMAND, "predict", str(folder / source), "--data", str(test), "--out", str(out))
        lines.append(out.read_text())
    assert lines[0] == lines[1]
    assert len(lines[0].splitlines()) == data.splits["all"].num_graphs


def test_the_folder_has_the_shape_of_the_hub(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "out"
    names = {"README.md", "config.json", "model.safetensors", "vocabularies.json"}
    assert {path.name for path in out.iterdir()} == names
    stored = vrt.load_checkpoint(folder / "run" / "best.safetensors")
    found = safetensors.numpy.load_file(out / "model.safetensors")
    assert found.keys() == stored.parameters.keys()
    assert all(np.array_equal(found[name], array) for name, array in stored.parameters.items())
    config = json.loads((out / "config.json").read_text())
    assert (config["library_name"], config["library_version"]) == ("vertexrt", vrt.__version__)
    options = config["options"]
    assert (options["model"], options["task"]) == ("tree-lstm", "classification")
    assert options["shape"]["hidden"] == int(SIZES["--hidden"])
    assert all(
        str(folder) not in path.read_text() for path in out.iterdir() if path.suffix[1] != "s"
    )
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: vertexrt\ntags:\n- vertexrt\n")
    best = stored.meta["state"]["best_epoch"]
    for line in records(folder / "run"):
        text = f"- {line['split']}: loss {line['loss']:.4f}, root accuracy "
        assert (text in card) == (line["epoch"] == best and line["split"] != "train")
    assert main(["eval", str(out), "--data", str(folder / "data"), "--split", "test"]) == 0
    test = next(line for line in records(folder / "run") if line["split"] == "test")
    assert f"test: loss {test['loss']:.4f}, root accuracy" in capsys.readouterr().out


def test_of_a_run_that_averages_the_average_is_exported(folder: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert train(folder / "data", run, "--epochs", "1", "--average", "0.9") == 0
    assert main(["export", str(run), str(out)]) == 0
    stored, found = vrt.load_checkpoint(run / "best.safetensors"), load_pretrained(out).net
    for name, array in found.parameters.items():
        assert np.array_equal(array, stored.average[name])
    assert not np.array_equal(found.parameters["v"], stored.parameters["v"])


def test_a_model_of_a_user_goes_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my_model.py"]) == 0
    words = ["my_model.py:MyNet", "--data", "my_model.jsonl", "--task", "classification"]
    small = ["--epochs", "2", "--hidden", "5", "--device", "reference", "--out", "run"]
    assert main(["train", *words, *small]) == 0
    named = ["--model", "my_model.py:MyNet"]
    assert main(["export", "run", "out", *named]) == 0
    assert (
        json.loads(Path("out/config.json").read_text())["options"]["model"] == "my_model.py:MyNet"
    )
    assert "`my_model.py` is a program" in Path("out/README.md").read_text()
    shutil.move("out", "elsewhere")
    there = "elsewhere/my_model.py:MyNet"
    assert "--model out/my_model.py:MyNet" in Path("elsewhere/README.md").read_text()
    with pytest.raises(
        vrt.errors.VertexrtError, match=r"Read it, then pass model='.*elsewhere/my_model"
    ):
        load_pretrained("elsewhere")
    run = load_pretrained("elsewhere", device="reference", model=there)
    assert run.vocabularies["label"].words == ("no", "yes")
    for source in ("run", "elsewhere"):
        words = ["--data", "my_model.jsonl", "--out", f"{source}.jsonl", "--model", there]
        assert main(["predict", source, *words]) == 0
    assert Path("run.jsonl").read_text() == Path("elsewhere.jsonl").read_text()
    Path("elsewhere/my_model.py").unlink()
    assert main(["eval", "elsewhere", "--data", "my_model.jsonl", *named]) == 0
    Path("my_model.py").unlink()
    capsys.readouterr()
    assert main(["export", "run", "again", *named]) == 1
    assert "my_model.py] the file of the model cannot be read" in capsys.readouterr().err
    assert not Path("again").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def of_another_library(path: Path) -> None:
    path.write_text(json.dumps({"model_type": "bert", "hidden_size": 768}))


def of_other_words(path: Path) -> None:
    known = json.loads(path.read_text())
    known["word"][-1] += "s"
    path.write_text(json.dumps(known))


def of_another_format(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": "vertexrt-train-0"}))


def without_checksum(path: Path) -> None:
    safetensors.numpy.save_file(safetensors.numpy.load_file(path), path)


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        ("model.safetensors", Path.unlink, "No such file"),
        ("model.safetensors", cut, "is damaged or truncated"),
        ("model.safetensors", flip, "its checksum is another"),
        ("model.safetensors", without_checksum, "holds tensors that vertexrt did not write"),
        ("config.json", Path.unlink, "No such file"),
        ("config.json", cut, "it is not JSON"),
        ("config.json", of_another_library, "it does not say that the model is of vertexrt"),
        ("config.json", of_another_format, "format is 'vertexrt-train-0'"),
        ("vocabularies.json", Path.unlink, "No such file"),
        ("vocabularies.json", cut, "it is not JSON"),
        ("vocabularies.json", of_other_words, "the vocabularies are not those of data.words"),
    ],
)
def test_damage_is_named(
    name: str,
    damage: Callable[[Path], None],
    text: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Path(shutil.copytree(folder / "out", tmp_path / "out"))
    damage(out / name)
    assert main(["eval", str(out), "--data", str(folder / "data")]) == 1
    shown = capsys.readouterr().err
    assert str(out / name) in shown
    assert text in shown
    assert len(shown.splitlines()) == 1


def test_a_folder_that_holds_files_is_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(folder / "run"), str(folder / "data")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert {path.name for path in (folder / "data").iterdir()} == {
        f"{split}.txt" for split in ("train", "dev", "test")
    }


def test_names_of_files_that_are_not_utf_8(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = os.fsdecode(b"out\xff")
    assert main(["export", str(folder / "run"), out]) == 0
    assert "load_pretrained('out\\udcff')" in (tmp_path / out / "README.md").read_text("utf-8")
    assert main(["new", f"{out}.py"]) == 0
    assert "'out\\udcff.py':MyNet" in (tmp_path / f"{out}.py").read_text("utf-8")
    data, run = write_trees(tmp_path / f"{out}-data"), tmp_path / f"{out}-run"
    assert train(data, run, "--epochs", "1") == 0
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    assert main(["predict", str(run), "--out", f"{out}.jsonl"]) == 0
    assert main(["train", "--config", str(run / "config.json"), "--out", f"{out}-again"]) == 0


def test_a_push_takes_the_library_and_is_only_made_when_asked(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    words = ["export", str(folder / "run")]
    assert main([*words, str(tmp_path / "out"), "--push", "me/mine"]) == 2
    assert "pip install -e '.[hub]' in the checkout" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "out"), "--push", "mine"]) == 2
    assert "expected OWNER/NAME" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    # Libraries of the same names, which write down what they are asked for.
    asked = tmp_path / "asked"
    (tmp_path / "httpx.py").write_text("class HTTPError(Exception): pass\n")
    (tmp_path / "huggingface_hub.py").write_text(
        f"from pathlib import Path\n"
        f"def create_repo(name, *, private, exist_ok): assert private and exist_ok\n"
        f"def upload_folder(*, repo_id, folder_path):\n"
        f"    import httpx\n"
        f"    if repo_id == 'not/mine': raise httpx.HTTPError('403')\n"
        f"    Path({str(asked)!r}).write_text(f'{{repo_id}} {{folder_path}}')\n"
    )
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    monkeypatch.delitem(sys.modules, "httpx", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert main([*words, str(tmp_path / "quiet")]) == 0
    assert not asked.exists()
    assert main([*words, str(tmp_path / "out"), "--push", "me/mine"]) == 0
    assert asked.read_text() == f"me/mine {tmp_path / 'out'}"
    capsys.readouterr()
    assert main([*words, str(tmp_path / "more"), "--push", "not/mine"]) == 2
    assert "[--push] not/mine was not reached (403)" in capsys.readouterr().err
    assert (tmp_path / "more" / "model.safetensors").is_file()
