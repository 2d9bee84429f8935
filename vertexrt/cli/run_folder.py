"""Keep what a training run writes: metrics, checkpoints and the learning curve.

DIR/config.json         the options of the run, for --config
DIR/metrics.jsonl       one object per epoch and split
DIR/last.safetensors    where to continue
DIR/best.safetensors    the parameters with the best dev value
DIR/curve.png           learning curves, where matplotlib is installed
DIR/events.out.tfevents.*  the metrics for TensorBoard, with --log tensorboard
DIR/run.lock            while a run is at work: its process and machine (`run_lock`)

Every file appears whole or not at all, and metrics reach the disk before the checkpoint that counts
them. So a run that is killed at any instant leaves a folder with last.safetensors, which --resume
continues, or one with nothing but a lock and a file that was being written (`.NAME.XXXXXXXX.tmp`),
in which --out starts again; the next run removes both. No link in the folder is written through.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vertexrt.api.json_record import JsonRecord, parse_json
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.cli import run_lock
from vertexrt.cli.options import CONFIG_NAME, SPLITS
from vertexrt.errors import CheckpointError, UsageError
from vertexrt.plain_files import (
    append_durably,
    leftovers,
    read_plain,
    remove_leftovers,
    write_atomically,
)

LAST = "last.safetensors"
BEST = "best.safetensors"
METRICS = "metrics.jsonl"
CURVE = "curve.png"
CORRECT = "Correct or remove the line"
WRITTEN = (LAST, BEST, METRICS, CURVE, CONFIG_NAME)


# The module of a SummaryWriter, and the packages that it needs; the first that is there is taken.
WRITERS = {
    "tensorboardX": ("tensorboardX",),
    "torch.utils.tensorboard": ("torch", "tensorboard"),
}
NOT_SCALARS = ("epoch", "split")


class ScalarLog:
    """Add the lines of metrics.jsonl to event files, as scalars such as `loss/dev`.

    A file is opened with the first line, and a run that is resumed writes a new one; TensorBoard
    reads them as one course.

    Raises: UsageError, when no library is there that writes event files.
    """

    def __init__(self) -> None:
        self._writer: Any = None
        for module, packages in WRITERS.items():
            if all(find_spec(package) for package in packages):
                self._module = module
                return
        raise UsageError.at(
            "--log",
            "no library that writes event files is installed",
            "expected tensorboardX, or torch with tensorboard",
            "Get it with: pip install 'vertexrt[tensorboard]'",
        )

    def add(self, folder: Path, records: Sequence[dict[str, Any]]) -> None:
        """Add lines; they are in the file when this returns.

        Args:
            folder: of the run.
            records: as `Totals.record` makes them; a null is left out.
        """
        if self._writer is None:
            # What a run wrote after its last checkpoint is repeated: TensorBoard drops the first.
            epoch, split = (records[0][name] for name in NOT_SCALARS)
            self._writer = import_module(self._module).SummaryWriter(
                str(folder),
                purge_step=epoch if split == "train" else None,
                filename_suffix=f".{epoch}",  # files of the same second must not be the same one
            )
        for record in records:
            for name, value in record.items():
                if name not in NOT_SCALARS and value is not None:
                    self._writer.add_scalar(f"{name}/{record['split']}", value, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Name the files of one run.

    Attributes:
        path: the folder; it exists.
        made: folders that did not exist before, the innermost first.
        lock: what keeps other runs out; None where the folder is only read.
        log: where the metrics are written, too.
        writes: False in processes of a group that leave it to another to write.
    """

    path: Path
    made: tuple[Path, ...] = ()
    lock: run_lock.RunLock | None = None
    log: ScalarLog | None = None
    writes: bool = True

    @property
    def last(self) -> Path:
        """Return the checkpoint to continue from."""
        return self.path / LAST

    @property
    def best(self) -> Path:
        """Return the checkpoint with the best dev value."""
        return self.path / BEST

    @property
    def metrics(self) -> Path:
        """Return the file of metrics."""
        return self.path / METRICS

    @property
    def curve(self) -> Path:
        """Return the picture of the learning curves."""
        return self.path / CURVE

    def configure(self, options: Mapping[str, Any]) -> None:
        """Write down the options of the run.

        Raises: CheckpointError, when they cannot be written.
        """
        if not self.writes:
            return
        content = json.dumps(options, indent=2) + "\n"
        with self._writing():
            write_atomically(self.path / CONFIG_NAME, content.encode())

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        """Add lines to the metrics; they are on disk when this returns.

        Raises: CheckpointError, when they cannot be written.
        """
        if not self.writes:
            return
        with self._writing():
            append_durably(self.metrics, _lines(records))
            if self.log is not None:
                self.log.add(self.path, records)

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics written so far; a last line that was cut off is left out.

        Raises: CheckpointError, when they cannot be read, or a line is not one of a run's.
        """
        if not self.metrics.exists():
            return []
        try:
            lines = read_plain(self.metrics).split(b"\n")[:-1]
        except OSError as error:
            raise self._misread(str(self.metrics), error.strerror or str(error)) from error
        return [self._record(number, line) for number, line in enumerate(lines, 1)]

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the lines that are not `wanted`, in one rename.

        Raises: CheckpointError, when the metrics cannot be read or written.
        """
        if not self.writes:
            return
        kept = _lines(record for record in self.records() if wanted(record))
        with self._writing():
            write_atomically(self.metrics, kept)

    def close(self) -> None:
        """Let others in; remove folders that were made for a run that never saved."""
        if self.log is not None:
            self.log.close()
        if self.lock is not None:
            self.lock.release()
        for folder in self.made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        """Read a line: `epoch`, `split`, and numbers by name, null where one was not finite."""
        where = f"{self.metrics}:{number}"
        try:
            stored = parse_json(line)
        except ValueError as error:
            raise self._misread(where, f"the line is not JSON ({error})") from error
        fields = JsonRecord(stored, where, action=CORRECT)
        record: dict[str, Any] = {
            "epoch": fields.whole("epoch", 0, LARGEST_COUNT),
            "split": fields.text("split", SPLITS),
        }
        for name in fields.unread():
            record[name] = None if fields.null(name) else fields.real(name)
        return record

    def _misread(self, where: str, got: str) -> CheckpointError:
        return CheckpointError.at(where, got, "expected the metrics of a run, unchanged", CORRECT)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError.at(
                str(self.metrics),
                f"the metrics cannot be written ({error.strerror or error})",
                "expected a folder with room",
                "Make room and continue with --resume",
            ) from error


