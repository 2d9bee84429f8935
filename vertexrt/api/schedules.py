"""Learning rates that change: objects that set `optimizer.lr`, with PyTorch's names and numbers.

    optimizer = vrt.Adam(1e-3)
    schedule = vrt.schedules.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        ...
        schedule.step()

`step` is called after an epoch, or after an update, whichever the options count. Rates of an
optimizer's groups change in proportion. `state` is of numbers that JSON can hold, for
`save_checkpoint(..., meta={"schedule": schedule.state})`; `load_state` goes on from there. All
raise UsageError for options that they do not take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vertexrt.api.arguments import check_not_negative, check_option
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer
from vertexrt.checks import is_real, is_whole
from vertexrt.errors import UsageError

__all__ = [
    "CosineAnnealingLR",
    "LambdaLR",
    "LinearLR",
    "RateSchedule",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

LARGEST = 1.7e308
LEAST_CHANGE = 1e-8  # of a rate, for ReduceLROnPlateau

Rate = Callable[[float, int], float]


class RateSchedule:
    """A rate that depends on the steps so far alone.

    Args:
        rate: of the initial rate, which the optimizer had before any schedule, and of the steps.
    Attributes:
        steps: how often `step` was called.
    """

    def __init__(self, optimizer: Optimizer, rate: Rate) -> None:
        self._optimizer, self.rate = optimizer, rate
        self._initial = _initial(type(self).__name__, optimizer)
        self.steps = 0
        self._set()

    def step(self) -> None:
        """Go on by one, and set the rate."""
        self.steps += 1
        self._set()

    def _set(self) -> None:
        self._optimizer.lr = self.rate(self._initial, self.steps)

    def is_of(self, optimizer: Optimizer) -> bool:
        """Tell whether it sets the rate of an optimizer."""
        return self._optimizer is optimizer

    @property
    def state(self) -> dict[str, Any]:
        """What continues a run."""
        return {"steps": self.steps, "initial_lr": self._initial}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises: CheckpointError, when it is not one."""
        fields = JsonRecord(state, "schedule")
        steps = fields.whole("steps", 0, LARGEST_COUNT)
        initial = fields.real("initial_lr", 0.0, LARGEST)
        fields.end()
        self.steps, self._initial = steps, initial
        self._set()


