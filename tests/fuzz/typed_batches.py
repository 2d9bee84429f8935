"""Batches of graphs of several vertex types, as plain data, and what the oracle says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vertexrt as vrt
from tests.fuzz import eager
from tests.fuzz.batches import reals
from tests.fuzz.typed import CARRIED, NetSpec, TypeSpec

Array = np.ndarray[Any, Any]
Key = tuple[str, str, str]  # child's type, relation, parent's type
Pairs = tuple[tuple[int, int], ...]
MOST = 3  # vertices of a type in a graph, mostly


@dataclass(frozen=True, slots=True)
class TypedGraph:
    """A graph: vertices by type, edges, integers by type and by edges; reals are of a seed."""

    sizes: Mapping[str, int]
    edges: Mapping[Key, Pairs]
    ints: Mapping[str, Mapping[str, tuple[int, ...]]]
    kinds: Mapping[Key, tuple[int, ...]]
    seed: int


TypedBatch = tuple[TypedGraph, ...]


def draw_graph(rng: np.random.Generator, spec: NetSpec) -> TypedGraph:
    """Draw a graph; some types may have no vertex, some relations no edge."""
    names = [kind.name for kind in spec.types]
    sizes = {n: int(rng.integers(1, MOST + 1)) for n in names}
    if rng.random() < 0.4:
        sizes = {n: 0 if rng.random() < 0.4 else size for n, size in sizes.items()}
    if rng.random() < 0.1:
        sizes[str(rng.choice(names))] = int(rng.integers(4, 9))
    if rng.random() < 0.15:
        sizes = dict.fromkeys(names, 0) | {str(rng.choice(names)): 1}
    if not any(sizes.values()):
        sizes[names[0]] = 1
    rank = {n: rng.random(size) for n, size in sizes.items()}
    edges: dict[Key, list[tuple[int, int]]] = {
        (child, relation, kind.name): []
        for kind in spec.types
        for relation, of in kind.relations.items()
        for child in of
    }
    for kind in spec.types:
        for relation, of in kind.relations.items():
            empty = rng.random() < 0.15
            for v in range(sizes[kind.name]):
                below = [
                    (child, u)
                    for child in of
                    for u in range(sizes[child])
                    if rank[child][u] < rank[kind.name][v]
                ]
                most = (
                    int(rng.integers(0, 4)) if relation in kind.every else int(rng.random() < 0.7)
                )
                for k in rng.permutation(len(below))[: 0 if empty else most]:
                    child, u = below[k]
                    edges[child, relation, kind.name].append((u, v))
    ints = {
        kind.name: {
            name: _numbers(rng, sizes[kind.name], bound) for name, bound in spec.ints(kind).items()
        }
        for kind in spec.types
    }
    kinds = {
        key: _numbers(rng, len(pairs), spec.edge_ints("kind"))
        for key, pairs in edges.items()
        if "kind" in spec.edges_of(spec.of(key[2]), key[1])
    }
    kept = {key: tuple(pairs) for key, pairs in edges.items()}
    return TypedGraph(sizes, kept, ints, kinds, int(rng.integers(1 << 30)))


def _numbers(rng: np.random.Generator, count: int, bound: int) -> tuple[int, ...]:
    found = rng.integers(0, bound, count)
    absent = rng.random(count) < rng.choice([0.0, 0.2, 0.6])
    return tuple(np.where(absent, -1, found).tolist())


def real_pulls(graph: TypedGraph, spec: NetSpec, kind: TypeSpec) -> dict[str, Array]:
    """Return what the vertices of a type pull, by name [n, *shape]."""
    count = graph.sizes[kind.name]
    return {
        name: reals(graph.seed, f"{kind.name} {name}", count, shape)
        for name, shape in spec.reals_of(kind).items()
        if name != CARRIED
    }


def weights(graph: TypedGraph, key: Key) -> Array:
    """Return the weights of the edges of a relation."""
    return reals(graph.seed, " ".join(key), len(graph.edges[key]), ())


def build_batch(batch: TypedBatch, spec: NetSpec) -> vrt.GraphBatch:
    """Build a batch for vertexrt."""
    return vrt.GraphBatch.from_graphs([_build(graph, spec) for graph in batch])


def _build(graph: TypedGraph, spec: NetSpec) -> vrt.InputGraph:
    pulls: dict[str, dict[str, Any]] = {}
    for kind in spec.types:
        numbers = {n: np.array(x, np.int32) for n, x in graph.ints[kind.name].items()}
        carried = {}
        if kind.carried:
            carried[CARRIED] = np.zeros((graph.sizes[kind.name], kind.size))
        pulls[kind.name] = {**numbers, **real_pulls(graph, spec, kind), **carried}
    of_edges: dict[Key, dict[str, Any]] = {}
    for key in graph.edges:
        carried_by = spec.edges_of(spec.of(key[2]), key[1])
        of_edges[key] = {"kind": np.array(graph.kinds[key], np.int32)} if key in graph.kinds else {}
        if "weight" in carried_by:
            of_edges[key]["weight"] = weights(graph, key)
    edges = {key: list(pairs) for key, pairs in graph.edges.items()}
    of_edges = {key: given for key, given in of_edges.items() if given}
    return vrt.InputGraph.from_types(dict(graph.sizes), edges, pulls, of_edges)


# The oracle.


class Evaluated:
    """A batch, evaluated vertex by vertex.

    Args:
        parameters: by the names of `NetSpec.parameters`.
        carried: what the first vertex of a type pulls in a graph, by graph and type.

    Attributes:
        leaves: the parameters as tensors; vertices: in the order of the batch, with their types.
        unclear: rounding may decide something.
    """

    def __init__(
        self,
        spec: NetSpec,
        functions: Mapping[str, Any],
        batch: TypedBatch,
        parameters: Mapping[str, Array],
        carried: Mapping[tuple[int, str], Array],
    ) -> None:
        self.spec, self.batch = spec, batch
        self.leaves: dict[str, Tensor] = {}
        for p, (_, trained) in spec.parameters.items():
            leaf = torch.tensor(np.asarray(parameters[p]), dtype=eager.REAL)
            self.leaves[p] = leaf.requires_grad_(trained)
            for kind in spec.types:
                if p in spec.owners(kind):
                    vars(functions[kind.name])[p].t = leaf
        eager.Watch.unclear = False
        self.vertices: list[tuple[int, TypeSpec, int, eager.Vertex]] = []
        self.pulled: dict[tuple[int, str, str], Tensor] = {}
        self.carried = carried
        for g, graph in enumerate(batch):
            self._evaluate(g, graph, functions)
        self.unclear = eager.Watch.unclear

    def _evaluate(self, g: int, graph: TypedGraph, functions: Mapping[str, Any]) -> None:
        spec = self.spec
        for kind in spec.types:
            for name, values in real_pulls(graph, spec, kind).items():
                self.pulled[g, kind.name, name] = torch.tensor(values, requires_grad=True)
            if kind.carried:
                rows = np.zeros((graph.sizes[kind.name], kind.size))
                if len(rows):
                    rows[0] = self.carried.get((g, kind.name), 0.0)
                self.pulled[g, kind.name, CARRIED] = torch.tensor(rows, requires_grad=True)
        done: dict[tuple[str, int], eager.Vertex] = {}
        left = [(k, v) for k in spec.types for v in range(graph.sizes[k.name])]
        while left:
            for kind, v in list(left):
                children = _children(graph, kind, v)
                if all((c, u) in done for of in children.values() for c, u, _, _ in of):
                    vertex = self._vertex(g, graph, kind, v, children, done)
                    eager.VertexFunction.at = vertex
                    functions[kind.name].forward()
                    done[kind.name, v] = vertex
                    left.remove((kind, v))
        for kind in spec.types:
            for v in range(graph.sizes[kind.name]):
                self.vertices.append((g, kind, v, done[kind.name, v]))

    def _vertex(
        self,
        g: int,
        graph: TypedGraph,
        kind: TypeSpec,
        v: int,
        children: Mapping[str, list[tuple[str, int, Key, int]]],
        done: Mapping[tuple[str, int], eager.Vertex],
    ) -> eager.Vertex:
        spec = self.spec
        pulls = {
            name: eager.Value(torch.tensor(float(x[v])), index=x[v])
            for name, x in graph.ints[kind.name].items()
        }
        for name in spec.reals_of(kind):
            pulls[name] = eager.Value(self.pulled[g, kind.name, name][v])
        edges = {}
        for relation, of in children.items():
            for name in spec.edges_of(kind, relation):
                if name == "kind":
                    index = [graph.kinds[key][e] for _, _, key, e in of]
                    numbers = torch.tensor([float(x) for x in index])
                    edges[relation, name] = eager.Value(numbers, True, index)
                else:
                    rows = [weights(graph, key)[e] for _, _, key, e in of]
                    edges[relation, name] = eager.Value(torch.tensor(rows, dtype=eager.REAL), True)
        states = {r: [done[c, u].state for c, u, _, _ in of] for r, of in children.items()}
        return eager.Vertex(pulls, edges, states)

    def push(self, name: str) -> Array:
        """Return a push of all vertices, zeros where none is pushed."""
        shape = self._shape(name)
        zero = np.zeros(shape)
        rows = [
            v.pushed[name].detach().numpy() if name in v.pushed else zero
            for _, _, _, v in self.vertices
        ]
        return np.stack(rows)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name == "loss":
            return ()
        digits = "".join(c for c in name if c.isdigit())
        return (int(digits),) if digits else self.spec.reals[name]

    def scale(self) -> float:
        """Return the factor of the sum of the losses."""
        if self.spec.reduction == "mean_graphs":
            return 1.0 / len(self.batch)
        if self.spec.reduction == "sum":
            return 1.0
        counted = sum(
            bool(kind.losses)
            and self.spec.counts(kind, {n: x[v] for n, x in self.batch[g].ints[kind.name].items()})
            for g, kind, v, _ in self.vertices
        )
        return 1.0 / max(1, counted)

    def gradients(self, d_pushes: Mapping[str, Array]) -> Gradients:
        """Go back from gradients of pushes, [V, *shape]."""
        total = torch.zeros((), dtype=eager.REAL)
        for name, d in d_pushes.items():
            for row, (_, _, _, vertex) in zip(d, self.vertices, strict=True):
                if name in vertex.pushed:
                    total = total + (vertex.pushed[name] * torch.tensor(row)).sum()
        trained = {p: x for p, x in self.leaves.items() if x.requires_grad}
        wanted = [*trained.values(), *self.pulled.values()]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if total.requires_grad and wanted:
            found = torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=True)
        arrays = [
            np.zeros(tuple(x.shape)) if d is None else d.numpy()
            for x, d in zip(wanted, found, strict=True)
        ]
        pulled = dict(zip(self.pulled, arrays[len(trained) :], strict=True))
        return Gradients(dict(zip(trained, arrays, strict=False)), self._by_vertex(pulled))

    def _by_vertex(self, pulled: Mapping[tuple[int, str, str], Array]) -> dict[str, Array]:
        return {
            name: np.stack(
                [
                    pulled[g, kind.name, name][v]
                    if (g, kind.name, name) in pulled
                    else np.zeros(shape)
                    for g, kind, v, _ in self.vertices
                ]
            )
            for name, shape in self.spec.reals.items()
        }

    def looked_up(self, roots: set[str], pushes: set[str]) -> dict[str, list[int]]:
        """Return which rows of each table are looked up where a gradient comes.

        Args:
            roots: types whose loss or state is; pushes: names.
        """
        reached = self.spec.reached(roots)
        found: dict[str, set[int]] = {p: set() for p in self.spec.tables()}
        for kind, table, pull, relation, side in self.spec.lookups():
            width = self.spec.parameters[table][0][1]
            wanted = f"side{width}" in pushes if side else kind.name in reached
            if table not in found or not wanted:
                continue
            for graph in self.batch:
                if relation:
                    for key, numbers in graph.kinds.items():
                        if key[1:] == (relation, kind.name):
                            found[table].update(numbers)
                else:
                    found[table].update(graph.ints[kind.name][pull])
        return {p: sorted(rows - {-1}) for p, rows in found.items()}


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of parameters by name, and of real pulls by name, a row for each vertex."""

    parameters: dict[str, Array]
    pulled: dict[str, Array]


