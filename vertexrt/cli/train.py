"""Train a model: `vertexrt train`; compile it ahead: `warm`; show what is compiled: `explain`.

A run can stop after any minibatch and goes on exactly. Of several processes one writes its folder,
and all read the same data.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

import vertexrt as vrt
from vertexrt import parallel
from vertexrt.api.arguments import shared
from vertexrt.api.optimizer import Optimizer
from vertexrt.cli import run_folder
from vertexrt.cli.interrupt import Interrupt, Interrupted, discard, say
from vertexrt.cli.measures import Totals, better, deciding, shown
from vertexrt.cli.run_folder import (
    LAST,
    RunFolder,
    ScalarLog,
    draw_confusion,
    draw_curve,
    find_checkpoint,
)
from vertexrt.cli.session import (
    RunOptions,
    RunSession,
    RunState,
    device_lines,
    evaluate,
    load,
    make_optimizer,
    open_session,
    rate_of,
    require_task,
    resolve,
    restore,
    resume,
    running_time,
    save,
    training_loader,
    warm_up,
)
from vertexrt.config import config
from vertexrt.engine.lazy import Loss
from vertexrt.errors import NumericError, ParallelError, UsageError, VertexrtError, number_of
from vertexrt.graph import GraphBatch
from vertexrt.models.catalogue import is_own
from vertexrt.parallel import ProcessGroup

SLOW_DISK = 2e6  # bytes of parameters a second, to wait for; moments come with them
BAR = "{desc} {percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
WARM_UP = 4  # minibatches in which kernels are compiled and memory grows; the last one is recorded
KEPT = 3  # minibatches in the timeline


def explain(given: Namespace) -> int:
    """Run `vertexrt explain`: F, dF and their parts, then what one minibatch costs; return 0.

    The minibatch is the first one that a run with the same options would train on.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read.
    """
    session = open_session(resolve(given))
    first = next(iter(training_loader(session)))
    cost = session.net.explain_batch(first)  # before: the kinds of vertices are known
    say(*device_lines(session), session.net.explain(kernels=given.kernels or ""), "")
    say(f"{len(first)} graphs of {session.dataset.name} ({session.dataset.description})", cost)
    return 0


def warm(given: Namespace) -> int:
    """Run `vertexrt warm`: a later run with the same options compiles nothing; return 0.

    All kinds of vertices of the data set are compiled, then a training step and the evaluation of
    a minibatch are run, and forgotten.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read.
    """
    start = perf_counter()
    session = open_session(resolve(given))
    require_task(session)
    optimizer = make_optimizer(session)
    warm_up(session, optimizer)
    first = next(iter(training_loader(session)))
    session.net.step(first, optimizer, outputs=session.pushes_of_steps)
    session.net.sync()
    if "dev" in session.dataset.splits:
        evaluate(session, "dev")
    say(*device_lines(session))
    say(
        f"{session.options.title} is compiled, {perf_counter() - start:.1f} s: {config().cache_dir}"
    )
    return 0


def train(given: Namespace) -> int:
    """Run `vertexrt train`; return the exit code: 0, or 130 / 143 after Ctrl-C / SIGTERM.

    Raises: VertexrtError of every kind; nothing is written before options, names and the run folder
        are known to be good.
    """
    with Interrupt() as interrupt:
        try:
            options = None if given.resume is not None else resolve(given)
            with interrupt.at_once():  # it waits for processes that may never start
                joined = parallel.init()
            with closing(joined) as group:
                return _start_or_continue(given, options, interrupt, group)
        except Interrupted as stop:
            print(
                "vertexrt: interrupted before the end; the last checkpoint, if there is one, stays",
                file=sys.stderr,
            )
            return 128 + stop.number


def _start_or_continue(
    given: Namespace,
    options: RunOptions | None,
    interrupt: Interrupt,
    group: ProcessGroup,
) -> int:
    """Train from the beginning, or where the run in a folder has stopped."""
    run = given.resume
    if run is None and given.go_on:
        if given.out is None:
            raise UsageError.at(
                "--continue",
                "no run folder",
                "expected a name of it",
                "Give one with --out: a restart has to find it",
            )
        if group.largest(int((Path(given.out) / LAST).is_file())):
            run = given.out

    def folder_of() -> RunFolder:
        log = None if given.log is None else ScalarLog()
        if run is not None:
            return run_folder.existing(run)._replace(log=log)
        assert options is not None
        return run_folder.fresh(given.out, options.title)._replace(log=log)

    def checked(options: RunOptions) -> tuple[TraceFile | None, ProcessGroup]:
        """Return the timeline that --trace asks for, and the group that shares out minibatches."""
        shares = group.shared_out(options.shares)
        if given.trace is None or group.rank > 0:
            return None, shares
        return TraceFile(given.trace, options), shares

    if run is None:
        assert options is not None
        trace, shares = checked(options)  # before there is a folder
    folder = open_folder(group, folder_of)
    try:
        stored = None if run is None else load(folder.last)
        if stored is not None:
            options = resume(given, stored.options, run)
            trace, shares = checked(options)
        assert options is not None
        session = open_session(options)
        optimizer, decay = make_optimizer(session), options.average
        average = vrt.ExponentialMovingAverage(session.net, decay) if decay else None
        reporter = Reporter(given.quiet or group.rank > 0, group.rank > 0)  # one process prints
        if stored is None:
            require_task(session)
            state = RunState()
        else:
            state = restore(stored, run, session, optimizer, average)
            folder.keep(lambda line: line["split"] != "test" and line["epoch"] <= state.epoch)
            done = f"after {state.epoch} epochs and {state.batch} minibatches"
            reporter.line(f"continuing {folder.path} {done}")
        return Training(
            session, optimizer, average, folder, reporter, interrupt, state, trace, shares
        ).run()
    finally:
        folder.close()


def open_folder(group: ProcessGroup, make: Callable[[], RunFolder]) -> RunFolder:
    """Return a run folder that process 0 has made, and which it alone writes.

    Raises: in process 0 what `make` raises, and ParallelError in the others then.
    """
    if group.rank == 0:
        try:
            folder = make()
        except BaseException:
            group.broadcast(b"")
            raise
        group.broadcast(os.fsencode(folder.path.resolve()))
        return folder
    path = group.broadcast(b"")
    if not path:
        raise ParallelError.at(
            "parallel",
            "process 0 has stopped",
            "a run folder that it can write",
            "see what it says",
        )
    return RunFolder(Path(os.fsdecode(path)), writes=False)


@dataclass(slots=True)
class Training:
    """Hold a run while it trains.

    Attributes:
        average: of the parameters; dev is judged by it, where there is one.
        state: where it stands; changes with every minibatch.
    """

    session: RunSession
    optimizer: Optimizer
    average: vrt.ExponentialMovingAverage | None
    folder: RunFolder
    reporter: Reporter
    interrupt: Interrupt
    state: RunState
    trace: TraceFile | None
    group: ProcessGroup

    def run(self) -> int:
        """Train to the end and say how it went; return the exit code."""
        session, folder, state, reporter = self.session, self.folder, self.state, self.reporter
        options, splits = session.options, session.dataset.splits.values()
        sizes = " / ".join(f"{split.num_graphs:,}" for split in splits)
        shape = "".join(f", {name} {value}" for name, value in options.shape.items())
        configuration = (
            f"{options.title} ({options.task}{shape}) on {session.dataset.name} ({sizes} graphs): "
            f"{options.optimizer}, lr {options.lr:g}, batch size {options.batch_size}, "
            f"seed {options.seed}, {number_of(options.epochs, 'epoch')}; {options.engine}, "
            f"{number_of(options.threads, 'thread')}"
        )
        for line in (*device_lines(session), configuration):
            reporter.line(line)
        if self.group.shares > 1:
            processes = number_of(self.group.size, "process", "processes")
            reporter.line(f"{processes}, each minibatch in {self.group.shares} shares")

        def draw() -> None:
            if folder.writes and (why_not := draw_curve(folder)) is not None:
                reporter.line(why_not)

        self.interrupt.defer()
        new = not folder.last.exists()
        try:
            complete = self._train()
        except (NumericError, ParallelError) as error:
            draw()
            kept = f"The last good checkpoint is {folder.last}." if folder.last.is_file() else ""
            raise type(error)(f"{error} {kept}".rstrip()) from error
        except VertexrtError:
            if new and not (state.epoch or state.batch):
                folder.forget()  # nothing was trained: the same words may be given again
            raise
        draw()
        if self.trace is not None:
            reporter.line(self.trace.report())
        # A file of the user is named again; other models a run may name.
        quoted = shlex.quote(str(folder.path))
        named = f"{shlex.quote(options.model)} " if is_own(options.model) else ""
        result = reporter.result
        if complete:
            if self._out_of_patience():
                result(f"stopped early: no better dev value for {state.stale} epochs")
            complete = self._test()
        if complete:
            result(f"run: {folder.path}")
            own, more = f"--model {named}" if named else "", options.epochs * 2
            result(f"evaluate it: vertexrt eval {quoted} {own}--split test")
            result(f"train it further: vertexrt train {named}--resume {quoted} --epochs {more}")
            return 0
        number = self.interrupt.number or self.group.signal
        where = f"epoch {state.epoch + 1}, minibatch {state.batch}"
        came = f"{signal.Signals(number).name} came"
        reporter.warn(f"{came}; stopped at {where}; checkpoint {folder.last} written")
        reporter.warn(f"continue it: vertexrt train {named}--resume {quoted}")
        return 128 + number

    def _test(self) -> bool:
        """Evaluate test with the parameters that dev found best; False when interrupted."""
        session, folder, state = self.session, self.folder, self.state
        judged = find_checkpoint(str(folder.path))
        session.net.load_state({"parameters": load(judged).judged})
        if judged == folder.best:
            best = shown({state.measure: state.best or 0.0})
            self.reporter.result(f"best dev {best} (epoch {state.best_epoch} of {state.epoch})")
        # Where there is no test, dev has its classes counted, for their picture alone.
        splits = session.dataset.splits
        judging = ("test", "dev") if session.task.name == "classification" else ("test",)
        split = next((split for split in judging if split in splits), None)
        if split is None or not splits[split].num_graphs:
            return True
        found = evaluate(session, split, self.interrupt, group=self.group)
        if found is None:
            return False
        if split == "test":
            epoch = state.best_epoch or state.epoch
            folder.append([found.record(session.task, epoch, "test")])
            text = shown(found.values(session.task))
            self.reporter.result(f"test of that checkpoint: {text}")
        draw_confusion(folder, found, session.dataset.labels, split)
        return True

    def _train(self) -> bool:
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
        while self.state.epoch < self.session.options.epochs and not self._out_of_patience():
            if not self._train_epoch() or not self._end_epoch():
                self._save(self.folder.last)
                return False
        return True

    def _out_of_patience(self) -> bool:
        """Tell whether the dev value has not improved for `patience` epochs."""
        patience = self.session.options.patience
        return patience > 0 and self.state.stale >= patience

    def _train_epoch(self) -> bool:
        """Train on the minibatches that are left of this epoch; False when interrupted."""
        session, state, group = self.session, self.state, self.group
        net, totals, carried = session.net, state.totals, session.carried
        # States that are carried stay on a GPU, where no other process reads them.
        arrays = "numpy" if carried is None or shared(group) else "device"
        loader = training_loader(session)
        loader.load_state({**loader.state(), "epoch": state.epoch, "batch": state.batch})
        batches = iter(loader)
        launched: tuple[GraphBatch, Loss] | None = None  # the last one

        def add(start: float) -> None:
            """Add the step that was launched, if there is one, and the time since a start."""
            if launched is not None:
                batch, loss = launched
                pushed = {} if carried else loss.outputs
                whole = float(loss) * batch.num_graphs
                totals.add(session.task, batch, pushed, whole, session.dataset.labels)
            totals.seconds += running_time() - start

        title = f"epoch {state.epoch + 1}/{session.options.epochs}"
        with tqdm(
            total=len(loader.graphs),
            initial=totals.graphs,
            desc=title,
            file=sys.stderr,
            bar_format=BAR,
            leave=False,
            dynamic_ncols=True,
            disable=self.reporter.quiet or None,  # None: where stderr is no terminal
        ) as bar:
            while state.batch < len(loader):
                # A signal to any process stops all of them at the same minibatch.
                if self.interrupt.number if group.size == 1 else group.signal:
                    break
                group.signal = self.interrupt.number  # the next step tells the others
                start = running_time()
                batch = next(batches)
                ends = None if carried is None else carried.ends(batch)
                asked: dict[str, Any] = {
                    "outputs": session.pushes_of_steps,
                    "vertices": ends,
                    "arrays": arrays,
                }
                with self.trace.minibatch(net) if self.trace else nullcontext():
                    loss = net.step(batch, self.optimizer, group=group, **asked)
                if carried is not None:
                    carried.keep(batch, loss.outputs)
                if self.average is not None:
                    self.average.update()
                add(start)  # the step before: on a GPU the one of now is under way meanwhile
                launched = batch, loss
                text = f"loss {totals.value('loss'):.4f}, {totals.graphs_per_s():.0f} graphs/s"
                bar.set_postfix_str(text, refresh=False)
                bar.update(len(batch))
                state.batch += 1
            add(running_time())
            bar.refresh()  # the last minibatches may have come too fast to be shown
        return state.batch == len(loader)

    def _end_epoch(self) -> bool:
        """Judge the epoch on dev, where there is one, and write it down; False when interrupted."""
        state, task, options = self.state, self.session.task, self.session.options
        train, epoch = state.totals, state.epoch + 1
        dev, improved, judged = None, False, ""
        if "dev" in self.session.dataset.splits:
            with self.average.in_place() if self.average else nullcontext():
                dev = evaluate(self.session, "dev", self.interrupt, group=self.group)
            if dev is None:
                return False
            dev.require_finite("dev")
            measure, loss = deciding(task, dev, options.metric), dev.value("loss")
            value = dev.value(measure)
            improved = better(measure, (value, loss), (state.best, state.best_loss))
            judged = f"  dev {shown({'loss': loss, measure: value})}"
            if improved:
                state.measure, state.best, state.best_loss = measure, value, loss
                state.best_epoch = epoch
        state.stale = epoch - state.best_epoch
        state.epoch, state.batch, state.totals = epoch, 0, Totals()
        # In this order a crash in between loses nothing: a resumed run drops lines of epochs that
        # its checkpoint does not know, and writes the same best checkpoint again.
        trained = train.record(task, epoch, "train") | {"lr": rate_of(options, epoch - 1)}
        self.folder.append([trained, *([dev.record(task, epoch, "dev")] if dev else [])])
        if improved:
            self._save(self.folder.best)
        self._save(self.folder.last)
        self.reporter.line(
            f"epoch {epoch}/{options.epochs}  train {shown({'loss': train.value('loss')})}"
            f"{judged}{' (best)' if improved else ''}"
            f"  {train.graphs_per_s():.0f} graphs/s, {train.seconds:.1f} s"
        )
        return True

    def _save(self, path: Path) -> None:
        """Write a checkpoint, which all processes may read afterwards."""
        self._write(path)
        self.group.barrier(self.session.net.executor.model.store.values.nbytes / SLOW_DISK)

    def _write(self, path: Path) -> None:
        if self.folder.writes:
            save(path, self.session, self.optimizer, self.state, self.average)


@dataclass(frozen=True, slots=True)
class Reporter:
    """Print the lines of a run.

    Attributes:
        quiet: print neither bars nor lines per epoch.
        silent: print nothing at all: another process does.
    """

    quiet: bool
    silent: bool

    def line(self, text: str) -> None:
        """Print a line about the run's course."""
        if not self.quiet:
            self.result(text)

    def result(self, text: str) -> None:
        """Print a line that is shown even when quiet, as long as there is a reader."""
        if self.silent:
            return
        try:
            say(text)
        except BrokenPipeError:  # `| head -1` has what it wanted; the run has its folder
            discard(sys.stdout.fileno())
            self.warn("nobody reads the output any more; training goes on without it")

    def warn(self, text: str) -> None:
        """Print a line on stderr, shown even when quiet."""
        if not self.silent:
            say(f"vertexrt: {text}", to=sys.stderr)


