"""Interrupt calls of a network at any instant: it is as before the call or as after it.

    python -m tests.attacks interrupts --count 5000 --seed 1 --jobs 2

A case lets two networks of the same bits do the same calls, one of them interrupted: at the k-th
event of Python that a tracer sees (a line, a call, a return), where the interpreter then raises
KeyboardInterrupt or MemoryError as it does for a signal; or by a timer, at any time. Parameters,
moments, counts, gradients and random state have to be those of the other network before or after
that call, and all that follows has to have its bits.
"""

from __future__ import annotations

import ctypes
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.outcomes import FAILED, Cases, Tally, run_in_children
from tests.attacks.small_function import CLASSES, MARK, WORDS, Small
from tests.runs import Way
from vertexrt.errors import DeviceError, VertexrtError
from vertexrt.native.load import load

NEVER = -1
ENDED = KeyboardInterrupt, MemoryError, DeviceError  # as which a GPU names that memory is missing
LOADER = "loader, batched, 2"
COLD = 0.03  # of the cases begin with networks that have compiled nothing
LAST = 250  # events of a call
BY_TIMER, OUT_OF_MEMORY = 0.15, 0.15  # of the cases; the others are interrupted at an event
# Of a GPU, and of the stand-in for one, by name alone: "shim, persistent, 2".
WAYS = [
    f"{device}, {engine}, {threads}"
    for device in ("reference", "cpu")
    for engine in ("batched", "persistent")
    for threads in (1, 2)
]

# A tracer that counts, and at a number interrupts the thread. It is no Python, where the exception
# would be raised in the tracer itself.
TRACER = """
@state = external global [3 x i64]
declare i32 @PyErr_SetInterruptEx(i32)
define i32 @vrt_trace(ptr %self, ptr %frame, i32 %what, ptr %about) {
  %before = load i64, ptr @state
  %now = add i64 %before, 1
  store i64 %now, ptr @state
  %second = getelementptr i64, ptr @state, i64 1
  %at = load i64, ptr %second
  %hit = icmp eq i64 %before, %at
  br i1 %hit, label %raise, label %end
raise:
  %third = getelementptr i64, ptr @state, i64 2
  %signal = load i64, ptr %third
  %number = trunc i64 %signal to i32
  call i32 @PyErr_SetInterruptEx(i32 %number)
  br label %end
end:
  ret i32 0
}
"""


def out_of_memory(*_: object) -> None:
    """Handle a signal."""
    raise MemoryError


class Events:
    """Counts the events of calls of this thread, and interrupts one."""

    def __init__(self) -> None:
        self.state = (ctypes.c_int64 * 3)(0, NEVER, 0)
        self._code = load(TRACER, ["vrt_trace"], {"state": ctypes.addressof(self.state)})
        self._tracer = ctypes.c_void_p(self._code["vrt_trace"])
        self._watch = [ctypes.pythonapi.PyEval_SetTrace, ctypes.pythonapi.PyEval_SetProfile]
        for function in self._watch:
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.signal(signal.SIGUSR1, out_of_memory)

    def during(
        self, call: Callable[[], Any], at: float = NEVER, number: int = 0
    ) -> tuple[Any, bool]:
        """Do a call that a signal interrupts at an event, or a timer after a time.

        Returns: what it returns, and whether it did. `state` begins with the count of events.
        """
        found, returned = None, False
        try:
            if isinstance(at, float):
                signal.setitimer(signal.ITIMER_REAL, at)
            else:
                self.state[:] = [0, at, number]
                for watch in self._watch:
                    watch(self._tracer, None)
            found = call()
            returned = True
            self._end()
        except ENDED:
            self._end()
            return None, False
        return found, returned

    def _end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for watch in self._watch:
            watch(None, None)


def batch_of(draw: random.Random) -> vrt.GraphBatch:
    """Return a few small trees, from a few hundred that come again."""
    rng = np.random.default_rng(draw.randrange(300))
    graphs = []
    for size in rng.integers(1, 8, rng.integers(2, 6)).tolist():
        lists = [[c for c in (2 * v + 1, 2 * v + 2) if c < size] for v in range(size)]
        pulls = {
            "word": rng.integers(0, WORDS, size),
            "mark": rng.standard_normal((size, MARK)),
            "gain": rng.standard_normal(size),
            "label": rng.integers(0, CLASSES, size),
        }
        graphs.append(vrt.InputGraph.from_children(lists, pulls))
    return vrt.GraphBatch.from_graphs(graphs)


