"""Find and read the text files of a data set's folder."""

import gzip
import os
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from vertexrt.errors import DataError, UsageError, nearest

AnyPath = str | os.PathLike[str]
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


def split_names(
    *endings: str, prefixes: Sequence[str] = ("",), dev: Sequence[str] = ("dev",)
) -> dict[str, list[str]]:
    """Return the names that the file of each split may have, in the order they are looked for.

    A `*` among the prefixes stands for any beginning.
    """
    stems = {"train": ("train",), "dev": dev, "test": ("test",)}
    return {
        split: [
            f"{prefix}{stem}{ending}{packed}"
            for prefix in prefixes
            for stem in known
            for ending in endings
            for packed in ("", ".gz")
        ]
        for split, known in stems.items()
    }


def split_files(
    path: Path, names: Mapping[str, Sequence[str]], splits: Sequence[str]
) -> dict[str, Path]:
    """Return the file of each split: the first of its names that the folder holds.

    Args:
        path: the folder.
        names: for each split, file names that are accepted; a `*` stands for any text.
        splits: which to find; the folder need not have others than the first.
    Raises: DataError, when the first has no file; the text names what is there.
    """
    files: dict[str, Path] = {}
    for split in splits:
        found = (file for name in names[split] for file in sorted(path.glob(name)))
        file = next((file for file in found if file.is_file()), None)
        if file is not None:
            files[split] = file
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
                f"expected {' or '.join(names[split])}",
                "add it or give another folder",
            )
    return files


def read_file(path: AnyPath) -> tuple[str, str]:
    """Return what messages call a file, and its text; see `expanded` and `read_text`."""
    file = expanded(path)
    return str(file), read_text(file)


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
