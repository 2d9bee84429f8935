"""What the command lines of this folder that write a result do alike."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.lines import draw
from vertexrt.bench.record import read
from vertexrt.cli.values import Parser, list_of
from vertexrt.errors import UsageError, VertexrtError


def add_list(
    parser: Parser,
    flag: str,
    each: Callable[[str], Any],
    default: tuple[Any, ...] | None,
    text: str,
) -> None:
    """Add an option that takes several values, with commas between them.

    Args:
        each: reads one of them.
    """
    shown = flag.strip("-")[0].upper()
    parser.add_argument(
        flag, metavar=f"{shown},{shown},...", type=list_of(flag, each), default=default, help=text
    )


def run_command(
    parser: Parser,
    kind: type[Any],
    run: Callable[[Any, list[str]], Path],
    words: Sequence[str] | None,
) -> int:
    """Read the options, run, and draw what was written; say what went wrong.

    Args:
        kind: dataclass of the options.
        run: takes them and the words of the command; returns the path of the result.
        words: those of the process by default.
    Returns: the exit code: 0, 1 for an error, 2 for a wrong option.
    """
    words = sys.argv[1:] if words is None else words
    try:
        given = parser.parse_args(words)
        options = kind(**{each.name: getattr(given, each.name) for each in fields(kind)})
        path = run(options, [*parser.prog.split(), *words])
        draw(read(path), path)
    except VertexrtError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
