"""Data sets of text: trees of sentiment, language-model text, tagged sentences and pairs.

A format is one function. It takes the text of each split with the name of its file, and what
numbers words, or None to number those of train; its options are the arguments after these. It
returns the graphs of each split, what numbers their words, and the number of classes.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import END, UNKNOWN, Vocabulary
from vertexrt.data.edges import chain, ends, pairs, same
from vertexrt.data.files import WORD
from vertexrt.data.readers import column_sentences, columns_of, tagged_sentences
from vertexrt.data.typed import ptr_of, stacked, typed_batch
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, parse_brackets

IntArray = npt.NDArray[np.integer]
Sources = Mapping[str, tuple[str, str]]  # by split
Vocabularies = Mapping[str, Vocabulary]
Made = tuple[dict[str, GraphBatch], Vocabularies, int]  # the last: classes

OF_COLUMNS = (".conll", ".bio", ".iob2")  # names of files with a word a line end so
LABELS = 5  # of sentiment
_BINARY = np.array([0, 0, -1, 1, 1], np.int32)  # negative, (neutral: absent), positive


def sentiment(
    sources: Sources,
    given: Vocabularies | None,
    *,
    binary: bool = False,
    lower: bool = True,
    min_count: int = 1,
    pyramid: bool = False,
) -> Made:
    """Read one tree a line; pulls "word" (leaves only) and "label", int32, -1 where absent.

    Args:
        binary: two classes: labels 0 and 1 become 0, labels 3 and 4 become 1, neutral vertices
            have no label, and trees with a neutral root are left out.
        lower: lower-case the words.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        pyramid: pyramids over the words of the trees instead.
    Raises: DataError, on malformed brackets (file, line, column), or without a tree.
    """
    forests = {
        split: parse_brackets(text, file=file, labels=LABELS)
        for split, (text, file) in sources.items()
    }
    words = {
        split: [word.lower() if lower else word for word in forest.words]
        for split, forest in forests.items()
    }
    if given is not None:
        vocabulary = given["word"]
    else:
        leaves = forests["train"].word
        counts = Counter(words["train"][at] for at in leaves[leaves >= 0].tolist())
        vocabulary = Vocabulary.build(counts, min_count=min_count)
    splits: dict[str, GraphBatch] = {}
    for split, forest in forests.items():
        roots = forest.label[forest.graph_ptr[1:] - 1]
        kept = np.flatnonzero(_BINARY[roots] >= 0)
        if not len(roots) or (binary and not len(kept)):
            got, action = "no tree", "add trees or give another folder"
            if len(roots):
                got, action = "neutral trees only", "use all five classes or add trees"
            raise DataError.at(
                sources[split][1], got, "expected at least one tree to learn from", action
            )
        numbers = vocabulary.encode(words[split])
        pulls = {
            "word": np.where(forest.word >= 0, numbers[forest.word], -1),
            "label": _BINARY[forest.label] if binary else forest.label,
        }
        batch = GraphBatch.from_arrays(forest.graph_ptr, forest.child_ptr, forest.child, pulls)
        batch = batch.take(kept) if binary else batch
        splits[split] = pyramids(batch) if pyramid else batch
    return splits, {"word": vocabulary}, 2 if binary else LABELS


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
    sources: Sources,
    given: Vocabularies | None,
    *,
    pieces: int | None = None,
    streams: int = 1,
    layers: int | None = None,
    min_count: int = 1,
) -> Made:
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
    tokens: dict[str, list[str]] = {}  # of all sentences in one row, one `<eos>` after each
    for split, (text, file) in sources.items():
        words = WORD.findall(f"{text}\n".replace("\n", f" {END} "))
        tokens[split] = [now for last, now in pairwise([END, *words]) if (last, now) != (END, END)]
        if not tokens[split]:
            raise DataError.at(
                file, "no word", "expected at least one sentence", "add text or give another folder"
            )
    if given is not None:
        known = given["word"]
    else:
        first, counts = (UNKNOWN, END), Counter(tokens["train"])
        known = Vocabulary.build(counts, min_count=min_count, first=first)
    end = known.index(END)
    splits: dict[str, GraphBatch] = {}
    for split, each in tokens.items():
        label = known.encode(each)
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
            splits[split] = layered_chains(sizes, word, label, layers)
            continue
        graph_ptr = ptr_of(sizes)
        has_child = np.ones(len(label), np.bool_)
        has_child[graph_ptr[:-1]] = False
        pulls = {"word": word, "label": label}
        child = chain(sizes)[:, 0]
        splits[split] = GraphBatch(graph_ptr, ptr_of(has_child), child, pulls)
    return splits, {"word": known, "label": known}, len(known)


def layered_chains(sizes: IntArray, word: IntArray, label: IntArray, layers: int) -> GraphBatch:
    """Build chains for a `LanguageModel` of so many layers.

    Args:
        sizes: int [K], words of each chain; word, label: int [words], of all chains.
    """
    pulls = {"layers.0": {"word": word}, "next": {"label": label}}
    return stacked(sizes, chain(sizes), layers, ("", "next"), pulls)


def tagged(
    sources: Sources,
    given: Vocabularies | None,
    *,
    crf: bool = False,
    letters: bool = True,
    min_count: int = 1,
    word: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    comment: str | None = None,
) -> Made:
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
    named = columns_of({word or "0": "word", label or "-1": "label"})
    in_columns = word is not None or label is not None
    split_of: dict[str, tuple[IntArray, list[str], list[str]]] = {}  # words and tags
    for split, (text, file) in sources.items():
        if in_columns or file.removesuffix(".gz").endswith(OF_COLUMNS):
            made = column_sentences(file, text, named, separator, comment)
        else:
            made = tagged_sentences(file, text, ("word", "label"), "|")
        found = [sentence for _, sentence in made]
        if not found:
            raise DataError.at(file, "no sentence", "expected at least one", "add sentences")
        sizes = np.array([len(row["word"]) for row in found])
        words, tags = ([x or "" for row in found for x in row[n]] for n in ("word", "label"))
        split_of[split] = sizes, words, tags
    known = dict(given or {})
    if not known:
        _, words, tags = split_of["train"]
        counts = Counter(word.lower() if letters else word for word in words)
        known["word"] = Vocabulary.build(counts, min_count=min_count)
        known["label"] = Vocabulary.of_labels(tags)
        if letters:
            spelt = Counter("".join(dict.fromkeys(words)))
            known["letter"] = Vocabulary.build(spelt)
    splits, letters = {}, "letter" in known
    for split, (sizes, words, tags) in split_of.items():
        numbers = [known["label"].find(tag) for tag in tags]
        classes = np.array([-1 if number is None else number for number in numbers], np.int32)
        spelt_so = known["word"].encode(each.lower() if letters else each for each in words)
        own = same(len(words))
        onward, backward = chain(sizes), chain(sizes, reverse=True)
        classifier = "scores" if crf else "tag"
        types = dict.fromkeys(("word", "left", "right", "tag"), sizes)
        edges = {
            ("left", "before", "left"): onward,
            ("right", "before", "right"): backward,
            ("word", "word", "left"): own,
            ("word", "word", "right"): own,
            ("left", "left", classifier): own,
            ("right", "right", classifier): own,
        }
        pulls = {"word": {"word": spelt_so}, "tag": {"label": classes}}
        if crf:
            types["scores"] = sizes
            edges["tag", "before", "tag"] = onward
            edges["scores", "after", "scores"] = backward
            edges["scores", "scores", "tag"] = own
        if letters:  # letters in both directions; each word reads the last of both
            lengths = np.array([len(word) for word in words])
            types["forth"] = types["back"] = np.add.reduceat(lengths, ptr_of(sizes)[:-1])
            edges["forth", "before", "forth"] = chain(lengths)
            edges["back", "before", "back"] = chain(lengths, reverse=True)
            edges["forth", "forth", "word"] = ends(lengths)
            edges["back", "back", "word"] = ends(lengths, reverse=True)
            letter = known["letter"].encode("".join(words))
            pulls["forth"] = pulls["back"] = {"letter": letter}
        splits[split] = typed_batch(types, edges, pulls)
    return splits, known, len(known["label"])


def translation(sources: Sources, given: Vocabularies | None, *, min_count: int = 1) -> Made:
    """Read `source<TAB>target` a line, words between spaces, for a `Seq2Seq`.

    A target w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`; the line
    may end with `<eos>`, too. Pulls "word" (source), "said" and "label" (target).

    Args:
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
    Raises: DataError with file and line, when a line is no pair; without a pair.
    """
    found: dict[str, list[list[list[str]]]] = {}
    for split, (text, file) in sources.items():
        found[split] = []
        for number, line in enumerate(text.split("\n"), 1):
            sides = [WORD.findall(side) for side in line.split("\t")]
            if sides[-1][-1:] == [END]:
                sides[-1].pop()
            if len(sides) == 2 and all(sides):
                found[split].append(sides)
            elif any(sides):
                raise DataError.at(
                    f"{file}, line {number}",
                    f"{len(sides)} sentences, or one without words",
                    "source<TAB>target",
                    "correct it",
                )
        if not found[split]:
            raise DataError.at(file, "no pair", "expected at least one", "add pairs")
    known = dict(given or {})
    if not known:
        source, target = (
            Counter(word for pair in found["train"] for word in pair[k]) for k in (0, 1)
        )
        known["word"] = Vocabulary.build(source, min_count=min_count)
        first = UNKNOWN, END
        known["said"] = Vocabulary.build(target, min_count=min_count, first=first)
        known["label"] = known["said"]
    splits = {}
    for split, several in found.items():  # every word of a target reads all of its source
        word = known["word"].encode(word for source, _ in several for word in source)
        label = known["label"].encode(word for _, target in several for word in (*target, END))
        said = np.concatenate([[known["said"].index(END)], label[:-1]])  # each ends with <eos>
        sizes = np.array([len(source) for source, _ in several])
        lengths = np.array([len(target) + 1 for _, target in several])
        stops, starts = np.cumsum(sizes), np.cumsum(lengths) - lengths
        heard = [
            np.tile(np.arange(stop - n, stop), m)
            for n, m, stop in zip(sizes, lengths, stops, strict=True)
        ]
        said_by = np.repeat(np.arange(len(label)), np.repeat(sizes, lengths))
        splits[split] = typed_batch(
            {"encoder": sizes, "decoder": lengths},
            {
                ("encoder", "before", "encoder"): chain(sizes),
                ("decoder", "before", "decoder"): chain(lengths),
                ("encoder", "start", "decoder"): pairs(stops - 1, starts),
                ("encoder", "source", "decoder"): pairs(np.concatenate(heard), said_by),
            },
            {"encoder": {"word": word}, "decoder": {"said": said, "label": label}},
        )
    return splits, known, len(known["label"])
