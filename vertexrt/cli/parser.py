"""Declare the commands and their options; values are checked here, names of models and data later.

Nothing heavy is imported, so that `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vertexrt.cli.bench_options import ACTIONS as BENCH_ACTIONS
from vertexrt.cli.bench_options import DATA, add_bench
from vertexrt.cli.config_file import words_of
from vertexrt.cli.limits import (
    CONFIG_NAME,
    LOGS,
    NEUTRAL,
    OPTIMIZERS,
    POLICIES,
    SCHEDULES,
    SPLITS,
    WITH_MOMENTUM,
)
from vertexrt.cli.tasks import TASKS
from vertexrt.cli.values import Parser, one_of, path
from vertexrt.engine.devices import DEVICES, DTYPES, ENGINES, KERNEL_FORMS, PRECISIONS
from vertexrt.errors import UsageError, nearest
from vertexrt.models.catalogue import OWN_TRAIN, SPECS, names, require_known

*_FIRST, _LAST = names()
MODELS = f"{', '.join(_FIRST)} or {_LAST}, or FILE.py:CLASS, a model of yours: the file is run"
THREADS = "CPU threads, BLAS included"
MOST_SHOWN = 2  # models with a default of their own that the help names
BATCH_SIZE = "graphs in a minibatch"
SCHEDULE = (
    "of the learning rate over epochs: constant, cosine and linear (towards 0), or halving, each "
    "epoch after half of them"
)
MODEL_FILE = "of a model of yours: its file, which is run"
AVERAGE = "judge and keep a moving average of the parameters, such as 0.999; 0: none"
# By these, a file that others wrote would choose where something is written, or be another run.
NOT_OF_A_FILE = ("config", "go_on", "out", "resume", "trace")
CONFIG = "options that are not given here: TOML, or the config.json of a run"


def _add_data(parser: Parser) -> None:
    parser.add_path("data", DATA, "NAME|PATH")
    parser.add_path("format", "of the data; by default found from the files", "FORMAT")
    parser.add_word("task", tuple(TASKS), "of a model of yours: " + ", ".join(TASKS), "TASK")
    parser.add_path("dev", "file of the dev split, where --data is a file", "FILE")
    parser.add_path("test", "file of the test split, where --data is a file", "FILE")
    parser.add_whole("pieces", "cut a text into pieces of N words (format text)")
    parser.add_whole("min_count", "words of train that are rarer count as unknown")
    parser.add_argument(
        "--binary",
        action="store_const",
        const=True,
        help="two classes, without neutral trees (format trees)",
    )


def _add_shape(parser: Parser) -> None:
    parser.add_whole("hidden", "width of the state")
    parser.add_whole("embed", "width of the word embedding")
    parser.add_whole("layers", "layers of a language model")
    parser.add_real("dropout", "probability, 0 to 1", "P")
    parser.add_settings()


def _add_machine(parser: Parser) -> None:
    parser.add_word("policy", POLICIES, "frontier, depth, agenda or serial", "P")
    parser.add_word("dtype", DTYPES, "float32 or float64", "T")
    _add_device(parser)
    parser.add_word("engine", ENGINES, "batched, persistent or auto", "E")
    parser.add_whole(
        "processors",
        "threads, on a GPU blocks, that share each task (persistent); by default chosen",
    )
    parser.add_whole("threads", THREADS)


def _add_device(parser: Parser) -> None:
    parser.add_word("device", DEVICES, "auto, cuda, cpu or reference", "D")
    text = "of products on a GPU: float32, tf32, or bf16 (persistent)"
    parser.add_word("precision", PRECISIONS, text, "P")


def _add_window(parser: Parser) -> None:
    parser.add_whole(
        "window",
        "sort graphs by size within N minibatches, so that like sizes come together",
    )


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


def _add_train(parser: Parser) -> None:
    parser.defaults = _defaults()
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODELS)
    parser.add_path("config", CONFIG, "FILE")
    _add_data(parser)
    parser.add_whole("epochs", "epochs")
    parser.add_whole("batch_size", BATCH_SIZE)
    _add_window(parser)
    parser.add_whole("seed", "of weights, dropout and order")
    parser.add_path("out", "run folder (default runs/MODEL-DATE-TIME)", "DIR")
    _add_shape(parser)
    parser.add_real("lr", "learning rate")
    parser.add_word("optimizer", tuple(OPTIMIZERS), ", ".join(OPTIMIZERS), "NAME")
    parser.add_real("momentum", "of " + ", ".join(WITH_MOMENTUM))
    parser.add_real("weight_decay", "L2 penalty")
    parser.add_real("clip_norm", "largest global norm; 0: none")
    parser.add_word("schedule", SCHEDULES, SCHEDULE, "NAME")
    parser.add_real("average", AVERAGE, "DECAY")
    _add_machine(parser)
    parser.add_whole("patience", "stop after N epochs without a better dev value; 0: never")
    parser.add_path("resume", "continue the run in this folder", "RUN")
    parser.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="continue the run in the --out folder where there is one, so that a restart goes on",
    )
    parser.add_whole("shares", "parts of a minibatch for several processes: a power of two")
    parser.add_word("log", LOGS, "write the metrics for TensorBoard, too", "tensorboard")
    parser.add_path("trace", "timeline of minibatches (persistent)", "FILE")
    parser.add_argument("--quiet", action="store_true", help="print the result only")


def _add_eval(parser: Parser) -> None:
    _add_run(parser, "dev")


def _add_predict(parser: Parser) -> None:
    _add_run(parser, "test")
    parser.add_path("out", "file of JSON lines, one a graph; by default they are printed", "FILE")


def _add_run(parser: Parser, split: str) -> None:
    text = "run folder, one checkpoint of it, or an exported folder"
    parser.add_argument("run", metavar="RUN", type=path("RUN"), help=text)
    parser.add_word("split", SPLITS, f"dev, test or train (default {split})", "SPLIT", split)
    parser.add_path("data", "other data of the same format; one file is taken whole", "NAME|PATH")
    parser.add_path("model", MODEL_FILE, "FILE.py:CLASS")
    parser.add_whole("batch_size", BATCH_SIZE)
    _add_device(parser)
    parser.add_whole("threads", THREADS)


def _add_export(parser: Parser) -> None:
    text = "run folder, or one checkpoint of it"
    parser.add_argument("run", metavar="RUN", type=path("RUN"), help=text)
    text = "new folder: parameters, config, vocabularies, a model card"
    parser.add_argument("out", metavar="OUT", type=path("OUT"), help=text)
    parser.add_path("model", MODEL_FILE, "FILE.py:CLASS")
    parser.add_path("push", "upload it to the Hugging Face Hub, too", "OWNER/NAME")


def _add_model(parser: Parser) -> None:
    parser.defaults = _defaults()
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODELS}; or a run folder")
    parser.add_path("config", CONFIG, "FILE")
    _add_data(parser)
    parser.add_whole("batch_size", BATCH_SIZE)
    _add_window(parser)
    _add_shape(parser)
    _add_machine(parser)


def _add_explain(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument(
        "--kernels",
        metavar="ir|llvm",
        type=one_of("--kernels", KERNEL_FORMS),
        nargs="?",
        const="ir",
        help="print what each task program is lowered to, or its LLVM on a CPU, too",
    )


def _add_warm(parser: Parser) -> None:
    _add_model(parser)
    parser.add_word("optimizer", tuple(OPTIMIZERS), ", ".join(OPTIMIZERS), "NAME")


def _add_new(parser: Parser) -> None:
    text = "file to write, such as my_model.py; data of the same name in .jsonl stand beside it"
    parser.add_argument("file", metavar="FILE", type=path("FILE"), help=text)


def _add_data_commands(parser: Parser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="list|fetch", required=True)
    commands.add_parser("list", help="show the data sets that can be named")
    fetch = commands.add_parser("fetch", help="download one into the cache folder")
    fetch.add_argument("name", metavar="NAME", help="a name of `vertexrt data list`")


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "train": ("train a model, or continue a run", _add_train),
    "eval": ("evaluate a trained run", _add_eval),
    "predict": ("write what a trained run makes of graphs, as JSON lines", _add_predict),
    "export": ("write a trained run as a folder for the Hugging Face Hub", _add_export),
    "explain": ("show what the compiler makes of a model", _add_explain),
    "warm": ("compile ahead what training a model needs", _add_warm),
    "new": ("begin a model of yours, with data to try it on", _add_new),
    "bench": ("measure, and report what was measured", add_bench),
    "data": ("list or download data sets", _add_data_commands),
    "info": ("show versions, machine and devices, for a report of a mistake", lambda parser: None),
}
ACTIONS = {"data": ("list", "fetch"), "bench": BENCH_ACTIONS}


def build() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the command line and the parser of each command."""
    parser = Parser(
        prog="vertexrt",
        description="Train dynamic neural networks: one vertex function, a graph per example.",
    )
    parser.add_argument("--version", action="store_true", help="show the version")
    groups = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parsers: dict[str, Parser] = {}
    for name, (text, fill) in COMMANDS.items():
        parsers[name] = groups.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + "."
        )
        fill(parsers[name])
    return parser, parsers


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
        _fill(options, _parse(["train", *words_of(Path(options.config))]))
    return options


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser, parsers = build()
    _check_command(argv)
    if "--version" in argv and len(argv) > 1:
        raise UsageError.at(
            "vertexrt", "--version and other words", "expected it alone", "Leave them out"
        )
    options, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise _unknown(unknown[0], parsers.get(options.command, parser), options)
    return options


