"""Files of data, read: one table of what is in them and what they become, or what is said of them.

READ has by reader of `vrt.data`, or format of `load`, rows: the content of files, the text of the
graphs (`graphs_as_text.py`) or how the error begins, and options. Tables of mistakes have a frame
of their own: lines around the wrong one. What is read is also written, and read again.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import text_of
from tests.pure.graphs_as_text import as_text
from vertexrt.data import Dataset
from vertexrt.data.load import FORMATS, load
from vertexrt.data.records import real_pulls
from vertexrt.errors import DataError, GraphError, UsageError, VertexrtError


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
SENTENCES = (
    "text from ., 5 classes\n"
    "label: <unk>, <eos>, a, b, c; word: <unk>, <eos>, a, b, c\n"
    "train: label=a word=<eos>; label=b word=a (0); label=a word=b (1); label=<eos> word=a (2)\n"
    "train: label=c word=<eos>; label=<eos> word=c (0)"
)
DIGITS = "7" * 5000
VECTORS = '{"v": [[[1, 2]], [[3, 4]], [[5, 6]]]}'
SENTENCE = conllu(
    "1-2 It's _ _", "1 It PRON 3", "2 's AUX 3", "3 fine ADJ 0", "3.1 x _ _", "4 _ PUNCT 3"
)
GLOVE = "film 1 2.5\ngood 3 -4e-1\nat home 9 9\nnever 7 8\nfilm 0 0\n"
NOT_UTF8 = b"\xef\xbb\xbf" + GLOVE.encode() + b"\xff\xfe 1 2\n"

READ: dict[str, dict[str, Any]] = {
    "trees": {
        "trees of sentiment": (
            TREES,
            "sentiment trees from ., 5 classes\n"
            "label: int32 []; word: <unk>, a, film, 8\xa01, bad\n"
            "train: label=2 word=a; label=2 word=8\xa01; label=3 word=film; label=3 (1 2); "
            "label=4 (0 3)\n"
            "train: label=2 word=a; label=0 word=bad; label=2 (0 1)\n"
            "train: label=2 word=a; label=1 word=film; label=1 (0 1)\n"
            "dev: label=2 word=<unk>; label=3 word=film; label=3 (0 1)\n"
            "dev: label=2 word=a; label=2 word=film; label=2 (0 1)\n"
            "test: label=0 word=bad",
        ),
        "trees with letters of both cases": (
            "(2 (1 A) (3 a))\n(1 A)",
            "sentiment trees from ., 5 classes\n"
            "label: int32 []; word: <unk>, A, a\n"
            "train: label=1 word=A; label=3 word=a; label=2 (0 1)\n"
            "train: label=1 word=A",
            "lower=False",
        ),
        "trees of frequent words": (
            "(2 (1 A) (3 a))\n(1 b)",
            "sentiment trees from ., 5 classes\n"
            "label: int32 []; word: <unk>, a\n"
            "train: label=1 word=a; label=3 word=a; label=2 (0 1)\n"
            "train: label=1 word=<unk>",
            "min_count=2",
        ),
        "trees of two classes": (
            "(4 (2 a) (3 b))\n(2 (2 a) (0 b))\n(1 a)",
            "sentiment trees from ., 2 classes\n"
            "label: int32 []; word: <unk>, a, b\n"
            "train: word=a; label=1 word=b; label=1 (0 1)\n"
            "train: label=0 word=a",
            "binary=True",
        ),
        "trees as pyramids": (
            "(3 (0 (0 a) (0 b)) (0 a))\n(1 d)\n",
            "sentiment trees from ., 5 classes\n"
            "label: int32 []; word: <unk>, a\n"
            "train: word=a; word=<unk>; word=a; (0 1); (1 2); label=3 (3 4)\n"
            "train: label=1 word=<unk>",
            "pyramid=True, min_count=2",
        ),
        "trees among blank lines": (
            "\n  (1  a )  \r\n \r\n(2 (3 b)(4  c\td) )\n\n",
            "sentiment trees from ., 5 classes\n"
            "label: int32 []; word: <unk>, a, b, c\td\n"
            "train: label=1 word=a\n"
            "train: label=3 word=b; label=4 word=c\td; label=2 (0 1)",
        ),
        "trees, packed, in a folder of that name": (
            {"trees/train.txt.gz": packed("\ufeff(0 a)")},
            "sentiment trees from trees, 5 classes\n"
            "label: int32 []; word: <unk>, a\n"
            "train: label=0 word=a",
        ),
        "trees that are all neutral": (
            "(2 (3 a) (2 b))\n",
            "[train.txt] neutral trees only; expected at least one tree to learn from;",
            "binary=True",
        ),
        "no tree": ("\n \n", "[train.txt] no tree; expected at least one tree to learn from;"),
        "no file of train": (
            {"dev.txt": "", "test.txt": ""},
            "[.] no file for the split 'train' (the folder holds dev.txt, test.txt); expected "
            "*train.txt, or .gz; add it or give another folder.",
        ),
        "trees that are not UTF-8": (
            b"(1 a)\n(1 caf\xe9)\n",
            "[train.txt, line 2, byte 7] the byte 0xe9; expected UTF-8 text; convert the file.",
        ),
    },
    "text": {
        "sentences": (
            TEXTS,
            "text from ., 5 classes\n"
            "label: <unk>, <eos>, a, b, c; word: <unk>, <eos>, a, b, c\n"
            "train: label=a word=<eos>; label=b word=a (0); label=a word=b (1); label=<eos> "
            "word=a (2)\n"
            "train: label=c word=<eos>; label=<eos> word=c (0)\n"
            "dev: label=b word=<eos>; label=<unk> word=b (0); label=<eos> word=<unk> (1)\n"
            "test: label=a word=<eos>; label=<eos> word=a (0)\n"
            "test: label=c word=<eos>; label=c word=c (0); label=<eos> word=c (1)",
        ),
        "sentences that say where they end": (" a b a <eos>\n <eos>\n c <eos>\n", SENTENCES),
        "sentences that end within a line": ("a\tb a <eos> c\r\n", SENTENCES),
        "pieces that hold a sentence": ("a b a\nc\n", SENTENCES, "pieces=4"),
        "pieces that go on": (
            "a b a\nc\n",
            "text from ., 5 classes\n"
            "label: <unk>, <eos>, a, b, c; word: <unk>, <eos>, a, b, c\n"
            "train: label=a word=<eos>; label=b word=a (0); label=a word=b (1); label=<eos> "
            "word=a (2); label=c word=<eos> (3)\n"
            "train: label=<eos> word=c",
            "pieces=5",
        ),
        "streams go on from piece to piece": (
            "a b c d e f g\n",
            "text from ., 9 classes\n"
            "label: <unk>, <eos>, a, b, c, d, e, f, g; word: <unk>, <eos>, a, b, c, d, e, f, "
            "g\n"
            "train: label=a word=<eos>; label=b word=a (0); label=c word=b (1)\n"
            "train: label=e word=d; label=f word=e (0); label=g word=f (1)\n"
            "train: label=d word=c\n"
            "train: label=<eos> word=g",
            "pieces=3, streams=2",
        ),
        "sentences for two layers": (
            "a b\na\n",
            "text from ., 3 classes\n"
            "label: <unk>, <eos>, a; word: <unk>, <eos>, a\n"
            "relations: below, before\n"
            "train: layers.0 word=<eos>; layers.0 word=a (0/before); layers.0 word=<unk> "
            "(1/before); layers.1 (0/below); layers.1 (1/below 3/before); layers.1 (2/below "
            "4/before); next label=a (3/below); next label=<unk> (4/below); next label=<eos> "
            "(5/below)\n"
            "train: layers.0 word=<eos>; layers.0 word=a (0/before); layers.1 (0/below); "
            "layers.1 (1/below 2/before); next label=a (2/below); next label=<eos> (3/below)",
            "layers=2, min_count=2",
        ),
        "packed text that is cut": (
            {"train.txt.gz": b"\x1f\x8b\x08 cut"},
            "[train.txt.gz] cannot be read: ",
        ),
        "no word": (
            "\n \n",
            "[train.txt] no word; expected at least one sentence; add text or give another folder.",
        ),
        "no pieces": ("a\n", "[data] pieces 0; expected 1 or more; correct it.", "pieces=0"),
        "streams of sentences": (
            "a\n",
            "[data] 2 streams of sentences; expected pieces; set pieces.",
            "streams=2",
        ),
        "streams are not divided": (
            {"my.txt": "a b\n" * 40},
            "[data] a share of my.txt for dev and test, and streams of text;",
            'pieces=5, streams=2, path="my.txt"',
        ),
        "streams of a file that is not divided": (
            {"my.txt": "a\n" * 3},
            "text from my.txt, 3 classes\n"
            "label: <unk>, <eos>, a; word: <unk>, <eos>, a\n"
            "train: label=a word=<eos>; label=<eos> word=a (0); label=a word=<eos> (1)\n"
            "train: label=<eos> word=a; label=a word=<eos> (0); label=<eos> word=a (1)",
            'pieces=5, streams=2, path="my.txt", dev="0", test="0"',
        ),
    },
    "tagged": {
        "tagged words and their letters": (
            "Ann|PER saw|O\n",
            "tagged sentences from ., 2 classes\n"
            "label: O, PER; letter: <unk>, n, A, s, a, w; word: <unk>, ann, saw\n"
            "relations: before, word, left, right, forth, back\n"
            "train: word word=ann (10/forth 14/back); word word=saw (13/forth 17/back); left "
            "(0/word); left (2/before 1/word); right (5/before 0/word); right (1/word); tag "
            "label=PER (2/left 4/right); tag label=O (3/left 5/right); forth letter=A; forth "
            "letter=n (8/before); forth letter=n (9/before); forth letter=s; forth letter=a "
            "(11/before); forth letter=w (12/before); back letter=A (15/before); back letter=n "
            "(16/before); back letter=n; back letter=s (18/before); back letter=a (19/before); "
            "back letter=w",
        ),
        "a tag that is not known is no label": (
            {"train.txt": "saw|O\n", "dev.txt": "Rome|LOC saw|O\n"},
            "tagged sentences from ., 1 classes\n"
            "label: O; word: <unk>, saw\n"
            "relations: before, word, left, right, after, scores\n"
            "train: word word=saw; left (0/word); right (0/word); tag label=O (4/scores); "
            "scores (1/left 2/right)\n"
            "dev: word word=<unk>; word word=saw; left (0/word); left (2/before 1/word); right "
            "(5/before 0/word); right (1/word); tag (8/scores); tag label=O (6/before "
            "9/scores); scores (2/left 4/right 9/after); scores (3/left 5/right)",
            "letters=False, crf=True",
        ),
        "a tagged word without letters reads none": (
            {"train.conll": "Rome\tLOC\n\tO\n\nok\tO\n\tO\n"},
            "tagged sentences from ., 2 classes\n"
            "label: LOC, O; letter: <unk>, o, R, m, e, k; word: <unk>, , rome, ok\n"
            "relations: before, word, left, right, forth, back\n"
            "train: word word=rome (11/forth 12/back); word word=; left (0/word); left "
            "(2/before 1/word); right (5/before 0/word); right (1/word); tag label=LOC (2/left "
            "4/right); tag label=O (3/left 5/right); forth letter=R; forth letter=o "
            "(8/before); forth letter=m (9/before); forth letter=e (10/before); back letter=R "
            "(13/before); back letter=o (14/before); back letter=m (15/before); back letter=e\n"
            "train: word word=ok (9/forth 10/back); word word=; left (0/word); left (2/before "
            "1/word); right (5/before 0/word); right (1/word); tag label=O (2/left 4/right); "
            "tag label=O (3/left 5/right); forth letter=o; forth letter=k (8/before); back "
            "letter=o (11/before); back letter=k",
            'separator="tab"',
        ),
        "a word without a tag": (
            "Ann|PER\nsaw\n",
            "[train.txt, line 2] 'saw' with 1 parts; expected word|label; correct the word.",
        ),
        "no tagged sentence": (
            "\n",
            "[train.txt] no sentence; expected at least one; add sentences.",
        ),
        "a tagged column that is no number": (
            "a b\n",
            "[data] the column 'first'; expected its number, from 0, or from the right, -1;",
            'word="first"',
        ),
    },
    "pairs": {
        "pairs": (
            "a\u00a0b\u2028c d\tX <eos>\r\n\t\nd\tY X\n",
            "pairs of sentences from ., 4 classes\n"
            "label: <unk>, <eos>, X, Y; said: <unk>, <eos>, X, Y; word: <unk>, d, a\xa0b\u2028"
            "c\n"
            "relations: before, start, source\n"
            "train: encoder word=a\xa0b\u2028"
            "c; encoder word=d (0/before); decoder label=X said=<eos> (1/start 0/source "
            "1/source); decoder label=<eos> said=X (2/before 0/source 1/source)\n"
            "train: encoder word=d; decoder label=Y said=<eos> (0/start 0/source); decoder "
            "label=X said=Y (1/before 0/source); decoder label=<eos> said=X (2/before 0/source)",
        ),
        "a pair of one sentence": (
            "a b\tX\u2028\nno translation\n",
            "[train.tsv, line 2] 1 sentences, or one without words; source<TAB>target; correct it.",
        ),
        "a pair without words": (
            "a b\t \n",
            "[train.tsv, line 1] 2 sentences, or one without words; source<TAB>target; correct it.",
        ),
        "no pair": ("\n\t\n", "[train.tsv] no pair; expected at least one; add pairs."),
    },
    "read_trees": {
        "trees of Penn": (
            {"wsj.mrg.gz": packed(PENN)},
            "label: <unk>, DT, NN, NP, VBZ, VP, ., S, Y, X, FRAG; word: <unk>, the, cat, "
            "sleeps, ., d, a\xa0b, c\n"
            "label=DT word=the; label=NN word=cat; label=NP (0 1); label=VBZ word=sleeps; "
            "label=VP (3); label=. word=.; label=S (2 4 5)\n"
            "label=Y word=d; word=a\xa0b; word=c; label=X (1 2 0); label=FRAG (3)",
        ),
        "labels that are numbers": (
            "(7 a)\n(12 b)",
            "label: int32 []; word: <unk>, a, b\nlabel=7 word=a\nlabel=12 word=b",
        ),
        "a bracket that is not closed": (
            "(S (NP a)",
            "[x, line 1] 1 brackets of the tree that begins here are never closed;",
        ),
        "a word outside": (
            "(S a)\n b",
            "[x, line 2, column 2] 'b' stands outside of a tree; expected '(';",
        ),
        "a bracket that closes nothing": (
            "(S a))",
            "[x, line 1, column 6] ')' stands outside of a tree; expected '(';",
        ),
        "a bracket with a label alone": (
            "(S (NP))",
            "[x, line 1, column 7] a bracket with NP in it alone; expected '(label word)' or",
        ),
        "an empty bracket": (
            "(S (NP a) ())",
            "[x, line 1, column 12] a bracket with nothing in it alone;",
        ),
        "no tree": ("\n", "[x] no graph; expected at least one; add examples."),
        "what is no path": ("", "[data] 3; expected a path; give a file or folder.", "path=3"),
        "labels that are too large": (
            "(2200000000 a)",
            "[x, line 1] value 0 of the pull 'label' is 2200000000; expected 0..2147483646, or",
        ),
        "labels of more digits than Python reads": (
            f"({DIGITS} a)\n",
            f"label: <unk>, {DIGITS}; word: <unk>, a\nlabel={DIGITS} word=a",
        ),
    },
    "brackets": {
        "labels that are numbers are words where training had words": (
            {"train.mrg": "(S (7 a))\n", "dev.mrg": "(7 a)\n"},
            "graphs from ., 2 classes\n"
            "label: 7, S; word: <unk>, a\n"
            "train: label=7 word=a; label=S (0)\n"
            "dev: label=7 word=a",
            'word="word"',
        ),
    },
    "read_conll": {
        "sentences in columns": (
            CONLL,
            "tag: I-ORG, I-PER, O; word: <unk>, EU, rejects, Peter\n"
            "tag=I-ORG word=EU; tag=O word=rejects (0)\n"
            "tag=I-PER word=Peter",
            'columns={"word": 0, "tag": -1}, labels=["tag"]',
        ),
        "columns with a separator and comments": (
            COMMENTED,
            "tag: <unk>, O, LOC; word: <unk>, #tag, New York, no\xa0break\n"
            "tag=O word=#tag; tag=LOC word=New York (0); tag=O (1); word=no\xa0break (2)",
            'columns={"word": 0, "tag": 1}, separator="\\t", comment="# "',
        ),
        "a column that there is not": (
            CONLL,
            "[x, line 3] 3 columns; 'tag' is in column 3; correct the line.",
            'columns={"word": 0, "tag": 3}',
        ),
        "a separator of nothing": (
            "",
            "[read_conll] separator=''; expected text of a line, or None; correct it.",
            'columns={"word": 0}, separator=""',
        ),
        "a comment of two lines": (
            "",
            "[read_conll] comment='a\\n'; expected text of a line, or None; correct it.",
            'columns={"word": 0}, comment="a\\n"',
        ),
        "a comment that is a number": (
            "",
            "[read_conll] comment=3; expected text of a line, or None; correct it.",
            'columns={"word": 0}, comment=3',
        ),
    },
    "read_tagged": {
        "tagged sentences as graphs of types": (
            "Rome|I-LOC is|O\n\na|b|O\n",
            "label: <unk>, O, I-LOC; word: <unk>, Rome, is, a|b\n"
            "relations: \n"
            "token label=I-LOC word=Rome; token label=O word=is\n"
            "token label=O word=a|b",
            "record=typed",
        ),
        "a tag without a word": (
            "|O\n",
            "[x, line 1] '|O' with 1 parts; expected word|label; correct the word.",
        ),
    },
    "read_conllu": {
        "dependency trees": (
            "# text = It's fine _\n# sent_id = s1 \n" + SENTENCE + conllu("1 Go VERB 0"),
            "form: <unk>, It, 's, fine, _, Go; lemma: int32 []; upos: <unk>, PRON, AUX, ADJ, "
            "PUNCT, VERB\n"
            "#s1 form=It upos=PRON; form='s upos=AUX; form=fine upos=ADJ (0 1 3); form=_ "
            "upos=PUNCT\n"
            "form=Go upos=VERB",
            'pulls=["form", "upos", "lemma"]',
        ),
        "a head that is no word": (
            conllu("1 a X 2"),
            "[x, line 1] word 1 has the head '2'; expected 0 or a word of the sentence, 1..1;",
        ),
        "heads in a cycle": (
            "\n" + conllu("1 a X 2", "2 b X 1"),
            "[x, line 2] the vertices 0 -> 1 -> 0 form a cycle of 2, each with the next as its",
        ),
        "three columns": (
            "1\ta\tb",
            "[x, line 1] 3 columns, the first is '1'; expected 10, and the word's number 1",
        ),
        "eleven columns": (
            f"{conllu('1 a X 0')[:-2]}\tx",
            "[x, line 1] 11 columns, the first is '1'; expected 10, and the word's number 1",
        ),
        "no first word": (
            conllu("2 a X 0"),
            "[x, line 1] 10 columns, the first is '2'; expected 10, and the word's number 1",
        ),
        "a negative number": (
            conllu("-1 a X 0"),
            "[x, line 1] 10 columns, the first is '-1'; expected 10, and the word's number 1",
        ),
        "sentences that run together": (
            conllu("1 a X 0", "1 b X 0"),
            "[x, line 2] 10 columns, the first is '1'; expected 10, and the word's number 2 "
            "first; correct the line, or put a blank line before each sentence.",
        ),
        "a number that is left out": (
            conllu("1 a X 0", "3 b X 1"),
            "[x, line 2] 10 columns, the first is '3'; expected 10, and the word's number 2 "
            "first; correct the line, or put a blank line before each sentence.",
        ),
        "a column that CoNLL-U has not as a pull": (
            "",
            "[read_conllu] no column 'head'; the columns are form, lemma, upos, xpos, feats,",
            'pulls=["head"]',
        ),
        "columns of CoNLL-U as text": (
            "",
            "[read_conllu] pulls='form'; expected a list of form, lemma, upos, xpos, feats,",
            'pulls="form"',
        ),
    },
    "conllu": {
        "a folder as Universal Dependencies name it": (
            {
                "en_ewt-ud-train.conllu": conllu("1 a X 0"),
                "en_ewt-ud-dev.conllu": conllu("1 b Y 0"),
            },
            "graphs from ., 1 classes\n"
            "label: dep; upos: <unk>, X; word: <unk>, a\n"
            "train: label=dep upos=X word=a\n"
            "dev: label=dep upos=<unk> word=<unk>",
            'label="deprel"',
        ),
    },
    "table": {
        "a table with tabs": (
            {"train.tsv": 'text\tn\n"a\t b"\t1\n'},
            "graphs from ., 0 classes\n"
            "n: int32 []; word: <unk>, a, b\n"
            "train: word=a; n=1 word=b (0)",
        ),
        "a table": (
            {"train.csv": 'id,text,liked,n,y\na,"good\n film",yes,1,\n\nb,"x ""y""",no,2,.5e1\n'},
            "graphs from ., 2 classes\n"
            'label: no, yes; n: int32 []; word: <unk>, good, film, x, "y"; y: float32 []\n'
            "train: #a word=good; label=yes n=1 word=film (0)\n"
            'train: #b word=x; label=no n=2 word="y" y=5.0 (0)',
            'label="liked"',
        ),
        "a table without texts, divided by tabs": (
            "a\tb\n1\tu\n2\tv\n",
            "graphs from ., 0 classes\na: int32 []; b: <unk>, u, v\ntrain: a=1 b=u\ntrain: a=2 b=v",
            'separator="\\t"',
        ),
        "no other letter is an i of inf": (
            "text,y\na,\u0131nf\n",
            "graphs from ., 0 classes\n"
            "word: <unk>, a; y: <unk>, \u0131nf\n"
            "train: word=a y=\u0131nf",
        ),
        "a row of a table that is short": (
            "text,y\na,1\nb\n",
            "[train.csv, line 3] a row of 1 columns; the first row names 2: text, y;",
        ),
        "a row of a table without a word": (
            "text,y\na,1\n ,1\n",
            "[train.csv, line 3] no word in 'text'; expected one; remove the row.",
        ),
        "a table with a quote that never ends": (
            'text,y\n"a,1\nb,1\n',
            "[train.csv, line 3] unexpected end of data; expected a row of a table; correct it.",
        ),
    },
    "read_jsonl": {
        "json lines": (
            '{"id": "first", "children": [[], [], [0, 1]], "pulls": {"word": ["good", "film", '
            'null], "label": ["+", null, "+"], "x": [1, 0.5, null]}}\n'
            "\n"
            '{"id": "first", "children": [[1], [], []], "pulls": {"word": ["good", "film", '
            'null], "label": ["+", null, "+"], "x": [2, 3, 4]}}',
            "label: +; word: <unk>, good, film; x: float32 []\n"
            "#first label=+ word=good x=1.0; word=film x=0.5; label=+ (0 1)\n"
            "#first label=+ word=good x=2.0 (1); word=film x=3.0; label=+ x=4.0",
            'labels=["label"]',
        ),
        "json lines, only frequent words": (
            '{"chain": 3, "pulls": {"word": ["a", "b", "b"]}}',
            "word: <unk>, b\nword=<unk>; word=b (0); word=b (1)",
            "min_count=2",
        ),
        "forms of one graph, packed, with a mark": (
            {
                "x.gz": packed(
                    '\ufeff{"children": [[], [0], [1]], "pulls": VALUES}\r\n'
                    '{"vertices": 3, "edges": [[0, 1], [1, 2]], "pulls": VALUES}\r\n'
                    '{"chain": 3, "pulls": VALUES}'.replace("VALUES", VECTORS)
                )
            },
            "v: float64 [1, 2]\n"
            "v=[[1. 2.]]; v=[[3. 4.]] (0); v=[[5. 6.]] (1)\n"
            "v=[[1. 2.]]; v=[[3. 4.]] (0); v=[[5. 6.]] (1)\n"
            "v=[[1. 2.]]; v=[[3. 4.]] (0); v=[[5. 6.]] (1)",
            "dtype=np.float64",
        ),
        "types and relations": (
            '{"types": {"letter": 3, "word": 2}, "relations": [{"child": "letter", "relation": '
            '"before", "parent": "letter", "pairs": [[0, 1]]}, {"child": "letter", "relation": '
            '"spelling", "parent": "word", "pairs": [[1, 0], [2, 1]]}, {"child": "word", '
            '"relation": "next", "parent": "word", "pairs": []}], "pulls": {"letter": '
            '{"letter": ["a", "b", "a"]}, "word": {"tag": [1, null], "v": [[1, 2], [3, 4]]}}}\n'
            '{"types": {"word": 1}, "pulls": {"word": {"tag": [4], "v": [[5, 6]]}}}',
            "letter: <unk>, a, b; tag: int32 []; v: float32 [2]\n"
            "relations: before, spelling, next\n"
            "letter letter=a; letter letter=b (0/before); letter letter=a; word tag=1 v=[1. "
            "2.] (1/spelling); word v=[3. 4.] (2/spelling)\n"
            "word tag=4 v=[5. 6.]",
        ),
        # Edges come in another order than that of children: their values go with them.
        "values of edges": (
            '{"vertices": 3, "edges": [[1, 2], [0, 1], [0, 2]], "edge_pulls": {"w": [[1, 2], '
            '[3, 4], [5, 6]], "kind": ["a", null, "b"]}}\n'
            '{"chain": 1}\n'
            '{"children": [[], [-1, 0]], "edge_pulls": {"w": [null, [7, 8]], "kind": [null, '
            '"a"]}}',
            "kind: <unk>, a, b; w: float32 [2]\n"
            "-; (0/w=[3. 4.]); (1/kind=a/w=[1. 2.] 0/kind=b/w=[5. 6.])\n"
            "-\n"
            "-; (none 0/kind=a/w=[7. 8.])",
        ),
        "values of edges of relations": (
            '{"types": {"a": 2, "b": 2}, "relations": [{"child": "a", "relation": "x", '
            '"parent": "b", "pairs": [[0, 1], [1, 0]], "edge_pulls": {"w": [1.5, 2.5], "kind": '
            '["p", "q"]}}, {"child": "a", "relation": "y", "parent": "b", "pairs": [[1, 1]]}, '
            '{"child": "a", "relation": "z", "parent": "a", "pairs": [[0, 1]], "edge_pulls": '
            '{"w": [7.0]}}]}\n'
            '{"types": {"a": 1, "b": 1}, "relations": [{"child": "a", "relation": "x", '
            '"parent": "b", "pairs": []}]}',
            "kind: <unk>, p, q; w: float32 []\n"
            "relations: x, y, z\n"
            "a; a (0/z/w=7.0); b (1/x/kind=q/w=2.5); b (0/x/kind=p/w=1.5 1/y)\n"
            "a; b",
        ),
        "words of any text": (
            '{"chain": 7, "pulls": {"w": ["\\ud800", "a\\udcff\\u0000", "\\u009b\\u202e", '
            '"\\udb40\\udc01", "caf\\u00e9\\u00a0\\u2028", "\\u007f\\n", null]}}',
            "w: <unk>, \ud800, a\udcff\x00, \x9b\u202e, \U000e0001, caf\xe9\xa0\u2028"
            ", \x7f\n"
            "\n"
            "w=\ud800; w=a\udcff\x00 (0); w=\x9b\u202e (1); w=\U000e0001 (2); "
            "w=caf\xe9\xa0\u2028"
            " (3); w=\x7f\n"
            " (4); (5)",
        ),
        "real numbers that are whole": (
            '{"chain": 3, "pulls": {"x": [-1, 2, null], "y": [null, null, null]}}',
            "x: float32 []; y: float32 []\nx=-1.0; x=2.0 (0); (1)",
            'reals=["x", "y"]',
        ),
        "words of no vocabulary": (
            '{"chain": 1, "pulls": {"w": ["a"]}}',
            "[x] the pull 'w' has words; vocabularies were given for v;",
            'vocabularies={"v": KNOWN}',
        ),
        "a label that is not known": (
            '{"chain": 1, "pulls": {"w": ["+"]}}\n\n{"chain": 2, "pulls": {"w": ["+", "-"]}}',
            "[x, line 3] value 1 of the pull 'w' is '-'; the labels are +; correct it.",
            'vocabularies={"w": vrt.data.Vocabulary.of_labels("+")}',
        ),
        "words of a vocabulary, and new ones": (
            '{"chain": 2, "pulls": {"word": ["film", "old"], "label": ["+", null]}}',
            "label: <unk>, +; word: <unk>, film, Good, new\nlabel=+ word=film; word=<unk> (0)",
            'vocabularies={"word": KNOWN, "label": None}',
        ),
        "the largest number, and that of none": (
            '{"chain": 2, "pulls": {"x": [2147483646, -1]}}',
            "x: int32 []\nx=2147483646; (0)",
        ),
        "no JSON that can be read": (
            '{"children": ' + "[" * 100_000,
            "[x, line 1] no JSON that can be read: ",
        ),
        "a relation twice": (
            '{"types": {"a": 2}, "relations": [{"child": "a", "relation": "z", "parent": "a", '
            '"pairs": []}, {"child": "a", "relation": "z", "parent": "a", "pairs": []}]}',
            "[x, line 1] relation 1 is ('a', 'z', 'a') again; expected each once; join their",
        ),
        "a relation of numbers": (
            '{"types": {"a": 2}, "relations": [{"child": "a", "relation": 1, "parent": "a", '
            '"pairs": []}]}',
            "[x, line 1] relation 0 has the names ('a', 1, 'a'); expected words; correct them.",
        ),
        "an unknown type": (
            '{"types": {"a": 2}, "relations": [{"child": "a", "relation": "x", "parent": "b", '
            '"pairs": []}]}',
            "[x, line 1] edges name the vertex type 'b'; the vertex types are a; name one of",
        ),
        "a pull and an edge pull of one name": (
            '{"vertices": 3, "edges": [[1, 2], [0, 1], [0, 2]], "edge_pulls": {"w": [[1, 2], '
            '[3, 4], [5, 6]], "kind": ["a", null, "b"]}, "pulls": {"w": [1, 2, 3]}}',
            "[x] 'w' is a pull and an edge pull; a name for each; rename one.",
        ),
        "an edge pull less": (
            '{"vertices": 3, "edges": [[1, 2], [0, 1], [0, 2]], "edge_pulls": {"w": [[1, 2], '
            '[3, 4], [5, 6]], "kind": ["a", null, "b"]}}\n'
            '{"chain": 2, "edge_pulls": {"w": [[1, 2]]}}',
            "[x, line 2] no edge pull 'kind'; line 1 has it; give all graphs the same edge",
        ),
        "an edge pull of a relation less": (
            '{"types": {"a": 2, "b": 2}, "relations": [{"child": "a", "relation": "x", '
            '"parent": "b", "pairs": [[0, 1], [1, 0]], "edge_pulls": {"w": [1.5, 2.5], "kind": '
            '["p", "q"]}}, {"child": "a", "relation": "y", "parent": "b", "pairs": [[1, 1]]}, '
            '{"child": "a", "relation": "z", "parent": "a", "pairs": [[0, 1]], "edge_pulls": '
            '{"w": [7.0]}}]}\n'
            '{"types": {"a": 2, "b": 2}, "relations": [{"child": "a", "relation": "x", '
            '"parent": "b", "pairs": [[0, 1], [1, 0]], "edge_pulls": {"w": [1.5, 2.5], "kind": '
            '["p", "q"]}}, {"child": "a", "relation": "z", "parent": "a", "pairs": [[0, 1]]}]}',
            "[x, line 2] no edge pull 'w' of ('a', 'z', 'a'); line 1 has it;",
        ),
        "a shorter vector": (
            '{"chain": 2, "pulls": {"x": [[1, 2], null]}}\n{"chain": 1, "pulls": {"x": [[1]]}}',
            "[x, line 2] value 0 of the pull 'x' is [1]; expected numbers of shape [2] as",
        ),
        "a vector of words": (
            '{"chain": 2, "pulls": {"x": [[1, 2], null]}}\n'
            '{"chain": 1, "pulls": {"x": [["a", "b"]]}}',
            "[x, line 2] value 0 of the pull 'x' is ['a', 'b']; expected numbers of shape [2] as",
        ),
        "a vector that is not finite": (
            '{"chain": 2, "pulls": {"x": [[1, 2], null]}}\n'
            '{"chain": 1, "pulls": {"x": [[1, 1e+300]]}}',
            "[x, line 2] value 0 of the pull 'x' is [1, 1e+300]; expected finite numbers of",
        ),
        "no graph": ("\n ", "[x] no graph; expected at least one; add examples."),
        "no file": (
            {},
            "[none] cannot be read: No such file or directory; expected a readable file;",
            'path="none"',
        ),
    },
    "json-lines": {
        "a folder of json lines": (
            {
                "train.jsonl": '{"chain": 1, "pulls": {"w": ["b"], "label": ["no"]}}\n'
                '{"chain": 1, "pulls": {"w": ["a"], "label": ["yes"]}}',
                "dev.jsonl": '{"chain": 1, "pulls": {"w": ["c"], "label": ["yes"]}}',
            },
            "graphs from ., 2 classes\n"
            "label: no, yes; w: <unk>, b, a\n"
            "train: label=no w=b\n"
            "train: label=yes w=a\n"
            "dev: label=yes w=<unk>",
        ),
        "labels that are left out": (
            '{"chain": 1, "pulls": {"label": ["a"], "x": [1]}}',
            "graphs from ., 0 classes\nx: int32 []\ntrain: x=1",
            "labelled=False",
        ),
        "splits agree in what is real": (
            {
                "train.jsonl": '{"chain": 1, "pulls": {"x": [0.5]}}',
                "dev.jsonl": '{"chain": 1, "pulls": {"x": [-2]}}',
            },
            "graphs from ., 0 classes\nx: float32 []\ntrain: x=0.5\ndev: x=-2.0",
        ),
        "a file alone is read as the data of a run were": (
            {"my": '{"chain": 2, "pulls": {"x": [1, -2]}}'},
            "graphs from my, 0 classes\nx: float32 []\nall: x=1.0; x=-2.0 (0)",
            'path="my", splits=("all",), vocabularies={}, reals=["x"]',
        ),
        "a file alone with a negative number": (
            {"my": '{"chain": 2, "pulls": {"x": [1, -2]}}'},
            "[my, line 1] value 1 of the pull 'x' is -2; expected 0..2147483646, or no value, or",
            'path="my", splits=("all",)',
        ),
        "a split that there is not": (
            {"train.jsonl": ""},
            "[.] no file for the split 'test' (the folder holds train.jsonl);",
            'splits=("test",)',
        ),
        "files and shares of train": (
            {"train.jsonl": labelled(3), "other": labelled(2)},
            "graphs from .; 0.4 of train for test, 3 classes\n"
            "label: int32 []\n"
            "train: label=0\ntrain: label=1\ndev: label=0\ndev: label=1\ntest: label=2",
            'dev="other", test="0.4"',
        ),
        "a file is divided": (
            {"my": labelled(21)},
            "graphs from my; 0.1 of train for dev; 0.1 of train for test, 21 classes\n"
            "label: int32 []\n"
            "train: label=0\ntrain: label=1\ntrain: label=2\ntrain: label=3\n"
            "train: label=5\ntrain: label=6\ntrain: label=7\ntrain: label=8\n"
            "train: label=9\ntrain: label=11\ntrain: label=12\ntrain: label=13\n"
            "train: label=14\ntrain: label=15\ntrain: label=17\ntrain: label=19\n"
            "train: label=20\ndev: label=10\ndev: label=18\ntest: label=4\ntest: label=16",
            'path="my"',
        ),
        "a split of a file that is divided": (
            {"my": labelled(21)},
            "graphs from my; 0.1 of train for dev; 0.1 of train for test, 21 classes\n"
            "label: int32 []\n"
            "dev: label=10\n"
            "dev: label=18",
            'path="my", splits=("dev",)',
        ),
        "a graph is not divided": (
            {"my": labelled(1)},
            "[my] 1 graph to divide into train, dev and test; expected more;",
            'path="my"',
        ),
    },
    "node-link": {
        "graphs of networkx": (
            json.dumps([DAG, DAG]),
            "graphs from ., 0 classes\n\ntrain: #first -; (0)\ntrain: #first -; (0)",
        ),
        "a graph of networkx, with types": (
            TYPED_DAG,
            "graphs from ., 0 classes\n"
            "w: float32 []; x: int32 []\n"
            "relations: r\n"
            "train: a x=2; b (0/r/w=0.5)",
        ),
        "no graph of networkx": (
            '[{"nodes": 3}]',
            "[train.json] graph 0: 'int' object is not iterable; expected JSON of",
        ),
    },
    "read_embeddings": {
        "embeddings": (
            {"glove.txt.gz": gzip.compress(NOT_UTF8)},
            "0.333 of the words: [[0.5, 0.5], [1.0, 2.5], [0.5, 0.5], [0.5, 0.5]]",
        ),
        "embeddings after two counts, in lower case": (
            "5 2\n" + GLOVE,
            "0.667 of the words: [[0.5, 0.5], [1.0, 2.5], [3.0, -0.4000000059604645], [0.5, 0.5]]",
            "lower=True",
        ),
        "embeddings with spaces at ends of lines": (
            GLOVE.replace("\n", " \r\n"),
            "0.333 of the words: [[0.5, 0.5], [1.0, 2.5], [0.5, 0.5], [0.5, 0.5]]",
        ),
        "an array and a list of words": (
            {"x.npy": array(np.arange(6.0).reshape(3, 2))},
            "0.667 of the words: [[0.5, 0.5], [4.0, 5.0], [0.5, 0.5], [0.0, 1.0]]",
            'words=["new", "never", "film"]',
        ),
        "an array and a file of words": (
            {
                "x.npy": array(np.arange(6.0).reshape(3, 2)),
                "words": "new\nat no\u00a0home\r\nfilm\n",
            },
            "0.667 of the words: [[0.5, 0.5], [4.0, 5.0], [0.5, 0.5], [0.0, 1.0]]",
            'words="words"',
        ),
        "words for a text file": (
            "film 1",
            "[read_embeddings] words for a text file; its lines begin with them; leave them out.",
            'words=["film"]',
        ),
        "an array without words": (
            {"x.npy": b"film 1"},
            "[read_embeddings] no words for a .npy file; a word for each row; pass words=...",
        ),
        "too few numbers": (
            "a 1 2\nfilm 1\n",
            "[x, line 2] 1 numbers, 1 of them finite; expected 2 finite numbers after the word;",
        ),
        "no numbers": (
            "a 1 2\nfilm 1 b\n",
            "[x, line 2] '1 b'; expected 2 finite numbers after the word; check the file.",
        ),
        "no finite number": (
            "film 1 inf\n",
            "[x, line 1] 2 numbers, 1 of them finite; expected 2 finite numbers after the word;",
        ),
        "no words": (
            "2 3\n",
            "[x] no words; expected a word and its numbers a line; check the file.",
        ),
        "no packed text": ({"x.gz": "film 1"}, "[x.gz] cannot be read: "),
        "no array": ({"x.npy": "film 1"}, "[x.npy] cannot be read: ", 'words=["film"]'),
        "half a header": (
            {"x.npy": b"\x93NUMPY\x01\x00\x02\x00(("},
            "[x.npy] cannot be read: ",
            'words=["film"]',
        ),
        "an archive": ({"x.npy": b"PK\x03\x04"}, "[x.npy] cannot be read: ", 'words=["film"]'),
        "several arrays": (
            {"x.npy": array(a=np.ones((1, 2)))},
            "[x.npy] cannot be read: ",
            'words=["film"]',
        ),
        "too many rows": (
            {"x.npy": array(np.zeros((2, 2)))},
            "[x.npy] an array float64 [2, 2] for 1 words; expected real numbers [words,",
            'words=["film"]',
        ),
        "whole numbers": (
            {"x.npy": array(np.zeros((1, 2), int))},
            "[x.npy] an array int64 [1, 2] for 1 words; expected real numbers [words,",
            'words=["film"]',
        ),
        "a row that is not finite": (
            {"x.npy": array(np.array([[np.nan]]))},
            "[x.npy] row 0 is not finite; expected finite numbers; check the file.",
            'words=["film"]',
        ),
    },
}
# A line of a treebank, the second of three -> the column and what is said.
WRONG_TREES = {
    "(3 (2 a) (2 b)": "15] the line ends while a bracket is open; expected one whole tree on a "
    "line; close the bracket of column 1.",
    "(3 (2 a) (2 b)))": "16] ')' closes nothing; expected as many ')' as '('; remove it.",
    "(3 (2 a) b)": "10] 'b' stands outside of a leaf; expected '(label word)'; give the word its "
    "own bracket.",
    "(3 a b)": "6] a second word 'b' in the leaf 'a'; expected one word in a leaf; join the words "
    "or give each its own leaf.",
    "(3 )": "1] a bracket with the label 3 and nothing else; expected a word or children after "
    "the label; add them or remove the bracket.",
    "(good)": "2] no label after '(' but 'good'; expected a whole number and a space; write "
    "'(label word)'.",
    "(": "2] no label after '(' but the end of the line; expected a whole number and a "
    "space; write '(label word)'.",
    "(3x y)": "2] no label after '(' but '3x'; expected a whole number and a space; write "
    "'(label word)'.",
    "(-1 y)": "2] no label after '(' but '-1'; expected a whole number and a space; write "
    "'(label word)'.",
    "(3 (2 a) ())": "11] no label after '(' but ')'; expected a whole number and a space; write "
    "'(label word)'.",
    "(3 a": "5] the line ends inside the leaf 'a'; expected ')' after the word; close the bracket.",
    "(7 a)": "2] label 7; expected 0..4; correct the label.",
    "(3 (2 a) (9 b))": "11] label 9; expected 0..4; correct the label.",
    "(12345678901 a)": "2] label 12345678901; expected 0..4; correct the label.",
    "(3 a) (2 b)": "7] the tree is complete before '('; expected one tree on a line; start a new "
    "line or remove the rest.",
    "(3 a) and-so-on-and-so-forth": "7] the tree is complete before 'and-so-on-and-so-...'; "
    "expected one tree on a line; start a new line or remove the rest.",
    "(3 word (2 x))": "9] a bracket after the word 'word'; expected one word, or children only; "
    "give the word its own bracket.",
    "  hello": "3] 'hello' stands outside of a leaf; expected '(label word)'; give the word its "
    "own bracket.",
    "(2 (1 a) (2 (1 b)": "18] the line ends while 2 brackets are open; expected one whole tree "
    "on a line; close the bracket of column 10.",
}
# The third line after {"chain": 1, "pulls": {"x": [1]}} and a blank one -> what is said of it.
WRONG_JSONL = {
    "{children": "Expecting property name enclosed in double quotes at column 2; ",
    "[1]": "a list; expected an object; write {...} for each graph.",
    '{"chain": 1, "chain": 2}': "the name 'chain' twice; expected each name once; rename one.",
    '{"pulls": {}}': "the fields pulls; expected one of children, chain, vertices, types;",
    '{"chain": 1, "children": [[]]}': (
        "the fields chain, children; expected one of children, chain, vertices, types;"
    ),
    '{"chain": 1, "pull": {}}': "the field 'pull'; the fields are chain, edge_pulls, id, pulls;",
    '{"chain": 2, "pulls": {"x": [1, 2]}, "edge_pulls": 3}': (
        'edge_pulls is 3; expected an object of names; write {"name": ...}.'
    ),
    '{"vertices": 2, "edges": [[0, 1]], "edge_pulls": {"w": [1, 2, 3]}}': (
        "the edge pull 'w' has 3 values; expected one for each of 1 edges; correct it."
    ),
    '{"children": [[], [2]]}': (
        "vertex 1 has the child 2; its graph has the vertices 0..1, and -1 is an empty slot;"
    ),
    '{"vertices": 2, "edges": [[0, 1], [1, 0]]}': (
        "the vertices 0 -> 1 -> 0 form a cycle of 2, each with the next as its child;"
    ),
    '{"vertices": 2, "edges": [[0, 1, 2]]}': (
        "edges is an array [1, 3]; expected pairs (child, parent); list the pairs."
    ),
    '{"children": ["a"]}': "child is <U1 [1]; expected int32 [n]; correct or convert it.",
    '{"children": []}': "no vertices; expected at least one vertex; leave it out.",
    '{"chain": 2000000000}': (
        "2000000000 vertices; expected at most 16777216 in a graph; correct the number."
    ),
    '{"vertices": 1.5}': (
        "num_vertices is 1.5; expected a whole number in 0..2147483646; correct it."
    ),
    '{"types": {"a": "b"}}': (
        "sizes['a'] is 'b'; expected a whole number in 0..2147483646; correct it."
    ),
    '{"types": []}': "sizes is []; a dict of names of vertex types to numbers of vertices;",
    '{"types": {"a": 1}, "relations": "b"}': (
        "relations is 'b'; expected a list of objects; write [{...}]."
    ),
    '{"types": {"a": 1}, "relations": ["b"]}': (
        "relation 0 is 'b'; expected an object of names; write {\"name\": ...}."
    ),
    '{"types": {"a": 1}, "relations": [{"child": "a"}]}': (
        "relation 0 has no 'relation'; expected child, relation, parent, pairs; add it."
    ),
    '{"types": {"a": 1}, "pulls": {"b": {}}}': (
        "pulls of the type 'b'; the types are a; name one of these."
    ),
    '{"chain": 1, "pulls": [1]}': 'pulls is [1]; expected an object of names; write {"name": ...}.',
    '{"chain": 1, "pulls": {"x": 1}}': (
        "pulls gives 1 as 'x'; expected a list of values; write [...]."
    ),
    '{"chain": 2, "pulls": {"x": [1]}}': (
        "the pull 'x' has 1 values; expected one for each of 2 vertices; correct it."
    ),
    '{"chain": 2}': (
        "no pull 'x'; line 1 has it; give all graphs the same pulls, with no value where"
    ),
    '{"chain": 1, "pulls": {"x": [1], "y": [1]}}': (
        "a pull 'y'; line 1 has none; give all graphs the same pulls, with no value where"
    ),
    '{"chain": 1, "pulls": {"x": ["a"]}}': (
        "value 0 of the pull 'x' is 'a'; expected whole numbers as before; correct it."
    ),
    '{"chain": 1, "pulls": {"x": [true]}}': (
        "value 0 of the pull 'x' is True; expected whole numbers as before; correct it."
    ),
    '{"chain": 1, "pulls": {"x": [2147483648]}}': (
        "value 0 of the pull 'x' is 2147483648; expected 0..2147483646, or no value, or real"
    ),
    '{"chain": 1, "pulls": {"x": [-2]}}': (
        "value 0 of the pull 'x' is -2; expected 0..2147483646, or no value, or real numbers"
    ),
    '{"chain": 1, "pulls": {"x": [[1]]}}': (
        "value 0 of the pull 'x' is [1]; expected whole numbers as before; correct it."
    ),
    '{"chain": 2, "pulls": {"x": [0.5, NaN]}}': (
        "value 1 of the pull 'x' is nan; expected finite numbers of float32; correct it."
    ),
    '{"types": {"a": 1}}': (
        "vertex types; the lines before differ; give all graphs vertex types, or none."
    ),
}
# A path is no name; a format need not have data sets that have names.
WRONG_CALLS = {
    'load("generatd", format="trees")': (
        "'generatd' is neither a data set nor a folder; for trees there is generated, sst; "
        "give one of them or the path of a folder. Nearest: 'generated'."
    ),
    'load("sst", format="text")': (
        "'sst' is data of the format trees; for text there is generated, ptb; give that or "
        "the path of a folder."
    ),
    'load("sst", format="json-lines")': (
        "'sst' is data of the format trees; for json-lines there is no name;"
    ),
    'load("trees", format="tree-fc")': "'trees'; for tree-fc there is generated; give that.",
    'load("generated", format="tree")': (
        "no format 'tree'; the formats are trees, text, tagged, pairs, logic, circuits, "
        "tree-fc, json-lines, conllu, conll, table, brackets, node-link; give one of them. "
        "Nearest: 'trees'"
    ),
    'load("no/none", format="trees")': (
        "there is no no/none; expected a folder or a file with the data; check the path."
    ),
    'load(Path("no/none"), format="trees")': (
        "there is no no/none; expected a folder or a file with the data; check the path."
    ),
    'load(Path("sst"), format="trees")': (
        "there is no sst; expected a folder or a file with the data; check the path."
    ),
    'load("no.jsonl", format="json-lines")': (
        "there is no no.jsonl; expected a folder or a file with the data; check the path."
    ),
    'load("/dev/null", format="trees")': (
        "/dev/null is neither; expected a folder or a file with the data; check the path."
    ),
    'load("generated", format="trees", dev="0.1")': (
        "dev for generated data; the splits that they have; leave it out, or name a file as data."
    ),
    'load("generated", format="trees", splits=("dev", "valid"))': (
        "the splits dev, valid; some of train, dev, test;"
    ),
    'load("generated", format="trees", splits=("all",))': (
        "the splits all; some of train, dev, test;"
    ),
    'load("generated", format="json-lines", splits=("all", "dev"))': (
        "the splits all, dev; some of train, dev, test; name these, or 'all' alone, for a"
    ),
    'load("generated", format="text", splits=("dev",))': (
        "the splits dev without vocabularies; train among them, whose words are numbered;"
    ),
    'load("generated", format="text", binary=True)': (
        "'binary' for the format text; it belongs to the format trees; leave it out."
    ),
    'load("generated", format="trees", pieces=64)': (
        "'pieces' for the format trees; it belongs to the format text; leave it out."
    ),
    'load("generated", format="trees", leaves=64)': (
        "'leaves' for the format trees; it belongs to the format tree-fc; leave it out."
    ),
}