def _children(
    graph: TypedGraph, kind: TypeSpec, v: int
) -> dict[str, list[tuple[str, int, Key, int]]]:
    """Return the children of a vertex by relation: type, vertex, and which edge it is."""
    found: dict[str, list[tuple[str, int, Key, int]]] = {r: [] for r in kind.relations}
    for key, pairs in graph.edges.items():
        if key[2] == kind.name:
            for e, (u, parent) in enumerate(pairs):
                if parent == v:
                    found[key[1]].append((key[0], u, key, e))
    return found


# Smaller.


def smaller_batches(batch: TypedBatch) -> Iterator[TypedBatch]:
    """Yield batches with fewer graphs, vertices or edges."""
    for g, graph in enumerate(batch):
        if len(batch) > 1:
            yield (*batch[:g], *batch[g + 1 :])
        for less in _smaller_graphs(graph):
            yield (*batch[:g], less, *batch[g + 1 :])


def _smaller_graphs(graph: TypedGraph) -> Iterator[TypedGraph]:
    for name, size in graph.sizes.items():
        if size and sum(graph.sizes.values()) > 1:
            yield _without_last(graph, name)
    for key, pairs in graph.edges.items():
        if pairs:
            kinds = {k: x[:-1] if k == key else x for k, x in graph.kinds.items()}
            yield replace(graph, edges={**graph.edges, key: pairs[:-1]}, kinds=kinds)


