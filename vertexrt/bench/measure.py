"""What takes turns in a comparison: that all compute the same is checked, then they are timed.

All take the same minibatches, in turn.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from itertools import count as numbers_from
from typing import Any, Protocol, TypeVar

import numpy as np

import vertexrt as vrt
from vertexrt.api.network import Network
from vertexrt.bench.record import Results
from vertexrt.bench.run import say
from vertexrt.data import Loader
from vertexrt.engine.explain import flops
from vertexrt.engine.explain_host import kernel_calls
from vertexrt.engine.variant import Use
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch

Arrays = dict[str, np.ndarray]
TRAINING = Use(frozenset({"loss"}), loss=True)
Counts = dict[str, float]
BOUNDS = {"float32": 1e-4, "float64": 1e-9}  # of the largest element; sums over 1e5 terms
# Where F has a kink, rounding decides now and then on which side of it an element lies, and with
# it a whole path of the gradient: bound of the difference's 2-norm, relative to the gradient's.
KINKED_BOUND = 1e-2
CHECKING_LR = 1024.0  # large, so that little of a gradient is lost to rounding; exact in binary
GRADIENT = "the gradient of "
LR = 1e-3  # small: the parameters stay where arithmetic takes its usual time
BLOCK_SECONDS = 0.05  # of the fastest contender: one synchronisation is short compared with that
MICROSECONDS = 1e6  # of a second
Samples = dict[str, list[float]]  # of the parts of a step, by name in microseconds
Name = TypeVar("Name")
Found = TypeVar("Found")
ROUNDS = (3, 25)  # at least, at most
WARM_STEPS = (2, 60)  # of each contender, before its speed is estimated
WARM_SHARE = 0.2  # of the time, for all contenders together


class Contender(Protocol):
    """A model that trains and evaluates minibatches, whose schedule it builds each time anew.

    On a GPU `train` and `infer` may return before the work is done; `sync` waits for it.
    """

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""

    def infer(self, batch: GraphBatch) -> Any:
        """Return an output of every vertex in their order, which NumPy takes once synced."""

    def sync(self) -> None:
        """Wait until everything that was asked for is done."""

    def parameters(self) -> Arrays:
        """Return copies of the parameters, by the names and layouts of the vertex function."""

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""


class Stepper:
    """A compiled vertex function, whose steps are timed.

    It is compared by the loss of every vertex, so that nothing is compiled but what is timed.

    Args:
        net: compiled with a loss that is divided by the number of graphs.
        waits: each step is waited for.
    """

    def __init__(self, net: vrt.Network, waits: bool = False) -> None:
        self.net = net
        self.waits = waits
        self._optimizer = vrt.SGD(lr=0.0)
        self._loss: vrt.types.Loss | float = math.nan

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run a step, and wait for it where the setting says so."""
        self._optimizer.lr = lr
        self._loss = self.net.step(batch, self._optimizer)
        if self.waits:
            self.net.sync()

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""
        return float(self._loss)

    def infer(self, batch: GraphBatch) -> Any:
        """Return the loss of every vertex, from a step that changes nothing."""
        return self.net.step(batch, vrt.SGD(lr=0.0), outputs=("loss",)).outputs["loss"]

    def sync(self) -> None:
        """Wait, on a device that runs ahead of the host."""
        self.net.sync()

    def parameters(self) -> Arrays:
        """Return copies of the parameters by name."""
        return dict(self.net.parameters)

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
        self.net.parameters.update(values)


