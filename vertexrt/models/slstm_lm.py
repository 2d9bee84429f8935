"""An sLSTM language model of one to n layers (xLSTM)."""

from __future__ import annotations

from vertexrt import nn
from vertexrt.models.language_model import LanguageModel, LayerForm


class SLSTMLanguageModel(LanguageModel):
    """Layers of LSTMs with exponential gates (Beck et al. 2024), with dropout between them.

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
            lambda size: nn.SLSTMCell(size, hidden), ("h", "c", "n", "m"), hidden, dropout, carried
        )
        super().__init__(vocab, embed, layers, form, tied)