class Shrinking(vrt.Optimizer):
    """An update of one's own, which asks another optimizer."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.inner = vrt.SGD(0.05, momentum=0.9)

    def update(self, store: Any) -> None:
        for name in store.trained:
            store.value(name)[...] *= 0.999
        self.inner.update(store)


@dataclass
class Side:
    """A network, its optimizers, and what calls have kept."""

    way: str
    batches: list[vrt.GraphBatch] = field(default_factory=list)
    kept: dict[object, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device, engine, count = self.way.split(", ")
        processors = int(count) if engine == "persistent" else None
        threads = int(count) if device in ("reference", "cpu") else 1
        way = Way(device, "float32", engine=engine, threads=threads, processors=processors)
        self.net = way.compile(Small(dropped=0.25), seed=3)
        self.adam, self.own = vrt.Adam(0.01, clip_norm=5.0), Shrinking()

    def state(self) -> dict[str, Any]:
        """Return all that belongs together, copied."""
        found = {f"parameter {n}": a.copy() for n, a in self.net.parameters.items()}
        found |= {f"gradient {n}": a.copy() for n, a in self.net.gradients.items()}
        for name, optimizer in (("adam", self.adam), ("inner", self.own.inner)):
            found |= {f"{name} {n}": np.copy(a) for n, a in optimizer.state().items()}
        passes = np.array(self.net.gradients.passes)
        return {**found, "passes": passes, "draws": np.array(self.net.state()["random"]["draws"])}

    def forget(self, state: dict[str, Any]) -> None:
        """Let the next draw be that of a state: what has drawn returned nothing."""
        self.net.load_state({"random": {"seed": 3, "draws": int(state["draws"])}})


def step(side: Side, optimizer: Any) -> Any:
    loss = side.net.step(side.batches[0], optimizer, outputs=["out"])
    return loss, dict(loss.outputs)


def plan(side: Side) -> None:
    side.kept["plan"] = side.net.plan(side.batches[0], dropout=True)


def record(side: Side, number: int) -> Any:
    """Go forward, and keep the pass."""
    side.kept[f"draws {number}"] = side.net.state()["random"]["draws"]
    side.kept[number] = out = side.net.record(side.batches[number])
    return dict(out.outputs)


def back(side: Side, number: int) -> Any:
    """Go back through it."""
    found = side.kept[number].backward()
    return found.parameters, found.pulled


CALLS: dict[str, Callable[[Side], Any]] = {
    "step": lambda side: step(side, side.adam),
    "own": lambda side: step(side, side.own),
    "forward": lambda side: side.net(side.batches[0], dropout=True),
    "undropped": lambda side: side.net(side.batches[0]),
    "plan": plan,
    "ask": lambda side: side.kept["plan"](),
    "record0": lambda side: record(side, 0),
    "record1": lambda side: record(side, 1),
    "back0": lambda side: back(side, 0),
    "back1": lambda side: back(side, 1),
    "update": lambda side: side.adam.step(side.net),
    "zero": lambda side: side.net.zero_grad(),
    "set": lambda side: side.net.parameters.update(
        {name: 0.9 * value for name, value in side.net.parameters.items()}
    ),
    "load": lambda side: side.adam.load_state({n: x + x for n, x in side.adam.state().items()}),
}
# Of these the state says whether they were done; others return something and are done again.
CHANGING = ("step", "own", "update", "zero", "set", "load", "back0", "back1")
SCRIPTS = [
    "step step",
    "step own step",
    "forward step",
    "undropped forward",
    "plan ask step ask",
    "record0 record1 back0 back1 update zero",
    "record0 own record1 back1 update",
    "set step",
    "step load step",
]


def leaves(found: Any) -> Iterator[bytes]:
    """Yield the bits of all numbers of a result."""
    if isinstance(found, Mapping):
        for name in sorted(found):
            yield from leaves(found[name])
    elif isinstance(found, tuple):
        for each in found:
            yield from leaves(each)
    elif found is not None:
        yield np.ascontiguousarray(found).tobytes()


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Name what differs; moments that there are not yet are zero."""
    zero = np.zeros(())
    names = sorted({*one, *other})
    pairs = ((n, np.asarray(one.get(n, zero)), np.asarray(other.get(n, zero))) for n in names)
    return [n for n, a, b in pairs if not np.array_equal(*np.broadcast_arrays(a, b))]


