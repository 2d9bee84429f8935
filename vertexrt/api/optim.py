"""The optimizers of `vrt`: a class for each row of `ir/updates.py`.

Sparse parameters (embedding tables) are updated lazily: only rows that have a gradient in this step
move. The state of the others rests and weight decay does not reach them, while bias corrections
count every step. So a table differs from the same parameter declared dense, except under rules
without averages (Adagrad, SGD without momentum), both without weight decay, where the two agree.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from vertexrt.api.optimizer import Optimizer
from vertexrt.ir.updates import OPTIMIZERS as ROWS
from vertexrt.ir.updates import OptimizerRow


def signature_of(row: OptimizerRow) -> Signature:
    """Return how an optimizer is made: rate, options, then decay and clipping by name."""
    either, named = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    rate = Parameter.empty if row.needs_lr else row.lr
    return Signature(
        [
            Parameter("lr", either, default=rate),
            *(Parameter(option.name, either, default=option.default) for option in row.options),
            Parameter("weight_decay", named, default=row.weight_decay),
            Parameter("clip_norm", named, default=None),
        ]
    )


def class_of(row: OptimizerRow) -> type[Optimizer]:
    """Make the class of an optimizer."""
    signature = signature_of(row)

    def init(self: Optimizer, *given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        Optimizer.__init__(self, **bound.arguments)

    decay = " + weight_decay * value"
    if row.decoupled:
        decay = ", and value has been multiplied by 1 - lr * weight_decay"
    lines = "\n".join(f"        {name} = {expression}" for name, expression in row.lines)
    options = [f"{option.name} {option.range.text}" for option in row.options]
    text = f"""{row.title} ({row.source}).

    In step t, where g is the gradient, clipped by its norm{decay}:

{lines}

    Options: lr >= 0, {", ".join(options)}. Raises: UsageError.
    """
    init.__doc__ = f"Take the options: lr >= 0, {', '.join(options)}. Raises: UsageError."
    parts = {"__doc__": text, "__init__": init, "__signature__": signature, "row": row}
    return type(row.title, (Optimizer,), {**parts, "__module__": __name__})


OPTIMIZERS = {row.title: class_of(row) for row in ROWS}


def __getattr__(name: str) -> type[Optimizer]:
    if name not in OPTIMIZERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return OPTIMIZERS[name]
