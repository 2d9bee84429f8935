"""Settle the options of a run: what was given, what the model's own defaults say, what is kept."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from vertexrt.api.json_record import JsonRecord
from vertexrt.cli.limits import NEUTRAL, OPTIMIZERS, WITH_MOMENTUM
from vertexrt.cli.options import READING, SHAPE, RunOptions, title_of
from vertexrt.config import usable_threads
from vertexrt.data import FORMATS, catalogue, format_of
from vertexrt.data.files import expanded
from vertexrt.data.load import format_named
from vertexrt.errors import CheckpointError, UsageError
from vertexrt.models import ModelSpec, get, names
from vertexrt.models.catalogue import is_own, require_known
from vertexrt.models.own import find, full_name
from vertexrt.parallel.start import processes_here

# Options that --resume may change. With other threads or groups the result is equal to rounding;
# data that have moved are compared with those of the run.
CHANGEABLE = ("epochs", "patience", "threads", "processors", "data")
# Words of the command line that are not options of the run itself.
COMMAND_WORDS = (
    "command",
    "version",
    "resume",
    "quiet",
    "out",
    "model",
    "trace",
    "config",
    "go_on",
    "log",
)


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
    _require_fitting(given, spec)
    data = data_name(spec.train["data"] if given.data is None else given.data)
    defaults = {**NEUTRAL, **spec.train}
    if getattr(given, "optimizer", None) not in (None, defaults["optimizer"]):
        defaults["lr"] = OPTIMIZERS[given.optimizer].lr  # it is not the model's own
    chosen: dict[str, Any] = {}
    for field in fields(RunOptions):
        value = getattr(given, field.name, None)
        chosen[field.name] = defaults.get(field.name) if value is None else value
    # Kept, since a run repeats with the same number: as many whole groups as there is room for.
    processors = given.processors or 1
    room = usable_threads() // processes_here(os.environ)
    chosen["threads"] = given.threads or max(room // processors, 1) * processors
    chosen |= {
        "model": full_name(given.model),
        "task": spec.task,
        "data": data,
        "format": spec.format,
    }
    shape = dict(spec.options) | _settings(given)
    streams = {"streams": chosen["batch_size"]} if shape.get("carried") else {}
    chosen |= {"shape": shape, "reading": spec.reading(shape) | _reading(given) | streams}
    options = RunOptions(**chosen)
    # A model's own defaults may be others than the command line takes.
    stored = JsonRecord(options.to_json(), spec.title, "", "Change it", UsageError)
    RunOptions.from_json(stored)
    return _with_whole_groups(options)


def _reading(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the format; files by their full paths."""
    found = _given(given, READING)
    return found | {name: data_name(found[name]) for name in ("dev", "test") if name in found}


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the model that were given, by flags of their own or by --set.

    Raises: UsageError, when one was given twice.
    """
    found = _given(given, SHAPE)
    for name, value in given.set or ():
        if name in found:
            expected = "one, since only one can hold"
            raise UsageError.at("--set", f"two values of {name}", expected, "Leave one out")
        found[name] = value
    return found


def _given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return those of some options that were given."""
    found = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def resume(given: argparse.Namespace, stored: RunOptions, run: str) -> RunOptions:
    """Return the options of a run to continue, with the few changes that are allowed.

    Args:
        given: options of the command line, None where not given.
        stored: options in the run's checkpoint.
        run: its folder.
    Raises: CheckpointError, when another model is named; UsageError, when an option that decides
        over the result is given another value.
    """
    _require_same_run(given, stored, run)
    if given.model is None:
        named = f"{shlex.quote(stored.model)} --resume {shlex.quote(run)}"
        require_known(stored.model, run, f"name it: vertexrt train {named}")
    changed: dict[str, Any] = {} if given.model is None else {"model": full_name(given.model)}
    for name, value in vars(given).items():
        if value is None or name in COMMAND_WORDS:
            continue
        if name in CHANGEABLE:
            changed[name] = data_name(value) if name == "data" else value
        else:
            _require_unchanged(name, value, stored, run)
    return _with_whole_groups(replace(stored, **changed))


def _require_same_run(given: argparse.Namespace, stored: RunOptions, run: str) -> None:
    """Refuse the model or the folder of another run."""
    if given.model is not None and title_of(given.model) != stored.title:
        raise CheckpointError.at(
            "--resume",
            f"{run} is a run of {stored.model}",
            f"expected one of {given.model}, the model that was named",
            f"Name {stored.model}, or start a new run with --out",
        )
    if given.out is not None and os.path.realpath(given.out) != os.path.realpath(run):
        raise UsageError.at(
            "--out",
            f"got {given.out} with --resume {run}",
            "a run goes on in its own folder",
            "Leave --out out",
        )


def _require_unchanged(name: str, value: Any, stored: RunOptions, run: str) -> None:
    """Refuse another value of an option that decides over the result."""
    if name == "set":
        before: Any = [(each, stored.shape.get(each)) for each, _ in value]
    elif name in SHAPE:
        before = stored.shape.get(name)
    else:
        before = stored.reading.get(name) if name in READING else getattr(stored, name)
    if value != before:
        flag = "--" + name.replace("_", "-")
        raise UsageError.at(
            "--resume",
            f"got {flag} {value}, the run {run} has {before}",
            "only --epochs, --patience, --threads, --processors and --data may change",
            f"Leave {flag} out, or start a new run with --out",
        )


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


def _require_fitting(given: argparse.Namespace, spec: ModelSpec) -> None:
    """Refuse options that the model, its task or the optimizer would ignore."""
    optimizer = getattr(given, "optimizer", None) or spec.train["optimizer"]
    known = spec.arguments()
    has = "its options are " + ", ".join(spec.options)
    reads = f"its data are {spec.format}"
    momentum = f"it belongs to {', '.join(WITH_MOMENTUM)}"
    for name, fits, owner, expected in (
        *((name, name in known, spec.name, has) for name in SHAPE),
        *((name, name in FORMATS[spec.format].options, spec.name, reads) for name in READING),
        ("momentum", optimizer in WITH_MOMENTUM, optimizer, momentum),
    ):
        value = getattr(given, name, None)
        if value is not None and not fits and not (name == "momentum" and value == 0.0):
            got = f"got --{name}, which {owner} does not have"
            raise UsageError.at(owner, got, expected, "Leave it out")
