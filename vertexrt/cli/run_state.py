"""Keep where a run stands, and write it into a checkpoint with parameters and optimizer state."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

import vertexrt as vrt
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer
from vertexrt.cli.measures import MEASURES, Count, Totals
from vertexrt.cli.run_options import RunOptions
from vertexrt.cli.session import Fingerprint, RunSession, fingerprint, hash_of
from vertexrt.cli.tasks import TASKS, Task
from vertexrt.data import UNKNOWN, Vocabulary, real_pulls
from vertexrt.errors import CheckpointError, DataError

FORMAT = "vertexrt-train-3"  # tells these checkpoints from those of other programs
EARLIER = ("vertexrt-train-1", "vertexrt-train-2")


@dataclass(slots=True)
class RunState:
    """Hold the position of a run.

    Attributes:
        epoch: epochs that are complete.
        batch: minibatches of the next epoch that are done.
        totals: sums over those minibatches.
        measure: the measure of the best dev value, a name of `MEASURES`.
        best, best_epoch: that value so far and its epoch, from 1; None and 0 at first.
        stale: epochs since the best one.
    """

    epoch: Count = 0
    batch: Count = 0
    totals: Totals = field(default_factory=Totals)
    measure: str = "loss"
    best: float | None = None
    best_epoch: Count = 0
    stale: Count = 0

    @classmethod
    def from_json(cls, fields: JsonRecord, task: Task) -> Self:
        """Read the position back. Raises: CheckpointError."""
        found = fields.build(cls)
        fields.text("measure", ("loss", *task.measures))
        sums = [name for measure in task.measures for name in MEASURES[measure].sums]
        fields.record("totals").record("sums").end(sums)
        stale = found.epoch - fields.whole("best_epoch", 0, found.epoch)
        fields.whole("stale", stale, stale)
        if (found.best is None) != (found.best_epoch == 0):
            expected = f"the dev value of epoch {found.best_epoch}, or null before the first"
            fields.refuse("best", expected)
        return found


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Hold a checkpoint of a run, every field of it checked.

    Attributes:
        checkpoint: parameters, and state and description of the optimizer.
        options: of the run.
        state: where it stood.
        random: of the network.
        data: what the run was trained on.
        vocabularies: of its words, by pull.
        reals: the pulls that were real numbers in its data.
    """

    path: Path
    checkpoint: vrt.Checkpoint
    options: RunOptions
    state: RunState
    random: dict[str, int]
    data: Fingerprint
    vocabularies: dict[str, Vocabulary]
    reals: tuple[str, ...]

    @property
    def judged(self) -> dict[str, npt.NDArray[Any]]:
        """Return the parameters that the run is judged by: their average where it takes one."""
        return self.checkpoint.average or self.checkpoint.parameters


def save(
    path: Path,
    session: RunSession,
    optimizer: Optimizer,
    state: RunState,
    average: vrt.ExponentialMovingAverage | None = None,
) -> None:
    """Write a checkpoint to a temporary name and rename it.

    Raises: NumericError, when a number is not finite; the file there stays as it is.
    """
    meta = {
        "format": FORMAT,
        "options": asdict(session.options),
        "state": asdict(state),
        "random": session.net.state()["random"],
        "data": asdict(fingerprint(session.dataset)),
        "vocabularies": {
            name: list(known.words) for name, known in session.dataset.vocabularies.items()
        },
        "reals": real_pulls(session.dataset.splits["train"]),
    }
    vrt.save_checkpoint(path, session.net, optimizer, meta, average)


