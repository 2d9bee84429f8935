"""What passes give back: pushes and gradients, as arrays of the host or of the device.

Those of `host` are copied to the host. A device with a memory of its own has another
`PassResults`, whose arrays stay there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, RowPlace, Run
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.structure import edges_in_slot
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import edge_pulls_of, pulls_of
from vertexrt.graph.pulls import parts_of
from vertexrt.ir.program import Pull

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What `Record.backward` returns: gradients of one pass, by the names of parameters and of
    real pulled values.

    Attributes:
        parameters: in their shapes.
        pulled: in the shapes of the arrays that were given.
        rows: with `sparse`, of a table the rows that were looked up, int64 [n], rising, and their
            gradients [n, ...]; it is not among `parameters` then.
    """

    parameters: dict[str, Array]
    pulled: dict[str, Array]
    rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def __repr__(self) -> str:
        parameters, pulled = shapes_of(self.parameters), shapes_of(self.pulled)
        return f"Gradients(parameters: {parameters}; pulled: {pulled})"


def shapes_of(arrays: Mapping[str, Array]) -> str:
    """Return names and shapes in one line."""
    return ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items()) or "none"


class WayBack(NamedTuple):
    """A way back through a forward pass.

    Attributes:
        batch, runs: of the pass; seed: of its random draws.
        d_outputs: gradients of its pushes, [V, *shape], in the order of their names; none, where it
            starts from the loss, which is evaluated with it. scale: factor of them, or of the loss.
        pulls: names of the real pulls whose gradients are wanted.
        sparse: of tables, which are only looked up in, the rows that were looked up are wanted.
        reals: of `Part`.
    """

    batch: GraphBatch
    runs: Sequence[Run]
    seed: int
    d_outputs: Mapping[str, Any]
    scale: float
    pulls: Sequence[str]
    sparse: bool
    reals: tuple[Any, ...] | None = None


class LossAndGradients(NamedTuple):
    """What a way back from the loss gives back, in memory of its own.

    Attributes:
        loss: real [], scaled.
        flat: gradients in the store's layout, of all trained parameters, or where `rows` has the
            tables of the others; None, where the pass does not go back.
        rows, pulled: of `Gradients`.
    """

    loss: Any
    flat: Any
    rows: Mapping[str, tuple[Any, Any]]
    pulled: Mapping[str, Any]


class PushRows(NamedTuple):
    """A push that is wanted.

    Attributes:
        name: of the push.
        vertices: whose, int64 [n], in that order; None for all, in the user's order.
    """

    name: str
    vertices: npt.NDArray[np.int64] | None = None


class PassResults(Protocol):
    """How passes run, and where what they give back lies."""

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return numbers as an array of the network's dtype in C order; zeros of a shape for None.

        Whether numbers have that shape is not looked at.
        """

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return what is wanted, [n, *shape] each."""

    def backward(self, way: WayBack) -> Gradients:
        """Go back."""


class LaunchesHere(Protocol):
    """An executor whose arrays may stay on its device: what results there are made with."""

    model: CompiledModel

    def launch_between(self, run: Run, part: Part, stream: int | None = None) -> Any:
        """Run launches after what the caller's stream has, and before what it gets; do not wait.

        Args:
            stream: its address; by default the current one of the library of the arrays.
        Returns: the arena, an array of the device; it is there until the next run.
        """

    def share_values(self) -> Any:
        """Return the parameters on the device, [total], which others may write to from now on."""

    def gradients_here(self) -> Any:
        """Return the gradients on the device, [trained], which each run with a way back fills."""


class PushPlaces(NamedTuple):
    """Where pushes that are wanted lie in the arena of a device.

    Attributes:
        shapes: of the results.
        rows: int32, lists of rows, one after the other; those of the same vertices are one list.
        places: of each push.
    """

    shapes: tuple[tuple[int, ...], ...]
    rows: Array
    places: tuple[RowPlace, ...]

    @staticmethod
    def of(run: Run, wanted: Sequence[PushRows]) -> PushPlaces:
        """Find those of pushes."""
        key = "pushes", *[push.name for push in wanted]
        vertices = [push.vertices for push in wanted]
        return run.once(key, vertices, lambda: _places_of(run, wanted))


