"""Generate a sentiment treebank: a small grammar whose labels follow by composition.

Every vertex of a tree has a label 0..4 that is a function of its children's labels and of the
operator that one of them is or begins with:

| left | right | label of the vertex |
| --- | --- | --- |
| "not", "lacks", "does not" ... | phrase | opposite: 0, 1 -> 3; 2 -> 2; 3, 4 -> 1 |
| "very" ... | phrase | to the end of the scale: 0, 1 -> 0; 2 -> 2; 3, 4 -> 4 |
| "slightly" ... | phrase | to the middle: 0, 1 -> 1; 2 -> 2; 3, 4 -> 3 |
| "but" | phrase | the phrase's; it will override what stands to its left |
| phrase | "but" phrase | that of the right child |
| "although" | phrase | the phrase's; it will give way to what stands to its right |
| "although" phrase | phrase | that of the right child |
| auxiliary | "not" | 2; the pair is an operator like "not" |
| phrase | phrase | both added, counted from 2, and kept within 0..4 |

So the label of a sentence depends on its shape and cannot be had from its words alone. No sentence
occurs twice in the three splits. The same seed gives the same text everywhere: of the random
generator only `random()` is used, whose values Python keeps from version to version.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import islice
from random import Random
from typing import NamedTuple

SPLITS = {"train": 4000, "dev": 500, "test": 500}
LABELS = 5
NEUTRAL = 2


# Words by part of speech, with the label that each has alone: 0 (very negative) to 4.
ADJECTIVES = {
    0: "awful dreadful horrible atrocious abysmal unbearable disastrous wretched",
    1: "dull bland clumsy weak tedious shallow stale predictable muddled flat forgettable lazy"
    " awkward lifeless sluggish uneven",
    2: "short long recent early quiet modern domestic foreign annual silent old new young local"
    " urban rural",
    3: "good charming funny clever warm fresh lively engaging graceful witty solid pleasant smart"
    " likable touching vivid",
    4: "brilliant superb magnificent dazzling masterful wonderful stunning exquisite",
}
NOUNS = {
    0: "disaster travesty catastrophe torture",
    1: "mess bore failure cliche letdown chore gimmick blunder",
    2: "film movie story plot script cast actor actress director camera scene ending dialogue"
    " character soundtrack drama comedy thriller sequel picture audience premise production"
    " performance screenplay editing score setting narrative theme",
    3: "delight treat pleasure charm surprise success gem joy",
    4: "masterpiece triumph marvel tour-de-force",
}
# Verbs of one person and one thing; in the form after "does" and in the one after "the film".
VERBS = {
    0: "ruins:ruin destroys:destroy wrecks:wreck butchers:butcher",
    1: "spoils:spoil weakens:weaken bores:bore wastes:waste cheapens:cheapen hurts:hurt",
    2: "shows:show follows:follow describes:describe offers:offer presents:present uses:use"
    " features:feature contains:contain becomes:become resembles:resemble introduces:introduce"
    " explores:explore",
    3: "enlivens:enliven improves:improve enriches:enrich supports:support amuses:amuse helps:help",
    4: "perfects:perfect elevates:elevate illuminates:illuminate transcends:transcend",
}
ADVERBS = {
    0: "horribly unbearably",
    1: "clumsily poorly badly lazily",
    2: "again today here often usually throughout",
    3: "nicely neatly smoothly warmly",
    4: "brilliantly beautifully",
}

DETERMINERS = "the this that its every one another"
PREPOSITIONS = "of about with from behind around"
PRONOUNS = "it everything this someone"
COPULAS = "is seems looks feels remains was"
AUXILIARIES = "does did can could will would"

# Operators: a word that changes the label of the phrase next to it; alone it is neutral.
NEGATORS = "not never hardly"
NEGATORS_OF_VERBS = "not n't never"
NEGATING_VERBS = "lacks avoids misses escapes"
INTENSIFIERS = "very really truly extremely deeply incredibly"
DIMINISHERS = "slightly somewhat mildly fairly rather"
CONTRASTS = "but yet"
CONCESSIONS = "although though while"


class Role(Enum):
    """Say what a phrase does to the phrase next to it."""

    PLAIN = "adds its label"
    NEGATE = "turns the label round"
    INTENSIFY = "moves the label to the end of the scale"
    DIMINISH = "moves the label towards the middle"
    CONTRAST = "is 'but' alone"
    OVERRIDE = "is 'but' with its phrase"
    CONCEDE = "is 'although' alone"
    YIELD = "is 'although' with its phrase"


_MAPPED = {
    Role.NEGATE: (3, 3, 2, 1, 1),
    Role.INTENSIFY: (0, 0, 2, 4, 4),
    Role.DIMINISH: (1, 1, 2, 3, 3),
}
_OPENS = {Role.CONTRAST: Role.OVERRIDE, Role.CONCEDE: Role.YIELD}


class Phrase(NamedTuple):
    """Hold a subtree: its label, what it does to its sibling, and its bracket text."""

    label: int
    role: Role
    text: str


def compose(left: Phrase, right: Phrase) -> Phrase:
    """Return the vertex above two phrases; the table above says what its label is.

    Raises: ValueError, when the table has no row for the two roles.
    """
    role = Role.PLAIN
    if left.role in _MAPPED and right.role is Role.PLAIN:
        label = _MAPPED[left.role][right.label]
    elif left.role in _OPENS and right.role is Role.PLAIN:
        label, role = right.label, _OPENS[left.role]
    elif (left.role, right.role) in ((Role.PLAIN, Role.OVERRIDE), (Role.YIELD, Role.PLAIN)):
        label = right.label
    elif left.role is Role.PLAIN and right.role is Role.NEGATE:
        label, role = NEUTRAL, Role.NEGATE
    elif left.role is right.role is Role.PLAIN:
        label = min(max(left.label + right.label - NEUTRAL, 0), LABELS - 1)
    else:
        raise ValueError(f"no rule for {left.role.name} next to {right.role.name}")
    return Phrase(label, role, f"({label} {left.text} {right.text})")


def word(text: str, label: int = NEUTRAL, role: Role = Role.PLAIN) -> Phrase:
    """Return a leaf."""
    return Phrase(label, role, f"({label} {text})")


def _sentences(seed: int) -> Iterator[Phrase]:
    """Draw sentences without end; a function for each symbol of the grammar."""
    draw = Random(seed).random

    def pick(words: str) -> str:
        several = words.split()
        return several[int(draw() * len(several))]

    def leaf(words: str, role: Role = Role.PLAIN) -> Phrase:
        return word(pick(words), role=role)

    def drawn(neutral: float) -> int:
        """Draw a label: neutral in that share of cases, else one of the other four."""
        return NEUTRAL if draw() < neutral else (0, 1, 1, 3, 3, 4)[int(draw() * 6)]

    def coloured(words: Mapping[int, str], neutral: float) -> Phrase:
        label = drawn(neutral)
        return word(pick(words[label]), label)

    def clause() -> Phrase:
        return compose(noun_phrase(neutral=0.85), verb_phrase())

    def noun_phrase(neutral: float) -> Phrase:
        kind = draw()
        if kind < 0.15 and neutral > 0.5:
            return leaf(PRONOUNS)
        noun = coloured(NOUNS, neutral=0.8)
        if kind < 0.55:
            noun = compose(adjective_phrase(neutral), noun)
        phrase = compose(leaf(DETERMINERS), noun)
        if kind > 0.9:
            inner = compose(leaf(DETERMINERS), coloured(NOUNS, 0.9))
            phrase = compose(phrase, compose(leaf(PREPOSITIONS), inner))
        return phrase

    def adjective_phrase(neutral: float) -> Phrase:
        kind = draw()
        phrase = coloured(ADJECTIVES, neutral)
        if kind < 0.2:
            phrase = compose(leaf(INTENSIFIERS, Role.INTENSIFY), phrase)
        elif kind < 0.35:
            phrase = compose(leaf(DIMINISHERS, Role.DIMINISH), phrase)
        elif kind < 0.45:
            joined = leaf(CONTRASTS, Role.CONTRAST)
            return compose(phrase, compose(joined, coloured(ADJECTIVES, 0)))
        elif kind < 0.55:
            return compose(phrase, compose(word("and"), coloured(ADJECTIVES, neutral)))
        if draw() < 0.2:
            phrase = compose(leaf(NEGATORS, Role.NEGATE), phrase)
        return phrase

    def verb_phrase() -> Phrase:
        kind = draw()
        if kind < 0.4:
            verb = leaf(COPULAS)
            if draw() < 0.3:
                verb = compose(verb, leaf(NEGATORS_OF_VERBS, Role.NEGATE))
            phrase = compose(verb, adjective_phrase(neutral=0.1))
        elif kind < 0.55:
            verb = leaf(NEGATING_VERBS, Role.NEGATE)
            phrase = compose(verb, noun_phrase(neutral=0.1))
        else:
            negated = draw() < 0.4
            label = drawn(neutral=0.6)
            finite, base = pick(VERBS[label]).split(":")
            verb = word(base if negated else finite, label)
            phrase = compose(verb, noun_phrase(neutral=0.3))
            if negated:
                negator = leaf(NEGATORS_OF_VERBS, Role.NEGATE)
                phrase = compose(compose(leaf(AUXILIARIES), negator), phrase)
        if draw() < 0.25:
            phrase = compose(phrase, coloured(ADVERBS, neutral=0.5))
        return phrase

    while True:
        kind = draw()
        if kind < 0.45:
            body = clause()
        elif kind < 0.65:
            right = compose(leaf(CONTRASTS, Role.CONTRAST), clause())
            body = compose(compose(clause(), word(",")), right)
        elif kind < 0.85:
            left = compose(clause(), word(","))
            body = compose(compose(leaf(CONCESSIONS, Role.CONCEDE), left), clause())
        else:
            body = compose(clause(), compose(word("and"), clause()))
        yield compose(body, word("." if draw() < 0.9 else "!"))


def generate_treebank(seed: int = 0) -> dict[str, str]:
    """Return the text of train, dev and test: one tree a line in bracket notation.

    Args:
        seed: the same seed gives the same text.
    Source: the notation of the Stanford Sentiment Treebank (Socher et al., EMNLP 2013); grammar,
        words and rules are ours.
    """
    drawn, different = _sentences(seed), dict[str, None]()
    while len(different) < sum(SPLITS.values()):
        different[next(drawn).text] = None
    lines = iter(different)
    return {split: "".join(f"{line}\n" for line in islice(lines, n)) for split, n in SPLITS.items()}
