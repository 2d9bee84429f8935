"""Generate tagged sentences, and pairs of sentences.

What is tagged are names of people, places and firms, which their letters and words tell. A name is
drawn from syllables, so hardly one occurs twice: places end in -ton, -burg or -ville, a person has
a title before, or a verb of speech after, and a firm has `Ltd` or `Corp` after it.
"""

from random import Random

SPLITS = {"train": 600, "dev": 150, "test": 150}

LETTERS, LONGEST = "abcdefgh", 8  # of pairs

SYLLABLES = "ba ko mi ren dal tor ves lin gar po shi um el fa ner qui ra sto vel"
PLACES = "ton burg ville"
TITLES = "Mr Ms Dr Professor"
FIRMS = "Ltd Corp"
SPEECH = "said argued denied explained"
COMMON = (
    "the report was late again",
    "prices rose by half last year",
    "nobody knew why",
    "a new plan is expected soon",
    "the road is closed today",
)


def generate_tagged(seed: int = 0) -> dict[str, str]:
    """Return the text of each split: a sentence a line, `word|tag` between spaces."""
    return {
        split: "".join(_sentence(Random(f"{seed} {split} {number}")) for number in range(count))
        for split, count in SPLITS.items()
    }


def _sentence(draw: Random) -> str:
    kinds = draw.sample((_person, _firm, _place, _common, _common), 2)
    return " ".join([*(make(draw) for make in kinds), ".|O"]) + "\n"


def _name(draw: Random) -> str:
    return "".join(draw.choices(SYLLABLES.split(), k=draw.randint(2, 3))).capitalize()


def _common(draw: Random) -> str:
    return " ".join(f"{word}|O" for word in draw.choice(COMMON).split())


def _person(draw: Random) -> str:
    tags = ("B-PER", "I-PER")[: draw.randint(1, 2)]
    names = " ".join(f"{_name(draw)}|{tag}" for tag in tags)
    title = f"{draw.choice(TITLES.split())}|O " if draw.random() < 0.5 else ""
    return f"{title}{names} {draw.choice(SPEECH.split())}|O that|O {_common(draw)}"


def _firm(draw: Random) -> str:
    return f"shares|O of|O {_name(draw)}|B-ORG {draw.choice(FIRMS.split())}|I-ORG"


def _place(draw: Random) -> str:
    return f"all|O is|O quiet|O in|O {_name(draw)}{draw.choice(PLACES.split())}|B-LOC"


def generate_pairs(seed: int) -> dict[str, str]:
    """Make pairs: letters, and the same in upper case from the last to the first."""
    texts = {}
    for split, count in {"train": 800, "dev": 100, "test": 100}.items():
        draw = Random(f"{seed} {split}")
        lines = [draw.choices(LETTERS, k=draw.randint(2, LONGEST)) for _ in range(count)]
        texts[split] = "".join(
            f"{' '.join(line)}\t{' '.join(line[::-1]).upper()}\n" for line in lines
        )
    return texts
