"""Models that come with vertexrt: in short files to learn from."""

from typing import TYPE_CHECKING, Any

from vertexrt.models.catalogue import SPECS, ModelSpec, get, names

if TYPE_CHECKING:
    from vertexrt.models.dags import DAGNN, DeepGate
    from vertexrt.models.language_model import (
        GRULanguageModel,
        LSTMLanguageModel,
        ResidualRNN,
        RNNLanguageModel,
        SLSTMLanguageModel,
    )
    from vertexrt.models.seq2seq import Seq2Seq
    from vertexrt.models.taggers import BiLSTMCharTagger, BiLSTMTagger
    from vertexrt.models.tree_fc import TreeFC
    from vertexrt.models.tree_lstm import TreeLSTM
    from vertexrt.models.trees import ChildSumTreeLSTM, NaryTreeLSTM, RvNN

__all__ = [
    "DAGNN",
    "BiLSTMCharTagger",
    "BiLSTMTagger",
    "ChildSumTreeLSTM",
    "DeepGate",
    "GRULanguageModel",
    "LSTMLanguageModel",
    "ModelSpec",
    "NaryTreeLSTM",
    "RNNLanguageModel",
    "ResidualRNN",
    "RvNN",
    "SLSTMLanguageModel",
    "Seq2Seq",
    "TreeFC",
    "TreeLSTM",
    "get",
    "names",
]


def __getattr__(name: str) -> Any:
    """Import a model when it is asked for; the names of all are known at once."""
    for spec in SPECS:
        if spec.title == name:
            return spec.model
    raise AttributeError(f"module 'vertexrt.models' has no attribute {name!r}")
