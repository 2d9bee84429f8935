"""The jobs that are timed: a vertex function, and the graphs from which minibatches are drawn."""

from dataclasses import dataclass

import numpy as np

import vertexrt as vrt
from vertexrt import data, models
from vertexrt.data import Dataset

HIDDEN = {"tree-lstm": 256, "tree-fc": 512, "var-lstm": 512, "fixed-lstm": 512}
CLASSES = 5
TREE_FC_TREES = 1024
TREE_FC_WORDS = 10_000  # so many that hardly two inner vertices of a batch are identical
USUAL = {"trees": "sst", "text": "ptb"}


@dataclass(frozen=True, slots=True)
class Suite:
    """One job.

    Attributes:
        name: of the suite.
        function: F; it pushes "loss".
        pool: the graphs.
        output: the push that inference returns for every vertex.
        description: what it computes, and on what.
        kinked: F is not smooth.
    """

    name: str
    function: vrt.VertexFunction
    pool: vrt.GraphBatch
    output: str
    description: str
    kinked: bool = False


class LSTM(vrt.VertexFunction):
    """An LSTM with a small classifier at every word, so that the recurrence is what costs.

    Args:
        vocab: words; embed, hidden: elements; classes: labels.
    """

    def __init__(self, vocab: int, embed: int, hidden: int, classes: int) -> None:
        super().__init__(arity=1, state={"c": hidden, "h": hidden})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.w = vrt.Parameter((4 * hidden, embed))  # i, f, o, u
        self.u = vrt.Parameter((4 * hidden, hidden))
        self.b = vrt.Parameter((4 * hidden,), init=vrt.init.zeros)
        self.v = vrt.Parameter((classes, hidden))

    def forward(self) -> None:
        """Compute one word."""
        before = self.gather(0)
        x = vrt.embed(self.embedding, self.pull("word"))
        i, f, o, u = vrt.split(self.w @ x + self.b + self.u @ before.h, 4)
        c = vrt.sigmoid(i) * vrt.tanh(u) + vrt.sigmoid(f) * before.c
        h = vrt.sigmoid(o) * vrt.tanh(c)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


def make_suite(
    name: str,
    hidden: int | None = None,
    trees: str | None = None,
    text: str | None = None,
    leaves: int = 256,
    length: int = 64,
) -> Suite:
    """Make the job of a name.

    Args:
        hidden: and embedding size; None: as in HIDDEN.
        trees, text: data sets or folders; None for SST and PTB where cached, else generated ones.
        leaves: of a tree of tree-fc; length: words in fixed-lstm.
    Raises: VertexrtError, when the data cannot be had.
    """
    hidden = hidden or HIDDEN[name]
    if name == "tree-lstm":
        return _tree_lstm(*_load(trees, "trees"), hidden)
    if name == "tree-fc":
        return _tree_fc(leaves, hidden)
    cut = length if name == "fixed-lstm" else None
    return _lstm(name, *_load(text, "text"), hidden, cut)


def _load(name: str | None, format: str) -> tuple[Dataset, str]:
    """Return a data set and a text on it.

    By default it is the usual one of the format if it is cached, else a generated one.
    """
    if name is not None:
        found = data.load(name, format=format)
        return found, found.description if found.name == "generated" else f"data {name}"
    entry = next(e for e in data.catalogue(format) if e.name == USUAL[format])
    if entry.cached:
        return data.load(entry.name, format=format), f"data {entry.name}"
    found = data.load("generated", format=format)
    return found, f"{entry.name} is not in the cache: {found.description} instead"


def _tree_lstm(trees: Dataset, source: str, hidden: int) -> Suite:
    function = models.TreeLSTM(len(trees.vocabulary), hidden, hidden, trees.classes)
    text = f"Tree-LSTM, hidden = embed = {hidden}, a label at every vertex; {source}"
    return Suite("tree-lstm", function, trees.splits["train"], "logits", text)


def _tree_fc(leaves: int, hidden: int) -> Suite:
    rng = np.random.default_rng(0)
    one = vrt.GraphBatch.from_graphs([vrt.InputGraph.complete_tree(leaves)])
    pool = one.take(np.zeros(TREE_FC_TREES, np.int32))
    word = np.full((TREE_FC_TREES, one.num_vertices), -1, np.int32)
    word[:, :leaves] = rng.integers(TREE_FC_WORDS, size=(TREE_FC_TREES, leaves))
    at_root = np.full(pool.num_vertices, -1, np.int32)
    at_root[pool.graph_ptr[1:] - 1] = np.arange(TREE_FC_TREES)
    target = rng.standard_normal((TREE_FC_TREES, 1)).astype(np.float32)
    pulls = {"word": word.ravel(), "target": vrt.Rows(target, at_root)}
    pool = vrt.GraphBatch.from_arrays(pool.graph_ptr, pool.child_ptr, pool.child, pulls)
    text = (
        f"Tree-FC, hidden {hidden}; complete binary trees of {leaves} leaves, {TREE_FC_WORDS} "
        "words drawn at random; training reads out the roots, inference every vertex"
    )
    return Suite("tree-fc", models.TreeFC(TREE_FC_WORDS, hidden), pool, "output", text, kinked=True)


def _lstm(name: str, text: Dataset, source: str, hidden: int, length: int | None) -> Suite:
    pool = text.splits["train"]
    if length is not None:
        pool = cut_or_pad(pool, length, pad=text.vocabulary.index("<eos>"))
    pulls = {"word": np.asarray(pool.pulls["word"])}
    pulls["label"] = np.asarray(pool.pulls["label"]) % CLASSES
    pool = vrt.GraphBatch.from_arrays(pool.graph_ptr, pool.child_ptr, pool.child, pulls)
    function = LSTM(len(text.vocabulary), hidden, hidden, CLASSES)
    cut = "" if length is None else f" cut or padded to {length} words"
    description = (
        f"LSTM, one layer, hidden = embed = {hidden}, {CLASSES} classes at every word (the next "
        f"word modulo {CLASSES}), no softmax over words; {source}{cut}"
    )
    return Suite(name, function, pool, "logits", description)


def cut_or_pad(chains: vrt.GraphBatch, length: int, pad: int) -> vrt.GraphBatch:
    """Make every chain `length` vertices long; padding counts like any word, as in Cavs."""
    count = chains.num_graphs
    at = np.arange(length)
    inside = at < chains.sizes()[:, None]
    vertex = np.where(inside, chains.graph_ptr[:-1, None] + at, 0)
    pulls = {
        name: np.where(inside, np.asarray(chains.pulls[name])[vertex], pad).astype(np.int32).ravel()
        for name in ("word", "label")
    }
    vertices = np.arange(count * length)
    has_child = vertices % length > 0
    return vrt.GraphBatch.from_arrays(
        np.arange(count + 1) * length,
        np.concatenate([[0], np.cumsum(has_child)]),
        vertices[has_child] - 1,
        pulls,
    )
