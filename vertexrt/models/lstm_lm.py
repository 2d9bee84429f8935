"""An LSTM language model of one to n layers (Zaremba et al. 2014; EcoRNN's word model)."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel, LayerForm


class LSTMLanguageModel(LanguageModel):
    """Layers of LSTMs (Hochreiter and Schmidhuber 1997) with dropout between them.

    Args:
        vocab: words; embed, hidden: elements; layers, tied: as those of `LanguageModel`.
        dropout, carried: as those of `LayerForm`.
    """

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
        form = LayerForm(
            lambda size: nn.LSTMCell(size, hidden), ("h", "c"), hidden, dropout, carried
        )
        super().__init__(vocab, embed, layers, form, tied)
