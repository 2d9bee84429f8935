"""Load a data set by its name or from a folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from vertexrt.data.catalogue import catalogue
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.download import fetch
from vertexrt.data.files import WHOLE, expanded
from vertexrt.data.formats import FORMATS, DataFormat, Reading
from vertexrt.errors import DataError, UsageError, nearest

GENERATED = "generated"


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
    data: str | os.PathLike[str],
    *,
    format: str,
    seed: int = 0,
    splits: Sequence[str] = ("train", "dev", "test"),
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
    # A path object always means a folder; joined with "." it cannot be taken for a name.
    name = data if isinstance(data, str) else os.path.join(os.curdir, data)
    takes_file = row.file or WHOLE in splits
    path = None if name == GENERATED and row.generated else _path(name, row, takes_file)
    return row.make(Reading(name, path, seed, given, splits, vocabularies, reals))


def format_named(name: str) -> DataFormat:
    """Return a format; UsageError, when there is none of that name."""
    if name not in FORMATS:
        known = f"the formats are {', '.join(FORMATS)}"
        action = "give one of them." + nearest(name, FORMATS)
        raise UsageError.at("data", f"no format '{name}'", known, action)
    return FORMATS[name]


def format_of(data: str) -> str:
    """Return the format of a data set, by its name or by the files that are there.

    Raises: UsageError, when a name is that of several; DataError, when there are no such files.
    """
    named = [entry.format for entry in catalogue() if entry.name == data]
    if len(named) > 1:
        got, expected = f"data '{data}' without a format", f"one of {', '.join(named)}"
        raise UsageError.at("data", got, expected, "name it with --format")
    return named[0] if named else _format_of_files(expanded(data))


def _format_of_files(path: Path) -> str:
    if not os.path.exists(path):
        text = ("expected a folder or a file with the data", "check the path")
        raise UsageError.at("data", f"there is no {path}", *text)
    rows = [row for row in FORMATS.values() if row.read]
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
            known = list(LoadOptions.__annotations__)
            action = "give one of them." + nearest(option, known)
            got, expected = f"no option '{option}'", f"the options are {', '.join(known)}"
            raise UsageError.at("data", got, expected, action)
        if value is not None and value is not False:
            got = f"'{option}' for the format {row.name}"
            expected = f"it belongs to the format {' and '.join(owners)}"
            raise UsageError.at("data", got, expected, "leave it out")
    return found


def _not_for(row: DataFormat, got: str) -> UsageError:
    known = ", ".join(entry.name for entry in catalogue(row.name)) or "no name"
    path = " or the path of a folder" if row.read else ""
    return UsageError.at("data", got, f"for {row.name} there is {known}", f"give that{path}")


def _path(name: str, row: DataFormat, takes_file: bool) -> Path:
    """Return the folder, or the file where one is taken, that a name or a path stands for."""
    if not row.read:
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
    raise _no_data(name, row.name, path, "a folder or a file" if takes_file else "a folder")


def _no_data(name: str, format: str, path: Path, wanted: str) -> UsageError:
    """Say why what was given is no data: a file, a name that is not known, or no folder."""
    if os.path.exists(path):
        return UsageError.at(
            "data", f"{path} is a file", "expected a folder", "give the folder it is in"
        )
    known = [entry.name for entry in catalogue(format)]
    if os.sep in name or name.startswith(".") or not known:
        text = (f"expected {wanted} with the data", "check the path")
        return UsageError.at("data", f"there is no {path}", *text)
    action = "give one of them or the path of a folder." + nearest(name, known)
    got = f"'{name}' is neither a data set nor a folder"
    return UsageError.at("data", got, f"for {format} there is {', '.join(known)}", action)
