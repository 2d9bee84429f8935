"""Cells to build vertex functions with, objects that hold parameters; and activations.

Set a cell as an attribute of a vertex function; its parameters are named after it, as those of
PyTorch's modules are: `self.cell = LSTMCell(...)` has `cell.weight_ih`. Shapes, names and the order
of gates are PyTorch's where it has the same cell, so that its `state_dict` fits.
"""

from typing import TYPE_CHECKING

from vertexrt.api.functional import block_diagonal, elu, gelu, leaky_relu, silu, softplus
from vertexrt.api.trace import Cell
from vertexrt.instead import instead
from vertexrt.nn.cells import (
    MLP,
    ChainConv,
    ChildSumTreeLSTMCell,
    Embedding,
    GRUCell,
    LayerNorm,
    Linear,
    LSTMCell,
    MultiHeadAttention,
    NaryTreeLSTMCell,
    RMSNorm,
    RNNCell,
    SLSTMCell,
    zoneout,
)

__all__ = [
    "MLP",
    "Cell",
    "ChainConv",
    "ChildSumTreeLSTMCell",
    "Embedding",
    "GRUCell",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "NaryTreeLSTMCell",
    "RMSNorm",
    "RNNCell",
    "SLSTMCell",
    "block_diagonal",
    "elu",
    "gelu",
    "leaky_relu",
    "silu",
    "softplus",
    "zoneout",
]

if not TYPE_CHECKING:  # type checkers know what there is
    __getattr__ = instead("vrt.nn", __all__)
