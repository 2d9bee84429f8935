"""What the command lines of this folder that write a result do alike."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lines import draw
from vertexrt.bench.record import read
from vertexrt.cli.options import CommandOption, Parser, Several, Values, Whole, options_of
from vertexrt.errors import UsageError, VertexrtError

HELP = {  # of options that several commands have
    "batch": "sizes of minibatches",
    "device": "cpu or cuda",
    "engine": "batched, persistent or auto",
    "engines": "of ours",
    "hidden": "sizes of the state",
    "rounds": "in which ways take turns",
    "steps": "of a sequence",
    "text": "PTB, else generated text",
    "threads": "of a CPU",
    "trees": "SST, else generated trees",
}
MEASURED = ("batch_sizes", "device", "threads", "seconds", "out")


def declare(module: str, text: str | None, /, *rows: CommandOption, **defaults: Any) -> Parser:
    """Return the parser of a command that prints what it finds.

    Args:
        module: that is run; text: what it does.
        rows: options that need to say more than their default.
        defaults: by name. What an option takes follows from it: several values with commas between
            them, one value, a text where it is None, or nothing where it is False.
    """
    parser = Parser(
        prog=f"python -m {module}", description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add(rows)
    for name, default in defaults.items():
        one = default[0] if isinstance(default, tuple) else default
        takes: Values = Whole(0, 2**31 - 1) if isinstance(one, int) else Values()
        if isinstance(default, tuple):
            takes = Several(takes)
        form = f"--{name.replace('_', '-')} {name.upper()}"
        row = CommandOption(form, takes, "", HELP.get(name, ""), default=default)
        parser.add([row._replace(takes=None) if default is False else row])
    return parser


def parsed(parser: Parser, words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options that words say, those of the process by default, or end the process."""
    try:
        return parser.parse_args(words)
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def read_options(
    module: str,
    text: str | None,
    words: Sequence[str] | None = None,
    /,
    *rows: CommandOption,
    **defaults: Any,
) -> argparse.Namespace:
    """Read the options of a command; see `declare` and `parsed`."""
    return parsed(declare(module, text, *rows, **defaults), words)


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
    seconds: float,
    of_what: str,
    names: Sequence[str] = MEASURED,
    **defaults: Any,
) -> None:
    """Add options that `vertexrt bench` has, too.

    Args:
        seconds: by default, of what.
        names: of the options.
        defaults: of others of them, where they are not those of `vertexrt bench`.
    """
    own = {name: {"default": value} for name, value in defaults.items()}
    own["seconds"] = {"default": seconds, "help": of_what}
    for row in options_of("breakdown"):
        if row.name in names:
            parser.add([row._replace(**own.get(row.name, {}))])


def run_command(
    parser: Parser,
    run: Callable[[argparse.Namespace, list[str]], Path],
    words: Sequence[str] | None,
) -> int:
    """Read the options, run, and draw what was written; say what went wrong.

    Args:
        run: takes the options and the words of the command; returns the path of the result.
        words: those of the process by default.
    Returns: the exit code: 0, 1 for an error, 2 for a wrong option.
    """
    words = sys.argv[1:] if words is None else words
    try:
        path = run(parser.parse_args(words), [*parser.prog.split(), *words])
        draw(read(path), path)
    except VertexrtError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
