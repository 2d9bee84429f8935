"""Draw batches for a network: graphs of every form, and pulled values, some of them absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz.bounded import Array
from tests.fuzz.evaluate import PulledRows
from tests.fuzz.function import CHILDREN, NetworkSpec, PullForm, Shape
from tests.fuzz.generate import CARRIED
from tests.fuzz.sketch import MATRIX, MOST_CHILDREN
from vertexrt.graph.types import VertexTypes

ChildLists = tuple[tuple[int, ...], ...]
Key = tuple[str, str, str]  # child's type, relation, parent's type
FORMS = ("chain", "tree", "dag", "dag", "forest", "fan", "isolated")
GRAIN = 256  # reals are whole numbers over this: short to print, and exact in float32
GRADIENT = "g"  # names of pulls that begin so are of any size
SIZES = (0.0, 1e-170, 1e-9, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e60)


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A graph.

    Attributes:
        children: of each vertex, -1 in an empty slot.
        pulls: by name, of each vertex (or of each slot, where edges pull it) a row, or the integer;
            -1 where it has none.
        kinds: the type of each vertex, those of one after another; none where a function is alone.
        relations: of each slot, in the order of their names and of the children's types.
    """

    children: ChildLists
    pulls: Mapping[str, tuple[int, ...]]
    kinds: tuple[str, ...] = ()
    relations: tuple[tuple[str, ...], ...] = ()

    def taken(
        self,
        order: Sequence[int],
        forms: Mapping[str, Pulled],
        without: tuple[int, int] = (-1, -1),
    ) -> GraphSpec:
        """Return a graph of some of the vertices, in another order, or without a slot of one."""
        new = {v: k for k, v in enumerate(order)}
        starts = np.cumsum([0, *map(len, self.children)]).tolist()
        kept = [
            [
                (starts[v] + k, c)
                for k, c in enumerate(self.children[v])
                if (c in new or not self.kinds) and (v, k) != without
            ]
            for v in order
        ]
        slots = [slot for each in kept for slot, _ in each]
        relations = [r for each in self.relations for r in each]
        return GraphSpec(
            tuple(tuple(new.get(c, -1) for _, c in each) for each in kept),
            {
                name: tuple(x[k] for k in (slots if forms[name].form.edges else order))
                for name, x in self.pulls.items()
            },
            tuple(self.kinds[v] for v in order) if self.kinds else (),
            tuple(tuple(relations[s] for s, _ in each) for each in kept) if self.kinds else (),
        )