def count(net: Network, batch: GraphBatch) -> Counts:
    """Count what a minibatch takes, over all its shares.

    Returns: tasks; rows (merged vertices once); launches of task programs; calls of compiled code
        for forward and backward; groups (fused loops) and products (GEMM calls) of these launches;
        instructions and waits of the scripts; flops of products; arena_bytes. On a GPU also
        kernels, wide (products by warp groups) and library (those of cuBLAS), where it is batched,
        and streams, their launches outside the main one, and waits for others, where there are
        several.
    """
    model, explanation = net.executor.model, net.executor.explanation()
    itemsize = model.store.dtype.itemsize
    total: Counts = defaultdict(float)
    for run in model.prepare(TRAINING, batch):
        groups, products = kernel_calls(run)
        found: Counts = {
            "tasks": run.layout.schedule.num_tasks,
            "rows": len(run.layout.schedule.order),
            "launches": len(run.layout.table),
            "flops": flops(run, forward=True) + flops(run, forward=False),
            "arena_bytes": run.layout.plan.total * itemsize,
            "groups": groups,
            "products": products,
        }
        for name, value in (found | explanation.counts(run)).items():
            total[name] += value
    return dict(total)


class Disagreement(NumericError):
    """Report that two contenders do not compute the same."""


def evaluate(contender: Contender, batch: GraphBatch) -> Arrays:
    """Return the loss, each gradient and the output of a batch, by what an error calls them.

    The parameters stay as they are. Gradients are taken from the step that is timed: how far plain
    SGD goes, divided by its rate.
    """
    outputs = contender.infer(batch)
    contender.sync()
    output = np.asarray(outputs).copy()  # PyTorch takes no `copy` from NumPy
    before = contender.parameters()
    contender.train(batch, CHECKING_LR)
    found = {"the loss": np.array(contender.loss())}
    contender.sync()
    after = contender.parameters()
    contender.set_parameters(before)
    found |= {GRADIENT + f"'{name}'": (before[name] - after[name]) / CHECKING_LR for name in before}
    return found | {"the output": output}


def compare(
    record: Results,
    contenders: Mapping[str, Contender],
    batch: GraphBatch,
    where: str,
    kinked: bool = False,
    dtype: str = "float32",
) -> None:
    """Compare every contender with the first one, and put it down in a record.

    Args:
        where: what is compared, for the record and the message.
        kinked: F is not smooth: gradients are compared by their norm, with `KINKED_BOUND`.
        dtype: names the bound of a difference, relative to the largest element.
    Raises: Disagreement, when a difference exceeds the bound; it names the parameter.
    """
    against, *others = contenders
    expected = evaluate(contenders[against], batch)
    largest = 0.0
    for name in others:
        found = evaluate(contenders[name], batch)
        assert found.keys() == expected.keys(), sorted(found)
        for what, value in expected.items():
            loose = kinked and what.startswith(GRADIENT)
            allowed = KINKED_BOUND if loose else BOUNDS[dtype]
            off = difference(found[what], value, None if loose else np.inf)
            if not off <= allowed:
                got = f"{what} of {name} differs from that of {against} by {off:.1e} of its "
                raise Disagreement.at(
                    f"check, {where}",
                    got + "largest element",
                    f"at most {allowed:.0e}",
                    "nothing is timed before they agree",
                )
            largest = max(largest, off)
    entry = {"where": where, "against": against, "bound": BOUNDS[dtype]}
    record.checks.append(entry | {"largest_difference": largest, "variants": len(contenders)})
    say(f"{where}: {len(contenders)} variants agree with {against} within {largest:.1e}")


