"""Keep what a training run writes: metrics, checkpoints and the learning curve.

DIR/config.json         the options of the run, for --config
DIR/metrics.jsonl       one object per epoch and split
DIR/last.safetensors    where to continue
DIR/best.safetensors    the parameters with the best dev value
DIR/curve.png           learning curves, where matplotlib is installed
DIR/confusion.png       of a classification: what vertices of each class are taken for
DIR/events.out.tfevents.*  the metrics for TensorBoard, with --log tensorboard
DIR/run.lock            while a run is at work: its process and machine

Every file appears whole or not at all, and metrics reach the disk before the checkpoint that counts
them. So a run that is killed at any instant leaves a folder with last.safetensors, which --resume
continues, or one with nothing but a lock and a file that was being written (`.NAME.XXXXXXXX.tmp`),
in which --out starts again; the next run removes both. No link in the folder is written through.

One process at a time works in a folder. What counts is the system's lock on run.lock (flock), which
goes when its owner does, however it ends: a file that a killed run left is taken over. Where the
file system has no such locks, as some network file systems, the text in the file counts: it is
taken over when its process was of this machine and is gone, and must be removed by hand when it was
of another. Two runs that start in the same instant are not told apart there.
"""

import fcntl
import json
import os
import re
import socket
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vertexrt.api.json_record import JsonRecord, parse_json
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.cli.measures import MEASURES, PER_CENT, Totals, better, counted, in_words, table_of
from vertexrt.cli.options import CONFIG_NAME, SPLITS, TASKS
from vertexrt.errors import CheckpointError, UsageError, from_system
from vertexrt.pictures import HOW_TO_DRAW, can_draw, figure
from vertexrt.plain_files import (
    append_durably,
    leftovers,
    read_plain,
    remove_leftovers,
    require_plain_file,
    write_atomically,
)

LOCK = "run.lock"
Line = dict[str, Any]  # of metrics.jsonl
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWNER = re.compile(r"process ([1-9][0-9]{0,6}) on (\S{1,255})\n")
LONGEST_TEXT = 512  # bytes


def take_lock(folder: Path, flag: str) -> int:
    """Lock a run folder; return the open file that holds the lock until it is closed.

    Args:
        folder: it exists.
        flag: the option that named it, for the error.
    Raises: UsageError, when another process is at work there; OSError, when it cannot be locked.
    """
    path = folder / LOCK
    while True:
        handle = os.open(path, _FLAGS, 0o666)
        try:
            require_plain_file(handle, path)
            locked: bool | None = True
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # another process has it, or there are no locks
                locked = False if isinstance(error, BlockingIOError) else None
            owner = os.pread(handle, LONGEST_TEXT, 0).decode("utf-8", "replace")
            if locked is False or (locked is None and not _is_gone(owner)):
                name = owner.strip() if _OWNER.fullmatch(owner) else "another process"
                got = f"{name} is at work in the run folder {folder}"
                wait = "Wait for it to end, or give another folder"
                if locked is None:
                    wait += f"; if it has ended, remove {path}"
                raise UsageError.at(flag, got, "expected one run in a folder at a time", wait)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.lstat(path)):
                    mine = f"process {os.getpid()} on {socket.gethostname()}\n"
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, mine.encode(), 0)
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner removed it while we waited for it: there is a new one


def _is_gone(owner: str) -> bool:
    """Tell whether a lock file's text names no process, or one of this machine that has ended."""
    found = _OWNER.fullmatch(owner)
    if found is None or found[2] != socket.gethostname():
        return not owner
    try:
        with suppress(PermissionError):  # it is there, and another user's
            os.kill(int(found[1]), 0)  # sends nothing
    except ProcessLookupError:
        return True
    return False


