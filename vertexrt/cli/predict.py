"""Write what a trained run makes of graphs: `vertexrt predict RUN --data X --out Y`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vertexrt.cli.evaluate import open_trained, unknown_words
from vertexrt.cli.loop import EVALUATION_BATCH
from vertexrt.cli.output import say
from vertexrt.cli.pretrained import open_run
from vertexrt.cli.session import RunSession, device_line
from vertexrt.data.jsonl import line_of
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.plain_files import write_atomically

DIGITS = 6  # of probabilities and numbers


def predict(given: argparse.Namespace) -> int:
    """Run `vertexrt predict`: one JSON object a graph, in the order of the data; return 0.

    Raises: as `evaluate` does; UsageError, when the file cannot be written.
    """
    stored = open_run(given.run)
    session, split = open_trained(stored, given)
    graphs = session.dataset.splits[split]
    notes = [device_line(session.options, session.net), *unknown_words(graphs, session.dataset)]
    for line in filter(None, notes):
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
    """Yield a line of JSON for each graph."""
    push = session.task.answer or "loss"
    for first in range(0, graphs.num_graphs, size):
        batch = graphs.take(np.arange(first, min(first + size, graphs.num_graphs)))
        answer = session.net.forward(batch, train=False, outputs=(push,))[push]
        values = _values(session, answer)
        for vertices in np.split(np.arange(batch.num_vertices), batch.graph_ptr[1:-1]):
            yield line_of(_record(session, batch, vertices, values))


def _values(session: RunSession, answer: np.ndarray) -> dict[str, Any]:
    """Return what is written of each vertex, by name."""
    if session.task.answer != "logits":
        return {session.task.answer or "loss": np.round(answer.astype(np.float64), DIGITS)}
    shifted = answer.astype(np.float64) - answer.max(axis=1, keepdims=True)
    share = np.exp(shifted)
    share /= share.sum(axis=1, keepdims=True)
    best = answer.argmax(axis=1)
    names = session.dataset.labels
    return {
        "prediction": np.array(names, object)[best] if names else best,  # as they are, in Python
        "probabilities": np.round(share, DIGITS),
    }


def _record(
    session: RunSession, batch: GraphBatch, vertices: np.ndarray, values: dict[str, Any]
) -> dict[str, Any]:
    """Return a graph's values: by vertex, or by vertex type, of those that push, and vertex."""
    if batch.types is None:
        return _listed(values, vertices)
    of_vertex = batch.types.of_vertex[vertices]
    return {
        name: _listed(values, vertices[of_vertex == batch.types.number(name)])
        for name in _pushing(session, session.task.answer or "loss")
    }


def _listed(values: dict[str, Any], vertices: np.ndarray) -> dict[str, Any]:
    return {name: value[vertices].tolist() for name, value in values.items()}


def _pushing(session: RunSession, push: str) -> Sequence[str]:
    """Return the vertex types whose function has a push."""
    program = session.net.program
    nodes = (program.nodes[k] for k in program.find("push"))
    # Functions without it push a constant, so that each vertex has a row.
    own = (node for node in nodes if program.nodes[node.inputs[0]].op != "const")
    numbers = dict.fromkeys(node.function for node in own if node["name"] == push)
    return [program.sites[number].name for number in numbers]
