"""What the command lines of this folder that write a result do alike."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks.lines import draw
from vertexrt.bench.record import read
from vertexrt.cli.options import CommandOption, Parser, Several, Values, options_of
from vertexrt.errors import UsageError, VertexrtError

MEASURED = ("batch_sizes", "device", "threads", "seconds", "out")


def add_list(
    parser: Parser,
    flag: str,
    each: Values,
    default: tuple[Any, ...] | None,
    text: str,
) -> None:
    """Add an option that takes several values, with commas between them.

    Args:
        each: what one of them is.
    """
    shown = flag.strip("-")[0].upper()
    form = f"{flag} {shown},{shown},..."
    parser.add([CommandOption(form, Several(each), "", text, default=default)])


def add_measured(
    parser: Parser,
    sizes: tuple[int, ...],
    seconds: float,
    of_what: str,
    names: Sequence[str] = MEASURED,
) -> None:
    """Add options that `vertexrt bench` has, too.

    Args:
        sizes: of minibatches, by default.
        seconds: by default, of what.
        names: of the options.
    """
    own: dict[str, dict[str, Any]] = {
        "batch_sizes": {"default": sizes},
        "seconds": {"default": seconds, "help": of_what},
    }
    for row in options_of("breakdown"):
        if row.name in names:
            parser.add([replace(row, **own.get(row.name, {}))])


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
