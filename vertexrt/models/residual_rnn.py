"""A deep stack of simple recurrent layers with residual connections (Persistent RNN)."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel


class ResidualRNN(LanguageModel):
    """48 layers, each added to its input (Diamos et al. 2016, section 5; He et al. 2016).

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
