"""Generate language-model text: a small grammar in which a verb agrees with a noun far before it.

    S   -> [front ,] NP VP [adverb]
    NP  -> determiner adjective* noun [PP | REL]      singular or plural throughout
    PP  -> preposition NP
    REL -> that VP                                    agrees with the noun before it
    VP  -> verb | verb NP

Every sentence has one derivation only, so the probability with which the grammar makes it is known,
and with it the perplexity that no model can beat on average. The same seed gives the same text.
"""

import math
from random import Random
from typing import NamedTuple

SPLITS = {"train": 6000, "dev": 600, "test": 600}

# By part of speech, common words first.
WORDS = {
    "noun": "farmer sailor teacher doctor neighbour baker singer painter driver lawyer gardener"
    " miner nurse pilot student writer hunter dancer tailor judge dog horse cow goat cat bird"
    " rabbit duck house bridge tower garden field river road ship engine wagon lamp table letter"
    " basket ladder window mirror blanket hammer bottle",
    "adjective": "old young small large quiet loud tall short kind proud tired hungry brave clever"
    " gentle stubborn red green white black wooden broken empty heavy clean dusty famous lonely",
    "verb alone": "sleep wait dream fall shine rest move sing laugh wander tremble vanish",
    "verb with object": "see follow help like fear know meet paint watch remember hear visit carry"
    " guard admire avoid",
    "adverb": "often again slowly today outside together quickly everywhere",
    "front": "yesterday sometimes meanwhile later suddenly still",
    "preposition": "near behind beside above below with",
    "singular determiner": "the this every another a",
    "plural determiner": "the these some many two",
}


class GeneratedText(NamedTuple):
    """Hold the text of a split.

    Attributes:
        text: one sentence a line.
        perplexity: that of the grammar itself on this text, `<eos>` counted; a model that matches
            it has learned everything.
    """

    text: str
    perplexity: float


class _TextWriter:
    """Draw sentences and add up the logarithms of what was drawn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random
        self.words = {part: words.split(" ") for part, words in WORDS.items()}
        self.log_probability = 0.0

    def happens(self, probability: float) -> bool:
        yes = self.random() < probability
        self.log_probability += math.log(probability if yes else 1 - probability)
        return yes

    def pick(self, part: str) -> str:
        """Draw a word; the one of rank r has a share proportional to 1 / (r + 3)."""
        words = self.words[part]
        weights = [1 / (rank + 3) for rank in range(len(words))]
        left = self.random() * sum(weights)
        rank = 0
        while rank < len(words) - 1 and left >= weights[rank]:
            left -= weights[rank]
            rank += 1
        self.log_probability += math.log(weights[rank] / sum(weights))
        return words[rank]

    def sentence(self) -> list[str]:
        words: list[str] = []
        if self.happens(0.15):
            words += [self.pick("front"), ","]
        plural = self.happens(0.5)
        words += self.noun_phrase(plural)
        words += self.verb_phrase(plural)
        if self.happens(0.2):
            words.append(self.pick("adverb"))
        return words

    def noun_phrase(self, plural: bool) -> list[str]:
        words = [self.pick("plural determiner" if plural else "singular determiner")]
        while self.happens(0.25):
            words.append(self.pick("adjective"))
        noun = self.pick("noun")
        words.append(with_s(noun) if plural else noun)
        if self.happens(0.2):
            words.append(self.pick("preposition"))
            words += self.noun_phrase(self.happens(0.5))
        elif self.happens(0.2):
            words.append("that")
            words += self.verb_phrase(plural)
        return words

    def verb_phrase(self, plural: bool) -> list[str]:
        if self.happens(0.35):
            verb = self.pick("verb alone")
            return [verb if plural else with_s(verb)]
        verb = self.pick("verb with object")
        return [verb if plural else with_s(verb), *self.noun_phrase(self.happens(0.5))]


def with_s(word: str) -> str:
    """Return the plural of a noun, or a verb as it follows a singular noun."""
    if word.endswith(("ch", "sh")):
        return word + "es"
    if word.endswith("rry"):
        return word[:-1] + "ies"
    return word + "s"


def generate_text(seed: int = 0) -> dict[str, GeneratedText]:
    """Return train, dev and test: sentences of the grammar above.

    Args:
        seed: the same seed gives the same text.
    """
    writer = _TextWriter(seed)
    made = {}
    for split, count in SPLITS.items():
        writer.log_probability = 0.0
        sentences = [writer.sentence() for _ in range(count)]
        tokens = sum(len(words) + 1 for words in sentences)
        text = "".join(" ".join(words) + "\n" for words in sentences)
        made[split] = GeneratedText(text, math.exp(-writer.log_probability / tokens))
    return made
