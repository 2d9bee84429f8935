"""Run `vertexrt bench`: hand the options to what measures, reports or compares."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from typing import Any


def bench(given: argparse.Namespace) -> int:
    """Run one of the actions; return 0.

    Raises: UsageError, DataError, as the action does; NumericError, when two contenders do not
        compute the same.
    """
    command = ["vertexrt", *sys.argv[1:]]
    {"ablation": _ablation, "peers": _peers}[given.action](given, command)
    return 0


def _options(given: argparse.Namespace, kind: type[Any], **more: Any) -> Any:
    """Return the options of an action from the words of the command line."""
    names = [field.name for field in fields(kind)]
    return kind(**{n: getattr(given, n) for n in names if n not in more}, **more)


def _ablation(given: argparse.Namespace, command: list[str]) -> None:
    from vertexrt.bench import ablation

    compilers = given.compilers or os.cpu_count() or 1
    ablation.run(_options(given, ablation.Options, compilers=compilers), command)


def _peers(given: argparse.Namespace, command: list[str]) -> None:
    from vertexrt.bench.peers.options import Options
    from vertexrt.bench.peers.run import run

    run(_options(given, Options), command)
