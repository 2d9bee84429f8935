"""The formats that data sets are read in, a row for each; and how one is loaded by its name."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from vertexrt.data import generated_graphs, text_formats
from vertexrt.data.catalogue import catalogue
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.download import fetch
from vertexrt.data.files import (
    WHOLE,
    AnyPath,
    expanded,
    read_text,
    split_files,
    split_names,
    unknown,
)
from vertexrt.data.generated_tags import generate_pairs, generate_tagged
from vertexrt.data.generated_text import generate_text
from vertexrt.data.readers import read_jsonl
from vertexrt.data.records import real_pulls
from vertexrt.data.text_formats import Made
from vertexrt.data.treebank import generate_treebank
from vertexrt.errors import DataError, UsageError, nearest
from vertexrt.graph import GraphBatch

GENERATED = "generated"
LABEL = "label"  # the pull whose words are classes: all are known
HELD_OUT = 10  # of so many graphs of a file that is divided, one is for dev and one for test
SEED = 0  # of the division: the same in every run
SPLITS = ("train", "dev", "test")


class DataFormat(NamedTuple):
    """A format that data sets are read in, or generated as.

    Attributes:
        text: what the graphs are, and in which files; for people.
        make: makes graphs of the text of each split (see `text_formats`), of JSON lines, or, where
            there are no files, of a seed (see `generated_graphs`). Its options are keywords.
        files: names that the file of each split may have; None where it is only generated.
        what: the files hold, for the description of a data set.
        generate: returns the text of each split for a seed, and a description; None where there is
            no such text. Of a format with files a single file may be a whole data set then.
        optional: splits that a folder need not have.
        inside: name of a folder that the files may lie in.
        begins: what tells a file of train of this format by its beginning; None, if nothing does.
    """

    name: str
    text: str
    make: Callable[..., Any]
    files: Mapping[str, Sequence[str]] | None = None
    what: str = ""
    generate: Callable[[int], tuple[Mapping[str, str], str]] | None = None
    optional: Sequence[str] = ()
    inside: str = ""
    begins: str | None = None

    @property
    def options(self) -> list[str]:
        """Return the names of what may be said of it besides where it is."""
        arguments = inspect.signature(self.make).parameters.values()
        return [each.name for each in arguments if each.kind is each.KEYWORD_ONLY]

    @property
    def whole_file(self) -> bool:
        """Tell whether one file may be a whole data set; then none is generated."""
        return self.files is not None and self.generate is None

    def folder(self, path: Path) -> Path:
        """Return the folder with the files, for the one that is named."""
        return path / self.inside if (path / self.inside).is_dir() else path

    def fits(self, path: Path) -> bool:
        """Tell whether a folder or file is of this format."""
        if self.files is None or self.begins is None:
            return False
        if self.whole_file and path.name.endswith((".jsonl", ".jsonl.gz")):
            return True
        files = [self.folder(path) / name for name in self.files["train"]]
        file = next((file for file in files if file.is_file()), None)
        if file is None or not self.begins:
            return file is not None
        return read_text(file).lstrip().startswith(self.begins)


def _generated_text(seed: int) -> tuple[Mapping[str, str], str]:
    made = generate_text(seed)
    floors = " and ".join(f"{made[split].perplexity:.2f} on {split}" for split in ("dev", "test"))
    about = f"sentences of a small grammar, seed {seed}; its own perplexity is {floors}"
    return {split: each.text for split, each in made.items()}, about


def _json_lines(
    path: Path,
    splits: Sequence[str],
    known: Mapping[str, Vocabulary] | None,
    reals: Sequence[str],
    *,
    dev: str | None = None,
    test: str | None = None,
    min_count: int = 1,
) -> tuple[Made, str]:
    """Make graphs of JSON lines; `read_jsonl` has the schema.

    Of one file, a tenth of the graphs, drawn with a fixed seed, is for dev and another for test, as
    far as the options `dev` and `test` name no files. Vocabularies, and what is real, are those of
    train unless given. Words of the pull "label" are classes.

    Raises: DataError, when a file cannot be read or is too short to be divided.
    """
    if WHOLE in splits:
        files = {WHOLE: path}
    elif path.is_dir():
        for option, given in (("dev", dev), ("test", test)):
            if given is not None:
                raise DataError.at(
                    str(path),
                    f"{option}={given!r} beside a folder",
                    "the splits that it has",
                    "leave it out, or name a file as data",
                )
        files = split_files(path, _JSONL, [name for name in _JSONL if name in splits], ("test",))
    else:
        named = {"train": path, "dev": dev, "test": test}
        files = {split: Path(file) for split, file in named.items() if file}
    found: dict[str, GraphBatch] = {}
    for split, file in files.items():
        found[split], known = read_jsonl(
            file, vocabularies=known, labels=[LABEL], reals=reals, min_count=min_count
        )
        reals = sorted({*reals, *real_pulls(found[split])})
    about = f"graphs from {path}"
    held = [split for split in ("dev", "test") if split not in files]
    if path.is_file() and WHOLE not in splits and held:
        found |= _divided(found["train"], held, path)
        about += f"; held out by lot: a tenth for each of {' and '.join(held)}"
    known = known or {}
    classes = len(known.get(LABEL, ()))
    for batch in found.values():
        label = batch.pulls.get(LABEL)
        if LABEL not in known and isinstance(label, np.ndarray) and label.dtype.kind == "i":
            classes = max(classes, int(label.max(initial=-1)) + 1)
    return ({split: found[split] for split in splits if split in found}, known, classes), about


def _divided(graphs: GraphBatch, held: Sequence[str], path: Path) -> dict[str, GraphBatch]:
    """Return the splits of a file: train, and those to be held out."""
    count = graphs.num_graphs // HELD_OUT or 1
    if graphs.num_graphs <= count * len(held):
        raise DataError.at(
            str(path),
            f"{graphs.num_graphs} graphs to divide into train, {' and '.join(held)}",
            "expected more",
            "add graphs, or name other files with --dev and --test",
        )
    order = np.random.default_rng(SEED).permutation(graphs.num_graphs)
    cut = [count * number for number in range(len(held) + 1)]
    parts = {split: order[a : a + count] for split, a in zip(held, cut, strict=False)}
    return {
        split: graphs.take(np.sort(part))
        for split, part in {**parts, "train": order[cut[-1] :]}.items()
    }


_TXT = split_names(".txt")
_JSONL = split_names(".jsonl")

FORMATS = {
    row.name: row
    for row in (
        DataFormat(
            "trees",
            "trees in brackets, (4 (2 very) (3 good)), one a line, in train.txt, dev.txt, test.txt",
            text_formats.sentiment,
            _TXT,
            "sentiment trees",
            lambda seed: (
                generate_treebank(seed),
                f"sentiment trees of a small grammar, seed {seed}",
            ),
            inside="trees",
            begins="(",
        ),
        DataFormat(
            "text",
            "sentences, one a line, in train.txt, valid.txt, test.txt",
            text_formats.sentences,
            split_names(".txt", prefixes=("ptb.", ""), dev=("valid", "dev")),
            "text",
            _generated_text,
            begins="",
        ),
        DataFormat(
            "tagged",
            "sentences of word|tag, one a line, in train.txt, dev.txt and perhaps test.txt",
            text_formats.tagged,
            _TXT,
            "tagged sentences",
            lambda seed: (generate_tagged(seed), "generated sentences"),
            optional=("test",),
        ),
        DataFormat(
            "pairs",
            "source<TAB>translation, one pair a line, in train.tsv, dev.tsv, test.tsv",
            text_formats.translation,
            split_names(".tsv"),
            "pairs of sentences",
            lambda seed: (
                generate_pairs(seed),
                f"letters, and their reverse in upper case, seed {seed}",
            ),
        ),
        DataFormat("logic", "logic circuits", generated_graphs.logic),
        DataFormat("circuits", "AND gates and inverters", generated_graphs.circuits),
        DataFormat("tree-fc", "complete binary trees", generated_graphs.complete_trees),
        DataFormat(
            "json-lines",
            "graphs, one a line, in one file or in train.jsonl, dev.jsonl, test.jsonl",
            _json_lines,
            _JSONL,
            begins="",
        ),
    )
}


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
    leaves: int | None
    dev: str | None
    test: str | None


def load(
    data: AnyPath,
    *,
    format: str,
    seed: int = 0,
    splits: Sequence[str] = SPLITS,
    vocabularies: Mapping[str, Vocabulary] | None = None,
    reals: Sequence[str] = (),
    **options: Unpack[LoadOptions],
) -> Dataset:
    """Load a data set.

    Args:
        data: a name of the catalogue ("generated", "sst", "ptb"), or the path of a folder, which
            is used as it is, or of a file of JSON lines. A folder that has the name of a data set
            is given as "./name".
        format: a name of `FORMATS`: "trees", "text", "tagged", "pairs",
            "logic", "circuits", "tree-fc" or "json-lines".
        seed: of generated data.
        splits: which to read; `("all",)` for one file of any format, which is not divided.
        vocabularies: by pull, what numbers its words: those of another data set. By default they
            are built of the words of train, which is one of the splits then.
        reals: json-lines: pulls that are real numbers in another data set, and are so here even
            where all are whole.
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
            leaves: tree-fc: leaves of each tree, a power of 2; None for 256.
            dev, test: json-lines: files of these splits, beside a file of train; by default a
                tenth of the file for each.
    Raises: UsageError, on an unknown name, format or option, or an option that the format does not
        have; DataError, when the data cannot be had or read, or are empty.
    """
    row = format_named(format)
    given = _checked(options, row)
    generated = data == GENERATED and not row.whole_file
    for split in splits:
        if split not in SPLITS and (split != WHOLE or generated or len(splits) > 1):
            got, expected = f"the splits {', '.join(splits)}", f"some of {', '.join(SPLITS)}"
            action = f"name these, or '{WHOLE}' alone, for a file that is not divided."
            raise UsageError.at("data", got, expected, action + nearest(split, SPLITS))
    # A path object always means a folder; joined with "." it cannot be taken for a name.
    name = data if isinstance(data, str) else os.path.join(os.curdir, data)
    path = None if generated else _path(name, row, row.whole_file or WHOLE in splits)
    made: Made
    if row.files is None:
        made, about = row.make(seed, **given)
    elif row.whole_file:
        made, about = row.make(path, splits, vocabularies, reals, **given)
    else:
        if vocabularies is None and "train" not in splits:
            raise UsageError.at(
                "data",
                f"the splits {', '.join(splits)} without vocabularies",
                "train among them, whose words are numbered",
                "add it, or pass them",
            )
        if path is None:
            assert row.generate is not None
            texts, about = row.generate(seed)
            sources = {split: (texts[split], f"generated {split} {format}") for split in splits}
        else:
            folder = row.folder(path)
            about = f"{row.what} from {folder}"
            files = split_files(folder, row.files, splits, row.optional)
            sources = {split: (read_text(file), str(file)) for split, file in files.items()}
        made = row.make(sources, vocabularies, **given)
    found, known, classes = made
    return Dataset(name, format, found, known, classes, about)


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
        raise UsageError.at(
            "data",
            f"there is no {path}",
            "expected a folder or a file with the data",
            "check the path",
        )
    rows = [row for row in FORMATS.values() if row.files is not None]
    for row in rows:
        if row.fits(path):
            return row.name
    expected = "; ".join(f"{row.name}: {row.text}" for row in rows)
    raise DataError.at("data", f"no data in {path}", f"expected {expected}", "check the path")


def _checked(options: LoadOptions, row: DataFormat) -> dict[str, object]:
    """Return the options that say something; refuse those that another format has, or none."""
    found: dict[str, object] = {}
    for option, value in options.items():
        if option in row.options:
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
    return found


def _not_for(row: DataFormat, got: str) -> UsageError:
    known = ", ".join(entry.name for entry in catalogue(row.name)) or "no name"
    path = " or the path of a folder" if row.files is not None else ""
    return UsageError.at("data", got, f"for {row.name} there is {known}", f"give that{path}")


def _path(name: str, row: DataFormat, takes_file: bool) -> Path:
    """Return the folder, or the file where one is taken, that a name or a path stands for."""
    if row.files is None:
        raise _not_for(row, f"'{name}'")
    of_name = {entry.name: entry.format for entry in catalogue()}
    if name in of_name:
        if of_name[name] != row.name:
            raise _not_for(row, f"'{name}' is data of the format {of_name[name]}")
        return fetch(name)
    path = expanded(name)
    # They are False, too, where the system refuses such a name.
    if os.path.isdir(path) or (takes_file and os.path.isfile(path)):
        return path
    known = [entry.name for entry in catalogue(row.name)]
    if os.path.exists(path):
        got, expected = f"{path} is a file", "expected a folder"
        action = "give the folder it is in"
    elif os.sep in name or name.startswith(".") or not known:
        wanted = "a folder or a file" if takes_file else "a folder"
        got, expected = f"there is no {path}", f"expected {wanted} with the data"
        action = "check the path"
    else:
        got = f"'{name}' is neither a data set nor a folder"
        expected = f"for {row.name} there is {', '.join(known)}"
        action = "give one of them or the path of a folder." + nearest(name, known)
    raise UsageError.at("data", got, expected, action)
