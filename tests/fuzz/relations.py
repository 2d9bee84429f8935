"""What a change of the input, or of what a network did before, may not change in its results.

A relation needs no oracle: it compares two runs. Those in `EXACT` want the same bits, the others
equal numbers but for rounding, of which the oracle gives the bound where the network is drawn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz.batches import BatchSpec, ChildLists, PullSpec, draw_batch, graph_batch
from tests.fuzz.bounded import Array, Bounded
from tests.fuzz.campaign import Finding, Settings, Tally, drawn
from tests.fuzz.compare import (
    DROPPED,
    GRADIENTS,
    Expected,
    difference,
    error_outcome,
    network_of,
)
from tests.fuzz.function import FunctionSpec, PullForm, builder, prune, source
from tests.fuzz.labelled import draw_labelled
from tests.fuzz.ways import NamedWay
from tests.planned import tables_of
from tests.runs import ALL, DRAWS, Capture, cotangents
from vertexrt.errors import NoKernelError
from vertexrt.models import ChildSumTreeLSTM, NaryTreeLSTM, RvNN, TreeFC, TreeLSTM

Arrays = dict[str, Array]
Texts = Iterator[str]  # what differs; "" for what does not
WORDS, CLASSES = 7, 3
MODELS: dict[str, Callable[[], vrt.VertexFunction]] = {
    "TreeLSTM": lambda: TreeLSTM(WORDS, 3, 5, CLASSES),
    "NaryTreeLSTM": lambda: NaryTreeLSTM(WORDS, 5, 4, CLASSES),
    "ChildSumTreeLSTM": lambda: ChildSumTreeLSTM(WORDS, 3, 8, CLASSES),
    "RvNN": lambda: RvNN(WORDS, 6, CLASSES),
    "TreeFC": lambda: TreeFC(WORDS, 5),
}
PULLS = {
    "word": PullForm(bound=WORDS),
    "label": PullForm(bound=CLASSES),
    "target": PullForm(shape=(1,)),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A network and batches for it.

    Attributes:
        make: builds the function, or a model of it.
        batch: what is looked at; others: what the network may meet besides.
        parameters: by name; None for those that a seed gives.
        want: what the oracle says of the batch, if it can.
        label: the pull without which a vertex has no loss, if there is one.
    """

    make: Callable[[], Any]
    batch: BatchSpec
    others: tuple[BatchSpec, ...]
    parameters: Arrays | None
    want: Expected | None
    label: str = ""


def draw_case(seed: int, settings: Settings) -> Case:
    """Draw a function, a small one whose loss is of labels, or take a model."""
    rng = np.random.default_rng([seed, 52])
    kind = rng.random()
    if kind < 0.15:
        return _of_model(rng, settings.most)
    if kind < 0.35:
        spec, build = draw_labelled(rng)
    else:
        spec, _ = drawn(seed, settings.most, settings.nodes)
        spec = prune(replace(spec, nodes=undropped(spec)))
        build = builder(source(spec))
    batch, *others = (draw_batch(rng, spec, settings.most) for _ in range(3))
    want = Expected(build, batch)
    label = "y" if 0.15 <= kind < 0.35 else ""
    return Case(
        lambda: network_of(build, want.batch), batch, tuple(others), want.parameters, want, label
    )


def _of_model(rng: np.random.Generator, most: int) -> Case:
    make = MODELS[str(rng.choice(list(MODELS)))]
    function = make()
    declared = {n: PULLS[n] for n in ("word", "target" if type(function) is TreeFC else "label")}
    spec = FunctionSpec(function.arity, {}, {}, {}, declared, (), {}, {})
    batch, *others = (draw_batch(rng, spec, most) for _ in range(3))
    return Case(make, batch, tuple(others), None, None, "label" if "label" in declared else "")


def undropped(spec: FunctionSpec) -> tuple[Any, ...]:
    """Return the nodes without random draws: these count by vertices and graphs of the batch."""
    return tuple(
        replace(node, extra=(0.0, *node.extra[1:])) if node.op == "dropout" else node
        for node in spec.nodes
    )


