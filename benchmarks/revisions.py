"""How fast checkouts of vertexrt are, one against the other: steps of training and inference.

    python -m benchmarks.revisions BEFORE AFTER [...] --device cpu --trees SST --text PTB

Each round starts a process for every checkout, in turn and then the other way round, which imports
that checkout's package, trains and evaluates the same minibatches and reports microseconds a step,
as seconds of the process's thread on a CPU (other work on the machine counts less so) and of the
clock on a GPU, waited for at the end of each block. A first process of each, which does not count,
compiles. Ratios are before / after, taken round by round: above 1, the later checkout is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# As in vertexrt/config.py, which a checkout may not have: each process runs another's package.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
STEPS = {1: 250, 16: 100, 64: 40, 256: 16}  # of a block on a GPU; on a CPU an eighth
BLOCKS = 3
SUITES = (("tree-lstm", 256, (1, 16, 64, 256)), ("fixed-lstm", 512, (1, 16)))
RATE = 1e-4  # small: the parameters stay where arithmetic takes its usual time


def main() -> None:
    """Compare, or be one of the processes."""
    options = parse()
    if options.report:
        print(json.dumps(measure(options)))
        return
    found: dict[str, list[dict[str, float]]] = {path: [] for path in options.checkouts}
    for number in range(options.rounds + 1):
        for path in options.checkouts[:: 1 if number % 2 else -1]:  # a later process is slower
            took = run(path, options)
            what = f"round {number} of {options.rounds}" if number else "first, does not count"
            shown = ", ".join(f"{name} {each:.0f}" for name, each in took.items())
            print(f"{path} ({what}): {shown}", file=sys.stderr, flush=True)
            if number:
                found[path].append(took)
    print(table(found))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.revisions", description=__doc__)
    parser.add_argument("checkouts", nargs="+", help="folders that hold vertexrt/ and benchmarks/")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="batched")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--trees", help="SST, else generated trees")
    parser.add_argument("--text", help="PTB, else generated text")
    parser.add_argument("--caches", type=Path, default=Path("caches"), help="one for each checkout")
    parser.add_argument("--report", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(path: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure a checkout in a process of its own."""
    folder = Path(path).resolve()
    cache = (options.caches / str(folder).strip("/").replace("/", "-")).resolve()
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    one = dict.fromkeys(THREAD_VARIABLES, "1")
    places = {
        "PYTHONPATH": str(folder),
        "VERTEXRT_CACHE": str(cache),
        "NUMBA_CACHE_DIR": str(cache),
    }
    words = [sys.executable, __file__, str(folder), "--report"]
    for name in ("device", "engine", "trees", "text"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", str(Path(value).resolve()) if Path(value).exists() else value]
    ended = subprocess.run(
        words, cwd=folder, env={**os.environ, **one, **places}, stdout=subprocess.PIPE, check=True
    )
    took: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return took


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return microseconds a step by job; also in checkouts from before `benchmarks.peers`."""
    import numpy as np

    import vertexrt as vrt

    make_suite = suites()
    host = options.device != "cuda"
    clock = time.thread_time if host else time.perf_counter
    found: dict[str, float] = {}
    for name, hidden, sizes in SUITES:
        suite = make_suite(name, hidden=hidden, trees=options.trees, text=options.text)
        given: dict[str, Any] = {"device": options.device, "engine": options.engine, "seed": 1}
        if host:
            given["threads"] = 1
        net: Any = vrt.compile(suite.function, **given)
        for size in sizes:
            count = max(STEPS[size] // 8, 1) if host else STEPS[size]
            rng = np.random.default_rng(size)
            ids = [rng.integers(0, suite.pool.num_graphs, size) for _ in range(count)]

            for way in (train, infer):
                way(net, suite.pool, ids)
                took = [block_seconds(way, net, suite.pool, ids, clock) for _ in range(BLOCKS)]
                found[f"{name} {hidden}, {way.__name__}, batch {size}"] = (
                    float(np.median(took)) / count * 1e6
                )
    return found


def suites() -> Callable[..., Any]:
    """Return `make_suite` from wherever the checkout has it, with options by name."""
    folder = "benchmarks" if Path("benchmarks/peers").is_dir() else "vertexrt.bench"
    module = import_module(f"{folder}.peers.suites")
    if not hasattr(module, "Options"):
        return module.make_suite  # type: ignore[no-any-return]
    return lambda name, **options: module.make_suite(name, module.Options(**options))


def train(net: Any, pool: Any, ids: list[Any]) -> None:
    """Take a step on each minibatch, assembled and scheduled anew."""
    from vertexrt import SGD

    optimizer = SGD(lr=RATE)
    for chosen in ids:
        net.step(pool.take(chosen), optimizer)
    net.sync()


def infer(net: Any, pool: Any, ids: list[Any]) -> None:
    """Evaluate each minibatch, three under way at once."""
    started: list[Any] = []
    for chosen in ids:
        started.append(evaluate(net, pool.take(chosen)))
        if len(started) > 2:
            started.pop(0)()
    for wait in started:
        wait()


def evaluate(net: Any, batch: Any) -> Any:
    """Begin to evaluate a minibatch, in the spelling of the revision; return what waits for it."""
    if callable(net):
        return net(batch, outputs=("logits",)).settle
    return net.submit(batch, ("logits",)).result


def block_seconds(
    way: Callable[[Any, Any, list[Any]], None],
    net: Any,
    pool: Any,
    ids: list[Any],
    clock: Callable[[], float],
) -> float:
    """Return the seconds of a block."""
    start = clock()
    way(net, pool, ids)
    return clock() - start


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """Print microseconds a step of each checkout, and its ratio to the first."""
    import numpy as np

    first, *others = found
    lines = [
        f"microseconds a step; before / after: median [quartiles] of {len(found[first])} rounds"
    ]
    for job in found[first][0]:
        before = np.array([took[job] for took in found[first]])
        line = f"{job:34} {np.median(before):12,.1f}"
        for path in others:
            after = np.array([took[job] for took in found[path]])
            low, middle, high = np.percentile(before / after, [25, 50, 75])
            line += f" {np.median(after):12,.1f}  {middle:.3f} [{low:.3f} {high:.3f}]"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