def difference(found: Any, expected: Any, norm: float | None = np.inf) -> float:
    """Return how far arrays are apart, relative to the norm of what is expected.

    Args:
        norm: the largest element; None for the 2-norm.
    Returns: inf, where the shapes differ.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        return math.inf
    off = np.linalg.norm((found - expected).ravel(), norm)
    return float(off / (np.linalg.norm(expected.ravel(), norm) or 1.0))


class Draw:
    """Draw minibatches from a pool, every graph once an epoch; the last, smaller ones are left out.

    Contenders get the numbers of graphs only: taking them from the pool is a part of a step.
    """

    def __init__(self, pool: GraphBatch, batch_size: int) -> None:
        self.pool = pool
        self.batch_size = min(batch_size, pool.num_graphs)
        drawn = chain.from_iterable(map(Loader(pool, self.batch_size).order, numbers_from()))
        self._numbers = (ids for ids in drawn if len(ids) == self.batch_size)

    def take(self, number: int) -> list[np.ndarray]:
        """Return the graph numbers of the next minibatches."""
        return list(islice(self._numbers, number))


def in_turn(
    ways: Mapping[Name, Callable[[int], Found]], rounds: int, first: int = 0
) -> dict[Name, list[Found]]:
    """Return what each way finds in each round, by name.

    The order turns by one place from round to round (A B C, B C A, C A B ...).

    Args:
        ways: they are given the number of the round.
        first: number of the first round; what is found in those below 0 does not count.
    """
    found: dict[Name, list[Found]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(first, rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            each = ways[name](number)
            if number >= 0:
                found[name].append(each)
    return found


def measure(
    contenders: Mapping[str, Contender],
    draw: Draw,
    seconds: float,
    rounds: tuple[int, int] = ROUNDS,
) -> dict[str, list[float]]:
    """Time every contender in turn over the same minibatches.

    A sample is a block of steps with one synchronisation at its end; before and after it the device
    is idle.

    Args:
        seconds: for all contenders together, warm-up included.
        rounds: the fewest, also when they take longer than `seconds`, and the most.
    Returns: graphs/s by contender, one a round.
    """

    def turn(contender: Contender, ids: list[np.ndarray]) -> float:
        for each in contenders.values():
            each.sync()
        begin = time.perf_counter()
        for graphs in ids:
            contender.train(draw.pool.take(graphs), LR)
        contender.sync()
        return time.perf_counter() - begin

    def warm_up(contender: Contender) -> float:
        """Run untimed steps, which compile and grow buffers; return the quickest's seconds."""
        end = time.perf_counter() + WARM_SHARE * seconds / len(contenders)
        took, done, count = math.inf, 0, WARM_STEPS[0]
        while done < WARM_STEPS[0] or (done < WARM_STEPS[1] and time.perf_counter() < end):
            took = min(took, turn(contender, draw.take(count)) / count)
            done += count
            count = max(1, min(2 * count, int((end - time.perf_counter()) / took)))
        return took

    least, most = rounds
    start = time.perf_counter()
    took = [warm_up(each) for each in contenders.values()]
    left = max(seconds - (time.perf_counter() - start), 0.0)
    steps = math.ceil(BLOCK_SECONDS / min(took))
    steps = max(1, min(steps, int(left / least / sum(took))))
    count = min(max(int(left / (steps * sum(took))), least), most)
    drawn = [draw.take(steps) for _ in range(count)]

    def rate(contender: Contender, number: int) -> float:
        return steps * draw.batch_size / turn(contender, drawn[number])

    return in_turn({name: partial(rate, each) for name, each in contenders.items()}, count)


def within(seconds: float, least: int, most: int) -> Iterator[int]:
    """Count from 0 while there is time: `least` numbers in any case, and `most` at most."""
    end = time.perf_counter() + seconds
    for number in range(most):
        if number >= least and time.perf_counter() >= end:
            return
        yield number


def take_steps(net: vrt.Network, draw: Draw, count: int) -> float:
    """Run so many steps; return microseconds a step."""
    optimizer, numbers = vrt.SGD(lr=LR), draw.take(count)
    begin = time.perf_counter()
    for ids in numbers:
        net.step(draw.pool.take(ids), optimizer)
    net.sync()
    return (time.perf_counter() - begin) / count * MICROSECONDS


@contextmanager
def timed(owner: object, method: str) -> Iterator[list[float]]:
    """Note the seconds of each call of a method of one object, in the list that is yielded."""
    original: Callable[..., Any] = getattr(owner, method)
    noted: list[float] = []

    def wrapper(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = original(*arguments, **options)
        noted.append(time.perf_counter() - begin)
        return result

    setattr(owner, method, wrapper)
    try:
        yield noted
    finally:
        delattr(owner, method)