# Runs.


@dataclass(slots=True)
class Bench:
    """A case in one way: its networks, what the first of them gave, and what rounding may move."""

    case: Case
    way: NamedWay
    rng: np.random.Generator
    shuffle: int
    first: vrt.Network = field(init=False)
    batch: vrt.GraphBatch = field(init=False)
    d_pushes: Arrays = field(init=False)
    base: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.batch = self.network(), graph_batch(self.case.batch)
        if self.case.want is not None:
            self.d_pushes = self.case.want.d_pushes
        else:
            shapes = {n: v.shape for n, v in self.first(self.batch).items()}
            self.d_pushes = cotangents(shapes)
        self.base = run(self.first, self.batch, self.d_pushes)

    def network(self, reduction: str = "mean_graphs") -> vrt.Network:
        """Compile the function once more, with the same parameters."""
        return self.way.compile(
            self.case.make(), self.case.parameters, self.shuffle, reduction=reduction
        )

    def other(self) -> vrt.GraphBatch:
        """Return a batch that is not looked at."""
        return graph_batch(self.case.others[int(self.rng.integers(len(self.case.others)))])

    def same(self, got: Mapping[str, Any], want: Mapping[str, Any] | None = None) -> Texts:
        """Compare bits, with those of the first network if no others are given."""
        for name, value in (self.base if want is None else want).items():
            if name in got and not np.array_equal(got[name], value, equal_nan=True):
                off = np.abs(np.asarray(got[name]) - value).max() if np.size(value) else "shape"
                yield f"{name}: other bits, off by {off}"

    def near(self, got: Mapping[str, Any], want: Mapping[str, Any]) -> Texts:
        """Compare within twice what rounding may have moved each."""
        for name, value in want.items():
            error = self._bound(name, np.asarray(value))
            yield difference(
                got[name], Bounded(np.asarray(value), 2 * error), self.way.way.dtype, name
            )

    def _bound(self, name: str, value: Array) -> Array:
        """Return what rounding may move a result by; `name` begins with what it is."""
        loosely = np.full(value.shape, DROPPED * max(1.0, float(np.abs(value).max(initial=0.0))))
        what, _, which = name.partition(" ")
        if (want := self.case.want) is None or what == "parameter":
            return loosely
        known: dict[str, Mapping[str, Bounded]] = {
            "push": want.pushes,
            "gradient": want.back.parameters,
            "pulled": want.back.pulled,
            "updated": want.step,
            "loss": {"": want.loss},
        }
        found = known[what][which]
        return found.error if found.shape == value.shape else loosely


def run(
    net: vrt.Network,
    batch: vrt.GraphBatch,
    d_pushes: Arrays,
    between: Callable[[], object] = lambda: None,
) -> Arrays:
    """Go forward and back, then take a step that changes nothing; name what each gave."""
    net.load_state({"random": DRAWS})
    made = net.record(batch)
    between()
    gradients = made.backward(d_pushes)
    found = {f"push {name}": np.array(value) for name, value in made.outputs.items()}
    found |= {f"gradient {name}": value for name, value in gradients.parameters.items()}
    found |= {f"pulled {name}": value for name, value in gradients.pulled.items()}
    return found | stepped(net, batch, net.pushes)


def stepped(net: vrt.Network, batch: vrt.GraphBatch, outputs: Sequence[str] = ()) -> Arrays:
    """Take a step that changes nothing."""
    net.load_state({"random": DRAWS})
    capture = Capture()
    loss = net.step(batch, capture, outputs=outputs)  # type: ignore[arg-type]
    found = {"loss": np.float64(float(loss))}
    found |= {f"updated {name}": value for name, value in capture.gradients.items()}
    return found  # type: ignore[return-value]


