"""Medians with their spread, ratios over rounds, and whether a difference shows in the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FASTER, SLOWER, HIDDEN = "faster", "slower", "hidden by the spread"


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float


def spread_of(samples: Sequence[float]) -> Spread:
    """Return median and quartiles of at least one sample."""
    low, median, high = np.percentile(np.asarray(samples, np.float64), [25, 50, 75])
    return Spread(float(median), float(low), float(high))


def ratio_of(samples: Sequence[float], reference: Sequence[float]) -> Spread:
    """Return the spread of samples over the reference's of the same rounds.

    Taken round by round, so that a change of the machine's speed between rounds cancels.
    """
    assert len(samples) == len(reference), (len(samples), len(reference))
    return spread_of((np.asarray(samples) / np.asarray(reference)).tolist())


def noise_of(control: Spread) -> float:
    """Return how far a ratio of equals strays from 1, as a factor.

    Args:
        control: the ratio of the reference to itself, run once more under another name.
    """
    return math.exp(max(abs(math.log(control.low)), abs(math.log(control.high))))


def verdict(ratio: Spread, noise: float = 1.0) -> str:
    """Say what a ratio of speeds shows.

    Args:
        noise: of `noise_of`: a median within this factor of 1 shows nothing.
    Returns: FASTER or SLOWER, or HIDDEN where the quartiles lie on both sides of 1 or the median is
        within the noise.
    """
    within = 1.0 / noise <= ratio.median <= noise
    if within or ratio.low <= 1.0 <= ratio.high:
        return HIDDEN
    return FASTER if ratio.median > 1.0 else SLOWER
