"""Read the words of a command line, and those that a file stands for: TOML, or a run's config.json.

Values are checked here, names of models and data later.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from vertexrt.api.json_record import parse_json
from vertexrt.cli.options import CONFIG_NAME, NEUTRAL, OPTIONS, RUN, CommandOption, options_of
from vertexrt.errors import UsageError, nearest
from vertexrt.models.catalogue import OWN_TRAIN, SPECS, require_known
from vertexrt.plain_files import read_plain

MOST_SHOWN = 2  # models with a default of their own that the help names
MOST_BITS = 64  # of a whole number in a file: Python writes no more than some thousand digits
COMMANDS = {
    "train": "train a model, or continue a run",
    "eval": "evaluate a trained run",
    "predict": "write what a trained run makes of graphs, as JSON lines",
    "export": "write a trained run as a folder for the Hugging Face Hub",
    "explain": "show what the compiler makes of a model",
    "warm": "compile ahead what training a model needs",
    "new": "begin a model of yours, with data to try it on",
    "bench": "measure, and report what was measured",
    "data": "list or download data sets",
    "info": "show versions, machine and devices, for a report of a mistake",
}
ACTIONS = {
    "bench": {
        "ablation": "each optimisation alone, and each left out",
        "breakdown": "where the time of a step goes",
        "report": "join results in one HTML page",
        "compare": "what got faster or slower",
    },
    "data": {
        "list": "show the data sets that can be named",
        "fetch": "download one into the cache folder",
    },
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of leaving the process.

    An option that is given twice is an error: one of the values would be ignored.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "allow_abbrev": False})
        for name in (None, "store"):
            self.register("action", name, Once)

    def error(self, text: str) -> NoReturn:
        """Raise a UsageError that carries argparse's text."""
        raise UsageError.at(
            self.prog, text, "the form that the help shows", f"Run `{self.prog} --help`"
        )

    def add(self, rows: Iterable[CommandOption], defaults: Mapping[str, str] | None = None) -> None:
        """Add options.

        Args:
            defaults: what the help says of the default of each, by name.
        """
        for row in rows:
            text = (defaults or {}).get(row.name)
            settings = {"help": f"{row.help} ({text})" if text else row.help or None, **row.more}
            if row.takes is not None:
                metavar = row.form.rpartition(" ")[2]
                settings |= {"metavar": metavar, "type": partial(row.takes.read, row.word)}
            if row.of != "run" and row.default is not None:
                settings["default"] = row.default
            if row.word.startswith("--"):
                self.add_argument(row.word, dest=row.name, **settings)
            else:
                self.add_argument(row.name, **settings)


