"""Equal numbers before any timing: loss, every gradient and the outputs of every contender."""

from collections.abc import Mapping

import numpy as np

from vertexrt import GraphBatch
from vertexrt.bench.contender import Arrays, Contender
from vertexrt.bench.record import Results
from vertexrt.bench.run import say
from vertexrt.errors import NumericError

BOUNDS = {"float32": 1e-4, "float64": 1e-9}  # of the largest element; sums over 1e5 terms
# Where F has a kink, rounding decides now and then on which side of it an element lies, and with
# it a whole path of the gradient: bound of the difference's 2-norm, relative to the gradient's.
KINKED_BOUND = 1e-2
LR = 1024.0  # large, so that little of a gradient is lost to rounding; exact in binary
GRADIENT = "the gradient of "


class Disagreement(NumericError):
    """Report that two contenders do not compute the same."""


def evaluate(contender: Contender, batch: GraphBatch) -> Arrays:
    """Return the loss, each gradient and the output of a batch, by what an error calls them.

    The parameters stay as they are. Gradients are taken from the step that is timed: how far plain
    SGD goes, divided by its rate.
    """
    outputs = contender.infer(batch)
    contender.sync()
    output = np.array(outputs)
    before = contender.parameters()
    contender.train(batch, LR)
    found = {"the loss": np.array(contender.loss())}
    contender.sync()
    after = contender.parameters()
    contender.set_parameters(before)
    found |= {GRADIENT + f"'{name}'": (before[name] - after[name]) / LR for name in before}
    return found | {"the output": output}


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
        found = evaluate(contenders[name], batch)
        assert found.keys() == expected.keys(), sorted(found)
        for what, value in expected.items():
            loose = kinked and what.startswith(GRADIENT)
            allowed = KINKED_BOUND if loose else BOUNDS[dtype]
            difference = _difference(found[what], value, None if loose else np.inf)
            if not difference <= allowed:
                got = f"{what} of {name} differs from that of {against} by {difference:.1e} of its "
                wanted, action = f"at most {allowed:.0e}", "nothing is timed before they agree"
                raise Disagreement.at(f"check, {where}", got + "largest element", wanted, action)
            largest = max(largest, difference)
    entry = {"where": where, "against": against, "bound": BOUNDS[dtype]}
    record.checks.append(entry | {"largest_difference": largest, "variants": len(contenders)})
    say(f"{where}: {len(contenders)} variants agree with {against} within {largest:.1e}")


def _difference(found: np.ndarray, expected: np.ndarray, order: float | None) -> float:
    """Return the norm of a difference over that of what is expected.

    Args:
        order: infinite for the largest element, None for the 2-norm.
    """
    if found.shape != expected.shape:
        return float("inf")
    scale = float(np.linalg.norm(expected.ravel(), order)) or 1.0
    return float(np.linalg.norm((found - expected).ravel(), order)) / scale
