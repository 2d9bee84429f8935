"""Generated graphs to learn from: logic circuits, signal probabilities, complete trees.

A function makes the graphs of each split, what numbers their words, and a description. The same
seed gives the same graphs.
"""

from collections.abc import Callable

import numpy as np

from vertexrt.data.dataset import UNKNOWN, Vocabulary
from vertexrt.data.edges import pairs, same
from vertexrt.data.typed import stacked
from vertexrt.graph import GraphBatch, InputGraph, Rows

Made = tuple[dict[str, GraphBatch], dict[str, Vocabulary], str]

LOGIC_INPUTS, LOGIC_GATES = 4, 12

GATE: dict[str, Callable[..., bool]] = {
    "not": lambda a: not a,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "nand": lambda a, b: not (a and b),
}
WORDS = ("false", "true", *GATE)


def logic(seed: int, *, layers: int | None = None) -> Made:
    """Make logic circuits: the label of each vertex is its value.

    A vertex is a constant, or a gate over one or two earlier vertices, each of which may be read by
    many. Whoever reads only its own kind of gate cannot know its value. Pulls "word" (what a vertex
    is) and "label" (0 or 1), of every vertex.

    Args:
        layers: None for vertices of one type; n for the types of a `DAGNN`.
    """
    vocabulary = Vocabulary((UNKNOWN, *WORDS))
    rng = np.random.default_rng(seed)

    def circuit() -> InputGraph:
        words = [WORDS[k] for k in rng.integers(0, 2, LOGIC_INPUTS)]
        values = [word == "true" for word in words]
        children: list[list[int]] = [[] for _ in range(LOGIC_INPUTS)]
        for vertex in range(LOGIC_INPUTS, LOGIC_INPUTS + LOGIC_GATES):
            word = WORDS[int(rng.integers(2, len(WORDS)))]
            below = rng.choice(vertex, 1 if word == "not" else 2, replace=False).tolist()
            values.append(GATE[word](*(values[k] for k in below)))
            words.append(word)
            children.append(below)
        pulls = {"word": vocabulary.encode(words), "label": np.array(values, np.int32)}
        return InputGraph.from_children(children, pulls)

    splits = _drawn(circuit, train=400, dev=100, test=100)
    if layers is not None:
        splits = {split: layered_graphs(batch, layers) for split, batch in splits.items()}
    text = f"logic circuits of {LOGIC_INPUTS} constants and {LOGIC_GATES} gates"
    return splits, {"word": vocabulary}, text


def _drawn(draw: Callable[[], InputGraph], **counts: int) -> dict[str, GraphBatch]:
    return {
        split: GraphBatch.from_graphs([draw() for _ in range(count)])
        for split, count in counts.items()
    }


def layered_graphs(graphs: GraphBatch, layers: int) -> GraphBatch:
    """Return graphs of one type as those of a `DAGNN` of so many layers."""
    parents = np.repeat(np.arange(graphs.num_vertices), np.diff(graphs.child_ptr))
    own = same(graphs.num_vertices)
    read = {(f"layers.{k}", f"layer {k}", "label"): own for k in range(layers)}
    pulls = {name: {name: np.asarray(graphs.pulls[name])} for name in ("word", "label")}
    before = pairs(graphs.child, parents)
    return stacked(graphs.sizes(), before, layers, ("word", "label"), pulls, read)


INPUTS, GATES = 5, 16
INVERTERS = 0.35  # of all gates

KINDS = ("input", "conjunction", "inverter")
_RELATIONS = [
    *((child, "reads", gate) for child in KINDS for gate in KINDS[1:]),
    *((kind, "own", "reverse") for kind in KINDS),
    ("reverse", "readers", "reverse"),
]


