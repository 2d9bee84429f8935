"""Language models in layers: recurrent layers one above the other, and the next word.

Each layer is a vertex type, so it works on a word as soon as the layer below has: all layers run
side by side, as a wavefront. The lowest one looks words up itself: what it multiplies them by
needs no other vertex, so it is one product for all words.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

import vertexrt as vrt
from vertexrt import nn
from vertexrt.errors import UsageError


class LayerForm(NamedTuple):
    """Say what a layer is.

    Attributes:
        cell: class of its cell, of `vrt.nn`, which is given the elements of its input and of h.
        state: names of the fields of the cell's state; h comes first. hidden: elements of each.
        dropout: share of zeros in its input, and in the input of the softmax.
        carried: the first word of a piece pulls the state after the piece before, by field.
        residual: the input is added to what the layer hands up (He et al. 2016).
    """

    cell: type[Any]
    state: tuple[str, ...]
    hidden: int
    dropout: float = 0.0
    carried: bool = False
    residual: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Name the fields of the cell's state; with a residual, h is what is handed up."""
        return ("inner", *self.state[1:]) if self.residual else self.state


class RecurrentLayer(vrt.VertexFunction):
    """One layer; `below` is the same word one layer down, `before` the word before in this one.

    Args:
        below: the layer there; for the lowest one the table of words, which pulls `word`.
    """

    def __init__(self, below: RecurrentLayer | vrt.Parameter, form: LayerForm) -> None:
        fields = dict.fromkeys(("h", *form.fields), form.hidden)
        words = below if isinstance(below, vrt.Parameter) else None
        inputs = {} if isinstance(below, vrt.Parameter) else {"below": below}
        super().__init__(state=fields, inputs=inputs)
        size = form.hidden if words is None else words.shape[1]
        self.words, self.form, self.cell = words, form, form.cell(size, form.hidden)

    def below(self) -> Any:
        """Return what the layer there hands up, or the word."""
        if self.words is None:
            return self.gather("below").h
        return vrt.embed(self.words, self.pull("word"))

    def forward(self) -> None:
        """Compute one word."""
        form, x = self.form, self.below()
        before = vars(self.gather("before"))
        state = [before[name] for name in form.fields]
        if form.carried:
            pulled = [self.pull(name, shape=(form.hidden,)) for name in form.state]
            state = [kept + start for kept, start in zip(state, pulled, strict=True)]
        found = self.cell(
            vrt.random.dropout(x, form.dropout), state if len(state) > 1 else state[0]
        )
        found = found if len(state) > 1 else (found,)
        after = dict(zip(form.fields, found, strict=True))
        self.scatter(**({"h": found[0] + x} if form.residual else {}), **after)
        for name, value in zip(form.state, found, strict=True):
            self.push(name, value)


class NextWord(vrt.VertexFunction):
    """Predict the next word. Pulls `label`; pushes `logits` and `loss`."""

    def __init__(self, top: RecurrentLayer, weight: vrt.Parameter) -> None:
        super().__init__(state={}, inputs={"below": top})
        self.weight, self.dropout = weight, top.form.dropout
        self.bias = vrt.Parameter((weight.shape[0],), init=vrt.init.zeros)

    def forward(self) -> None:
        """Compute one word."""
        x = vrt.random.dropout(self.gather("below").h, self.dropout)
        logits = self.weight @ x + self.bias
        self.push("logits", logits)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class LanguageModel(vrt.Model):
    """Predict the next word (Mikolov et al. 2010; Zaremba et al. 2014).

    Vertex types are `layers.0` and so on, and `next`. exp of the mean loss is the perplexity.
    Layers push their states, by field. A subclass names the `cell` of its layers and the `state` of
    that, and whether they are `residual`: see `LayerForm`.

    Args:
        vocab: words; embed: elements of a word; hidden: of the states of a layer.
        layers: how many.
        dropout, carried: as those of `LayerForm`.
        tied: words are looked up in the weights of the softmax (Press and Wolf 2017).
    Raises: UsageError, when sizes are not alike that have to be.
    """

    cell: ClassVar[type[Any]]
    state: ClassVar[tuple[str, ...]]
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
        form = LayerForm(self.cell, self.state, hidden, dropout, carried, self.residual)
        words = vrt.Parameter((vocab, embed), vrt.init.uniform(0.1))
        self.layers = [RecurrentLayer(words, form)]
        for _ in range(layers - 1):
            self.layers.append(RecurrentLayer(self.layers[-1], form))
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
        edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {
            (below, "below", above): [(0, 0)] for below, above in pairwise(types)
        }
        edges |= {(layer, "before", layer): [] for layer in types[:-1]}
        step = vrt.InputGraph.from_types(dict.fromkeys(types, 1), edges, {})
        steps = vrt.GraphBatch.from_graphs([step] * len(batch))
        # The first step is the last word of a text, with the states that are there before it.
        index, word = np.full((2, steps.num_vertices), -1)
        index[carried.ends(steps)] = np.arange(len(ends))
        word[steps.of_type("layers.0")] = np.asarray(batch.pulls["word"])[ends[::layers]]
        first = np.repeat(batch.sizes() == layers + 1, layers)[:, None]
        states = {
            name: vrt.Rows(np.where(first, 0, x[ends - 1]), index) for name, x in pushed.items()
        }
        decoder = vrt.Decoder(net, steps.with_pulls({"word": word, **states}), num_beams=num_beams)
        return decoder(**options)


class RNNLanguageModel(LanguageModel):
    """Layers of simple recurrent networks (Elman 1990) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.RNNCell, ("h",)


class LSTMLanguageModel(LanguageModel):
    """Layers of LSTMs (Hochreiter and Schmidhuber 1997) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.LSTMCell, ("h", "c")


class GRULanguageModel(LanguageModel):
    """Layers of gated recurrent units (Cho et al. 2014) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.GRUCell, ("h",)


class SLSTMLanguageModel(LanguageModel):
    """Layers of LSTMs with exponential gates (Beck et al. 2024), with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.SLSTMCell, ("h", "c", "n", "m")


class ResidualRNN(LanguageModel):
    """48 layers, each added to its input (He et al. 2016).

    In Diamos et al. 2016, section 5.3.1, a skip spans N layers, best of all 3 or 4.

    Args:
        vocab: words; hidden: elements of words and layers; others as those of `LanguageModel`.
    """

    cell, state, residual = nn.RNNCell, ("h",), True

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
