"""Readers: each is a function from a file, or from objects in memory, to graphs.

Trees in brackets are those of the Penn Treebank, `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`,
over one or several lines, in a bracket without a label or not; the Stanford Sentiment Treebank is
written so too, with whole numbers for labels; and those of nltk. Sentences have columns: CoNLL,
CoNLL-U with its heads, and `word|tag` as WikiNER has it. Tables (CSV, TSV) have a text a row. They
make records (see `records`). The last ones make graphs for models of the catalogue as array code:
trees of sentiment, language-model text, tagged sentences and pairs; what numbers their words is
that of the training file, or made of this one.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from vertexrt.data.dataset import END, UNKNOWN, Vocabulary
from vertexrt.data.edges import chain, ends, pairs, ptr_of, same, stacked, typed_batch
from vertexrt.data.files import WORD, AnyPath, TextSource, read_file
from vertexrt.data.records import Examples, Fields, ReadOptions, Values, collect, wrong
from vertexrt.errors import DataError, UsageError, nearest
from vertexrt.graph import GraphBatch, parse_brackets

Vocabularies = Mapping[str, Vocabulary]

OF_COLUMNS = (".conll", ".bio", ".iob2")  # names of files with a word a line end so
LABELS = 5  # of sentiment
_BINARY = np.array([0, 0, -1, 1, 1], np.int32)  # negative, (neutral: absent), positive

# A leaf (groups 1, 2), a bracket that opens, with its label (3), one that closes, or a word. White
# space of other kinds may be part of a word.
_WORD = r"[^ \t\r()]"
_PART = re.compile(rf"\(({_WORD}+)[ \t]+({_WORD}+)[ \t]*\)|\(({_WORD}*)|\)|{_WORD}+")
_LEAF, _OPEN = 2, 3
_LABELS = {"label": [int]}


def read_trees(path: AnyPath, **options: Unpack[ReadOptions]) -> Examples:
    """Read trees in brackets: the Penn Treebank, the Stanford Sentiment Treebank.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed.
        options: how words become numbers, see `ReadOptions`.
    Returns: a vertex for each bracket, children first, with the pulls "label" and "word" (that of
        a bracket with one word; several words are vertices of their own, without a label). Labels
        are words for a vocabulary, or whole numbers where all of a file are.
    Raises: DataError, with file and line, on brackets that do not fit.
    """
    file, text = read_file(path)
    return collect(file, _parse(file, text), options, numbers=_LABELS)


def from_nltk(trees: Iterable[Any], **options: Unpack[ReadOptions]) -> Examples:
    """Make a batch of trees of nltk: objects with `label()` that list subtrees and words.

    Args:
        trees: each an `nltk.Tree`.
        options: how words become numbers, see `ReadOptions`.
    Returns: as `read_trees`.
    Raises: DataError, when one is no such tree.
    """
    given: object = trees
    listed = isinstance(given, Iterable) and not isinstance(given, str | bytes | np.ndarray)
    if not listed or _is_nltk(given):
        raise DataError.at(
            "from_nltk", f"a {type(given).__name__}", "expected a list of trees", "pass [tree]"
        )
    return collect("from_nltk", enumerate(trees), options, "tree", _of_nltk, _LABELS)


def _is_nltk(node: object) -> bool:
    return isinstance(node, list) and callable(getattr(node, "label", None))


def _of_nltk(root: Any) -> Fields:
    record, left, nodes = _no_tree(), [root], []
    while left:
        node = left.pop()
        nodes.append(node)
        if _is_nltk(node):
            left += node
        elif not isinstance(node, str) or node is root:
            raise wrong(
                f"a {type(node).__name__}",
                "expected trees of nltk, with words at the leaves",
                "convert it",
            )
    done: list[int | str] = []  # vertices and words whose parent is not done, left to right
    for node in reversed(nodes):
        if isinstance(node, str):
            done.append(node)
        else:
            start, label = len(done) - len(node), node.label()
            text = None if label is None else str(label)
            done[start:] = [_vertex(record, text, done[start:])]
    return record


def _no_tree() -> Fields:
    return {"children": [], "pulls": {"label": [], "word": []}}


def _vertex(record: Fields, label: str | None, parts: list[int | str]) -> int:
    """Add the vertex of a bracket to its tree, after those of the words that are not alone in it.

    Args:
        parts: what it has: vertices and words.
    """
    word = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None
    below = [_vertex(record, None, [x]) if isinstance(x, str) else x for x in parts if x != word]
    record["children"].append(below)
    record["pulls"]["label"].append(label)
    record["pulls"]["word"].append(word)
    return len(record["children"]) - 1


def _parse(file: str, text: str) -> Iterator[tuple[int, Fields]]:
    """Return the trees of a text as records, with the line that each begins in."""
    first, record = 0, _no_tree()
    opened: list[list[Any]] = []  # of each, its label and its parts
    for number, line in enumerate(text.split("\n"), 1):
        for part in _PART.finditer(line):
            where = f"{file}, line {number}, column {part.start() + 1}"
            done: int | str = part[0]
            if not opened:
                first, record = number, _no_tree()
            if part.lastindex == _OPEN:
                opened.append([part[_OPEN] or None, []])
                continue
            if part.lastindex == _LEAF:
                done = _vertex(record, part[1], [part[_LEAF]])
            elif not opened:
                raise DataError.at(
                    where,
                    f"'{part[0][:20]}' stands outside of a tree",
                    "expected '('",
                    "correct the brackets",
                )
            elif part[0] == ")":
                label, parts = opened.pop()
                if not parts:
                    raise DataError.at(
                        where,
                        f"a bracket with {label or 'nothing'} in it alone",
                        "expected '(label word)' or '(label (...) ...)'",
                        "give it a word or children, or remove it",
                    )
                done = parts[0]
                if label is not None or len(parts) > 1 or isinstance(done, str):
                    done = _vertex(record, label, parts)
            elif opened[-1] == [None, []]:
                opened[-1][0] = part[0]
                continue
            if opened:
                opened[-1][1].append(done)
            else:
                yield first, record
    if opened:
        raise DataError.at(
            f"{file}, line {first}",
            f"{len(opened)} brackets of the tree that begins here are never closed",
            "expected a ')' for each '('",
            "close them",
        )


# Columns of CoNLL-U (universaldependencies.org/format.html); HEAD becomes the edges.
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

_PULLED = tuple(name for name in _CONLLU if name not in ("id", "head"))
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")  # the id of a range of words, or of an empty node
_COLUMN = re.compile("-?[0-9]{1,4}")
_SENT_ID = re.compile(r"# *sent_id *= *(.*?)\s*")

Words = dict[str, list[str | None]]  # of a sentence: by column, the value of each word
Record = Callable[[Words], Fields]


def _chain(words: Words) -> Fields:
    return {"chain": len(next(iter(words.values()))), "pulls": words}


def read_conll(
    path: AnyPath,
    columns: Mapping[str, int],
    record: Record = _chain,
    *,
    separator: str | None = None,
    comment: str | None = None,
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read sentences of one word a line, with columns, and blank lines between sentences.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed. Lines of `-DOCSTART-` are
            skipped.
        columns: name of a pull -> number of its column from 0, from the right if negative:
            `{"word": 0, "tag": -1}`.
        record: makes a record of the JSON-lines schema of a sentence, name -> list with the value
            of each word; a chain with these pulls, unless given.
        separator: between columns, such as a tab: a word may have spaces then, and an empty column
            is no value. By default any spaces and tabs.
        comment: lines that begin so are skipped, such as "# "; by default none are.
        options: how words become numbers, see `ReadOptions`.
    Raises: DataError, with file and line, when a line lacks a column.
    """
    if not isinstance(columns, dict) or not _are_all(int, list(columns.values())):
        raise UsageError.at(
            "read_conll",
            f"columns={columns!r:.60}",
            "expected names of pulls and numbers of columns",
            'write {"word": 0}',
        )
    for name, text in (("separator", separator), ("comment", comment)):
        if text is not None and (not isinstance(text, str) or not text or "\n" in text):
            raise UsageError.at(
                "read_conll",
                f"{name}={text!r:.60}",
                "expected text of a line, or None",
                "correct it",
            )
    file, text = read_file(path)
    sentences = column_sentences(file, text, columns, separator, comment)
    return collect(file, sentences, options, make=record)