def train(net: vrt.Network, batch: vrt.GraphBatch, optimizer: Any) -> Arrays:
    """Take a step and return what it left."""
    found = {"loss": np.float64(float(net.step(batch, optimizer)))}
    found |= {f"parameter {name}": value.copy() for name, value in net.parameters.items()}
    return found | {f"state {n}": v.copy() for n, v in optimizer.state().items()}  # type: ignore[return-value]


# Changes of a batch.


@dataclass(frozen=True, slots=True)
class Piece:
    """One graph, with what its vertices and slots pull, by name."""

    graph: ChildLists
    pulls: dict[str, tuple[int, ...]]


def pieces(batch: BatchSpec) -> list[Piece]:
    """Take a batch apart."""
    found, vertices, slots = [], 0, 0
    for graph in batch.graphs:
        count = sum(map(len, graph))
        ends = {False: (vertices, vertices + len(graph)), True: (slots, slots + count)}
        pulls = {n: p.index[slice(*ends[p.form.edges])] for n, p in batch.pulls.items()}
        found.append(Piece(graph, pulls))
        vertices, slots = ends[False][1], ends[True][1]
    return found


def joined(batch: BatchSpec, parts: Sequence[Piece]) -> BatchSpec:
    """Put graphs together in place of those of a batch."""
    pulls = {
        name: replace(pull, index=tuple(x for part in parts for x in part.pulls[name]))
        for name, pull in batch.pulls.items()
    }
    return replace(batch, graphs=tuple(part.graph for part in parts), pulls=pulls)


def renumbered(piece: Piece, order: Sequence[int], forms: Mapping[str, PullSpec]) -> Piece:
    """Give vertex v the number order[v]."""
    lists: list[tuple[int, ...]] = [()] * len(order)
    for v, children in enumerate(piece.graph):
        lists[order[v]] = tuple(order[c] if c >= 0 else -1 for c in children)
    starts = np.cumsum([0, *map(len, piece.graph)])
    back = np.argsort(order)
    slots = [s for v in back for s in range(starts[v], starts[v + 1])]
    pulls = {
        name: tuple(index[k] for k in (slots if forms[name].form.edges else back))
        for name, index in piece.pulls.items()
    }
    return Piece(tuple(lists), pulls)


def with_dead_vertex(piece: Piece, forms: Mapping[str, PullSpec]) -> Piece:
    """Add a vertex without children, readers or labels, as the last."""
    pulls = {}
    for name, index in piece.pulls.items():
        pull = forms[name]
        own = () if pull.form.edges else (-1 if pull.form.bound or pull.shared else 0,)
        pulls[name] = index + own
    return Piece((*piece.graph, ()), pulls)


@dataclass(frozen=True, slots=True)
class Moved:
    """A changed batch, and where the vertices and slots of the first one are in it."""

    batch: BatchSpec
    vertices: Array
    slots: Array

    def d_pushes(self, d_pushes: Arrays) -> Arrays:
        """Return the gradients of pushes; those of vertices that were added are zero."""
        count = sum(map(len, self.batch.graphs))
        found = {name: np.zeros((count, *d.shape[1:])) for name, d in d_pushes.items()}
        for name, d in d_pushes.items():
            found[name][self.vertices] = d
        return found

    def seen(self, got: Arrays, base: Arrays) -> Arrays:
        """Return results in the places in which the first batch has them."""
        found = {}
        for name, value in got.items():
            what, _, which = name.partition(" ")
            if what == "push":
                found[name] = value[self.vertices]
            elif what == "pulled":
                pull = self.batch.pulls[which]
                if pull.form.edges and self.batch.relations and not pull.shared:
                    continue  # in the order of the relations
                of = self.slots if pull.form.edges else self.vertices
                found[name] = value[: len(base[name])] if pull.shared else value[of]
            else:
                found[name] = value
        return found


