"""Training throughput against batch size and hidden size, both engines (VPPS, figures 8 and 9)."""

from __future__ import annotations

from vertexrt.bench.breakdown.options import ENGINES, Bench
from vertexrt.bench.check import BOUNDS, check
from vertexrt.bench.jobs import first_graphs
from vertexrt.bench.measure import LR, Draw, Runner, measure
from vertexrt.bench.record import Key, compared
from vertexrt.bench.stepper import Stepper
from vertexrt.errors import DeviceError

CHECKED_GRAPHS = 8


def run(bench: Bench) -> None:
    """Time both engines at each batch size, and at each hidden size."""
    options = bench.options
    middle = options.batch_sizes[len(options.batch_sizes) // 2]
    points = [(size, options.hidden, "batch size") for size in options.batch_sizes]
    points += [(middle, hidden, "hidden size") for hidden in options.hidden_sizes]
    seconds = options.seconds / len(points)
    networks: dict[int, dict[str, Stepper]] = {}
    for batch_size, hidden, axis in points:
        if hidden not in networks:
            networks = {hidden: _networks(bench, hidden)}  # one at a time: they take memory
        nets = networks[hidden]

        def sync(nets: dict[str, Stepper] = nets) -> None:
            for net in nets.values():
                net.sync()

        def runner(net: Stepper, sync=sync) -> Runner:  # type: ignore[no-untyped-def]
            return Runner(lambda batch: net.train(batch, LR), sync)

        runners = {name: runner(net) for name, net in nets.items()}
        timing = measure(runners, Draw(bench.job.pool, batch_size), seconds)
        key: Key = {"part": "throughput", "model": bench.job.model, "against": axis}
        key |= {"batch_size": batch_size, "hidden": hidden}
        bench.record.entries += compared(key, timing.samples)


def _networks(bench: Bench, hidden: int) -> dict[str, Stepper]:
    """Compile for each engine and check that both compute the same."""
    found: dict[str, Stepper] = {}
    batch = first_graphs(bench.job, CHECKED_GRAPHS)
    for engine in ENGINES:
        net = Stepper(bench.compile(engine, hidden))
        try:
            net.infer(batch)
        except DeviceError as error:
            name = f"{engine} engine, hidden {hidden}"
            bench.record.missing.append({"name": name, "because": str(error)})
            continue
        found[engine] = net
    where = f"{bench.job.model}, hidden {hidden}"
    off = check(found, batch, BOUNDS["float32"], where, bench.job.kinked)
    entry = {"where": where, "against": ENGINES[0], "bound": BOUNDS["float32"]}
    bench.record.checks.append(entry | {"largest_difference": off, "variants": len(found)})
    return found
