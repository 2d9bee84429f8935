"""Keep what a training run leaves behind: metrics, checkpoints and the learning curve.

DIR/metrics.jsonl       one object per epoch and split
DIR/last.safetensors    where to continue
DIR/best.safetensors    the parameters with the best dev value
DIR/curve.png           learning curves, where matplotlib is installed
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vertexrt.errors import CheckpointError, UsageError, message

LAST = "last.safetensors"
BEST = "best.safetensors"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Name the files of one run.

    Attributes:
        path: the folder; it exists.
        made: folders that did not exist before, the innermost first.
    """

    path: Path
    made: tuple[Path, ...] = ()

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
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        """Return the picture of the learning curves."""
        return self.path / "curve.png"

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Add lines to the metrics.

        Raises: CheckpointError, when they cannot be written.
        """
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
        except OSError as error:
            raise self._unwritable(error) from error

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics written so far; a last line that was cut off is left out.

        Raises: CheckpointError, when a line is not JSON.
        """
        if not self.metrics.exists():
            return []
        found = []
        lines = self.metrics.read_text(encoding="utf-8").split("\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise CheckpointError(
                    message(
                        f"{self.metrics}:{number}",
                        f"the line is not JSON ({error})",
                        "expected the metrics of a run, unchanged",
                        "Correct or remove the line",
                    )
                ) from error
        return found

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the lines that are not `wanted`, in one rename.

        Raises: CheckpointError, when the metrics cannot be read or written.
        """
        text = "".join(json.dumps(record) + "\n" for record in self.records() if wanted(record))
        fresh = self.metrics.with_suffix(".jsonl.new")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self.metrics)
        except OSError as error:
            raise self._unwritable(error) from error

    def discard_if_empty(self) -> None:
        """Remove the folders that were made, when the run ended before it wrote anything."""
        for folder in self.made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            message(
                str(self.metrics),
                f"the metrics cannot be written ({error.strerror})",
                "expected a folder with room",
                "Make room and continue with --resume",
            )
        )


def fresh(out: str | None, model: str) -> RunFolder:
    """Make the folder of a new run and try to write to it.

    Args:
        out: the folder; by default `runs/MODEL-DATE-TIME`, a name not taken yet.
        model: name of the model.
    Raises: UsageError, when the folder holds files already or cannot be made or written.
    """
    path = Path(out) if out is not None else _unused(Path("runs"), model)
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(
            message(
                "--out",
                f"the folder {path} is not empty",
                "expected a new or empty folder, so that no run is overwritten",
                f"Give another one, or continue that run with --resume {path}",
            )
        )
    made = tuple(folder for folder in (path, *path.parents) if not folder.exists())
    require_writable(path)
    return RunFolder(path, made)


def require_writable(path: Path) -> None:
    """Make the folder where it is missing, and write and remove a file in it.

    Raises: UsageError, with the reason that the system gives.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".probe-"):
            pass
    except OSError as error:
        raise UsageError(
            message(
                "--out",
                f"the run folder {path} cannot be written ({os.strerror(error.errno or 0)})",
                "expected a folder where checkpoints can be kept",
                "Give another one with --out",
            )
        ) from error


def existing(name: str) -> RunFolder:
    """Return the folder of a run to continue.

    Raises: UsageError, when there is no such folder or it cannot be written; CheckpointError, when
        it holds no checkpoint.
    """
    folder = RunFolder(Path(name))
    if not folder.path.is_dir():
        raise UsageError(
            message(
                "--resume",
                f"there is no folder {name}",
                f"expected a run folder with a {LAST}",
                "Give the --out folder of a run",
            )
        )
    if not folder.last.is_file():
        raise CheckpointError(
            message(
                "--resume",
                f"{name} holds no {LAST}",
                "expected the folder of a run that wrote a checkpoint",
                "Start a new run with --out",
            )
        )
    require_writable(folder.path)
    return folder


def find_checkpoint(run: str) -> Path:
    """Return the checkpoint to evaluate: the best one of a folder, else the last, or a file itself.

    Raises: UsageError, when nothing is there; CheckpointError, when the folder holds none.
    """
    path = Path(run)
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError(
            message(
                "eval",
                f"there is no run {run}",
                "expected a run folder or a checkpoint file",
                "Give the --out folder of a run",
            )
        )
    for candidate in (path / BEST, path / LAST):
        if candidate.is_file():
            return candidate
    raise CheckpointError(
        message(
            "eval",
            f"{run} holds neither {BEST} nor {LAST}",
            "expected the folder of a run that wrote a checkpoint",
            "Train one with `vertexrt train`",
        )
    )


def _unused(parent: Path, model: str) -> Path:
    stem = f"{model}-{datetime.now():%Y%m%d-%H%M%S}"
    path, count = parent / stem, 1
    while path.exists():
        count += 1
        path = parent / f"{stem}-{count}"
    return path