def _fill(options: argparse.Namespace, stored: argparse.Namespace) -> None:
    """Put in what a file says and the command line does not.

    Raises: UsageError, when it names a program to run, or what is to be written or read instead.
    """
    for name in NOT_OF_A_FILE:
        if getattr(stored, name):
            got = f"it says --{name.replace('go_on', 'continue')}"
            text = ("expected what decides over the result", "Give it on the command line")
            raise UsageError.at(options.config, got, *text)
    if options.model is None and stored.model is not None:
        words = f"{shlex.quote(stored.model)} --config {shlex.quote(options.config)}"
        how = f"name it: vertexrt {options.command} {words}"
        require_known(stored.model, options.config, how)
    settings = {**dict(stored.set or ()), **dict(options.set or ())}
    options.set = list(settings.items()) or None
    for name, value in vars(options).items():
        if value is None:
            setattr(options, name, getattr(stored, name, None))


def _check_command(argv: Sequence[str]) -> None:
    """Refuse commands and actions that there are not."""
    if not argv or argv[0].startswith("-"):
        return
    _require(argv[0], tuple(COMMANDS), "vertexrt")
    words = [word for word in argv if not word.startswith("-")]
    if argv[0] in ACTIONS and len(words) > 1:
        _require(words[1], ACTIONS[argv[0]], f"vertexrt {argv[0]}")


def _unknown(word: str, command: Parser, options: argparse.Namespace) -> UsageError:
    """Say that a command has no such option, and which is near."""
    command = command.of_action(getattr(options, "action", None))
    flag = word.split("=")[0]
    what = "option" if flag.startswith("-") else "argument"
    return UsageError.at(
        command.prog,
        f"unknown {what} '{flag}'",
        "expected an option of this command",
        f"See `{command.prog} --help`." + nearest(flag, command.options()),
    )


def _require(word: str, known: Sequence[str], where: str) -> None:
    if word not in known:
        raise UsageError.at(
            where,
            f"unknown command '{word}'",
            "expected one of " + ", ".join(known),
            f"See `{where} --help`." + nearest(word, known),
        )
