"""Equal numbers before any timing: loss, every gradient and the outputs of every contender."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vertexrt import GraphBatch
from vertexrt.bench.contender import Arrays, Contender
from vertexrt.bench.record import Results
from vertexrt.bench.run import say
from vertexrt.errors import NumericError, message

BOUNDS = {"float32": 1e-4, "float64": 1e-9}  # of the largest element; sums over 1e5 terms
# Where F has a kink, rounding decides now and then on which side of it an element lies, and with
# it a whole path of the gradient: bound of the difference's 2-norm, relative to the gradient's.
KINKED_BOUND = 1e-2
LR = 1024.0  # large, so that little of a gradient is lost to rounding; exact in binary


class Disagreement(NumericError):
    """Report that two contenders do not compute the same."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Hold what is compared: loss, gradients by name, outputs in the order of the batch."""

    loss: float
    gradients: Arrays
    outputs: np.ndarray


def evaluate(contender: Contender, batch: GraphBatch) -> Computed:
    """Evaluate a batch and leave the parameters as they are.

    Gradients are taken from the step that is timed: how far plain SGD goes, divided by its rate.
    """
    outputs = contender.infer(batch)
    contender.sync()
    kept = np.asarray(outputs).copy()
    before = contender.parameters()
    contender.train(batch, LR)
    loss = contender.loss()
    contender.sync()
    after = contender.parameters()
    contender.set_parameters(before)
    return Computed(loss, {name: (before[name] - after[name]) / LR for name in before}, kept)


def compare(
    record: Results,
    contenders: Mapping[str, Contender],
    batch: GraphBatch,
    where: str,
    kinked: bool = False,
    dtype: str = "float32",
) -> None:
    """Compare every contender with the first one, and put it down in a record.

    Args:
        where: what is compared, for the record and the message.
        kinked: F is not smooth: gradients are compared by their norm, with `KINKED_BOUND`.
        dtype: names the bound of a difference, relative to the largest element.
    Raises: Disagreement, when a difference exceeds the bound; it names the parameter.
    """
    against, *others = contenders
    expected = evaluate(contenders[against], batch)
    largest = 0.0
    for name in others:
        found = differences(evaluate(contenders[name], batch), expected, kinked)
        for what, value in found.items():
            loose = kinked and what.startswith("the gradient")
            allowed = KINKED_BOUND if loose else BOUNDS[dtype]
            if not value <= allowed:
                got = f"{what} of {name} differs from that of {against} by {value:.1e} of its "
                wanted, action = f"at most {allowed:.0e}", "nothing is timed before they agree"
                raise Disagreement(
                    message(f"check, {where}", got + "largest element", wanted, action)
                )
            largest = max(largest, value)
    entry = {"where": where, "against": against, "bound": BOUNDS[dtype]}
    record.checks.append(entry | {"largest_difference": largest, "variants": len(contenders)})
    say(f"{where}: {len(contenders)} variants agree with {against} within {largest:.1e}")


def differences(found: Computed, expected: Computed, kinked: bool = False) -> dict[str, float]:
    """Return the relative difference of the loss, of each gradient and of the outputs."""
    assert found.gradients.keys() == expected.gradients.keys(), sorted(found.gradients)
    order = None if kinked else np.inf
    result = {"the loss": _difference(np.array(found.loss), np.array(expected.loss))}
    for name, value in expected.gradients.items():
        difference = _difference(found.gradients[name], value, order)
        result[f"the gradient of '{name}'"] = difference
    result["the output"] = _difference(found.outputs, expected.outputs)
    return result


def _difference(found: np.ndarray, expected: np.ndarray, order: float | None = np.inf) -> float:
    """Return the norm of a difference over that of what is expected.

    Args:
        order: infinite for the largest element, None for the 2-norm.
    """
    if found.shape != expected.shape:
        return float("inf")
    scale = float(np.linalg.norm(expected.ravel(), order)) or 1.0
    return float(np.linalg.norm((found - expected).ravel(), order)) / scale
