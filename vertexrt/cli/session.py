"""A run: its options, the data and network that it works with, its position and minibatches.

Options are what was given and what the model's own defaults say; they are kept in each checkpoint
and may be resumed. A checkpoint holds them, the position, parameters and optimizer state.
"""

import hashlib
import math
import os
import shlex
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

import vertexrt as vrt
from vertexrt.api.along import CarriedState
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer
from vertexrt.cache import notes
from vertexrt.cli.interrupt import Interrupt
from vertexrt.cli.measures import Count, Totals, classes_of, confusion, count, sums_of
from vertexrt.cli.options import (
    NEUTRAL,
    OPTIMIZERS,
    READING,
    RECORDED,
    SHAPE,
    TASKS,
    TEXT,
    WITH_MOMENTUM,
    Task,
    options_in,
    options_of,
    settings_in,
)
from vertexrt.config import usable_threads
from vertexrt.data import Loader, catalogue
from vertexrt.data import load as load_data
from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.files import expanded
from vertexrt.data.load import FORMATS, OF_FILES, format_named, format_of
from vertexrt.data.records import real_pulls
from vertexrt.errors import CheckpointError, DataError, UsageError, one_line
from vertexrt.models.catalogue import (
    OWN_TRAIN,
    ModelSpec,
    get,
    is_own,
    names,
    require_known,
)
from vertexrt.models.own import find, full_name
from vertexrt.parallel import ProcessGroup
from vertexrt.parallel.start import processes_here

