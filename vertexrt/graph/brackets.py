"""Read labelled trees in bracket notation, as the Stanford Sentiment Treebank is written.

`(label word)` is a leaf and `(label child child ...)` an inner vertex; labels are whole numbers.
Only the ASCII space separates and only the line feed ends a line: words may hold any other
character, the no-break space included. A bracket inside the text must be written otherwise (the
treebank has -LRB- and -RRB-), so `(` and `)` are always structure.
"""

import re
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DataError

IntArray = npt.NDArray[np.int32]

# Where it begins (group 1), a leaf (2, 3), an inner vertex that opens (4) or closes (5), or else a
# mistake (6).
_PART = re.compile(r" *()(?:\(([0-9]{1,9}) +([^() ]+) *\)|\(([0-9]{1,9})(?= *\()|(\))|(.))")
_LEAF, _OPEN, _CLOSE = 3, 4, 5


@dataclass(frozen=True, slots=True, eq=False)
class BracketForest:
    """Hold the trees of one text; vertices in post-order, children before their parents.

    Attributes:
        graph_ptr: int32 [K+1], first vertex of each tree.
        child_ptr: int32 [V+1], first slot of each vertex in `child`.
        child: int32 [E], children from left to right, counted through the whole text.
        label: int32 [V].
        word: int32 [V], index into `words` at a leaf, -1 at an inner vertex.
        words: the distinct words in the order in which they appear first.
    """

    graph_ptr: IntArray
    child_ptr: IntArray
    child: IntArray
    label: IntArray
    word: IntArray
    words: tuple[str, ...]


def parse_brackets(
    text: str, *, file: str = "brackets", line: int = 1, labels: int | None = None
) -> BracketForest:
    """Read one tree from each line of a text; blank lines are skipped.

    Args:
        text: trees in bracket notation.
        file: name for error messages.
        line: number of the first line of `text`, for error messages.
        labels: how many labels there are (allowed are 0..labels-1); None allows any.
    Returns: all trees as one set of CSR arrays; no tree at all when every line is blank.
    Raises: DataError with file, line and column, when a line is not one well-formed tree.
    """
    child_ptr, child = array("i", [0]), array("i")
    label, word = array("i"), array("i")
    graph_ptr = array("i", [0])
    words: dict[str, int] = {}

    def mistake(at: int, got: str, expected: str, action: str) -> DataError:
        return DataError.at(f"{file}, line {number}, column {at + 1}", got, expected, action)

    for number, given in enumerate(text.split("\n"), line):  # noqa: B007
        content = given.rstrip(" \r")
        if not content:
            continue
        done: list[int] = []  # vertices whose parent is still open, left to right
        starts: list[int] = []  # of every open bracket: how many of `done` lie before it
        opened: list[re.Match[str]] = []  # and the bracket
        for part in _PART.finditer(content):
            kind = part.lastindex
            if kind == _LEAF and (starts or not done):
                leaf_label, leaf_word = part.group(2, 3)
                label.append(int(leaf_label))
                word.append(words.setdefault(leaf_word, len(words)))
            elif kind == _OPEN and (starts or not done):
                starts.append(len(done))
                opened.append(part)
                continue
            elif kind == _CLOSE and starts:
                start = starts.pop()
                child.extend(done[start:])
                del done[start:]
                label.append(int(opened.pop()[_OPEN]))
                word.append(-1)
            else:
                raise mistake(*_mistake(part, labels, bool(done and not starts)))
            done.append(len(label) - 1)
            child_ptr.append(len(child))
        if opened:
            many = "a bracket is" if len(opened) == 1 else f"{len(opened)} brackets are"
            got = f"the line ends while {many} open"
            action = f"close the bracket of column {opened[-1].start(1) + 1}"
            raise mistake(len(content), got, "expected one whole tree on a line", action)
        if labels is not None and max(label[graph_ptr[-1] :]) >= labels:
            parts = _PART.finditer(content)
            wrong = next(part for part in parts if int(part[2] or part[_OPEN] or 0) >= labels)
            raise mistake(*_mistake(wrong, labels, False))
        graph_ptr.append(len(label))
    columns = graph_ptr, child_ptr, child, label, word
    starts_of, slots, children, labels_of, words_of = (np.array(x, np.int32) for x in columns)
    return BracketForest(starts_of, slots, children, labels_of, words_of, tuple(words))


def _mistake(part: re.Match[str], labels: int | None, complete: bool) -> tuple[int, str, str, str]:
    """Return (offset, got, expected, action) for a part that may not stand where it does.

    Args:
        complete: a tree ends before it.
    """

    def excerpt(at: int) -> str:  # up to the next space or bracket, shortened to 20 characters
        found = re.match(r"[()]|[^() ]+", content[at:])
        text = found[0] if found else content[at : at + 1]
        return text if len(text) <= 20 else text[:17] + "..."

    content, at, kind = part.string, part.start(1), part.lastindex
    if kind == _CLOSE:
        return (at, "')' closes nothing", "expected as many ')' as '('", "remove it")
    if complete:
        got = f"the tree is complete before '{excerpt(at)}'"
        return (at, got, "expected one tree on a line", "start a new line or remove the rest")
    if kind not in (_LEAF, _OPEN) and content[at] != "(":
        got = f"'{excerpt(at)}' stands outside of a leaf"
        return (at, got, "expected '(label word)'", "give the word its own bracket")
    leaf = re.compile(r"\(([0-9]*)( *)([^() ]*) *(.?)").match(content, at)
    assert leaf is not None, "it begins with a bracket"
    label, gap, word, after = leaf.groups()
    if not label or (word and not gap):
        follows = f"'{excerpt(at + 1)}'" if at + 1 < len(content) else "the end of the line"
        got = f"no label after '(' but {follows}"
        return (at + 1, got, "expected a whole number and a space", "write '(label word)'")
    if kind in (_LEAF, _OPEN) or len(label) > 9:
        most = (10**9 if labels is None else labels) - 1
        return (at + 1, f"label {label}", f"expected 0..{most}", "correct the label")
    if not word:
        got = f"a bracket with the label {label} and nothing else"
        expected = "expected a word or children after the label"
        return (at, got, expected, "add them or remove the bracket")
    end = leaf.start(4)
    if not after:
        got = f"the line ends inside the leaf '{word}'"
        return (end, got, "expected ')' after the word", "close the bracket")
    if after == "(":
        got = f"a bracket after the word '{word}'"
        return (end, got, "expected one word, or children only", "give the word its own bracket")
    got = f"a second word '{excerpt(end)}' in the leaf '{word}'"
    action = "join the words or give each its own leaf"
    return (end, got, "expected one word in a leaf", action)
