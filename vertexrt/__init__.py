"""vertexrt runs dynamic neural networks: nets whose shape is the shape of their input.

A vertex function is declared once, with gather, scatter, pull and push; each example brings its own
input graph. See README.md for a first model and docs/architecture.md for how it works.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertexrt.ir.updates import OPTIMIZERS as _OPTIMIZERS

__version__ = "0.1.0"

__all__ = [
    "CarriedState",
    "Checkpoint",
    "ExponentialMovingAverage",
    "Gradients",
    "GraphBatch",
    "InputGraph",
    "Loss",
    "Model",
    "Network",
    "Optimizer",
    "Outputs",
    "Parameter",
    "Passes",
    "Plan",
    "Pulled",
    "Record",
    "VertexFunction",
    "VertexrtError",
    "__version__",
    "abs",
    "argmax",
    "binary_cross_entropy_with_logits",
    "block_diagonal",
    "clip",
    "compile",
    "concat",
    "cross_entropy",
    "data",
    "dot",
    "dropout",
    "elu",
    "embed",
    "exp",
    "floor",
    "full",
    "gelu",
    "hinge_loss",
    "init",
    "leaky_relu",
    "load_checkpoint",
    "log",
    "log_softmax",
    "logsumexp",
    "max",
    "maximum",
    "mean",
    "minimum",
    "multi_margin_loss",
    "nn",
    "normal",
    "ones",
    "parallel",
    "relu",
    "save_checkpoint",
    "schedules",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "squared_error",
    "stack",
    "stop_gradient",
    "straight_through",
    "sum",
    "tanh",
    "uniform",
    "where",
    "zeros",
]
__all__ += [row.title for row in _OPTIMIZERS]

if TYPE_CHECKING:
    from vertexrt import data, nn, parallel
    from vertexrt.api import init, schedules
    from vertexrt.api.average import ExponentialMovingAverage
    from vertexrt.api.carried import CarriedState
    from vertexrt.api.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from vertexrt.api.compile import compile
    from vertexrt.api.draws import dropout, normal, uniform
    from vertexrt.api.elementwise import (
        abs,
        clip,
        elu,
        exp,
        floor,
        gelu,
        leaky_relu,
        log,
        maximum,
        minimum,
        relu,
        sigmoid,
        silu,
        softplus,
        sqrt,
        stop_gradient,
        straight_through,
        tanh,
        where,
    )
    from vertexrt.api.functional import (
        argmax,
        block_diagonal,
        concat,
        dot,
        embed,
        full,
        log_softmax,
        logsumexp,
        max,
        mean,
        ones,
        softmax,
        split,
        stack,
        sum,
        zeros,
    )
    from vertexrt.api.losses import (
        binary_cross_entropy_with_logits,
        cross_entropy,
        hinge_loss,
        multi_margin_loss,
        squared_error,
    )
    from vertexrt.api.model import Model
    from vertexrt.api.network import Network, Record
    from vertexrt.api.optim import *  # noqa: F403 - a class for each row of a table
    from vertexrt.api.optimizer import Optimizer
    from vertexrt.api.parameter import Parameter
    from vertexrt.api.plan import Plan
    from vertexrt.api.vertex_function import VertexFunction
    from vertexrt.engine.lazy import Loss, Outputs
    from vertexrt.engine.results import Gradients
    from vertexrt.engine.variant import Passes
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
        home = import_module(f"vertexrt.{_HOMES[name]}")
        value = home if name in _MODULES else getattr(home, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


# The modules among the public names, and the names of each other module.
_MODULES = {"data": "data", "init": "api.init", "nn": "nn"}
_MODULES |= {"parallel": "parallel", "schedules": "api.schedules"}
_NAMES = {
    "api.carried": "CarriedState",
    "api.checkpoint": "Checkpoint load_checkpoint save_checkpoint",
    "api.average": "ExponentialMovingAverage",
    "engine.lazy": "Loss Outputs",
    "engine.results": "Gradients",
    "graph": "GraphBatch InputGraph Pulled",
    "api.model": "Model",
    "api.network": "Network Record",
    "api.plan": "Plan",
    "api.optimizer": "Optimizer",
    "api.parameter": "Parameter",
    "engine.variant": "Passes",
    "api.vertex_function": "VertexFunction",
    "errors": "VertexrtError",
    "api.elementwise": (
        "abs clip elu exp floor gelu leaky_relu log maximum minimum relu sigmoid silu "
        "softplus sqrt stop_gradient straight_through tanh where"
    ),
    "api.functional": (
        "argmax block_diagonal concat dot embed full log_softmax logsumexp max mean ones "
        "softmax split stack sum zeros"
    ),
    "api.losses": (
        "binary_cross_entropy_with_logits cross_entropy hinge_loss multi_margin_loss squared_error"
    ),
    "api.compile": "compile",
    "api.draws": "dropout normal uniform",
}
_HOMES = _MODULES | {name: home for home, names in _NAMES.items() for name in names.split()}
_HOMES |= {row.title: "api.optim" for row in _OPTIMIZERS}
