"""Words that are looked up: the lowest vertex type of many models."""

from __future__ import annotations

import vertexrt as vrt


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
