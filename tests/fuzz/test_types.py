"""Random functions side by side in one network compute what each computes alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import shim
from tests.fuzz.batches import BatchSpec, graph_batch, pulled_rows
from tests.fuzz.campaign import drawn
from tests.fuzz.function import FunctionSpec, builder, prune, source
from tests.fuzz.relations import undropped
from tests.runs import Way

SEEDS = range(700, 716)
OF_SHIM = range(700, 704)
WAYS = {
    "reference": Way(),
    "cpu": Way("cpu"),
    "agenda": Way("cpu", policy="agenda", threads=2),
    "persistent": Way("cpu", engine="persistent", processors=2, threads=2),
}
PULL = re.compile(r"'([xiek]\d+)'")


def parts(seed: int) -> Iterator[tuple[str, str, FunctionSpec, BatchSpec]]:
    """Yield two functions that fit into a model: name, source text, function and batch."""
    for name, number in (("a", seed), ("b", seed + 10_000)):
        spec, (batch, *_) = alone(number)
        spec = prune(replace(spec, nodes=undropped(spec), pushes={"loss": spec.pushes["loss"]}))
        batch = replace(batch, pulls={n: batch.pulls[n] for n in spec.pulls})
        yield name, PULL.sub(rf"'{name}\1'", source(spec)), spec, batch


def alone(seed: int) -> tuple[FunctionSpec, tuple[BatchSpec, ...]]:
    """Draw a function without relations."""
    found = drawn(seed, 5)
    return found if not found[0].relations else alone(seed + 20_000)


def typed(given: list[tuple[str, str, FunctionSpec, BatchSpec]]) -> vrt.GraphBatch:
    """Put the vertices of both batches into one graph.

    A function that reads slots and all children has an edge for each: they are two relations.
    """
    edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    pulls: dict[str, dict[str, Any]] = {}
    edge_pulls: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, _, spec, batch in given:
        ops = {node.op for node in spec.nodes}
        reads_all = spec.arity is None or not ops.isdisjoint(("gather_all", "edge"))
        for slot in range(spec.arity or 0):
            edges[name, str(slot), name] = []
        edges[name, "children", name] = []
        mine = [key for key in edges if key[0] == name]
        at: dict[tuple[str, str, str], list[int]] = {key: [] for key in mine}
        number = 0
        for v, slots in enumerate(batch.children):
            for slot, child in enumerate(slots):
                for key in ((name, str(slot), name), (name, "children", name)):
                    wanted = reads_all if key[1] == "children" else spec.arity is not None
                    if child >= 0 and wanted:
                        edges[key].append((child, v))
                        at[key].append(number)
                number += 1
        pulls[name] = {}
        edge_pulls |= {key: {} for key in mine}
        for pull, rows in pulled_rows(batch).items():
            of_edges = batch.pulls[pull].form.edges
            for key in mine if of_edges else [None]:
                index = rows.index if key is None else rows.index[at[key]]
                into = pulls[name] if key is None else edge_pulls[key]
                table = rows.table
                into[f"{name}{pull}"] = index if table is None else vrt.Rows(table, index)
    sizes = {name: len(batch.children) for name, _, _, batch in given}
    graph = vrt.InputGraph.from_types(sizes, edges, pulls, edge_pulls)
    return vrt.GraphBatch.from_graphs([graph])


def gradients(net: vrt.Network, batch: vrt.GraphBatch, d: np.ndarray) -> tuple[Any, Any]:
    """Return the losses, and the gradients of parameters, under one gradient a vertex."""
    run = net.record(batch, outputs=["loss"])
    return run.outputs["loss"], run.backward({"loss": d}).parameters


def compare(seed: int, way: Way) -> None:
    given = list(parts(seed))
    model, losses, want, ds = vrt.Model(), [], {}, []
    values: dict[str, np.ndarray] = {}
    for name, text, _, batch in given:
        function = builder(text)(vrt)
        vars(model)[name] = function
        alone = Way().compile(function)
        whole = graph_batch(batch)
        of_edges = {f"{name}{n}": v for n, v in whole.edge_pulls.items()}
        of_vertices = {f"{name}{n}": v for n, v in whole.pulls.items()}
        whole = replace(whole, pulls=of_vertices, edge_pulls=of_edges)
        ds.append(np.random.default_rng(seed).standard_normal(whole.num_vertices))
        loss, found = gradients(alone, whole, ds[-1])
        losses.append(loss)
        want |= {f"{name}.{n}": gradient for n, gradient in found.items()}
        values |= {f"{name}.{n}": value for n, value in alone.parameters.items()}
    net = way.compile(model)
    net.parameters.update(values)
    loss, found = gradients(net, typed(given), np.concatenate(ds))
    scale = max(1.0, float(np.abs(loss).max()))
    np.testing.assert_allclose(loss, np.concatenate(losses), rtol=0, atol=1e-11 * scale)
    assert found.keys() == want.keys()
    for name, gradient in want.items():
        scale = max(1.0, float(np.abs(gradient).max(initial=0.0)))
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("seed", SEEDS)
def test_functions_do_not_disturb_each_other(seed: int) -> None:
    compare(seed, list(WAYS.values())[seed % len(WAYS)])


@shim
@pytest.mark.parametrize("seed", OF_SHIM)
def test_nor_do_they_on_a_gpu(seed: int) -> None:
    persistent = Way("shim", engine="persistent", processors=2, threads=2)
    compare(seed, persistent if seed % 2 else Way("shim"))