def _lines(records: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def fresh(out: str | None, model: str, log: ScalarLog | None = None) -> RunFolder:
    """Make the folder of a new run and lock it.

    A folder may be there when it is empty, or when a run was killed in it before its first save.

    Args:
        out: the folder; by default `runs/MODEL-DATE-TIME`, a name not taken yet.
        model: name of the model.
        log: where the metrics are written, too.
    Raises: UsageError, when the folder holds files already, another run is at work in it, or it
        cannot be made or written.
    """
    path = Path(out or f"runs/{model}-{datetime.now():%Y%m%d-%H%M%S}")
    stem, count = path.name, 1
    while out is None and path.exists():
        count += 1
        path = path.with_name(f"{stem}-{count}")
    made = tuple(folder for folder in (path, *path.parents) if not os.path.exists(folder))
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path / run_lock.NAME):  # a folder of other files gets none
            _require_empty(path)
        folder = RunFolder(path, made, run_lock.take(path, "--out"), log)
    except OSError as error:
        raise _cannot_write("--out", path, error) from error
    try:
        _require_empty(path)
        remove_leftovers(path, WRITTEN)
    except BaseException:
        folder.close()
        raise
    return folder


def _require_empty(path: Path) -> None:
    """Raise UsageError when a folder holds more than what a run left that never saved."""
    ours = {run_lock.NAME, *(left.name for left in leftovers(path, WRITTEN))}
    if all(entry.name in ours for entry in path.iterdir()):
        return
    other = "Give another one"
    if (path / LAST).is_file():
        other += f", or continue that run with --resume {path}"
    raise UsageError.at(
        "--out",
        f"the folder {path} is not empty",
        "expected a new or empty folder, so that no run is overwritten",
        other,
    )


def _cannot_write(flag: str, path: Path, error: OSError) -> UsageError:
    return UsageError.at(
        flag,
        f"the run folder {path} cannot be written ({error.strerror or error})",
        "expected a folder where checkpoints can be kept",
        "Give another one with --out",
    )


def existing(name: str, log: ScalarLog | None = None) -> RunFolder:
    """Return the folder of a run to continue, locked.

    Raises: UsageError, when there is no such folder, it cannot be written, or another run is at
        work in it; CheckpointError, when it holds no checkpoint.
    """
    path = Path(name)
    if not os.path.isdir(path):
        raise UsageError.at(
            "--resume",
            f"there is no folder {name}",
            f"expected a run folder with a {LAST}",
            "Give the --out folder of a run",
        )
    if not (path / LAST).is_file() and not os.path.lexists(path / run_lock.NAME):
        raise _no_checkpoint(name)
    try:
        folder = RunFolder(path, (), run_lock.take(path, "--resume"), log)
    except OSError as error:
        raise _cannot_write("--resume", path, error) from error
    if not folder.last.is_file():
        folder.close()
        raise _no_checkpoint(name)
    remove_leftovers(path, WRITTEN)
    return folder


def _no_checkpoint(name: str) -> CheckpointError:
    return CheckpointError.at(
        "--resume",
        f"{name} holds no {LAST}",
        "expected the folder of a run that wrote a checkpoint",
        f"Start the run again with --out {name}",
    )


def find_checkpoint(run: str) -> Path:
    """Return the checkpoint to evaluate: the best one of a folder, else the last, or a file itself.

    Raises: UsageError, when nothing is there; CheckpointError, when the folder holds none.
    """
    path = Path(run)
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise UsageError.at(
            "RUN",
            f"there is no run {run}",
            "expected a run folder or a checkpoint file",
            "Give the --out folder of a run",
        )
    for candidate in (path / BEST, path / LAST):
        if candidate.is_file():
            return candidate
    raise CheckpointError.at(
        "RUN",
        f"{run} holds neither {BEST} nor {LAST}",
        "expected the folder of a run that wrote a checkpoint",
        "Train one with `vertexrt train`",
    )