def _without_last(graph: TypedGraph, name: str) -> TypedGraph:
    """Leave out the last vertex of a type, and its edges."""
    last = graph.sizes[name] - 1
    edges, kinds = {}, {}
    for key, pairs in graph.edges.items():
        kept = [
            e
            for e, (u, v) in enumerate(pairs)
            if (key[0], u) != (name, last) and (key[2], v) != (name, last)
        ]
        edges[key] = tuple(pairs[e] for e in kept)
        if key in graph.kinds:
            kinds[key] = tuple(graph.kinds[key][e] for e in kept)
    ints = {
        kind: {n: x[:-1] if kind == name else x for n, x in given.items()}
        for kind, given in graph.ints.items()
    }
    return TypedGraph({**graph.sizes, name: last}, edges, ints, kinds, graph.seed)


def fitted(batch: TypedBatch, spec: NetSpec) -> TypedBatch:
    """Leave out what a network does not have."""
    return tuple(
        _fitted(graph, spec) for graph in batch if any(graph.sizes.get(k.name) for k in spec.types)
    )


def _fitted(graph: TypedGraph, spec: NetSpec) -> TypedGraph:
    keys = [
        (child, relation, kind.name)
        for kind in spec.types
        for relation, of in kind.relations.items()
        for child in of
    ]
    return replace(
        graph,
        sizes={kind.name: graph.sizes[kind.name] for kind in spec.types},
        edges={key: graph.edges[key] for key in keys},
        ints={k.name: {n: graph.ints[k.name][n] for n in spec.ints(k)} for k in spec.types},
        kinds={
            key: graph.kinds[key]
            for key in keys
            if "kind" in spec.edges_of(spec.of(key[2]), key[1])
        },
    )
