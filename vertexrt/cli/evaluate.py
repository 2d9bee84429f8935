"""What a trained run makes of graphs: `vertexrt eval RUN`, `vertexrt predict RUN --out FILE`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vertexrt.cli.export import open_run
from vertexrt.cli.loop import EVALUATION_BATCH
from vertexrt.cli.loop import evaluate as evaluate_split
from vertexrt.cli.output import say
from vertexrt.cli.run_options import data_name, with_model
from vertexrt.cli.run_state import StoredRun
from vertexrt.cli.session import RunSession, compile_model, device_lines, require_graphs
from vertexrt.data import UNKNOWN, WHOLE, Dataset, load
from vertexrt.data.files import expanded
from vertexrt.data.jsonl import line_of
from vertexrt.errors import CheckpointError, UsageError
from vertexrt.graph import GraphBatch
from vertexrt.models.own import find
from vertexrt.plain_files import write_atomically

DIGITS = 6  # of probabilities and numbers


def evaluate(given: argparse.Namespace) -> int:
    """Run `vertexrt eval`: print loss and accuracy or perplexity of one split; return 0.

    Raises: UsageError, when there is no such run or data set; CheckpointError, when the
        checkpoint is damaged or does not fit the data; DataError, when the split has no graphs.
    """
    stored = open_run(given.run)
    session, split = open_trained(stored, given)
    dataset, lines = session.dataset, device_lines(session)
    if given.data is not None:
        lines += unknown_words(dataset.splits[split], dataset)
    for line in lines:
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
    options = with_model(stored.options, given)
    if given.data is not None:  # of which nothing is said
        apart = {name: v for name, v in options.reading.items() if name not in ("dev", "test")}
        options = replace(options, data=data_name(given.data), reading=apart)
    named = {name: getattr(given, name) for name in ("device", "precision", "threads")}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if given.device is not None and given.precision is None:
        changes["precision"] = "float32"  # the run's may be one that only a GPU has
    if given.threads is not None:
        changes["processors"] = None  # which may not divide them
    options = replace(options, **changes)
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
    net.load_state({"parameters": stored.judged})
    return RunSession(options, spec, dataset, net), split


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


def predict(given: argparse.Namespace) -> int:
    """Run `vertexrt predict`: one JSON object a graph, in the order of the data; return 0.

    Raises: as `evaluate` does; UsageError, when the file cannot be written.
    """
    stored = open_run(given.run)
    session, split = open_trained(stored, given)
    graphs = session.dataset.splits[split]
    for line in (*device_lines(session), *unknown_words(graphs, session.dataset)):
        say(line, sys.stderr)
    lines = _lines(session, graphs, given.batch_size or EVALUATION_BATCH)
    if given.out is None:
        for line in lines:
            print(line)
        return 0
    try:
        write_atomically(Path(given.out), "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        text = ("expected a plain file in a folder that exists", "Name another file")
        got = f"{given.out} cannot be written ({error.strerror or error})"
        raise UsageError.at("--out", got, *text) from error
    say(f"predictions of {graphs.num_graphs} graphs of {session.dataset.name}: {given.out}")
    return 0


def _lines(session: RunSession, graphs: GraphBatch, size: int) -> Iterator[str]:
    """Yield a line of JSON for each graph: its values by vertex, or by vertex type and vertex."""
    push, program = session.task.answer or "loss", session.net.program
    nodes = (program.nodes[k] for k in program.find("push"))
    # Functions without it push a constant, so that each vertex has a row.
    own = (node for node in nodes if program.nodes[node.inputs[0]].op != "const")
    numbers = dict.fromkeys(node.function for node in own if node["name"] == push)
    for first in range(0, graphs.num_graphs, size):
        batch = graphs.take(np.arange(first, min(first + size, graphs.num_graphs)))
        answer = session.net(batch, outputs=(push,))[push]
        values = _values(session, answer)
        for vertices in np.split(np.arange(batch.num_vertices), batch.graph_ptr[1:-1]):
            if batch.types is None:
                yield line_of(_listed(values, vertices))
                continue
            of_vertex, record = batch.types.of_vertex[vertices], {}
            for name in (program.sites[number].name for number in numbers):
                of_type = vertices[of_vertex == batch.types.number(name)]
                record[name] = _listed(values, of_type)
            yield line_of(record)


def _listed(values: dict[str, Any], vertices: np.ndarray) -> dict[str, Any]:
    return {name: value[vertices].tolist() for name, value in values.items()}


def _values(session: RunSession, answer: np.ndarray) -> dict[str, Any]:
    """Return what is written of each vertex, by name."""
    if session.task.answer != "logits":
        return {session.task.answer or "loss": np.round(answer.astype(np.float64), DIGITS)}
    share = np.exp(answer.astype(np.float64) - answer.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    best = answer.argmax(axis=1)
    names = session.dataset.labels
    return {
        "prediction": np.array(names, object)[best] if names else best,  # as they are, in Python
        "probabilities": np.round(share, DIGITS),
    }
