"""How the graphs of a data set go through a network: warm-up, minibatches, evaluation."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from vertexrt.api.carried import CarriedState
from vertexrt.api.optimizer import Optimizer
from vertexrt.cache import notes
from vertexrt.cli.interrupt import Interrupt
from vertexrt.cli.measures import MEASURES, Totals
from vertexrt.cli.session import RunSession
from vertexrt.cli.tasks import Task
from vertexrt.data import Loader
from vertexrt.graph import GraphBatch
from vertexrt.parallel import ProcessGroup

EVALUATION_BATCH = 64  # graphs; more than most runs train with: no gradients are kept
EVALUATION_WINDOW = 16  # minibatches over which graphs are sorted by size: fuller levels


def carried_state(session: RunSession) -> CarriedState | None:
    """Return what carries state over pieces of a text, where the model is told to."""
    return CarriedState(session.net) if session.options.shape.get("carried") else None


def running_time() -> float:
    """Return a clock in seconds that stands while something is compiled: that is done once."""
    return perf_counter() - notes.seconds()


def pushes_of_steps(session: RunSession, carried: CarriedState | None) -> tuple[str, ...]:
    """Return the pushes that steps are asked for."""
    if carried is not None:
        return tuple(carried.shapes)
    if session.net.device == "cuda":
        return ()  # they would have to be waited for, so that none of their measures are reported
    return tuple(name for name in session.task.pushes if name != "loss")


def warm_up(session: RunSession, optimizer: Optimizer) -> None:
    """Compile what the kinds of vertices of a data set need, so that no minibatch waits for it."""
    splits, carried = session.dataset.splits, carried_state(session)
    train, dev = (
        splits[name] if carried is None else carried.put(splits[name]) for name in ("train", "dev")
    )
    graphs, evaluated = session.options.batch_size, carried.shapes if carried else ()
    session.net.warm(train, optimizer, outputs=pushes_of_steps(session, carried), graphs=graphs)
    outputs = (*session.task.pushes, *evaluated)
    session.net.warm(dev, outputs=outputs, graphs=max(graphs, EVALUATION_BATCH))


def training_loader(session: RunSession, carried: CarriedState | None) -> Loader:
    """Return the minibatches that a run trains on; the same for the same options."""
    options = session.options
    graphs = session.dataset.splits["train"]
    if carried is not None:
        return _streams(graphs, options.batch_size, carried)
    return Loader(graphs, options.batch_size, bucket=options.window, seed=options.seed)


def _streams(graphs: GraphBatch, size: int, carried: CarriedState) -> Loader:
    """Return minibatches in the order of the text, from its beginning."""
    carried.restart()
    return Loader(graphs, size, shuffle=False, prepare=carried.put)


def evaluate(
    session: RunSession,
    split: str,
    interrupt: Interrupt | None = None,
    batch_size: int | None = None,
    group: ProcessGroup | None = None,
) -> Totals | None:
    """Evaluate a split without dropout.

    Args:
        split: a split of the session's data set that holds graphs.
        interrupt: when a signal is noted there, evaluation stops.
        batch_size: graphs at a time.
        group: of processes, each of which evaluates some minibatches; all return the same.
    Returns: the totals; None after an interrupt.
    """
    interrupt, group = interrupt or Interrupt(), group or ProcessGroup()
    net, task, carried = session.net, session.task, carried_state(session)
    graphs, trained_with = session.dataset.splits[split], session.options.batch_size
    if carried is None:
        size = batch_size or max(trained_with, EVALUATION_BATCH)
        loader = Loader(graphs, size, shuffle=False, bucket=EVALUATION_WINDOW)
        several, wanted, draws = group, task.pushes, bool(net.program.find("uniform"))
    else:  # what is carried comes from the minibatch before: every process evaluates all
        loader = _streams(graphs, trained_with, carried)
        several, wanted, draws = ProcessGroup(), (*task.pushes, *carried.shapes), False
    arrays = "numpy" if carried is None else "device"  # states stay there
    random = net.state()["random"] if draws else {}
    start = running_time()
    parts: list[Totals] = []
    for number, batch in enumerate(loader):
        if interrupt.number:
            break
        if number % several.size == several.rank:
            pushed = net(batch, outputs=wanted, arrays=arrays)
            if carried is not None:
                carried.keep(batch, pushed)
            loss = float(pushed["loss"].sum(dtype=np.float64))
            parts.append(Totals())
            parts[-1].add(task, batch, pushed, loss, session.dataset.labels)
        elif draws:  # of a minibatch that another process evaluates: they count
            net.load_state({"random": {**random, "draws": random["draws"] + number + 1}})
    seconds = running_time() - start
    group.signal = group.largest(interrupt.number, seconds)  # others may take twice as long
    if group.signal:
        return None
    return Totals.of(in_turn(parts, task, len(loader), several), seconds)


def in_turn(own: list[Totals], task: Task, count: int, group: ProcessGroup) -> list[Totals]:
    """Return what each minibatch of an evaluation adds, in order.

    So sums are those of one process, bit for bit.

    Args:
        own: of the minibatches of this process: one in `group.size`, from `group.rank` on.
        count: minibatches.
    """
    names = sorted({name for measure in task.measures for name in MEASURES[measure].sums})
    table = np.zeros((-(-count // group.size), 2 + len(names)))
    for row, part in zip(table, own, strict=False):
        row[:] = part.loss, part.graphs, *(part.sums.get(name, 0) for name in names)
    found = group.gather(table).swapaxes(0, 1).reshape(-1, table.shape[1])[:count]
    return [
        Totals(loss, int(graphs), 0.0, dict(zip(names, sums, strict=True)))
        for loss, graphs, *sums in found.tolist()
    ]