Fields = dict[str, Any]  # by name


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Hold everything that a run's result depends on; kept in each of its checkpoints.

    Attributes:
        model, task, data, format: names; `model` and `data` are full paths where they are paths.
        reading: options of the format by name.
        shape: options of the model by name (hidden, embed, dropout, and what --set names).
        epochs, patience: when to stop; patience 0 never stops early.
        batch_size, window, seed, policy, dtype, device, precision, engine, threads: as on the
            command line.
        processors: of a group of the persistent engine; None where it chooses.
        shares: that each minibatch is cut into for several processes; None for one a process.
        optimizer, lr, momentum, weight_decay, clip_norm: the update; clip_norm 0 does not clip.
        schedule: of the learning rate, over epochs: see `rate_of`.
        average: share that the average of the parameters keeps at each update; 0 takes none.
        class_weights: as on the command line; None where all classes count alike.
        metric: that decides which epoch is best; None for the first of the task.
    """

    model: str
    task: str
    data: str
    format: str
    reading: Fields
    shape: Fields
    epochs: int
    patience: int
    batch_size: int
    window: int
    seed: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    clip_norm: float
    schedule: str
    average: float
    policy: str
    dtype: str
    device: str
    precision: str
    engine: str
    threads: int
    processors: int | None
    shares: int | None
    class_weights: str | None
    metric: str | None

    @property
    def title(self) -> str:
        """Return the name of the model, without the path of its file, which may have moved."""
        return self.model.rpartition(":")[2]

    def format_options(self) -> Fields:
        """Return the options of the format, without the files of splits."""
        return {name: v for name, v in self.reading.items() if name not in OF_FILES}

    def as_given(self) -> Fields:
        """Return the options as a file for --config has them, by the names of their flags."""
        found = asdict(self)
        shape, reading = found.pop("shape"), found.pop("reading")
        if "target" in reading:
            reading["label"] = reading.pop("target")
        found |= {name: reading[name] for name in READING if name in reading}
        found |= {name: shape.pop(name) for name in SHAPE if name in shape}
        found["set"] = shape
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def from_json(stored: JsonRecord) -> "RunOptions":
        """Read the options back; a file of the user is not run to do so.

        They are read like those of a file for --config. A command line that gives them all is that
        of a run with the same options, or they are not those of one.

        Raises: CheckpointError, when one is missing, unknown, or not what the command line takes.
        """
        options = stored.build(RunOptions)
        stored.end()
        try:
            given = options_in(options.as_given(), stored.where, TEXT)
            spec = model_of(
                given,
                lambda name, task, format: ModelSpec(
                    name, task, format, OWN_TRAIN, module="", title="", options=options.shape
                ),
            )
            known = (*options.shape, "class_weights") if is_own(given.model) else spec.arguments()
            same = _completed(vars(given), spec, known)
        except UsageError as error:
            raise CheckpointError(
                f"[{stored.where}] its options: {one_line(str(error))} {stored.action}"
            ) from error
        stored.record("shape").end(known)
        for name, value in asdict(same).items():
            if value != getattr(options, name):
                stored.refuse(name, f"{value!r:.200}, which belongs to the other options")
        return same


def model_of(given: Namespace, find: Callable[[str, str, str], ModelSpec] = find) -> ModelSpec:
    """Find the model that a command line names, in a file of the user or by its name.

    Args:
        find: what is asked for a model in a file: its name, task and format.
    Raises: UsageError, when there is no such model, or it has another task or format; whatever the
        user's file raises.
    """
    if given.model is None:
        raise UsageError.at(
            f"vertexrt {given.command}",
            "no model was named",
            f"expected one of {', '.join(names())}, or FILE.py:CLASS",
            "Name one, or give a file with --config, or a run (train --resume RUN, explain RUN)",
        )
    if is_own(given.model):
        if given.data is None:
            raise UsageError.at(
                given.model,
                "no data",
                "expected what to train it on",
                "Give it with --data, a folder or a file",
            )
        format = format_named(given.format or format_of(given.data)).name
        return find(given.model, given.task or "loss", format)
    spec = get(given.model)
    # Models of words and labels at the vertices of one type read graphs from any file.
    any_graphs = spec.task == "classification" and not spec.graphs and "layers" not in spec.options
    readers = [row.name for row in FORMATS.values() if row.reader and any_graphs]
    formats = [spec.format, *readers]  # its own first
    for name, own in (("task", [spec.task]), ("format", formats)):
        value = getattr(given, name)
        if value is not None and value not in own:
            expected = f"its {name} is {' or '.join(own)}"
            raise UsageError.at(spec.name, f"got --{name} {value}", expected, "Leave it out")
    named: str | None = given.format
    path = None if named or given.data is None else expanded(given.data)
    if path is not None and os.path.exists(path):
        named = next((name for name in formats if FORMATS[name].fits(path)), None)
    return spec._replace(format=named or spec.format)


def resolve(given: Namespace) -> RunOptions:
    """Fill what was not given from the model's defaults for this data set.

    Args:
        given: options of the command line, None where not given.
    Raises: UsageError, when a name is not known, an option does not belong to the model, the
        optimizer or the engine, or a checkpoint of the run could not be read.
    """
    spec = model_of(given)
    asked = {**vars(given), "model": full_name(given.model)}
    asked |= {name: data_name(asked[name]) for name in ("data", *OF_FILES) if asked[name]}
    return _with_whole_groups(_completed(asked, spec, spec.arguments()))


def _completed(given: Mapping[str, Any], spec: ModelSpec, arguments: Collection[str]) -> RunOptions:
    """Return the options that were given, with the defaults of a model that has these arguments."""
    asked = {name: value for name, value in given.items() if value is not None}
    defaults = {**NEUTRAL, **spec.train}
    optimizer = asked.get("optimizer", defaults["optimizer"])
    _require_fitting(asked, spec, optimizer, arguments)
    if optimizer != defaults["optimizer"]:
        defaults["lr"] = OPTIMIZERS[optimizer].lr  # it is not the model's own
    chosen: Fields = {name: asked.get(name, defaults.get(name)) for name in RECORDED}
    # Kept, since a run repeats with the same number: as many whole groups as there is room for.
    processors = asked.get("processors", 1)
    room = usable_threads() // processes_here(os.environ)
    chosen["threads"] = asked.get("threads", max(room // processors, 1) * processors)
    shape = {name: asked[name] for name in SHAPE if name in asked}
    for name, value in asked.get("set", ()):
        if name in shape:
            raise UsageError.at(
                "--set", f"two values of {name}", "one, since only one can hold", "Leave one out"
            )
        shape[name] = value
    # A model's own defaults may be others than the command line takes.
    shape = {**settings_in(spec.options, spec.name, spec.name), **shape}
    reading = {name: asked[name] for name in READING if name in asked}
    if "label" in reading and TASKS[spec.task].label == "target":
        reading["target"] = reading.pop("label")
    streams = {"streams": chosen["batch_size"]} if shape.get("carried") else {}
    chosen |= {"model": asked["model"], "task": spec.task, "format": spec.format, "shape": shape}
    return RunOptions(**chosen, reading=spec.reading(shape) | reading | streams)


def _require_fitting(
    asked: Mapping[str, Any], spec: ModelSpec, optimizer: str, arguments: Collection[str]
) -> None:
    """Refuse options that the model, its task or the optimizer would ignore."""
    measures = ("loss", *TASKS[spec.task].measures)
    if asked.get("metric", "loss") not in measures:
        raise UsageError.at(
            "--metric",
            f"got {asked['metric']}",
            f"the task {spec.task} has {', '.join(measures)}",
            "Name one of these",
        )
    has = "its options are " + ", ".join(spec.options)
    weights = "an argument class_weights of its class"
    belongs = f"it belongs to {', '.join(WITH_MOMENTUM)}"
    moved = ("momentum",) if asked.get("momentum") else ()
    for flags, owner, options, expected in (
        (SHAPE, spec.name, arguments, has),
        (READING, spec.name, FORMATS[spec.format].options, f"its data are {spec.format}"),
        (("class_weights",), spec.name, arguments, weights),
        (moved, optimizer, OPTIMIZERS[optimizer].names(), belongs),
    ):
        for name in flags:
            if name in asked and name not in options:
                flag = "--" + name.replace("_", "-")
                raise UsageError.at(
                    owner, f"got {flag}, which {owner} does not have", expected, "Leave it out"
                )


def resume(given: Namespace, stored: RunOptions, run: str) -> RunOptions:
    """Return the options of a run to continue, with the few changes that are allowed.

    Args:
        given: options of the command line, None where not given.
        stored: options in the run's checkpoint.
        run: its folder.
    Raises: CheckpointError, when another model is named; UsageError, when an option that decides
        over the result is given another value.
    """
    changed: Fields = {}
    if given.model is None:
        named = f"{shlex.quote(stored.model)} --resume {shlex.quote(run)}"
        require_known(stored.model, run, f"name it: vertexrt train {named}")
    elif given.model.rpartition(":")[2] != stored.title:
        raise CheckpointError.at(
            "--resume",
            f"{run} is a run of {stored.model}",
            f"expected one of {given.model}, the model that was named",
            f"Name {stored.model}, or start a new run with --out",
        )
    else:
        changed["model"] = full_name(given.model)
    if given.out is not None and os.path.realpath(given.out) != os.path.realpath(run):
        raise UsageError.at(
            "--out",
            f"got {given.out} with --resume {run}",
            "a run goes on in its own folder",
            "Leave --out out",
        )
    before = stored.as_given()
    may = [row.word for row in options_of("train") if row.changes]
    for row in options_of("train"):
        name, value = row.name, getattr(given, row.name)
        if value is None or row.of == "command":
            continue
        if row.changes:
            changed[name] = data_name(value) if name == "data" else value
            continue
        was = before.get(name)
        if value == "balanced" and was is not None:
            was = was.partition(":")[0]
        if name == "set":
            was = [(each, stored.shape.get(each)) for each, _ in value]
        if value != was:
            raise UsageError.at(
                "--resume",
                f"got {row.word} {value}, the run {run} has {was}",
                f"only {', '.join(may[:-1])} and {may[-1]} may change",
                f"Leave {row.word} out, or start a new run with --out",
            )
    return _with_whole_groups(replace(stored, **changed))


def _with_whole_groups(options: RunOptions) -> RunOptions:
    """Return options whose processors fit their engine and threads.

    Raises: UsageError, when they do not.
    """
    processors, threads = options.processors, options.threads
    if processors is None:
        return options
    if options.engine != "persistent":
        raise UsageError.at(
            "--processors",
            f"the engine is {options.engine}",
            "expected the persistent engine",
            "Add --engine persistent",
        )
    if options.device != "cuda" and threads % processors:  # there a processor is a block
        whole = -(-threads // processors) * processors
        raise UsageError.at(
            "--processors",
            f"groups of {processors} processors with {threads} threads",
            "a processor is a thread, so the threads are a multiple of the processors",
            f"Give --threads {whole}, or a divisor of {threads}",
        )
    return options


def with_model(stored: RunOptions, given: Namespace) -> RunOptions:
    """Return options with the model that `--model` names.

    Raises: UsageError, when it names none, and that of the run is a file.
    """
    if given.model is None:
        require_known(stored.model, given.run, f"add --model {shlex.quote(stored.model)}")
        return stored
    return replace(stored, model=full_name(given.model))


def data_name(given: str) -> str:
    """Return a data set's name as it is and a path in full: a run may go on from elsewhere."""
    if any(entry.name == given for entry in catalogue()):
        return given
    path = expanded(given)
    return str(path.resolve()) if os.path.exists(path) else given


