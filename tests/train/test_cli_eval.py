"""`vertexrt eval`, `predict`, `explain` and `export` answer from a run, to the same bits."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import vertexrt as vrt
from tests.train.cli_runs import (
    COMMAND,
    DEV,
    ROOT,
    SIZES,
    SMALL,
    TEST,
    Cli,
    records,
    require_in,
    write_trees,
)
from vertexrt.data import Vocabulary, load
from vertexrt.hub import load_pretrained
from vertexrt.models.tree_lstm import TreeLSTM

BEST = Path("run/best.safetensors")
LOAD = """
import sys
import numpy as np
from vertexrt.hub import load_pretrained
model = load_pretrained(sys.argv[1])
np.save(sys.argv[3], model.net(model.read(sys.argv[2]))["logits"])
"""


def test_eval_repeats_what_training_found(cli: Cli) -> None:
    best = vrt.load_checkpoint(BEST).meta["state"]["best_epoch"]
    lines = {line["split"]: line for line in records("run") if line["epoch"] == best}
    data = cli("eval run").partition(" graphs of ")[2].partition(",")[0]
    for split, count in (("dev", DEV), ("test", TEST)):
        accuracy = 100 * lines[split]["root_accuracy"]
        told = f"{split}: loss {lines[split]['loss']:.4f}, root accuracy {accuracy:.2f} %, vertex "
        shown = cli(f"eval run --split {split}")
        require_in(f"{told}accuracy  ... ; {count} graphs of {data}, ", shown)
        assert shown.endswith(f"graphs/s; {BEST}\n")
    assert cli("eval run/last.safetensors").endswith("last.safetensors\n")
    # The same dev trees beside other training trees: other numbers for the words.
    other = write_trees(Path("other"))
    trees = (other / "train.txt").read_text().splitlines(keepends=True)
    (other / "train.txt").write_text("".join(reversed(trees)))
    _, moved = cli("eval run --data other").splitlines()  # the first tells unknown words
    assert moved.split(";")[0] == cli("eval run").split(";")[0]


def test_eval_needs_its_split_alone_and_tells_unknown_words(cli: Cli) -> None:
    tree = "(3 (2 zzz) (3 (2 a) (3 yyy)))\n"
    Path("alone").mkdir()
    for path in ("alone/test.txt", "any"):
        Path(path).write_text(tree)
    unknown = 2 + (load("data", format="trees").vocabulary.find("a") == 0)
    for given, split in (("alone", "test"), ("any", "all")):  # a folder, and one file
        first, result = cli(f"eval run --split test --data {given}").splitlines()
        require_in(f"{unknown} of 3 ( ... of the values of 'word' are unknown words, <unk>", first)
        assert result.startswith(f"{split}: loss ")


def test_words_are_numbered_by_a_vocabulary_that_is_given(cli: Cli) -> None:
    dataset = load("data", format="trees")
    trained = Vocabulary(("<unk>", *reversed(dataset.vocabulary.words[1:-1])))  # one word less
    result = load("data", format="trees", splits=("dev",), vocabularies={"word": trained})
    assert list(result.splits) == ["dev"]
    before, after = dataset.splits["dev"].pulls["word"], result.splits["dev"].pulls["word"]
    assert isinstance(before, np.ndarray)
    assert isinstance(after, np.ndarray)
    for old, new in zip(before.tolist(), after.tolist(), strict=True):
        assert new == (-1 if old < 0 else trained.index(dataset.vocabulary.words[old]))


def test_checkpoints_from_elsewhere(cli: Cli) -> None:
    checkpoint = vrt.load_checkpoint(BEST)
    net = SimpleNamespace(parameters=checkpoint.parameters)
    vrt.save_checkpoint(Path("own.safetensors"), net, meta={"format": 1})
    told = "it does not say how it was trained; expected a checkpoint written by `vert"
    assert told in cli("eval own.safetensors", code=1)
    net = SimpleNamespace(parameters={**checkpoint.parameters, "v": np.zeros((5, 7), np.float32)})
    vrt.save_checkpoint(BEST, net, meta=checkpoint.meta)
    assert "'v'" in cli("eval run", code=1)
    BEST.write_bytes(BEST.read_bytes()[:-100])
    assert "best.safetensors is damaged or truncated" in cli("eval run", code=1)


def test_explain(cli: Cli) -> None:
    words = " ".join(["explain tree-lstm --data data", *SMALL])
    plain = cli(words)
    told = "gather ... scatter ... eager ... path ... lazy ... levels ... peak ... FLOP"
    assert f"8 graphs of {cli.folder / 'data'}" in plain
    for word in told.split(" ... "):
        assert word in plain
    shown = cli(f"{words} --kernels").splitlines()  # as `ir`
    added = [line for line in shown if line not in plain.splitlines()]
    assert "Kernels: what each task program is lowered to" in added
    assert sum("task program" in line for line in added) == plain.count("(task program ")
    assert any(line.strip().startswith("chosen") for line in added)
    with pytest.raises(vrt.errors.VertexrtError, match="kernels='cuda'; one of ir, llvm"):
        vrt.compile(TreeLSTM(5, 4, 4, 3)).explain(kernels="cuda")


def test_two_classes(cli: Cli) -> None:
    cli.train("binary", "--epochs 1 --binary")
    assert vrt.load_checkpoint("binary/last.safetensors").parameters["v"].shape[0] == 2
    assert "root accuracy" in cli("eval binary --split test")


# What is exported.


@pytest.fixture
def out(cli: Cli) -> Path:
    """Export the run, and return the folder."""
    shown = cli("export run out")
    require_in(f"tree-lstm of {BEST}: out ... README.md: say there which license it has", shown)
    return Path("out")


def test_a_fresh_process_finds_the_same_bits(cli: Cli, out: Path) -> None:
    def process(*words: str) -> None:
        folder = cli.folder
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(words, cwd=folder, env=environ, check=True, capture_output=True)

    process(sys.executable, "-c", LOAD, "out", "data/test.txt", "got.npy")
    # The network is built by hand here, from the checkpoint of the run.
    stored = vrt.load_checkpoint(BEST)
    words = Vocabulary(tuple(stored.meta["vocabularies"]["word"]))
    data = load("data/test.txt", format="trees", splits=("all",), vocabularies={"word": words})
    sizes = {name: int(SIZES[f"--{name}"]) for name in ("hidden", "embed")}
    net = vrt.compile(TreeLSTM(vocab=len(words), classes=5, **sizes), device="reference")
    net.parameters.update(stored.parameters)
    assert np.array_equal(np.load("got.npy"), net(data.splits["all"])["logits"])
    # So does the command line, of the run and of the folder.
    process(*COMMAND, "predict", "out", "--data", "data/test.txt", "--out", "out.jsonl")
    cli("predict run --data data/test.txt --out run.jsonl")
    lines = Path("out.jsonl").read_text()
    assert lines == Path("run.jsonl").read_text()
    assert lines.count("\n") == data.splits["all"].num_graphs


def test_the_folder_has_the_shape_of_the_hub(cli: Cli, out: Path) -> None:
    names = {"README.md", "config.json", "model.safetensors", "vocabularies.json"}
    assert {path.name for path in out.iterdir()} == names
    stored = vrt.load_checkpoint(BEST)
    found = safetensors.numpy.load_file(out / "model.safetensors")
    assert found.keys() == stored.parameters.keys()
    assert all(np.array_equal(found[name], array) for name, array in stored.parameters.items())
    config = json.loads((out / "config.json").read_text())
    assert (config["library_name"], config["library_version"]) == ("vertexrt", vrt.__version__)
    options = config["options"]
    assert (options["model"], options["task"]) == ("tree-lstm", "classification")
    assert options["shape"]["hidden"] == int(SIZES["--hidden"])
    assert not any(b"prepared" in path.read_bytes() for path in out.iterdir())  # of our folders
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: vertexrt\ntags:\n- vertexrt\n")
    best = stored.meta["state"]["best_epoch"]
    for line in records("run"):
        text = f"- {line['split']}: loss {line['loss']:.4f}, root accuracy "
        assert (text in card) == (line["epoch"] == best and line["split"] != "train")
    test = records("run")[-1]
    told = f"test: loss {test['loss']:.4f}, root accuracy"
    assert told in cli("eval out --data data --split test")
    # Of a run that averages it is the average.
    cli("export averaged mean")
    stored = vrt.load_checkpoint("averaged/best.safetensors")
    for name, array in load_pretrained("mean").net.parameters.items():
        assert np.array_equal(array, stored.average[name])
    assert not np.array_equal(stored.average["v"], stored.parameters["v"])


def test_a_model_of_a_user_goes_with_its_file(cli: Cli) -> None:
    cli("new my_model.py")
    words = "my_model.py:MyNet --data my_model.jsonl --task classification"
    cli(f"train {words} --epochs 1 --hidden 5 --device reference --out mine")
    cli("export mine out --model my_model.py:MyNet")
    config = json.loads(Path("out/config.json").read_text())
    assert config["options"]["model"] == "my_model.py:MyNet"
    require_in("`my_model.py` is a program", Path("out/README.md").read_text())
    shutil.move("out", "elsewhere")
    there = "elsewhere/my_model.py:MyNet"
    assert "--model out/my_model.py:MyNet" in Path("elsewhere/README.md").read_text()
    text = r"Read it, then pass model='.*elsewhere/my_model"
    with pytest.raises(vrt.errors.VertexrtError, match=text):
        load_pretrained("elsewhere")
    run = load_pretrained("elsewhere", device="reference", model=there)
    assert run.vocabularies["label"].words == ("no", "yes")
    for source in ("mine", "elsewhere"):
        words = f"--data my_model.jsonl --out {source}.jsonl --model {there}"
        cli(f"predict {source} {words}")
    assert Path("mine.jsonl").read_text() == Path("elsewhere.jsonl").read_text()
    Path("elsewhere/my_model.py").unlink()
    cli("eval elsewhere --data my_model.jsonl --model my_model.py:MyNet")
    Path("my_model.py").unlink()
    shown = cli("export mine again --model my_model.py:MyNet", code=1)
    assert "my_model.py] the file of the model cannot be read" in shown
    assert not Path("again").exists()


def known(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("model.safetensors", Path.unlink, "No such file"),
        ("model.safetensors", cut, "is damaged or truncated"),
        (
            "model.safetensors",
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
            "its checksum is another",
        ),
        (
            "model.safetensors",
            lambda path: safetensors.numpy.save_file(safetensors.numpy.load_file(path), path),
            "holds tensors that vertexrt did not write",
        ),
        ("config.json", Path.unlink, "No such file"),
        ("config.json", cut, "it is not JSON"),
        (
            "config.json",
            lambda path: known(path, lambda _: {"model_type": "bert"}),
            "it does not say that the model is of vertexrt",
        ),
        (
            "config.json",
            lambda path: known(path, lambda old: {**old, "format": "vertexrt-train-0"}),
            "format is 'vertexrt-train-0'",
        ),
        ("vocabularies.json", Path.unlink, "No such file"),
        ("vocabularies.json", cut, "it is not JSON"),
        (
            "vocabularies.json",
            lambda path: known(path, lambda old: {"word": ["x", *old["word"][1:]]}),
            "the vocabularies are not those of data.words",
        ),
    ],
)
def test_damage_is_named(
    name: str, damage: Callable[[Path], None], told: str, cli: Cli, out: Path
) -> None:
    damage(out / name)
    require_in(f"out/{name} ... {told}", cli("eval out --data data", code=1))


def test_names_of_files_that_are_not_utf_8(cli: Cli) -> None:
    out = os.fsdecode(b"out\xff")
    cli(f"export run {out}")
    assert "load_pretrained('out\\udcff')" in Path(out, "README.md").read_text("utf-8")
    cli(f"new {out}.py")
    assert "'out\\udcff.py':MyNet" in Path(f"{out}.py").read_text("utf-8")
    run = f"{out}-run"
    cli.train(run, "--epochs 1", data=str(write_trees(Path(f"{out}-data"))))
    cli(f"train --resume {run} --epochs 2")
    cli(f"predict {run} --out {out}.jsonl")
    cli(f"train --config {run}/config.json --out {out}-again")


def test_a_push_takes_the_library_and_is_only_made_when_asked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    told = "pip install -e '.[hub]' in the checkout"
    assert told in cli("export run out --push me/mine", code=2)
    assert not Path("out").exists()
    # Libraries of the same names, which write down what they are asked for.
    Path("httpx.py").write_text("class HTTPError(Exception): pass\n")
    Path("huggingface_hub.py").write_text(
        "from pathlib import Path\n"
        "def create_repo(name, *, private, exist_ok): assert private and exist_ok\n"
        "def upload_folder(*, repo_id, folder_path):\n"
        "    import httpx\n"
        "    if repo_id == 'not/mine': raise httpx.HTTPError('403')\n"
        "    Path('asked').write_text(f'{repo_id} {folder_path}')\n"
    )
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    monkeypatch.delitem(sys.modules, "httpx", raising=False)
    monkeypatch.syspath_prepend(cli.folder)
    cli("export run quiet")
    assert not Path("asked").exists()
    cli("export run out --push me/mine")
    assert Path("asked").read_text() == "me/mine out"
    shown = cli("export run more --push not/mine", code=2)
    assert "[--push] not/mine was not reached (403)" in shown
    assert Path("more/model.safetensors").is_file()