class Once(argparse.Action):
    """Store a value, the first time."""

    given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store what argparse has read."""
        if option_string is not None and self.given:
            text = ("got two values", "expected one, since only one can hold", "Leave one out")
            raise UsageError.at(option_string, *text)
        self.given = option_string is not None
        setattr(namespace, self.dest, values)


def _defaults() -> dict[str, str]:
    """Return what the help says of the default of each option, by model where they differ."""
    models = {spec.name: {**NEUTRAL, **spec.train, **spec.options} for spec in SPECS}
    models["a model of yours"] = dict(OWN_TRAIN)
    found = {}
    for name in dict.fromkeys(name for values in models.values() for name in values):
        owners: dict[Any, list[str]] = {}
        for model, values in models.items():
            if name in values:
                owners.setdefault(values[name], []).append(model)
        most, *others = sorted(owners, key=lambda value: -len(owners[value]))
        apart = "".join(f"; {value}: {_few(owners[value])}" for value in others)
        found[name] = f"default {most}{apart}"
    return found


def _few(names: list[str]) -> str:
    """Return names, most of many left out."""
    if len(names) <= MOST_SHOWN:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} others"


def build() -> dict[str, Parser]:
    """Return the parser of the command line, "", and those of each command and action."""
    parser = Parser(
        prog="vertexrt",
        description="Train dynamic neural networks: one vertex function, a graph per example.",
    )
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parsers: dict[str, Any] = {"": parser}
    defaults = _defaults()
    for command, text in COMMANDS.items():
        made = commands.add_parser(command, help=text, description=text[0].upper() + text[1:] + ".")
        parsers[command] = made
        made.add(options_of(command), defaults if command in RUN.split() else {})
        if command in ACTIONS:
            known = ACTIONS[command]
            actions = made.add_subparsers(dest="action", metavar="|".join(known), required=True)
            for action, text in known.items():
                parsers[action] = actions.add_parser(action, help=text)
                parsers[action].add(options_of(action))
    return parsers


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the words of a command line.

    Args:
        argv: the words after the program's name.
    Returns: the options by name; an option that was not given is None.
    Raises: UsageError, for an unknown command or option (the nearest ones are offered) or a value
        that the option does not take; SystemExit, after the help was printed.
    """
    options = _parse(argv)
    run = getattr(options, "model", None)
    if options.command in ("explain", "warm") and run is not None and os.path.isdir(run):
        options.model, options.config = None, options.config or os.path.join(run, CONFIG_NAME)
    if getattr(options, "config", None) is not None:
        _fill(options, _parse(["train", *_words_of(Path(options.config))]))
    return options


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parsers = build()
    if argv and not argv[0].startswith("-"):
        _require(argv[0], COMMANDS, "vertexrt")
        words = [word for word in argv if not word.startswith("-")]
        if argv[0] in ACTIONS and len(words) > 1:
            _require(words[1], ACTIONS[argv[0]], f"vertexrt {argv[0]}")
    if "--version" in argv and len(argv) > 1:
        raise UsageError.at(
            "vertexrt", "--version and other words", "expected it alone", "Leave them out"
        )
    options, unknown = parsers[""].parse_known_args(list(argv))
    if unknown:
        command = parsers[getattr(options, "action", options.command) or ""]
        flag = unknown[0].split("=")[0]
        what = "option" if flag.startswith("-") else "argument"
        known = [word for action in command._actions for word in action.option_strings]
        raise UsageError.at(
            command.prog,
            f"unknown {what} '{flag}'",
            "expected an option of this command",
            f"See `{command.prog} --help`." + nearest(flag, known),
        )
    return options


def _require(word: str, known: Iterable[str], where: str) -> None:
    if word not in known:
        raise UsageError.at(
            where,
            f"unknown command '{word}'",
            "expected one of " + ", ".join(known),
            f"See `{where} --help`." + nearest(word, known),
        )


def _fill(options: argparse.Namespace, stored: argparse.Namespace) -> None:
    """Put in what a file says and the command line does not.

    Raises: UsageError, when it names a program to run, or what is to be written or read instead.
    """
    for row in OPTIONS:
        if not row.of_file and getattr(stored, row.name):
            text = ("expected what decides over the result", "Give it on the command line")
            raise UsageError.at(options.config, f"it says {row.word}", *text)
    if options.model is None and stored.model is not None:
        words = f"{shlex.quote(stored.model)} --config {shlex.quote(options.config)}"
        how = f"name it: vertexrt {options.command} {words}"
        require_known(stored.model, options.config, how)
    settings = {**dict(stored.set or ()), **dict(options.set or ())}
    options.set = list(settings.items()) or None
    for name, value in vars(options).items():
        if value is None:
            setattr(options, name, getattr(stored, name, None))


def _words_of(path: Path) -> list[str]:
    """Return the words of a command line that say what a file says.

    Raises: UsageError, when it cannot be read, or holds something else than options.
    """

    def refuse(got: str) -> UsageError:
        expected = "expected options by their long names: epochs = 3; those of --set in a table"
        return UsageError.at(str(path), got, f"{expected} [set]", "Correct the file")

    def text_of(name: str, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        long = isinstance(value, int) and value.bit_length() > MOST_BITS
        if long or not isinstance(value, int | float | str):
            kind = "number of too many digits" if long else type(value).__name__
            raise refuse(f"{name} is a {kind}")
        return str(value)

    try:
        text = read_plain(path).decode()
        found = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # of both parsers the last two
        raise refuse(getattr(error, "strerror", None) or str(error)) from error
    if not isinstance(found, dict):
        raise refuse(f"a {type(found).__name__}")
    words: list[str] = []
    for name, value in found.items():
        flag = "--" + name.replace("_", "-")
        if name == "set" and isinstance(value, dict):
            for each, inner in value.items():
                words += [flag, f"{each}={text_of(each, inner)}"]
        elif name == "model":
            words.insert(0, text_of(name, value))
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, text_of(name, value)]
    return words