class TraceFile:
    """Record the first minibatches after the warm-up, and write them to a file.

    Raises: UsageError, when the engine has no processors, or the file's folder does not exist.
    """

    def __init__(self, name: str, options: RunOptions) -> None:
        if options.engine != "persistent":
            raise UsageError.at(
                "--trace",
                f"the engine is {options.engine}, which has no processors to trace",
                "expected the persistent engine",
                "Add --engine persistent",
            )
        self.path = Path(name)
        if not self.path.parent.is_dir() or (self.path.exists() and not self.path.is_file()):
            raise UsageError.at(
                "--trace",
                f"{name} cannot be written",
                "expected a plain file in a folder that exists",
                "Make the folder, or name another file",
            )
        self._seen = 0
        self._timeline: Any = None

    @contextmanager
    def minibatch(self, net: vrt.Network) -> Iterator[None]:
        """Surround a step."""
        self._seen += 1
        if not WARM_UP <= self._seen <= WARM_UP + KEPT:
            yield
            return
        with net.trace(self._timeline) as timeline:
            yield
        self._timeline = timeline
        if self._seen == WARM_UP:  # the recording itself was compiled here
            timeline.clear()
        else:
            timeline.write(self.path)

    def report(self) -> str:
        """Say what was written."""
        if self._seen > WARM_UP:
            kept = min(self._seen - WARM_UP, KEPT)
            return f"timeline of {kept} minibatches: {self.path} (open it in ui.perfetto.dev)"
        return f"no timeline: it starts after {WARM_UP} minibatches, and there were {self._seen}"
