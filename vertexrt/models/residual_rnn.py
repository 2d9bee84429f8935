"""A deep stack of simple recurrent layers with residual connections (Persistent RNN)."""

from __future__ import annotations

from typing import Any

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel, LayerForm


class ResidualRNN(LanguageModel):
    """48 layers, each added to its input (Diamos et al. 2016, section 5; He et al. 2016).

    Args:
        vocab: words; hidden: elements of words and layers; layers, tied: see `LanguageModel`.
        options: dropout and carried, as those of `LayerForm`.
    """

    def __init__(
        self, vocab: int, hidden: int, *, layers: int = 48, tied: bool = False, **options: Any
    ) -> None:
        form = LayerForm(
            lambda size: nn.RNNCell(size, hidden), ("h",), hidden, residual=True, **options
        )
        super().__init__(vocab, hidden, layers, form, tied)
