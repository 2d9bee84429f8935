"""Generated data: sentences to tag, pairs of sentences, text to go on with, and graphs.

The same seed gives the same data. What is tagged are names of people, places and firms, which their
letters and words tell. A name is drawn from syllables, so hardly one occurs twice: places end in
-ton, -burg or -ville, a person has a title before, or a verb of speech after, and a firm has `Ltd`
or `Corp` after it. The text is that of a small grammar in which a verb agrees with a noun far
before it:

    S   -> [front ,] NP VP [adverb]
    NP  -> determiner adjective* noun [PP | REL]      singular or plural throughout
    PP  -> preposition NP
    REL -> that VP                                    agrees with the noun before it
    VP  -> verb | verb NP

Every sentence has one derivation only, so the probability with which the grammar makes it is known,
and with it the perplexity that no model can beat on average. Graphs are logic circuits, signal
probabilities and complete trees: a function makes those of each split, and what numbers words.
"""

import math
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from random import Random

import numpy as np

from vertexrt.data.dataset import UNKNOWN, Vocabulary
from vertexrt.data.edges import pairs, ptr_of, same, stacked
from vertexrt.graph import GraphBatch, InputGraph, Rows

SYLLABLES = "ba ko mi ren dal tor ves lin gar po shi um el fa ner qui ra sto vel"
PLACES = "ton burg ville"
TITLES = "Mr Ms Dr Professor"
FIRMS = "Ltd Corp"
SPEECH = "said argued denied explained"
COMMON = (
    "the report was late again",
    "prices rose by half last year",
    "nobody knew why",
    "a new plan is expected soon",
    "the road is closed today",
)


def generate_tagged(seed: int = 0) -> dict[str, str]:
    """Return the text of each split: a sentence a line, `word|tag` between spaces."""
    return {
        split: "".join(_sentence(Random(f"{seed} {split} {number}")) for number in range(count))
        for split, count in {"train": 600, "dev": 150, "test": 150}.items()
    }


def _sentence(draw: Random) -> str:
    kinds = draw.sample((_person, _firm, _place, _common, _common), 2)
    return " ".join([*(make(draw) for make in kinds), ".|O"]) + "\n"


def _name(draw: Random) -> str:
    return "".join(draw.choices(SYLLABLES.split(), k=draw.randint(2, 3))).capitalize()


def _common(draw: Random) -> str:
    return " ".join(f"{word}|O" for word in draw.choice(COMMON).split())


def _person(draw: Random) -> str:
    tags = ("B-PER", "I-PER")[: draw.randint(1, 2)]
    names = " ".join(f"{_name(draw)}|{tag}" for tag in tags)
    title = f"{draw.choice(TITLES.split())}|O " if draw.random() < 0.5 else ""
    return f"{title}{names} {draw.choice(SPEECH.split())}|O that|O {_common(draw)}"


def _firm(draw: Random) -> str:
    return f"shares|O of|O {_name(draw)}|B-ORG {draw.choice(FIRMS.split())}|I-ORG"


def _place(draw: Random) -> str:
    return f"all|O is|O quiet|O in|O {_name(draw)}{draw.choice(PLACES.split())}|B-LOC"


def generate_pairs(seed: int) -> dict[str, str]:
    """Make pairs: two to eight letters, and the same in upper case from the last to the first."""
    texts = {}
    for split, count in {"train": 800, "dev": 100, "test": 100}.items():
        draw = Random(f"{seed} {split}")
        lines = [draw.choices("abcdefgh", k=draw.randint(2, 8)) for _ in range(count)]
        texts[split] = "".join(
            f"{' '.join(line)}\t{' '.join(line[::-1]).upper()}\n" for line in lines
        )
    return texts


