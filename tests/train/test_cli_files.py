"""Files as people have them: from a file to predictions in at most three commands, without Python.

FILES has small files for models of the catalogue; other tests are of what runs say and refuse.
"""

import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import Cli, records, write_trees
from vertexrt.hub import load_pretrained

SMALL = "--device reference --epochs 2 --hidden 4 --embed 4"
CONLLU = (  # the first word is the root, and each depends on the one before
    "# sent_id = s1\n"
    "1\tcat\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
    "2\tsees\t_\tVERB\t_\t_\t1\tdep\t_\t_\n"
    "3\tbig\t_\tADJ\t_\t_\t2\tdep\t_\t_\n\n"
)


def node_link(number: int) -> Any:
    """Return a graph as `networkx.node_link_data` writes it."""
    dag = networkx.DiGraph([("a", "c"), ("b", "c")], id=f"g{number}")
    for node, word in (("a", "good"), ("b", "film"), ("c", "is")):
        dag.nodes[node].update(word=word, mark=number % 2 + (node == "a"))
    return networkx.node_link_data(dag, edges="edges")


ROWS = [f"r{k},{'good' if k % 3 else 'bad'} film,{k % 3 > 0}" for k in range(30)]
TABLE = "\n".join(["id,text,liked", *ROWS])
PENN = "( (S (NP (DT the) (NN film))\n (VP (VBZ works))) )\n(S (NN it) (VP (VBZ is)))\n"
CONLL = "# one\nAnn\tNNP\tB-PER\nsees\tVBZ\tO\n\nRome\tNNP\tB-LOC\n\n"
# Graphs of each split, words after `train`, a file and its text, that of a new one, and how its
# first prediction begins.
FILES = {
    "dependency trees": (
        [16, 2, 2],
        "child-sum-tree-lstm --label upos",
        "en.conllu",
        CONLLU * 20,
        CONLLU.replace("s1", "s7").replace("cat", "zebra"),  # a word stays as it is, known or not
        '{"id": "s7", "word": ["zebra", "sees", "big"], "roots": [0], '
        '"classes": ["ADJ", "NOUN", "VERB"], "prediction": ["',
    ),
    "a table": (
        [24, 3, 3],
        "child-sum-tree-lstm --label liked",
        "my.csv",
        TABLE,
        'id,text\na,"bad, bad film"\nb,good\n',
        '{"id": "a", "word": ["bad,", "bad", "film"], "roots": [2], '
        '"classes": ["False", "True"], "prediction": ["',
    ),
    "brackets in one file": (
        [16, 4],
        "child-sum-tree-lstm --dev 0.2 --test 0",
        "wsj.mrg",
        PENN * 10,
        PENN,
        '{"word": ["the", "film", null, "works", null, null], "roots": [5], "classes": ["DT",',
    ),
    "graphs of networkx": (
        [10, 1, 1],
        "dag-lstm --label mark",
        "my.json",
        json.dumps([node_link(number) for number in range(12)]),
        json.dumps(node_link(5)),
        '{"id": "g5", "word": ["good", "is", "film"], "roots": [1], "classes": [0, 1, 2], ',
    ),
    # A word a line, the tag in the last column; new text has words alone.
    "words in columns for a tagger": (
        [8, 2],
        'bilstm-tagger --dev 0.2 --test 0 --separator tab --comment "# "',
        "my.conll",
        CONLL * 5,
        "Ann\nsaw\n",
        '{"word": {"word": ["Ann", "saw"]}, ',
    ),
    "words in columns for a chain": (
        [8, 1, 1],
        "nary-tree-lstm --separator | --label 1",
        "my.bio",
        "Ann|B-PER|x\nsees|O|y\n\n" * 10,
        "Ann|B-PER|x\nsees|O|y\n",
        '{"word": ["Ann", "sees"], "roots": [1], "classes": ["B-PER", "O"], "prediction": ["',
    ),
}


def sizes(run: str) -> list[int]:
    """Return how many graphs the splits of a run had."""
    splits = vrt.load_checkpoint(Path(run, "last.safetensors")).meta["data"]["splits"]
    return [graphs for graphs, _ in splits.values()]


def predicted(cli: Cli, data: str, *more: str) -> list[dict[str, Any]]:
    """Predict a file."""
    cli(f"predict run --data {data} --out out.jsonl", *more)
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


@pytest.fixture
def cli(bare: Cli) -> Cli:
    """Run command lines in a folder with trees alone."""
    write_trees(Path("data"))
    return bare


@pytest.mark.parametrize("name", FILES)
def test_from_a_file_to_predictions(name: str, cli: Cli) -> None:
    splits, words, file, content, text, expected = FILES[name]
    new = f"new{Path(file).suffix}"
    Path(file).write_text(content)
    Path(new).write_text(text)
    cli(f"train {words} --data {file} {SMALL} --out run")
    assert sizes("run") == splits
    first = predicted(cli, new)[0]
    assert json.dumps(first).startswith(expected)
    if "tag" in first:  # of a tagger, by vertex type
        assert "entity_f1" in records("run")[1]
        assert first["tag"]["classes"] == ["B-LOC", "B-PER", "O"]
    else:
        assert set(first["prediction"]) <= {*first["classes"]}
        shape = (len(first["word"]), len(first["classes"]))
        assert np.array(first["probabilities"]).shape == shape