LAST = "last.safetensors"
BEST = "best.safetensors"
METRICS = "metrics.jsonl"
CURVE = "curve.png"
CORRECT = "Correct or remove the line"
REMOVE = "Correct or remove the file"
CONFUSION = "confusion.png"
WRITTEN = (LAST, BEST, METRICS, CURVE, CONFUSION, CONFIG_NAME)

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

    _writer: Any

    def __init__(self) -> None:
        known = [module for module, packages in WRITERS.items() if all(map(find_spec, packages))]
        if not known:
            raise UsageError.at(
                "--log",
                "no library that writes event files is installed",
                "expected tensorboardX, or torch with tensorboard",
                "Get it with: pip install -e '.[tensorboard]' in the checkout",
            )
        self._module, self._writer = known[0], None

    def add(self, folder: Path, records: Sequence[Line]) -> None:
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


class RunFolder(NamedTuple):
    """Name the files of one run.

    Attributes:
        path: the folder; it exists.
        made: folders that did not exist before, the innermost first.
        lock: the open file that keeps other runs out; None where the folder is only read.
        log: where the metrics are written, too.
        writes: False in processes of a group that leave it to another to write.
    """

    path: Path
    made: tuple[Path, ...] = ()
    lock: int | None = None
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

    def configure(self, options: Mapping[str, Any]) -> None:
        """Write down the options of the run.

        Raises: CheckpointError, when they cannot be written.
        """
        self._write(CONFIG_NAME, "the options", json_text(options))

    def append(self, records: Sequence[Line]) -> None:
        """Add lines to the metrics; they are on disk when this returns.

        Raises: CheckpointError, when they cannot be written.
        """

        def add(path: Path, lines: bytes) -> None:
            append_durably(path, lines)
            if self.log is not None:
                self.log.add(self.path, records)

        self._write(METRICS, "the metrics", _lines(records), add)

    def records(self) -> list[Line]:
        """Return the metrics written so far; a last line that was cut off is left out.

        A line has `epoch`, `split`, and numbers by name, null where one was not finite.

        Raises: CheckpointError, when they cannot be read, or a line is not one of a run's.
        """
        records: list[Line] = []
        where = str(self.metrics)
        try:
            lines = read_plain(self.metrics).split(b"\n") if self.metrics.exists() else [b""]
            for number, line in enumerate(lines[:-1], 1):
                where = f"{self.metrics}:{number}"
                fields = JsonRecord(parse_json(line), where, action=CORRECT)
                record: Line = {
                    "epoch": fields.whole("epoch", 0, LARGEST_COUNT),
                    "split": fields.text("split", SPLITS),
                }
                records.append(record | fields.build(dict[str, float | None]))
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or f"the line is not JSON ({error})"
            expected = "expected the metrics of a run, unchanged"
            raise CheckpointError.at(where, got, expected, CORRECT) from error
        return records

    def keep(self, wanted: Callable[[Line], bool]) -> None:
        """Drop the lines that are not `wanted`, in one rename.

        Raises: CheckpointError, when the metrics cannot be read or written.
        """
        if self.writes:
            kept = _lines(record for record in self.records() if wanted(record))
            self._write(METRICS, "the metrics", kept)

    def forget(self) -> None:
        """Remove what a run has written that was not trained."""
        for name in (LAST, CONFIG_NAME) if self.writes else ():
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others in; remove folders that were made for a run that never saved."""
        if self.log is not None:
            self.log.close()
        if self.lock is not None:
            (self.path / LOCK).unlink(missing_ok=True)  # before the lock goes: then it is another's
            os.close(self.lock)
        for folder in self.made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _write(
        self,
        name: str,
        what: str,
        content: bytes,
        write: Callable[[Path, bytes], None] = write_atomically,
    ) -> None:
        path = self.path / name
        with from_system(
            CheckpointError,
            str(path),
            f"{what} cannot be written",
            "expected a folder with room",
            "Make room and continue with --resume",
        ):
            if self.writes:
                write(path, content)


def json_text(value: Any) -> bytes:
    """Return JSON for people, as a file has it."""
    return (json.dumps(value, indent=2) + "\n").encode()


def _lines(records: Iterable[Line]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def fresh(out: str | None, model: str) -> RunFolder:
    """Make the folder of a new run and lock it.

    A folder may be there when it is empty, or when a run was killed in it before its first save.

    Args:
        out: the folder; by default `runs/MODEL-DATE-TIME`, a name not taken yet.
        model: name of the model.
    Raises: UsageError, when the folder holds files already, another run is at work in it, or it
        cannot be made or written.
    """
    path = Path(out or f"runs/{model}-{datetime.now():%Y%m%d-%H%M%S}")
    stem, count = path.name, 1
    while out is None and path.exists():
        count += 1
        path = path.with_name(f"{stem}-{count}")
    made = tuple(folder for folder in (path, *path.parents) if not os.path.exists(folder))
    with _writable("--out", path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path / LOCK):  # a folder of other files gets none
            _require_empty(path)
        folder = RunFolder(path, made, take_lock(path, "--out"))
    try:
        _require_empty(path)
        remove_leftovers(path, WRITTEN)
    except BaseException:
        folder.close()
        raise
    return folder


def _require_empty(path: Path) -> None:
    """Raise UsageError when a folder holds more than what a run left that never saved."""
    ours = {LOCK, *(left.name for left in leftovers(path, WRITTEN))}
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


def _writable(flag: str, path: Path) -> AbstractContextManager[None]:
    return from_system(
        UsageError,
        flag,
        f"the run folder {path} cannot be written",
        "expected a folder where checkpoints can be kept",
        "Give another one with --out",
    )


def existing(name: str) -> RunFolder:
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
    lock = None
    with _writable("--resume", path):
        if (path / LAST).is_file() or os.path.lexists(path / LOCK):
            lock = take_lock(path, "--resume")
    folder = RunFolder(path, (), lock)
    if lock is not None and folder.last.is_file():
        remove_leftovers(path, WRITTEN)
        return folder
    folder.close()
    raise CheckpointError.at(
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


PANEL_INCHES = (4.4, 3.4)
MOST_PANELS = 3
MOST_CLASSES = 60  # of a picture that can be read


def draw_curve(folder: RunFolder) -> str | None:
    """Write `curve.png` from the metrics of a run: a panel a value, a ring at its best on dev.

    Returns: None, or one line that says why there is no picture.
    """
    if not can_draw():
        return f"no curve.png: {HOW_TO_DRAW}"
    records = folder.records()
    names = [name for name in MEASURES if any(line.get(name) is not None for line in records)]
    if not names:
        return "no curve.png: no epoch has ended yet"
    from matplotlib.ticker import MaxNLocator, PercentFormatter  # optional

    width, height = PANEL_INCHES
    names = names[:MOST_PANELS]
    last = max(record["epoch"] for record in records)
    try:
        with figure(folder.path / CURVE, 1, len(names), (width * len(names), height)) as (panels,):
            panels[0].figure.suptitle(folder.path.resolve().name)
            for axes, name in zip(panels, names, strict=True):
                for split in ("train", "dev"):
                    of = [x for x in records if x["split"] == split and x.get(name) is not None]
                    points = [x["epoch"] for x in of], [x[name] for x in of]
                    if of:
                        axes.plot(*points, marker="o", markersize=3, label=split)
                if best := best_of(records, name):
                    what = "highest" if MEASURES[name].larger else "lowest"
                    ring = {"markersize": 9, "fillstyle": "none", "color": "C1"}
                    label = f"{what}, epoch {best['epoch']}"
                    axes.plot(best["epoch"], best[name], "o", label=label, **ring)
                title = "loss of a graph" if name == "loss" else name.replace("_", " ")
                axes.set(title=title, xlabel="epoch", xlim=(0.5, last + 0.5))
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
                if name.endswith(PER_CENT):
                    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
                # Below the panel, where it covers no curve.
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)
    except OSError as error:
        return f"no curve.png: it cannot be written ({error.strerror or error})"
    return None


def draw_confusion(folder: RunFolder, found: Totals, names: Sequence[str], split: str) -> None:
    """Write `confusion.png`: what each class is taken for, of roots and of vertices.

    There is none of other tasks, of many classes, or without matplotlib.

    Args:
        found: of the split that was evaluated.
        names: of the classes; () where they are numbers.
    """
    cells = counted(found)
    classes = max((len(each) for each in cells.values()), default=0)
    if not 0 < classes <= MOST_CLASSES or not folder.writes or not can_draw():
        return
    side = 2.5 + 0.2 * classes
    ticks = {"ticks": range(classes), "labels": names or range(classes)}
    path, size = folder.path / CONFUSION, (side * len(cells), side)
    with suppress(OSError), figure(path, 1, len(cells), size) as (panels,):
        for axes, (title, count) in zip(panels, cells.items(), strict=True):
            share = count[:, :classes] / np.maximum(count.sum(1, keepdims=True), 1)
            axes.imshow(share, vmin=0.0, vmax=1.0, cmap="Blues")
            axes.grid(False)
            named = f"{title} of {split}: {count.sum():,}"
            axes.set(title=named, xlabel="answered", ylabel="label")
            axes.set_xticks(**ticks, rotation=90)
            axes.set_yticks(**ticks)
            for (row, column), number in np.ndenumerate(count[:, :classes]):
                if number:
                    colour = "white" if share[row, column] > 0.5 else "black"
                    axes.text(column, row, number, color=colour, ha="center", va="center", size=6)


def best_of(lines: Iterable[Line], measure: str) -> Line:
    """Return the line of dev with the best value of a measure, as training judges; else {}."""
    best = Line()
    for line in lines:
        value, loss = line.get(measure), line.get("loss")
        if line["split"] != "dev" or value is None or loss is None:
            continue
        if better(measure, (value, loss), (best.get(measure), best.get("loss"))):
            best = line
    return best


def read_json(path: Path, expected: str, action: str) -> JsonRecord:
    """Return the object in a file.

    Args:
        expected, action: for the error.
    Raises: CheckpointError, when it cannot be read, or holds none.
    """
    try:
        found = parse_json(read_plain(path))
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise CheckpointError.at(str(path), got, expected, action) from error
    return JsonRecord(found, str(path), action=action)


def runs(given: Namespace) -> int:
    """Run `vertexrt runs`: a line for each run of a folder, with its best dev value; return 0.

    Raises: UsageError, when there is no such folder; CheckpointError, when metrics cannot be read.
    """
    folder = Path(given.folder or "runs")
    if not folder.is_dir():
        raise UsageError.at(
            "FOLDER", f"there is no folder {folder}", "expected one that holds runs", "Name it"
        )
    rows = []
    for config in sorted(folder.glob(f"*/{CONFIG_NAME}")):
        options = read_json(config, "expected the options of a run", REMOVE)
        lines = RunFolder(config.parent).records()
        measures = (*TASKS[options.text("task", TASKS)].measures, "loss")
        if "metric" in options.unread():
            measures = (options.text("metric", measures),)
        measure = next((name for name in measures if best_of(lines, name)), "loss")
        best = best_of(lines, measure)
        test = next((line for line in reversed(lines) if line["split"] == "test"), {})
        rows.append(
            {
                "run": config.parent.name,
                "model": options.text("model").rpartition(":")[2],
                "data": Path(options.text("data")).name,
                "epochs": str(max((line["epoch"] for line in lines), default=0)),
                "best": str(best.get("epoch", "")),
                **in_words(best, ("loss", measure), "dev "),
                **in_words(test, ("loss", measure), "test "),
            }
        )
    print(table_of(rows) if rows else f"no run in {folder}")
    return 0
