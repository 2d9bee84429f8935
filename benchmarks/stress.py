"""Launch kernels again and again, and look at every result.

    python -m benchmarks.stress [--launches 100000] [--jobs trees,levels] [--device cuda]

Each job is there for ways in which processors wait for each other, see JOBS. Minibatches of mixed
sizes are trained on and evaluated, in a few orders. The losses of an order, the parameters after
its last step and the outputs of each minibatch must have the bits of the first time.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.papers.stacks import Form, Stack, ragged_batch
from benchmarks.peers.suites import make_suite
from vertexrt import data
from vertexrt.cli.options import COUNT, CommandOption, OneOf, Several
from vertexrt.models.language_model import LSTMLanguageModel

SIZES = (1, 2, 3, 5, 8, 16, 40)
KINDS = 12  # minibatches of each size
ORDERS = 4  # of the minibatches
RATE = 1e-3
EVERY = 5000  # launches between two lines
LONGEST, POOL = 24, 64  # vertices of a chain; chains to draw from


@dataclass(frozen=True, slots=True)
class Subject:
    """What is launched.

    Attributes:
        function: that is compiled; pool: graphs to draw from; output: that evaluations ask for.
    """

    function: vrt.VertexFunction | vrt.Model
    pool: vrt.GraphBatch
    output: str


@dataclass(frozen=True, slots=True)
class Job:
    """A subject, and what is stressed by it.

    Attributes:
        engine: that runs it; processors: of a group on a GPU, None for the choice.
    """

    what: str
    make: Callable[[], Subject]
    engine: str = "persistent"
    processors: int | None = None


def trees() -> Subject:
    """Return a Tree-LSTM over SST, or generated trees."""
    suite = make_suite("tree-lstm", 64)
    return Subject(suite.function, suite.pool, suite.output)


def complete_trees() -> Subject:
    """Return trees of one shape, whose minibatches come again."""
    suite = make_suite("tree-fc", 64, leaves=64)
    return Subject(suite.function, suite.pool, suite.output)


def chains(form: Form) -> Callable[[], Subject]:
    """Return a maker of layers over sequences of drawn lengths."""

    def make() -> Subject:
        rng = np.random.default_rng(form.hidden)
        lengths = rng.integers(1, LONGEST + 1, POOL)
        x = rng.standard_normal((int(lengths.sum()), form.hidden)).astype(np.float32)
        return Subject(Stack(form), ragged_batch(form, lengths, x), "h")

    return make


class Gated(vrt.VertexFunction):
    """A chain whose levels begin with what they read of a product of inputs."""

    def __init__(self, hidden: int) -> None:
        super().__init__(arity=1, state={"h": hidden})
        self.w, self.u = (vrt.Parameter((hidden, hidden)) for _ in range(2))

    def forward(self) -> None:
        x = self.w @ self.pull("x", self.w.shape[1:])
        h = vrt.tanh(self.u @ (x * self.gather(0).h) + x)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


def gated() -> Subject:
    """Return chains whose input gates what is multiplied."""
    rng = np.random.default_rng(64)
    x = [
        rng.standard_normal((n, 64)).astype(np.float32) for n in rng.integers(1, LONGEST + 1, POOL)
    ]
    graphs = [vrt.InputGraph.chain(len(each), {"x": each}) for each in x]
    return Subject(Gated(64), vrt.GraphBatch.from_graphs(graphs), "h")


def words() -> Subject:
    """Return a language model of two layers."""
    text = data.load("generated", format="text", pieces=LONGEST, streams=POOL, layers=2)
    model = LSTMLanguageModel(text.sizes()["vocab"], 200, 200, layers=2)
    return Subject(model, text.splits["train"], "loss")


JOBS = {
    "trees": Job("barrier of the grid, clusters with rings, counters", trees, processors=8),
    "alone": Job("levels repeated by a processor alone", chains(Form("LSTM", 64)), processors=1),
    "overlap": Job("rows of an overlapped product that levels begin with", gated, processors=1),
    "levels": Job("levels repeated in clusters", chains(Form("LSTM", 256)), processors=8),
    "elements": Job("the same, sent one by one", chains(Form("LSTM", 200)), processors=8),
    "exchanges": Job("the same, of a GRU", chains(Form("GRU", 256)), processors=16),
    "counters": Job("groups that are no clusters", chains(Form("LSTM", 1024)), processors=128),
    "far": Job("levels repeated in such groups", chains(Form("LSTM", 256)), processors=32),
    "layers": Job("layers and cuts", chains(Form("LSTM", 512, 2))),
    "words": Job("layers, words and cuts", words),
    "replays": Job("steps as CUDA graphs, rows in place", complete_trees, "batched"),
}


def main(given: Sequence[str] | None = None) -> int:
    """Launch, compare, and print how it goes; return 1 where a result was another one."""
    known = Several(OneOf(tuple(JOBS)))
    options = read_options(
        "benchmarks.stress",
        __doc__,
        given,
        CommandOption("--launches N", COUNT, "", "of each job", default=100_000),
        CommandOption("--jobs J,J,...", known, "", ", ".join(JOBS), default=tuple(JOBS)),
        device="cuda",
    )
    wrong = 0
    for name in options.jobs:
        job = JOBS[name]
        print(f"{name}: {job.what}", flush=True)
        subject = job.make()
        processors = job.processors if options.device == "cuda" else None
        net = vrt.compile(
            subject.function, device=options.device, engine=job.engine, processors=processors
        )
        wrong += stress(net, subject, options.launches)
    return 1 if wrong else 0


def stress(net: vrt.Network, subject: Subject, least: int) -> int:
    """Launch so often, or a little more; return how many results were others than at first."""
    start = dict(net.parameters)
    rng, pool = np.random.default_rng(0), subject.pool
    batches = [
        pool.take(rng.integers(0, pool.num_graphs, size)) for size in SIZES for _ in range(KINDS)
    ]
    orders = [rng.permutation(len(batches)).tolist() for _ in range(ORDERS)]
    trained = [train(net, [batches[k] for k in order], start) for order in orders]
    net.parameters.update(start)
    evaluated = evaluate(net, batches, subject.output)
    begin, launches, wrong = time.perf_counter(), 0, 0
    while launches < least:
        before = launches
        for order, expected in zip(orders, trained, strict=True):
            wrong += different(train(net, [batches[k] for k in order], start), expected)
            net.parameters.update(start)
            found = evaluate(net, [batches[k] for k in order], subject.output)
            wrong += different(found, [evaluated[k] for k in order])
            launches += 2 * len(order)
        if launches // EVERY > before // EVERY or launches >= least:
            seconds = time.perf_counter() - begin
            print(f"  {launches:,} launches in {seconds:.0f} s, {wrong} wrong", flush=True)
    return wrong


def train(
    net: vrt.Network, batches: Sequence[vrt.GraphBatch], start: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Train from given parameters; return the losses, and the parameters after the last step."""
    net.parameters.update(start)
    optimizer = vrt.SGD(RATE, clip_norm=1e30)
    losses = [float(loss) for loss in [net.step(batch, optimizer) for batch in batches]]
    return [np.array(losses), *(np.array(value) for value in net.parameters.values())]


def evaluate(net: vrt.Network, batches: Sequence[vrt.GraphBatch], output: str) -> list[np.ndarray]:
    """Return the outputs of minibatches; the last is launched before the first is waited for."""
    waiting = [net(batch, outputs=(output,)) for batch in batches]
    return [outputs[output] for outputs in waiting]


def different(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> int:
    """Count the arrays that do not have the bits of the first time."""
    pairs = zip(found, expected, strict=True)
    return sum(not np.array_equal(a, b, equal_nan=True) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