def moved(batch: BatchSpec, orders: Sequence[Sequence[int]], graphs: Sequence[int]) -> Moved:
    """Renumber the vertices of each graph, then take graphs in an order.

    Args:
        orders: of each graph, the new number of each vertex.
        graphs: which graph of the batch is at each place.
    """
    parts = pieces(batch)
    new = [renumbered(p, o, batch.pulls) for p, o in zip(parts, orders, strict=True)]
    sizes = [len(p.graph) for p in parts]
    counts = [sum(map(len, p.graph)) for p in parts]
    vertices, slots = np.zeros(sum(sizes), np.int64), np.zeros(sum(counts), np.int64)
    first, first_slot = np.cumsum([0, *sizes]), np.cumsum([0, *counts])
    at = at_slot = 0
    for g in graphs:
        vertices[first[g] : first[g + 1]] = at + np.asarray(orders[g])
        starts = np.cumsum([0, *map(len, new[g].graph)])
        of = [
            at_slot + starts[orders[g][v]] + k
            for v, c in enumerate(parts[g].graph)
            for k in range(len(c))
        ]
        slots[first_slot[g] : first_slot[g + 1]] = of
        at, at_slot = at + sizes[g], at_slot + counts[g]
    return Moved(joined(batch, [new[g] for g in graphs]), vertices, slots)


def in_order(batch: BatchSpec) -> list[Sequence[int]]:
    """Return orders that change nothing."""
    return [range(len(graph)) for graph in batch.graphs]


def compare_moved(bench: Bench, change: Moved, names: tuple[str, ...], batch: Any = None) -> Texts:
    """Run a changed batch in the network that ran the first one."""
    batch = graph_batch(change.batch) if batch is None else batch
    got = run(bench.first, batch, change.d_pushes(bench.d_pushes))
    seen = change.seen(got, bench.base)
    yield from bench.near(
        seen, {n: v for n, v in bench.base.items() if n in seen and n.startswith(names)}
    )


# Relations.

RESULTS = ("push", "gradient", "pulled")  # of forward and backward
ALL_RESULTS = (*RESULTS, "loss", "updated")


def graphs_permuted(bench: Bench) -> Texts:
    """The graphs of a batch come in another order."""
    batch = bench.case.batch
    graphs = bench.rng.permutation(len(batch.graphs)).tolist()
    yield from compare_moved(bench, moved(batch, in_order(batch), graphs), ALL_RESULTS)


def vertices_renumbered(bench: Bench) -> Texts:
    """The vertices of each graph are renumbered; children may come after their parents."""
    batch = bench.case.batch
    orders = [bench.rng.permutation(len(g)).tolist() for g in batch.graphs]
    yield from compare_moved(bench, moved(batch, orders, range(len(orders))), ALL_RESULTS)


def dead_vertex(bench: Bench) -> Texts:
    """Each graph has a vertex more that nobody reads and that has no gradient."""
    batch = bench.case.batch
    parts = [with_dead_vertex(p, batch.pulls) for p in pieces(batch)]
    orders = [bench.rng.permutation(len(p.graph)).tolist() for p in parts]
    change = moved(joined(batch, parts), orders, range(len(parts)))
    ends = np.cumsum([len(p.graph) for p in parts])
    kept = np.setdiff1d(np.arange(ends[-1]), ends - 1)
    yield from compare_moved(bench, replace(change, vertices=change.vertices[kept]), RESULTS)


def unrelated_graphs(bench: Bench) -> Texts:
    """Other graphs stand before and after those of the batch."""
    batch = bench.case.batch
    mine, theirs = pieces(batch), pieces(bench.case.others[0])
    theirs = [p for p in theirs if _fits(p, batch)]
    cut = int(bench.rng.integers(len(theirs) + 1))
    before, after = theirs[:cut], theirs[cut:]
    vertices = sum(len(p.graph) for p in before)
    slots = sum(len(c) for p in before for c in p.graph)
    change = Moved(
        joined(batch, [*before, *mine, *after]),
        vertices + np.arange(sum(map(len, batch.graphs))),
        slots + np.arange(sum(len(c) for g in batch.graphs for c in g)),
    )
    yield from compare_moved(bench, change, RESULTS)