def circuits(seed: int) -> Made:
    """Make circuits of AND gates and inverters, with the vertex types of a `DeepGate`.

    Inputs are 1 half of the time, independently, so the probability that a signal is 1 is the share
    of all combinations of inputs for which it is: it is counted, not estimated. The pull "target",
    float [1], has it for every vertex of the type `reverse`: of the inputs, then of AND gates, then
    of inverters.
    Source: the task of DeepGate (Li et al., DAC 2022), whose circuits are parts of real designs.
    """
    rng = np.random.default_rng(seed)

    def circuit() -> InputGraph:
        values = list((np.arange(2**INPUTS) >> np.arange(INPUTS)[:, None] & 1).astype(bool))
        kinds = ["input"] * INPUTS
        below: list[list[int]] = [[] for _ in range(INPUTS)]
        for signal in range(INPUTS, INPUTS + GATES):
            inverter = bool(rng.random() < INVERTERS)
            read = rng.choice(signal, 1 if inverter else 2, replace=False).tolist()
            kinds.append("inverter" if inverter else "conjunction")
            below.append(read)
            both = values[read[0]] & values[read[-1]]
            values.append(~both if inverter else both)
        return circuit_graph(kinds, below, np.array([value.mean() for value in values]))

    splits = _drawn(circuit, train=300, dev=60, test=60)
    return splits, {}, f"circuits of {INPUTS} inputs and {GATES} gates"


def circuit_graph(kinds: list[str], below: list[list[int]], targets: np.ndarray) -> InputGraph:
    """Build the graph of a circuit for a `DeepGate`.

    Args:
        kinds: of each signal, in an order in which each comes after what it reads: input,
            conjunction or inverter.
        below: the signals that each reads.
        targets: float [signals], the probability that each is 1.
    """
    members = {kind: [k for k, each in enumerate(kinds) if each == kind] for kind in KINDS}
    order = [signal for several in members.values() for signal in several]
    place = {signal: at for at, signal in enumerate(order)}  # in the type `reverse`
    number = {signal: at for several in members.values() for at, signal in enumerate(several)}
    edges = {relation: list[tuple[int, int]]() for relation in _RELATIONS}
    for signal in order:
        kind = kinds[signal]
        edges[kind, "own", "reverse"].append((number[signal], place[signal]))
        for child in below[signal]:
            edges[kinds[child], "reads", kind].append((number[child], number[signal]))
            edges["reverse", "readers", "reverse"].append((place[signal], place[child]))
    sizes = {kind: len(several) for kind, several in members.items()} | {"reverse": len(kinds)}
    target = {"target": Rows(targets[order, None].astype(np.float32))}
    return InputGraph.from_types(sizes, edges, {"reverse": target})


LEAVES = 256
LEAF_WORDS = 100


def complete_trees(seed: int, *, leaves: int | None = None) -> Made:
    """Make complete binary trees for Tree-FC, the synthetic benchmark of TensorFlow Fold and Cavs.

    Pulls "word" (leaves only, int32, -1 elsewhere) and "target" (float32 [1] at the root): the sum
    of the scores of the leaves' words, over the square root of their number. A score is drawn from
    a standard normal distribution, so a target is of the order of 1.

    Args:
        leaves: of every tree; a power of 2, None for 256.
    Raises: GraphError, when `leaves` is not a power of 2.
    Source: Looks et al., Deep Learning with Dynamic Computation Graphs (ICLR 2017); Cavs (Xu et
        al., ATC 2018), where only the speed is of interest; the target is ours.
    """
    leaves = LEAVES if leaves is None else leaves
    vocabulary = Vocabulary((UNKNOWN, *(f"w{n}" for n in range(1, LEAF_WORDS + 1))))
    one = GraphBatch.from_graphs([InputGraph.complete_tree(leaves)])
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(len(vocabulary))
    splits = {}
    for split, count in {"train": 512, "dev": 64, "test": 64}.items():
        shape = one.take(np.zeros(count, np.int32))
        word = np.full((count, one.num_vertices), -1, np.int32)
        word[:, :leaves] = rng.integers(1, len(vocabulary), (count, leaves))
        target = scores[word[:, :leaves]].sum(axis=1, keepdims=True) / np.sqrt(leaves)
        at_root = np.full(shape.num_vertices, -1, np.int32)
        at_root[shape.graph_ptr[1:] - 1] = np.arange(count)
        pulls = {"word": word.ravel(), "target": Rows(target.astype(np.float32), at_root)}
        splits[split] = GraphBatch.from_arrays(shape.graph_ptr, shape.child_ptr, shape.child, pulls)
    return splits, {"word": vocabulary}, f"complete binary trees of {leaves} leaves"
