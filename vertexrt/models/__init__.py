"""Models that come with vertexrt: each a vertex function a reader can learn from."""

from vertexrt.models.catalogue import ModelSpec, get, names
from vertexrt.models.lstm_lm import LSTMLanguageModel
from vertexrt.models.tree_fc import TreeFC
from vertexrt.models.tree_lstm import TreeLSTM

__all__ = ["LSTMLanguageModel", "ModelSpec", "TreeFC", "TreeLSTM", "get", "names"]
