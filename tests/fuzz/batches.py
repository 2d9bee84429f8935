"""Draw batches for a function: graphs of every form, and pulled values, some of them absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import vertexrt as vrt
from tests.fuzz.bounded import Array
from tests.fuzz.evaluate import PulledRows
from tests.fuzz.function import FunctionSpec, PullForm, Shape, relation_name
from tests.fuzz.sketch import MATRIX, MOST_CHILDREN

ChildLists = tuple[tuple[int, ...], ...]
FORMS = ("chain", "tree", "dag", "dag", "forest", "fan", "isolated")
GRAIN = 256  # reals are whole numbers over this: short to print, and exact in float32


@dataclass(frozen=True, slots=True)
class PullSpec:
    """What the vertices of a batch pull under a name.

    Attributes:
        form: reals of a shape, or an integer below a bound.
        shared: rows of a table, or integers of one, through an index map.
        index: of each vertex (or edge), a row, or the integer; -1 where it has none.
    """

    form: PullForm
    shared: bool
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A batch as plain data.

    Attributes:
        graphs: child lists of each.
        pulls: by name, over the vertices of all graphs.
        seed: of real values.
        apart: built from one `InputGraph` a graph, else from arrays.
        relations: of `FunctionSpec`; where there are some, vertices have the type `f`, the first
            `slots` children of each are in the relations 0, 1, ..., and the others in those of
            which all children are read.
    """

    graphs: tuple[ChildLists, ...]
    pulls: Mapping[str, PullSpec]
    seed: int
    apart: bool = False
    relations: int = 0
    slots: int = 0

    @property
    def children(self) -> list[list[int]]:
        """Child lists over the whole batch."""
        found: list[list[int]] = []
        for graph in self.graphs:
            first = len(found)
            found += [[c + first if c >= 0 else -1 for c in slots] for slots in graph]
        return found


def relations_of(batch: BatchSpec, children: Sequence[Sequence[int]]) -> list[list[str]] | None:
    """Name the relation of each slot of each vertex; None where a batch has no types."""
    if not batch.relations:
        return None

    def name(v: int, k: int, child: int) -> str:
        below = len(children[child]) if child >= 0 else 0
        whole = relation_name((k + below) % batch.relations)  # a rule that numbers do not move
        return str(k) if k < batch.slots else whole

    return [[name(v, k, c) for k, c in enumerate(slots)] for v, slots in enumerate(children)]


# Graphs.


def draw_graph(rng: np.random.Generator, arity: int | None, most: int) -> ChildLists:
    """Draw child lists of at most so many vertices; some slots are empty, in any order."""
    size = int(rng.integers(1, most + 1))
    slots = arity or 5
    form = str(rng.choice(FORMS))
    if form == "fan" and arity is None and rng.random() < 0.3:
        fewest, slots = min(most, MOST_CHILDREN), MOST_CHILDREN
        size = int(rng.integers(fewest, MOST_CHILDREN + 1))
    lists = [list(c) for c in _shape(rng, form, size, slots)]
    for children in lists:
        if len(children) < slots and rng.random() < 0.2:
            children.insert(int(rng.integers(0, len(children) + 1)), -1)
    order = rng.permutation(size) if rng.random() < 0.5 else np.arange(size)
    moved: list[tuple[int, ...]] = [()] * size
    for v, children in enumerate(lists):
        moved[order[v]] = tuple(int(order[c]) if c >= 0 else -1 for c in children)
    return tuple(moved)


def _shape(rng: np.random.Generator, form: str, size: int, slots: int) -> Iterator[Sequence[int]]:
    """Yield the children of vertex after vertex; children come first."""
    if form in ("tree", "forest"):
        yield from _forest(rng, size, slots, 0.3 if form == "forest" else 0.0)
        return
    for v in range(size):
        if form == "isolated" or v == 0:
            yield ()
        elif form == "chain":
            yield (v - 1,)
        elif form == "fan":
            yield range(min(v, slots)) if v == size - 1 else ()
        else:
            count = int(rng.integers(0, slots + 1)) if rng.random() < 0.75 else 0
            yield rng.integers(0, v, count).tolist()


