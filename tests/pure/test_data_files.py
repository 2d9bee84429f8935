"""Files of data, read: one table of what is in them and what they become, or what is said of them.

A row of READ reads by a reader of `vrt.data`, or a format of `load`, what is in files, and has the
text of the graphs (`graphs_as_text.py`) or the error. What is read is also written, and read again.
"""

from __future__ import annotations

import gzip
import io
import json  # noqa: F401 - rows use it
import re
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import refused, table
from tests.pure.graphs_as_text import as_text
from vertexrt.data import Dataset
from vertexrt.data.load import FORMATS, load
from vertexrt.data.records import real_pulls


def packed(text: str) -> bytes:
    return gzip.compress(text.encode())


def array(*several: Any, **named: Any) -> bytes:
    """Return a file of NumPy: .npy, or .npz where arrays have names."""
    file = io.BytesIO()
    (np.savez if named else np.save)(file, *several, **named)
    return file.getvalue()


def conllu(*rows: str) -> str:
    """Return lines of ten columns: ID, FORM, UPOS and HEAD are given."""
    lines = []
    for row in rows:
        number, form, upos, head = row.split()
        lines.append("\t".join([number, form, "_", upos, "_", "_", head, "dep", "_", "_"]))
    return "\n".join(lines) + "\n\n"


def labelled(count: int) -> str:
    """Return so many JSON lines, each with its number as the label."""
    lines = [f'{{"chain": 1, "pulls": {{"label": [{number}]}}}}\n' for number in range(count)]
    return "".join(lines)


def typed(sentence: dict[str, list[str | None]]) -> dict[str, Any]:
    """Return the record of a sentence whose words are of a type, and apart."""
    return {"types": {"token": len(sentence["word"])}, "pulls": {"token": sentence}}


KNOWN = vrt.data.Vocabulary(("<unk>", "film", "Good", "new"))

TREES = {
    "train.txt": "(4 (2 A) (3 (2 8\u00a01) (3 Film)))\n(2 (2 a) (0 bad))\n(1 (2 a) (1 film))\n",
    "dev.txt": "(3 (2 unheard) (3 film))\n(2 (2 a) (2 film))\n",
    "test.txt": "(0 bad)\n",
}
TEXTS = {
    "ptb.train.txt": " a b a \n\n c \n",
    "ptb.valid.txt": " b d \n",
    "ptb.test.txt": "a\r\nc c\r\n",
}
PENN = """( (S (NP (DT the) (NN cat))
     (VP (VBZ sleeps))
     (. .)))
(FRAG (X a\u00a0b c (Y d)))
"""
CONLL = "-DOCSTART- -X- O\n\nEU NNP I-ORG\nrejects VBZ O\n\nPeter NNP I-PER\r\n"
COMMENTED = b"# id 7\n#tag\tO\nNew York\tLOC\r\n# id 8\n\tO\nno\xc2\xa0break\t\n\n\t\n"
DAG = networkx.node_link_data(networkx.DiGraph([(0, 1)], id="first"), edges="edges")
TYPED_DAG = (
    '{"nodes": [{"id": 1, "type": "a", "x": 2}, {"id": 2, "type": "b"}], "links": '
    '[{"source": 1, "target": 2, "relation": "r", "w": 0.5}], "directed": true, "graph": {}}'
)
DIGITS = "7" * 5000
VECTORS = '{"v": [[[1, 2]], [[3, 4]], [[5, 6]]]}'
SENTENCE = conllu(
    "1-2 It's _ _", "1 It PRON 3", "2 's AUX 3", "3 fine ADJ 0", "3.1 x _ _", "4 _ PUNCT 3"
)
GLOVE = "film 1 2.5\ngood 3 -4e-1\nat home 9 9\nnever 7 8\nfilm 0 0\n"
NOT_UTF8 = b"\xef\xbb\xbf" + GLOVE.encode() + b"\xff\xfe 1 2\n"

