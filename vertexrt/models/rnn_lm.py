"""A simple recurrent language model of one to n layers (Mikolov et al. 2010)."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel


class RNNLanguageModel(LanguageModel):
    """Layers of simple recurrent networks (Elman 1990) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.RNNCell, ("h",)
