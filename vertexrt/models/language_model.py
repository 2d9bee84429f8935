"""Language models in layers: recurrent layers one above the other, and the next word.

Each layer is a vertex type, so it works on a word as soon as the layer below has: all layers run
side by side, as a wavefront. The lowest one looks words up itself: what it multiplies them by
needs no other vertex, so it is one product for all words.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

import vertexrt as vrt
from vertexrt import nn
from vertexrt.errors import UsageError


class RecurrentLayer(vrt.VertexFunction):
    """One layer; `below` is the same word one layer down, `before` the word before in this one.

    Args:
        below: the layer there; for the lowest one the table of words, which pulls `word`.
        cell: a recurrent one of `vrt.nn`, whose `states` name the fields of its state, h first.
        dropout: share of zeros in its input, and in the input of the softmax.
        carried: the first word of a piece pulls the state after the piece before, by field.
        residual: the input is added to what the layer hands up (He et al. 2016).
    """

    def __init__(
        self,
        below: RecurrentLayer | vrt.Parameter,
        cell: Any,
        dropout: float,
        carried: bool,
        residual: bool,
    ) -> None:
        # With a residual, h is what is handed up.
        fields = ("inner", *cell.states[1:]) if residual else cell.states
        words = below if isinstance(below, vrt.Parameter) else None
        inputs = {} if isinstance(below, vrt.Parameter) else {"below": below}
        super().__init__(state=dict.fromkeys(("h", *fields), cell.hidden_size), inputs=inputs)
        self.words, self.cell, self.fields = words, cell, fields
        self.dropout, self.carried, self.residual = dropout, carried, residual

    def forward(self) -> None:
        """Compute one word."""
        if self.words is None:
            x = self.gather("below").h
        else:
            x = vrt.embed(self.words, self.pull("word"))
        before, states = self.gather("before"), self.cell.states
        state = [getattr(before, name) for name in self.fields]
        if self.carried:
            pulled = [self.pull(name, shape=(self.cell.hidden_size,)) for name in states]
            state = [kept + start for kept, start in zip(state, pulled, strict=True)]
        several = len(state) > 1
        found = self.cell(vrt.random.dropout(x, self.dropout), state if several else state[0])
        found = found if several else (found,)
        after = dict(zip(self.fields, found, strict=True))
        self.scatter(**({"h": found[0] + x} if self.residual else {}), **after)
        for name, value in zip(states, found, strict=True):
            self.push(name, value)


class NextWord(vrt.VertexFunction):
    """Predict the next word. Pulls `label`; pushes `logits` and `loss`."""

    def __init__(self, top: RecurrentLayer, weight: vrt.Parameter) -> None:
        super().__init__(state={}, inputs={"below": top})
        self.weight, self.dropout = weight, top.dropout
        self.bias = vrt.Parameter((weight.shape[0],), init=vrt.init.zeros)

    def forward(self) -> None:
        """Compute one word."""
        x = vrt.random.dropout(self.gather("below").h, self.dropout)
        logits = self.push("logits", self.weight @ x + self.bias)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class LanguageModel(vrt.Model):
    """Predict the next word (Mikolov et al. 2010; Zaremba et al. 2014).

    Vertex types are `layers.0` and so on, and `next`. exp of the mean loss is the perplexity.
    Layers push their states, by field. A subclass names the `cell` of its layers, and whether they
    are `residual`: see `RecurrentLayer`.

    Args:
        vocab: words; embed: elements of a word; hidden: of the states of a layer.
        layers: how many.
        dropout, carried: as those of `RecurrentLayer`.
        tied: words are looked up in the weights of the softmax (Press and Wolf 2017).
    Raises: UsageError, when sizes are not alike that have to be.
    """

    cell: ClassVar[type[Any]]
    residual: ClassVar[bool] = False

    def __init__(
        self,
        vocab: int,
        embed: int,
        hidden: int,
        *,
        layers: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
        carried: bool = False,
    ) -> None:
        if (tied or self.residual) and hidden != embed:
            raise UsageError.at(
                "LanguageModel",
                f"words of {embed} elements and layers of {hidden}",
                "one size",
                "give embed and hidden alike",
            )

        def layer(below: RecurrentLayer | vrt.Parameter, size: int) -> RecurrentLayer:
            return RecurrentLayer(below, self.cell(size, hidden), dropout, carried, self.residual)

        words = vrt.Parameter((vocab, embed), vrt.init.uniform(0.1))
        self.layers = [layer(words, embed)]
        for _ in range(layers - 1):
            self.layers.append(layer(self.layers[-1], hidden))
        weight = words if tied else vrt.Parameter((vocab, hidden))
        self.next = NextWord(self.layers[-1], weight)

    @staticmethod
    def generate(
        net: vrt.Network, batch: vrt.GraphBatch, *, num_beams: int = 1, **options: Any
    ) -> list[list[vrt.types.Generated]]:
        """Go on with texts.

        Args:
            net: compiled with `carried`.
            batch: texts, each of a word or more, which are read first; their labels are not.
            num_beams, options: of `vrt.Decoder` and its calls; `max_length` is one.
        Returns: for each text what was found, the best first.
        """
        carried = vrt.CarriedState(net)
        pushed, ends = net(carried.put(batch), outputs=carried.shapes), carried.ends(batch)
        layers = len(ends) // len(batch)
        types = [*(f"layers.{k}" for k in range(layers)), "next"]
        edges = {(below, "below", above): [(0, 0)] for below, above in pairwise(types)}
        edges |= {(layer, "before", layer): [] for layer in types[:-1]}
        # The first step is the last word of a text, with the states that are there before it.
        step = vrt.InputGraph.from_types(dict.fromkeys(types, 1), edges, {})
        steps = vrt.GraphBatch.from_graphs([step] * len(batch))
        word = np.full(steps.num_vertices, -1)
        word[steps.of_type("layers.0")] = np.asarray(batch.pulls["word"])[ends[::layers]]
        first = np.repeat(batch.sizes() == layers + 1, layers)[:, None]
        carried.keep(batch, {name: np.where(first, 0, x[ends - 1]) for name, x in pushed.items()})
        steps = carried.put(steps.with_pulls({"word": word}))
        return vrt.Decoder(net, steps, num_beams=num_beams)(**options)


class RNNLanguageModel(LanguageModel):
    """Layers of simple recurrent networks (Elman 1990) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell = nn.RNNCell


class LSTMLanguageModel(LanguageModel):
    """Layers of LSTMs (Hochreiter and Schmidhuber 1997) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell = nn.LSTMCell


class GRULanguageModel(LanguageModel):
    """Layers of gated recurrent units (Cho et al. 2014) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell = nn.GRUCell


class SLSTMLanguageModel(LanguageModel):
    """Layers of LSTMs with exponential gates (Beck et al. 2024), with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell = nn.SLSTMCell


class ResidualRNN(LanguageModel):
    """48 layers, each added to its input (He et al. 2016).

    In Diamos et al. 2016, section 5.3.1, a skip spans N layers, best of all 3 or 4.

    Args:
        vocab: words; hidden: elements of words and layers; others as those of `LanguageModel`.
    """

    cell, residual = nn.RNNCell, True

    def __init__(
        self,
        vocab: int,
        hidden: int,
        *,
        layers: int = 48,
        dropout: float = 0.0,
        tied: bool = False,
        carried: bool = False,
    ) -> None:
        super().__init__(
            vocab, hidden, hidden, layers=layers, dropout=dropout, tied=tied, carried=carried
        )