# A call, and the text of the graphs, or the error; what does not print is here.
READ = table(__file__, "READ", "\n") | {
    # trees of sentiment
    'read("trees", TREES)': (
        "sentiment trees from ., 5 classes\n"
        "label: int32 []; word: <unk>, a, film, 8\xa01, bad\n"
        "train: label=2 word=a; label=2 word=8\xa01; label=3 word=film; label=3 "
        "(1 2); label=4 (0 3)\n"
        "train: label=2 word=a; label=0 word=bad; label=2 (0 1)\n"
        "train: label=2 word=a; label=1 word=film; label=1 (0 1)\n"
        "dev: label=2 word=<unk>; label=3 word=film; label=3 (0 1)\n"
        "dev: label=2 word=a; label=2 word=film; label=2 (0 1)\n"
        "test: label=0 word=bad"
    ),
    # trees among blank lines
    "read(\"trees\", '\\n  (1  a )  \\r\\n \\r\\n(2 (3 b)(4  c\\td) )\\n\\n')": (
        "sentiment trees from ., 5 classes\n"
        "label: int32 []; word: <unk>, a, b, c\td\n"
        "train: label=1 word=a\n"
        "train: label=3 word=b; label=4 word=c\td; label=2 (0 1)"
    ),
    # pairs
    "read(\"pairs\", 'a\\xa0b\\u2028c d\\tX <eos>\\r\\n\\t\\nd\\tY X\\n')": (
        "pairs of sentences from ., 4 classes\n"
        "label: <unk>, <eos>, X, Y; said: <unk>, <eos>, X, Y; word: <unk>, d, a\xa0b\u2028c\n"
        "relations: before, start, source\n"
        "train: encoder word=a\xa0b\u2028c; encoder word=d (0/before); decoder label=X "
        "said=<eos> (1/start 0/source 1/source); decoder label=<eos> said=X "
        "(2/before 0/source 1/source)\n"
        "train: encoder word=d; decoder label=Y said=<eos> (0/start 0/source); "
        "decoder label=X said=Y (1/before 0/source); decoder label=<eos> "
        "said=X (2/before 0/source)"
    ),
    # trees of Penn
    "read(\"read_trees\", {'wsj.mrg.gz': packed(PENN)})": (
        "label: <unk>, DT, NN, NP, VBZ, VP, ., S, Y, X, FRAG; word: <unk>, "
        "the, cat, sleeps, ., d, a\xa0b, c\n"
        "label=DT word=the; label=NN word=cat; label=NP (0 1); label=VBZ "
        "word=sleeps; label=VP (3); label=. word=.; label=S (2 4 5)\n"
        "label=Y word=d; word=a\xa0b; word=c; label=X (1 2 0); label=FRAG (3)"
    ),
    # labels of more digits than Python reads
    'read("read_trees", f"({DIGITS} a)\\n")': (
        f"label: <unk>, {DIGITS}; word: <unk>, a\nlabel={DIGITS} word=a"
    ),
    # columns with a separator and comments
    (
        'read("read_conll", COMMENTED, columns={"word": 0, '
        '"tag": 1}, separator="\\t", comment="# ")'
    ): (
        "tag: <unk>, O, LOC; word: <unk>, #tag, New York, no\xa0break\n"
        "tag=O word=#tag; tag=LOC word=New York (0); tag=O (1); word=no\xa0break (2)"
    ),
    # words of any text
    (
        'read("read_jsonl", \'{"chain": 7, '
        '"pulls": {"w": ["\\\\ud800", "a\\\\udcff\\\\u0000", "\\\\u009b\\\\u202e", "\\'
        '\\udb40\\\\udc01", "caf\\\\u00e9\\\\u00a0\\\\u2028", "\\\\u007f\\\\n", null]}}\')'
    ): (
        "w: <unk>, \ud800, a\udcff\x00, \x9b\u202e, \U000e0001, caf\xe9\xa0\u2028, \x7f\n"
        "\n"
        "w=\ud800; w=a\udcff\x00 (0); w=\x9b\u202e (1); w=\U000e0001 (2); w=caf\xe9\xa0\u2028 (3); "
        "w=\x7f\n"
        " (4); (5)"
    ),
}
# Lines around the wrong one.
FRAMES = {
    "WRONG_TREES": ("trees", "(1 a)\n{}\n(1 a)\n"),
    "WRONG_JSONL": ("read_jsonl", '{{"chain": 1, "pulls": {{"x": [1]}}}}\n\n{}'),
}
for _name, (_reader, _frame) in FRAMES.items():
    for _line, _said in table(__file__, _name).items():
        READ[f"read({_reader!r}, {_frame.format(_line)!r})"] = _said
WRONG_CALLS = table(__file__, "WRONG_CALLS")
IS_ERROR = re.compile(r"\w+Error: \[")
WRITTEN = [
    code
    for code, text in READ.items()
    # The last ones have relations at one vertex, which come in another order.
    if not IS_ERROR.match(text) and not re.match("read.{2}(read_embeddings|tagged|pairs)", code)
]


def read(reader: str, content: Any, **options: Any) -> Any:
    """Write files into the current folder and read them."""
    is_format = not reader.startswith("read_")
    name = f"train{FORMATS[reader].endings[0]}" if is_format else "x"
    files = content if isinstance(content, dict) else {name: content}
    for file, given in files.items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(given if isinstance(given, bytes) else given.encode())
    path = options.pop("path", Path() if is_format else next(iter(files), None))
    if is_format:
        return load(path, format=reader, **options)
    if reader == "read_embeddings":
        options = {"vocabulary": KNOWN, "init": vrt.init.constant(0.5), **options}
    return getattr(vrt.data, reader)(path, **options)


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", READ)
def test_what_is_read_or_said(code: str) -> None:
    """Errors say where the fault is; their class says of what: of arguments, graphs or data."""
    if IS_ERROR.match(READ[code]):
        refused(lambda: eval(code), READ[code])
    else:
        assert as_text(eval(code)) == READ[code]


@pytest.mark.parametrize("code", WRITTEN)
def test_what_is_read_can_be_written_and_read(code: str) -> None:
    found = eval(code)
    dtype = "float64" if "float64" in READ[code] else "float32"
    for batch in found.splits.values() if isinstance(found, Dataset) else [found.batch]:
        vrt.data.write_jsonl("x.gz", batch, found.vocabularies)
        known = {pull: found.vocabularies.get(pull) for pull in {**batch.pulls, **batch.edge_pulls}}
        reals = real_pulls(batch)
        again = vrt.data.read_jsonl("x.gz", vocabularies=known, reals=reals, dtype=dtype)
        assert as_text(again) == as_text(vrt.data.Examples(batch, again.vocabularies))


@pytest.mark.parametrize("code", WRONG_CALLS)
def test_calls_that_are_refused(code: str) -> None:
    refused(lambda: eval(code), WRONG_CALLS[code])
