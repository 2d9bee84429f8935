"""Train a model from the command line: `vertexrt train MODEL` and `vertexrt train --resume RUN`."""

from __future__ import annotations

import argparse
import shlex
import sys

from vertexrt.cli import run_folder, run_state
from vertexrt.cli.curve import draw
from vertexrt.cli.interrupt import Interrupt, Interrupted
from vertexrt.cli.loop import Training, evaluate
from vertexrt.cli.metrics import shown
from vertexrt.cli.progress import Reporter
from vertexrt.cli.resolve import resolve, resume
from vertexrt.cli.run_folder import RunFolder
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
from vertexrt.errors import NumericError


def train(given: argparse.Namespace) -> int:
    """Run `vertexrt train`; return the exit code: 0, or 130 / 143 after Ctrl-C / SIGTERM.

    Raises: VertexrtError of every kind; nothing is written before options, names and the run folder
        are known to be good.
    """
    with Interrupt() as interrupt:
        try:
            if given.resume is not None:
                return _continue(given, interrupt)
            return _start(given, interrupt)
        except Interrupted as stop:
            print(
                "vertexrt: interrupted before the end; the last checkpoint stays", file=sys.stderr
            )
            return 128 + stop.number


def _start(given: argparse.Namespace, interrupt: Interrupt) -> int:
    options = resolve(given)
    trace = trace_file(given.trace, options)
    folder = run_folder.fresh(given.out, options.title, ScalarLog() if given.log else None)
    try:
        session = open_session(options)
        require_task(session)
        optimizer, reporter = make_optimizer(options), Reporter(quiet=given.quiet)
        average, state = make_average(session), RunState()
        made = Training(session, optimizer, average, folder, reporter, interrupt, state, trace)
        return _train(made)
    finally:
        folder.close()


def _continue(given: argparse.Namespace, interrupt: Interrupt) -> int:
    folder = run_folder.existing(given.resume, ScalarLog() if given.log else None)
    try:
        return _train(_training(given, folder, interrupt))
    finally:
        folder.close()


def _training(given: argparse.Namespace, folder: RunFolder, interrupt: Interrupt) -> Training:
    """Return the run in a folder where it stopped."""
    stored = run_state.load(folder.last)
    options = resume(given, stored.options, given.resume)
    trace = trace_file(given.trace, options)
    session = open_session(options)
    require_same_data(session.dataset, stored.data, given.resume)
    optimizer, average = make_optimizer(options), make_average(session)
    state = run_state.restore(stored, session, optimizer, average)
    reporter = Reporter(quiet=given.quiet)
    folder.keep(lambda line: line["split"] != "test" and line["epoch"] <= state.epoch)
    reporter.line(
        f"continuing {folder.path} after {state.epoch} epochs and {state.batch} minibatches"
    )
    return Training(session, optimizer, average, folder, reporter, interrupt, state, trace)


def _train(training: Training) -> int:
    """Train to the end and say how it went."""
    interrupt, reporter, folder = training.interrupt, training.reporter, training.folder
    device = device_line(training.session.options, training.session.net)
    if device is not None:
        reporter.line(device)
    reporter.line(configuration(training.session))
    interrupt.defer()
    try:
        complete = training.run()
    except NumericError as error:
        _draw(training)
        kept = f"The last good checkpoint is {folder.last}." if folder.last.is_file() else ""
        raise NumericError(f"{error} {kept}".rstrip()) from error
    _draw(training)
    if training.trace is not None:
        reporter.line(training.trace.report())
    if complete and _report(training):
        return 0
    where = f"epoch {training.state.epoch + 1}, minibatch {training.state.batch}"
    reporter.warn(f"{interrupt.name} came; stopped at {where}; checkpoint {folder.last} written")
    reporter.warn(f"continue it: vertexrt train --resume {_quoted(folder)}")
    return interrupt.exit_code


def _draw(training: Training) -> None:
    why_not = draw(training.folder)
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
        test = evaluate(session, "test", training.interrupt)
        if test is None:
            return False
        folder.append([test.record(task, state.best_epoch or state.epoch, "test")])
        result(f"test of that checkpoint: {test.text(task)}")
    result(f"run: {folder.path}")
    result(f"evaluate it: vertexrt eval {_quoted(folder)} --split test")
    more = session.options.epochs * 2
    result(f"train it further: vertexrt train --resume {_quoted(folder)} --epochs {more}")
    return True


def _quoted(folder: RunFolder) -> str:
    return shlex.quote(str(folder.path))
