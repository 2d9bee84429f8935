"""A model in a file of the user: trained, evaluated, explained and measured as the shipped ones."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import Parts, records, write_trees
from vertexrt.cli.main import main
from vertexrt.cli.session import hash_of
from vertexrt.data import Vocabulary
from vertexrt.data.load import format_of
from vertexrt.models.own import find

MODEL = '''
import vertexrt as vrt
from helper import WIDTH


class Tree(vrt.VertexFunction):
    def __init__(self, vocab, classes, hidden=WIDTH, *, gated: bool = False, depth):
        super().__init__(arity=2, state={"h": hidden})
        self.depth = depth
        self.table = vrt.Parameter((vocab, hidden))
        self.w = vrt.Parameter((hidden, 2 * hidden))
        self.v = vrt.Parameter((classes, hidden))

    def forward(self):
        both = vrt.concat(self.gather(0).h, self.gather(1).h)
        h = vrt.tanh(vrt.embed(self.table, self.pull("word")) + self.w @ both)
        self.scatter(h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Sum(vrt.VertexFunction):
    """A number for each graph: half of the sum of those of its leaves."""

    def __init__(self):
        super().__init__(arity=2, state={"s": 1})
        self.w = vrt.Parameter((1, 1))

    def forward(self):
        x = self.pull("x", shape=(1,), dtype="float")
        s = x + self.gather(0).s + self.gather(1).s
        self.scatter(s=s)
        output = self.push("output", self.w @ s)
        target = self.pull("target", shape=(1,), dtype="float")
        self.push("loss", self.present("target") * vrt.losses.squared_error(output, target))
'''
WHOLE = MODEL.replace("from helper import WIDTH", "WIDTH = 5")
RUN = ("--device", "reference", "--batch-size", "4", "--epochs", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "helper.py").write_text("WIDTH = 5\n")
    (folder / "my_model.py").write_text(MODEL)
    return folder / "my_model.py"


def sums(count: int) -> str:
    rng = np.random.default_rng(0)
    lines = []
    for a, b in rng.standard_normal((count, 2)).round(3).tolist():
        pulls = {"x": [[a], [b], [0.0]], "target": [None, None, [(a + b) / 2]]}
        lines.append(json.dumps({"children": [[], [], [0, 1]], "pulls": pulls}) + "\n")
    return "".join(lines)


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    return capsys.readouterr().err


def test_it_trains_on_trees(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, out = write_trees(tmp_path / "data"), tmp_path / "run"
    words = [f"{model}:Tree", "--data", str(trees), *RUN]
    set_all = ["--set", "depth=2", "--set", "gated=true"]
    assert main(["train", *words, "--task", "classification", *set_all, "--out", str(out)]) == 0
    stored = vrt.load_checkpoint(out / "best.safetensors")
    options = stored.meta["options"]
    assert options["shape"] == {"hidden": 5, "gated": True, "depth": 2}
    assert (options["model"], options["format"]) == (f"{model}:Tree", "trees")
    vocab = len(stored.meta["vocabularies"]["word"])
    assert stored.parameters["table"].shape == (vocab, 5)
    assert stored.parameters["v"].shape == (5, 5)
    # What training prints evaluates it, and goes on with it.
    shown = capsys.readouterr().out
    assert "best dev root accuracy" in shown
    command = shown.partition("evaluate it: vertexrt ")[2].partition("\n")[0]
    assert main(command.split()) == 0
    assert "test: loss" in capsys.readouterr().out
    assert f"train it further: vertexrt train {model}:Tree --resume {out} --epochs" in shown
    assert main(["train", f"{model}:Tree", "--resume", str(out), "--epochs", "3"]) == 0
    assert [line["epoch"] for line in records(out) if line["split"] == "dev"] == [1, 2, 3]
    # The file may have moved; a model of another name is another model.
    for name in ("helper.py", "my_model.py"):
        (tmp_path / name).write_text((model.parent / name).read_text())
    moved = f"{tmp_path / 'my_model.py'}:Tree"
    assert main(["eval", str(out), "--model", moved]) == 0
    assert main(["train", moved, "--resume", str(out), "--epochs", "4"]) == 0
    assert vrt.load_checkpoint(out / "last.safetensors").meta["options"]["model"] == moved
    assert main(["train", f"{model}:Sum", "--resume", str(out)]) == 1
    # What was given again is compared.
    again = ["train", moved, "--resume", str(out), "--set", "depth=3"]
    assert "got --set [('depth', 3)], the run" in complaint(again, capsys)


def test_it_trains_on_one_file_of_json_lines(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.jsonl").write_text(sums(40))
    out = tmp_path / "run"
    words = [f"{model}:Sum", "--data", str(tmp_path / "my.jsonl"), *RUN, "--lr", "0.3"]
    assert main(["train", *words, "--task", "regression", "--out", str(out), "--epochs", "12"]) == 2
    capsys.readouterr()
    words[words.index("--epochs") + 1] = "12"
    assert main(["train", *words, "--task", "regression", "--out", str(out)]) == 0
    assert "best dev mean squared error 0.0" in capsys.readouterr().out
    learned = vrt.load_checkpoint(out / "best.safetensors").parameters["w"]
    assert np.allclose(learned, 0.5, atol=0.05)
    (tmp_path / "other.jsonl").write_text(sums(3))
    named = ["--data", str(tmp_path / "other.jsonl"), "--model", f"{model}:Sum"]
    assert main(["eval", str(out), *named]) == 0
    assert "; 3 graphs of " in capsys.readouterr().out


def test_eval_names_the_file_of_its_split(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("train", 8), ("dev", 3), ("other", 5)):
        (tmp_path / f"{name}.jsonl").write_text(sums(count))
    train, dev, other = (str(tmp_path / f"{name}.jsonl") for name in ("train", "dev", "other"))
    out = str(tmp_path / "run")
    words = [f"{model}:Sum", "--data", train, "--dev", dev, *RUN, "--task", "regression"]
    assert main(["train", *words, "--out", out]) == 0
    capsys.readouterr()
    for given, shown in (
        (["--split", "train"], f"; 7 graphs of {train}, "),  # one is held out for test
        (["--split", "dev"], f"; 3 graphs of {dev}, "),
        (["--split", "test"], f"; 1 graph of {train}, "),
        (["--split", "dev", "--data", other], f"; 5 graphs of {other}, "),
    ):
        assert main(["eval", out, "--model", f"{model}:Sum", *given]) == 0
        assert shown in capsys.readouterr().out


def test_it_is_explained(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.jsonl").write_text(sums(20))
    words = ["explain", f"{model}:Sum", "--data", str(tmp_path / "my.jsonl")]
    assert main([*words, "--device", "reference"]) == 0
    assert "Sum: 2 children, state s[1]" in capsys.readouterr().out


def test_it_is_measured(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.jsonl").write_text(sums(20))
    words = ["--model", f"{model}:Sum", "--data", str(tmp_path / "my.jsonl"), "--batch-sizes", "2"]
    more = ["--device", "reference", "--seconds", "0", "--out", str(tmp_path)]
    assert main(["bench", "breakdown", *words, *more]) == 0
    assert "Sum, " in capsys.readouterr().err
    assert (tmp_path / "breakdown-Sum.json").is_file()
    missing = ["bench", "ablation", "--model", f"{model}:Sum"]
    assert "no data; expected graphs to measure; give --data." in complaint(missing, capsys)


def test_a_format_is_found_from_files(tmp_path: Path) -> None:
    write_trees(tmp_path / "a" / "trees")
    for name, text in (("b", "a b\n"), ("c", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text(text)
    (tmp_path / "c" / "train.jsonl.gz").write_bytes(b"")
    (tmp_path / "x.jsonl").write_text("")
    found = [format_of(str(tmp_path / name)) for name in ("a", "b", "x.jsonl")]
    with pytest.raises(vrt.errors.VertexrtError, match="there is no "):
        format_of(str(tmp_path / "none"))
    assert found == ["trees", "text", "json-lines"]
    assert [format_of(name) for name in ("sst", "ptb")] == ["trees", "text"]
    with pytest.raises(
        vrt.errors.VertexrtError, match="data 'generated' without a format; one of trees"
    ):
        format_of("generated")
    with pytest.raises(
        vrt.errors.VertexrtError, match=r"no data in .*; expected trees: trees in brackets"
    ):
        format_of(str(tmp_path))


def test_what_does_not_fit_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees = str(write_trees(tmp_path / "data"))
    circle = tmp_path / "circle.py"
    circle.symlink_to(circle)
    out, wide = ["--out", str(tmp_path / "run")], tmp_path / "wide.py"
    wide.write_text(f"{WHOLE}\nclass Wide(Sum):\n    def __init__(self, hidden=70_000): ...\n")
    for words, text in (
        (["nowhere.py:Tree", "--data", trees], "there is no file "),
        (["~nobody-here/x.py:Tree", "--data", trees], "[model] '~nobody-here/x.py' (Could not de"),
        ([f"{circle}:Tree", "--data", trees], f"[model] '{circle}' (Symlink loop from "),
        ([str(model), "--data", trees], "no class of "),
        ([f"{model}:Three", "--data", trees], "it defines Tree, Sum; Name one: my_model.py:Sum. N"),
        ([f"{model}:Tree"], "no data; expected what to train it on"),
        ([f"{model}:Tree", "--data", trees], "[Tree] nothing says what the argument 'depth' is;"),
        (
            [f"{model}:Tree", "--data", trees, "--set", "dept=1"],
            "[Tree] option 'dept'; one of vocab",
        ),
        (
            [f"{model}:Tree", "--data", trees, "--set", "depth"],
            "[--set] got 'depth'; expected NAME=",
        ),
        (
            [f"{model}:Tree", "--data", trees, "--set", "hidden=0"],
            "[--set hidden] got '0'; expected",
        ),
        (
            [f"{model}:Tree", "--data", trees, "--set", "depth=1", "--task", "regression"],
            "[--task] Tree pushes logits, loss; the task regression reads loss and output;",
        ),
        (
            [f"{model}:Tree", "--data", trees, "--set", "hidden=3", "--set", "depth=-1e999"],
            "[--set] got 'depth=-1e999'; expected a finite number;",
        ),
        (
            [f"{model}:Tree", "--data", trees, "--set", "hidden=3", "--hidden", "3"],
            "[--set] two values of hidden;",
        ),
        (
            [f"{model}:Tree", "--data", trees, "--format", "conlu"],
            "[data] no format 'conlu'; the formats are trees, text, tagged, pairs, ",
        ),
        (
            [f"{wide}:Wide", "--data", trees],
            "[Wide hidden] got '70000'; expected a whole number, 65536 at most; Change it.",
        ),
        (["tree-lstm", "--task", "tagging"], "got --task tagging; its task is classification;"),
        (
            ["tree-lstm", "--format", "text"],
            "got --format text; its format is trees or json-lines or ",
        ),
    ):
        assert text in complaint(["train", *words, *RUN, *out], capsys), words
    assert not (tmp_path / "run").exists()


def test_a_file_that_a_run_or_a_configuration_names_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_model.py").write_text(WHOLE)
    Path("my.jsonl").write_text(sums(20))
    named = ["my_model.py:Sum", "--data", "my.jsonl"]
    assert main(["train", *named, *RUN, "--task", "regression", "--out", "run"]) == 0
    full = f"{tmp_path / 'my_model.py'}:Sum"
    Path("other.py").write_text("raise SystemExit('was run')\n")
    add, name = f"then add --model {full}.\n", "then name it: vertexrt"
    for words, action in (
        (["eval", "run"], add),
        (["predict", "run/best.safetensors", "--data", "my.jsonl"], add),
        (["export", "run", "out"], add),
        (["train", "--resume", "run"], f"{name} train {full} --resume run.\n"),
        (["train", "--out", "run", "--continue", *named[1:]], "no model was named; "),
        (["explain", "run"], f"{name} explain {full} --config run/config.json.\n"),
        (["train", "--config", "run/config.json"], f"{name} train {full} --config run/config.json"),
    ):
        assert action in complaint(words, capsys), words
    # A name that another has chosen is none of ours, in full or not.
    for text in ("other.py:Sum", "/proc/self/cwd/other.py:Sum"):
        parts = Parts(Path("run/best.safetensors"))
        parts.meta["options"]["model"] = text
        parts.write(Path("other.safetensors"))
        found = complaint(["predict", "other.safetensors", "--data", "my.jsonl"], capsys)
        assert found.startswith(f"vertexrt: [other.safetensors] its model is {text}, a file that ")
    with pytest.raises(SystemExit, match="was run"):
        main(["eval", "run", "--model", "other.py:Sum"])


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


def test_an_error_in_the_file_is_its_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import vertexrt\n1 / 0\n")
    trees = write_trees(tmp_path / "data")
    with pytest.raises(ZeroDivisionError):
        main(["train", f"{tmp_path / 'broken.py'}:Tree", "--data", str(trees)])


def test_its_predictions_are_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        json.dumps({"children": [[], [], [0, 1]], "pulls": {"word": words, "label": labels}})
        for words, labels in ((["a", "b", None], ["+", "0", "+"]), (["b", "b", None], ["-"] * 3))
    ]
    (tmp_path / "my.jsonl").write_text("\n".join(lines * 6))
    unlabelled = {"children": [[], [], [0, 1]], "pulls": {"word": ["a", "zzz", None]}}
    (tmp_path / "new.jsonl").write_text((json.dumps(unlabelled) + "\n") * 3)
    run, out = str(tmp_path / "run"), tmp_path / "out.jsonl"
    words = [f"{model}:Tree", "--data", str(tmp_path / "my.jsonl"), *RUN, "--set", "depth=1"]
    assert main(["train", *words, "--task", "classification", "--out", run]) == 0
    capsys.readouterr()
    given = ["predict", run, "--data", str(tmp_path / "new.jsonl"), "--model", f"{model}:Tree"]
    assert main([*given, "--out", str(out), "--batch-size", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("predictions of 3 graphs of ")
    assert "3 of 6 (50.0 %) of the values of 'word' are unknown words, <unk>" in shown.err
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) == 3
    assert found[0] == found[2]
    # The same by hand, from the checkpoint.
    stored = vrt.load_checkpoint(tmp_path / "run" / "best.safetensors")
    p, known = stored.parameters, stored.meta["vocabularies"]
    assert known["label"] == ["+", "-", "0"]
    leaf = [np.tanh(p["table"][row]) for row in (known["word"].index("a"), 0)]
    states = np.array([*leaf, np.tanh(p["w"] @ np.concatenate(leaf))])
    shares = np.exp(states @ p["v"].T)
    shares /= shares.sum(axis=1, keepdims=True)
    assert np.allclose(found[0]["probabilities"], shares, atol=1e-5)
    assert found[0]["prediction"] == [known["label"][k] for k in shares.argmax(axis=1)]
    assert main(given) == 0  # to stdout
    assert capsys.readouterr().out == out.read_text()
    there = tmp_path / "none" / "out"
    assert "--out] " in complaint([*given, "--out", str(there)], capsys)


def test_labels_are_written_as_they_are_and_move_no_cursor(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = ["end\0", "\x9b31m", "\u202eabc", "\ud800", "\U000e0001", "x" * 5000, "caf\u00e9"]
    name = "a\x9b\u202e"  # of a pull, which a line of what is said names
    graph = {"children": [[], [], [0, 1]]}
    lines = [
        json.dumps({**graph, "pulls": {"word": ["a", "b", None], "label": [label] * 3}})
        for label in labels
    ]
    (tmp_path / "my.jsonl").write_text("\n".join(lines * 4))
    run, out = str(tmp_path / "run"), tmp_path / "out.jsonl"
    words = [f"{model}:Tree", "--data", str(tmp_path / "my.jsonl"), *RUN, "--set", "depth=1"]
    assert main(["train", *words, "--task", "classification", "--out", run]) == 0
    found: set[str] = set()
    for best in range(len(labels)):  # each class in turn
        parts = Parts(tmp_path / "run" / "best.safetensors")
        for tensor, array in parts.tensors.items():
            parts.tensors[tensor] = np.abs(array)
        parts.tensors["parameter/v"] *= -1
        parts.tensors["parameter/v"][best] = 0
        words_of = parts.meta["vocabularies"]
        words_of[name] = ["<unk>", "a"]
        known = {pull: Vocabulary(tuple(words), None) for pull, words in words_of.items()}
        parts.meta["data"]["words"] = hash_of(known)
        parts.write(tmp_path / "best.safetensors")
        unknown = {**graph, "pulls": {"word": ["a", "b", None], name: ["zz", "a", "a"]}}
        (tmp_path / "new.jsonl").write_text(json.dumps(unknown))
        given = ["predict", str(tmp_path / "best.safetensors"), "--model", f"{model}:Tree"]
        given += ["--data", str(tmp_path / "new.jsonl")]
        capsys.readouterr()
        assert main([*given, "--out", str(out)]) == 0
        assert main(given) == 0
        shown = capsys.readouterr()
        assert shown.out.endswith(out.read_text())
        assert labels[-1] in out.read_text()
        assert "of the values of 'a\\x9b\\u202e' are unknown words" in shown.err
        assert (shown.out + shown.err).replace("\n", "").isprintable()
        assert json.loads(out.read_text())["prediction"] == [words_of["label"][best]] * 3
        found.add(words_of["label"][best])
    assert found == set(labels)


def test_predictions_of_vertex_types_are_of_those_that_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, words in (("train", "Ann|B-PER saw|O Rome|B-LOC"), ("dev", "Ann|B-PER left|O")):
        (tmp_path / f"{split}.txt").write_text(f"{words}\n" * 4)
    run = str(tmp_path / "run")
    words = ["train", "bilstm-tagger", "--data", str(tmp_path), *RUN, "--hidden", "3"]
    assert main([*words, "--embed", "3", "--out", run]) == 0
    capsys.readouterr()
    assert main(["predict", run, "--split", "dev"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 4
    for line in found:
        assert list(line) == ["word", "tag"]  # letters and directions push zeros alone
        assert line["word"] == {"word": ["Ann", "left"]}
        assert line["tag"]["roots"] == [0, 1]
        assert len(line["tag"]["prediction"]) == 2
        assert set(line["tag"]["prediction"]) <= {"B-LOC", "B-PER", "O"}
        assert np.allclose(np.sum(line["tag"]["probabilities"], axis=1), 1.0, atol=1e-5)