def test_json_lines(cli: Cli) -> None:
    record: dict[str, Any] = {"id": 7, "children": [[], [], [0, 1]]}
    record["pulls"] = {"token": ["a", "b", None], "kind": ["x", "y", "x"], "label": [0, 0, 0]}
    Path("my.jsonl").write_text((json.dumps(record) + "\n") * 20)
    cli(f"train tree-lstm --data my.jsonl {SMALL} --label kind --word token --out run")
    found = predicted(cli, "my.jsonl")
    assert (found[0]["id"], found[0]["classes"]) == (7, ["x", "y"])
    cli("export run exported")
    model = load_pretrained("exported")
    assert model.predict([record] * 20) == found
    record["pulls"]["token"] = ["a", "zebra", None]
    assert model.predict([record])[0]["word"] == ["a", "zebra", None]
    cli("train --config run/config.json --out copy")
    assert records("copy")[0]["loss"] == records("run")[0]["loss"]


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


def test_whole_numbers_count_as_words(cli: Cli) -> None:
    """A run that is refused leaves no folder."""
    Path("net.py").write_text(NUMBERS)

    def write(**pulls: int) -> None:
        record = {"chain": 1, "pulls": {name: [value] for name, value in pulls.items()}}
        Path("my.jsonl").write_text((json.dumps(record) + "\n") * 20)

    train = "train net.py:Net --data my.jsonl --device reference --epochs 1 --out"
    task = "--task classification"
    write(word=8, kind=2, label=1)
    cli(f"{train} run {task}")
    stored = vrt.load_checkpoint("run/last.safetensors").parameters
    assert (stored["words"].shape, stored["kinds"].shape) == ((9, 4), (3, 4))
    write(word=3, kind=0, label=1)
    predicted(cli, "my.jsonl", "--model", "net.py:Net")
    write(word=3, kind=5, label=1)
    said = cli("predict run --data my.jsonl --model net.py:Net", code=1)
    assert "its numbers 'kind' are below 3, " in said
    write(word=8, kind=2, lable=1)
    said = cli(f"{train} none {task}", code=2)
    assert "nothing says what the argument 'classes' is; a default, or one that the data" in said
    assert "(they pull kind, lable, word); give it: --set classes=VALUE, or name the pull" in said
    write(word=8, label=1)
    assert "kind" in cli(f"{train} none --set num_kind=3", code=1)
    assert not Path("none").exists()


def test_runs_are_compared(cli: Cli) -> None:
    cli.train("runs/a", "--epochs 1 --class-weights balanced")
    cli.train("runs/b", "--epochs 2 --metric macro_f1")
    stored = vrt.load_checkpoint("runs/a/last.safetensors").meta["options"]
    weights = [float(each) for each in stored["class_weights"].partition(":")[2].split(",")]
    lines = Path("data/train.txt").read_text()
    counts = np.array([lines.count(f"({label} ") for label in range(5)])
    assert np.allclose(weights, counts.sum() / (5 * counts), rtol=1e-5)
    cli("train --resume runs/a --class-weights balanced")
    cli("train --resume runs/a --class-weights 1,2,3,4,5", code=2)
    best = vrt.load_checkpoint("runs/b/best.safetensors").meta["state"]
    dev = [line for line in records("runs/b") if line["split"] == "dev"]
    assert best["measure"] == "macro_f1"
    assert best["best"] == max(line["macro_f1"] for line in dev)
    heads, a, b = cli("runs runs").splitlines()
    assert heads.split()[:4] == ["run", "model", "data", "epochs"]
    assert a.split()[:4] == ["a", "tree-lstm", "data", "1"]
    assert b.split()[:4] == ["b", "tree-lstm", "data", "2"]
    assert "  dev macro f1  test macro f1" in heads
    assert f"{100 * best['best']:.2f} %" in b
    shown = cli("eval runs/a runs/b --classes").splitlines()
    assert shown[-3].split()[:3] == ["run", "loss", "root"]
    assert [line.split()[0] for line in shown[-2:]] == ["runs/a", "runs/b"]
    assert shown[1] == "roots"
    assert shown[2].split() == ["class", "labelled", "precision", "recall", "f1"]


def test_a_confusion_is_drawn_and_a_run_goes_on_at_another_rate(cli: Cli) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra `plot`)")
    cli.train("run", "--epochs 1 --lr 0.05")
    assert Path("run/confusion.png").read_bytes() == b"no picture"  # see conftest
    cli("train --resume run --epochs 2 --lr 0.01")
    cli("train --resume run --epochs 3")
    rates = [line["lr"] for line in records("run") if line["split"] == "train"]
    assert rates == [0.05, 0.01, 0.01]


def test_no_split_is_demanded(cli: Cli) -> None:
    for split in ("dev", "test"):
        Path(f"data/{split}.txt").unlink()
    assert "best dev" not in cli.train("run", "--epochs 2 --average 0.9")
    assert not Path("run/best.safetensors").exists()
    assert {line["split"] for line in records("run")} == {"train"}
    cli("eval run --split train")
    told = "has no dev split; expected one whose values decide; Name its file with --dev, or"
    assert told in cli.train("two", "--epochs 1 --patience 2", code=2)
    cli.train("three", "--epochs 1 --dev 0.5", data="data/train.txt")
    assert sizes("three") == [10, 12, 2]


def test_what_the_model_decides_is_not_said_by_a_configuration(cli: Cli) -> None:
    cli("train td-rnn --data data --device reference --epochs 1 --hidden 4 --out one")
    cli("train --config one/config.json --out two")