@dataclass(frozen=True)
class RunSession:
    """A compiled model, and the data that it is trained on or evaluated with."""

    options: RunOptions
    dataset: Dataset
    net: vrt.Network

    @property
    def task(self) -> Task:
        """Return what it is trained for."""
        return TASKS[self.options.task]

    @cached_property
    def carried(self) -> CarriedState | None:
        """Return what carries state over pieces of a text, where the model is told to."""
        return CarriedState(self.net) if self.options.shape.get("carried") else None

    @property
    def pushes_of_steps(self) -> tuple[str, ...]:
        """Return the pushes that steps are asked for."""
        if self.carried is not None:
            return tuple(self.carried.shapes)
        if self.net.device == "cuda":
            return ()  # they would be waited for, so that none of their measures are reported
        return tuple(name for name in self.task.pushes if name != "loss")


def open_session(options: RunOptions) -> RunSession:
    """Load the data and compile the model.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read or a split that
        training needs is empty.
    """
    spec_of(options)  # a missing file is told before data are read, which may take long
    dataset = load_data(options.data, format=options.format, **options.reading)
    for split in dataset.splits.keys() & {"train", "dev"}:
        require_graphs(dataset, split)
    if "dev" not in dataset.splits and (options.patience or options.metric):
        raise UsageError.at(
            "--patience" if options.patience else "--metric",
            f"{dataset.name} has no dev split",
            "expected one whose values decide",
            "Name its file with --dev, or a share of train: --dev 0.1",
        )
    if options.class_weights == "balanced":
        label = classes_of(dataset.splits["train"].pulls.get("label"))
        seen = np.bincount(() if label is None else label[label >= 0], minlength=dataset.classes)
        weights = seen.sum() / (len(seen) * np.maximum(seen, 1))
        numbers = ",".join(f"{each:.6g}" for each in weights)
        options = replace(options, class_weights=f"balanced:{numbers}")
    return RunSession(options, dataset, compile_model(options, dataset))


