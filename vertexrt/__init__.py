"""vertexrt runs dynamic neural networks: nets whose shape is the shape of their input.

A vertex function is declared once, with gather, scatter, pull and push; each example brings its own
input graph. See README.md for a first model and docs/architecture.md for how it works.
"""

from typing import TYPE_CHECKING, Any

from vertexrt.api import init
from vertexrt.api.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from vertexrt.api.compile import compile
from vertexrt.api.functional import (
    concat,
    cross_entropy,
    dropout,
    embed,
    exp,
    log,
    log_softmax,
    logsumexp,
    max,
    maximum,
    mean,
    minimum,
    relu,
    sigmoid,
    softmax,
    split,
    sqrt,
    squared_error,
    sum,
    tanh,
    where,
)
from vertexrt.api.optim import SGD, Adagrad, Adam, AdamW
from vertexrt.api.optimizer import Optimizer
from vertexrt.api.parameter import Parameter
from vertexrt.api.vertex_function import VertexFunction
from vertexrt.errors import VertexrtError
from vertexrt.graph import GraphBatch, InputGraph, Pulled

if TYPE_CHECKING:
    from vertexrt.api.network import Gradients, Network

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Checkpoint",
    "Gradients",
    "GraphBatch",
    "InputGraph",
    "Network",
    "Optimizer",
    "Parameter",
    "Pulled",
    "VertexFunction",
    "VertexrtError",
    "__version__",
    "compile",
    "concat",
    "cross_entropy",
    "dropout",
    "embed",
    "exp",
    "init",
    "load_checkpoint",
    "log",
    "log_softmax",
    "logsumexp",
    "max",
    "maximum",
    "mean",
    "minimum",
    "relu",
    "save_checkpoint",
    "sigmoid",
    "softmax",
    "split",
    "sqrt",
    "squared_error",
    "sum",
    "tanh",
    "where",
]


def __getattr__(name: str) -> Any:
    """Load what needs numba when it is first asked for."""
    if name in ("Gradients", "Network"):
        from vertexrt.api import network

        return getattr(network, name)
    raise AttributeError(f"module 'vertexrt' has no attribute {name!r}")
