"""A GRU language model of one to n layers."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel


class GRULanguageModel(LanguageModel):
    """Layers of gated recurrent units (Cho et al. 2014) with dropout between them.

    Args: those of `LanguageModel`.
    """

    cell, state = nn.GRUCell, ("h",)
