"""The formats that data sets are read in, a row for each; and how one is loaded by its name."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.data import generated, readers
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.download import CatalogueEntry, downloaded, fetch
from vertexrt.data.files import (
    WHOLE,
    AnyPath,
    Text,
    TextSource,
    expanded,
    files_of,
    read_text,
    split_files,
    unknown,
)
from vertexrt.data.graph_libraries import read_node_link
from vertexrt.data.records import Examples, read_jsonl, real_pulls
from vertexrt.data.treebank import generate_treebank
from vertexrt.errors import DataError, UsageError, nearest, number_of
from vertexrt.graph import GraphBatch

GENERATED = "generated"
LABEL = "label"  # the pull whose words are classes: all are known
HELD_OUT = 0.1  # of the graphs of a file that is divided: for dev, and for test
SEED = 0  # of the division: the same in every run
SPLITS = ("train", "dev", "test")
OF_FILES = ("dev", "test")  # options of all formats that have files
OF_READERS = ("word", "label", "target", "min_count")  # of all that are read into `Examples`
_SHARE = re.compile(r"0?\.[0-9]{1,9}|0")


class DataFormat(NamedTuple):
    """A format that data sets are read in, or generated as.

    Attributes:
        text: what the graphs are, and in which files; for people.
        make: a reader of one file, which takes `vocabularies`, and `ReadOptions` if nothing is
            generated; where there are no files, it makes the graphs of all splits, and
            vocabularies, for a seed. Its options are keywords.
        endings: of the names of its files; () where it is only generated.
        what: the files hold, for the description of a data set.
        generate: returns for a seed the text of each split; None where there is no such text.
        made: what is generated; for people.
        inside: name of a folder that the files may lie in.
        begins: what tells a file of train of this format by its beginning; None, if nothing does.
        word, label: of a reader, what the data call the pulls "word" and "label", unless named.
    """

    name: str
    text: str
    make: Callable[..., Any]
    endings: tuple[str, ...] = ()
    what: str = "graphs"
    generate: Callable[..., Any] | None = None
    made: str = ""
    inside: str = ""
    begins: str | None = ""
    word: str = ""
    label: str = ""

    @property
    def options(self) -> list[str]:
        """Return the names of what may be said of it besides where it is."""
        arguments = inspect.signature(self.make).parameters.values()
        own = [each.name for each in arguments if each.kind is each.KEYWORD_ONLY]
        return [*own, *(OF_FILES if self.endings else ()), *(OF_READERS if self.reader else ())]

    @property
    def reader(self) -> bool:
        """Tell whether files are read into records, by `ReadOptions`; then none are generated."""
        return bool(self.endings) and self.generate is None

    def folder(self, path: Path) -> Path:
        """Return the folder with the files, for the one that is named."""
        return path / self.inside if (path / self.inside).is_dir() else path

    def fits(self, path: Path) -> bool:
        """Tell whether a folder or file is of this format."""
        if self.begins is None:
            return False
        if path.is_dir():
            found = files_of(self.folder(path), self.endings, "train")
        else:
            found = [path] if path.name.removesuffix(".gz").endswith(self.endings) else []
        if not found or not self.begins:
            return bool(found)
        return read_text(found[0]).lstrip().startswith(self.begins)


def _conll(
    path: Path,
    names: Mapping[str, str],
    *,
    separator: str | None = None,
    comment: str | None = None,
    **options: Any,
) -> Examples:
    return readers.read_conll(
        path, readers.columns_of(names), separator=separator, comment=comment, **options
    )


def _files_of(
    row: DataFormat, path: Path, splits: Sequence[str], named: Mapping[str, str]
) -> tuple[dict[str, Path], dict[str, float]]:
    """Return the files that are read, by split, and which share of train is that of a split.

    Args:
        path: of a folder, or of the file of train: a tenth of it is for dev, and for test.
        named: for dev and test, another file, or the share of train; 0 for none.
    Raises: DataError, when the folder lacks the first split that is not named.
    """
    if WHOLE in splits:
        return {WHOLE: path}, {}
    shares = {split: float(text) for split, text in named.items() if _SHARE.fullmatch(text)}
    files = {split: expanded(text) for split, text in named.items() if split not in shares}
    if path.is_file():
        files["train"] = path
        shares = {**{split: HELD_OUT for split in OF_FILES if split not in files}, **shares}
    shares = {split: share for split, share in shares.items() if share}
    if not {"train", *shares} & {*splits}:
        shares = {}
    wanted = [split for split in SPLITS if split in splits or (split == "train" and shares)]
    if not path.is_file():
        missing = [split for split in wanted if split not in named]
        files |= split_files(row.folder(path), row.endings, missing)
    return {split: files[split] for split in wanted if split in files}, shares


def _divided(
    count: int, shares: Mapping[str, float], path: Path
) -> dict[str, npt.NDArray[np.integer]]:
    """Return the graphs of train, and of the splits that get a share of it, drawn by lot."""
    counts = {split: int(count * share) or 1 for split, share in shares.items()}
    if count <= sum(counts.values()):
        raise DataError.at(
            str(path),
            f"{number_of(count, 'graph')} to divide into train, {' and '.join(shares)}",
            "expected more",
            "add graphs, name other files with --dev and --test, or hold out none: --dev 0",
        )
    order = np.random.default_rng(SEED).permutation(count)
    *held, train = np.split(order, np.cumsum([*counts.values()]))
    parts = {"train": train, **dict(zip(shares, held, strict=True))}
    return {split: np.sort(part) for split, part in parts.items()}


FORMATS = {
    row.name: row
    for row in (
        DataFormat(
            "trees",
            "trees in brackets, (4 (2 very) (3 good)), one a line, in train.txt, dev.txt, test.txt",
            readers.sentiment,
            (".txt",),
            "sentiment trees",
            generate_treebank,
            "4,000 / 500 / 500 trees of a small grammar, labels 0..4 by composition",
            inside="trees",
            begins="(",
        ),
        DataFormat(
            "text",
            "sentences, one a line, in train.txt, valid.txt, test.txt",
            readers.sentences,
            (".txt",),
            "text",
            generated.generate_text,
            "6,000 / 600 / 600 sentences of a small grammar with agreement",
        ),
        DataFormat(
            "tagged",
            "sentences of word|tag, one a line, in train.txt, dev.txt, test.txt; or as conll",
            readers.tagged,
            (".txt", *readers.OF_COLUMNS),
            "tagged sentences",
            generated.generate_tagged,
            "600 / 150 / 150 sentences with names of people, places and firms",
            begins=None,
        ),
        DataFormat(
            "pairs",
            "source<TAB>translation, one pair a line, in train.tsv, dev.tsv, test.tsv",
            readers.translation,
            (".tsv",),
            "pairs of sentences",
            generated.generate_pairs,
            "800 / 100 / 100 pairs: letters, and their reverse in upper case",
            begins=None,
        ),
        DataFormat(
            "logic",
            "",
            generated.logic,
            made=f"400 / 100 / 100 logic circuits of {generated.LOGIC_INPUTS} constants and"
            f" {generated.LOGIC_GATES} gates; labels are values",
        ),
        DataFormat(
            "circuits",
            "",
            generated.circuits,
            made=f"300 / 60 / 60 circuits of {generated.INPUTS} inputs and {generated.GATES} gates,"
            " AND gates and inverters; targets are probabilities",
        ),
        DataFormat(
            "tree-fc",
            "",
            generated.complete_trees,
            made="512 / 64 / 64 complete binary trees, words at the leaves, a target at the root",
        ),
        DataFormat(
            "json-lines",
            "graphs, one a line, in one file or in train.jsonl, dev.jsonl, test.jsonl",
            read_jsonl,
            (".jsonl",),
        ),
        DataFormat(
            "conllu",
            "dependency trees of CoNLL-U, in one file or in *train.conllu, *dev.conllu, ...",
            readers.read_conllu,
            (".conllu",),
            word="form",
        ),
        DataFormat(
            "conll",
            "sentences of a word a line with columns, in one file or in train.conll, ...",
            _conll,
            readers.OF_COLUMNS,
            word="0",
            label="-1",
        ),
        DataFormat(
            "table",
            "texts, one a row of a CSV or TSV file whose first row names columns",
            readers.read_table,
            (".csv", ".tsv"),
        ),
        DataFormat(
            "brackets",
            "trees in brackets over any lines (Penn Treebank), in one file or in train.mrg, ...",
            readers.read_trees,
            (".mrg",),
        ),
        DataFormat(
            "node-link",
            "graphs of networkx as JSON (node_link_data, or a list), or train.json, ...",
            read_node_link,
            (".json",),
        ),
    )
}


def catalogue(format: str | None = None) -> list[CatalogueEntry]:
    """Return the data sets that have a name, those of one format only when it is given."""
    licence = "Apache-2.0 (made by vertexrt)"
    made = [
        CatalogueEntry(GENERATED, row.name, row.made, "vertexrt", licence)
        for row in FORMATS.values()
        if not row.reader
    ]
    return [entry for entry in (*made, *downloaded()) if format in (None, entry.format)]


class LoadOptions(TypedDict, total=False):
    """Hold what may be said of one format, each of its own; `load` says what."""

    binary: bool
    lower: bool
    min_count: int
    pyramid: bool
    letters: bool
    crf: bool
    pieces: int | None
    streams: int
    layers: int | None
    leaves: int
    dev: str | None
    test: str | None
    word: str | None
    label: str | None
    target: str | None
    separator: str | None
    comment: str | None


def load(
    data: AnyPath,
    *,
    format: str,
    seed: int = 0,
    splits: Sequence[str] = SPLITS,
    vocabularies: Mapping[str, Vocabulary] | None = None,
    reals: Sequence[str] = (),
    labelled: bool = True,
    **options: Unpack[LoadOptions],
) -> Dataset:
    """Load a data set.

    Args:
        data: a name of the catalogue ("generated", "sst", "ptb"), or the path of a folder, which
            is used as it is, or of a file, that of train. A folder that has the name of a data set
            is given as "./name".
        format: a name of `FORMATS`: "trees", "text", "tagged", "pairs", "logic", "circuits",
            "tree-fc", or of a reader: "json-lines", "conllu", "conll", "table", "brackets",
            "node-link".
        seed: of generated data.
        splits: which to read; those after the first may be missing. `("all",)` for one file, which
            is not divided.
        vocabularies: by pull, what numbers its words: those of another data set. By default they
            are built of the words of train, which is one of the splits then.
        reals: readers: pulls that are real numbers in another data set, and are so here even
            where all are whole.
        labelled: False where the pulls "label" and "target" of readers are left out.
        options:
            binary: trees: two classes, neutral trees left out (False).
            lower: trees: lower-case the words (True); other text is used as it is.
            pyramid: trees: pyramids over their words instead (False).
            letters: tagged: words and their letters are vertices, too (True).
            crf: tagged: the scores of a word's tags are a vertex, and tags a chain (False).
            min_count: words of train that are rarer count as `<unk>` (1).
            pieces: text: cut it into chains of so many words; None for sentences.
            streams: text: parts of it side by side, which are cut into pieces (1).
            layers: text, logic: types of vertices for so many layers; None for one type.
            leaves: tree-fc: leaves of each tree, a power of 2 (256).
            dev, test: of files: another file for the split, or the share of train that it gets,
                such as "0.1"; "0" for none. Of one file it is a tenth, if not said.
            word, label, target: readers: what the data call these pulls; for "conll" and "tagged"
                the number of a column, 0 and -1 if not said; of "conllu" the word is "form", of
                "table" "text".
            separator: conll, tagged, table: between columns, "tab" for a tabulator.
            comment: conll, tagged: lines that begin so are skipped.
    Raises: UsageError, on an unknown name, format or option, or an option that the format does not
        have; DataError, when the data cannot be had or read, or are empty.
    """
    row = format_named(format)
    given = _checked(options, row)
    generated = data == GENERATED and not row.reader
    for split in splits:
        if split not in SPLITS and (split != WHOLE or generated or len(splits) > 1):
            got, expected = f"the splits {', '.join(splits)}", f"some of {', '.join(SPLITS)}"
            action = f"name these, or '{WHOLE}' alone, for a file that is not divided."
            raise UsageError.at("data", got, expected, action + nearest(split, SPLITS))
    # A path object always means a folder; joined with "." it cannot be taken for a name.
    name = data if isinstance(data, str) else os.path.join(os.curdir, data)
    named = {split: str(given.pop(split)) for split in OF_FILES if split in given}
    path = None if generated else _path(name, row)
    found: dict[str, GraphBatch] = {}
    known: Any = vocabularies
    shares: dict[str, float] = {}
    ids: dict[str, tuple[Any, ...]] = {}
    about = f"{row.made}, seed {seed}"
    if not row.endings:
        said = {**(row.make.__kwdefaults__ or {}), **given}
        about += "".join(f", {option} {value}" for option, value in said.items() if value)
        found, known = row.make(seed, **given)
    else:
        sources: Mapping[str, TextSource]
        if path is None:
            if named:
                raise UsageError.at(
                    "data",
                    f"{' and '.join(named)} for generated data",
                    "the splits that they have",
                    "leave it out, or name a file as data",
                )
            assert row.generate is not None
            texts = row.generate(seed)
            if format == "text":
                floors = [f"{texts[split].perplexity:.2f} on {split}" for split in OF_FILES]
                about += f"; its own perplexity is {' and '.join(floors)}"
            sources = {
                split: Text(f"generated {split} {format}", texts[split])
                for split in SPLITS
                if split in splits
            }
        else:
            sources, shares = _files_of(row, path, splits, named)
            about = f"{row.what} from {path if row.reader else row.folder(path)}"
            about += "".join(f"; {share:g} of train for {split}" for split, share in shares.items())
            if shares and given.get("streams", 1) != 1:
                raise UsageError.at(
                    "data",
                    f"a share of {path} for {' and '.join(shares)}, and streams of text",
                    "expected files, since graphs are drawn by lot and streams go on",
                    "name them with --dev and --test",
                )
        if row.reader:
            called = {"word": row.word, LABEL: row.label, "target": ""}
            called = {ours: given.pop(ours, "") or name for ours, name in called.items()}
            names = {name: ours for ours, name in called.items() if name}
            if not labelled:
                names |= {called[ours] or ours: "" for ours in (LABEL, "target")}
            given |= {"names": names, "labels": [LABEL], "reals": [*reals]}
            given["reals"] += ["target"] if called["target"] else []
        elif vocabularies is None and "train" not in sources:
            raise UsageError.at(
                "data",
                f"the splits {', '.join(splits)} without vocabularies",
                "train among them, whose words are numbered",
                "add it, or pass them",
            )
        for split, source in sources.items():  # the first numbers words, and says what is real
            found[split], known, ids[split] = row.make(source, vocabularies=known, **given)
            if row.reader:
                given["reals"] = sorted({*given["reals"], *real_pulls(found[split])})
    # Trees of sentiment need not have each label.
    counts = {LABEL: 2 if given.get("binary") else readers.LABELS} if format == "trees" else {}
    for batch in found.values():
        for pull, numbers in batch.pulls.items():
            if pull not in known and isinstance(numbers, np.ndarray) and numbers.dtype.kind == "i":
                counts[pull] = max(counts.get(pull, 0), int(numbers.max(initial=-1)) + 1)
    if shares:
        assert path is not None
        whole, ids_of_whole = found["train"], ids["train"]
        for split, part in _divided(whole.num_graphs, shares, path).items():
            found[split] = whole.take(part)
            ids[split] = tuple(ids_of_whole[k] for k in part) if ids_of_whole else ()
        found = {split: found[split] for split in SPLITS if split in found and split in splits}
    return Dataset(name, format, found, known or {}, counts, about, ids)


def format_named(name: str) -> DataFormat:
    """Return a format; UsageError, when there is none of that name."""
    if name not in FORMATS:
        raise unknown("data", "format", name, FORMATS)
    return FORMATS[name]


def format_of(data: str) -> str:
    """Return the format of a data set, by its name or by the files that are there.

    Raises: UsageError, when a name is that of several; DataError, when there are no such files.
    """
    named = [entry.format for entry in catalogue() if entry.name == data]
    if len(named) > 1:
        raise UsageError.at(
            "data",
            f"data '{data}' without a format",
            f"one of {', '.join(named)}",
            "name it with --format",
        )
    if named:
        return named[0]
    path = expanded(data)
    if not os.path.exists(path):
        raise _no_data(path)
    rows = [row for row in FORMATS.values() if row.endings]
    for row in rows:
        if row.fits(path):
            return row.name
    expected = "; ".join(f"{row.name}: {row.text}" for row in rows)
    action = "check the path, or name the format with --format"
    raise DataError.at("data", f"no data in {path}", f"expected {expected}", action)


def _checked(options: LoadOptions, row: DataFormat) -> dict[str, Any]:
    """Return the options that say something; refuse those that another format has, or none."""
    found = {}
    for option, value in options.items():
        if option in row.options:
            if value is not None:
                found[option] = value
            continue
        owners = [other.name for other in FORMATS.values() if option in other.options]
        if not owners:
            raise unknown("data", "option", option, LoadOptions.__annotations__)
        if value is not None and value is not False:
            raise UsageError.at(
                "data",
                f"'{option}' for the format {row.name}",
                f"it belongs to the format {' and '.join(owners)}",
                "leave it out",
            )
    if found.get("separator") in ("tab", "\\t"):
        found["separator"] = "\t"
    return found


def _not_for(row: DataFormat, got: str) -> UsageError:
    known = ", ".join(entry.name for entry in catalogue(row.name)) or "no name"
    path = " or the path of a folder" if row.endings else ""
    return UsageError.at("data", got, f"for {row.name} there is {known}", f"give that{path}")


def _path(name: str, row: DataFormat) -> Path:
    """Return the folder, or the file, that a name or a path stands for."""
    if not row.endings:
        raise _not_for(row, f"'{name}'")
    of_name = {entry.name: entry.format for entry in catalogue()}
    if name in of_name:
        if of_name[name] != row.name:
            raise _not_for(row, f"'{name}' is data of the format {of_name[name]}")
        return fetch(name)
    path = expanded(name)
    # They are False, too, where the system refuses such a name.
    if os.path.isdir(path) or os.path.isfile(path):
        return path
    known = [entry.name for entry in catalogue(row.name)]
    if os.path.exists(path) or os.sep in name or name.startswith(".") or not known:
        raise _no_data(path)
    raise UsageError.at(
        "data",
        f"'{name}' is neither a data set nor a folder",
        f"for {row.name} there is {', '.join(known)}",
        "give one of them or the path of a folder." + nearest(name, known),
    )


def _no_data(path: Path) -> UsageError:
    got = f"{path} is neither" if os.path.exists(path) else f"there is no {path}"
    return UsageError.at("data", got, "expected a folder or a file with the data", "check the path")
