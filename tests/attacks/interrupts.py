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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.outcomes import FAILED, Cases, Tally, run_in_children
from tests.attacks.small_function import CLASSES, MARK, WORDS, Small
from tests.runs import Way
from vertexrt.errors import DeviceError, VertexrtError
from vertexrt.native.load import load

Array = np.ndarray[Any, Any]
NEVER = -1
ENDED = KeyboardInterrupt, MemoryError, DeviceError  # as which a GPU names that memory is missing
LOADER = "loader, 2 threads"
COLD = 0.03  # of the cases begin with networks that have compiled nothing
LAST = 250  # events of a call
BY_TIMER, OUT_OF_MEMORY = 0.15, 0.15  # of the cases; the others are interrupted at an event

WAYS: dict[str, dict[str, Any]] = {
    f"{device}, {engine}, {threads}": {
        "device": device,
        "engine": engine,
        "threads": threads,
        "processors": threads if engine == "persistent" else None,
    }
    for device in ("reference", "cpu")
    for engine in ("batched", "persistent")
    for threads in (1, 2)
}
# Of a GPU, and of the stand-in for one: asked for by name.
OF_A_GPU: dict[str, dict[str, Any]] = {
    f"{device}, {engine}": {
        "device": device,
        "engine": engine,
        "processors": 2 if engine == "persistent" else None,
    }
    for device in ("shim", "cuda")
    for engine in ("batched", "persistent")
}

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
        self._state = (ctypes.c_int64 * 3)(0, NEVER, 0)
        self._code = load(TRACER, ["vrt_trace"], {"state": ctypes.addressof(self._state)})
        self._tracer = ctypes.c_void_p(self._code["vrt_trace"])
        self._watch = [ctypes.pythonapi.PyEval_SetTrace, ctypes.pythonapi.PyEval_SetProfile]
        for function in self._watch:
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.signal(signal.SIGUSR1, out_of_memory)

    def counted(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Do a call; return what it returns, and how many events it has."""
        self._begin(NEVER, 0)
        found = call()
        self._end()
        return found, self._state[0]

    def interrupted(self, call: Callable[[], Any], at: int, number: int) -> tuple[Any, bool]:
        """Do a call that is interrupted at an event; return what it returns, and whether it did."""
        found, returned = None, False
        try:
            self._begin(at, number)
            found = call()
            returned = True
            self._end()
        except ENDED:
            self._end()
            return None, False
        return found, returned

    def timed(self, call: Callable[[], Any], seconds: float) -> tuple[Any, bool]:
        """Do the same with a call that a timer interrupts."""
        found, returned = None, False
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            found = call()
            returned = True
            signal.setitimer(signal.ITIMER_REAL, 0)
        except ENDED:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return None, False
        return found, returned

    def _begin(self, at: int, number: int) -> None:
        self._state[:] = [0, at, number]
        for watch in self._watch:
            watch(self._tracer, None)

    def _end(self) -> None:
        for watch in self._watch:
            watch(None, None)


def dropping() -> Small:
    """Make a tree network with a table, two slots and dropout."""
    return Small(dropped=0.25)


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
        way = Way(dtype="float32", **{**WAYS, **OF_A_GPU}[self.way])
        self.net = way.compile(dropping(), seed=3)
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


Call = Callable[[Side], Any]


def step(side: Side) -> Any:
    loss = side.net.step(side.batches[0], side.adam, outputs=["out"])
    return loss, dict(loss.outputs)


def step_by_own(side: Side) -> Any:
    return side.net.step(side.batches[0], side.own)


def forward(side: Side, dropout: bool = True) -> Any:
    return side.net(side.batches[0], dropout=dropout)


def without_dropout(side: Side) -> Any:
    return forward(side, False)


def plan(side: Side) -> Any:
    side.kept["plan"] = side.net.plan(side.batches[0], dropout=True)


def ask_plan(side: Side) -> Any:
    return side.kept["plan"]()


@dataclass
class Forward:
    """A forward pass that can be gone back through."""

    number: int

    def __call__(self, side: Side) -> Any:
        side.kept[f"draws of {self.number}"] = side.net.state()["random"]["draws"]
        side.kept[self.number] = out = side.net.record(side.batches[self.number])
        return dict(out.outputs)


@dataclass
class Backward:
    """The way back through it."""

    number: int

    def __call__(self, side: Side) -> Any:
        found = side.kept[self.number].backward()
        return found.parameters, found.pulled


def zero_grad(side: Side) -> Any:
    side.net.zero_grad()


def optimizer_step(side: Side) -> Any:
    side.adam.step(side.net)


def set_parameters(side: Side) -> Any:
    side.net.parameters.update({n: 0.9 * a for n, a in side.net.parameters.items()})


# Of these the state says whether they were done; others return something and are done again.
CHANGING: tuple[Call, ...] = (step, step_by_own, optimizer_step, zero_grad, set_parameters)
SCRIPTS: tuple[tuple[Call, ...], ...] = (
    (step, step),
    (step, step_by_own, step),
    (forward, step),
    (without_dropout, forward),
    (plan, ask_plan, step, ask_plan),
    (Forward(0), Forward(1), Backward(0), Backward(1), optimizer_step, zero_grad),
    (Forward(0), step_by_own, Forward(1), Backward(1), optimizer_step),
    (set_parameters, step),
)


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


class Interrupts:
    """Runs cases; networks of a way stay from case to case."""

    def __init__(self, seed: int, ways: tuple[str, ...]) -> None:
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

        wanted, count = self.events.counted(epoch)
        self.events.interrupted(epoch, draw.randrange(count), signal.SIGINT)
        return "goes on" if epoch() == wanted else f"{FAILED}: another epoch"

    def _run(self, side: Side, twin: Side, draw: random.Random) -> str:
        script = draw.choice(SCRIPTS)
        chosen = draw.randrange(len(script))
        batches = [batch_of(draw), batch_of(draw)]
        for each in (side, twin):
            each.batches, each.kept = batches, {}
        outcome = ""
        for k, call in enumerate(script):
            where = f"number {k} of {[getattr(c, '__name__', repr(c)) for c in script]}"
            if k != chosen:
                self._compare(call(side), call(twin), where)
            else:
                outcome = self._interrupted(side, twin, call, draw, where)
        if wrong := differences(side.state(), twin.state()):
            raise Wrong(f"{outcome}, {where}: {wrong} differ after all")
        return outcome

    def _interrupted(
        self, side: Side, twin: Side, call: Call, draw: random.Random, where: str
    ) -> str:
        before = twin.state()
        start = time.perf_counter()
        wanted, count = self.events.counted(lambda: call(twin))
        seconds, after = time.perf_counter() - start, twin.state()
        kind, at = draw.random(), draw.randrange(count)
        if draw.random() < 0.5:  # what is written at the end has few of the events
            at = max(0, count - 1 - draw.randrange(LAST))
        if kind < BY_TIMER:
            found, returned = self.events.timed(lambda: call(side), draw.uniform(1e-6, seconds))
            where = f"a timer, {where}"
        else:
            number = signal.SIGUSR1 if kind < BY_TIMER + OUT_OF_MEMORY else signal.SIGINT
            found, returned = self.events.interrupted(lambda: call(side), at, number)
            where = f"event {at} of {count}, {where}"
        if returned:
            self._compare(found, wanted, where)
            return "returned"
        now, changes = side.state(), call in CHANGING or isinstance(call, Backward)
        if not differences(now, after):
            if changes:
                return "after"
        elif wrong := differences({**now, "draws": before["draws"]}, before):
            raise Wrong(f"{where}: {wrong} are not as before, {differences(now, after)} not after")
        elif changes and differences(now, before):
            raise Wrong(f"{where}: the random state is not as before")
        self._again(side, call, before, wanted, where)
        return "before"

    def _again(
        self, side: Side, call: Call, before: dict[str, Any], wanted: Any, where: str
    ) -> None:
        """Do a call again; a pass that was taken for the way back, too."""
        if isinstance(call, Backward) and side.kept[call.number].done:
            side.forget({"draws": side.kept[f"draws of {call.number}"]})
            Forward(call.number)(side)
        side.forget(before)
        self._compare(call(side), wanted, f"again, {where}")

    @staticmethod
    def _compare(found: Any, wanted: Any, where: str) -> None:
        if list(leaves(found)) != list(leaves(wanted)):
            raise Wrong(f"{where}: another result")


def make_cases(seed: int, ways: tuple[str, ...]) -> Cases:
    """Return what runs a case by its number."""
    return Interrupts(seed, ways).case


def attack(
    count: int, seed: int, ways: tuple[str, ...] = (*WAYS, LOADER), jobs: int = 1, first: int = 0
) -> Tally:
    """Run cases first..first+count-1 in child processes."""
    return run_in_children(
        make_cases, (seed, ways), count, jobs=jobs, chunk=max(250, count // (8 * jobs)), first=first
    )
