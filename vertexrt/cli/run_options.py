"""The options of a run: what was given and what the model's own defaults say, kept and resumed."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from vertexrt.api.json_record import JsonRecord
from vertexrt.cli.options import (
    NEUTRAL,
    OPTIMIZERS,
    READING,
    RECORDED,
    SHAPE,
    WITH_MOMENTUM,
    SettingValue,
    options_of,
)
from vertexrt.cli.tasks import TASKS
from vertexrt.config import usable_threads
from vertexrt.data import catalogue
from vertexrt.data.files import expanded
from vertexrt.data.load import FORMATS, format_named, format_of
from vertexrt.errors import CheckpointError, UsageError
from vertexrt.models import ModelSpec, get, names
from vertexrt.models.catalogue import is_own, require_known
from vertexrt.models.own import find, full_name
from vertexrt.parallel.start import processes_here

OF_MODELS = ("crf", "layers", "letters", "pyramid", "streams")  # of formats: the model decides


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
    """

    model: str
    task: str
    data: str
    format: str
    reading: dict[str, Any]
    shape: dict[str, Any]
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

    @property
    def title(self) -> str:
        """Return the name of the model, without the path of its file, which may have moved."""
        return self.model.rpartition(":")[2]

    def as_given(self) -> dict[str, Any]:
        """Return the options as a file for --config has them, by the names of their flags."""
        found = asdict(self)
        shape, reading = found.pop("shape"), found.pop("reading")
        flags = {name: shape.pop(name) for name in SHAPE if name in shape}
        found |= {**reading, **flags, "set": shape}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, stored: JsonRecord) -> Self:
        """Read the options back; a file of the user is not run to do so.

        Raises: CheckpointError, when one is missing, unknown, or not what the command line takes.
        """
        model = stored.text("model")
        spec = None if is_own(model) else get(stored.text("model", names()))
        found: dict[str, Any] = {
            "model": model,
            "task": stored.text("task", (spec.task,) if spec else TASKS),
            "format": stored.text("format", (spec.format,) if spec else FORMATS),
        }
        reading, shape = stored.record("reading"), stored.record("shape")
        read = [*READING, *OF_MODELS]
        read = [name for name in read if name in FORMATS[found["format"]].options]
        given = [name for name in reading.unread() if name in read]
        found["reading"] = {name: SettingValue().stored(reading, name) for name in given}
        if type(found["reading"].get("binary", True)) is not bool:
            reading.refuse("binary", "true or false")
        needed = () if spec is None else spec.options
        known = shape.unread() if spec is None else spec.arguments()
        others = [name for name in shape.unread() if name in known and name not in needed]
        found["shape"] = {name: SettingValue().stored(shape, name) for name in (*needed, *others)}
        for name, row in RECORDED.items():
            if name not in found and row.takes is not None:
                found[name] = row.takes.stored(stored, name)
        stored.end()
        if found["momentum"] and found["optimizer"] not in WITH_MOMENTUM:
            stored.refuse("momentum", f"0, since {found['optimizer']} has none")
        return cls(**found)


