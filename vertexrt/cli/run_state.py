"""Keep where a run stands, and write it into a checkpoint beside parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

import vertexrt as vrt
from vertexrt.api.optimizer import Optimizer
from vertexrt.cli.metrics import Totals
from vertexrt.cli.options import RunOptions
from vertexrt.cli.session import Session, fingerprint
from vertexrt.errors import CheckpointError, NumericError, message

FORMAT = "vertexrt-train-1"  # tells these checkpoints from those of other programs


@dataclass(slots=True)
class RunState:
    """Hold the position of a run.

    Attributes:
        epoch: epochs that are complete.
        batch: minibatches of the next epoch that are done.
        totals: sums over those minibatches.
        best, best_epoch: the best dev value so far and its epoch, from 1; None and 0 at first.
        stale: epochs since the best one.
    """

    epoch: int = 0
    batch: int = 0
    totals: Totals = field(default_factory=Totals)
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0

    def next_epoch(self) -> None:
        """Stand at the first minibatch of the next epoch."""
        self.epoch += 1
        self.batch = 0
        self.totals = Totals()

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the position back."""
        return cls(**{**stored, "totals": Totals(**stored["totals"])})


def save(path: Path, session: Session, optimizer: Optimizer, state: RunState) -> None:
    """Write a checkpoint to a temporary name and rename it.

    Raises: NumericError, when a parameter is not finite; the file there stays as it is.
    """
    for name, value in session.net.parameters.items():
        if not np.isfinite(value).all():
            raise NumericError(
                message(
                    "train",
                    f"the parameter '{name}' is not finite after epoch {state.epoch}",
                    "expected finite numbers",
                    "Lower --lr, or bound the gradient with --clip-norm",
                )
            )
    meta = {
        "format": FORMAT,
        "options": session.options.to_json(),
        "state": asdict(state),
        "random": session.net.random_state(),
        "data": fingerprint(session.dataset),
        "vocabulary": list(session.dataset.vocabulary.words),
    }
    vrt.save_checkpoint(path, session.net, optimizer, meta)


def load(path: Path) -> tuple[vrt.Checkpoint, RunOptions]:
    """Read a checkpoint of a run and the options that it was trained with.

    Raises: CheckpointError, when it is damaged or was not written by `vertexrt train`.
    """
    checkpoint = vrt.load_checkpoint(path)
    if checkpoint.meta.get("format") != FORMAT:
        raise CheckpointError(
            message(
                str(path),
                "it does not say how it was trained",
                "expected a checkpoint written by `vertexrt train`",
                "Give the folder of such a run",
            )
        )
    return checkpoint, RunOptions.from_json(checkpoint.meta["options"], str(path))


def restore(checkpoint: vrt.Checkpoint, session: Session, optimizer: Optimizer) -> RunState:
    """Put network and optimizer back to where a checkpoint was written; return the position.

    Raises: CheckpointError, when the parameters or the state do not belong to this network.
    """
    session.net.set_parameters(checkpoint.parameters)
    session.net.set_random_state(checkpoint.meta["random"])
    optimizer.load_state(checkpoint.optimizer_state)
    return RunState.from_json(checkpoint.meta["state"])