READ["trees"] |= {
    text: (f"(1 a)\n{text}\n(1 a)\n", f"[train.txt, line 2, column {said}")
    for text, said in WRONG_TREES.items()
}
READ["read_jsonl"] |= {
    line: (f'{{"chain": 1, "pulls": {{"x": [1]}}}}\n\n{line}', f"[x, line 3] {said}")
    for line, said in WRONG_JSONL.items()
}
ROWS = {f"{how}: {name}": (how, *row) for how, rows in READ.items() for name, row in rows.items()}
# Rows of files that can be read, but hold no graph.
NO_GRAPHS = {
    "read_conllu: heads in a cycle",
    "read_jsonl: an unknown type",
    'read_jsonl: {"children": [[], [2]]}',
    'read_jsonl: {"vertices": 2, "edges": [[0, 1], [1, 0]]}',
    'read_jsonl: {"vertices": 2, "edges": [[0, 1, 2]]}',
    'read_jsonl: {"children": ["a"]}',
    'read_jsonl: {"children": []}',
    'read_jsonl: {"vertices": 1.5}',
    'read_jsonl: {"types": {"a": "b"}}',
    'read_jsonl: {"types": []}',
}
WRITTEN = [
    name
    for name, (reader, _, text, *_) in ROWS.items()
    # The last ones have relations at one vertex, which come in another order.
    if text[0] != "[" and reader not in ("read_embeddings", "tagged", "pairs")
]


