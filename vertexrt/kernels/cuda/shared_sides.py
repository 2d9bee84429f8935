"""Sides of the path whose code is the same: the layers of a stack.

Two layers with the same cell differ in which weights and tensors they read, and in the numbers of
their segments. Such sides are one function of the kernel: a table says which words of the kernel
each of them is given, and a segment has the numbers of all. So a stack of many layers is compiled
as soon as one of three. Which sides are alike is seen by their text, with names and numbers in
order of appearance: texts that are equal then do the same to what they are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vertexrt.kernels.cuda.path_function import OPENING

WORD = re.compile(r"\bjob\.w\[(\d+)\]")
CASE = re.compile(r"\bcase (\d+):")
SIDE = re.compile(r"\bside_(\d+)\b|\bside_(\d+)_weights\b")
KINDS = "tensor_|param_|gradient_|int_|float_index_|float_|seed_row_|seed_|above_"  # `word_names`
NAME = re.compile(rf"\b(b_|c|)({KINDS}|)(\d+)(?=_|\b)")
# Words that a processor has at hand: in place of the arguments of a step, which it has none of.
MOST_WORDS = 96


@dataclass(frozen=True, slots=True)
class SharedSide:
    """A function of a kernel.

    Attributes:
        name: of the function; lines: its text, and that of its tables.
        sides: the numbers of those that it is.
    """

    name: str
    lines: tuple[str, ...]
    sides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Plain:
    """The text of a side with names and numbers in order of appearance, and what they stood for."""

    text: str
    words: tuple[int, ...]
    cases: tuple[int, ...]


def share_sides(texts: Mapping[int, Sequence[str]]) -> list[SharedSide]:
    """Return the functions of some sides, given the text of each."""
    alike: dict[str, list[tuple[int, _Plain]]] = {}
    for side, lines in texts.items():
        plain = _plain("\n".join(lines))
        alike.setdefault(plain.text, []).append((side, plain))
    found = []
    for members in alike.values():
        if len(members) > 1 and len(members[0][1].words) <= MOST_WORDS:
            found.append(_shared(members))
        else:
            found += [SharedSide(f"side_{k}", tuple(texts[k]), (k,)) for k, _ in members]
    return found


def _plain(text: str) -> _Plain:
    words: dict[str, int] = {}
    cases: dict[str, int] = {}
    names: dict[tuple[str, str], int] = {}

    def word(found: re.Match[str]) -> str:
        return f"own[{words.setdefault(found[1], len(words))}]"

    def case(found: re.Match[str]) -> str:
        return f"CASE_{cases.setdefault(found[1], len(cases))}"

    def name(found: re.Match[str]) -> str:
        before, kind, number = found.groups()
        if not kind and before != "c":
            return found[0]
        of = kind or "tensor_"  # c12 is a child's row of tensor_12
        return f"{before}{kind}{names.setdefault((of, number), len(names))}"

    text = CASE.sub(case, WORD.sub(word, text))
    text = NAME.sub(name, SIDE.sub(lambda found: found[0].replace(found[1] or found[2], "K"), text))
    return _Plain(text, tuple(map(int, words)), tuple(map(int, cases)))


def _shared(members: Sequence[tuple[int, _Plain]]) -> SharedSide:
    """Write one function for sides that are alike."""
    sides = tuple(side for side, _ in members)
    first, plain = members[0]
    name = f"side_{first}"
    lines = plain.text.replace("side_K", name).split("\n")
    for number in range(len(plain.cases)):
        labels = " ".join(f"case {each.cases[number]}:" for _, each in members)
        lines = [re.sub(rf"\bCASE_{number}\b", labels, line) for line in lines]
    count = len(plain.words)
    rows = ", ".join(f"{{{', '.join(map(str, each.words))}}}" for _, each in members)
    at = lines.index(OPENING) + 1
    lines[at:at] = [
        f"  const long long* const own = own_words<{count}>(job.w, "
        f"{name}_words[{name}_turn(side)]);"
    ]
    turns = " : ".join(f"side == {side} ? {turn}" for turn, side in enumerate(sides[:-1]))
    return SharedSide(
        name,
        (
            f"__constant__ const short {name}_words[][{count}] = {{{rows}}};",
            f"__device__ __forceinline__ int {name}_turn(int side) {{",
            f"  return {turns} : {len(sides) - 1};",
            "}",
            *lines,
        ),
        sides,
    )
