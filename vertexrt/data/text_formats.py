"""Data sets of text: trees of sentiment, language-model text, tagged sentences and pairs.

Each function reads one file, as readers do; what numbers words is that of the training file, or
made of this one.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import END, UNKNOWN, Vocabulary
from vertexrt.data.edges import chain, ends, pairs, same
from vertexrt.data.files import WORD, Source, read_file
from vertexrt.data.readers import column_sentences, columns_of, tagged_sentences
from vertexrt.data.records import Examples
from vertexrt.data.typed import ptr_of, stacked, typed_batch
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, parse_brackets

IntArray = npt.NDArray[np.integer]
Vocabularies = Mapping[str, Vocabulary]

OF_COLUMNS = (".conll", ".bio", ".iob2")  # names of files with a word a line end so
LABELS = 5  # of sentiment
_BINARY = np.array([0, 0, -1, 1, 1], np.int32)  # negative, (neutral: absent), positive


def sentiment(
    path: Source,
    vocabularies: Vocabularies | None = None,
    *,
    binary: bool = False,
    lower: bool = True,
    min_count: int = 1,
    pyramid: bool = False,
) -> Examples:
    """Read one tree a line; pulls "word" (leaves only) and "label", int32, -1 where absent.

    Args:
        binary: two classes: labels 0 and 1 become 0, labels 3 and 4 become 1, neutral vertices
            have no label, and trees with a neutral root are left out.
        lower: lower-case the words.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        pyramid: pyramids over the words of the trees instead.
    Raises: DataError, on malformed brackets (file, line, column), or without a tree.
    """
    file, text = read_file(path)
    forest = parse_brackets(text, file=file, labels=LABELS)
    words = [word.lower() if lower else word for word in forest.words]
    known = dict(vocabularies or {})
    if not known:
        counts = Counter(words[at] for at in forest.word[forest.word >= 0].tolist())
        known["word"] = Vocabulary.build(counts, min_count=min_count)
    roots = forest.label[forest.graph_ptr[1:] - 1]
    kept = np.flatnonzero(_BINARY[roots] >= 0)
    if not len(roots) or (binary and not len(kept)):
        got, action = "no tree", "add trees or give another folder"
        if len(roots):
            got, action = "neutral trees only", "use all five classes or add trees"
        raise DataError.at(file, got, "expected at least one tree to learn from", action)
    pulls = {
        "word": np.where(forest.word >= 0, known["word"].encode(words)[forest.word], -1),
        "label": _BINARY[forest.label] if binary else forest.label,
    }
    batch = GraphBatch.from_arrays(forest.graph_ptr, forest.child_ptr, forest.child, pulls)
    batch = batch.take(kept) if binary else batch
    return Examples(pyramids(batch) if pyramid else batch, known, ())


def pyramids(trees: GraphBatch) -> GraphBatch:
    """Build the pyramid over the words of each tree, for time-delay networks.

    A level has one vertex less than the one below it: vertex i reads vertices i and i + 1 of that.
    The apex has the label of the tree.
    Source: Waibel et al. 1989; TD-RNN and TD-LSTM of VPPS (Khorasani et al., MICRO 2018).

    Args:
        trees: with pulls "word" (leaves, from left to right) and "label" (roots).
    Returns: pulls "word" (lowest level) and "label" (apex), int32.
    """
    word, label = (np.asarray(trees.pulls[name]) for name in ("word", "label"))
    lengths = np.bincount(trees.graph_of[word >= 0], minlength=trees.num_graphs)
    graph_ptr = ptr_of(lengths * (lengths + 1) // 2)
    # The vertices of each level of each graph; a level begins where a graph does, or above another.
    levels = np.concatenate([np.arange(n, 0, -1) for n in lengths])
    lowest = np.repeat(np.isin(ptr_of(levels)[:-1], graph_ptr), levels)
    # Vertex i of a level reads vertex i of the one below, which has one vertex more.
    left = (np.arange(len(lowest)) - np.repeat(levels + 1, levels))[~lowest]
    pulled = {name: np.full(len(lowest), -1, np.int32) for name in ("word", "label")}
    pulled["word"][lowest] = word[word >= 0]
    pulled["label"][graph_ptr[1:] - 1] = label[trees.graph_ptr[1:] - 1]
    child = np.stack([left, left + 1], axis=1).ravel()
    return GraphBatch.from_arrays(graph_ptr, ptr_of(np.where(lowest, 0, 2)), child, pulled)


def sentences(
    path: Source,
    vocabularies: Vocabularies | None = None,
    *,
    pieces: int | None = None,
    streams: int = 1,
    layers: int | None = None,
    min_count: int = 1,
) -> Examples:
    """Read one sentence a line, of which each word is to be foretold from those before it.

    Words stand between spaces; `<eos>` ends a sentence, too, and blank lines are skipped. A
    sentence w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`: the pulls
    "word" and "label" at every vertex, int32; `<unk>` is 0 and `<eos>` is 1.

    Args:
        pieces: None for one chain a sentence; n to cut the stream of all sentences into chains of n
            words (the last may be shorter).
        streams: text is cut into so many parts of one length first. Chains come in the order piece
            0 of each stream, piece 1 of each, so that minibatches of as many graphs follow each
            other and a state may be carried from one to the next.
        layers: None for vertices of one type; n for the types of a `LanguageModel`.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
    Raises: UsageError, when a number is under 1, or there are streams of sentences; DataError,
        without a word.
    """
    for what, number in (("pieces", pieces), ("streams", streams), ("layers", layers)):
        if number is not None and number < 1:
            raise UsageError.at("data", f"{what} {number}", "expected 1 or more", "correct it")
    if streams > 1 and pieces is None:
        raise UsageError.at(
            "data", f"{streams} streams of sentences", "expected pieces", "set pieces"
        )
    file, text = read_file(path)
    words = WORD.findall(f"{text}\n".replace("\n", f" {END} "))
    # All sentences in one row, one `<eos>` after each.
    tokens = [now for last, now in pairwise([END, *words]) if (last, now) != (END, END)]
    if not tokens:
        raise DataError.at(
            file, "no word", "expected at least one sentence", "add text or give another folder"
        )
    known = dict(vocabularies or {})
    if not known:
        first, counts = (UNKNOWN, END), Counter(tokens)
        known["word"] = Vocabulary.build(counts, min_count=min_count, first=first)
    known["label"] = known["word"]
    end, label = known["word"].index(END), known["word"].encode(tokens)
    # Sentences begin after an <eos>, which is also their first input: one shift gives all.
    word = np.concatenate([np.array([end], np.int32), label[:-1]])
    if pieces is None:
        sizes = np.diff([*np.flatnonzero(word == end), len(label)])
    else:
        parts = np.array_split(np.arange(len(label)), min(streams, len(label)))
        cuts = range(0, len(parts[0]), pieces)
        chains = [part[at : at + pieces] for at in cuts for part in parts if at < len(part)]
        sizes, order = np.array([len(each) for each in chains]), np.concatenate(chains)
        word, label = word[order], label[order]
    if layers is not None:
        return Examples(layered_chains(sizes, word, label, layers), known, ())
    graph_ptr = ptr_of(sizes)
    has_child = np.ones(len(label), np.bool_)
    has_child[graph_ptr[:-1]] = False
    pulls = {"word": word, "label": label}
    batch = GraphBatch(graph_ptr, ptr_of(has_child), chain(sizes)[:, 0], pulls)
    return Examples(batch, known, ())


def layered_chains(sizes: IntArray, word: IntArray, label: IntArray, layers: int) -> GraphBatch:
    """Build chains for a `LanguageModel` of so many layers.

    Args:
        sizes: int [K], words of each chain; word, label: int [words], of all chains.
    """
    pulls = {"layers.0": {"word": word}, "next": {"label": label}}
    return stacked(sizes, chain(sizes), layers, ("", "next"), pulls)


def tagged(
    path: Source,
    vocabularies: Vocabularies | None = None,
    *,
    crf: bool = False,
    letters: bool = True,
    min_count: int = 1,
    word: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    comment: str | None = None,
) -> Examples:
    """Read one sentence a line whose words are to be tagged: `word|tag` between spaces, as WikiNER.

    Or a word a line, with columns, where the file's name says so, or a column is named.

    They become graphs of vertex types: words read from both ends, and their letters. Pulls "word",
    "label" and, for letters, "letter"; a label that is not known counts as none.
    Source of the format: WikiNER (Nothman et al. 2013).

    Args:
        crf: make tags a chain, and give the type "scores" between words and tags. A
            `BiLSTMCharTagger` needs both, a `BiLSTMTagger` neither.
        letters: give the types of letters, too. Words are in lower case then: their letters tell
            the case.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        word, label: numbers of columns: 0, and the last one; separator, comment: of `read_conll`.
    Raises: DataError with file, line and word, when a word has no tag; without a sentence.
    """
    file, text = read_file(path)
    if word or label or file.removesuffix(".gz").endswith(OF_COLUMNS):
        columns = columns_of({word or "0": "word", label or "-1": "label"})
        made = column_sentences(file, text, columns, separator, comment)
    else:
        made = tagged_sentences(file, text, ("word", "label"), "|")
    found = [sentence for _, sentence in made]
    if not found:
        raise DataError.at(file, "no sentence", "expected at least one", "add sentences")
    sizes = np.array([len(row["word"]) for row in found])
    words, tags = ([x or "" for row in found for x in row[n]] for n in ("word", "label"))
    known = dict(vocabularies or {})
    if not known:
        counts = Counter(each.lower() if letters else each for each in words)
        known["word"] = Vocabulary.build(counts, min_count=min_count)
        known["label"] = Vocabulary.of_labels(tags)
        if letters:
            known["letter"] = Vocabulary.build(Counter("".join(dict.fromkeys(words))))
    letters = "letter" in known
    numbers = map(known["label"].find, tags)
    classes = np.array([-1 if number is None else number for number in numbers], np.int32)
    spelt_so = known["word"].encode(each.lower() if letters else each for each in words)
    own, backward = same(len(words)), chain(sizes, reverse=True)
    classifier = "scores" if crf else "tag"
    types = dict.fromkeys(("word", "left", "right", "tag"), sizes)
    edges = {}
    for name, before in (("left", chain(sizes)), ("right", backward)):
        edges[name, "before", name] = before
        edges["word", "word", name] = own
        edges[name, name, classifier] = own
    pulls = {"word": {"word": spelt_so}, "tag": {"label": classes}}
    if crf:
        types["scores"] = sizes
        edges["tag", "before", "tag"] = edges["left", "before", "left"]
        edges["scores", "after", "scores"] = backward
        edges["scores", "scores", "tag"] = own
    if letters:  # in both directions; each word reads the last of both
        lengths = np.array([len(each) for each in words])
        letter = known["letter"].encode("".join(words))
        for name, reverse in (("forth", False), ("back", True)):
            types[name] = np.add.reduceat(lengths, ptr_of(sizes)[:-1])
            edges[name, "before", name] = chain(lengths, reverse=reverse)
            edges[name, name, "word"] = ends(lengths, reverse=reverse)
            pulls[name] = {"letter": letter}
    return Examples(typed_batch(types, edges, pulls), known, ())


def translation(
    path: Source, vocabularies: Vocabularies | None = None, *, min_count: int = 1
) -> Examples:
    """Read `source<TAB>target` a line, words between spaces, for a `Seq2Seq`.

    A target w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`; the line
    may end with `<eos>`, too. Pulls "word" (source), "said" and "label" (target).

    Args:
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
    Raises: DataError with file and line, when a line is no pair; without a pair.
    """
    file, text = read_file(path)
    found: list[list[list[str]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        sides = [WORD.findall(side) for side in line.split("\t")]
        if sides[-1][-1:] == [END]:
            sides[-1].pop()
        if len(sides) == 2 and all(sides):
            found.append(sides)
        elif any(sides):
            raise DataError.at(
                f"{file}, line {number}",
                f"{len(sides)} sentences, or one without words",
                "source<TAB>target",
                "correct it",
            )
    if not found:
        raise DataError.at(file, "no pair", "expected at least one", "add pairs")
    sources, targets = zip(*found, strict=True)
    known = dict(vocabularies or {})
    if not known:
        known["word"] = Vocabulary.build(Counter(word for each in sources for word in each), min_count=min_count)
        counts, first = Counter(word for each in targets for word in each), (UNKNOWN, END)
        known["said"] = Vocabulary.build(counts, min_count=min_count, first=first)
        known["label"] = known["said"]
    word = known["word"].encode(word for source in sources for word in source)
    label = known["label"].encode(word for target in targets for word in (*target, END))
    said = np.concatenate([[known["said"].index(END)], label[:-1]])  # each ends with <eos>
    sizes = np.array([len(source) for source in sources])
    lengths = np.array([len(target) + 1 for target in targets])
    stops, starts = np.cumsum(sizes), np.cumsum(lengths) - lengths
    heard = [  # every word of a target reads all of its source
        np.tile(np.arange(stop - n, stop), m)
        for n, m, stop in zip(sizes, lengths, stops, strict=True)
    ]
    said_by = np.repeat(np.arange(len(label)), np.repeat(sizes, lengths))
    batch = typed_batch(
        {"encoder": sizes, "decoder": lengths},
        {
            ("encoder", "before", "encoder"): chain(sizes),
            ("decoder", "before", "decoder"): chain(lengths),
            ("encoder", "start", "decoder"): pairs(stops - 1, starts),
            ("encoder", "source", "decoder"): pairs(np.concatenate(heard), said_by),
        },
        {"encoder": {"word": word}, "decoder": {"said": said, "label": label}},
    )
    return Examples(batch, known, ())
