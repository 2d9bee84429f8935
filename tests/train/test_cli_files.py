"""Files as people have them: from a file to predictions in at most three commands, without Python.

Each test makes small files, trains a model of the catalogue on them and writes what it predicts.
"""

import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import records, train, write_trees
from vertexrt.cli.main import main
from vertexrt.hub import load_pretrained

SMALL = ("--device", "reference", "--epochs", "2", "--hidden", "4", "--embed", "4")
TAGS = {"cat": "NOUN", "dog": "NOUN", "sees": "VERB", "big": "ADJ"}
SENTENCES = (["cat", "sees", "dog"], ["big", "dog", "sees"], ["dog", "sees"], ["big", "cat"])


def conllu(sentences: Any, start: int = 0) -> str:
    """Return sentences in which the first word is the root, and each depends on the one before."""
    lines = []
    for number, words in enumerate(sentences, start):
        lines.append(f"# sent_id = s{number}")
        for at, word in enumerate(words, 1):
            head, relation = (at - 1, "dep") if at > 1 else (0, "root")
            row = (at, word, "_", TAGS.get(word, "_"), "_", "_", head, relation, "_", "_")
            lines.append("\t".join(map(str, row)))
        lines.append("")
    return "\n".join(lines) + "\n"


def trained(model: str, data: Path, *more: str) -> Path:
    """Train on a file; return the run folder."""
    out = data.parent / "run"
    assert main(["train", model, "--data", str(data), *SMALL, "--out", str(out), *more]) == 0
    return out


