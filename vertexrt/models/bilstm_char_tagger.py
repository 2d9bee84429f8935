"""A tagger that reads a sentence from both ends, and the letters of each word."""

from __future__ import annotations

import vertexrt as vrt
from vertexrt.models.bilstm_tagger import Direction
from vertexrt.models.crf import Scores, TagInPath
from vertexrt.models.words import Letters, SpeltWord


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
