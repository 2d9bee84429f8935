"""What a request costs: an LSTM of 100 steps, one sequence, results waited for each time.

    python -m benchmarks.requests [--device cuda] [--hidden 64,256,1024] [--rounds 40]

Ways take turns, ten requests in a row each, as a service answers them; the first of a row, which
comes after other code has run, is listed apart. Ways are: graphs built for the request, a batch
that is there and gets other pulls, a plan of it, and a plan that gives the last step alone. On a
GPU the persistent engine runs, and arrays of the device come in and go out, but for the first two
ways also from the host; the kernel's own time is that between two events of its stream, with the
products that are launched between its pieces. One thread of the host. Results are first compared
with an LSTM written out in NumPy, in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.lstm_inference import BOUND, STEPS, Recurrent
from vertexrt.bench.measure import in_turn
from vertexrt.cli.options import COUNT, CommandOption, Several

PROCESSORS = {64: 1, 256: 16, 1024: 128}  # of a group on a GPU, see `lstm_inference`
ROW = 10  # requests of a way, one after the other
WARM = 2  # rows
Array = np.ndarray[Any, Any]


class TimedDevice:
    """A device whose requests are timed by events of its stream.

    A request begins with its first launch, or with what lets products be launched (`calls`), and
    ends with its last persistent launch: products between two launches, and before the first, are
    in it. A launch that waits for the host counts, too.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._cuda = getattr(device.arrays(), "cuda", None)  # none where a CPU takes its place
        self._spans: list[tuple[Any, Any]] = []
        self._start: Any = None
        self._end: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    @property
    def calls(self) -> Any:
        """What launches products; a request has begun."""
        self._begin()
        return self._device.calls

    def launch_all(self, *given: Any) -> int:
        """Launch a piece of a request."""
        self._begin()
        code: int = self._device.launch_all(*given)
        self._end = self._now()
        return code

    def end_request(self) -> None:
        """Note that all of a request has been launched."""
        assert self._end is not None, "a request launches the persistent kernel"
        self._spans.append((self._start, self._end))
        self._start = self._end = None

    def _begin(self) -> None:
        if self._start is None:
            self._start = self._now()

    def _now(self) -> Any:
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event()
        self._cuda.runtime.eventRecord(event.ptr, self._device.calls.stream)
        return event

    def microseconds(self) -> Array:
        """Return how long each request took; they are over."""
        if self._cuda is None:
            return np.array([1e6 * (end - start) for start, end in self._spans])
        elapsed = self._cuda.get_elapsed_time
        return np.array([1e3 * elapsed(start, end) for start, end in self._spans])


@dataclass
class Subject:
    """A network and its requests.

    Attributes:
        x: float32 [requests, STEPS, 4 * hidden], on the host; lent: the same, where they come from.
        wait: waits for what a request has asked for.
    """

    net: vrt.Network
    x: Array
    lent: Sequence[Any]
    wait: Callable[[], None]


def lstm(parameters: Any, x: Array) -> Array:
    """Evaluate the LSTM of `Recurrent` over one sequence, in float64: [STEPS, hidden]."""
    u, b = (np.asarray(parameters[name], np.float64) for name in ("u", "b"))
    h = c = np.zeros(u.shape[1])
    found = []
    for gates in x.astype(np.float64):
        i, f, o, g = np.split(gates + b + u @ h, 4)
        i, f, o = (1.0 / (1.0 + np.exp(-z)) for z in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        found.append(h)
    return np.array(found)


def subject_of(net: vrt.Network, hidden: int, requests: int = 4, seed: int = 0) -> Subject:
    """Draw requests for a network of that size."""
    shape = requests, STEPS, 4 * hidden
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if net.device != "cuda":
        return Subject(net, x, list(x), lambda: None)
    device = net.executor.session.device  # type: ignore[attr-defined]
    arrays = device.arrays()
    cuda = getattr(arrays, "cuda", None)
    if cuda is None:
        return Subject(net, x, list(x), lambda: None)
    return Subject(
        net, x, [arrays.asarray(each) for each in x], cuda.get_current_stream().synchronize
    )


def ways_of(subject: Subject) -> dict[str, Callable[[int], Any]]:
    """Return what answers a request, by name: the pushes `h`, of all steps or of the last."""
    net, x, lent = subject.net, subject.x, subject.lent

    def graphs(k: int) -> vrt.GraphBatch:
        return vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(STEPS, {"x": x[k]})])

    batch = graphs(0)
    plan = net.plan(batch, arrays="device")
    last = net.plan(batch, vertices=batch.roots, arrays="device")
    ways = {
        "graphs": lambda k: net(graphs(k))["h"],
        "batch": lambda k: net(batch.with_pulls({"x": x[k]}))["h"],
        "plan": lambda k: plan({"x": lent[k]})["h"],
        "plan, last step": lambda k: last({"x": lent[k]})["h"],
    }
    if net.device != "cuda":
        return ways
    hosts = net.plan(batch)
    ways["plan, arrays of the host"] = lambda k: hosts({"x": x[k]})["h"]
    ways["batch, on the device"] = lambda k: net(batch.with_pulls({"x": lent[k]}), arrays="device")[
        "h"
    ]
    return ways


