"""What takes turns in a comparison; that all compute the same is checked before any timing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

import vertexrt as vrt
from vertexrt.api.network import Network
from vertexrt.bench.record import Results
from vertexrt.bench.run import say
from vertexrt.engine.explain import flops
from vertexrt.engine.explain_host import kernel_calls
from vertexrt.engine.variant import Use
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch

Arrays = dict[str, np.ndarray]
TRAINING = Use(frozenset({"loss"}), loss=True)
Counts = dict[str, float]
BOUNDS = {"float32": 1e-4, "float64": 1e-9}  # of the largest element; sums over 1e5 terms
# Where F has a kink, rounding decides now and then on which side of it an element lies, and with
# it a whole path of the gradient: bound of the difference's 2-norm, relative to the gradient's.
KINKED_BOUND = 1e-2
LR = 1024.0  # large, so that little of a gradient is lost to rounding; exact in binary
GRADIENT = "the gradient of "


class Contender(Protocol):
    """A model that trains and evaluates minibatches, whose schedule it builds each time anew.

    On a GPU `train` and `infer` may return before the work is done; `sync` waits for it.
    """

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""

    def infer(self, batch: GraphBatch) -> Any:
        """Return an output of every vertex in their order, which NumPy takes once synced."""

    def sync(self) -> None:
        """Wait until everything that was asked for is done."""

    def parameters(self) -> Arrays:
        """Return copies of the parameters, by the names and layouts of the vertex function."""

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""


class Stepper:
    """A compiled vertex function, whose steps are timed.

    It is compared by the loss of every vertex, so that nothing is compiled but what is timed.

    Args:
        net: compiled with a loss that is divided by the number of graphs.
        waits: each step is waited for.
    """

    def __init__(self, net: vrt.Network, waits: bool = False) -> None:
        self.net = net
        self.waits = waits
        self._optimizer = vrt.SGD(lr=0.0)
        self._loss = math.nan

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run a step, and wait for it where the setting says so."""
        self._optimizer.lr = lr
        self._loss = self.net.step(batch, self._optimizer)
        if self.waits:
            self.net.sync()

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""
        loss = self.net.sync()  # on a GPU, `step` returns the loss of the step before
        return self._loss if math.isnan(loss) else loss

    def infer(self, batch: GraphBatch) -> Any:
        """Return the loss of every vertex, from a step that changes nothing."""
        self.net.step(batch, vrt.SGD(lr=0.0), outputs=("loss",))
        return self.net.outputs["loss"]

    def sync(self) -> None:
        """Wait, on a device that runs ahead of the host."""
        self.net.sync()

    def count(self, batch: GraphBatch) -> Counts:
        """Count what a minibatch takes."""
        return count(self.net, batch) | {"host_waits": float(self.waits)}

    def parameters(self) -> Arrays:
        """Return copies of the parameters by name."""
        return {name: np.array(value) for name, value in self.net.parameters.items()}

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
        self.net.set_parameters(values)


def count(net: Network, batch: GraphBatch) -> Counts:
    """Count what a minibatch takes, over all its shares.

    Returns: tasks; rows (merged vertices once); launches of task programs; calls of compiled code
        for forward and backward; groups (fused loops) and products (GEMM calls) of these launches;
        instructions and waits of the scripts; flops of products; arena_bytes. On a GPU also
        kernels, wide (products by warp groups) and library (those of cuBLAS), where it is batched,
        and streams, their launches outside the main one, and waits for others, where there are
        several; where it is persistent unheld_bytes of weights, which a processor reads from memory
        for each product.
    """
    model, explanation = net.executor.model, net.executor.explanation()
    itemsize = model.store.dtype.itemsize
    total: Counts = {}
    for run in model.prepare(TRAINING, batch):
        found: Counts = {
            "tasks": run.layout.schedule.num_tasks,
            "rows": len(run.layout.schedule.order),
            "launches": len(run.layout.table),
            "flops": flops(run, forward=True) + flops(run, forward=False),
            "arena_bytes": run.layout.plan.total * itemsize,
        }
        found["groups"], found["products"] = kernel_calls(run)
        found |= explanation.counts(run)
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


class Disagreement(NumericError):
    """Report that two contenders do not compute the same."""


def evaluate(contender: Contender, batch: GraphBatch) -> Arrays:
    """Return the loss, each gradient and the output of a batch, by what an error calls them.

    The parameters stay as they are. Gradients are taken from the step that is timed: how far plain
    SGD goes, divided by its rate.
    """
    outputs = contender.infer(batch)
    contender.sync()
    output = np.asarray(outputs).copy()  # PyTorch takes no `copy` from NumPy
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
