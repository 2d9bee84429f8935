"""What a change of the input, or of what a network did before, may not change in its results.

A relation needs no oracle: it compares two runs. Those in `EXACT` want the same bits, the others
equal numbers but for rounding, of which the oracle gives the bound where the network is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz.batches import BatchSpec, GraphSpec, draw_batch, graph_batch, parameters
from tests.fuzz.bounded import Array, Bounded
from tests.fuzz.calls import PARAMETERS, Expected
from tests.fuzz.campaign import Finding, Settings, Tally
from tests.fuzz.compare import difference, outcome_of, rounding, scale
from tests.fuzz.evaluate import OracleRun
from tests.fuzz.function import builder, source
from tests.fuzz.generate import FUNCTION, draw_network
from tests.fuzz.ways import NamedWay
from tests.planned import tables_of
from tests.runs import DRAWS, PLAIN, Capture, cotangents
from vertexrt.errors import NoKernelError

Arrays = dict[str, Array]
Texts = Iterator[str]  # what differs; "" for what does not
LOOSELY = 1000.0  # bound relative to the largest element, for want of a better one


@dataclass(frozen=True, slots=True)
class Case:
    """A network and batches for it.

    Attributes:
        make: builds the function, or a model of it.
        batches: the first is looked at, the others the network may meet besides.
        drops: it draws by vertices and graphs of the batch.
        bounds: what rounding may move a result by, where the oracle says it.
    """

    make: Callable[[], Any]
    batches: tuple[BatchSpec, ...]
    parameters: Arrays
    drops: bool = False
    run: OracleRun | None = None
    bounds: Mapping[str, Array] = field(default_factory=dict)


def draw_case(seed: int, settings: Settings) -> Case:
    """Draw a network, or one that drops."""
    rng = np.random.default_rng([seed, 52])
    drops = bool(rng.random() < 0.15)
    style = replace(FUNCTION, nodes=settings.nodes, dropped=drops)
    network = draw_network(rng, style)
    while drops and "vrt.random.dropout" not in source(network):
        network = draw_network(rng, style)
    batches = tuple(draw_batch(rng, network, settings.most) for _ in range(3))
    build, expected = builder(source(network)), Expected(network, batches)
    values = parameters(expected.shapes, PARAMETERS)
    case = Case(lambda: build(vrt), batches, values, drops)
    return case if drops else _bounded(case, expected.run(0, values))


def _bounded(case: Case, run: OracleRun) -> Case:
    """Find what rounding may move each result by."""
    found = {f"push {name}": run.push(name) for name in run.pushes}
    back = run.gradients(cotangents({n: run.push(n).shape for n in run.pushes}))
    found |= {f"gradient {name}": d for name, d in back.parameters.items()}
    found |= {f"pulled {name}": d for name, d in back.pulled.items()}
    if "loss" in run.pushes:
        share = np.full(run.push("loss").shape, 1.0 / len(case.batches[0].graphs))
        found["loss"] = run.push("loss").sum(0)
        step = run.gradients({"loss": share}).parameters
        found |= {f"updated {name}": d for name, d in step.items()}
    return replace(case, run=run, bounds={name: each.error for name, each in found.items()})


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
        self.first, self.batch = self.network(), graph_batch(self.spec)
        shapes = {n: v.shape for n, v in self.first(self.batch).items()}
        self.d_pushes = cotangents(shapes)
        self.base = run(self.first, self.batch, self.d_pushes)

    @property
    def spec(self) -> BatchSpec:
        """The batch that is looked at."""
        return self.case.batches[0]

    def network(self) -> vrt.Network:
        """Compile the network once more, with the same parameters."""
        return self.way.compile(self.case.make(), self.case.parameters, self.shuffle)

    def other(self) -> vrt.GraphBatch:
        """Return a batch that is not looked at."""
        return graph_batch(self.case.batches[int(self.rng.integers(1, 3))])

    def same(self, got: Mapping[str, Any], want: Mapping[str, Any] | None = None) -> Texts:
        """Compare bits, with those of the first network if no others are given."""
        for name, value in (self.base if want is None else want).items():
            if name in got and not np.array_equal(got[name], value, equal_nan=True):
                off = np.abs(np.asarray(got[name]) - value).max() if np.size(value) else "shape"
                yield f"{name}: other bits, off by {off}"

    def near(self, got: Mapping[str, Any], want: Mapping[str, Any]) -> Texts:
        """Compare within twice what rounding may have moved each."""
        for name, value in want.items():
            array = np.asarray(value)
            if not array.size and not np.size(got[name]):
                continue  # the shape of rows that there are none of
            error = self.case.bounds.get(name)
            if error is None or error.shape != array.shape:
                error = np.full(array.shape, LOOSELY * scale(array))
            yield difference(got[name], Bounded(array, 2 * error), self.way.way.dtype, name)


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


# Changes of a batch.


@dataclass(frozen=True, slots=True)
class Piece:
    """A graph of a changed batch, and which vertex of the first batch each of its vertices was."""

    graph: GraphSpec
    origin: Sequence[int]


def pieces(batch: BatchSpec) -> list[Piece]:
    """Return the graphs of a batch."""
    ends = np.cumsum([0, *(len(graph.children) for graph in batch.graphs)]).tolist()
    spans = zip(batch.graphs, ends, ends[1:], strict=False)
    return [Piece(graph, range(first, end)) for graph, first, end in spans]


def renumbered(piece: Piece, rng: np.random.Generator, batch: BatchSpec) -> Piece:
    """Give the vertices of each type other numbers; children may come after their parents."""
    kinds = piece.graph.kinds or [""] * len(piece.origin)
    shuffled = rng.permutation(len(kinds)).tolist()
    order = sorted(shuffled, key=lambda v: kinds.index(kinds[v]))
    return Piece(piece.graph.taken(order, batch.forms), [piece.origin[v] for v in order])


def with_dead_vertex(piece: Piece, batch: BatchSpec) -> Piece:
    """Add a vertex without children, readers or labels, as the last."""
    graph, pulls = piece.graph, {}
    for name, index in graph.pulls.items():
        pulled = batch.forms[name]
        own = () if pulled.form.edges else (-1 if pulled.form.bound or pulled.shared else 0,)
        pulls[name] = index + own
    more = replace(
        graph,
        children=(*graph.children, ()),
        pulls=pulls,
        kinds=graph.kinds + graph.kinds[-1:],
        relations=(*graph.relations, ()) if graph.kinds else (),
    )
    return Piece(more, [*piece.origin, -1])


def compare_moved(
    bench: Bench, parts: Sequence[Piece], names: tuple[str, ...], backwards: bool = False
) -> Texts:
    """Run a changed batch in the network that ran the first one; compare what is of both."""
    batch = replace(bench.spec, graphs=tuple(part.graph for part in parts))
    origin = np.array([v for part in parts for v in part.origin])
    kept = np.flatnonzero(origin >= 0)
    vertices = kept[np.argsort(origin[kept])]  # where those of the first batch are
    old, new = (np.cumsum([0, *map(len, each.children)]) for each in (bench.spec, batch))
    slots = [
        new[v] + k for v, u in zip(vertices, range(len(old) - 1), strict=True)
        for k in range(old[u + 1] - old[u])
    ]  # fmt: skip
    d_pushes = {n: np.zeros((len(origin), *d.shape[1:])) for n, d in bench.d_pushes.items()}
    for name, d in bench.d_pushes.items():
        d_pushes[name][vertices] = d
    got = run(bench.first, graph_batch(batch, backwards), d_pushes)
    for name, value in got.items():
        what, _, which = name.partition(" ")
        if what == "push":
            got[name] = value[vertices]
        elif what == "pulled" and batch.forms[which].shared:
            got[name] = value[: len(bench.base[name])]
        elif what == "pulled":
            got[name] = value[slots if batch.forms[which].form.edges else vertices]
    moved = {  # a graph of types has the rows of its edges in an order of its own
        f"pulled {n}"
        for n, pulled in batch.forms.items()
        if batch.apart and batch.types and pulled.form.edges and not pulled.shared
    }
    kept_names = [n for n in bench.base if n.startswith(names) and n not in moved]
    yield from bench.near(got, {n: bench.base[n] for n in kept_names})


# Relations.

RESULTS = ("push", "gradient", "pulled")  # of forward and backward
ALL_RESULTS = (*RESULTS, "loss", "updated")


def graphs_permuted(bench: Bench) -> Texts:
    """The graphs of a batch come in another order."""
    parts = pieces(bench.spec)
    order = bench.rng.permutation(len(parts)).tolist()
    yield from compare_moved(bench, [parts[k] for k in order], ALL_RESULTS)


def vertices_renumbered(bench: Bench) -> Texts:
    """The vertices of each graph are renumbered; children may come after their parents."""
    parts = [renumbered(p, bench.rng, bench.spec) for p in pieces(bench.spec)]
    yield from compare_moved(bench, parts, ALL_RESULTS)


def dead_vertex(bench: Bench) -> Texts:
    """Each graph has a vertex more that nobody reads and that has no gradient."""
    parts = [with_dead_vertex(p, bench.spec) for p in pieces(bench.spec)]
    parts = [renumbered(p, bench.rng, bench.spec) for p in parts]
    yield from compare_moved(bench, parts, RESULTS)


def unrelated_graphs(bench: Bench) -> Texts:
    """Other graphs stand before and after those of the batch."""
    plain = [n for n, p in bench.spec.forms.items() if not (p.form.bound or p.shared)]
    theirs = [
        Piece(graph, [-1] * len(graph.children))
        for graph in bench.case.batches[1].graphs
        if all(min(graph.pulls[n], default=0) >= 0 for n in plain)
    ]
    cut = int(bench.rng.integers(len(theirs) + 1))
    parts = [*theirs[:cut], *pieces(bench.spec), *theirs[cut:]]
    yield from compare_moved(bench, parts, RESULTS)


def split_in_two(bench: Bench) -> Texts:
    """Losses and gradients of two parts of a batch add up to those of the whole."""
    parts = pieces(bench.spec)
    if len(parts) < 2:
        return
    cut = int(bench.rng.integers(1, len(parts)))
    total: Arrays = {}
    pushes: dict[str, list[Array]] = {}
    for some in (parts[:cut], parts[cut:]):
        own = [v for part in some for v in part.origin]
        batch = replace(bench.spec, graphs=tuple(part.graph for part in some))
        got = run(bench.first, graph_batch(batch), {n: d[own] for n, d in bench.d_pushes.items()})
        for name, value in got.items():
            what = name.partition(" ")[0]
            if what == "push":
                pushes.setdefault(name, []).append(value)
            elif what != "pulled":
                share = len(some) / len(parts) if what in ("loss", "updated") else 1.0
                total[name] = total.get(name, 0.0) + share * value
    total |= {name: np.concatenate(both) for name, both in pushes.items()}
    yield from bench.near(total, {n: v for n, v in bench.base.items() if n in total})


def relations_reordered(bench: Bench) -> Texts:
    """The names of relations and types are given in another order."""
    if bench.spec.types and not bench.spec.apart:
        yield from compare_moved(bench, pieces(bench.spec), ALL_RESULTS, backwards=True)


def as_plainly(bench: Bench) -> Texts:
    """The plainest way computes the same; where something is dropped, it is the same."""
    plain = PLAIN.compile(bench.case.make())
    plain.parameters.update(bench.case.parameters)
    yield from bench.near(run(plain, bench.batch, bench.d_pushes), bench.base)
    yield from bench.near(plain(bench.batch), bench.first(bench.batch))


def repeated(bench: Bench) -> Texts:
    """The same call gives the same."""
    yield from bench.same(run(bench.first, bench.batch, bench.d_pushes))
    yield from bench.same(run(bench.first, graph_batch(bench.spec), bench.d_pushes))


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


EXACT = (repeated, in_second_network, after_other_batches, after_another_forward, by_plan)
RELATIONS = (
    graphs_permuted,
    vertices_renumbered,
    dead_vertex,
    unrelated_graphs,
    split_in_two,
    relations_reordered,
    as_plainly,
    *EXACT,
)
OF_DROPS = (as_plainly, repeated, in_second_network, after_other_batches, after_another_forward)


def run_one(seed: int, settings: Settings) -> Tally:
    """Draw a network, and try some relations on it in one way; all take turns."""
    tally = Tally()
    case = draw_case(seed, settings)
    if case.run is not None and case.run.closest <= rounding(settings.dtype):
        tally.unclear += 1
        return tally
    tally.networks += 1
    (way,) = settings.turns(seed, 1, plain=not case.drops)
    every = OF_DROPS if case.drops else RELATIONS
    tried = [r for r in every if r.__name__.startswith(settings.relation)]
    count = min(settings.per, len(tried))
    turn = seed // len(settings.listed(not case.drops))
    bench: Bench | None = None
    for k in range(count):
        relation = tried[(turn * count + k) % len(tried)]
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
            outcome = outcome_of(error)
            kind, found = outcome.kind, [outcome.text]
        tied = case.run is not None and case.run.tape.tied and relation not in EXACT
        if (
            found
            and tied
            and all(text.startswith(("gradient", "updated", "pulled")) for text in found)
        ):
            tally.vague[name] += 1
        elif found:
            text = f"{way.name}: {'; '.join(found)}"
            script = again(seed, settings, name)
            tally.findings.append(Finding(seed, name, kind, text, script))
    return tally


def again(seed: int, settings: Settings, relation: str) -> str:
    """Return the command that runs one network once more."""
    ways = f" --ways {settings.ways}" if settings.ways else ""
    return (
        f"python -m tests.fuzz relations --seed {seed} --count 1 --device {settings.device} "
        f"--dtype {settings.dtype}{ways} --most {settings.most} "
        f"--nodes {settings.nodes} --relation {relation}"
    )