def model_of(given: argparse.Namespace) -> ModelSpec:
    """Find the model that a command line names, in a file of the user or by its name.

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
            action = "Give it with --data, a folder or a file"
            raise UsageError.at(given.model, "no data", "expected what to train it on", action)
        format = format_named(given.format or format_of(given.data)).name
        return find(given.model, given.task or "loss", format)
    spec = get(given.model)
    for name, own in (("task", spec.task), ("format", spec.format)):
        value = getattr(given, name)
        if value not in (None, own):
            expected = f"its {name} is {own}"
            raise UsageError.at(spec.name, f"got --{name} {value}", expected, "Leave it out")
    return spec


def resolve(given: argparse.Namespace) -> RunOptions:
    """Fill what was not given from the model's defaults for this data set.

    Args:
        given: options of the command line, None where not given.
    Raises: UsageError, when a name is not known, an option does not belong to the model, the
        optimizer or the engine, or a checkpoint of the run could not be read.
    """
    spec = model_of(given)
    asked = {name: value for name, value in vars(given).items() if value is not None}
    defaults = {**NEUTRAL, **spec.train}
    _require_fitting(asked, spec, asked.get("optimizer", defaults["optimizer"]))
    if asked.get("optimizer", defaults["optimizer"]) != defaults["optimizer"]:
        defaults["lr"] = OPTIMIZERS[asked["optimizer"]].lr  # it is not the model's own
    chosen: dict[str, Any] = {name: asked.get(name, defaults.get(name)) for name in RECORDED}
    # Kept, since a run repeats with the same number: as many whole groups as there is room for.
    processors = given.processors or 1
    room = usable_threads() // processes_here(os.environ)
    chosen["threads"] = given.threads or max(room // processors, 1) * processors
    shape = {name: asked[name] for name in SHAPE if name in asked}
    for name, value in given.set or ():
        if name in shape:
            expected = "one, since only one can hold"
            raise UsageError.at("--set", f"two values of {name}", expected, "Leave one out")
        shape[name] = value
    shape = {**spec.options, **shape}
    reading = {name: asked[name] for name in READING if name in asked}
    reading |= {name: data_name(reading[name]) for name in ("dev", "test") if name in reading}
    streams = {"streams": chosen["batch_size"]} if shape.get("carried") else {}
    chosen |= {
        "model": full_name(given.model),
        "task": spec.task,
        "data": data_name(chosen["data"]),
        "format": spec.format,
        "shape": shape,
        "reading": spec.reading(shape) | reading | streams,
    }
    options = RunOptions(**chosen)
    # A model's own defaults may be others than the command line takes.
    RunOptions.from_json(JsonRecord(asdict(options), spec.title, "", "Change it", UsageError))
    return _with_whole_groups(options)


def _require_fitting(asked: Mapping[str, Any], spec: ModelSpec, optimizer: str) -> None:
    """Refuse options that the model, its task or the optimizer would ignore."""
    known: dict[str, tuple[str, Collection[str], str]] = {}  # by option: owner, its options
    has = "its options are " + ", ".join(spec.options)
    known |= dict.fromkeys(SHAPE, (spec.name, spec.arguments(), has))
    reads = f"its data are {spec.format}"
    known |= dict.fromkeys(READING, (spec.name, FORMATS[spec.format].options, reads))
    if asked.get("momentum"):
        belongs = f"it belongs to {', '.join(WITH_MOMENTUM)}"
        known["momentum"] = (optimizer, OPTIMIZERS[optimizer].names(), belongs)
    for name, (owner, options, expected) in known.items():
        if name in asked and name not in options:
            got = f"got --{name}, which {owner} does not have"
            raise UsageError.at(owner, got, expected, "Leave it out")


def resume(given: argparse.Namespace, stored: RunOptions, run: str) -> RunOptions:
    """Return the options of a run to continue, with the few changes that are allowed.

    Args:
        given: options of the command line, None where not given.
        stored: options in the run's checkpoint.
        run: its folder.
    Raises: CheckpointError, when another model is named; UsageError, when an option that decides
        over the result is given another value.
    """
    changed: dict[str, Any] = {}
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
    before = {"run": asdict(stored), "model": stored.shape, "format": stored.reading}
    for row in options_of("train"):
        name, value = row.name, getattr(given, row.name)
        if value is None or row.of == "command":
            continue
        if row.changes:
            changed[name] = data_name(value) if name == "data" else value
            continue
        was = before[row.of].get(name)
        if name == "set":
            was = [(each, stored.shape.get(each)) for each, _ in value]
        if value != was:
            raise UsageError.at(
                "--resume",
                f"got {row.word} {value}, the run {run} has {was}",
                "only --epochs, --patience, --threads, --processors and --data may change",
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


def with_model(stored: RunOptions, given: argparse.Namespace) -> RunOptions:
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
