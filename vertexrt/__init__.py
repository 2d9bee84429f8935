"""vertexrt runs dynamic neural networks: nets whose shape is the shape of their input.

A vertex function is declared once, with gather, scatter, pull and push; each example brings its own
input graph. See README.md for a first model and docs/architecture.md for how it works.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertexrt.ir.updates import OPTIMIZERS as _OPTIMIZERS

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "Gradients",
    "GraphBatch",
    "InputGraph",
    "Model",
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
__all__ += [row.title for row in _OPTIMIZERS]

if TYPE_CHECKING:
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
    from vertexrt.api.gradients import Gradients
    from vertexrt.api.model import Model
    from vertexrt.api.network import Network
    from vertexrt.api.optim import *  # noqa: F403 - a class for each row of a table
    from vertexrt.api.optimizer import Optimizer
    from vertexrt.api.parameter import Parameter
    from vertexrt.api.vertex_function import VertexFunction
    from vertexrt.errors import VertexrtError
    from vertexrt.graph import GraphBatch, InputGraph, Pulled
else:

    def __getattr__(name: str) -> Any:
        """Load what a public name stands for when it is first asked for.

        So the command line is ready for Ctrl-C before NumPy is loaded, and only what compiles waits
        for LLVM.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'vertexrt' has no attribute {name!r}")
        home = import_module(_HOMES[name])
        value = home if name == "init" else getattr(home, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


# The module of each public name.
_HOMES = {
    "Checkpoint": "vertexrt.api.checkpoint",
    "Gradients": "vertexrt.api.gradients",
    "GraphBatch": "vertexrt.graph",
    "InputGraph": "vertexrt.graph",
    "Model": "vertexrt.api.model",
    "Network": "vertexrt.api.network",
    "Optimizer": "vertexrt.api.optimizer",
    "Parameter": "vertexrt.api.parameter",
    "Pulled": "vertexrt.graph",
    "VertexFunction": "vertexrt.api.vertex_function",
    "VertexrtError": "vertexrt.errors",
    "compile": "vertexrt.api.compile",
    "concat": "vertexrt.api.functional",
    "cross_entropy": "vertexrt.api.functional",
    "dropout": "vertexrt.api.functional",
    "embed": "vertexrt.api.functional",
    "exp": "vertexrt.api.functional",
    "init": "vertexrt.api.init",
    "load_checkpoint": "vertexrt.api.checkpoint",
    "log": "vertexrt.api.functional",
    "log_softmax": "vertexrt.api.functional",
    "logsumexp": "vertexrt.api.functional",
    "max": "vertexrt.api.functional",
    "maximum": "vertexrt.api.functional",
    "mean": "vertexrt.api.functional",
    "minimum": "vertexrt.api.functional",
    "relu": "vertexrt.api.functional",
    "save_checkpoint": "vertexrt.api.checkpoint",
    "sigmoid": "vertexrt.api.functional",
    "softmax": "vertexrt.api.functional",
    "split": "vertexrt.api.functional",
    "sqrt": "vertexrt.api.functional",
    "squared_error": "vertexrt.api.functional",
    "sum": "vertexrt.api.functional",
    "tanh": "vertexrt.api.functional",
    "where": "vertexrt.api.functional",
}
_HOMES |= {row.title: "vertexrt.api.optim" for row in _OPTIMIZERS}