@dataclass(frozen=True, slots=True)
class Pulled:
    """How a batch pulls a name: its form, and whether through an index map."""

    form: PullForm
    shared: bool = False


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A batch as plain data.

    Attributes:
        forms: of what is pulled, by name.
        seed: of real values.
        types: of the network; edges: child's type, relation and parent's type of all that it reads.
        apart: built from one `InputGraph` a graph, else from arrays.
    """

    graphs: tuple[GraphSpec, ...]
    forms: Mapping[str, Pulled]
    seed: int
    types: tuple[str, ...] = ()
    edges: tuple[Key, ...] = ()
    apart: bool = False

    @property
    def children(self) -> list[list[int]]:
        """Child lists over the whole batch."""
        found: list[list[int]] = []
        for graph in self.graphs:
            first = len(found)
            found += [[c + first if c >= 0 else -1 for c in slots] for slots in graph.children]
        return found

    @property
    def kinds(self) -> list[str]:
        """The type of each vertex."""
        return [kind for g in self.graphs for kind in g.kinds or [""] * len(g.children)]

    @property
    def relations(self) -> list[tuple[str, ...]]:
        """The relation of each slot of each vertex."""
        return [
            each
            for g in self.graphs
            for each in g.relations or [(CHILDREN,) * len(slots) for slots in g.children]
        ]

    def index(self, name: str) -> Any:
        """Return what the vertices (or slots) of all graphs pull, int32."""
        return np.array([k for graph in self.graphs for k in graph.pulls[name]], np.int32)

    def rows(self, name: str) -> PulledRows:
        """Return a pull as the oracle reads it."""
        form, index = self.forms[name].form, self.index(name)
        if form.bound:
            return PulledRows(None, index)
        table = reals(self.seed, name, max(int(np.max(index, initial=0)) + 1, 1), form.shape)
        if not self.forms[name].shared:
            table, index = table[index], np.arange(len(index), dtype=np.int32)
        return PulledRows(table, index)

    def given(self, name: str) -> Any:
        """Return a pull as vertexrt takes it."""
        rows, pulled = self.rows(name), self.forms[name]
        if rows.table is not None:
            return vrt.Rows(rows.table, rows.index) if pulled.shared else rows.table
        if not pulled.shared:
            return rows.index
        last = pulled.form.bound - 1
        table = np.arange(last, -1, -1, dtype=np.int32)
        return vrt.Rows(table, np.where(rows.index >= 0, last - rows.index, -1).astype(np.int32))

    def fit(self, network: NetworkSpec) -> BatchSpec:
        """Leave out what a network does not have; some graphs may have nothing left."""
        used = {name for function in network.types.values() for name in function.pulls}
        forms = {name: pulled for name, pulled in self.forms.items() if name in used}
        graphs = []
        for graph in self.graphs:
            graph = replace(graph, pulls={n: graph.pulls[n] for n in forms})
            gone = [v for v, kind in enumerate(graph.kinds) if kind not in network.types]
            if gone:
                graph = graph.taken([v for v in range(len(graph.kinds)) if v not in gone], forms)
            if graph.children:
                graphs.append(graph)
        types = () if network.alone else tuple(network.types)
        return replace(self, graphs=tuple(graphs), forms=forms, types=types, edges=keys_of(network))


# Graphs.


def draw_lists(
    rng: np.random.Generator, arity: int | None, most: int, fan: int = MOST_CHILDREN
) -> ChildLists:
    """Draw child lists of at most so many vertices, or of a vertex with so many children.

    Some slots are empty, in any order.
    """
    size = int(rng.integers(1, most + 1))
    slots = arity or 5
    form = str(rng.choice(FORMS))
    if form == "fan" and arity is None and rng.random() < 0.3:
        fewest, slots = min(most, fan), fan
        size = int(rng.integers(fewest, fan + 1)) if fan == MOST_CHILDREN else fan + 1
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
        lists: list[list[int]] = [[] for _ in range(size)]
        for v in range(size - 1):
            room = [p for p in range(v + 1, size) if len(lists[p]) < slots]
            if room and (form == "tree" or rng.random() >= 0.3):
                lists[int(rng.choice(room))].append(v)
        yield from lists
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


def keys_of(network: NetworkSpec) -> tuple[Key, ...]:
    """Return child's type, relation and parent's type of all edges that may be."""
    return tuple(
        sorted(
            (child, relation, kind)
            for kind, function in network.types.items()
            for relation, of in (
                *((str(k), (kind,)) for k in range(function.arity or 0)),
                *function.inputs.items(),
            )
            for child in (of if kind else ())
        )
    )


def _typed(rng: np.random.Generator, network: NetworkSpec, lists: ChildLists) -> GraphSpec:
    """Give the vertices of a graph types, and its edges relations; those that have none go."""
    names, keys = list(network.types), keys_of(network)
    kinds = [str(rng.choice(names)) for _ in lists]
    chosen: list[dict[int, str]] = []
    for v, children in enumerate(lists):
        best: dict[int, str] = {}
        for kind in rng.permutation(names)[: int(rng.integers(1, 4))].tolist():
            found: dict[int, str] = {}
            for k in rng.permutation(len(children)).tolist():
                every = network.types[kind].every
                free = [
                    name
                    for child, name, parent in keys
                    if children[k] >= 0 and kinds[children[k]] == child and parent == kind
                    if name in every or name not in found.values()
                ]
                if free:
                    found[k] = str(rng.choice(free))
            if not best or len(found) > len(best):
                kinds[v], best = kind, found
        chosen.append(best)
    for v, children in enumerate(lists):  # the type of a child may have been drawn after it
        found = chosen[v].items()
        chosen[v] = {k: name for k, name in found if (kinds[children[k]], name, kinds[v]) in keys}
    order = sorted(range(len(lists)), key=lambda v: names.index(kinds[v]))
    new = {v: k for k, v in enumerate(order)}
    slots = [
        sorted(
            (
                (name, names.index(kinds[lists[v][k]]), new[lists[v][k]])
                for k, name in chosen[v].items()
            ),
            key=lambda edge: edge[:2],
        )
        for v in order
    ]
    return GraphSpec(
        tuple(tuple(child for _, _, child in each) for each in slots),
        {},
        tuple(kinds[v] for v in order),
        tuple(tuple(name for name, _, _ in each) for each in slots),
    )


# Batches.


def draw_batch(
    rng: np.random.Generator, network: NetworkSpec, most: int, fan: int = MOST_CHILDREN
) -> BatchSpec:
    """Draw one to four graphs with what a network pulls.

    Args:
        most: vertices of a graph; fan: children of a vertex.
    """

    def graph() -> GraphSpec:
        if network.alone:
            return GraphSpec(draw_lists(rng, network.types[""].arity, most, fan), {})
        return _typed(rng, network, draw_lists(rng, None, most))

    graphs = [graph() for _ in range(int(rng.choice([1, 1, 2, 3])))]
    twice = bool(rng.random() < 0.3)  # the first graph again, with or without its pulls
    same = twice and bool(rng.random() < 0.5)
    forms: dict[str, Pulled] = {}
    for function in network.types.values():
        for name, form in function.pulls.items():
            shared = bool(rng.random() < (0.25 if form.bound else 0.5)) and name != CARRIED
            known = forms.setdefault(name, Pulled(form, shared))
            if form.bound > known.form.bound:
                forms[name] = replace(known, form=form)
    few = {name: rng.random() < 0.3 for name in forms}  # vertices pull the same: may be merged
    share = {name: float(rng.choice([0.5, 0.8, 1.0])) for name in forms}
    only_leaves = rng.random() < 0.25
    if twice:
        graphs.append(graphs[0])
    for g, each in enumerate(graphs):
        pulls = {
            name: draw_numbers(
                rng, network, each, name, pulled, few[name], share[name], only_leaves
            )
            for name, pulled in forms.items()
        }
        graphs[g] = replace(each, pulls=pulls)
    if same:
        graphs[-1] = graphs[0]
    batch = BatchSpec(tuple(graphs), forms, int(rng.integers(1 << 30)))
    return replace(batch.fit(network), apart=bool(rng.random() < (0.3 if network.alone else 0.7)))


def draw_numbers(
    rng: np.random.Generator,
    network: NetworkSpec,
    graph: GraphSpec,
    name: str,
    pulled: Pulled,
    few: bool,
    share: float,
    only_leaves: bool,
) -> tuple[int, ...]:
    """Draw what the vertices or slots of a graph pull under a name."""
    kinds, found = graph.kinds or ("",) * len(graph.children), []
    for kind, slots in zip(kinds, graph.children, strict=True):
        form = network.types[kind].pulls.get(name)
        leaf = not any(c >= 0 for c in slots)
        for _ in slots if pulled.form.edges else (0,):
            has = rng.random() < share if pulled.form.edges or not only_leaves else leaf
            bound = 0 if form is None else form.bound or (2 if few else 12)
            number = int(rng.integers(0, bound)) if has and bound else -1
            found.append(number if pulled.form.bound or pulled.shared else max(number, 0))
    return tuple(found)  # an array of a row for each vertex has none absent


def reals(seed: int, name: str, rows: int, shape: Shape) -> Array:
    """Return rows of pulled reals; the first ones are the same for any number of rows."""
    if name == CARRIED:
        return np.zeros((rows, *shape))
    rng = np.random.default_rng([seed, *name.encode()])
    drawn = np.clip(rng.normal(size=(rows, *shape)), -2.0, 2.0)
    drawn = np.round(drawn * GRAIN) / GRAIN
    return np.asarray(drawn * rng.choice(SIZES, drawn.shape) if name[0] == GRADIENT else drawn)


def parameters(shapes: Mapping[str, Shape], seed: int) -> dict[str, Array]:
    """Draw parameters, exact in float32."""
    found = {}
    for name, shape in shapes.items():
        scale = MATRIX / np.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        drawn = np.random.default_rng([seed, *name.encode()]).uniform(-1.0, 1.0, shape) * scale
        found[name] = np.asarray(np.round(drawn * 4096) / 4096)
    return found


# As vertexrt takes them.


def graph_batch(batch: BatchSpec) -> vrt.GraphBatch:
    """Build the batch for vertexrt; names of types and relations come in either order."""
    backwards = batch.seed % 2 == 1
    lists, kinds = batch.children, batch.kinds
    pulls, of_edges = (
        {n: batch.given(n) for n, pulled in batch.forms.items() if pulled.form.edges == edges}
        for edges in (False, True)
    )
    ends = np.cumsum([0, *(len(graph.children) for graph in batch.graphs)])
    starts = np.cumsum([0, *map(len, lists)])
    if batch.apart:
        return vrt.GraphBatch.from_graphs(
            [
                _graph(
                    batch,
                    graph,
                    {n: _cut(x, a, b) for n, x in pulls.items()},
                    {n: _cut(x, starts[a], starts[b]) for n, x in of_edges.items()},
                )
                for graph, a, b in zip(batch.graphs, ends[:-1], ends[1:], strict=True)
            ]
        )
    types = None
    if batch.types:
        relations = [name for each in batch.relations for name in each]
        named = sorted({name for _, name, _ in batch.edges}, reverse=backwards)
        every = sorted(batch.types, reverse=backwards)
        of_vertex = np.array([every.index(kind) for kind in kinds], np.int32)
        of_edge = np.array([named.index(name) for name in relations], np.int32)
        types = VertexTypes(tuple(every), tuple(named), of_vertex, of_edge)
    flat = np.array([c for slots in lists for c in slots], np.int32)
    return vrt.GraphBatch.from_arrays(ends, starts, flat, pulls, types, of_edges)


def _graph(
    batch: BatchSpec, graph: GraphSpec, pulls: Mapping[str, Any], of_edges: Mapping[str, Any]
) -> vrt.InputGraph:
    if not batch.types:
        return vrt.InputGraph.from_children(graph.children, pulls, of_edges)
    sizes = {kind: graph.kinds.count(kind) for kind in batch.types}
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    keys = sorted(batch.edges, key=lambda key: (key[1], batch.types.index(key[0])))
    edges: dict[Key, list[tuple[int, int]]] = {key: [] for key in keys}
    at: dict[Key, list[int]] = {key: [] for key in keys}
    slot = 0
    for v, (slots, relations) in enumerate(zip(graph.children, graph.relations, strict=True)):
        for child, name in zip(slots, relations, strict=True):
            key = graph.kinds[child], name, graph.kinds[v]
            edges[key].append((child - first[key[0]], v - first[key[2]]))
            at[key].append(slot)
            slot += 1
    return vrt.InputGraph.from_types(
        sizes,
        edges,
        {k: {n: _cut(x, f, f + sizes[k]) for n, x in pulls.items()} for k, f in first.items()},
        {key: {n: _chosen(x, at[key]) for n, x in of_edges.items()} for key in keys},
    )


def gradient_rows(batch: BatchSpec, built: vrt.GraphBatch, name: str, d: Any) -> Any:
    """Return the gradient of a pull in the order of slots: a graph of types has its own."""
    pull = {**built.pulls, **built.edge_pulls}[name]
    if batch.forms[name].shared and not len(pull.table):  # `from_types` leaves out what none reads
        return np.zeros_like(batch.rows(name).table)
    if batch.forms[name].shared or not isinstance(pull, vrt.Rows):
        return d
    return d[pull.index] if len(pull.index) else np.zeros((0, *batch.forms[name].form.shape))


def _cut(pull: Any, start: int, end: int) -> Any:
    """Return the pull of some vertices; a table is shared by all."""
    return _chosen(pull, slice(start, end))


def _chosen(pull: Any, at: Any) -> Any:
    return vrt.Rows(pull.table, pull.index[at]) if isinstance(pull, vrt.Rows) else pull[at]


# Smaller.


def smaller_batches(batch: BatchSpec) -> Iterator[BatchSpec]:
    """Yield batches of fewer graphs, vertices or slots, and of simpler pulls."""
    for g, graph in enumerate(batch.graphs):
        before, after = batch.graphs[:g], batch.graphs[g + 1 :]
        if len(batch.graphs) > 1:
            yield replace(batch, graphs=(*before, *after))
        size = range(len(graph.children))
        for v in size if len(size) > 1 else ():
            less = graph.taken([u for u in size if u != v], batch.forms)
            yield replace(batch, graphs=(*before, less, *after))
        for v, slots in enumerate(graph.children):
            for k in range(len(slots)):
                less = graph.taken(size, batch.forms, (v, k))
                yield replace(batch, graphs=(*before, less, *after))
    if batch.apart:
        yield replace(batch, apart=False)
    for name, pulled in batch.forms.items():
        if pulled.shared and (pulled.form.bound or min(batch.index(name), default=0) >= 0):
            plain = replace(pulled, shared=False)
            yield replace(batch, forms={**batch.forms, name: plain})
