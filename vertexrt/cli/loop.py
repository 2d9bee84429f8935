"""Train a network epoch by epoch, so that a run can stop after any minibatch and go on exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from vertexrt.api.arguments import shared
from vertexrt.api.average import ExponentialMovingAverage
from vertexrt.api.carried import CarriedState
from vertexrt.api.optimizer import Optimizer
from vertexrt.cache import notes
from vertexrt.cli import run_state
from vertexrt.cli.interrupt import Interrupt
from vertexrt.cli.metrics import Totals, better, deciding, shown
from vertexrt.cli.processes import in_turn, skip_draws
from vertexrt.cli.progress import Reporter
from vertexrt.cli.run_folder import RunFolder
from vertexrt.cli.run_state import RunState
from vertexrt.cli.session import RunSession, rate_of
from vertexrt.cli.trace import TraceFile
from vertexrt.data import Loader
from vertexrt.graph import GraphBatch
from vertexrt.parallel import ProcessGroup

EVALUATION_BATCH = 64  # graphs; more than most runs train with: no gradients are kept
EMPTY: Mapping[str, np.ndarray] = {}
SLOW_DISK = 2e6  # bytes of parameters a second, to wait for; moments come with them
EVALUATION_WINDOW = 16  # minibatches over which graphs are sorted by size: fuller levels


@dataclass(slots=True)
class Training:
    """Hold a run while it trains.

    Attributes:
        average: of the parameters; dev is judged by it, where there is one.
        state: where it stands; changes with every minibatch.
    """

    session: RunSession
    optimizer: Optimizer
    average: ExponentialMovingAverage | None
    folder: RunFolder
    reporter: Reporter
    interrupt: Interrupt
    state: RunState
    trace: TraceFile | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    _launched: GraphBatch | None = field(default=None, init=False)  # its loss is not known yet
    _carried: CarriedState | None = field(init=False)

    def __post_init__(self) -> None:
        self._carried = carried_state(self.session)

    def run(self) -> bool:
        """Train until the last epoch, or until the dev value no longer improves.

        Returns: whether the run is complete; False after an interrupt. Either way
            `last.safetensors` holds the position.
        Raises: NumericError, when a loss or a parameter is not finite; `last.safetensors` is then
            the last one that was good.
        """
        if not self.folder.last.exists():
            self._write(self.folder.last)
        self.folder.configure(self.session.options.as_given())
        warm_up(self.session, self.optimizer)
        self.group.barrier()
        self.group.began()
        while not self.done():
            if not self._train_epoch() or not self._end_epoch():
                self._save_last()
                return False
        return True

    def done(self) -> bool:
        """Tell whether the last epoch, or the patience, is reached."""
        return self.state.epoch >= self.session.options.epochs or self.out_of_patience()

    def out_of_patience(self) -> bool:
        """Tell whether the dev value has not improved for `patience` epochs."""
        patience = self.session.options.patience
        return patience > 0 and self.state.stale >= patience

    def _train_epoch(self) -> bool:
        """Train on the minibatches that are left of this epoch; False when interrupted."""
        options, state = self.session.options, self.state
        self.optimizer.lr = rate_of(options, state.epoch)
        loader = training_loader(self.session, self._carried)
        loader.load_state({**loader.state(), "epoch": state.epoch, "batch": state.batch})
        batches = iter(loader)
        title = f"epoch {state.epoch + 1}/{options.epochs}"
        with self.reporter.bar(title, len(loader.graphs), state.totals.graphs) as bar:
            while state.batch < len(loader) and not self._stops():
                bar.advance(self._train_minibatch(batches), state.totals)
                state.batch += 1
            self._wait()
        return state.batch == len(loader)

    def _stops(self) -> bool:
        """Tell whether a signal came: to any process, so that all stop at the same minibatch."""
        group = self.group
        if self.interrupt.number if group.size == 1 else group.signal:
            return True
        group.signal = self.interrupt.number  # the next step tells the others
        return False

    def _train_minibatch(self, batches: Iterator[GraphBatch]) -> int:
        """Train on the next minibatch; return its number of graphs."""
        start = running_time()
        net, pushes = self.session.net, pushes_of_steps(self.session, self._carried)
        batch = next(batches)
        ends = None if self._carried is None else self._carried.ends(batch)
        # States that are carried stay on a GPU, where no other process reads them.
        network = net if ends is None or shared(self.group) else net.on_device
        with self.trace.minibatch(net) if self.trace else nullcontext():
            loss = network.step(batch, self.optimizer, pushes, self.group, vertices=ends)
            lags = net.steps_under_way > 0  # the loss is that of the step before
        if self._carried is not None:
            self._carried.keep(batch, network.outputs)
        if self.average is not None:
            self.average.update()
        seconds = running_time() - start
        if lags:
            before, self._launched = self._launched, batch
            self._add(before, loss, seconds)
        else:
            pushed = network.outputs if pushes else {}
            self._add(batch, loss, seconds, pushed)
        return len(batch)

    def _wait(self) -> None:
        """Wait for the last step of an epoch, or of what there is of it."""
        if self._launched is not None:
            start = running_time()
            loss = self.session.net.sync()
            batch, self._launched = self._launched, None
            self._add(batch, loss, running_time() - start)

    def _add(
        self,
        batch: GraphBatch | None,
        loss: float,
        seconds: float,
        pushed: Mapping[str, np.ndarray] = EMPTY,
    ) -> None:
        """Add a step that has ended, if there is one, and the time until it was known."""
        session, totals = self.session, self.state.totals
        totals.seconds += seconds
        if batch is not None:
            whole = loss * batch.num_graphs
            totals.add(session.task, batch, pushed, whole, session.dataset.labels)

    def _end_epoch(self) -> bool:
        """Judge the epoch on dev and write it down; False when interrupted."""
        state, task = self.state, self.session.task
        with self.average.in_place() if self.average else nullcontext():
            dev = evaluate(self.session, "dev", self.interrupt, group=self.group)
        if dev is None:
            return False
        dev.require_finite("dev")
        train, epoch = state.totals, state.epoch + 1
        measure = deciding(task, dev)
        value = dev.value(measure)
        improved = better(measure, value, state.best)
        if improved:
            state.measure, state.best, state.best_epoch, state.stale = measure, value, epoch, 0
        else:
            state.stale += 1
        state.next_epoch()
        # In this order a crash in between loses nothing: a resumed run drops lines of epochs that
        # its checkpoint does not know, and writes the same best checkpoint again.
        trained = train.record(task, epoch, "train") | {"lr": self.optimizer.lr}
        self.folder.append([trained, dev.record(task, epoch, "dev")])
        if improved:
            self._save(self.folder.best)
        self._save_last()
        judged = "" if measure == "loss" else f", {shown(measure, value)}"
        losses = (shown("loss", each.value("loss")) for each in (train, dev))
        self.reporter.line(
            f"epoch {epoch}/{self.session.options.epochs}  train {next(losses)}"
            f"  dev {next(losses)}{judged}{' (best)' if improved else ''}"
            f"  {train.graphs_per_s():.0f} graphs/s, {train.seconds:.1f} s"
        )
        return True

    def _save_last(self) -> None:
        self._save(self.folder.last)

    def _save(self, path: Path) -> None:
        """Write a checkpoint, which all processes may read afterwards."""
        self._write(path)
        self.group.barrier(self.session.net.executor.model.store.values.nbytes / SLOW_DISK)

    def _write(self, path: Path) -> None:
        if self.folder.writes:
            run_state.save(path, self.session, self.optimizer, self.state, self.average)


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
    session.net.warm(train, optimizer, pushes_of_steps(session, carried), graphs)
    outputs = (*session.task.pushes, *evaluated)
    session.net.warm(dev, None, outputs, max(graphs, EVALUATION_BATCH))


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
    carried = carried_state(session)
    loader = _evaluation_loader(session, split, batch_size, carried)
    # What is carried comes from the minibatch before: then every process evaluates all.
    several = group if carried is None else ProcessGroup()
    start = running_time()
    parts: list[Totals] = []
    for number, batch in enumerate(loader):
        if interrupt.number:
            break
        if number % several.size == several.rank:
            parts.append(_evaluate_minibatch(session, batch, carried))
        else:
            skip_draws(session)
    seconds = running_time() - start
    group.signal = group.largest(interrupt.number, seconds)  # others may take twice as long
    if group.signal:
        return None
    return Totals.of(in_turn(parts, session.task, len(loader), several), seconds)


def _evaluation_loader(
    session: RunSession, split: str, batch_size: int | None, carried: CarriedState | None
) -> Loader:
    """Return the minibatches of an evaluation."""
    graphs, options = session.dataset.splits[split], session.options
    if carried is not None:
        return _streams(graphs, options.batch_size, carried)
    size = batch_size or max(options.batch_size, EVALUATION_BATCH)
    return Loader(graphs, size, shuffle=False, bucket=EVALUATION_WINDOW)


def _evaluate_minibatch(
    session: RunSession, batch: GraphBatch, carried: CarriedState | None
) -> Totals:
    """Return what one minibatch adds to an evaluation."""
    task = session.task
    wanted = (*task.pushes, *(carried.shapes if carried else ()))
    network = session.net if carried is None else session.net.on_device  # states stay there
    pushed = network.forward(batch, train=False, outputs=wanted)
    if carried is not None:
        carried.keep(batch, pushed)
    part = Totals()
    loss = float(pushed["loss"].sum(dtype=np.float64))
    part.add(task, batch, pushed, loss, session.dataset.labels)
    return part
