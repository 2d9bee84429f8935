"""Gradients that `Network.backward` takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.api.arguments import real_array
from vertexrt.engine.batched import edges_pulled, rows_of_tensor, vertices_pulled
from vertexrt.errors import PullError
from vertexrt.graph import GraphBatch, Pulled
from vertexrt.graph.pulls import PullValue

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What `Network.backward` returns: gradients of parameters and real pulled values, by name."""

    parameters: dict[str, Array]
    pulled: dict[str, Array]

    def __repr__(self) -> str:
        return f"Gradients(parameters: {_shapes(self.parameters)}; pulled: {_shapes(self.pulled)})"


def _shapes(arrays: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items()) or "none"


def given_gradients(
    given: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]
) -> dict[str, Array]:
    """Return the gradient of each push, by name in order; zeros where none is given.

    Args:
        given: by name; shapes: of each push, [V, ...].
    Raises: PullError, when one is not of its shape or not of real numbers.
    """
    found: dict[str, Array] = {}
    for name in sorted(shapes):
        shape = shapes[name]
        if given.get(name) is None:
            found[name] = np.zeros(shape, dtype)
            continue
        array, wrong = real_array(given[name], shape, dtype)
        if array is None:
            raise PullError.at(
                "backward",
                f"the gradient of {name!r} {wrong}",
                f"real numbers of shape {list(shape)}, one row a vertex",
                "pass the gradient of what forward returned",
            )
        found[name] = array
    return found


def pulled_gradient(batch: GraphBatch, runs: list[Any], arenas: list[Array], name: str) -> Array:
    """Add up the gradients of pulled values over the vertices (or edges) that pulled them."""
    of_edges = name in runs[0].variant.program.edge_pulls
    given = batch.edge_pulls if of_edges else batch.pulls
    table, index = _table_of(given[name])
    out = np.zeros(table.shape, arenas[0].dtype)
    if ("pull_grad", name) not in runs[0].variant.table.numbers:
        return out
    for run, data in zip(runs, arenas, strict=True):
        mine, at = edges_pulled(run, name) if of_edges else vertices_pulled(run, name)
        rows = mine if index is None else index[mine]
        has = np.flatnonzero(rows >= 0)
        if not len(has):  # the tensor may be younger than the plan of this run
            continue
        found = rows_of_tensor(run, data, ("pull_grad", name), at[has])
        np.add.at(out, rows[has], found.reshape(-1, *table.shape[1:]))
    return out


def _table_of(value: PullValue) -> tuple[Array, Array | None]:
    """Return the rows of a pull, and which of them each vertex pulls, if not its own."""
    return (value.values, value.index) if isinstance(value, Pulled) else (value, None)
