"""Compare results with what the oracle says, within its bounds; name the places of errors."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.bounded import Bounded

# A result may be this many times off the first-order bound; two compared numbers that are this
# many times the bound apart are on the same side in every run.
SLACK = {"float64": 64.0, "float32": 8.0}
# A bound that is wider than this, relative to the largest element, would show nothing.
WIDEST = 0.02


class Difference(Exception):
    """A network differs from what is expected."""


class Unclear(Exception):
    """Rounding may decide something, or the call means nothing here: it is left out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        kind: "right", "refused" (there is no kernel of this engine), "unclear" (rounding decides),
            what differs, without its name, or for an error its class and its place.
        text: what differs, or the error.
        number: of the call that failed.
    """

    kind: str
    text: str = ""
    number: int = 0

    @property
    def failed(self) -> bool:
        """Tell whether it is a finding."""
        return self.kind not in ("right", "refused", "unclear")


def outcome_of(error: Exception, number: int = 0) -> Outcome:
    """Say what an error is, by the deepest line of the package that it came from."""
    text = " ".join(str(error).split())
    if isinstance(error, Difference):
        return Outcome(text.partition(":")[0].rpartition(" ")[0] or text, text[:600], number)
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "vertexrt" in Path(f.filename).parts[:-1]] or list(frames)
    last = inside[-1]
    where = f"{type(error).__name__} in {Path(last.filename).name} {last.name}"
    return Outcome(where, f"{where}, line {last.lineno}: {text}"[:600], number)


def rounding(dtype: str) -> float:
    """Return by what a bound is multiplied in a type."""
    return SLACK[dtype] * float(np.finfo(dtype).eps)


def scale(value: Any) -> float:
    """Return the largest of numbers, at least 1."""
    return max(1.0, float(np.max(np.abs(value), initial=0.0)))


def difference(got: Any, want: Bounded, dtype: str, what: str) -> str:
    """Say how a result differs; "" where it is within the bound."""
    array = np.asarray(got)
    if array.shape != want.shape:
        return f"{what}: shape {array.shape}, not {want.shape}"
    if not np.isfinite(array).all():
        return f"{what}: not finite"
    allowed = rounding(dtype) * (want.error + np.abs(want.value)) + 4.0 * np.finfo(dtype).tiny
    off = np.abs(array - want.value)
    if (off <= allowed).all():
        return ""
    return (
        f"{what}: off by {off.max():.3g} of {scale(want.value):.3g}, "
        f"{(off / allowed).max():.3g} times"
    )