def require_task(session: RunSession) -> None:
    """Refuse a model or data that a task has no use for.

    Raises: UsageError, when the model lacks a push; DataError, when the data lack a pull.
    """
    task, pushes = session.task, session.net.pushes
    for push in task.pushes:
        if push not in pushes:
            raise UsageError.at(
                "--task",
                f"{spec_of(session.options).title} pushes {', '.join(pushes)}",
                f"the task {task.name} reads {' and '.join(task.pushes)}",
                "Push it, or name another task",
            )
    pulls = session.dataset.splits["train"].pulls
    if task.label and task.label not in pulls:
        raise DataError.at(
            "--task",
            f"the graphs of {session.dataset.name} pull {', '.join(pulls)}",
            f"the task {task.name} compares with '{task.label}'",
            "Add it to the data, or name another task",
        )


def require_graphs(dataset: Dataset, split: str) -> None:
    """Raise DataError when a split is missing or has no graphs."""
    if split not in dataset.splits or dataset.splits[split].num_graphs == 0:
        raise DataError.at(
            "data",
            f"the {split} split of '{dataset.name}' has no graphs",
            "expected one graph or more",
            "Give another data set with --data",
        )


def spec_of(options: RunOptions) -> ModelSpec:
    """Find the model of a run."""
    return find(options.model, options.task, options.format)


