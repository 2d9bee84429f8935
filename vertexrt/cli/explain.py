"""Show what the compiler makes of a model, or let it: `vertexrt explain MODEL`, `vertexrt warm`."""

from __future__ import annotations

import argparse
from time import perf_counter

from vertexrt.cli.loop import carried_state, evaluate, pushes_of_steps, training_loader, warm_up
from vertexrt.cli.output import say
from vertexrt.cli.run_options import resolve
from vertexrt.cli.session import device_lines, make_optimizer, open_session, require_task
from vertexrt.config import config


def explain(given: argparse.Namespace) -> int:
    """Run `vertexrt explain`: F, dF and their parts, then what one minibatch costs; return 0.

    The minibatch is the first one that a run with the same options would train on.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read.
    """
    options = resolve(given)
    session = open_session(options)
    first = next(iter(training_loader(session, carried_state(session))))
    cost = session.net.explain_batch(first)  # before: the kinds of vertices are known
    for line in device_lines(session):
        say(line)
    say(session.net.explain(kernels=given.kernels or ""))
    say("")
    say(f"{len(first)} graphs of {session.dataset.name} ({session.dataset.description})")
    say(cost)
    return 0


def warm(given: argparse.Namespace) -> int:
    """Run `vertexrt warm`: a later run with the same options compiles nothing; return 0.

    All kinds of vertices of the data set are compiled, then a training step and the evaluation of
    a minibatch are run, and forgotten.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read.
    """
    start = perf_counter()
    options = resolve(given)
    session = open_session(options)
    require_task(session)
    optimizer = make_optimizer(session)
    warm_up(session, optimizer)
    carried = carried_state(session)
    first = next(iter(training_loader(session, carried)))
    session.net.step(first, optimizer, outputs=pushes_of_steps(session, carried))
    session.net.sync()
    evaluate(session, "dev")
    for line in device_lines(session):
        say(line)
    say(f"{options.title} is compiled, {perf_counter() - start:.1f} s: {config().cache_dir}")
    return 0
