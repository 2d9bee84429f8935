"""vertexrt runs dynamic neural networks: nets whose shape is the shape of their input.

A vertex function is declared once, with gather, scatter, pull and push; each example brings its own
input graph. See README.md for a first model and docs/architecture.md for how it works.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertexrt.instead import instead as _instead
from vertexrt.instead import no_name as _no_name
from vertexrt.ir.updates import OPTIMIZERS as _OPTIMIZERS

__version__ = "0.1.0"

__all__ = [
    "CarriedState",
    "Decoder",
    "ExponentialMovingAverage",
    "GraphBatch",
    "InputGraph",
    "Model",
    "Network",
    "Optimizer",
    "Parameter",
    "Rows",
    "VertexFunction",
    "__version__",
    "abs",
    "argmax",
    "bench",
    "clip",
    "compile",
    "concat",
    "cos",
    "cumsum",
    "data",
    "dot",
    "embed",
    "erf",
    "errors",
    "exp",
    "floor",
    "full",
    "init",
    "load_checkpoint",
    "log",
    "log_softmax",
    "logsumexp",
    "losses",
    "max",
    "maximum",
    "mean",
    "minimum",
    "nn",
    "ones",
    "outer",
    "parallel",
    "prod",
    "random",
    "relu",
    "repeat",
    "reshape",
    "save_checkpoint",
    "schedules",
    "sigmoid",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "stack",
    "stop_gradient",
    "straight_through",
    "sum",
    "tanh",
    "tile",
    "top_k",
    "types",
    "where",
    "zeros",
]
__all__ += [row.title for row in _OPTIMIZERS]

if TYPE_CHECKING:
    from vertexrt import bench, data, errors, nn, parallel, types
    from vertexrt.api import init, losses, random, schedules
    from vertexrt.api.along import CarriedState, ExponentialMovingAverage
    from vertexrt.api.checkpoint import load_checkpoint, save_checkpoint
    from vertexrt.api.compile import compile
    from vertexrt.api.decoder import Decoder
    from vertexrt.api.functional import (
        abs,
        argmax,
        clip,
        concat,
        cos,
        cumsum,
        dot,
        embed,
        erf,
        exp,
        floor,
        full,
        log,
        log_softmax,
        logsumexp,
        max,
        maximum,
        mean,
        minimum,
        ones,
        outer,
        prod,
        relu,
        repeat,
        reshape,
        sigmoid,
        sin,
        softmax,
        sort,
        split,
        sqrt,
        stack,
        stop_gradient,
        straight_through,
        sum,
        tanh,
        tile,
        top_k,
        where,
        zeros,
    )
    from vertexrt.api.network import Network
    from vertexrt.api.optim import *  # noqa: F403 - a class for each row of a table
    from vertexrt.api.optimizer import Optimizer
    from vertexrt.api.trace import Parameter
    from vertexrt.api.vertex_function import Model, VertexFunction
    from vertexrt.graph import GraphBatch, InputGraph, Rows
else:

    def __getattr__(name: str) -> Any:
        """Load what a public name stands for when it is first asked for.

        So the command line is ready for Ctrl-C before NumPy is loaded, and only what compiles waits
        for LLVM.
        """
        if name not in _HOMES:
            raise _no_name("vrt", name, __all__)
        home = import_module(f"vertexrt.{_HOMES[name]}")
        if name in _MODULES:
            vars(home).setdefault("__getattr__", _instead(f"vrt.{name}", home.__all__))
        value = home if name in _MODULES else getattr(home, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


# The modules among the public names, and the names of each other module.
_MODULES = {name: name for name in ("bench", "data", "errors", "nn", "parallel", "types")}
_MODULES |= {name: f"api.{name}" for name in ("init", "losses", "random", "schedules")}
_NAMES = {
    "api.along": "CarriedState ExponentialMovingAverage",
    "api.checkpoint": "load_checkpoint save_checkpoint",
    "graph": "GraphBatch InputGraph Rows",
    "api.decoder": "Decoder",
    "api.network": "Network",
    "api.optimizer": "Optimizer",
    "api.trace": "Parameter",
    "api.vertex_function": "Model VertexFunction",
    "api.functional": (
        "abs argmax clip concat cos cumsum dot embed erf exp floor full log log_softmax "
        "logsumexp max maximum mean minimum ones outer prod relu repeat reshape sigmoid sin "
        "softmax sort split sqrt stack stop_gradient straight_through sum tanh tile top_k where "
        "zeros"
    ),
    "api.compile": "compile",
}
_HOMES = _MODULES | {name: home for home, names in _NAMES.items() for name in names.split()}
_HOMES |= {row.title: "api.optim" for row in _OPTIMIZERS}
