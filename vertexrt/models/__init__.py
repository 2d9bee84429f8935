"""Models that come with vertexrt: each a vertex function a reader can learn from."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertexrt.models.catalogue import SPECS, ModelSpec, get, names

if TYPE_CHECKING:
    from vertexrt.models.lstm_lm import LSTMLanguageModel
    from vertexrt.models.tree_fc import TreeFC
    from vertexrt.models.tree_lstm import TreeLSTM

__all__ = ["LSTMLanguageModel", "ModelSpec", "TreeFC", "TreeLSTM", "get", "names"]


def __getattr__(name: str) -> Any:
    """Import a model when it is asked for; the names of all are known at once."""
    for spec in SPECS:
        if spec.title == name:
            return getattr(import_module(spec.module), name)
    raise AttributeError(f"module 'vertexrt.models' has no attribute {name!r}")