# By part of speech, common words first.
WORDS = {
    "noun": "farmer sailor teacher doctor neighbour baker singer painter driver lawyer gardener"
    " miner nurse pilot student writer hunter dancer tailor judge dog horse cow goat cat bird"
    " rabbit duck house bridge tower garden field river road ship engine wagon lamp table letter"
    " basket ladder window mirror blanket hammer bottle",
    "adjective": "old young small large quiet loud tall short kind proud tired hungry brave clever"
    " gentle stubborn red green white black wooden broken empty heavy clean dusty famous lonely",
    "verb alone": "sleep wait dream fall shine rest move sing laugh wander tremble vanish",
    "verb with object": "see follow help like fear know meet paint watch remember hear visit carry"
    " guard admire avoid",
    "adverb": "often again slowly today outside together quickly everywhere",
    "front": "yesterday sometimes meanwhile later suddenly still",
    "preposition": "near behind beside above below with",
    "singular determiner": "the this every another a",
    "plural determiner": "the these some many two",
}


class GeneratedText(str):
    """The text of a split, one sentence a line.

    Attributes:
        perplexity: that of the grammar itself on this text, `<eos>` counted; a model that matches
            it has learned everything.
    """

    perplexity: float


def with_s(word: str) -> str:
    """Return the plural of a noun, or a verb as it follows a singular noun."""
    if word.endswith(("ch", "sh")):
        return word + "es"
    if word.endswith("rry"):
        return word[:-1] + "ies"
    return word + "s"


def generate_text(seed: int = 0) -> dict[str, GeneratedText]:
    """Return train, dev and test: sentences of the grammar above.

    Args:
        seed: the same seed gives the same text.
    """
    draw, log_probability = Random(seed).random, 0.0  # of what was drawn

    def happens(probability: float) -> bool:
        nonlocal log_probability
        yes = draw() < probability
        log_probability += math.log(probability if yes else 1 - probability)
        return yes

    def pick(part: str) -> str:
        """Draw a word; the one of rank r has a share proportional to 1 / (r + 3)."""
        nonlocal log_probability
        words = WORDS[part].split(" ")
        weights = [1 / (rank + 3) for rank in range(len(words))]
        ends = [*accumulate(weights)]
        rank = bisect(ends, draw() * ends[-1], hi=len(words) - 1)
        log_probability += math.log(weights[rank] / ends[-1])
        return words[rank]

    def noun_phrase(plural: bool) -> list[str]:
        words = [pick("plural determiner" if plural else "singular determiner")]
        while happens(0.25):
            words.append(pick("adjective"))
        noun = pick("noun")
        words.append(with_s(noun) if plural else noun)
        if happens(0.2):
            words.append(pick("preposition"))
            words += noun_phrase(happens(0.5))
        elif happens(0.2):
            words += ["that", *verb_phrase(plural)]
        return words

    def verb_phrase(plural: bool) -> list[str]:
        alone = happens(0.35)
        verb = pick("verb alone" if alone else "verb with object")
        words = [verb if plural else with_s(verb)]
        return words if alone else words + noun_phrase(happens(0.5))

    def sentence() -> list[str]:
        words = [pick("front"), ","] if happens(0.15) else []
        plural = happens(0.5)
        words += noun_phrase(plural)
        words += verb_phrase(plural)
        return [*words, pick("adverb")] if happens(0.2) else words

    made = {}
    for split, count in {"train": 6000, "dev": 600, "test": 600}.items():
        log_probability = 0.0
        sentences = [sentence() for _ in range(count)]
        tokens = sum(len(words) + 1 for words in sentences)
        made[split] = GeneratedText("".join(" ".join(words) + "\n" for words in sentences))
        made[split].perplexity = math.exp(-log_probability / tokens)
    return made


Made = tuple[dict[str, GraphBatch], dict[str, Vocabulary]]

LOGIC_INPUTS, LOGIC_GATES = 4, 12

GATE: dict[str, Callable[..., bool]] = {
    "not": lambda a: not a,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "nand": lambda a, b: not (a and b),
}
LOGIC = ("false", "true", *GATE)


