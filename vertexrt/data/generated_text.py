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
    draw, log_probability = Random(seed).random, 0.0  # of what was drawn

    def happens(probability: float) -> bool:
        nonlocal log_probability
        yes = draw() < probability
        log_probability += math.log(probability if yes else 1 - probability)
        return yes

    def pick(part: str) -> str:
        """Draw a word; the one of rank r has a share proportional to 1 / (r + 3)."""
        nonlocal log_probability
        words = WORDS[part].split(" ")
        weights = [1 / (rank + 3) for rank in range(len(words))]
        left = draw() * sum(weights)
        rank = 0
        while rank < len(words) - 1 and left >= weights[rank]:
            left -= weights[rank]
            rank += 1
        log_probability += math.log(weights[rank] / sum(weights))
        return words[rank]

    def noun_phrase(plural: bool) -> list[str]:
        words = [pick("plural determiner" if plural else "singular determiner")]
        while happens(0.25):
            words.append(pick("adjective"))
        noun = pick("noun")
        words.append(with_s(noun) if plural else noun)
        if happens(0.2):
            words.append(pick("preposition"))
            words += noun_phrase(happens(0.5))
        elif happens(0.2):
            words += ["that", *verb_phrase(plural)]
        return words

    def verb_phrase(plural: bool) -> list[str]:
        alone = happens(0.35)
        verb = pick("verb alone" if alone else "verb with object")
        words = [verb if plural else with_s(verb)]
        return words if alone else words + noun_phrase(happens(0.5))

    def sentence() -> list[str]:
        words = [pick("front"), ","] if happens(0.15) else []
        plural = happens(0.5)
        words += noun_phrase(plural)
        words += verb_phrase(plural)
        return [*words, pick("adverb")] if happens(0.2) else words

    made = {}
    for split, count in SPLITS.items():
        log_probability = 0.0
        sentences = [sentence() for _ in range(count)]
        tokens = sum(len(words) + 1 for words in sentences)
        text = "".join(" ".join(words) + "\n" for words in sentences)
        made[split] = GeneratedText(text, math.exp(-log_probability / tokens))
    return made
