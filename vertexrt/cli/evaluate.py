"""Evaluate a trained run from the command line: `vertexrt eval RUN`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from vertexrt import models
from vertexrt.cli import run_state
from vertexrt.cli.loop import evaluate as evaluate_split
from vertexrt.cli.options import RunOptions, data_name
from vertexrt.cli.run_folder import find_checkpoint
from vertexrt.cli.run_state import StoredRun
from vertexrt.cli.session import RunSession, compile_model, device_line, load_data, require_graphs
from vertexrt.data import Dataset, Vocabulary
from vertexrt.errors import CheckpointError
from vertexrt.models import ModelSpec


def evaluate(given: argparse.Namespace) -> int:
    """Run `vertexrt eval`: print loss and accuracy or perplexity of one split; return 0.

    Raises: UsageError, when there is no such run or data set; CheckpointError, when the
        checkpoint is damaged or does not fit the data; DataError, when the split has no graphs.
    """
    path = find_checkpoint(given.run)
    stored = run_state.load(path)
    options = _changed(stored.options, given)
    spec = models.get(options.model)
    dataset = _dataset(options, spec, stored)
    require_graphs(dataset, given.split)
    net = compile_model(options, spec, dataset)
    net.set_parameters(stored.checkpoint.parameters)
    session = RunSession(options, spec, dataset, net)
    device = device_line(options, net)
    if device is not None:
        print(device)
    totals = evaluate_split(session, given.split, batch_size=given.batch_size)
    assert totals is not None
    totals.require_finite(given.split)
    print(
        f"{given.split}: {totals.text(session.task)}; {totals.graphs} graphs of {dataset.name}, "
        f"{totals.graphs_per_s():.0f} graphs/s; {path}"
    )
    return 0


def _changed(options: RunOptions, given: argparse.Namespace) -> RunOptions:
    """Put in what the command line says about where to run and on what."""
    changes: dict[str, Any] = {}
    for name in ("device", "precision", "threads"):
        if getattr(given, name) is not None:
            changes[name] = getattr(given, name)
    if given.device is not None and given.precision is None:
        changes["precision"] = "float32"  # the run's may be one that only a GPU has
    if given.threads is not None:
        changes["processors"] = None  # which may not divide them
    if given.data is not None:
        changes["data"] = data_name(given.data)
    return replace(options, **changes)


def _dataset(options: RunOptions, spec: ModelSpec, stored: StoredRun) -> Dataset:
    """Load the data set and number its words as the run did.

    Raises: CheckpointError, when its classes are not those of the run.
    """
    dataset = load_data(options, spec)
    if "label" not in dataset.worded and dataset.classes != stored.data.classes:
        raise CheckpointError.at(
            str(stored.path),
            f"it tells {stored.data.classes} classes apart, '{dataset.name}' has {dataset.classes}",
            "expected data of the same task",
            "Give other data, or train a model for these",
        )
    if dataset.vocabulary == stored.vocabulary:
        return dataset
    return renumbered(dataset, stored.vocabulary)


def renumbered(dataset: Dataset, vocabulary: Vocabulary) -> Dataset:
    """Return a data set whose words have the numbers of another vocabulary; unknown ones are 0."""
    number = np.append(vocabulary.encode(dataset.vocabulary.words), np.int32(-1))  # -1 stays -1
    splits = {}
    for split, graphs in dataset.splits.items():
        pulls = dict(graphs.pulls)
        for name in dataset.worded:
            pull = pulls[name]
            assert isinstance(pull, np.ndarray), name
            pulls[name] = number[pull]
        splits[split] = replace(graphs, pulls=pulls)
    classes = len(vocabulary) if "label" in dataset.worded else dataset.classes
    return replace(dataset, splits=splits, vocabulary=vocabulary, classes=classes)
