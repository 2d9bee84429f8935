"""A GRU language model of one to n layers."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel, LayerForm


class GRULanguageModel(LanguageModel):
    """Layers of gated recurrent units (Cho et al. 2014) with dropout between them.

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
        form = LayerForm(lambda size: nn.GRUCell(size, hidden), ("h",), hidden, dropout, carried)
        super().__init__(vocab, embed, layers, form, tied)
