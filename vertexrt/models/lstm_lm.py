"""An LSTM language model of one to n layers (Zaremba et al. 2014; EcoRNN's word model)."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel


class LSTMLanguageModel(LanguageModel):
    """Layers of LSTMs (Hochreiter and Schmidhuber 1997) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.LSTMCell, ("h", "c")