class LambdaLR(RateSchedule):
    """The initial rate times a function of the steps so far."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        check_option("LambdaLR", "lr_lambda", lr_lambda, callable(lr_lambda), "a function of steps")

        def rate(initial: float, steps: int) -> float:
            share = lr_lambda(steps)
            check_not_negative("LambdaLR", **{f"lr_lambda({steps})": share})
            return initial * share

        super().__init__(optimizer, rate)


class StepLR(RateSchedule):
    """The rate times `gamma` after every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        _check_count("StepLR", "step_size", step_size)
        check_option("StepLR", "gamma", gamma, is_real(gamma) and 0.0 <= gamma <= 1.0, "in [0, 1]")
        super().__init__(optimizer, lambda initial, steps: initial * gamma ** (steps // step_size))


class LinearLR(RateSchedule):
    """From one share of the initial rate to another in `total_iters` steps: a warm-up.

    Source: Goyal et al. 2017, section 2.2, for the gradual warm-up.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3.0,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        _check_count("LinearLR", "total_iters", total_iters)
        check_not_negative("LinearLR", start_factor=start_factor, end_factor=end_factor)

        def rate(initial: float, steps: int) -> float:
            done = min(steps, total_iters) / total_iters
            return initial * (start_factor + (end_factor - start_factor) * done)

        super().__init__(optimizer, rate)


class CosineAnnealingLR(RateSchedule):
    """From the initial rate to `eta_min` along half a cosine of `T_max` steps, and then back.

    Source: Loshchilov and Hutter, ICLR 2017 (SGDR), equation 5, without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        _check_count("CosineAnnealingLR", "T_max", T_max)
        check_not_negative("CosineAnnealingLR", eta_min=eta_min)

        def rate(initial: float, steps: int) -> float:
            return eta_min + (initial - eta_min) * (1.0 + math.cos(math.pi * steps / T_max)) / 2.0

        super().__init__(optimizer, rate)


class SequentialLR(RateSchedule):
    """One schedule after another, each from its own step 0: a warm-up, and what comes then.

    Args:
        schedulers: of the same optimizer; `step` is called of this one alone.
        milestones: the steps at which the second, third, ... begin, rising.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[RateSchedule], milestones: Sequence[int]
    ) -> None:
        own = isinstance(schedulers, (list, tuple)) and all(
            isinstance(each, RateSchedule) and each.is_of(optimizer) for each in schedulers
        )
        check_option("SequentialLR", "schedulers", schedulers, own, "schedules of this optimizer")
        starts = _rising(milestones)
        fits = len(starts) == len(schedulers)
        expected = "whole numbers above 0 that rise, one less than schedulers"
        check_option("SequentialLR", "milestones", milestones, fits, expected)

        def rate(initial: float, steps: int) -> float:
            k = max(k for k, start in enumerate(starts) if start <= steps)
            return schedulers[k].rate(initial, steps - starts[k])

        super().__init__(optimizer, rate)


def _rising(milestones: object) -> list[int]:
    """Return 0 and the milestones; nothing, if they are not whole numbers that rise."""
    if not isinstance(milestones, (list, tuple)) or not all(is_whole(m) for m in milestones):
        return []
    starts = [0, *milestones]
    return starts if all(a < b for a, b in itertools.pairwise(starts)) else []


class ReduceLROnPlateau:
    """The rate times `factor` when a measure has not improved for more than `patience` steps.

    Args:
        mode: "min" for a loss, "max" for an accuracy.
        threshold: how much better it must be than the best so far, as a share of that.
        min_lr: below which the rate does not go.
    Attributes:
        best: measure; None before the first step.
        bad_steps: steps since it, or since the last reduction.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        min_lr: float = 0.0,
    ) -> None:
        title = "ReduceLROnPlateau"
        _initial(title, optimizer)
        known = isinstance(mode, str) and mode in ("min", "max")
        check_option(title, "mode", mode, known, "'min' or 'max'")
        check_option(title, "factor", factor, is_real(factor) and 0.0 <= factor < 1.0, "in [0, 1)")
        _check_count(title, "patience", patience, least=0)
        check_not_negative(title, threshold=threshold, min_lr=min_lr)
        self._optimizer, self._sign = optimizer, 1.0 if mode == "max" else -1.0
        self._factor, self._patience = factor, patience
        self._threshold, self._min_lr = threshold, min_lr
        self.best: float | None = None
        self.bad_steps = 0

    def step(self, metric: float) -> None:
        """Look at a measure, and reduce the rate when it is time; nan and inf improve nothing."""
        lost = isinstance(metric, float | np.floating) and not math.isfinite(metric)
        check_option("ReduceLROnPlateau", "metric", metric, lost or is_real(metric), "a number")
        bound = None if self.best is None else self.best * (1.0 + self._sign * self._threshold)
        better = bound is None or self._sign * metric > self._sign * bound
        if not lost and better:
            self.best, self.bad_steps = float(metric), 0
        else:
            self.bad_steps += 1
        if self.bad_steps > self._patience:
            reduced = max(self._optimizer.lr * self._factor, self._min_lr)
            if self._optimizer.lr - reduced > LEAST_CHANGE:
                self._optimizer.lr = reduced
            self.bad_steps = 0

    @property
    def state(self) -> dict[str, Any]:
        """What continues a run; the rate is a part of it."""
        return {"lr": self._optimizer.lr, "best": self.best, "bad_steps": self.bad_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises: CheckpointError, when it is not one."""
        fields = JsonRecord(state, "schedule")
        best = None if fields.null("best") else fields.real("best")
        bad_steps, lr = fields.whole("bad_steps", 0, LARGEST_COUNT), fields.real("lr", 0.0, LARGEST)
        fields.end()
        self.best, self.bad_steps, self._optimizer.lr = best, bad_steps, lr


def _initial(where: str, optimizer: object) -> float:
    """Return the rate that an optimizer had before any schedule."""
    if not isinstance(optimizer, Optimizer):
        raise UsageError.at(
            where,
            f"a {type(optimizer).__name__}",
            "an optimizer",
            "pass an optimizer such as vrt.Adam(1e-3)",
        )
    if optimizer.initial_lr is None:
        optimizer.initial_lr = optimizer.lr
    return optimizer.initial_lr


def _check_count(where: str, name: str, value: object, least: int = 1) -> None:
    fits = is_whole(value) and least <= value <= LARGEST_COUNT
    check_option(where, name, value, fits, f"a whole number >= {least}")
