"""Build what a run works with: its data set, its model, its network and its optimizer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import vertexrt as vrt
from vertexrt.api import optim
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer, Rate
from vertexrt.cli.measures import Count
from vertexrt.cli.options import OPTIMIZERS, WITH_MOMENTUM
from vertexrt.cli.run_options import RunOptions
from vertexrt.cli.tasks import TASKS, Task
from vertexrt.data import Dataset, Vocabulary, load
from vertexrt.errors import CheckpointError, DataError, UsageError
from vertexrt.models import ModelSpec
from vertexrt.models.own import find

if TYPE_CHECKING:
    from vertexrt.api.network import Network


@dataclass(frozen=True, slots=True)
class RunSession:
    """A compiled model, and the data that it is trained on or evaluated with."""

    options: RunOptions
    spec: ModelSpec
    dataset: Dataset
    net: Network

    @property
    def task(self) -> Task:
        """Return what it is trained for."""
        return TASKS[self.options.task]


def open_session(options: RunOptions) -> RunSession:
    """Load the data and compile the model.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read or a split that
        training needs is empty.
    """
    spec = find(options.model, options.task, options.format)
    dataset = load(options.data, format=options.format, **options.reading)
    for split in ("train", "dev"):
        require_graphs(dataset, split)
    return RunSession(options, spec, dataset, compile_model(options, spec, dataset))


def require_task(session: RunSession) -> None:
    """Refuse a model or data that a task has no use for.

    Raises: UsageError, when the model lacks a push; DataError, when the data lack a pull.
    """
    task, pushes = session.task, session.net.pushes
    for push in task.pushes:
        if push not in pushes:
            got = f"{session.spec.title} pushes {', '.join(pushes)}"
            expected = f"the task {task.name} reads {' and '.join(task.pushes)}"
            raise UsageError.at("--task", got, expected, "Push it, or name another task")
    pulls = session.dataset.splits["train"].pulls
    if task.label and task.label not in pulls:
        got = f"the graphs of {session.dataset.name} pull {', '.join(pulls)}"
        expected = f"the task {task.name} compares with '{task.label}'"
        raise DataError.at("--task", got, expected, "Add it to the data, or name another task")


def require_graphs(dataset: Dataset, split: str) -> None:
    """Raise DataError when a split is missing or has no graphs."""
    if split not in dataset.splits or dataset.splits[split].num_graphs == 0:
        raise DataError.at(
            "data",
            f"the {split} split of '{dataset.name}' has no graphs",
            "expected one graph or more",
            "Give another data set with --data",
        )


def compile_model(options: RunOptions, spec: ModelSpec, dataset: Dataset) -> Network:
    """Build the vertex function for a data set and compile it."""
    return vrt.compile(
        spec.build(dataset, **options.shape),
        device=options.device,
        engine=options.engine,
        dtype=options.dtype,
        policy=options.policy,
        precision=options.precision,
        seed=options.seed,
        threads=options.threads,
        processors=options.processors,
    )


def device_lines(session: RunSession) -> list[str]:
    """Return what to say about the device: which one `auto` took, nothing if it was named."""
    options, net = session.options, session.net
    if options.device != "auto":
        return []
    ignored = options.precision != "float32" and net.device != "cuda"
    note = f"; --precision {options.precision} is of a GPU and does nothing here" if ignored else ""
    return [f"device: {net.device} (auto){note}"]


def configuration(session: RunSession) -> str:
    """Return in a line what is trained, on what and how."""
    options, dataset = session.options, session.dataset
    sizes = " / ".join(f"{split.num_graphs:,}" for split in dataset.splits.values())
    shape = "".join(f", {name} {value}" for name, value in options.shape.items())
    return (
        f"{options.title} ({options.task}{shape}) on {dataset.name} ({sizes} graphs): "
        f"{options.optimizer}, lr {options.lr:g}, batch size {options.batch_size}, "
        f"seed {options.seed}, {options.epochs} epochs; {options.engine}, {options.threads} threads"
    )


def rate_of(options: RunOptions, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 0.

    It depends on the number of epochs, so a run that is continued with more of them goes on at
    another rate. Halving is that of Zaremba et al. 2014.
    """
    done = epoch / options.epochs
    if options.schedule == "cosine":
        return options.lr * (1 + math.cos(math.pi * done)) / 2
    if options.schedule == "linear":
        return options.lr * (1 - done)
    if options.schedule == "halving":
        return options.lr * 0.5 ** max(0, epoch + 1 - (options.epochs + 1) // 2)
    return options.lr


def make_optimizer(session: RunSession) -> Optimizer:
    """Build the optimizer that the options name; a schedule of epochs is one of its steps."""
    options = session.options
    rate: Rate = options.lr
    if options.schedule != "constant":
        steps_of_epoch = -(-session.dataset.splits["train"].num_graphs // options.batch_size)
        rate = lambda steps: rate_of(options, steps // steps_of_epoch)  # noqa: E731
    hyper: dict[str, Any] = {
        "weight_decay": options.weight_decay,
        "clip_norm": options.clip_norm or None,
    }
    if options.optimizer in WITH_MOMENTUM:
        hyper["momentum"] = options.momentum
    return optim.OPTIMIZERS[OPTIMIZERS[options.optimizer].title](rate, **hyper)


def make_average(session: RunSession) -> vrt.ExponentialMovingAverage | None:
    """Build the average of the parameters that the options ask for."""
    decay = session.options.average
    return vrt.ExponentialMovingAverage(session.net, decay) if decay else None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Tell two data sets apart.

    Attributes:
        words: sha256 of the vocabularies.
        classes: labels.
        splits: graphs and vertices of each split.
    """

    words: str
    classes: Count
    splits: dict[str, Annotated[tuple[int, int], JsonRecord.pair, LARGEST_COUNT]]


def fingerprint(dataset: Dataset) -> Fingerprint:
    """Return what tells a data set apart from others."""
    return Fingerprint(
        hash_of(dataset.vocabularies),
        dataset.classes,
        {name: (split.num_graphs, split.num_vertices) for name, split in dataset.splits.items()},
    )


def hash_of(vocabularies: Mapping[str, Vocabulary]) -> str:
    """Return the sha256 of words and of the pulls that they are numbers of."""
    lines = [line for name, known in vocabularies.items() for line in (name, *known.words)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def require_same_data(dataset: Dataset, stored: Fingerprint, run: str) -> None:
    """Raise CheckpointError when the data set is not the one that a run was trained on."""
    found = fingerprint(dataset)
    different = [
        field.name
        for field in fields(Fingerprint)
        if getattr(found, field.name) != getattr(stored, field.name)
    ]
    if different:
        raise CheckpointError.at(
            "--resume",
            f"the {' and '.join(different)} of '{dataset.name}' are not those of {run}",
            "expected the data that the run was started with",
            "Put it back, or start a new run with --out",
        )