def compile_model(options: RunOptions, dataset: Dataset) -> vrt.Network:
    """Build the vertex function for a data set and compile it."""
    weights: Fields = {}
    if options.class_weights:
        numbers = options.class_weights.removeprefix("balanced:").split(",")
        weights["class_weights"] = tuple(float(number) for number in numbers)
    return vrt.compile(
        spec_of(options).build(dataset, **options.shape, **weights),
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
    rate: Any = options.lr
    if options.schedule != "constant":
        steps_of_epoch = -(-session.dataset.splits["train"].num_graphs // options.batch_size)
        rate = lambda steps: rate_of(options, steps // steps_of_epoch)  # noqa: E731
    momentum = {"momentum": options.momentum} if options.optimizer in WITH_MOMENTUM else {}
    hyper = {"weight_decay": options.weight_decay, "clip_norm": options.clip_norm or None}
    return getattr(vrt, OPTIMIZERS[options.optimizer].title)(rate, **hyper, **momentum)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Tell two data sets apart.

    Attributes:
        words: sha256 of the vocabularies.
        counts: as of `Dataset`.
        splits: graphs and vertices of each split.
    """

    words: str
    counts: dict[str, Count]
    splits: dict[
        str, Annotated[tuple[int, int], JsonRecord.each, 2, JsonRecord.whole, 0, LARGEST_COUNT]
    ]


def fingerprint(dataset: Dataset) -> Fingerprint:
    """Return what tells a data set apart from others."""
    return Fingerprint(
        hash_of(dataset.vocabularies),
        dict(dataset.counts),
        {name: (split.num_graphs, split.num_vertices) for name, split in dataset.splits.items()},
    )


def hash_of(vocabularies: Mapping[str, Vocabulary]) -> str:
    """Return the sha256 of words and of the pulls that they are numbers of."""
    lines = [line for name, known in vocabularies.items() for line in (name, *known.words)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


FORMAT = "vertexrt-train-4"  # tells these checkpoints from those of other programs
EARLIER = ("vertexrt-train-1", "vertexrt-train-2", "vertexrt-train-3")


@dataclass(slots=True)
class RunState:
    """Hold the position of a run.

    Attributes:
        epoch: epochs that are complete.
        batch: minibatches of the next epoch that are done.
        totals: sums over those minibatches.
        measure: the measure of the best dev value, a name of `MEASURES`.
        best, best_loss, best_epoch: that value so far, the loss of dev with it, and its epoch, from
            1; None and 0 at first.
        stale: epochs since the best one.
    """

    epoch: Count = 0
    batch: Count = 0
    totals: Totals = field(default_factory=Totals)
    measure: str = "loss"
    best: float | None = None
    best_loss: float | None = None
    best_epoch: Count = 0
    stale: Count = 0

    @classmethod
    def from_json(cls, fields: JsonRecord, task: Task) -> Self:
        """Read the position back. Raises: CheckpointError."""
        found = fields.build(cls)
        fields.text("measure", ("loss", *task.measures))
        fields.record("totals").record("sums").end(sums_of(task))
        stale = found.epoch - fields.whole("best_epoch", 0, found.epoch)
        fields.whole("stale", stale, stale)
        for name in ("best", "best_loss"):
            if (getattr(found, name) is None) != (found.best_epoch == 0):
                expected = f"the dev value of epoch {found.best_epoch}, or null before the first"
                fields.refuse(name, expected)
        return found


class StoredRun(NamedTuple):
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
    checkpoint: vrt.types.Checkpoint
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
        "vocabularies": {name: known.words for name, known in session.dataset.vocabularies.items()},
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
    path: Path, checkpoint: vrt.types.Checkpoint, fields: JsonRecord, words: JsonRecord
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
    count = "step" if "step" in random.unread() else "draws"  # of old files
    numbers = {"seed": seed, "draws": random.whole(count, 0, LARGEST_COUNT)}
    data = fields.record("data").build(Fingerprint)
    reals = fields.texts("reals")
    known = {name: words.texts(name) for name in words.unread()}
    fields.end()
    try:
        found = {
            name: Vocabulary(each, UNKNOWN if UNKNOWN in each[:1] else None)
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
    run: str,
    session: RunSession,
    optimizer: Optimizer,
    average: vrt.ExponentialMovingAverage | None = None,
) -> RunState:
    """Put all that changes back to where a checkpoint was written; return the position.

    Args:
        run: its folder.
    Raises: CheckpointError, when the data set is not the one that the run was trained on, or
        parameters, state or counts do not belong to it.
    """
    before, found = asdict(stored.data), asdict(fingerprint(session.dataset))
    different = [name for name, value in found.items() if value != before[name]]
    if different:
        raise CheckpointError.at(
            "--resume",
            f"the {' and '.join(different)} of '{session.dataset.name}' are not those of {run}",
            "expected the data that the run was started with",
            "Put it back, or start a new run with --out",
        )
    checkpoint, state, options = stored.checkpoint, stored.state, session.options
    described = optimizer.describe()
    # The rate of each epoch follows from the options; one that does not may have been changed.
    follows = options.schedule != "constant"
    described["lr"] = checkpoint.optimizer.get("lr") if follows else stored.options.lr
    if checkpoint.optimizer != described:
        raise _not_of_one_run(stored.path, "the optimizer is not the one that the options name")
    session.net.load_state({"parameters": checkpoint.parameters, "random": stored.random})
    if average is not None:
        average.load_state(checkpoint.average)
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


EVALUATION_BATCH = 64  # graphs; more than most runs train with: no gradients are kept
MOST_CLASSES = 1000  # of which each pair is counted
EVALUATION_WINDOW = 16  # minibatches over which graphs are sorted by size: fuller levels


def running_time() -> float:
    """Return a clock in seconds that stands while something is compiled: that is done once."""
    return perf_counter() - notes.seconds()


def warm_up(session: RunSession, optimizer: Optimizer) -> None:
    """Compile what the kinds of vertices of a data set need, so that no minibatch waits for it."""
    splits, carried = session.dataset.splits, session.carried
    train, dev = (
        graphs if carried is None else carried.put(graphs)
        for graphs in (splits["train"], splits.get("dev", splits["train"]))
    )
    graphs = session.options.batch_size
    session.net.warm(train, optimizer, outputs=session.pushes_of_steps, graphs=graphs)
    outputs = (*session.task.pushes, *(carried.shapes if carried else ()))
    session.net.warm(dev, outputs=outputs, graphs=max(graphs, EVALUATION_BATCH))


def training_loader(session: RunSession) -> Loader:
    """Return the minibatches that a run trains on; the same for the same options."""
    options = session.options
    return _loader(session, "train", options.batch_size, bucket=options.window, seed=options.seed)


def _loader(session: RunSession, split: str, size: int, **order: Any) -> Loader:
    graphs, carried = session.dataset.splits[split], session.carried
    if carried is None:
        return Loader(graphs, size, **order)
    carried.restart()  # the order is that of the text, from its beginning
    return Loader(graphs, size, shuffle=False, prepare=carried.put)


def evaluate(
    session: RunSession,
    split: str,
    interrupt: Interrupt | None = None,
    batch_size: int | None = None,
    group: ProcessGroup | None = None,
) -> Totals | None:
    """Evaluate a split without dropout.

    Args:
        split: a split of the session's data set that holds graphs.
        interrupt: when a signal is noted there, evaluation stops.
        batch_size: graphs at a time.
        group: of processes, each of which evaluates some minibatches; all return the same.
    Returns: the totals; None after an interrupt.
    """
    interrupt, group = interrupt or Interrupt(), group or ProcessGroup()
    net, task, carried = session.net, session.task, session.carried
    dataset, size = session.dataset, session.options.batch_size
    # What is carried comes from the minibatch before: every process evaluates all, and states stay
    # on the device.
    several, wanted, arrays = group, task.pushes, "numpy"
    if carried is None:
        size = batch_size or max(size, EVALUATION_BATCH)
    else:
        several, wanted, arrays = ProcessGroup(), (*task.pushes, *carried.shapes), "device"
    loader = _loader(session, split, size, shuffle=False, bucket=EVALUATION_WINDOW)
    draws = several.size > 1 and net.program.find("uniform")
    random = net.state()["random"] if draws else {}
    start, batches, names = running_time(), len(loader), sums_of(task)
    table = np.zeros((-(-batches // several.size), 2 + len(names)))  # what each minibatch adds
    classes = dataset.classes if task.name == "classification" else 0
    classes = classes if classes <= MOST_CLASSES else 0
    cells = np.zeros((2, classes, classes + 1))  # of roots, and of all vertices
    for number, batch in enumerate(loader):
        if interrupt.number:
            break
        if number % several.size == several.rank:
            pushed = net(batch, outputs=wanted, arrays=arrays)
            if carried is not None:
                carried.keep(batch, pushed)
            loss = float(pushed["loss"].sum(dtype=np.float64))
            sums = count(task, batch, pushed, dataset.labels)
            counts = [sums.get(name, 0.0) for name in names]
            table[number // several.size] = loss, batch.num_graphs, *counts
            label = classes_of(batch.pulls.get(task.label))
            if classes and label is not None:
                answer = np.asarray(pushed[task.answer])
                cells[0] += confusion(label[batch.roots], answer[batch.roots], classes)
                cells[1] += confusion(label, answer, classes)
        elif draws:  # of a minibatch that another process evaluates: they count
            net.load_state({"random": {**random, "draws": random["draws"] + number + 1}})
    seconds = running_time() - start
    group.signal = group.largest(interrupt.number, seconds)  # others may take twice as long
    if group.signal:
        return None
    # Added up in the order of the minibatches, so that sums are those of one process, bit for bit.
    rows = several.gather(table).swapaxes(0, 1).reshape(-1, table.shape[1])[:batches]
    loss, graphs, *values = np.cumsum(rows, axis=0)[-1].tolist()
    roots, vertices = several.gather(cells).sum(axis=0).astype(np.int64)
    counted = {"roots": roots, "vertices": vertices} if classes else None
    return Totals(loss, int(graphs), seconds, dict(zip(names, values, strict=True)), counted)