def check(subject: Subject, ways: dict[str, Callable[[int], Any]]) -> None:
    """Compare every way with NumPy. Raises: AssertionError."""
    for k, x in enumerate(subject.x):
        wanted = lstm(subject.net.parameters, x)
        for name, way in ways.items():
            found = way(k)
            found = found.get() if hasattr(found, "get") else found
            error = float(np.abs(found - wanted[-len(found) :]).max() / np.abs(wanted).max())
            assert error <= BOUND, f"{name}: off by {error:.1e}"


def measure(
    subject: Subject, ways: dict[str, Callable[[int], Any]], rounds: int
) -> dict[str, Array]:
    """Return the microseconds of requests by way, [rounds, ROW] each; ways take turns."""

    def row(way: Callable[[int], Any], number: int) -> list[float]:
        return [_request(subject, way, number + k) for k in range(ROW)]

    took = in_turn({n: partial(row, way) for n, way in ways.items()}, rounds, -min(WARM, rounds))
    return {name: np.array(rows) for name, rows in took.items()}


def _request(subject: Subject, way: Callable[[int], Any], number: int) -> float:
    """Answer one request, wait for it, and return its microseconds."""
    start = time.perf_counter()
    way(number % len(subject.x))
    subject.wait()
    return 1e6 * (time.perf_counter() - start)


def kernel_times(subject: Subject, plan: Callable[[int], Any], rounds: int) -> Array:
    """Return the microseconds of a plan's launches by events, [rounds]."""
    session = subject.net.executor.session  # type: ignore[attr-defined]
    before, session.device = session.device, TimedDevice(session.device)
    try:
        for number in range(rounds):
            plan(number % len(subject.x))
            session.device.end_request()
            subject.wait()
        found: Array = session.device.microseconds()
    finally:
        session.device = before
    return found


def report(net: vrt.Network, hidden: int, rounds: int) -> None:
    """Check and time the ways of one size."""
    subject = subject_of(net, hidden)
    ways = ways_of(subject)
    check(subject, ways)
    took = measure(subject, ways, rounds)
    for name, times in took.items():
        low, middle, high = np.percentile(times[:, 1:], [25, 50, 75])
        ratio = float(np.median(times[:, 1:] / took["plan"][:, 1:]))
        print(
            f"h {hidden:4} {name:25} {middle:8.1f} us [{low:.1f} {high:.1f}], "
            f"{ratio:5.2f} times a plan; the first of a row {np.median(times[:, 0]):.1f}",
            flush=True,
        )
    if net.device == "cuda":
        kernel = float(np.median(kernel_times(subject, ways["plan"], rounds * ROW)))
        over = float(np.median(took["plan"][:, 1:])) - kernel
        print(f"h {hidden:4} kernel {kernel:.1f} us; a planned request {over:.1f} us over it")


def main(words: Sequence[str] | None = None) -> None:
    """Read the options, measure."""
    sizes = CommandOption(
        "--hidden N,N,...", Several(COUNT), "", "sizes; 64,256 and on a GPU 1024 by default"
    )
    rounds = CommandOption("--rounds N", COUNT, "", "of ten requests each", default=40)
    given = read_options("benchmarks.requests", __doc__, words, sizes, rounds, device="cpu")
    gpu = given.device == "cuda"
    for hidden in given.hidden or ((64, 256, 1024) if gpu else (64, 256)):
        options: dict[str, Any] = {"device": given.device, "threads": 1, "seed": 1}
        if gpu:
            options |= {"engine": "persistent", "processors": PROCESSORS.get(hidden, 1)}
        net = vrt.compile(Recurrent(hidden), **options)
        report(net, hidden, given.rounds)


if __name__ == "__main__":
    main()