def read_tagged(
    path: AnyPath,
    fields: Sequence[str] = ("word", "label"),
    separator: str = "|",
    record: Record = _chain,
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read a sentence a line, its words between spaces with their tags: `Rome|I-LOC is|O far|O`.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed. Blank lines are skipped.
        fields: names of the pulls of a word's parts. What is over belongs to the first.
        separator: between the parts.
        record: as in `read_conll`.
        options: how words become numbers, see `ReadOptions`.
    Raises: DataError, with file and line, when a word has too few parts.
    """
    if not _are_all(str, fields) or not isinstance(separator, str) or not separator:
        raise UsageError.at(
            "read_tagged",
            f"fields={fields!r:.60} and separator={separator!r:.60}",
            "names of pulls, and text",
            "give both",
        )
    file, text = read_file(path)
    return collect(file, tagged_sentences(file, text, fields, separator), options, make=record)


def read_conllu(
    path: AnyPath,
    pulls: Sequence[str] = ("form", "upos", "deprel"),
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read dependency trees: a word's children are the words that depend on it, left to right.

    Args:
        path: of a file in CoNLL-U; a name in .gz is decompressed. Ranges of words (`3-4`) and empty
            nodes (`8.1`) are left out.
        pulls: columns to pull, besides those that `names` names: form, lemma, upos, xpos, feats,
            deprel, deps, misc. `_` is no value, but in `form`.
        options: how words become numbers, see `ReadOptions`.
    Returns: a graph for each sentence, words in their order; its id is `# sent_id = ...`.
    Raises: DataError or GraphError, with file and line, when a line has not ten columns, the words
        of a sentence are not numbered 1, 2, ..., a head is none of them, or heads form a cycle.
    """
    if not isinstance(pulls, list | tuple):
        raise UsageError.at(
            "read_conllu",
            f"pulls={pulls!r:.60}",
            f"expected a list of {', '.join(_PULLED)}",
            "correct it",
        )
    asked = [*pulls, *(name for name, ours in (options.get("names") or {}).items() if ours)]
    for name in asked:
        if name not in _PULLED:
            raise UsageError.at(
                "read_conllu",
                f"no column {name!r:.60}",
                f"the columns are {', '.join(_PULLED)}",
                f"name one of these.{nearest(name, _PULLED)}",
            )
    file, text = read_file(path)
    numbers = {name: number for number, name in enumerate(_CONLLU)}
    sentences = column_sentences(file, text, numbers, "\t", "#", numbered=True)
    return collect(file, sentences, options, make=partial(_dependencies, dict.fromkeys(asked)))


def _dependencies(pulls: Iterable[str], words: Words) -> Fields:
    """Return the record of a dependency tree: edges go from a word to its head."""
    at = {name: word for word, name in enumerate(words["id"])}
    edges = []
    for word, (name, head) in enumerate(zip(words["id"], words["head"], strict=True)):
        if head in at:
            edges.append((word, at[head]))
        elif head != "0":
            raise wrong(
                f"word {name} has the head '{head}'",
                f"expected 0 or a word of the sentence, 1..{len(at)}",
                "correct the column HEAD",
            )
    given = {
        name: [None if x == "_" and name != "form" else x for x in words[name]] for name in pulls
    }
    called = words["sent_id"][0]
    return {"vertices": len(at), "edges": edges, "pulls": given, "id": called}


def _are_all(kind: type, given: object) -> bool:
    """Tell whether it is a list of one thing or more of a kind."""
    listed = isinstance(given, list | tuple) and bool(given)
    return listed and all(isinstance(each, kind) for each in given)  # type: ignore[attr-defined]


def column_sentences(
    file: str,
    text: str,
    columns: Mapping[str, int],
    separator: str | None,
    comment: str | None,
    *,
    numbered: bool = False,
) -> Iterator[tuple[int, Words]]:
    """Return the sentences of a file, which lines without columns end, and the line of each.

    Args:
        numbered: words of CoNLL-U: ranges of them and empty nodes are left out, and the columns and
            numbers of others are checked; "sent_id" has what the sentence is called.
    """
    first, rows = 0, list[list[str]]()
    sent_id: str | None = None
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if comment is not None and line.startswith(comment):
            named = _SENT_ID.fullmatch(line)
            sent_id = named[1] if named else sent_id
            continue
        row: list[str] = WORD.findall(line)
        if row[:1] == ["-DOCSTART-"]:
            row = []
        if row and separator:
            row = line.rstrip("\r").split(separator)
        if row and numbered and _NO_WORD.fullmatch(row[0]):
            continue
        where = f"{file}, line {number}"
        if not row:
            if rows:
                words = {name: [row[k] or None for row in rows] for name, k in columns.items()}
                yield first, {**words, "sent_id": [sent_id]} if numbered else words
                sent_id = None
            rows = []
            continue
        first = first if rows else number
        if numbered and (len(row) != len(columns) or row[0] != str(len(rows) + 1)):
            raise DataError.at(
                where,
                f"{len(row)} columns, the first is '{row[0][:20]}'",
                f"expected {len(columns)}, and the word's number {len(rows) + 1} first",
                "correct the line, or put a blank line before each sentence",
            )
        for name, column in columns.items():
            if not -len(row) <= column < len(row):
                raise DataError.at(
                    where,
                    f"{len(row)} columns",
                    f"'{name}' is in column {column}",
                    "correct the line",
                )
        rows.append(row)


def columns_of(names: Mapping[str, str]) -> dict[str, int]:
    """Return the columns of pulls, by what they are called.

    Args:
        names: by the number of a column, from 0, from the right if negative, a pull; "" for none.
    Raises: UsageError, when one is no number.
    """
    for column, ours in names.items():
        if ours and not _COLUMN.fullmatch(column):
            raise UsageError.at(
                "data",
                f"the column '{column}'",
                "expected its number, from 0, or from the right, -1",
                "correct it",
            )
    return {ours: int(column) for column, ours in names.items() if ours}


def tagged_sentences(
    file: str, text: str, fields: Sequence[str], separator: str
) -> Iterator[tuple[int, Words]]:
    """Return the sentences of a file with one on each line, and the number of the line."""
    for number, line in enumerate(text.split("\n"), 1):
        words = [word.rsplit(separator, len(fields) - 1) for word in WORD.findall(line)]
        short = next((word for word in words if len(word) < len(fields) or not all(word)), None)
        if short:
            raise DataError.at(
                f"{file}, line {number}",
                f"'{separator.join(short)[:40]}' with {sum(map(bool, short))} parts",
                f"expected {separator.join(fields)}",
                "correct the word",
            )
        if words:
            columns = zip(*words, strict=True)
            yield number, {n: list(c) for n, c in zip(fields, columns, strict=True)}


def read_table(
    path: AnyPath, *, separator: str | None = None, **options: Unpack[ReadOptions]
) -> Examples:
    """Read a table whose first row names its columns: CSV, or TSV where the name says so.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed.
        separator: between columns.
        options: how words become numbers, see `ReadOptions`.
    Returns: a graph for each row; its id is the column "id". The words of the column that `names`
        calls "word", or "text", stand between spaces and are a chain; values of other columns
        belong to the last word. Without such a column a row is one vertex. A column where all
        values are numbers has numbers; an empty one is no value.
    Raises: DataError, with file and line, when a row has not the columns of the first, or no word.
    """
    file, content = read_file(path)
    delimiter = separator or ("\t" if ".tsv" in Path(file).suffixes else ",")
    table = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        names = next(table, [])
        rows = [(table.line_num, row) for row in table if row]
    except csv.Error as error:
        where = f"{file}, line {table.line_num}"
        raise DataError.at(where, str(error), "expected a row of a table", "correct it") from error
    ours = dict(options.get("names") or {})
    text = next((name for name, pull in ours.items() if pull == "word"), "text")
    if text in names:
        ours[text] = "word"

    def record(row: list[str]) -> Fields:
        if len(row) != len(names):
            raise wrong(
                f"a row of {len(row)} columns",
                f"the first row names {len(names)}: {', '.join(names):.100}",
                "correct it, or name the --separator",
            )
        values = dict(zip(names, row, strict=True))
        words = WORD.findall(values.pop(text, "-").replace("\n", " "))
        if not words:
            raise wrong(f"no word in '{text}'", "expected one", "remove the row")
        called, before = values.pop("id", None), [None] * (len(words) - 1)
        pulls: Values = {name: [*before, value or None] for name, value in values.items()}
        pulls |= {text: words} if text in names else {}
        return {"chain": len(words), "pulls": pulls, "id": called}

    numbers = {name: (int, float) for name in names if name != text}
    return collect(file, rows, {**options, "names": ours}, make=record, numbers=numbers)


def sentiment(
    path: TextSource,
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
    return Examples(pyramids(batch) if pyramid else batch, known)


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
    path: TextSource,
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
    before = chain(sizes)
    if layers is not None:  # for a `LanguageModel`
        typed = {"layers.0": {"word": word}, "next": {"label": label}}
        return Examples(stacked(sizes, before, layers, ("", "next"), typed), known)
    graph_ptr = ptr_of(sizes)
    has_child = np.ones(len(label), np.bool_)
    has_child[graph_ptr[:-1]] = False
    pulls = {"word": word, "label": label}
    batch = GraphBatch(graph_ptr, ptr_of(has_child), before[:, 0], pulls)
    return Examples(batch, known)


def tagged(
    path: TextSource,
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
    return Examples(typed_batch(types, edges, pulls), known)


def translation(
    path: TextSource, vocabularies: Vocabularies | None = None, *, min_count: int = 1
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
        known["word"] = Vocabulary.build(
            Counter(word for each in sources for word in each), min_count=min_count
        )
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
    return Examples(batch, known)
