"""Make the class of an optimizer from its row in `ir/updates.py`: its signature, text and checks.

What is made at run time has no source that editors and type checkers could read: they read
`optim.pyi`, which `python -m tests.optim_stub` writes from the same signatures and texts.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from vertexrt.api.optimizer import Optimizer
from vertexrt.ir.updates import NOT_NEGATIVE, OptimizerRow

GROUPS = "Mapping[str, GroupOptions] | None"


def signature_of(row: OptimizerRow) -> Signature:
    """Return how an optimizer is made: rate, options, then what all have, by name."""
    either, named = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    rate = Parameter.empty if row.needs_lr else row.lr
    options = []
    for option in row.options:
        numbers = ", ".join(["float"] * len(option.parts))
        kind = f"tuple[{numbers}]" if option.parts else "float"
        options.append(Parameter(option.name, either, default=option.default, annotation=kind))
    return Signature(
        [
            Parameter("lr", either, default=rate, annotation="float"),
            *options,
            Parameter("weight_decay", named, default=row.weight_decay, annotation="float"),
            Parameter("clip_norm", named, default=None, annotation="float | None"),
            Parameter("clip_value", named, default=None, annotation="float | None"),
            Parameter("groups", named, default=None, annotation=GROUPS),
        ]
    )


def text_of(row: OptimizerRow) -> str:
    """Return the docstring: source, update, options with their ranges and meanings."""
    gradient, decay = "clipped", "added to g as weight_decay * value"
    if row.decoupled:
        decay = "value is multiplied by 1 - lr * weight_decay first"
    else:
        gradient += " and with weight_decay * value added"
    update = [f"    {name} = {expression}" for name, expression in row.lines]
    options = [(o.name, o.range.text, o.meaning) for o in row.options]
    options.insert(0, ("lr", NOT_NEGATIVE.text, "learning rate; may be set between steps"))
    options.append(("weight_decay", NOT_NEGATIVE.text, decay))
    options.append(("clip_norm", "> 0, or None", "largest norm of all gradients together"))
    options.append(("clip_value", "> 0, or None", "largest size of a gradient; sees them first"))
    meaning = "lr, weight_decay, frozen by pattern of names"
    options.append(("groups", '{"*.b": {"lr": 0.0}}', meaning))
    lines = [f"{row.title} ({row.source}).", ""]
    lines += [f"In step t, where g is the gradient, {gradient}:", "", *update, "", "Args:"]
    lines += [f"    {name}: {meaning} ({numbers})." for name, numbers, meaning in options]
    return "\n".join([*lines, "Raises: UsageError, for an option out of its range."])


def class_of(row: OptimizerRow, module: str) -> type[Optimizer]:
    """Make the class of an optimizer, as a part of a module."""
    signature = signature_of(row)

    def init(self: Optimizer, *given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        Optimizer.__init__(self, **bound.arguments)

    init.__doc__ = f"Take the options of {row.title}; its text says what they are."
    parts = {"__doc__": text_of(row), "__init__": init, "__signature__": signature, "row": row}
    return type(row.title, (Optimizer,), {**parts, "__module__": module})
