"""Find and read the text files of a data set's folder."""

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vertexrt.errors import DataError, UsageError

LARGEST_TEXT = 1 << 30  # bytes; what is packed may be a thousand times as large as its file


@dataclass(frozen=True, slots=True)
class Texts:
    """Hold the text of each split, before anything is made of it.

    Attributes:
        texts: by split.
        files: what error messages call the text of each split.
        description: one line on what it is, for people.
    """

    texts: dict[str, str]
    files: dict[str, str]
    description: str


def expanded(given: str | os.PathLike[str]) -> Path:
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


def read_splits(folder: Path, names: Mapping[str, Sequence[str]], what: str) -> Texts:
    """Read the file of each split: the first of its names that the folder holds.

    Args:
        folder: where to look.
        names: for each split, file names that are accepted.
        what: the kind of data, for the description.
    Raises: DataError, when a split has no file (the text names what is there), or as `read_text`.
    """
    files: dict[str, Path] = {}
    for split, candidates in names.items():
        paths = [folder / name for name in candidates if (folder / name).is_file()]
        if not paths:
            present = _names_in(folder)
            shown = ", ".join(present[:6]) + (", ..." if len(present) > 6 else "")
            raise DataError.at(
                str(folder),
                f"no file for the split '{split}' (the folder holds {shown or 'nothing'})",
                f"expected {' or '.join(candidates)}",
                "add it or give another folder",
            )
        files[split] = paths[0]
    texts = {split: read_text(path) for split, path in files.items()}
    return Texts(
        texts, {split: str(path) for split, path in files.items()}, f"{what} from {folder}"
    )


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise DataError.at(
            str(folder),
            f"cannot be read: {error.strerror}",
            "expected a folder with the data",
            "check the folder",
        ) from error


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
