"""Models of the catalogue and in files of a user, trained, evaluated, explained and measured."""

import importlib
import importlib.util
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import (
    MODEL,
    TEXTS,
    WHOLE,
    Cli,
    Parts,
    records,
    require_in,
    sums,
    write_texts,
    write_trees,
)
from vertexrt import models
from vertexrt.cli.main import main
from vertexrt.cli.options import TASKS
from vertexrt.cli.session import hash_of
from vertexrt.data import Vocabulary
from vertexrt.data.load import format_of
from vertexrt.models.own import find

RUN = "--device reference --batch-size 4"
TREE = f"train own.py:Tree --data data {RUN} --task classification"
SUM = f"train own.py:Sum {RUN} --task regression"


@pytest.fixture
def own(cli: Cli) -> Cli:
    """Write a model of a user, and graphs for it."""
    Path("helper.py").write_text("WIDTH = 5\n")
    Path("own.py").write_text(MODEL)
    Path("my.jsonl").write_text(sums(40))
    return cli


@pytest.mark.parametrize("name", models.names())
def test_a_model_of_the_catalogue_trains(name: str, cli: Cli) -> None:
    spec = models.get(name)
    words = f"train {name} --epochs 1 --batch-size 256 --device reference --out new"
    for option, size in {"hidden": 4, "embed": 4, "layers": 2}.items():
        if option in spec.options:
            words += f" --{option} {size}"
    if spec.format == "trees":
        words += f" --data {write_trees(Path('few'), 4, 2, 2)}"
    elif spec.format in TEXTS:
        write_texts(spec.format, Path("texts"))
        words += " --data texts"
    shown, first = cli(words), records("new")[0]
    assert first["loss"] > 0.0
    measures = TASKS[spec.task].measures
    assert set(measures) - {"entity_f1"} <= first.keys()
    assert f"best dev {measures[0].replace('_', ' ')} " in shown
    assert {"root_accuracy", "perplexity"} & first.keys() <= set(measures)
    if "--data" in words:
        cli("eval new --split test")


def test_it_trains_on_trees(own: Cli) -> None:
    shown = own(f"{TREE} --epochs 2 --set depth=2 --set gated=true --out new")
    stored = vrt.load_checkpoint("new/best.safetensors")
    options = stored.meta["options"]
    assert options["shape"] == {"hidden": 5, "gated": True, "depth": 2}
    named = f"{own.folder}/own.py:Tree"
    assert (options["model"], options["format"]) == (named, "trees")
    vocab = len(stored.meta["vocabularies"]["word"])
    assert stored.parameters["table"].shape == (vocab, 5)
    assert stored.parameters["v"].shape == (5, 5)
    # What training prints evaluates it, and goes on with it.
    assert "best dev root accuracy" in shown
    command = shown.partition("evaluate it: vertexrt ")[2].partition("\n")[0]
    assert "test: loss" in own(command)
    require_in(f"train it further: vertexrt train {named} --resume new --epochs", shown)
    own("train own.py:Tree --resume new --epochs 3")
    assert [line["epoch"] for line in records("new") if line["split"] == "dev"] == [1, 2, 3]
    # The file may have moved; a model of another name is another model.
    Path("moved").mkdir()
    for name in ("helper.py", "own.py"):
        Path("moved", name).write_text(Path(name).read_text())
    own("eval new --model moved/own.py:Tree")
    own("train moved/own.py:Tree --resume new --epochs 4")
    stored = vrt.load_checkpoint("new/last.safetensors")
    assert stored.meta["options"]["model"] == f"{own.folder}/moved/own.py:Tree"
    own("train own.py:Sum --resume new", code=1)
    # What was given again is compared.
    again = own("train moved/own.py:Tree --resume new --set depth=3", code=2)
    assert "got --set [('depth', 3)], the run" in again


def test_it_trains_on_one_file_of_json_lines(own: Cli) -> None:
    shown = own(f"{SUM} --data my.jsonl --lr 0.3 --epochs 12 --out new")
    assert "best dev mean squared error 0.0" in shown
    learned = vrt.load_checkpoint("new/best.safetensors").parameters["w"]
    assert np.allclose(learned, 0.5, atol=0.05)
    assert "Sum: 2 children, state s[1]" in own("explain own.py:Sum --data my.jsonl")
    words = "bench breakdown --model own.py:Sum --data my.jsonl --batch-sizes 2"
    assert main([*words.split(), "--device", "reference", "--seconds", "0", "--out", "."]) == 0
    assert "Sum, " in own.capsys.readouterr().err
    assert Path("breakdown-Sum.json").is_file()
    assert main(["bench", "ablation", "--model", "own.py:Sum"]) == 2
    require_in("no data; expected graphs to measure; give --data.", own.capsys.readouterr().err)