def _places_of(run: Run, wanted: Sequence[PushRows]) -> PushPlaces:
    lists: list[Array] = []
    known: dict[int, tuple[int, int]] = {}  # by the identity of the vertices: start, length
    shapes, places, end = [], [], 0
    for push in wanted:
        key = id(push.vertices)
        if key not in known:
            rows = run.row_of
            if push.vertices is not None:
                rows = rows.take(push.vertices)
            lists.append(rows)
            known[key], end = (end, len(rows)), end + len(rows)
        number, found = run.variant.table.numbers[run.variant.pushes.keys[push.name]], known[key]
        size = run.variant.table.specs[number].size
        places.append(RowPlace(int(run.layout.plan.base[number]), size, *found))
        shapes.append((found[1], *run.variant.pushes.shapes[push.name]))
    rows = lists[0] if len(lists) == 1 else np.concatenate(lists)
    return PushPlaces(tuple(shapes), rows, tuple(places))


class PulledRows(NamedTuple):
    """Where the gradient of what a run pulled lies, and where it goes.

    Attributes:
        to: rows of the pull; at: rows of the tensor; int64 [n] each.
    """

    to: Array
    at: Array


def pulled_rows(batch: GraphBatch, run: Run, pull: Pull) -> PulledRows:
    """Find the rows of a pull that a run has a gradient of; several may be one."""
    if pull.of:
        mine, at = _slots_pulled(run, pull)
    else:
        mine, at = (_edges_pulled if pull.edges else _vertices_pulled)(run, pull.name)
    _, index = table_of(batch, pull)
    if index is None:
        return PulledRows(mine, at)
    rows = index[mine]
    has = np.flatnonzero(rows >= 0)
    return PulledRows(rows[has], at[has])


def _pulling(run: Run, name: str) -> Array:
    """Mark the user's vertices whose function pulls a value, of its own or of its edges."""
    nodes, functions = run.variant.program.nodes, run.inputs.functions
    if not len(functions):
        return np.ones(len(run.row_of), np.bool_)
    pulling = {n.function for n in nodes if n.op == "pull_grad" and n["name"] == name}
    return np.isin(functions, list(pulling))


def _vertices_pulled(run: Run, name: str) -> tuple[Array, Array]:
    """Return the vertices that pull a value, in the whole batch, and their rows."""
    mine = np.flatnonzero(_pulling(run, name))
    return run.share.vertices[mine], run.row_of[mine]


def _edges_pulled(run: Run, name: str) -> tuple[Array, Array]:
    """Return the edges of which a value is pulled, in the whole batch, and their rows."""
    s, inputs = run.layout.schedule, run.inputs
    rows = np.flatnonzero((s.child_row >= 0) & _pulling(run, name)[s.order[s.edge_row]])
    rows = rows[rows >= s.every_ptr[0]]  # edges of slots come before, and have no values
    edges = s.edge_order[rows] - len(run.row_of)
    if inputs.edge_of is not None:
        edges = inputs.edge_of[edges]
    return run.share.edges(edges), rows


def _slots_pulled(run: Run, pull: Pull) -> tuple[Array, Array]:
    """Return the edges to one child that pull a value, in the whole batch, and their rows."""
    edge = edges_in_slot(run.variant.program, pull, run.inputs.structure)
    mine = np.flatnonzero((edge >= 0) & _pulling(run, pull.name))
    return run.share.edges(edge[mine]), run.row_of[mine]


def table_of(batch: GraphBatch, pull: Pull) -> tuple[Any, Array | None]:
    """Return the rows of a pull, and which of them each vertex pulls, if not its own."""
    return parts_of((edge_pulls_of(batch) if pull.of_edges else pulls_of(batch))[pull.source])