def load(path: Path) -> StoredRun:
    """Read a checkpoint of a run.

    Raises: CheckpointError, when it is damaged, was not written by `vertexrt train`, or a field of
        it is not what that writes.
    """
    checkpoint = vrt.load_checkpoint(path)
    found = checkpoint.meta.get("format")
    if found in EARLIER:
        raise CheckpointError.at(
            str(path),
            "an earlier vertexrt wrote it, with other options and sums",
            "expected a run of this version",
            "Train again, or read its parameters with vrt.load_checkpoint",
        )
    if found != FORMAT:
        raise CheckpointError.at(
            str(path),
            "it does not say how it was trained",
            "expected a checkpoint written by `vertexrt train`",
            "Give the folder of such a run",
        )
    fields = JsonRecord(checkpoint.meta, str(path))
    stored = checked(path, checkpoint, fields, fields.record("vocabularies"))
    decay = stored.options.average
    if bool(checkpoint.average) != bool(decay):
        raise _not_of_one_run(path, f"{len(checkpoint.average)} averages, --average {decay:g}")
    return stored


def checked(
    path: Path, checkpoint: vrt.Checkpoint, fields: JsonRecord, words: JsonRecord
) -> StoredRun:
    """Check the description of a run.

    Args:
        path: where the parameters are from.
        fields: what `save` describes it with; all but the vocabularies are read.
        words: the vocabularies, by pull.
    Raises: CheckpointError, as `load` does.
    """
    fields.text("format", (FORMAT,))
    options = RunOptions.from_json(fields.record("options"))
    state = RunState.from_json(fields.record("state"), TASKS[options.task])
    random = fields.record("random")
    seed = random.whole("seed", options.seed, options.seed)
    count = "step" if "step" in checkpoint.meta.get("random", ()) else "draws"  # of old files
    numbers = {"seed": seed, "draws": random.whole(count, 0, LARGEST_COUNT)}
    data = fields.record("data").build(Fingerprint)
    reals = fields.texts("reals")
    known = {name: words.texts(name) for name in words.unread()}
    fields.end()
    try:
        found = {
            name: Vocabulary(each, unknown=UNKNOWN if UNKNOWN in each[:1] else None)
            for name, each in known.items()
        }
    except DataError as error:
        got = "a vocabulary is no list of different words"
        raise _not_of_one_run(words.where, got) from error
    if hash_of(found) != data.words:
        raise _not_of_one_run(words.where, "the vocabularies are not those of data.words")
    return StoredRun(path, checkpoint, options, state, numbers, data, found, reals)


def restore(
    stored: StoredRun,
    session: RunSession,
    optimizer: Optimizer,
    average: vrt.ExponentialMovingAverage | None = None,
) -> RunState:
    """Put all that changes back to where a checkpoint was written; return the position.

    Raises: CheckpointError, when parameters, state or counts do not belong to this run.
    """
    checkpoint, state, options = stored.checkpoint, stored.state, session.options
    described = optimizer.describe()
    if options.schedule != "constant":  # the rate of each epoch follows from the options
        described["lr"] = checkpoint.optimizer.get("lr")
    if checkpoint.optimizer != described:
        raise _not_of_one_run(stored.path, "the optimizer is not the one that the options name")
    if average is not None:
        average.set_parameters(checkpoint.average)
    session.net.load_state({"parameters": checkpoint.parameters, "random": stored.random})
    optimizer.load_state(checkpoint.optimizer_state)
    graphs = session.dataset.splits["train"].num_graphs
    batches = -(-graphs // options.batch_size)
    most = state.batch * options.batch_size
    least = most - (batches * options.batch_size - graphs)  # the smaller one may be among them
    if state.batch > batches or not max(least, 0) <= state.totals.graphs <= most:
        raise _not_of_one_run(
            stored.path, f"{state.batch} minibatches of {state.totals.graphs} graphs are done"
        )
    if optimizer.steps != state.epoch * batches + state.batch:
        raise _not_of_one_run(
            stored.path,
            f"{optimizer.steps} steps in {state.epoch} epochs and {state.batch} minibatches",
        )
    return state


def _not_of_one_run(path: str | Path, got: str) -> CheckpointError:
    return CheckpointError.at(
        str(path),
        got,
        "expected the parts of one run, as `vertexrt train` writes them",
        "Use an earlier checkpoint or a fresh copy",
    )
