"""Run `vertexrt bench`: hand the options to what measures, reports or compares."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from vertexrt.config import config


def bench(given: argparse.Namespace) -> int:
    """Run one of the actions; return 0.

    Raises: UsageError, DataError, as the action does; NumericError, when two contenders do not
        compute the same.
    """
    command = ["vertexrt", *sys.argv[1:]]
    if given.action == "report":
        from vertexrt.bench import page

        page.run(given.folder)
    elif given.action == "compare":
        from vertexrt.bench import compare

        compare.run(given.before, given.after)
    else:
        _measure(given, command)
    return 0


def _measure(given: argparse.Namespace, command: list[str]) -> None:
    from vertexrt.bench.figures.draw import draw
    from vertexrt.bench.read_record import read

    if config().check:
        print("VERTEXRT_CHECK=1: what a step takes to be verified is timed, too", file=sys.stderr)
    runs = {"ablation": _ablation, "breakdown": _breakdown}
    path = runs[given.action](given, command)
    draw(read(path), path)


def _options(given: argparse.Namespace, kind: type[Any], **more: Any) -> Any:
    """Return the options of an action from the words of the command line."""
    names = [field.name for field in fields(kind)]
    return kind(**{n: getattr(given, n) for n in names if n not in more}, **more)


def _ablation(given: argparse.Namespace, command: list[str]) -> Path:
    from vertexrt.bench import ablation

    compilers = given.compilers or os.cpu_count() or 1
    return ablation.run(_options(given, ablation.Options, compilers=compilers), command)


def _breakdown(given: argparse.Namespace, command: list[str]) -> Path:
    from vertexrt.bench import breakdown
    from vertexrt.bench.jobs import JobOptions

    return breakdown.run(_options(given, JobOptions), command)
