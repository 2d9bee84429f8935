"""Find and read the text files of a data set's folder."""

import gzip
import os
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from vertexrt.errors import DataError, UsageError, nearest

AnyPath = str | os.PathLike[str]


class Text(NamedTuple):
    """A text that was read or generated, and what messages call it."""

    file: str
    text: str


TextSource = AnyPath | Text
STEMS = {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}  # of names of files
WHOLE = "all"  # the split of a file that is not divided
LARGEST_TEXT = 1 << 30  # bytes; what is packed may be a thousand times as large as its file
WORD = re.compile(r"[^ \t\r]+")  # of a line, which ends with "\n"; other space is part of a word


def unknown(where: str, what: str, name: str, known: Collection[str]) -> UsageError:
    """Return the error for an option, or something else with a name, that there is not."""
    return UsageError.at(
        where,
        f"no {what} '{name}'",
        f"the {what}s are {', '.join(known)}",
        "give one of them." + nearest(name, known),
    )


def expanded(given: AnyPath) -> Path:
    """Return a path in which `~` stands for a home folder.

    Raises: UsageError, when it is no path, or the home of no user.
    """
    path: object = given
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise UsageError.at("data", f"{path!r:.60}", "expected a path", "give a file or folder")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:  # pathlib's answer
        raise UsageError.at(
            "data", f"'{given}'", "expected a path whose home folder is known", "give the full path"
        ) from error


def files_of(path: Path, endings: Sequence[str], split: str) -> list[Path]:
    """Return the files of a folder that may be of a split, shortest names first.

    Args:
        endings: of names after `train` and so on, `.gz` aside; `ptb.train.txt` ends in `.txt`.
    """
    names = [
        f"*{stem}{ending}{packed}"
        for stem in STEMS[split]
        for ending in endings
        for packed in ("", ".gz")
    ]
    found = [file for name in names for file in path.glob(name) if file.is_file()]
    return sorted(found, key=lambda file: (len(file.name), file))


def split_files(path: Path, endings: Sequence[str], splits: Sequence[str]) -> dict[str, Path]:
    """Return the file of each split, the first of `files_of`.

    Args:
        splits: which to find; the folder need not have others than the first.
    Raises: DataError, when the first has no file; the text names what is there.
    """
    files: dict[str, Path] = {}
    for split in splits:
        found = files_of(path, endings, split)
        if found:
            files[split] = found[0]
        elif split == splits[0]:
            try:
                present = sorted(os.listdir(path))
            except OSError as error:
                raise DataError.at(
                    str(path),
                    f"cannot be read: {error.strerror}",
                    "expected a folder with the data",
                    "check the folder",
                ) from error
            shown = ", ".join(present[:6]) + (", ..." if len(present) > 6 else "")
            raise DataError.at(
                str(path),
                f"no file for the split '{split}' (the folder holds {shown or 'nothing'})",
                f"expected {' or '.join(f'*{split}{ending}' for ending in endings)}, or .gz",
                "add it or give another folder",
            )
    return files


def read_file(path: TextSource) -> Text:
    """Return a text with its name; see `expanded` and `read_text`."""
    if isinstance(path, Text):
        return path
    file = expanded(path)
    return Text(str(file), read_text(file))


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, line ends as they are; a name in .gz is decompressed.

    A byte order mark at the beginning is left out.

    Raises: DataError, when the file cannot be read or is not UTF-8 (the line is named).
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(LARGEST_TEXT + 1)
        if len(data) > LARGEST_TEXT:
            raise OSError(0, f"more than {LARGEST_TEXT >> 20} MiB")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError.at(
            str(path), f"cannot be read: {reason}", "expected a readable file", "check the file"
        ) from error
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise DataError.at(
            f"{path}, line {line}, byte {column}",
            f"the byte 0x{data[error.start]:02x}",
            "expected UTF-8 text",
            "convert the file",
        ) from error