def _forest(rng: np.random.Generator, size: int, slots: int, roots: float) -> list[list[int]]:
    lists: list[list[int]] = [[] for _ in range(size)]
    for v in range(size - 1):
        room = [p for p in range(v + 1, size) if len(lists[p]) < slots]
        if room and rng.random() >= roots:
            lists[int(rng.choice(room))].append(v)
    return lists


# Batches.


def draw_batch(rng: np.random.Generator, spec: FunctionSpec, most: int) -> BatchSpec:
    """Draw one to four graphs with what a function pulls.

    Args:
        most: vertices of a graph.
    """
    arity = None if spec.relations else spec.arity
    graphs = [draw_graph(rng, arity, most) for _ in range(int(rng.choice([1, 1, 2, 3])))]
    twice = bool(rng.random() < 0.3)  # the first graph again, with or without its pulls
    if twice:
        graphs.append(graphs[0])
    same = twice and bool(rng.random() < 0.5)
    total, first = sum(map(len, graphs)), len(graphs[0])
    slots, first_slots = (
        sum(map(len, each)) for each in ([c for g in graphs for c in g], graphs[0])
    )
    leaves = [not any(c >= 0 for c in slots) for graph in graphs for slots in graph]
    only_leaves = rng.random() < 0.25
    pulls = {}
    for name, form in spec.pulls.items():
        count, begin = (slots, first_slots) if form.edges else (total, first)
        has = rng.random(count) < rng.choice([0.5, 0.8, 1.0])
        if only_leaves and not form.edges:
            has = np.array(leaves)
        few = rng.random() < 0.3  # vertices that pull the same, and may be merged
        bound = form.bound or (2 if few else max(count, 1))
        index = np.where(has, rng.integers(0, bound, count), -1)
        if same and begin:
            index[-begin:] = index[:begin]
        shared = bool(rng.random() < (0.25 if form.bound else 0.5))
        if not form.bound and not shared:
            index = np.maximum(index, 0)  # an array of a row for each vertex has none absent
        pulls[name] = PullSpec(form, shared, tuple(index.tolist()))
    apart = bool(rng.random() < 0.3)
    seed, slots = int(rng.integers(1 << 30)), (spec.arity or 0) if spec.relations else 0
    return BatchSpec(tuple(graphs), pulls, seed, apart, spec.relations, slots)


def reals(seed: int, name: str, rows: int, shape: Shape) -> Array:
    """Return rows of pulled reals; the first ones are the same for any number of rows."""
    rng = np.random.default_rng([seed, *name.encode()])
    drawn = np.clip(rng.normal(size=(rows, *shape)), -2.0, 2.0)
    return np.asarray(np.round(drawn * GRAIN) / GRAIN)


def parameters(shapes: Mapping[str, Shape], seed: int) -> dict[str, Array]:
    """Draw the parameters of a function, exact in float32."""
    found = {}
    for name, shape in shapes.items():
        scale = MATRIX / np.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        drawn = np.random.default_rng([seed, *name.encode()]).uniform(-1.0, 1.0, shape) * scale
        found[name] = np.asarray(np.round(drawn * 4096) / 4096)
    return found


def pulled_rows(batch: BatchSpec) -> dict[str, PulledRows]:
    """Return the pulls of a batch as the oracle reads them."""
    found = {}
    for name, pull in batch.pulls.items():
        index = np.array(pull.index, np.int32)
        if pull.form.bound:
            found[name] = PulledRows(None, index)
            continue
        rows = max(int(np.max(index, initial=0)) + 1, 1)
        table = reals(batch.seed, name, rows, pull.form.shape)
        if not pull.shared:
            table, index = table[index], np.arange(len(index), dtype=np.int32)
        found[name] = PulledRows(table, index)
    return found


