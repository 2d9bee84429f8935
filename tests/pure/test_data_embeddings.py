"""Pretrained embeddings: the rows of a vocabulary's words, from text and from arrays."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import text_of
from vertexrt.errors import VertexrtError

WORDS = vrt.data.Vocabulary(("<unk>", "film", "Good", "new"))
GLOVE = "film 1 2.5\ngood 3 -4e-1\nat home 9 9\nnever 7 8\nfilm 0 0\n"


@pytest.mark.parametrize("text", [GLOVE, f"5 2\n{GLOVE}", GLOVE.replace("\n", " \r\n")])
def test_text_of_glove_and_word2vec(text: str, tmp_path: Path) -> None:
    path = tmp_path / "glove.txt.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode() + b"\xff\xfe 1 2\n"))
    exact = vrt.data.read_embeddings(path, WORDS, vrt.init.constant(0.5))
    assert exact.matrix.tolist() == [[0.5, 0.5], [1, 2.5], [0.5, 0.5], [0.5, 0.5]]
    assert exact.share == pytest.approx(1 / 3)
    found = vrt.data.read_embeddings(path, WORDS, vrt.init.normal(1.0), lower=True, seed=3)
    assert found.matrix.dtype == np.float32
    assert found.matrix[1:3].tolist() == [[1, 2.5], [3, np.float32(-0.4)]]
    assert found.share == pytest.approx(2 / 3)
    again = vrt.data.read_embeddings(path, WORDS, vrt.init.normal(1.0), lower=True, seed=3)
    other = vrt.data.read_embeddings(path, WORDS, vrt.init.normal(1.0), lower=True, seed=4)
    assert np.array_equal(again.matrix, found.matrix)
    assert not np.array_equal(other.matrix[3], found.matrix[3])


def test_an_array_with_a_list_of_words(tmp_path: Path) -> None:
    table = np.arange(6, dtype=np.float64).reshape(3, 2)
    np.save(tmp_path / "x.npy", table)
    (tmp_path / "words.txt").write_text("new\nat no\u00a0home\r\nfilm\n", "utf-8")
    for words in (["new", "never", "film"], tmp_path / "words.txt"):
        found = vrt.data.read_embeddings(tmp_path / "x.npy", WORDS, vrt.init.zeros, words=words)
        assert found.matrix.tolist() == [[0, 0], [4, 5], [0, 0], [0, 1]]
        assert found.share == pytest.approx(2 / 3)


def several() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.ones((1, 2)))
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("x.txt", b"a 1 2\nfilm 1\n", {}, "line 2] 1 numbers, 1 of them finite; expected 2 finite"),
        ("x.txt", b"a 1 2\nfilm 1 b\n", {}, "line 2] '1 b'; expected 2 finite numbers"),
        ("x.txt", b"film 1 inf\n", {}, "line 1] 2 numbers, 1 of them finite"),
        ("x.txt", b"2 3\n", {}, "no words; expected a word and its numbers"),
        ("x.txt.gz", b"film 1", {}, "cannot be read"),
        ("x.txt", b"film 1", {"words": ["film"]}, "words for a text file"),
        ("x.npy", b"film 1", {"words": ["film"]}, "cannot be read"),
        ("x.npy", b"film 1", {}, "no words for a .npy file"),
        ("x.npy", b"\x93NUMPY\x01\x00\x02\x00((", {"words": ["film"]}, "cannot be read: "),
        ("x.npy", b"PK\x03\x04", {"words": ["film"]}, "cannot be read: "),
        ("x.npy", several(), {"words": ["film"]}, "cannot be read: "),
    ],
)
def test_files_that_do_not_fit(
    name: str, content: bytes, options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert expected in refusal(tmp_path / name, **options)


def refusal(path: Path, **options: Any) -> str:
    """Return the text of the error."""
    return text_of(
        VertexrtError,
        lambda: vrt.data.read_embeddings(path, WORDS, vrt.init.zeros, **options),
    )


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    for table, expected in (
        (np.zeros((2, 2)), "an array float64 [2, 2] for 1 words"),
        (np.zeros((1, 2), int), "an array int64 [1, 2] for 1 words"),
        (np.array([[np.nan]]), "row 0 is not finite"),
    ):
        np.save(tmp_path / "x.npy", table)
        assert expected in refusal(tmp_path / "x.npy", words=["film"])
