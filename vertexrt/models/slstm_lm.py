"""An sLSTM language model of one to n layers (xLSTM)."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel


class SLSTMLanguageModel(LanguageModel):
    """Layers of LSTMs with exponential gates (Beck et al. 2024), with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.SLSTMCell, ("h", "c", "n", "m")
