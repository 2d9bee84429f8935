"""Train a model from the command line: `vertexrt train MODEL` and `vertexrt train --resume RUN`."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import closing

from vertexrt import parallel
from vertexrt.cli import run_folder, run_state
from vertexrt.cli.curve import draw
from vertexrt.cli.interrupt import Interrupt, Interrupted
from vertexrt.cli.loop import Training, evaluate
from vertexrt.cli.metrics import shown
from vertexrt.cli.processes import open_folder, run_to_continue
from vertexrt.cli.progress import Reporter
from vertexrt.cli.run_folder import RunFolder
from vertexrt.cli.run_options import RunOptions, resolve, resume
from vertexrt.cli.run_state import RunState
from vertexrt.cli.scalar_log import ScalarLog
from vertexrt.cli.session import (
    configuration,
    device_line,
    make_average,
    make_optimizer,
    open_session,
    require_same_data,
    require_task,
)
from vertexrt.cli.trace import trace_file
from vertexrt.errors import NumericError, ParallelError
from vertexrt.models.catalogue import is_own
from vertexrt.parallel import ProcessGroup


def train(given: argparse.Namespace) -> int:
    """Run `vertexrt train`; return the exit code: 0, or 130 / 143 after Ctrl-C / SIGTERM.

    Raises: VertexrtError of every kind; nothing is written before options, names and the run folder
        are known to be good.
    """
    with Interrupt() as interrupt:
        try:
            return _start_or_continue(given, interrupt)
        except Interrupted as stop:
            print(
                "vertexrt: interrupted before the end; the last checkpoint stays", file=sys.stderr
            )
            return 128 + stop.number


def _start_or_continue(given: argparse.Namespace, interrupt: Interrupt) -> int:
    options = None if given.resume is not None else resolve(given)
    with interrupt.at_once():  # it waits for processes that may never come
        joined = parallel.init()
    with closing(joined) as group:
        run = given.resume
        if run is None and given.go_on:
            run = run_to_continue(group, given.out)
        if run is not None:
            given.resume = run
            return _continue(given, interrupt, group)
        assert options is not None
        return _start(given, options, interrupt, group)


def _start(
    given: argparse.Namespace, options: RunOptions, interrupt: Interrupt, group: ProcessGroup
) -> int:
    trace = trace_file(given.trace, options) if group.rank == 0 else None
    group = group.shared_out(options.shares)
    folder = open_folder(group, lambda: run_folder.fresh(given.out, options.title, _log(given)))
    try:
        session = open_session(options)
        require_task(session)
        optimizer, reporter = make_optimizer(options), _reporter(given, group)
        average, state = make_average(session), RunState()
        made = Training(session, optimizer, average, folder, reporter, interrupt, state, trace)
        made.group = group
        return _train(made)
    finally:
        folder.close()


def _continue(given: argparse.Namespace, interrupt: Interrupt, group: ProcessGroup) -> int:
    folder = open_folder(group, lambda: run_folder.existing(given.resume, _log(given)))
    try:
        return _train(_training(given, folder, interrupt, group))
    finally:
        folder.close()


def _training(
    given: argparse.Namespace, folder: RunFolder, interrupt: Interrupt, group: ProcessGroup
) -> Training:
    """Return the run in a folder where it stopped."""
    stored = run_state.load(folder.last)
    options = resume(given, stored.options, given.resume)
    trace = trace_file(given.trace, options) if group.rank == 0 else None
    group = group.shared_out(options.shares)
    session = open_session(options)
    require_same_data(session.dataset, stored.data, given.resume)
    optimizer, average = make_optimizer(options), make_average(session)
    state = run_state.restore(stored, session, optimizer, average)
    reporter = _reporter(given, group)
    folder.keep(lambda line: line["split"] != "test" and line["epoch"] <= state.epoch)
    reporter.line(
        f"continuing {folder.path} after {state.epoch} epochs and {state.batch} minibatches"
    )
    made = Training(session, optimizer, average, folder, reporter, interrupt, state, trace)
    made.group = group
    return made


def _log(given: argparse.Namespace) -> ScalarLog | None:
    """Return where metrics are written, too; UsageError, where that cannot be done."""
    return None if given.log is None else ScalarLog()


def _reporter(given: argparse.Namespace, group: ProcessGroup) -> Reporter:
    """Return what prints the lines of a run: one process does."""
    return Reporter(quiet=given.quiet, silent=group.rank > 0)


def _train(training: Training) -> int:
    """Train to the end and say how it went."""
    interrupt, reporter, folder = training.interrupt, training.reporter, training.folder
    device = device_line(training.session.options, training.session.net)
    if device is not None:
        reporter.line(device)
    reporter.line(configuration(training.session))
    _say_shares(training)
    interrupt.defer()
    try:
        complete = training.run()
    except (NumericError, ParallelError) as error:
        _draw(training)
        kept = f"The last good checkpoint is {folder.last}." if folder.last.is_file() else ""
        raise type(error)(f"{error} {kept}".rstrip()) from error
    _draw(training)
    if training.trace is not None:
        reporter.line(training.trace.report())
    if complete and _report(training):
        return 0
    interrupt.number = interrupt.number or training.group.signal
    where = f"epoch {training.state.epoch + 1}, minibatch {training.state.batch}"
    reporter.warn(f"{interrupt.name} came; stopped at {where}; checkpoint {folder.last} written")
    reporter.warn(f"continue it: vertexrt train {_model(training)}--resume {_quoted(folder)}")
    return interrupt.exit_code


def _say_shares(training: Training) -> None:
    """Say what processes do, where there is something to share out."""
    count, shares = training.group.size, training.group.shares
    if shares > 1:
        processes = f"{count} process{'es' if count > 1 else ''}"
        training.reporter.line(f"{processes}, each minibatch in {shares} shares")


def _draw(training: Training) -> None:
    why_not = draw(training.folder) if training.folder.writes else None
    if why_not is not None:
        training.reporter.line(why_not)


def _report(training: Training) -> bool:
    """Print the last lines of a complete run; False when interrupted."""
    session, state, folder = training.session, training.state, training.folder
    task, result = session.task, training.reporter.result
    if training.out_of_patience():
        result(f"stopped early: no better dev value for {state.stale} epochs")
    if folder.best.is_file():
        session.net.set_parameters(run_state.load(folder.best).judged)
        best = shown(state.measure, state.best or 0.0)
        result(f"best dev {best} (epoch {state.best_epoch} of {state.epoch})")
    if "test" in session.dataset.splits and session.dataset.splits["test"].num_graphs:
        test = evaluate(session, "test", training.interrupt, group=training.group)
        if test is None:
            return False
        folder.append([test.record(task, state.best_epoch or state.epoch, "test")])
        result(f"test of that checkpoint: {test.text(task)}")
    result(f"run: {folder.path}")
    model, more = _model(training), session.options.epochs * 2
    named = f"--model {model}" if model else ""
    result(f"evaluate it: vertexrt eval {_quoted(folder)} {named}--split test")
    result(f"train it further: vertexrt train {model}--resume {_quoted(folder)} --epochs {more}")
    return True


def _model(training: Training) -> str:
    """Return the word that names a model of the user; "" for others, which a run may name."""
    model = training.session.options.model
    return f"{shlex.quote(model)} " if is_own(model) else ""


def _quoted(folder: RunFolder) -> str:
    return shlex.quote(str(folder.path))
