"""What users write: vertex functions, parameters, optimizers, compile and checkpoints."""

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

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Checkpoint",
    "Optimizer",
    "Parameter",
    "VertexFunction",
    "compile",
    "concat",
    "cross_entropy",
    "dropout",
    "embed",
    "exp",
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