class Wrong(Exception):
    """What must not happen."""


def compare(found: Any, wanted: Any, where: str) -> None:
    if list(leaves(found)) != list(leaves(wanted)):
        raise Wrong(f"{where}: another result")


class Interrupts:
    """Runs cases; networks of a way stay from case to case."""

    def __init__(self, seed: int, ways: Sequence[str]) -> None:
        self.seed, self.ways, self.events = seed, ways, Events()
        self._sides: dict[str, tuple[Side, Side]] = {}

    def case(self, number: int) -> tuple[str, str]:
        """Run a case; return its way and how it ended."""
        draw = random.Random(f"{self.seed} {number}")
        way = draw.choice(self.ways)
        if way == LOADER:
            return way, self._load(draw)
        if way not in self._sides or draw.random() < COLD:
            self._sides[way] = Side(way), Side(way)
        try:
            return way, self._run(*self._sides[way], draw)
        except (Wrong, VertexrtError, LookupError, RuntimeError) as error:
            del self._sides[way]
            return way, f"{FAILED}: {type(error).__name__}: {error}"

    def _load(self, draw: random.Random) -> str:
        """Interrupt an epoch whose minibatches threads make; then go through a whole one."""
        graphs = batch_of(draw)

        def epoch() -> list[int]:
            made = vrt.data.Loader(graphs, 1, workers=2, prepare=lambda batch, _: batch)
            return [batch.num_vertices for batch in made]

        wanted, _ = self.events.during(epoch)
        self.events.during(epoch, draw.randrange(self.events.state[0]), signal.SIGINT)
        return "goes on" if epoch() == wanted else f"{FAILED}: another epoch"

    def _run(self, side: Side, twin: Side, draw: random.Random) -> str:
        script = draw.choice(SCRIPTS).split()
        chosen = draw.randrange(len(script))
        batches, outcome = [batch_of(draw), batch_of(draw)], ""
        for each in (side, twin):
            each.batches, each.kept = batches, {}
        for k, name in enumerate(script):
            where = f"number {k} of {script}"
            if k == chosen:
                outcome = self._interrupted(side, twin, name, draw, where)
            else:
                compare(CALLS[name](side), CALLS[name](twin), where)
        if wrong := differences(side.state(), twin.state()):
            raise Wrong(f"{outcome}, {script}: {wrong} differ after all")
        return outcome

    def _interrupted(
        self, side: Side, twin: Side, name: str, draw: random.Random, where: str
    ) -> str:
        call, changes, before, start = CALLS[name], name in CHANGING, twin.state(), time.monotonic()
        wanted, _ = self.events.during(lambda: call(twin))
        seconds, count, after = time.monotonic() - start, self.events.state[0], twin.state()
        at: float = draw.randrange(count)
        if draw.random() < 0.5:  # what is written at the end has few of the events
            at = max(0, count - 1 - draw.randrange(LAST))
        kind = draw.random()
        if kind < BY_TIMER:
            at = draw.uniform(1e-6, seconds)
        number = signal.SIGUSR1 if kind < BY_TIMER + OUT_OF_MEMORY else signal.SIGINT
        found, returned = self.events.during(lambda: call(side), at, number)
        where = f"at {at} of {count}, {where}"
        if returned:
            compare(found, wanted, where)
            return "returned"
        now = side.state()
        if changes and not differences(now, after):
            return "after"
        wrong = differences({**now, "draws": before["draws"]}, before)
        if differences(now, after) and (wrong or (changes and differences(now, before))):
            raise Wrong(f"{where}: {wrong or 'draws'} are not as before, and not as after")
        passed = name.removeprefix("back")
        if passed != name and side.kept[int(passed)].done:  # it was taken for the way back
            side.forget({"draws": side.kept[f"draws {passed}"]})
            record(side, int(passed))
        side.forget(before)
        compare(call(side), wanted, f"again, {where}")
        return "before"


def make_cases(seed: int, ways: Sequence[str]) -> Cases:
    """Return what runs a case by its number."""
    return Interrupts(seed, ways).case


def attack(
    count: int, seed: int, ways: Sequence[str] = (*WAYS, LOADER), jobs: int = 1, first: int = 0
) -> Tally:
    """Run cases first..first+count-1 in child processes."""
    return run_in_children(
        make_cases, (seed, ways), count, jobs=jobs, chunk=max(250, count // (8 * jobs)), first=first
    )
