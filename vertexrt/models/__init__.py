"""Models that come with vertexrt: each one short file to learn from."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertexrt.models.catalogue import SPECS, ModelSpec, get, names

if TYPE_CHECKING:
    from vertexrt.models.bilstm_char_tagger import BiLSTMCharTagger
    from vertexrt.models.bilstm_tagger import BiLSTMTagger
    from vertexrt.models.child_sum_tree_lstm import ChildSumTreeLSTM
    from vertexrt.models.dagnn import DAGNN
    from vertexrt.models.deepgate import DeepGate
    from vertexrt.models.language_model import (
        GRULanguageModel,
        LSTMLanguageModel,
        ResidualRNN,
        RNNLanguageModel,
        SLSTMLanguageModel,
    )
    from vertexrt.models.nary_tree_lstm import NaryTreeLSTM
    from vertexrt.models.rvnn import RvNN
    from vertexrt.models.seq2seq import Seq2Seq
    from vertexrt.models.tree_fc import TreeFC
    from vertexrt.models.tree_lstm import TreeLSTM

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
            return getattr(import_module(spec.module), name)
    raise AttributeError(f"module 'vertexrt.models' has no attribute {name!r}")
