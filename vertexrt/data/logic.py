"""Generate logic circuits as graphs of one type: the label of each vertex is its value.

A vertex is a constant, or a gate over one or two earlier vertices, each of which may be read by
many. Whoever reads only its own kind of gate cannot know its value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.typed import pairs, stacked
from vertexrt.graph import GraphBatch, InputGraph

SPLITS = {"train": 400, "dev": 100, "test": 100}
INPUTS, GATES = 4, 12

GATE: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "nand": lambda a, b: not (a and b),
}
WORDS = ("false", "true", "not", *GATE)


def logic_dataset(*, seed: int = 0, layers: int | None = None) -> Dataset:
    """Make circuits: pulls "word" (what a vertex is) and "label" (0 or 1), of every vertex.

    Args:
        seed: the same seed gives the same circuits.
        layers: None for vertices of one type; n for the types of a `DAGNN`.
    """
    vocabulary = Vocabulary((UNKNOWN, *WORDS))
    rng = np.random.default_rng(seed)
    splits = {
        split: GraphBatch.from_graphs([_circuit(rng, vocabulary) for _ in range(count)])
        for split, count in SPLITS.items()
    }
    if layers is not None:
        splits = {split: layered_graphs(batch, layers) for split, batch in splits.items()}
    text = f"logic circuits of {INPUTS} constants and {GATES} gates"
    return Dataset("generated", "logic", splits, {"word": vocabulary}, 2, text)


def layered_graphs(graphs: GraphBatch, layers: int) -> GraphBatch:
    """Return graphs of one type as those of a `DAGNN` of so many layers."""
    parents = np.repeat(np.arange(graphs.num_vertices), np.diff(graphs.child_ptr))
    vertices = np.arange(graphs.num_vertices)
    read = {
        (f"layers.{k}", f"layer {k}", "label"): pairs(vertices, vertices) for k in range(layers)
    }
    word, label = (np.asarray(graphs.pulls[name]) for name in ("word", "label"))
    before = pairs(graphs.child, parents)
    pulls = {"word": {"word": word}, "label": {"label": label}}
    return stacked(graphs.sizes(), before, layers, ("word", "label"), pulls, read)


def _circuit(rng: np.random.Generator, vocabulary: Vocabulary) -> InputGraph:
    words = [WORDS[k] for k in rng.integers(0, 2, INPUTS)]
    values = [word == "true" for word in words]
    children: list[list[int]] = [[] for _ in range(INPUTS)]
    for vertex in range(INPUTS, INPUTS + GATES):
        word = WORDS[int(rng.integers(2, len(WORDS)))]
        below = rng.choice(vertex, 1 if word == "not" else 2, replace=False).tolist()
        read = [values[k] for k in below]
        values.append(not read[0] if word == "not" else GATE[word](*read))
        words.append(word)
        children.append(below)
    pulls = {"word": vocabulary.encode(words), "label": np.array(values, np.int32)}
    return InputGraph.from_children(children, pulls)
