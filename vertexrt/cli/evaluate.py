"""Evaluate a trained run from the command line: `vertexrt eval RUN`."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import Any

import numpy as np

from vertexrt.cli.loop import evaluate as evaluate_split
from vertexrt.cli.output import say
from vertexrt.cli.pretrained import open_run
from vertexrt.cli.run_options import RunOptions, data_name, with_model
from vertexrt.cli.run_state import StoredRun
from vertexrt.cli.session import RunSession, compile_model, device_line, require_graphs
from vertexrt.data import UNKNOWN, WHOLE, Dataset, load
from vertexrt.data.files import expanded
from vertexrt.errors import CheckpointError
from vertexrt.graph import GraphBatch
from vertexrt.models.own import find


def evaluate(given: argparse.Namespace) -> int:
    """Run `vertexrt eval`: print loss and accuracy or perplexity of one split; return 0.

    Raises: UsageError, when there is no such run or data set; CheckpointError, when the
        checkpoint is damaged or does not fit the data; DataError, when the split has no graphs.
    """
    stored = open_run(given.run)
    session, split = open_trained(stored, given)
    device = device_line(session.options, session.net)
    if device is not None:
        say(device)
    dataset = session.dataset
    if given.data is not None:
        for line in unknown_words(dataset.splits[split], dataset):
            say(line)
    totals = evaluate_split(session, split, batch_size=given.batch_size)
    assert totals is not None
    totals.require_finite(split)
    say(
        f"{split}: {totals.text(session.task)}; {totals.graphs} graphs of {dataset.name}, "
        f"{totals.graphs_per_s():.0f} graphs/s; {stored.path}"
    )
    return 0


def open_trained(stored: StoredRun, given: argparse.Namespace) -> tuple[RunSession, str]:
    """Load one split, with words numbered as the run did, and the network as it was trained.

    Returns: the session, and the split: `all` for one file, else the one that was named.
    Raises: as `evaluate` does.
    """
    options = _changed(stored.options, given)
    spec = find(options.model, options.task, options.format)
    split = given.split
    if given.data is not None and os.path.isfile(expanded(given.data)):
        split = WHOLE
    dataset = load(
        options.data,
        format=options.format,
        splits=(split,),
        vocabularies=stored.vocabularies,
        reals=stored.reals,
        **options.reading,
    )
    require_graphs(dataset, split)
    if dataset.classes > stored.data.classes:
        raise CheckpointError.at(
            str(stored.path),
            f"it tells {stored.data.classes} classes apart, '{dataset.name}' has {dataset.classes}",
            "expected data of the same task",
            "Give other data, or train a model for these",
        )
    source = options.reading.get(split, dataset.name)  # dev and test may be files of their own
    dataset = replace(dataset, classes=stored.data.classes, name=source)
    net = compile_model(options, spec, dataset)
    net.set_parameters(stored.judged)
    return RunSession(options, spec, dataset, net), split


def _changed(options: RunOptions, given: argparse.Namespace) -> RunOptions:
    """Put in what the command line says about where to run and on what."""
    named = {name: getattr(given, name) for name in ("device", "precision", "threads")}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if given.device is not None and given.precision is None:
        changes["precision"] = "float32"  # the run's may be one that only a GPU has
    if given.threads is not None:
        changes["processors"] = None  # which may not divide them
    options = with_model(options, given)
    return replace(options if given.data is None else _of_data(options, given.data), **changes)


def _of_data(options: RunOptions, data: str) -> RunOptions:
    """Return options with other data, of which nothing is said."""
    apart = {name: v for name, v in options.reading.items() if name not in ("dev", "test")}
    return replace(options, data=data_name(data), reading=apart)


def unknown_words(graphs: GraphBatch, dataset: Dataset) -> list[str]:
    """Return a line for each pull of words of which the training data did not have some."""
    lines = []
    for name, vocabulary in dataset.vocabularies.items():
        pull = graphs.pulls.get(name)
        if not isinstance(pull, np.ndarray) or vocabulary.unknown != UNKNOWN:
            continue
        present, unknown = np.count_nonzero(pull >= 0), np.count_nonzero(pull == 0)
        if unknown:
            share = f"{unknown:,} of {present:,} ({100 * unknown / present:.1f} %)"
            lines.append(f"{share} of the values of '{name}' are unknown words, {UNKNOWN}")
    return lines
