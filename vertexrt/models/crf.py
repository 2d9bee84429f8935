"""A conditional random field over the tags of a sentence, as two vertex types."""

from __future__ import annotations

from functools import reduce
from operator import add

import vertexrt as vrt
from vertexrt import nn
from vertexrt.models.bilstm_tagger import Direction


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