def read(reader: str, content: Any, options: str = "") -> Any:
    """Write files into the current folder and read them."""
    is_format = not reader.startswith("read_")
    name = f"train{FORMATS[reader].endings[0]}" if is_format else "x"
    files = content if isinstance(content, dict) else {name: content}
    for file, given in files.items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(given if isinstance(given, bytes) else given.encode())
    asked = {"path": Path() if is_format else next(iter(files), None), **eval(f"dict({options})")}
    path = asked.pop("path")
    if is_format:
        return load(path, format=reader, **asked)
    if reader == "read_embeddings":
        asked = {"vocabulary": KNOWN, "init": vrt.init.constant(0.5), **asked}
    return getattr(vrt.data, reader)(path, **asked)


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[2][0] != "["])
def test_what_is_read(name: str) -> None:
    reader, content, expected, *options = ROWS[name]
    assert as_text(read(reader, content, *options)) == expected


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[2][0] == "["])
def test_what_is_said(name: str) -> None:
    """Errors say where the fault is; their class says of what: of arguments, graphs or data."""
    reader, content, expected, *options = ROWS[name]
    kind: type[VertexrtError] = GraphError if name in NO_GRAPHS else DataError
    if expected.startswith(("[data]", f"[{reader}]")):
        kind = UsageError
    assert text_of(kind, lambda: read(reader, content, *options)).startswith(expected)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_read_can_be_written_and_read(name: str) -> None:
    reader, content, expected, *options = ROWS[name]
    found = read(reader, content, *options)
    dtype = "float64" if "float64" in expected else "float32"
    for batch in found.splits.values() if isinstance(found, Dataset) else [found.batch]:
        vrt.data.write_jsonl("x.gz", batch, found.vocabularies)
        known = {pull: found.vocabularies.get(pull) for pull in {**batch.pulls, **batch.edge_pulls}}
        reals = real_pulls(batch)
        again = vrt.data.read_jsonl("x.gz", vocabularies=known, reals=reals, dtype=dtype)
        assert as_text(again) == as_text(vrt.data.Examples(batch, again.vocabularies))


@pytest.mark.parametrize("code", WRONG_CALLS)
def test_calls_that_are_refused(code: str) -> None:
    assert text_of(UsageError, lambda: eval(code)).startswith(f"[data] {WRONG_CALLS[code]}")