def test_eval_names_the_file_of_its_split(own: Cli) -> None:
    for name, count in (("train", 8), ("dev", 3), ("other", 5)):
        Path(f"{name}.jsonl").write_text(sums(count))
    own(f"{SUM} --epochs 1 --data train.jsonl --dev dev.jsonl --out new")
    for words, shown in (
        ("--split train", "; 7 graphs of "),  # one is held out for test
        ("--split dev", "; 3 graphs of "),
        ("--split test", "; 1 graph of "),
        ("--split dev --data other.jsonl", "; 5 graphs of "),
    ):
        file = {"; 3 graphs of ": "dev", "; 5 graphs of ": "other"}.get(shown, "train")
        told = f"{shown}{own.folder / file}.jsonl, "
        assert told in own(f"eval new --model own.py:Sum {words}")


def test_a_format_is_found_from_files(cli: Cli) -> None:
    write_trees(Path("a/trees"))
    for name, text in (("b", "a b\n"), ("c", "")):
        Path(name).mkdir()
        Path(name, "train.txt").write_text(text)
    Path("x.jsonl").write_text("")
    known = {"a": "trees", "b": "text", "x.jsonl": "json-lines", "sst": "trees", "ptb": "text"}
    assert {name: format_of(name) for name in known} == known
    for name, told in (
        ("none", "there is no "),
        ("generated", "data 'generated' without a format; one of trees"),
        (".", r"no data in .*; expected trees: trees in brackets"),
    ):
        with pytest.raises(vrt.errors.VertexrtError, match=told):
            format_of(name)


def test_a_file_that_a_run_or_a_configuration_names_is_not_run(own: Cli) -> None:
    Path("own.py").write_text(WHOLE)
    Path("other.py").write_text("raise SystemExit('was run')\n")
    own(f"{SUM} --epochs 1 --data my.jsonl --out new")
    full = f"{own.folder / 'own.py'}:Sum"
    add, name = f"then add --model {full}.\n", "then name it: vertexrt"
    for words, action in (
        ("eval new", add),
        ("predict new/best.safetensors --data my.jsonl", add),
        ("export new out", add),
        ("train --resume new", f"{name} train {full} --resume new.\n"),
        ("train --out new --continue --data my.jsonl", "no model was named; "),
        ("explain new", f"{name} explain {full} --config new/config.json.\n"),
        ("train --config new/config.json", f"{name} train {full} --config new/config.json"),
    ):
        assert action in own(words, code=2), words
    # A name that another has chosen is none of ours, in full or not.
    for text in ("other.py:Sum", "/proc/self/cwd/other.py:Sum"):
        parts = Parts(Path("new/best.safetensors"))
        parts.meta["options"]["model"] = text
        parts.write(Path("other.safetensors"))
        found = own("predict other.safetensors --data my.jsonl", code=2)
        assert found.startswith(f"vertexrt: [other.safetensors] its model is {text}, a file that ")
    with pytest.raises(SystemExit, match="was run"):
        main(["eval", "new", "--model", "other.py:Sum"])