def graph_batch(batch: BatchSpec, backwards: bool = False) -> vrt.GraphBatch:
    """Build the batch for vertexrt; its relations may be given backwards."""
    if batch.relations:
        return _typed_batch(batch, backwards)
    rows = pulled_rows(batch)
    of_edges, pulls = (
        {n: _pull(pull, rows[n]) for n, pull in batch.pulls.items() if pull.form.edges == edges}
        for edges in (True, False)
    )
    ends = np.cumsum([len(graph) for graph in batch.graphs])
    if not batch.apart:
        lists = batch.children
        ptr = np.cumsum([0, *map(len, lists)])
        flat = np.array([c for slots in lists for c in slots], np.int32)
        ends = np.array([0, *ends])
        return vrt.GraphBatch.from_arrays(ends, ptr, flat, pulls, edge_pulls=of_edges)
    slots = np.cumsum([sum(map(len, graph)) for graph in batch.graphs])
    graphs = [
        vrt.InputGraph.from_children(
            graph,
            {n: _of_graph(p, end - len(graph), end) for n, p in pulls.items()},
            {n: _of_graph(p, last - sum(map(len, graph)), last) for n, p in of_edges.items()},
        )
        for graph, end, last in zip(batch.graphs, ends.tolist(), slots.tolist(), strict=True)
    ]
    return vrt.GraphBatch.from_graphs(graphs)


def _typed_batch(batch: BatchSpec, backwards: bool) -> vrt.GraphBatch:
    """Build a batch of vertices of one type, whose edges have relations."""
    names = [*map(str, range(batch.slots)), *map(relation_name, range(batch.relations))]
    names = names[::-1] if backwards else names
    graphs, slot = [], 0
    for lists in batch.graphs:
        edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {
            ("f", n, "f"): [] for n in names
        }
        at: dict[tuple[str, str, str], list[int]] = {key: [] for key in edges}
        of = relations_of(batch, lists)
        assert of is not None
        for v, (children, relations) in enumerate(zip(lists, of, strict=True)):
            for child, name in zip(children, relations, strict=True):
                if child >= 0:
                    edges["f", name, "f"].append((child, v))
                    at["f", name, "f"].append(slot)
                slot += 1
        numbers = {key: {"at": np.array(slots, np.int32)} for key, slots in at.items()}
        graphs.append(vrt.InputGraph.from_types({"f": len(lists)}, edges, None, numbers))
    found, rows = vrt.GraphBatch.from_graphs(graphs), pulled_rows(batch)
    some = any(c >= 0 for slots in batch.children for c in slots)
    order = np.asarray(found.edge_pulls["at"] if some else [], np.int64)
    pulls, of_edges = {}, {}
    for name, pull in batch.pulls.items():
        if pull.form.edges:
            index, table = rows[name].index[order], rows[name].table
            of_edges[name] = index if table is None else vrt.Rows(table, index)
        else:
            pulls[name] = _pull(pull, rows[name])
    return replace(found, pulls=pulls, edge_pulls=of_edges)


def _pull(pull: PullSpec, rows: PulledRows) -> Array | vrt.Rows:
    if rows.table is not None:
        return vrt.Rows(rows.table, rows.index) if pull.shared else rows.table
    if not pull.shared:
        return rows.index  # type: ignore[return-value]
    last = pull.form.bound - 1
    table = np.arange(last, -1, -1, dtype=np.int32)
    return vrt.Rows(table, np.where(rows.index >= 0, last - rows.index, -1).astype(np.int32))


def _of_graph(pull: Array | vrt.Rows, start: int, end: int) -> Array | vrt.Rows:
    """Return the pull of one graph; a table is shared by all."""
    if not isinstance(pull, vrt.Rows):
        return pull[start:end]
    assert pull.index is not None
    return vrt.Rows(pull.table, pull.index[start:end])


def fit(batch: BatchSpec, spec: FunctionSpec) -> BatchSpec:
    """Leave out what a function does not pull."""
    return replace(batch, pulls={name: batch.pulls[name] for name in spec.pulls})
