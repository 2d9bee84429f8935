"""However a network runs, it computes the same: ways to run, their judges, and one comparison.

`agree` runs a network in a way, forward and back, and compares all that it gives with a judge: the
oracle of `tests.fuzz`, which evaluates the same classes eagerly in NumPy float64, one vertex after
another, or another way to run. A feature is a row of a table: what is made, and for which batches.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import vertexrt as vrt
from tests.fuzz import oracle
from tests.fuzz.evaluate import OracleRun, PulledRows
from tests.runs import (
    TOLERANCE,
    Result,
    Way,
    assert_loss_gradients,
    assert_output_gradients,
    assert_same,
    cotangents,
    evaluate,
    train,
)
from vertexrt.graph import GraphBatch

Network = vrt.VertexFunction | vrt.Model

PERSISTENT = Way("cpu", engine="persistent", processors=2, threads=2)
ON_HOST = [Way(), Way("cpu"), Way("cpu", threads=2), PERSISTENT]
ON_GPU = [
    way
    for device in ("shim", "cuda")
    for way in (Way(device), Way(device, engine="persistent", processors=2))
]
EVERYWHERE = [*ON_HOST, *ON_GPU]


class Feature(NamedTuple):
    """A row: what is made, batches for it, the ways to run it, and what is to be seen.

    Attributes:
        judge: another way; None for the oracle.
        says: patterns of what the first way explains, of a network and of the first batch.
    """

    make: Callable[[], Network]
    batches: Callable[[], GraphBatch | Sequence[GraphBatch]]
    ways: Sequence[Way] = EVERYWHERE
    judge: Way | None = None
    says: tuple[str, ...] = ()


def rows(features: Mapping[str, Feature]) -> list[Any]:
    """Return the parameters of a test of features: a name and a way."""
    return [(name, way) for name, each in features.items() for way in each.ways]


_found: dict[Any, list[list[Result]]] = {}  # what judges found: once for all ways of a feature


def holds(feature: Feature, way: Way) -> None:
    """Check a feature in a way."""
    given = feature.batches()
    batches = [given] if isinstance(given, GraphBatch) else given
    dtype = way.dtype if feature.judge is None else ""  # the oracle takes parameters as they are
    found = _found.setdefault((feature.make, feature.batches, feature.judge, dtype), [])
    net = agree(feature.make, batches, way, feature.judge, found)
    for pattern in feature.says if way == feature.ways[0] else ():
        text = net.explain() + net.explain_batch(batches[0])
        assert re.search(pattern, text), text


def agree(
    make: Callable[[], Network],
    batches: GraphBatch | Iterable[GraphBatch],
    way: Way,
    judge: Way | None = None,
    found: list[list[Result]] | None = None,
) -> vrt.Network:
    """Run a network forward and back, from given gradients and in a step, and compare.

    Args:
        judge: another way to run; None for the oracle. The judge itself is judged by central
            differences.
        found: what the judge found of each batch before; what is missing is added.

    Returns: the compiled network, for what else is asked of it.
    """
    network = make()
    net = way.compile(network)
    found = [] if found is None else found
    for k, batch in enumerate([batches] if isinstance(batches, GraphBatch) else batches):
        if judge == way:  # which says nothing of itself
            assert_output_gradients(net, batch)
            if "loss" in net.pushes:
                assert_loss_gradients(net, batch)
            continue
        if k == len(found):
            other = None if judge is None else judge.compile(make())
            found.append(wanted(net, network, batch, other))
        for run, want in zip((evaluate, train), found[k], strict=False):
            assert_same(run(net, batch), want, TOLERANCE[way.dtype])
    return net


def compare(
    net: vrt.Network,
    network: Network,
    batch: GraphBatch,
    other: vrt.Network | None = None,
    rtol: float = TOLERANCE["float64"],
) -> None:
    """Compare a compiled network with another one, or with what the oracle says."""
    for run, want in zip((evaluate, train), wanted(net, network, batch, other), strict=False):
        assert_same(run(net, batch), want, rtol)


def wanted(
    net: vrt.Network, network: Network, batch: GraphBatch, other: vrt.Network | None
) -> list[Result]:
    """Return what another network gives, or what the oracle says of the first one."""
    if other is None:
        return by_oracle(network, batch, dict(net.parameters))
    return [run(other, batch) for run in (evaluate, train)[: 1 + ("loss" in net.pushes)]]


def by_oracle(network: Network, batch: GraphBatch, values: dict[str, Any]) -> list[Result]:
    """Return what `evaluate` gives of a batch, and what `train` gives where there is a loss."""
    functions = network.functions() if isinstance(network, vrt.Model) else {"": network}
    twins: dict[int, oracle.Parameter] = {}
    here = {name: _stand_in(function, twins) for name, function in functions.items()}
    named = {name: twins[id(p)] for name, p in network.parameters().items() if id(p) in twins}
    children = [c.tolist() for c in np.split(batch.child, batch.child_ptr[1:-1])]
    types, relations = batch.types, None
    if types is None:
        order = [here[""]] * len(children)
    else:
        of_edge = np.split(types.of_edge, batch.child_ptr[1:-1])
        relations = [[types.relations[k] for k in edges] for edges in of_edge]
        order = [here[types.names[k]] for k in types.of_vertex]
    pulls = {name: _rows(pull) for name, pull in {**batch.pulls, **batch.edge_pulls}.items()}
    with _in_place_of_the_package(functions.values()):
        given = {name: np.asarray(value, np.float64) for name, value in values.items()}
        run = OracleRun(order, children, pulls, given, relations, named)
    outputs = {name: run.push(name).value for name in run.pushes}
    d_outputs = cotangents({name: value.shape for name, value in outputs.items()})
    back = run.gradients(d_outputs)
    pulled = {name: back.pulled[name].value for name in run.read if name in back.pulled}
    found = [Result(outputs, {n: g.value for n, g in back.parameters.items()}, pulled)]
    if "loss" in outputs:
        share = np.full(batch.num_vertices, 1.0 / batch.num_graphs)
        step = run.gradients({"loss": share}).parameters
        loss = float(outputs["loss"] @ share)
        found.append(Result(outputs, {n: g.value for n, g in step.items()}, {}, loss))
    return found


def _stand_in(function: vrt.VertexFunction, twins: dict[int, oracle.Parameter]) -> Any:
    """Return a function of the oracle with the body and the attributes of one of the package."""
    kind = type(function)
    found: Any = object.__new__(
        type("Twin", (oracle.VertexFunction, kind), {"forward": kind.forward})
    )
    vars(found).update({name: _twin(value, twins) for name, value in vars(function).items()})
    return found


def _twin(value: Any, twins: dict[int, oracle.Parameter]) -> Any:
    if isinstance(value, vrt.Parameter):
        return twins.setdefault(id(value), oracle.Parameter(value.shape, value.trainable))
    if isinstance(value, (list, tuple)):
        return [_twin(each, twins) for each in value]
    if isinstance(value, dict):
        return {name: _twin(each, twins) for name, each in value.items()}
    return value


def _rows(pull: Any) -> PulledRows:
    if isinstance(pull, vrt.Rows):
        table = np.asarray(pull.table, np.float64)
        return PulledRows(table, _numbers(table) if pull.index is None else pull.index)
    array = np.asarray(pull)
    if array.dtype.kind in "iu":
        return PulledRows(None, array)
    return PulledRows(array.astype(np.float64), _numbers(array))


def _numbers(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(len(rows), dtype=np.int32)


@contextlib.contextmanager
def _in_place_of_the_package(functions: Iterable[Any]) -> Iterator[None]:
    """Let `vrt` be the oracle where the bodies of functions are written."""
    with contextlib.ExitStack() as stack:
        for name in {kind.__module__ for f in functions for kind in type(f).__mro__}:
            if hasattr(sys.modules[name], "vrt"):
                stack.enter_context(mock.patch.object(sys.modules[name], "vrt", oracle))
        yield
