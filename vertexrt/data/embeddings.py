"""Read pretrained embeddings: a row for each word of a vocabulary."""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import AnyPath, expanded, read_text
from vertexrt.errors import DataError, UsageError

FloatArray = npt.NDArray[np.float32]
Rows = dict[str, FloatArray]
# What NumPy lets through of a file whose header is no header.
_DAMAGED = (OSError, EOFError, ValueError, TypeError, SyntaxError, TokenError)


_COUNTS = re.compile(r"[0-9]+[ \t]+[0-9]+\s*")  # the first line of word2vec: words, dimensions


class Embeddings(NamedTuple):
    """Rows for the words of a vocabulary.

    Attributes:
        matrix: float32 [words, dimensions], for `net.parameters[name] = matrix`.
        share: of the words, `<unk>` left out, that the file has: 0.0 to 1.0.
    """

    matrix: FloatArray
    share: float


def read_embeddings(
    path: AnyPath,
    vocabulary: Vocabulary,
    init: Callable[[tuple[int, int], np.random.Generator], npt.NDArray[Any]],
    *,
    words: AnyPath | Sequence[str] | None = None,
    lower: bool = False,
    seed: int = 0,
) -> Embeddings:
    """Read the embeddings of a vocabulary's words.

    Args:
        path: of a text file of GloVe or word2vec, a word and its numbers a line, with or without
            a first line of two counts, .gz too; or of a .npy file, float [n, dimensions].
        vocabulary: whose words are looked up; where a file has a word twice, the first counts.
        init: draws the rows of words that the file does not have, as for a parameter:
            `vrt.init.normal(0.1)`, `vrt.init.zeros`.
        words: for a .npy file, the word of each row: a list, or a file with one a line.
        lower: look a word up in lower case where the file does not have it as it is.
        seed: of what is drawn.
    Raises: DataError, with file and line, when a row has too few numbers, or others than finite
        ones; UsageError, on words for a text file, or none for a .npy file.
    """
    file = expanded(path)
    kinds: tuple[object, object] = vocabulary, init
    if not isinstance(kinds[0], Vocabulary) or not callable(kinds[1]):
        raise UsageError.at(
            "read_embeddings",
            f"a {type(vocabulary).__name__} and a {type(init).__name__}",
            "a Vocabulary, and a function of shape and generator",
            "pass vrt.init.normal(0.1)",
        )
    forms = [(word, word.lower() if lower else word) for word in vocabulary.words]
    wanted = {form for both in forms for form in both}
    if file.suffix == ".npy":
        dimensions, rows = _read_array(file, words, wanted)
    elif words is not None:
        raise UsageError.at(
            "read_embeddings",
            "words for a text file",
            "its lines begin with them",
            "leave them out",
        )
    else:
        dimensions, rows = _read_text(file, wanted)
    drawn = np.asarray(init((len(vocabulary), dimensions), np.random.default_rng(seed)))
    matrix = drawn.astype(np.float32)
    found = 0
    for number, (word, form) in enumerate(forms):
        row = rows.get(word, rows.get(form))
        if row is not None:
            matrix[number] = row
            found += word != vocabulary.unknown
    known = len(vocabulary) - (vocabulary.unknown is not None)
    return Embeddings(matrix, found / max(1, known))


def _read_text(file: Path, wanted: Collection[str]) -> tuple[int, Rows]:
    """Return the number of dimensions, and the rows of the words wanted that the file has."""
    dimensions = 0
    rows: Rows = {}
    for number, line in enumerate(_lines(file), 1):
        word, _, rest = line.rstrip(" \t\r\n").replace("\t", " ").partition(" ")
        fields = rest.count(" ") + 1
        if number == 1 and _COUNTS.fullmatch(line):
            continue
        dimensions = dimensions or fields
        if word not in wanted or word in rows or fields > dimensions:
            continue  # with more fields, it is but the first part of a word with spaces
        where = f"{file}, line {number}"
        expected = f"{dimensions} finite numbers after the word"
        try:
            row = rows[word] = np.array(rest.split(" "), np.float32)
        except ValueError as error:
            raise _wrong(where, f"'{rest[:40]}'", expected) from error
        finite = np.isfinite(row).sum()
        if len(row) != dimensions or finite < dimensions:
            raise _wrong(where, f"{len(row)} numbers, {finite} of them finite", expected)
    if not dimensions:
        raise _wrong(str(file), "no words", "a word and its numbers a line")
    return dimensions, rows


def _lines(file: Path) -> Iterator[str]:
    """Return the lines of a text; bytes that are not UTF-8 are parts of words that nobody wants."""
    open_file = gzip.open if file.suffix == ".gz" else open
    try:
        with open_file(
            file, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="\n"
        ) as text:
            yield from text
    except (OSError, EOFError, zlib.error) as error:
        raise _wrong(
            str(file),
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            "a readable file",
        ) from error


def _read_array(
    file: Path, words: AnyPath | Sequence[str] | None, wanted: Collection[str]
) -> tuple[int, Rows]:
    """Return what `_read_text` does, of an array and a list of words."""
    if words is None:
        raise UsageError.at(
            "read_embeddings", "no words for a .npy file", "a word for each row", "pass words=..."
        )
    if isinstance(words, str | os.PathLike):
        lines = read_text(expanded(words)).removesuffix("\n").split("\n")
        words = [line.removesuffix("\r") for line in lines]
    try:
        table = np.lib.format.open_memmap(file, mode="r")
    except _DAMAGED as error:
        raise _wrong(str(file), f"cannot be read: {error}", "an array of .npy") from error
    if table.ndim != 2 or table.dtype.kind != "f" or len(table) != len(words):
        raise _wrong(
            str(file),
            f"an array {table.dtype} {list(table.shape)} for {len(words)} words",
            "real numbers [words, dimensions]",
        )
    rows: Rows = {}
    for number, word in enumerate(words):
        if word in wanted and word not in rows:
            row = np.array(table[number], np.float32)
            if not np.isfinite(row).all():
                raise _wrong(str(file), f"row {number} is not finite", "finite numbers")
            rows[word] = row
    return table.shape[1], rows


def _wrong(where: str, got: str, expected: str) -> DataError:
    return DataError.at(where, got, f"expected {expected}", "check the file")
