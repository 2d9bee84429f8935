"""Translate a sentence: a decoder that attends over the states of an encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt import nn


class Encoder(vrt.VertexFunction):
    """A GRU along the source. Pulls `word`. Hands up its key for the attention, computed once."""

    def __init__(self, vocab: int, embed: int, hidden: int) -> None:
        super().__init__(state={"h": hidden, "key": hidden})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.cell, self.key = nn.GRUCell(embed, hidden), vrt.Parameter((hidden, hidden))

    def forward(self) -> None:
        """Compute one word of the source."""
        h = self.cell(vrt.embed(self.embedding, self.pull("word")), self.gather("before").h)
        h, key = self.push("read", h), self.push("key", self.key @ h)
        self.scatter(h=h, key=key)


class SourceWord(vrt.VertexFunction):
    """A word of the source that was encoded before. Pulls `source`, its state, and `source_key`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(state=encoder.state)

    def forward(self) -> None:
        """Hand up one word of the source."""
        shape = (self.state["h"],)
        self.scatter(h=self.pull("source", shape=shape), key=self.pull("source_key", shape=shape))


class TargetWord(vrt.VertexFunction):
    """A GRU along the target, which begins with the last state of the encoder.

    Pulls `said`, the word before, and `label`, the word to be said; with a memory also `h`, what it
    pushed at the word before.
    """

    def __init__(
        self, encoder: Encoder, vocab: int, embed: int, memory: SourceWord | None = None
    ) -> None:
        hidden = encoder.state["h"]
        source = encoder if memory is None else [encoder, memory]
        super().__init__(state={"h": hidden}, inputs={"start": encoder, "source": source})
        self.carried = memory is not None
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.query = vrt.Parameter((hidden, hidden))
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(embed + hidden, hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def forward(self) -> None:
        """Compute one word of the target."""
        before = self.gather("before").h + self.gather("start").h
        if self.carried:
            before = before + self.pull("h", shape=(self.state["h"],))
        source = self.gather_all("source")
        match = vrt.tanh(source.key + self.query @ before)
        share = vrt.softmax(vrt.sum(self.score * match, axis="elements"), axis="children")
        context, said = vrt.sum(share * source.h), vrt.embed(self.embedding, self.pull("said"))
        h = self.cell(vrt.concat(said, context), before)
        self.scatter(h=h)
        if self.carried:
            self.push("h", h)
        logits = self.push("logits", self.out(vrt.concat(h, context)))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Seq2Seq(vrt.Model):
    """Sequence to sequence with additive attention (Bahdanau, Cho and Bengio, ICLR 2015).

    Args:
        vocab, num_said: words of the source and of the target; embed, hidden: elements.
        carried: states are pushed and pulled, which `generate` needs; parameters are the same.
    """

    def __init__(
        self, vocab: int, num_said: int, embed: int, hidden: int, *, carried: bool = False
    ) -> None:
        self.encoder = Encoder(vocab, embed, hidden)
        self.memory = SourceWord(self.encoder) if carried else None
        self.decoder = TargetWord(self.encoder, num_said, embed, self.memory)

    @staticmethod
    def generate(
        net: vrt.Network, batch: vrt.GraphBatch, *, end: int, num_beams: int = 1, **options: Any
    ) -> list[list[vrt.types.Generated]]:
        """Translate.

        Args:
            net: compiled with `carried`.
            batch: pairs, of which the sources are read.
            end: the word that begins and ends a target.
            num_beams, options: of `vrt.Decoder` and its calls; `max_length` is one.
        Returns: for each pair what was found, the best first.
        """
        words = batch.of_type("encoder")
        sizes = np.bincount(batch.graph_of[words])
        hidden = net.program.params["encoder.key"][:1]
        none = vrt.Rows(np.zeros((1, *hidden)), np.full(batch.num_vertices, -1))
        empty = batch.with_pulls(dict.fromkeys(("source", "source_key", "h"), none))
        read = net(empty, outputs=("read", "key"), vertices=words, arrays="device")
        steps = vrt.GraphBatch.from_graphs(
            vrt.InputGraph.from_types(
                {"encoder": 0, "memory": size, "decoder": 1},
                {
                    ("memory", "source", "decoder"): [(word, 0) for word in range(size)],
                    ("decoder", "before", "decoder"): [],
                    ("encoder", "start", "decoder"): [],
                },
                {"decoder": {"said": [end]}},
            )
            for size in sizes.tolist()
        )
        index = np.full(steps.num_vertices, -1)
        index[steps.of_type("memory")] = np.arange(len(words))
        steps = steps.with_pulls(
            {
                "source": vrt.Rows(read["read"], index),
                "source_key": vrt.Rows(read["key"], index),
                "word": np.full(steps.num_vertices, -1),  # of no encoder
            }
        )
        decoder = vrt.Decoder(net, steps, num_beams=num_beams, word="said")
        start = read["read"][np.repeat(np.cumsum(sizes) - 1, num_beams)]
        return decoder({"h": start}, end=end, **options)
