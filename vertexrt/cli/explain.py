"""Show what the compiler makes of a model: `vertexrt explain MODEL`."""

from __future__ import annotations

import argparse

from vertexrt.cli.loop import carried_state, training_loader
from vertexrt.cli.output import say
from vertexrt.cli.run_options import resolve
from vertexrt.cli.session import device_line, open_session


def explain(given: argparse.Namespace) -> int:
    """Run `vertexrt explain`: F, dF and their parts, then what one minibatch costs; return 0.

    The minibatch is the first one that a run with the same options would train on.

    Raises: UsageError, for an unknown name; DataError, when the data cannot be read.
    """
    options = resolve(given)
    session = open_session(options)
    first = next(iter(training_loader(session, carried_state(session))))
    cost = session.net.explain_batch(first)  # before: the kinds of vertices are known
    device = device_line(options, session.net)
    if device is not None:
        say(device)
    say(session.net.explain(kernels=given.kernels or ""))
    say("")
    say(f"{len(first)} graphs of {session.dataset.name} ({session.dataset.description})")
    say(cost)
    return 0
