"""Networks inside PyTorch: a module around any network, and recurrent layers in place of `nn`'s.

    import vertexrt.torch as vt

    encoder = vt.Module(vrt.compile(TreeLSTM(...)))        # an nn.Module; its weights are tensors
    states = encoder(batch, outputs=["h"])["h"]            # with gradients to weights and pulls

    lstm = vt.LSTM(128, 256, num_layers=2)                 # as nn.LSTM, with its state_dict
    cell = vt.Recurrent(nn.SLSTMCell(128, 256), 128)       # any cell, with resets

PyTorch is needed: pip install -e '.[torch]' in the checkout. Without it, importing this raises
ImportError.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("torch") is None:
    raise ImportError(
        "[torch] PyTorch is not installed; vertexrt.torch is for use inside it; "
        "pip install -e '.[torch]' in the checkout"
    )

from vertexrt.instead import instead as _instead
from vertexrt.torch.module import Module as Module
from vertexrt.torch.passes import BatchTensors as BatchTensors
from vertexrt.torch.recurrent import GRU as GRU
from vertexrt.torch.recurrent import LSTM as LSTM
from vertexrt.torch.recurrent import RNN as RNN
from vertexrt.torch.recurrent import Recurrent as Recurrent

__all__ = ["GRU", "LSTM", "RNN", "BatchTensors", "Module", "Recurrent"]

if not TYPE_CHECKING:  # type checkers know what there is
    __getattr__ = _instead("vt", __all__)
