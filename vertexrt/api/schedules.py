"""Learning rates that change: functions of the number of updates so far, 0 for the first.

    optimizer = vrt.Adam(lr=vrt.schedules.cosine(1e-3, steps=1000))

Any function of yours is one, too. A number of a group stays in proportion to `peak`, the largest
rate of a schedule; of a function of yours, to its rate of the first update. What a run has to keep
is the optimizer's count of updates alone; `Plateau`, which looks at a measure, has a state of its
own. All raise UsageError for options that they do not take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.api.arguments import check_not_negative, check_option
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.checks import is_real, is_whole
from vertexrt.engine.lazy import Loss

__all__ = ["Plateau", "constant", "cosine", "join", "linear", "step"]

LARGEST = 1.7e308
LEAST_CHANGE = 1e-8  # of a rate, for `Plateau`


@dataclass(frozen=True, slots=True, repr=False)
class RateSchedule:
    """A rate that depends on the number of updates so far alone.

    Attributes:
        peak: the largest rate.
        name: of a function in `RATES`; options: what it takes after the number of updates.
    """

    peak: float
    name: str
    options: tuple[Any, ...]

    def __call__(self, steps: int) -> float:
        """Return the rate of the update after so many."""
        return float(RATES[self.name](steps, *self.options))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.options))})"


RATES: dict[str, Callable[..., float]] = {
    "constant": lambda n, rate: rate,
    "linear": lambda n, first, last, steps: first + (last - first) * (min(n, steps) / steps),
    "step": lambda n, rate, every, factor: rate * factor ** (n // every),
    "cosine": lambda n, rate, steps, least: (
        least + (rate - least) * (1.0 + math.cos(math.pi * n / steps)) / 2.0
    ),
    "join": lambda n, schedules, starts: [
        each(n - start) for each, start in zip(schedules, starts, strict=True) if start <= n
    ][-1],
}


def constant(rate: float) -> RateSchedule:
    """Return a schedule of one rate, as a part of `join`."""
    check_not_negative("constant", rate=rate)
    return RateSchedule(rate, "constant", (rate,))


def linear(first: float, last: float, *, steps: int) -> RateSchedule:
    """Return a schedule from one rate to another in so many updates: a warm-up.

    It stays at the last one. Source: Goyal et al. 2017, section 2.2, for the gradual warm-up.
    """
    check_not_negative("linear", first=first, last=last)
    _check_count("linear", "steps", steps)
    return RateSchedule(max(first, last), "linear", (first, last, steps))


def step(rate: float, *, every: int, factor: float = 0.1) -> RateSchedule:
    """Return a schedule that multiplies the rate by `factor` after `every` so many updates."""
    check_not_negative("step", rate=rate)
    _check_count("step", "every", every)
    fits = is_real(factor) and 0.0 <= factor <= 1.0
    check_option("step", "factor", factor, fits, "in [0, 1]")
    return RateSchedule(rate, "step", (rate, every, factor))


def cosine(rate: float, *, steps: int, least: float = 0.0) -> RateSchedule:
    """Return a schedule down to `least` along half a cosine of so many updates, and then back.

    Source: Loshchilov and Hutter, ICLR 2017 (SGDR), equation 5, without restarts.
    """
    check_not_negative("cosine", rate=rate, least=least)
    _check_count("cosine", "steps", steps)
    return RateSchedule(max(rate, least), "cosine", (rate, steps, least))


def join(*schedules: RateSchedule, at: Sequence[int]) -> RateSchedule:
    """Return one schedule after another, each from its own update 0.

    Args:
        schedules: a warm-up, say, and what comes then.
        at: the updates at which the second, third, ... begin, rising.
    """
    own = all(isinstance(each, RateSchedule) for each in schedules) and len(schedules) > 0
    check_option("join", "schedules", schedules, own, "schedules of this module")
    whole = isinstance(at, (list, tuple)) and all(is_whole(start) for start in at)
    starts = (0, *at) if whole else ()
    fits = len(starts) == len(schedules) and all(a < b for a, b in itertools.pairwise(starts))
    check_option("join", "at", at, fits, "whole numbers above 0 that rise, one less than schedules")
    return RateSchedule(max(each.peak for each in schedules), "join", (schedules, starts))


class Plateau:
    """A rate that is multiplied by `factor` when a measure has not improved for too long.

        plateau = vrt.schedules.Plateau(1e-3, patience=2)
        optimizer = vrt.Adam(lr=plateau)
        plateau.observe(dev_loss)  # after an epoch

    Args:
        rate: at first.
        mode: "min" for a loss, "max" for an accuracy.
        patience: how many measures may pass without being better.
        threshold: how much better one must be than the best so far, as a share of that.
        least: below which the rate does not go.
    Attributes:
        peak: the rate at first; rate: that of now.
        best: measure; None before the first one.
        bad: measures since it, or since the last reduction.
    """

    def __init__(
        self,
        rate: float,
        *,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        least: float = 0.0,
    ) -> None:
        known = isinstance(mode, str) and mode in ("min", "max")
        check_option("Plateau", "mode", mode, known, "'min' or 'max'")
        fits = is_real(factor) and 0.0 <= factor < 1.0
        check_option("Plateau", "factor", factor, fits, "in [0, 1)")
        _check_count("Plateau", "patience", patience, least=0)
        check_not_negative("Plateau", rate=rate, threshold=threshold, least=least)
        self.peak = self.rate = float(rate)
        self._sign = 1.0 if mode == "max" else -1.0
        self._factor, self._patience = factor, patience
        self._threshold, self._least = threshold, least
        self.best: float | None = None
        self.bad = 0

    def __call__(self, steps: int) -> float:
        """Return the rate of now, whatever the number of updates."""
        return self.rate

    def __repr__(self) -> str:
        return f"Plateau({self.peak!r}; {self.rate!r} now)"

    def observe(self, metric: float | Loss) -> None:
        """Look at a measure, and reduce the rate when it is time; nan and inf improve nothing."""
        metric = float(metric) if isinstance(metric, Loss) else metric
        lost = isinstance(metric, float | np.floating) and not math.isfinite(metric)
        check_option("Plateau", "metric", metric, lost or is_real(metric), "a number")
        bound = None if self.best is None else self.best * (1.0 + self._sign * self._threshold)
        better = bound is None or self._sign * metric > self._sign * bound
        if not lost and better:
            self.best, self.bad = float(metric), 0
        else:
            self.bad += 1
        if self.bad > self._patience:
            reduced = max(self.rate * self._factor, self._least)
            if self.rate - reduced > LEAST_CHANGE:
                self.rate = reduced
            self.bad = 0

    def state(self) -> dict[str, Any]:
        """Return what continues a run: numbers that JSON can hold."""
        return {"rate": self.rate, "best": self.best, "bad": self.bad}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises: CheckpointError, when it is not one."""
        fields = JsonRecord(state, "schedule")
        best = None if fields.null("best") else fields.real("best")
        bad, rate = fields.whole("bad", 0, LARGEST_COUNT), fields.real("rate", 0.0, LARGEST)
        fields.end()
        self.best, self.bad, self.rate = best, bad, rate


def _check_count(where: str, name: str, value: object, least: int = 1) -> None:
    fits = is_whole(value) and least <= value <= LARGEST_COUNT
    check_option(where, name, value, fits, f"a whole number >= {least}")