def test_what_lies_beside_the_file_is_for_it_alone(tmp_path: Path) -> None:
    for name, text in (
        ("net.py", f"import one_beside, four_beside\nfrom two_beside import part\n{WHOLE}"),
        ("one_beside.py", "import three_beside\ndef late():\n    import late_beside\n"),
        ("three_beside.py", ""),
        ("late_beside.py", ""),
        ("json.py", "1 / 0\n"),
        ("optional_beside.py", "1 / 0\n"),
        ("two_beside/__init__.py", ""),
        ("two_beside/part.py", "import three_beside\n"),
        ("four_beside.py", "import importlib\nimportlib.import_module('three_beside')\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    find(f"{tmp_path / 'net.py'}:Sum", "loss", "json-lines")
    sys.modules["one_beside"].late()
    assert importlib.util.find_spec("optional_beside") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("optional_beside")
    assert str(tmp_path) not in sys.path


def test_an_error_in_the_file_is_its_own(cli: Cli) -> None:
    Path("broken.py").write_text("import vertexrt\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        main(["train", "broken.py:Tree", "--data", "data"])


GRAPH = {"children": [[], [], [0, 1]]}


def write_graphs(name: str, *pulls: dict[str, list[str | None]]) -> None:
    lines = [json.dumps({**GRAPH, "pulls": each}) for each in pulls]
    Path(name).write_text("\n".join(lines))


def test_its_predictions_are_written(own: Cli) -> None:
    plus, minus = ["+", "0", "+"], ["-"] * 3
    first = {"word": ["a", "b", None], "label": plus}
    write_graphs("my.jsonl", *[first, {"word": ["b", "b", None], "label": minus}] * 6)
    write_graphs("new.jsonl", *[{"word": ["a", "zzz", None]}] * 3)
    words = TREE.replace("data data", "data my.jsonl")
    own(f"{words} --epochs 1 --set depth=1 --out new")
    given = "predict new --data new.jsonl --model own.py:Tree"
    assert main(shlex.split(f"{given} --out out.jsonl --batch-size 2")) == 0
    shown = own.capsys.readouterr()
    assert shown.out.startswith("predictions of 3 graphs of ")
    assert "3 of 6 (50.0 %) of the values of 'word' are unknown words, <unk>" in shown.err
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(found) == 3
    assert found[0] == found[2]
    # The same by hand, from the checkpoint.
    stored = vrt.load_checkpoint("new/best.safetensors")
    p, known = stored.parameters, stored.meta["vocabularies"]
    assert known["label"] == ["+", "-", "0"]
    leaf = [np.tanh(p["table"][row]) for row in (known["word"].index("a"), 0)]
    states = np.array([*leaf, np.tanh(p["w"] @ np.concatenate(leaf))])
    shares = np.exp(states @ p["v"].T)
    shares /= shares.sum(axis=1, keepdims=True)
    assert np.allclose(found[0]["probabilities"], shares, atol=1e-5)
    assert found[0]["prediction"] == [known["label"][k] for k in shares.argmax(axis=1)]
    assert own(given) == Path("out.jsonl").read_text()
    assert main(shlex.split(f"{given} --out none/out")) == 2
    assert "--out] " in own.capsys.readouterr().err


def test_labels_are_written_as_they_are_and_move_no_cursor(own: Cli) -> None:
    labels = ["end\0", "\x9b31m", "\u202eabc", "\ud800", "\U000e0001", "x" * 5000, "caf\u00e9"]
    name = "a\x9b\u202e"  # of a pull, which a line of what is said names
    word = ["a", "b", None]
    write_graphs("my.jsonl", *[{"word": word, "label": [label] * 3} for label in labels] * 4)
    write_graphs("new.jsonl", {"word": word, name: ["zz", "a", "a"]})
    own(f"{TREE.replace('data data', 'data my.jsonl')} --epochs 1 --set depth=1 --out new")
    found: set[str] = set()
    for best in range(len(labels)):  # each class in turn
        parts = Parts(Path("new/best.safetensors"))
        for tensor, array in parts.tensors.items():
            parts.tensors[tensor] = np.abs(array)
        parts.tensors["parameter/v"] *= -1
        parts.tensors["parameter/v"][best] = 0
        words_of = parts.meta["vocabularies"]
        words_of[name] = ["<unk>", "a"]
        known = {pull: Vocabulary(tuple(words), None) for pull, words in words_of.items()}
        parts.meta["data"]["words"] = hash_of(known)
        parts.write(Path("best.safetensors"))
        given = ["predict", "best.safetensors", "--model", "own.py:Tree", "--data", "new.jsonl"]
        own.capsys.readouterr()
        assert main([*given, "--out", "out.jsonl"]) == 0
        assert main(given) == 0
        shown, written = own.capsys.readouterr(), Path("out.jsonl").read_text()
        assert shown.out.endswith(written)
        assert labels[-1] in written
        assert "of the values of 'a\\x9b\\u202e' are unknown words" in shown.err
        assert (shown.out + shown.err).replace("\n", "").isprintable()
        assert json.loads(written)["prediction"] == [words_of["label"][best]] * 3
        found.add(words_of["label"][best])
    assert found == set(labels)


def test_predictions_of_vertex_types_are_of_those_that_answer(cli: Cli) -> None:
    write_texts("tagged", Path("texts"))
    words = "--hidden 3 --embed 3 --epochs 1 --out new"
    cli(f"train bilstm-tagger --data texts {RUN} {words}")
    found = [json.loads(line) for line in cli("predict new --split dev").splitlines()]
    assert len(found) == 12
    for line, spoken in zip(
        found, [["Ann", "saw", "Rome"], ["Rome", "is", "far"]] * 6, strict=True
    ):
        assert list(line) == ["word", "tag"]  # letters and directions push zeros alone
        assert line["word"] == {"word": spoken}
        assert line["tag"]["roots"] == [0, 1, 2]
        assert len(line["tag"]["prediction"]) == 3
        assert set(line["tag"]["prediction"]) <= {"B-LOC", "B-PER", "O"}
        assert np.allclose(np.sum(line["tag"]["probabilities"], axis=1), 1.0, atol=1e-5)


def meaning(tree: dict[str, list[list[int]]], words: list[str], vertex: int) -> bool:
    found = [meaning(tree, words, child) for child in tree["children"][vertex]]
    if words[vertex] in ("true", "false"):
        assert not found
        return words[vertex] == "true"
    return {"not": lambda: not found[0], "and": lambda: all(found), "or": lambda: any(found)}[
        words[vertex]
    ]()


def test_a_new_model_trains_as_it_stands(cli: Cli) -> None:
    command = cli("new my_model.py").splitlines()[-1].removeprefix("train it: ")
    assert f"{command}\n" in Path("my_model.py").read_text()  # the file says it as well
    lines = [json.loads(line) for line in Path("my_model.jsonl").read_text().splitlines()]
    for line in lines[::50]:
        words, labels = line["pulls"]["word"], line["pulls"]["label"]
        values = [meaning(line, words, vertex) for vertex in range(len(words))]
        assert labels == ["yes" if value else "no" for value in values]
    small = "--epochs 5 --hidden 16 --batch-size 20 --device reference --out new"
    cli(f"{command.removeprefix('vertexrt ')} {small}")
    dev = [line["root_accuracy"] for line in records("new") if line["split"] == "dev"]
    assert dev[-1] > 0.8
    options = vrt.load_checkpoint("new/best.safetensors").meta["options"]
    assert options["shape"]["hidden"] == 16