def logic(seed: int, *, layers: int | None = None) -> Made:
    """Make logic circuits: the label of each vertex is its value.

    A vertex is a constant, or a gate over one or two earlier vertices, each of which may be read by
    many. A model that reads a vertex alone cannot know its value. Pulls "word" (what a vertex
    is) and "label" (0 or 1), of every vertex.

    Args:
        layers: None for vertices of one type; n for the types of a `DAGNN`.
    """
    vocabulary = Vocabulary((UNKNOWN, *LOGIC))
    rng = np.random.default_rng(seed)

    def circuit() -> InputGraph:
        words = [LOGIC[k] for k in rng.integers(0, 2, LOGIC_INPUTS)]
        values = [word == "true" for word in words]
        children: list[list[int]] = [[] for _ in range(LOGIC_INPUTS)]
        for vertex in range(LOGIC_INPUTS, LOGIC_INPUTS + LOGIC_GATES):
            word = LOGIC[int(rng.integers(2, len(LOGIC)))]
            below = rng.choice(vertex, 1 if word == "not" else 2, replace=False).tolist()
            values.append(GATE[word](*(values[k] for k in below)))
            words.append(word)
            children.append(below)
        pulls = {"word": vocabulary.encode(words), "label": np.array(values, np.int32)}
        return InputGraph.from_children(children, pulls)

    splits = _drawn(circuit, train=400, dev=100, test=100)
    if layers is not None:
        splits = {split: layered_graphs(batch, layers) for split, batch in splits.items()}
    return splits, {"word": vocabulary}


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

    return _drawn(circuit, train=300, dev=60, test=60), {}


def circuit_graph(kinds: list[str], below: list[list[int]], targets: np.ndarray) -> InputGraph:
    """Build the graph of a circuit for a `DeepGate`.

    Args:
        kinds: of each signal, in an order in which each comes after what it reads: input,
            conjunction or inverter.
        below: the signals that each reads.
        targets: float [signals], the probability that each is 1.
    """
    order = sorted(range(len(kinds)), key=lambda signal: KINDS.index(kinds[signal]))
    place = {signal: at for at, signal in enumerate(order)}  # in the type `reverse`
    sizes = {kind: kinds.count(kind) for kind in KINDS}
    first = dict(zip(KINDS, ptr_of(np.array([*sizes.values()])).tolist(), strict=False))
    number = [place[signal] - first[kind] for signal, kind in enumerate(kinds)]
    edges = {relation: list[tuple[int, int]]() for relation in _RELATIONS}
    for signal in order:
        kind = kinds[signal]
        edges[kind, "own", "reverse"].append((number[signal], place[signal]))
        for child in below[signal]:
            edges[kinds[child], "reads", kind].append((number[child], number[signal]))
            edges["reverse", "readers", "reverse"].append((place[signal], place[child]))
    target = {"target": Rows(targets[order, None].astype(np.float32))}
    sizes["reverse"] = len(kinds)
    return InputGraph.from_types(sizes, edges, {"reverse": target})


def complete_trees(seed: int, *, leaves: int = 256) -> Made:
    """Make complete binary trees for Tree-FC, the synthetic benchmark of TensorFlow Fold and Cavs.

    Pulls "word" (leaves only, int32, -1 elsewhere) and "target" (float32 [1] at the root): the sum
    of the scores of the leaves' words, over the square root of their number. A score is drawn from
    a standard normal distribution, so a target is of the order of 1.

    Args:
        leaves: of every tree; a power of 2.
    Raises: GraphError, when `leaves` is not a power of 2.
    Source: Looks et al., Deep Learning with Dynamic Computation Graphs (ICLR 2017); Cavs (Xu et
        al., ATC 2018), where only the speed is of interest; the target is ours.
    """
    vocabulary = Vocabulary((UNKNOWN, *(f"w{n}" for n in range(1, 101))))
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
    return splits, {"word": vocabulary}
