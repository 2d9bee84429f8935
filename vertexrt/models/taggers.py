"""Taggers that read a sentence from both ends; the second one reads the letters of words, too."""

from collections.abc import Mapping
from functools import reduce
from operator import add

import vertexrt as vrt
from vertexrt import nn


class LookedUpWord(vrt.VertexFunction):
    """Look a word up. Pulls `word`.

    Args:
        vocab: words; embed: elements; init: of their vectors.
    """

    def __init__(self, vocab: int, embed: int, init: vrt.init.Initializer) -> None:
        super().__init__(state={"h": embed})
        self.weight = vrt.Parameter((vocab, embed), init)

    def forward(self) -> None:
        """Compute one word."""
        self.scatter(h=vrt.embed(self.weight, self.pull("word")))


class Direction(vrt.VertexFunction):
    """An LSTM along a sentence; `before` is the word before in the direction of reading."""

    def __init__(self, word: vrt.VertexFunction, hidden: int, dropout: float) -> None:
        super().__init__(state={"h": hidden, "c": hidden}, inputs={"word": word})
        self.cell, self.dropout = nn.LSTMCell(word.state["h"], hidden), dropout

    def forward(self) -> None:
        """Compute one word."""
        x, before = vrt.random.dropout(self.gather("word").h, self.dropout), self.gather("before")
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)


class Label(vrt.VertexFunction):
    """Classify by the `h` of other vertices. Pulls `label`; pushes `logits` and `loss`.

    Args:
        inputs: by relation; classes: labels; dropout: share of zeros in what they hand up.
    """

    def __init__(
        self, inputs: Mapping[str, vrt.VertexFunction], classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__(state={}, inputs=inputs)
        self.out = nn.Linear(sum(each.state["h"] for each in inputs.values()), classes)
        self.dropout = dropout

    def forward(self) -> None:
        """Compute one vertex."""
        states = vrt.concat(*(self.gather(name).h for name in self.inputs))
        logits = self.push("logits", self.out(vrt.random.dropout(states, self.dropout)))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class BiLSTMTagger(vrt.Model):
    """A bidirectional LSTM tagger (Huang et al. 2015; the BiLSTM of VPPS and DyNet).

    Args:
        vocab: words; embed, hidden: elements; classes: tags; dropout: share of zeros.
    """

    def __init__(
        self, vocab: int, embed: int, hidden: int, classes: int, dropout: float = 0.0
    ) -> None:
        self.word = LookedUpWord(vocab, embed, vrt.init.normal(0.1))
        self.left, self.right = (Direction(self.word, hidden, dropout) for _ in range(2))
        self.tag = Label({"left": self.left, "right": self.right}, classes, dropout)


class Letters(vrt.VertexFunction):
    """An LSTM along the letters of a word, in one direction. Pulls `letter`."""

    def __init__(self, letters: int, hidden: int) -> None:
        super().__init__(state={"h": hidden, "c": hidden})
        self.embedding = vrt.Parameter((letters, hidden), init=vrt.init.normal(0.1))
        self.cell = nn.LSTMCell(hidden, hidden)

    def forward(self) -> None:
        """Compute one letter."""
        x, before = vrt.embed(self.embedding, self.pull("letter")), self.gather("before")
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)


class SpeltWord(vrt.VertexFunction):
    """What is known of a word: its vector, and its letters from both ends. Pulls `word`."""

    def __init__(
        self, vocab: int, embed: int, forth: Letters, back: Letters, dropout: float
    ) -> None:
        size = embed + forth.state["h"] + back.state["h"]
        super().__init__(state={"h": size}, inputs={"forth": forth, "back": back})
        self.weight = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.dropout = dropout

    def forward(self) -> None:
        """Compute one word."""
        # Of a whole word: its letters must do.
        known = vrt.random.dropout(vrt.ones(1), self.dropout)[0]
        word = known * vrt.embed(self.weight, self.pull("word"))
        self.scatter(h=vrt.concat(word, self.gather("forth").h, self.gather("back").h))


class Scores(vrt.VertexFunction):
    """Score the tags of a word, and what may come after each of them.

    `rest` is the log-sum of the scores of all ways from a tag to the end, but for a constant.
    """

    def __init__(self, left: Direction, right: Direction, tags: int) -> None:
        super().__init__(state={"score": tags, "rest": tags}, inputs={"left": left, "right": right})
        self.out = nn.Linear(left.state["h"] + right.state["h"], tags)
        self.moves = vrt.Parameter((tags, tags), vrt.init.normal(0.1))  # from a row's tag
        self.tags, self.dropout = tags, left.dropout

    def forward(self) -> None:
        """Compute one word, after the word that follows it."""
        both = vrt.concat(self.gather("left").h, self.gather("right").h)
        after = self.gather("after")
        then = after.score + after.rest
        ways = vrt.stack(*(vrt.logsumexp(self.moves[tag] + then) for tag in range(self.tags)))
        rest = self.present("after") * (ways - vrt.logsumexp(ways))
        self.scatter(score=self.out(vrt.random.dropout(both, self.dropout)), rest=rest)


class TagInPath(vrt.VertexFunction):
    """Tag a word by all paths through the sentence. Pulls `label`.

    `path` is the log-probability of each tag by the words up to this one, `logits` by the whole
    sentence. The losses of a sentence's words sum to -log p(tags): each is what its word adds.
    Source: Lafferty, McCallum and Pereira 2001; Lample et al. 2016, section 2.2.
    """

    def __init__(self, scores: Scores) -> None:
        tags = scores.tags
        super().__init__(state={"path": tags, "moved": tags}, inputs={"scores": scores})
        self.moves, self.tags = scores.moves, tags

    def forward(self) -> None:
        """Compute one word, after the word before it."""
        here, before = self.gather("scores"), self.gather("before")
        # No exp is too large or all too small: a path's shares sum to 1.
        ways = [vrt.exp(self.moves[tag] + before.path[tag]) for tag in range(self.tags)]
        path = here.score + self.present("before") * vrt.log(reduce(add, ways))
        total, label = vrt.logsumexp(path), self.pull_index("label")
        self.scatter(path=path - total, moved=vrt.embed(self.moves, label))
        both = path + here.rest
        self.push("logits", both - vrt.logsumexp(both))
        self.push("loss", self.present("label") * (total - (here.score + before.moved)[label]))


class BiLSTMCharTagger(vrt.Model):
    """A bidirectional LSTM over words and letters, and a CRF of tags (Lample et al. 2016).

    VPPS and DyNet are measured without the CRF.

    Args:
        vocab, num_letter, classes: words, letters and tags; dropout: share of zeros.
        embed, hidden: elements of a word and of the LSTMs over words; spelling: over letters.
    """

    def __init__(
        self,
        vocab: int,
        num_letter: int,
        classes: int,
        embed: int,
        hidden: int,
        spelling: int = 32,
        dropout: float = 0.0,
    ) -> None:
        self.forth, self.back = Letters(num_letter, spelling), Letters(num_letter, spelling)
        self.word = SpeltWord(vocab, embed, self.forth, self.back, 0.5 * dropout)
        self.left, self.right = (Direction(self.word, hidden, dropout) for _ in range(2))
        self.scores = Scores(self.left, self.right, classes)
        self.tag = TagInPath(self.scores)
