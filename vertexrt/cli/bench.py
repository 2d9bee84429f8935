"""Run `vertexrt bench`: hand the options to what measures, reports or compares."""

import os
import sys
from argparse import Namespace

from vertexrt.config import config
from vertexrt.errors import UsageError


def bench(given: Namespace) -> int:
    """Run one of the actions; return 0.

    Raises: UsageError, DataError, as the action does; NumericError, when two contenders do not
        compute the same.
    """
    if given.action == "report":
        from vertexrt.bench import page

        page.run(_there(given.report))
    elif given.action == "compare":
        from vertexrt.bench import compare

        compare.run(_there(given.before), _there(given.after))
    else:
        from vertexrt.bench import ablation, breakdown
        from vertexrt.bench.figures import draw
        from vertexrt.bench.record import read

        if config().check:
            text = "VERTEXRT_CHECK=1: what a step takes to be verified is timed, too"
            print(text, file=sys.stderr)
        run = {"ablation": ablation.run, "breakdown": breakdown.run}[given.action]
        path = run(given, ["vertexrt", *sys.argv[1:]])
        draw(read(path), path)
    return 0


def _there(path: str) -> str:
    """Return a path that the command line names. Raises: UsageError, when there is nothing."""
    if not os.path.exists(path):
        raise UsageError.at("bench", f"there is no {path}", "expected results", "Check the path")
    return path
