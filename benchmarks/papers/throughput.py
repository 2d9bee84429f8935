"""Training throughput against batch size and hidden size, both engines (VPPS, figures 8 and 9)."""

from benchmarks.papers.in_turn import ENGINES
from vertexrt.bench.measure import Contender, Draw, Stepper, compare, measure
from vertexrt.bench.record import Entry, compared
from vertexrt.bench.run import Bench, Setting, first_graphs
from vertexrt.errors import DeviceError

CHECKED_GRAPHS = 8


def run(bench: Bench) -> list[Entry]:
    """Time both engines at each batch size, and at each hidden size."""
    options = bench.options
    middle = options.batch_sizes[len(options.batch_sizes) // 2]
    points = [(size, options.hidden, "batch size") for size in options.batch_sizes]
    points += [(middle, hidden, "hidden size") for hidden in options.hidden_sizes]
    seconds = options.seconds / len(points)
    networks: dict[int, dict[str, Contender]] = {}
    found = []
    for batch_size, hidden, axis in points:
        if hidden not in networks:
            networks = {hidden: _networks(bench, hidden)}  # one at a time: they take memory
        samples = measure(networks[hidden], Draw(bench.job.pool, batch_size), seconds)
        key = bench.key(part="throughput", against=axis, batch_size=batch_size)
        found += compared(key | {"hidden": hidden}, samples)
    return found


def _networks(bench: Bench, hidden: int) -> dict[str, Contender]:
    """Compile for each engine and check that both compute the same."""
    found: dict[str, Contender] = {}
    function = bench.job.make(hidden)
    batch = first_graphs(bench.job, CHECKED_GRAPHS)
    for engine in ENGINES:
        setting = Setting(engine=engine)
        net = Stepper(setting.compile(function, bench.device, bench.threads))
        try:
            net.infer(batch)
        except DeviceError as error:
            name = f"{engine} engine, hidden {hidden}"
            bench.record.missing.append({"name": name, "because": str(error)})
            continue
        found[engine] = net
    where = f"{bench.job.model}, hidden {hidden}"
    compare(bench.record, found, batch, where, bench.job.kinked)
    return found