def _fits(piece: Piece, batch: BatchSpec) -> bool:
    """Tell whether a graph of another batch pulls what this one allows: rows without a table."""
    plain = [n for n, p in batch.pulls.items() if not (p.form.bound or p.shared)]
    return all(min(piece.pulls[n], default=0) >= 0 for n in plain)


def split_in_two(bench: Bench) -> Texts:
    """Losses and gradients of two parts of a batch add up to those of the whole."""
    batch, parts = bench.case.batch, pieces(bench.case.batch)
    if len(parts) < 2:
        return
    cut = int(bench.rng.integers(1, len(parts)))
    ends = np.cumsum([0, *(len(p.graph) for p in parts)])
    total: Arrays = {}
    pushes: dict[str, list[Array]] = {}
    for some, start, end in ((parts[:cut], 0, ends[cut]), (parts[cut:], ends[cut], ends[-1])):
        d = {name: value[start:end] for name, value in bench.d_pushes.items()}
        got = run(bench.first, graph_batch(joined(batch, some)), d)
        for name, value in got.items():
            what = name.partition(" ")[0]
            if what == "push":
                pushes.setdefault(name, []).append(value)
            elif what != "pulled":
                share = len(some) / len(parts) if what in ("loss", "updated") else 1.0
                total[name] = total.get(name, 0.0) + share * value
    total |= {name: np.concatenate(both) for name, both in pushes.items()}
    yield from bench.near(total, {n: v for n, v in bench.base.items() if n in total})


def labels_counted(bench: Bench) -> Texts:
    """Under "mean_vertices" only labelled vertices count, in parts of a batch as in all."""
    batch, label = bench.case.batch, bench.case.label
    if not label:
        return
    counts = [sum(y >= 0 for y in p.pulls[label]) for p in pieces(batch)]
    if not sum(counts):
        return
    net = bench.network("mean_vertices")
    got = stepped(net, bench.batch)
    scale = len(counts) / sum(counts)
    want = {n: scale * v for n, v in bench.base.items() if n.startswith(("loss", "updated"))}
    yield from bench.near(got, want)
    dead = [with_dead_vertex(p, batch.pulls) for p in pieces(batch)]
    yield from bench.near(stepped(net, graph_batch(joined(batch, dead))), want)


def relations_reordered(bench: Bench) -> Texts:
    """The names of relations are given in another order."""
    batch = bench.case.batch
    if not batch.relations:
        return
    change = moved(batch, in_order(batch), range(len(batch.graphs)))
    yield from compare_moved(bench, change, ALL_RESULTS, graph_batch(batch, backwards=True))


def repeated(bench: Bench) -> Texts:
    """The same call gives the same."""
    yield from bench.same(run(bench.first, bench.batch, bench.d_pushes))
    yield from bench.same(run(bench.first, graph_batch(bench.case.batch), bench.d_pushes))


def in_second_network(bench: Bench) -> Texts:
    """Another network of the same function gives the same, with the first one alive."""
    yield from bench.same(run(bench.network(), bench.batch, bench.d_pushes))


def after_other_batches(bench: Bench) -> Texts:
    """It does not matter what a network met before."""
    net = bench.network()
    for _ in range(int(bench.rng.integers(1, 4))):
        if bench.rng.random() < 0.5:
            net(bench.other())
        else:
            stepped(net, bench.other())
    yield from bench.same(run(net, bench.batch, bench.d_pushes))


def after_another_forward(bench: Bench) -> Texts:
    """Another batch is evaluated between forward and backward."""
    alive = []

    def between() -> None:
        call = bench.first.record if bench.rng.random() < 0.5 else bench.first
        alive.append(call(bench.other()))

    yield from bench.same(run(bench.first, bench.batch, bench.d_pushes, between))


def by_plan(bench: Bench) -> Texts:
    """A plan of a batch evaluates it as `forward` does."""
    plain = bench.first(bench.batch)
    planned = bench.first.plan(bench.batch)(tables_of(bench.batch))
    yield from bench.same(planned, plain)


