"""Times of several ways to do one thing, row by row: checked first, in turn, written at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

import vertexrt as vrt
from benchmarks.command import add_list, add_measured
from benchmarks.turns import ratio_text
from vertexrt.bench.measure import difference, in_turn
from vertexrt.bench.record import Key, make_entry, ratio_of
from vertexrt.bench.run import Recording, recording
from vertexrt.cli.options import SIZE, CommandOption, OneOf, Parser, Whole
from vertexrt.errors import NumericError, UsageError

ENGINES = ("batched", "persistent")
PEER = "torch"
PEER_BOUND = 1e-4  # of the largest element: what approximate functions of a peer may be off by
MOST_CALLS, MOST_ROUNDS = 1000, 1000
Arrays = Mapping[str, Any]
Clock = Callable[[], float]
Sample = Callable[[int], float]  # makes so many calls; returns the mean of their seconds


class Per(NamedTuple):
    """What times are given in: a unit, and what makes it of seconds."""

    unit: str
    scale: float


MILLISECONDS = Per("ms", 1e3)


def add_run_options(parser: Parser) -> None:
    """Declare what every comparison of this kind is told: engines of ours, in order, and rounds."""
    add_list(parser, "--engines", OneOf(ENGINES), ENGINES, f"of {', '.join(ENGINES)}")
    add_measured(
        parser, 0.1, "of a way, a round", ("device", "threads", "seconds", "out"), threads=1
    )
    text = "in which ways take turns; 0 compares results and times nothing"
    parser.add([CommandOption("--rounds N", Whole(0, MOST_ROUNDS), "", text, default=5)])


def add_numbers(parser: Parser, flag: str, default: tuple[int, ...] | None, text: str) -> None:
    """Add an option that takes several whole numbers; without a default, the device decides."""
    add_list(parser, flag, SIZE, default, text)


class Table(Recording):
    """Rows of times, printed and written as soon as they are there."""

    @property
    def gpu(self) -> bool:
        """Tell whether it runs on one."""
        return self.device == "cuda"

    @property
    def clock(self) -> Clock:
        """Return what is looked at: with one thread of a CPU, the time that this process has had.

        Other programs on the machine then do not count.
        """
        return process_time if self.threads == 1 and not self.gpu else perf_counter

    def networks(
        self, make: Callable[[], vrt.VertexFunction | vrt.Model], groups: Sequence[int] = ()
    ) -> dict[str, vrt.Network]:
        """Return a network for each engine, all with one set of parameters.

        Args:
            groups: processors of a group of a GPU's persistent engine: a network for each; empty
                for one, whose groups the engine chooses.
        """
        ways: dict[str, dict[str, Any]] = {}
        for engine in self.options.engines:
            if self.gpu and engine == "persistent" and groups:
                ways |= {f"{engine} {n}": {"engine": engine, "processors": n} for n in groups}
            else:
                ways[engine] = {"engine": engine}
        threads = None if self.gpu else self.threads
        found: dict[str, vrt.Network] = {}
        for name, options in ways.items():
            net = vrt.compile(make(), device=self.device, threads=threads, seed=1, **options)
            if found:
                net.parameters.update(next(iter(found.values())).parameters)
            found[name] = net
        return found

    def check(self, where: str, found: Mapping[str, Arrays], exact: Arrays, bound: float) -> None:
        """Compare what ways found with float64; put it down, and print it.

        Args:
            found: by way, arrays by name. exact: the same in float64.
            bound: of a difference, relative to the largest element. What a peer's float32 is off by
                is said and not judged, but beyond PEER_BOUND it computes something else.
        Raises: NumericError, when a way is off by more.
        """
        line = f"{where}: off from float64 by"
        for name, arrays in found.items():
            assert arrays.keys() == exact.keys(), (where, name)
            each = {what: difference(value, exact[what]) for what, value in arrays.items()}
            what = max(each, key=lambda what: np.nan_to_num(each[what], nan=np.inf))
            allowed = PEER_BOUND if name.startswith(PEER) else bound
            if not each[what] <= allowed:
                got = f"{what} of {name} is off by {each[what]:.1e} of the largest element"
                raise NumericError.at(
                    where, got, f"at most {allowed:.0e}", "nothing is timed before"
                )
            entry = {"where": f"{where}, {name}", "against": "float64", "bound": allowed}
            self.record.checks.append(entry | {"largest_difference": each[what]})
            line += f"  {name} {each[what]:.1e}"
        print(line, flush=True)

    def time(
        self, key: Key, ways: Mapping[str, Sample], per: Per = MILLISECONDS, flop: float = 0.0
    ) -> None:
        """Time ways in turn; print a line, and write the record.

        Args:
            ways: by name; ratios are of the first.
            per: what a time is given in.
            flop: of a call; 0 prints no rate.
        """
        if not self.options.rounds:
            return
        took = sampled_in_turn(ways, self.options.rounds, self.options.seconds)
        first = next(iter(ways))
        line = f"{row_name(key):40}"
        for name, seconds in took.items():
            samples = [each * per.scale for each in seconds]
            ratio = None if name == first else ratio_of(took[first], seconds)
            entry = make_entry(
                {**key, "variant": name},
                samples,
                per.unit,
                "lower",
                ratio=ratio,
                against=first if ratio else None,
            )
            line += f"  {name} {entry.median:9.4g} {per.unit}"
            if flop:
                entry.counts["tflops"] = flop / float(np.median(seconds)) * 1e-12
                line += f" {entry.counts['tflops']:.3g} TFLOP/s"
            if ratio:
                line += f" {ratio_text(took[first], seconds)}"
            self.record.entries.append(entry)
        print(line, flush=True)
        self.record.write(self.path)


def torch_layers() -> Any:
    """Import PyTorch's layers.

    Raises: UsageError, where PyTorch is not installed.
    """
    if find_spec("torch") is None:
        action = 'install the extra with `pip install -e ".[torch]"`'
        raise UsageError.at("papers", "PyTorch is not installed", "it, as the peer", action)
    return import_module("benchmarks.peers.torch_stacks")


def row_name(key: Key) -> str:
    """Say what a row is of: the model, or the hidden size where there is none, and the rest."""
    shown = {**key, "batch_size": f"batch {key['batch_size']}", "hidden": f"h {key['hidden']}"}
    left_out = ("part", "hidden" if "model" in key else "")
    return ", ".join(str(value) for name, value in shown.items() if name not in left_out)


@contextmanager
def opened_table(name: str, options: argparse.Namespace, command: list[str]) -> Iterator[Table]:
    """Yield a table; what it holds is a file of that name at the end."""
    with recording(name, options, command) as made:
        if find_spec("torch") is not None:
            import_module("torch").set_num_threads(made.threads)
        yield Table(**vars(made))


def sampled_in_turn(
    ways: Mapping[str, Sample], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return the seconds of a call of each way in each round; the order turns by one a round."""
    calls: dict[str, int] = {}
    for name, sample in ways.items():
        sample(1)
        begin = perf_counter()
        sample(2)
        each = (perf_counter() - begin) / 2
        calls[name] = max(1, min(MOST_CALLS, int(seconds / each)))

    def taken(name: str, number: int) -> float:
        return ways[name](calls[name])

    return in_turn({name: partial(taken, name) for name in ways}, rounds)


def each_waited(
    call: Callable[[], Any], wait: Callable[[], Any], clock: Clock = perf_counter
) -> Sample:
    """Wait for every call: the latency of a request."""

    def request() -> None:
        call()
        wait()

    return waited_once(request, wait, clock)


def waited_once(
    call: Callable[[], Any], wait: Callable[[], Any], clock: Clock = perf_counter
) -> Sample:
    """Wait after the last call: the time of a step of training."""

    def sample(times: int) -> float:
        wait()
        begin = clock()
        for _ in range(times):
            call()
        wait()
        return (clock() - begin) / times

    return sample


def nothing() -> None:
    """Wait for a CPU: what it was asked for is done."""
