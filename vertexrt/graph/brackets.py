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

# A leaf (groups 1, 2), an inner vertex that opens (3) or closes (4), or else a mistake (5).
_PART = re.compile(r" *(?:\(([0-9]{1,9}) +([^() ]+) *\)|\(([0-9]{1,9})(?= *\()|(\))|(.))")
_LEAF, _OPEN, _CLOSE = 2, 3, 4


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
    lines: list[int] = []  # index of the line of each tree
    contents = [content.rstrip(" \r") for content in text.split("\n")]
    for index, content in enumerate(contents):
        if not content:
            continue
        done: list[int] = []  # vertices whose parent is still open, left to right
        starts: list[int] = []  # of every open bracket: how many of `done` lie before it
        pending: list[int] = []  # and its label
        for part in _PART.finditer(content):
            kind = part.lastindex
            if kind == _LEAF:
                leaf_label, leaf_word = part.group(1, 2)
                label.append(int(leaf_label))
                word.append(words.setdefault(leaf_word, len(words)))
            elif kind == _OPEN:
                starts.append(len(done))
                pending.append(int(part[_OPEN]))
                continue
            elif kind == _CLOSE and starts:
                start = starts.pop()
                child.extend(done[start:])
                del done[start:]
                label.append(pending.pop())
                word.append(-1)
            else:
                raise _mistake(content, file, line + index, labels)
            done.append(len(label) - 1)
            child_ptr.append(len(child))
        if starts or len(done) != 1:
            raise _mistake(content, file, line + index, labels)
        graph_ptr.append(len(label))
        lines.append(index)
    forest = BracketForest(
        np.array(graph_ptr, np.int32),
        np.array(child_ptr, np.int32),
        np.array(child, np.int32),
        np.array(label, np.int32),
        np.array(word, np.int32),
        tuple(words),
    )
    if labels is not None and lines and np.max(forest.label) >= labels:
        vertex = np.argmax(forest.label >= labels)
        index = lines[int(np.searchsorted(forest.graph_ptr, vertex, side="right")) - 1]
        raise _mistake(contents[index], file, line + index, labels)
    return forest


def _mistake(content: str, file: str, line: int, labels: int | None) -> DataError:
    """Return the error for the first mistake in a line that is known to hold one."""
    at, got, expected, action = _first_mistake(content, 10**9 if labels is None else labels)
    return DataError.at(f"{file}, line {line}, column {at + 1}", got, expected, action)


def _first_mistake(content: str, labels: int) -> tuple[int, str, str, str]:
    """Return (offset, got, expected, action); slower than the reader, and run once."""
    opened: list[int] = []  # offsets of the brackets that are open
    trees = 0
    for part in _PART.finditer(content):
        kind = part.lastindex
        at = part.end() - len(part[0].lstrip(" "))
        if not opened and kind == _CLOSE:
            return at, "')' closes nothing", "expected as many ')' as '('", "remove it"
        if not opened and trees:
            got = f"the tree is complete before '{_excerpt(content, at)}'"
            return at, got, "expected one tree on a line", "start a new line or remove the rest"
        if kind == _CLOSE:
            opened.pop()
        elif kind not in (_LEAF, _OPEN):
            return _wrong_character(content, at, labels)
        elif int(value := part[1] or part[_OPEN]) >= labels:
            return _label_out_of_range(at, value, labels)
        elif kind == _OPEN:
            opened.append(at)
        trees += not opened
    many = "a bracket is" if len(opened) == 1 else f"{len(opened)} brackets are"
    got = f"the line ends while {many} open"
    action = f"close the bracket of column {opened[-1] + 1}"
    return len(content), got, "expected one whole tree on a line", action


def _wrong_character(content: str, at: int, labels: int) -> tuple[int, str, str, str]:
    rest = content[at:]
    if rest[0] != "(":
        got = f"'{_excerpt(content, at)}' stands outside of a leaf"
        return at, got, "expected '(label word)'", "give the word its own bracket"
    label = re.match(r"\(([0-9]+)(?: +|(?=[()]|$))", rest)
    if label is None:
        follows = f"'{_excerpt(content, at + 1)}'" if len(rest) > 1 else "the end of the line"
        got = f"no label after '(' but {follows}"
        return at + 1, got, "expected a whole number and a space", "write '(label word)'"
    if len(label[1]) > 9:
        return _label_out_of_range(at, label[1], labels)
    leaf = re.match(r"([^() ]*) *", rest[label.end() :])
    assert leaf is not None  # the pattern fits any text
    end = at + label.end() + leaf.end()
    if not leaf[1]:
        got = f"a bracket with the label {label[1]} and nothing else"
        return (
            at,
            got,
            "expected a word or children after the label",
            "add them or remove the bracket",
        )
    if end == len(content):
        got = f"the line ends inside the leaf '{leaf[1]}'"
        return end, got, "expected ')' after the word", "close the bracket"
    if content[end] == "(":
        got = f"a bracket after the word '{leaf[1]}'"
        return end, got, "expected one word, or children only", "give the word its own bracket"
    got = f"a second word '{_excerpt(content, end)}' in the leaf '{leaf[1]}'"
    return end, got, "expected one word in a leaf", "join the words or give each its own leaf"


def _label_out_of_range(at: int, value: str, labels: int) -> tuple[int, str, str, str]:
    return at + 1, f"label {value}", f"expected 0..{labels - 1}", "correct the label"


def _excerpt(content: str, at: int) -> str:
    """Return the text from `at` up to the next space or bracket, shortened to 20 characters."""
    found = re.match(r"[()]|[^() ]+", content[at:])
    text = found[0] if found else content[at : at + 1]
    return text if len(text) <= 20 else text[:17] + "..."