def outputs_asked(bench: Bench) -> Texts:
    """A step trains the same, whatever outputs it is asked for; sums may be in another order."""
    plain = stepped(bench.first, bench.batch)
    yield from bench.near(plain, {name: bench.base[name] for name in plain})
    ends, other = [], bench.other()
    for outputs in ((), bench.first.pushes):
        net, optimizer = bench.network(), vrt.SGD(0.1, momentum=0.5, weight_decay=0.1)
        for batch in (bench.batch, other):
            net.step(batch, optimizer, outputs=outputs)
        net.sync()
        ends.append({f"parameter {n}": v.copy() for n, v in net.parameters.items()})
    yield from bench.near(*ends)


def resumed(bench: Bench) -> Texts:
    """A network that is loaded goes on as the one that was saved."""
    if not any(name.startswith("updated") for name in bench.base):
        return  # nothing is trained: Adam has no moments, and takes no state without them
    saved, optimizer = bench.network(), vrt.Adam(0.01)
    for _ in range(int(bench.rng.integers(1, 3))):
        train(saved, bench.other(), optimizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        vrt.save_checkpoint(path, saved, optimizer)
        loaded, again = bench.network(), vrt.Adam(0.01)
        found = vrt.load_checkpoint(path)
    loaded.parameters.update(found.parameters)
    again.load_state(found.optimizer_state)
    yield from bench.same(train(loaded, bench.batch, again), train(saved, bench.batch, optimizer))


EXACT = (
    repeated,
    in_second_network,
    after_other_batches,
    after_another_forward,
    by_plan,
    resumed,
)
RELATIONS = (
    graphs_permuted,
    vertices_renumbered,
    dead_vertex,
    unrelated_graphs,
    split_in_two,
    labels_counted,
    relations_reordered,
    outputs_asked,
    *EXACT,
)


def ways(settings: Settings) -> list[NamedWay]:
    """List the ways of a device that leave passes as they are."""
    return [w for w in settings.listed() if w.way.passes == ALL and w.tile is None]


def run_one(seed: int, settings: Settings) -> Tally:
    """Draw a network, and try some relations on it in one way; all take turns."""
    tally = Tally()
    case = draw_case(seed, settings)
    if case.want is not None and case.want.unclear(settings.dtype):
        tally.unclear += 1
        return tally
    tally.functions += 1
    listed = ways(settings)
    way = listed[seed % len(listed)]
    tried = [r for r in RELATIONS if r.__name__.startswith(settings.relation)]
    count = min(settings.per, len(tried))
    turn = seed // len(listed)
    taken = [tried[(turn * count + k) % len(tried)] for k in range(count)]
    bench: Bench | None = None
    for relation in taken:
        name = relation.__name__
        rng = np.random.default_rng([seed, RELATIONS.index(relation)])
        tally.tried[name] += 1
        try:
            bench = bench or Bench(case, way, rng, 1 + seed % 1_000_000)
            bench.rng = rng
            found = [text for text in relation(bench) if text]
            kind = name
        except NoKernelError:
            tally.refused[name] += 1
            continue
        except Exception as error:  # noqa: BLE001 - any error at all is what a fuzzer looks for
            outcome = error_outcome(error)
            kind, found = outcome.kind, [outcome.text]
        tied = case.want is not None and case.want.tape.tied and relation not in EXACT
        if found and tied and all(text.startswith((*GRADIENTS, "pulled")) for text in found):
            tally.tied[name] += 1
        elif found:
            text = f"{way.name}: {'; '.join(found)}"
            script = again(seed, settings, name)
            tally.findings.append(Finding(seed, name, kind, text, script))
    return tally


def again(seed: int, settings: Settings, relation: str) -> str:
    """Return the command that runs one network once more."""
    return (
        f"python -m tests.fuzz relations --seed {seed} --count 1 --device {settings.device} "
        f"--dtype {settings.dtype}{settings.of_ways()} --most {settings.most} "
        f"--nodes {settings.nodes} --relation {relation}"
    )