def predicted(run: Path, data: Path, *more: str) -> list[dict[str, Any]]:
    """Predict a file."""
    out = run.parent / "out.jsonl"
    assert main(["predict", str(run), "--data", str(data), "--out", str(out), *more]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_dependency_trees(tmp_path: Path) -> None:
    data, new = tmp_path / "en.conllu", tmp_path / "new.conllu"
    data.write_text(conllu(SENTENCES * 5))
    new.write_text(conllu([["zebra", "sees", "cat"], ["dog"]], start=7))
    run = trained("child-sum-tree-lstm", data, "--label", "upos")
    lines = records(run)
    assert {line["split"] for line in lines} == {"train", "dev", "test"}
    first, second = predicted(run, new)
    assert list(first) == ["id", "word", "roots", "classes", "prediction", "probabilities"]
    assert (first["id"], second["id"]) == ("s7", "s8")
    assert first["word"] == ["zebra", "sees", "cat"]  # as it is, though it was not known
    assert first["roots"] == [0]
    assert first["classes"] == ["ADJ", "NOUN", "VERB"]
    assert set(first["prediction"]) <= {*first["classes"]}
    assert np.array(first["probabilities"]).shape == (3, 3)


def test_a_folder_as_universal_dependencies_name_it(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("dev", 2)):
        (tmp_path / f"en_ewt-ud-{split}.conllu").write_text(conllu(SENTENCES[:count]))
    out = tmp_path / "run"
    words = ["train", "dag-lstm", "--data", str(tmp_path), *SMALL, "--label", "deprel"]
    assert main([*words, "--out", str(out)]) == 0
    assert {line["split"] for line in records(out)} == {"train", "dev"}  # none of test is there


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, mark in (("csv", ","), ("tsv", "\t")):
        (tmp_path / name).mkdir()
        data, new = (tmp_path / name / f"{of}.{name}" for of in ("my", "new"))
        rows = [f"r{k}{mark}{'good' if k % 3 else 'bad'} film{mark}{k % 3 > 0}" for k in range(30)]
        data.write_text("\n".join([f"id{mark}text{mark}liked", *rows]))
        new.write_text(f'id{mark}text\na{mark}"bad{mark} bad film"\nb{mark}good\n')
        run = trained("child-sum-tree-lstm", data, "--label", "liked")
        first, second = predicted(run, new)
        assert (first["id"], second["id"]) == ("a", "b")
        assert len(first["word"]) == 3
        assert first["roots"] == [2]
        assert first["classes"] == ["False", "True"]
    words = ["train", "child-sum-tree-lstm", "--data", str(tmp_path / "csv" / "my.csv"), *SMALL]
    capsys.readouterr()
    for more, text in (
        (["--label", "like"], "no pull 'like'; the data have liked, text; name one of these as"),
        (
            ["--label", "liked", "--word", "txt"],
            "no pull 'txt'; the data have liked, text; name one of",
        ),
    ):
        assert main([*words, "--out", str(tmp_path / "none"), *more]) == 1
        assert text in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_brackets_in_one_file(tmp_path: Path) -> None:
    data = tmp_path / "wsj.mrg"
    data.write_text(
        "( (S (NP (DT the) (NN film))\n (VP (VBZ works))) )\n(S (NN it) (VP (VBZ is)))\n" * 10
    )
    run = trained("child-sum-tree-lstm", data, "--dev", "0.2", "--test", "0")
    sizes = vrt.load_checkpoint(run / "last.safetensors").meta["data"]["splits"]
    assert {split: graphs for split, (graphs, _) in sizes.items()} == {"train": 16, "dev": 4}
    found = predicted(run, data)
    assert len(found) == 20
    assert found[0]["word"] == ["the", "film", None, "works", None, None]
    assert found[0]["roots"] == [5]


def test_graphs_of_networkx(tmp_path: Path) -> None:
    """As `networkx.node_link_data` writes them, one or a list."""
    graphs = []
    for number in range(12):
        dag = networkx.DiGraph([("a", "c"), ("b", "c")], id=f"g{number}")
        for node, word in (("a", "good"), ("b", "film"), ("c", "is")):
            dag.nodes[node].update(word=word, mark=number % 2 + (node == "a"))
        graphs.append(networkx.node_link_data(dag, edges="edges"))
    data, new = tmp_path / "my.json", tmp_path / "new.json"
    data.write_text(json.dumps(graphs))
    new.write_text(json.dumps(graphs[5]))
    run = trained("dag-lstm", data, "--label", "mark")
    (found,) = predicted(run, new)
    assert found["id"] == "g5"
    assert found["word"] == ["good", "is", "film"]  # in the order of the nodes
    assert (found["roots"], found["classes"]) == ([1], [0, 1, 2])


def test_json_lines(tmp_path: Path) -> None:
    data = tmp_path / "my.jsonl"
    record: dict[str, Any] = {"id": 7, "children": [[], [], [0, 1]]}
    record["pulls"] = {"token": ["a", "b", None], "kind": ["x", "y", "x"], "label": [0, 0, 0]}
    data.write_text((json.dumps(record) + "\n") * 20)
    run = trained("tree-lstm", data, "--label", "kind", "--word", "token")
    found = predicted(run, data)
    assert (found[0]["id"], found[0]["classes"]) == (7, ["x", "y"])
    out = tmp_path / "exported"
    assert main(["export", str(run), str(out)]) == 0
    model = load_pretrained(out)
    assert model.predict([record] * 20) == found
    record["pulls"]["token"] = ["a", "zebra", None]
    (again,) = model.predict([record])
    assert again["word"] == ["a", "zebra", None]
    copy = ["train", "--config", str(run / "config.json"), "--out", str(tmp_path / "copy")]
    assert main(copy) == 0
    assert records(tmp_path / "copy")[0]["loss"] == records(run)[0]["loss"]


def test_words_in_columns_for_a_tagger(tmp_path: Path) -> None:
    """CoNLL: a word a line, the tag in the last column; new text has words alone."""
    data, dev, new = (tmp_path / f"{name}.conll" for name in ("train", "dev", "new"))
    data.write_text("# one\nAnn\tNNP\tB-PER\nsees\tVBZ\tO\n\nRome\tNNP\tB-LOC\n\n" * 5)
    dev.write_text("Ann\tNNP\tB-PER\n")
    new.write_text("Ann\nsaw\n")
    more = ("--dev", str(dev), "--test", "0", "--separator", "tab", "--comment", "# ")
    run = trained("bilstm-tagger", data, *more)
    assert "entity_f1" in records(run)[1]
    (found,) = predicted(run, new)
    assert found["word"] == {"word": ["Ann", "saw"]}
    assert found["tag"]["classes"] == ["B-LOC", "B-PER", "O"]
    (tmp_path / "chains").mkdir()
    chains = tmp_path / "chains" / "my.bio"
    chains.write_text("Ann|B-PER|x\nsees|O|y\n\n" * 10)
    run = trained("nary-tree-lstm", chains, "--separator", "|", "--label", "1")
    assert predicted(run, chains)[0]["classes"] == ["B-PER", "O"]


NUMBERS = """
import vertexrt as vrt

class Net(vrt.VertexFunction):
    def __init__(self, vocab, num_kind, classes):
        super().__init__(state={})
        self.words, self.kinds = vrt.Parameter((vocab, 4)), vrt.Parameter((num_kind, 4))
        self.out = vrt.nn.Linear(4, classes)

    def forward(self):
        x = vrt.embed(self.words, self.pull("word")) + vrt.embed(self.kinds, self.pull("kind"))
        logits = self.push("logits", self.out(x))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))
"""


def test_whole_numbers_count_as_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, new = tmp_path / "my.jsonl", tmp_path / "new.jsonl"
    (tmp_path / "net.py").write_text(NUMBERS)

    def write(path: Path, word: int, kind: int, label: str = "label") -> None:
        pulls = {"word": [word], "kind": [kind], label: [1]}
        lines = json.dumps({"chain": 1, "pulls": pulls}) + "\n"
        path.write_text(lines * 20)

    write(data, 8, 2)
    named = [f"{tmp_path / 'net.py'}:Net", "--data", str(data), "--task", "classification"]
    more = ("--device", "reference", "--epochs", "1", "--out")
    assert main(["train", *named, *more, str(tmp_path / "run")]) == 0
    stored = vrt.load_checkpoint(tmp_path / "run" / "last.safetensors").parameters
    assert (stored["words"].shape, stored["kinds"].shape) == ((9, 4), (3, 4))
    given = ("--data", str(new), "--model", named[0])
    write(new, 3, 0)
    assert main(["predict", str(tmp_path / "run"), *given]) == 0
    write(new, 3, 5)
    assert main(["predict", str(tmp_path / "run"), *given]) == 1
    assert "its numbers 'kind' are below 3, " in capsys.readouterr().err
    write(data, 8, 2, "lable")
    assert main(["train", *named, *more, str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "nothing says what the argument 'classes' is; a default, or one that the data" in said
    assert "(they pull kind, lable, word); give it: --set classes=VALUE, or name the pull" in said


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_trees(tmp_path / "data")
    runs = tmp_path / "runs"
    assert train(data, runs / "a", "--epochs", "1", "--class-weights", "balanced") == 0
    assert train(data, runs / "b", "--epochs", "2", "--metric", "macro_f1") == 0
    stored = vrt.load_checkpoint(runs / "a" / "last.safetensors").meta["options"]
    weights = [float(each) for each in stored["class_weights"].partition(":")[2].split(",")]
    lines = (data / "train.txt").read_text()
    counts = np.array([lines.count(f"({label} ") for label in range(5)])
    assert np.allclose(weights, counts.sum() / (5 * counts), rtol=1e-5)
    again = ["train", "--resume", str(runs / "a"), "--class-weights"]
    assert main([*again, "balanced"]) == 0
    assert main([*again, "1,2,3,4,5"]) == 2
    best = vrt.load_checkpoint(runs / "b" / "best.safetensors").meta["state"]
    dev = [line for line in records(runs / "b") if line["split"] == "dev"]
    assert best["measure"] == "macro_f1"
    assert best["best"] == max(line["macro_f1"] for line in dev)
    capsys.readouterr()
    assert main(["runs", str(runs)]) == 0
    heads, a, b = capsys.readouterr().out.splitlines()
    assert heads.split()[:4] == ["run", "model", "data", "epochs"]
    assert (a.split()[:4], b.split()[:4]) == (
        ["a", "tree-lstm", "data", "1"],
        ["b", "tree-lstm", "data", "2"],
    )
    assert "  dev macro f1  test macro f1" in heads
    assert f"{100 * best['best']:.2f} %" in b
    assert main(["eval", str(runs / "a"), str(runs / "b"), "--classes"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-3].split()[:3] == ["run", "loss", "root"]
    assert [line.split()[0] for line in shown[-2:]] == [str(runs / "a"), str(runs / "b")]
    assert shown[1] == "roots"
    assert shown[2].split() == ["class", "labelled", "precision", "recall", "f1"]
    for given, text in (
        (["runs", str(tmp_path / "none")], "there is no folder "),
        (["train", "tree-lstm", "--metric", "perplexity"], "[--metric] got perplexity; the task"),
        (["train", "lstm-lm", "--class-weights", "1,2"], "got --class-weights, which lstm-lm does"),
        (["train", "tree-lstm", "--class-weights", "1;2"], "[--class-weights] got '1;2'; expected"),
    ):
        assert main(given) == 2
        assert text in capsys.readouterr().err


def test_a_confusion_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra `plot`)")
    data = write_trees(tmp_path / "data")
    assert train(data, tmp_path / "run", "--epochs", "1") == 0
    assert (tmp_path / "run" / "confusion.png").read_bytes() == b"no picture"  # see conftest


def test_no_split_is_demanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_trees(tmp_path / "data"), tmp_path / "run"
    for split in ("dev", "test"):
        (data / f"{split}.txt").unlink()
    assert train(data, out, "--epochs", "2", "--average", "0.9") == 0
    assert "best dev" not in capsys.readouterr().out
    assert not (out / "best.safetensors").exists()
    assert {line["split"] for line in records(out)} == {"train"}
    assert main(["eval", str(out), "--split", "train"]) == 0
    assert train(data, tmp_path / "two", "--epochs", "1", "--patience", "2") == 2
    assert "has no dev split; expected one whose values decide; Name its file with --dev, or" in (
        capsys.readouterr().err
    )
    assert train(data / "train.txt", tmp_path / "three", "--epochs", "1", "--dev", "0.5") == 0
    sizes = vrt.load_checkpoint(tmp_path / "three" / "last.safetensors").meta["data"]["splits"]
    assert {split: graphs for split, (graphs, _) in sizes.items()} == {
        "train": 10,
        "dev": 12,
        "test": 2,
    }


def test_what_the_model_decides_is_not_said_by_a_configuration(tmp_path: Path) -> None:
    data, small = write_trees(tmp_path / "data"), ("--device", "reference", "--epochs", "1")
    words = ["train", "td-rnn", "--data", str(data), *small, "--hidden", "4"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    config = str(tmp_path / "one" / "config.json")
    assert main(["train", "--config", config, "--out", str(tmp_path / "two")]) == 0


def test_a_run_that_is_refused_at_once_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"chain": 2, "pulls": {"label": [0, 1], "word": ["a", "b"]}})] * 20
    data = tmp_path / "my.jsonl"
    data.write_text("\n".join(lines))
    (tmp_path / "net.py").write_text(NUMBERS)  # it pulls "kind", too
    words = [f"{tmp_path / 'net.py'}:Net", "--data", str(data), "--set", "num_kind=3"]
    assert main(["train", *words, "--device", "reference", "--out", str(tmp_path / "run")]) == 1
    assert "kind" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_at_another_rate(tmp_path: Path) -> None:
    data, out = write_trees(tmp_path / "data"), tmp_path / "run"
    assert train(data, out, "--epochs", "1", "--lr", "0.05") == 0
    again = ["train", "--resume", str(out), "--epochs"]
    assert main([*again, "2", "--lr", "0.01"]) == 0
    assert main([*again, "3"]) == 0
    rates = [line["lr"] for line in records(out) if line["split"] == "train"]
    assert rates == [0.05, 0.01, 0.01]
