"""The command line: what a model may be trained for, a row for each option, and how words are read.

The parsers of all commands and their help, what a file for --config may say, what a run records
and what --resume may change are made from the rows of OPTIONS. A value is read within the same
limits from a command line, a file or a checkpoint. They are far above what is trained in practice:
they keep a slip of the keyboard, or a damaged file, from becoming a size that no machine has. Names
of models and data are checked later.

Nothing heavy is imported, so that `--help` and a mistyped flag answer at once.
"""

import argparse
import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from vertexrt.api.json_record import parse_json
from vertexrt.engine.devices import DEVICES, DTYPES, ENGINES, KERNEL_FORMS, PRECISIONS
from vertexrt.errors import UsageError, nearest, one_line
from vertexrt.instead import replacement
from vertexrt.ir.updates import OPTIMIZERS as ROWS
from vertexrt.models.catalogue import OWN_TRAIN, SPECS, names, require_known
from vertexrt.plain_files import read_plain


class Task(NamedTuple):
    """What is learned, and how it is judged. Every task has the push `loss`.

    Attributes:
        text: what is learned, in a few words.
        measures: names of `measures.MEASURES`; the first that the dev split has a value of decides
            over the best checkpoint, the loss where there is none.
        label: the pull that says what is right.
        answer: the push that says what the model makes of it, with an axis for each class or
            number; "" where none is looked at.
    """

    name: str
    text: str
    measures: tuple[str, ...] = ()
    label: str = ""
    answer: str = ""

    @property
    def pushes(self) -> tuple[str, ...]:
        """Return the pushes that an evaluation asks for."""
        return ("loss", self.answer) if self.answer else ("loss",)


TASKS = {
    row.name: row
    for row in (
        Task(
            "classification",
            "a class for graphs, by their roots, or for any vertices",
            ("root_accuracy", "vertex_accuracy", "macro_f1", "micro_f1", "root_macro_f1"),
            "label",
            "logits",
        ),
        Task("tagging", "a tag for each word", ("entity_f1", "accuracy"), "label", "logits"),
        Task(
            "regression",
            "numbers for vertices",
            ("mean_squared_error", "mean_absolute_error"),
            "target",
            "output",
        ),
        # Its logits, vertices x words, are never asked for.
        Task("language-model", "the next word", ("perplexity",), "label"),
        Task(
            "translation",
            "the next word of a translation",
            ("accuracy", "perplexity"),
            "label",
            "logits",
        ),
        Task("loss", "whatever makes the push `loss` small"),
    )
}


POLICIES = ("frontier", "depth", "agenda", "serial")
OPTIMIZERS = {row.name: row for row in ROWS}
WITH_MOMENTUM = tuple(name for name, row in OPTIMIZERS.items() if "momentum" in row.names())
SCHEDULES = ("constant", "cosine", "linear", "halving")  # of the learning rate
SPLITS = ("dev", "test", "train")
METRICS = ("loss", *dict.fromkeys(name for task in TASKS.values() for name in task.measures))
CONFIG_NAME = "config.json"  # of the options in a run folder

# Digits of ASCII only: no spaces, signs, underscores, other bases or other scripts.
_WHOLE = re.compile(r"[0-9]{1,20}")
_REAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
LONGEST_REAL = 64  # characters
MOST_BITS = 1023  # of a whole number in a file: a float holds it, and Python writes it
_NAME = re.compile(r"[^\W\d]\w*")  # of an argument
_HALF_OF_A_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that no path has
LONGEST_PATH = 4095  # bytes; what systems take
LONGEST_NAME = 255  # bytes of one part of a path
SHOWN = 60  # characters of a wrong value that an error repeats
LARGEST_GRAPH = 2**20  # leaves of a tree, words of a chain
MOST_SECONDS = 7 * 86_400.0


class Values:
    """What an option takes: here any text, which is checked where it is used."""

    def read(self, flag: str, text: str) -> Any:
        """Return what a word of the command line stands for.

        Args:
            flag: the option's name, for errors.
        Raises: UsageError.
        """
        return text


@dataclass(frozen=True)
class Whole(Values):
    """Whole numbers within limits, written in decimal digits."""

    least: int
    most: int

    def read(self, flag: str, text: str) -> int:
        """Return the number."""
        number = int(text) if _WHOLE.fullmatch(text) else -1
        if not self.least <= number <= self.most:
            limit = f"{self.most} at most" if number > self.most else f"{self.least} or more"
            _refuse_value(flag, text, f"a whole number, {limit}")
        return number


@dataclass(frozen=True)
class Real(Values):
    """Numbers from 0 up to, and without, `below`, written as 0.05 or 5e-2."""

    below: float

    def read(self, flag: str, text: str) -> float:
        """Return the number."""
        fits = len(text) <= LONGEST_REAL and _REAL.fullmatch(text) is not None
        value = float(text) if fits else math.nan
        if not 0.0 <= value < self.below:
            limit = f" and less than {self.below:g}" if self.below <= 1.0 or fits else ""
            _refuse_value(flag, text, f"a number, 0 or more{limit}")
        if value == 0.0 and re.match("[0.]*[1-9]", text):
            _refuse_value(flag, text, "a number that is not too small to be told from 0")
        return value


@dataclass(frozen=True)
class OneOf(Values):
    """One of some words."""

    known: Sequence[str]

    def read(self, flag: str, text: str) -> str:
        """Return the word."""
        if text not in self.known:
            expected = "one of " + ", ".join(self.known)
            _refuse_value(flag, text, expected, nearest(text, self.known))
        return text


class ClassWeights(Values):
    """`balanced`, or numbers with commas between them; in a run `balanced:` and the numbers."""

    def read(self, flag: str, text: str) -> str:
        """Return the text."""
        parts = text.removeprefix("balanced:").split(",")
        numbers = all(len(part) <= LONGEST_REAL and _REAL.fullmatch(part) for part in parts)
        if text != "balanced" and not numbers:
            _refuse_value(flag, text, "balanced, or a number for each class: 1,2.5,1")
        return text


class PathText(Values):
    """Names and paths: what a system takes as a path, and not empty."""

    def read(self, flag: str, text: str) -> str:
        """Return the path."""
        whole_path = b"\0" if _HALF_OF_A_PAIR.search(text) else os.fsencode(text)
        longest = max(len(part) for part in whole_path.split(b"/"))
        if not text or re.search(rb"[\0-\x1f\x7f]", whole_path):
            _refuse_value(flag, text, "a name or a path, not empty, without control characters")
        if len(whole_path) > LONGEST_PATH or longest > LONGEST_NAME:
            bounds = f"at most {LONGEST_PATH} bytes, {LONGEST_NAME} between two slashes"
            _refuse_value(flag, text, bounds)
        return text


class SettingValue(Values):
    """True, false, a number or a text; within the limits of the option of that name."""

    def read(self, flag: str, text: str) -> tuple[str, bool | int | float | str]:
        """Return name and value of NAME=VALUE."""
        name, _, value = text.partition("=")
        if not _NAME.fullmatch(name) or not value.isprintable() or not value:
            _refuse_value(flag, text, "NAME=VALUE, NAME being an argument of the model")
        if name in NUMBERS:
            return name, NUMBERS[name].read(f"{flag} {name}", value)
        if value in ("true", "false"):
            return name, value == "true"
        digits = value.removeprefix("-")
        if _WHOLE.fullmatch(digits):
            return name, int(value)
        if _REAL.fullmatch(digits) is None:
            return name, value
        if math.isinf(float(value)):
            _refuse_value(flag, text, "a finite number")
        return name, float(value)


@dataclass(frozen=True)
class Several(Values):
    """Values with commas between them, each once."""

    each: Values

    def read(self, flag: str, text: str) -> tuple[Any, ...]:
        """Return the values."""
        found = tuple(self.each.read(flag, part) for part in text.split(","))
        if len(set(found)) < len(found):
            _refuse_value(flag, text, "each value once")
        return found


def _refuse_value(flag: str, text: str, expected: str, near: str = "") -> NoReturn:
    shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    shown = shown if shown.isprintable() else ascii(shown)[1:-1]
    raise UsageError.at(flag, f"got '{shown}'", f"expected {expected}", "Change it." + near)


class CommandOption(NamedTuple):
    """An option of some commands.

    Attributes:
        form: its flag, and what the help calls a value; of one that has its place on the command
            line, what errors and the help call it.
        takes: its values; None of a switch.
        commands: that have it.
        of: what it belongs to: the "run", its "model", the "format" of its data, or the "command",
            which no run records.
        default: of a command; of a run what holds where neither the command line nor the model
            says anything.
        more: what else argparse is told.
        changes: --resume may change it.
        of_file: a file for --config may say it. With the others, a file that somebody else wrote
            would choose where something is written, or which run goes on.
        own_name: by which the program has it, where it is not that of the word.
    """

    form: str
    takes: Values | None
    commands: str
    help: str
    of: str = "command"
    default: Any = None
    more: Mapping[str, Any] = {}
    changes: bool = False
    of_file: bool = True
    own_name: str = ""

    @property
    def word(self) -> str:
        """Return the flag, or what errors call it."""
        return self.form.partition(" ")[0]

    @property
    def name(self) -> str:
        """Return the name by which the program has it."""
        return self.own_name or self.word.removeprefix("--").replace("-", "_").lower()


TRAIN, RUN, TRAINED = "train", "train explain warm", "eval predict"
BENCH = "ablation breakdown"
# Of `vrt.Decoder`.
GENERATION = (
    "max_length",
    "num_beams",
    "length_penalty",
    "temperature",
    "top_k",
    "top_p",
    "seed",
)
SIZE, COUNT, TEXT, PATH = Whole(1, 2**16), Whole(1, 2**31 - 1), Values(), PathText()
RATE, SHARE = Real(1e30), Real(1.0)
*_FIRST, _LAST = names()
_MODELS = f"{', '.join(_FIRST)} or {_LAST}, or FILE.py:CLASS, a model of yours: the file is run"
_ONE = {"nargs": "?"}
_RUN = "run folder, one checkpoint of it, or an exported folder"
_SHARE = "or a share of train that is cut for it, such as 0.1; 0: none"
_SIZES = ("--batch-sizes N,N,...", Several(COUNT))
OPTIONS = (
    CommandOption("MODEL", TEXT, TRAIN, _MODELS, more=_ONE),
    CommandOption("MODEL", TEXT, "explain warm", f"{_MODELS}; or a run folder", more=_ONE),
    CommandOption("RUN", PATH, "eval", f"{_RUN}; several are compared", more={"nargs": "+"}),
    CommandOption("RUN", PATH, "predict", _RUN),
    CommandOption("RUN", PATH, "export", "run folder, or one checkpoint of it"),
    CommandOption(
        "OUT",
        PATH,
        "export",
        "new folder: parameters, config, vocabularies, a model card",
    ),
    CommandOption(
        "FILE",
        PATH,
        "new",
        "file to write, such as my_model.py; data of the same name in .jsonl stand beside it",
    ),
    CommandOption("FOLDER", PATH, "runs", "that holds runs (default runs)", more=_ONE),
    CommandOption("NAME", TEXT, "fetch", "a name of `vertexrt data list`"),
    CommandOption("report FOLDER", PATH, "report", "that holds results"),
    CommandOption("compare A.json", PATH, "compare", "", own_name="before"),
    CommandOption("compare B.json", PATH, "compare", "", own_name="after"),
    CommandOption(
        "--config FILE",
        PATH,
        RUN,
        "options that are not given here: TOML, or the config.json of a run",
        of_file=False,
    ),
    CommandOption(
        "--split SPLIT", OneOf(SPLITS), "eval", "dev, test or train (default dev)", default="dev"
    ),
    CommandOption(
        "--split SPLIT",
        OneOf(SPLITS),
        "predict",
        "dev, test or train (default test)",
        default="test",
    ),
    CommandOption(
        "--data NAME|PATH",
        PATH,
        f"{RUN} {BENCH}",
        "data set, or a folder or file that holds one",
        "run",
        changes=True,
    ),
    CommandOption(
        "--data NAME|PATH",
        PATH,
        TRAINED,
        "other data of the same format; one file is taken whole",
    ),
    CommandOption(
        "--model FILE.py:CLASS",
        PATH,
        "eval predict export",
        "of a model of yours: its file, which is run",
    ),
    CommandOption("--classes", None, "eval", "show precision, recall and F1 of each class"),
    CommandOption("--push OWNER/NAME", PATH, "export", "upload it to the Hugging Face Hub, too"),
    CommandOption(
        "--format FORMAT", PATH, RUN, "of the data; by default found from the files", "run"
    ),
    CommandOption(
        "--task TASK",
        OneOf(tuple(TASKS)),
        RUN,
        "of a model of yours: " + ", ".join(TASKS),
        "run",
    ),
    CommandOption("--dev FILE|SHARE", PATH, RUN, f"file of the dev split, {_SHARE}", "format"),
    CommandOption("--test FILE|SHARE", PATH, RUN, f"file of the test split, {_SHARE}", "format"),
    CommandOption(
        "--label COLUMN", PATH, RUN, "what is to be learnt, as the data call it", "format"
    ),
    CommandOption(
        "--word COLUMN", PATH, RUN, "the words, as the data call them; a text of a table", "format"
    ),
    CommandOption(
        "--separator TEXT",
        TEXT,
        RUN,
        "between columns; tab for a tabulator (conll, table)",
        "format",
    ),
    CommandOption(
        "--comment TEXT", TEXT, RUN, "how lines begin that are skipped (conll)", "format"
    ),
    CommandOption(
        "--pieces N", COUNT, RUN, "cut a text into pieces of N words (format text)", "format"
    ),
    CommandOption(
        "--min-count N", COUNT, RUN, "words of train that are rarer count as unknown", "format"
    ),
    CommandOption(
        "--binary",
        None,
        RUN,
        "two classes, without neutral trees (format trees)",
        "format",
    ),
    CommandOption("--epochs N", Whole(1, 10**9), TRAIN, "epochs", "run", changes=True),
    CommandOption("--batch-size N", COUNT, f"{RUN} {TRAINED}", "graphs in a minibatch", "run"),
    CommandOption(
        "--window N",
        COUNT,
        RUN,
        "sort graphs by size within N minibatches, so that like sizes come together",
        "run",
        1,
    ),
    CommandOption(
        "--seed N", Whole(0, 2**64 - 1), TRAIN, "of weights, dropout and order", "run", 0
    ),
    CommandOption(
        "--out DIR", PATH, TRAIN, "run folder (default runs/MODEL-DATE-TIME)", of_file=False
    ),
    CommandOption("--hidden N", SIZE, RUN, "width of the state", "model"),
    CommandOption("--embed N", SIZE, RUN, "width of the word embedding", "model"),
    # Types of vertices are numbered below 64.
    CommandOption("--layers N", Whole(1, 60), RUN, "layers of a language model", "model"),
    CommandOption("--dropout P", SHARE, RUN, "probability, 0 to 1", "model"),
    CommandOption("--lr X", RATE, TRAIN, "learning rate", "run", changes=True),
    CommandOption(
        "--optimizer NAME", OneOf(tuple(OPTIMIZERS)), "train warm", ", ".join(OPTIMIZERS), "run"
    ),
    CommandOption("--momentum X", SHARE, TRAIN, "of " + ", ".join(WITH_MOMENTUM), "run", 0.0),
    CommandOption("--weight-decay X", RATE, TRAIN, "L2 penalty", "run", 0.0),
    CommandOption("--clip-norm X", RATE, TRAIN, "largest global norm; 0: none", "run", 0.0),
    CommandOption(
        "--schedule NAME",
        OneOf(SCHEDULES),
        TRAIN,
        "of the learning rate over epochs: constant, cosine and linear (towards 0), or halving, "
        "each epoch after half of them",
        "run",
        "constant",
    ),
    CommandOption(
        "--class-weights N,N,...",
        ClassWeights(),
        TRAIN,
        "what a class counts in the loss; balanced: the rarer the more",
        "run",
    ),
    CommandOption(
        "--metric NAME",
        OneOf(METRICS),
        TRAIN,
        "that decides which epoch is best (by default the first of the task)",
        "run",
    ),
    CommandOption(
        "--average DECAY",
        SHARE,
        TRAIN,
        "judge and keep a moving average of the parameters, such as 0.999; 0: none",
        "run",
        0.0,
    ),
    CommandOption(
        "--policy P",
        OneOf(POLICIES),
        RUN,
        "frontier, depth, agenda or serial",
        "run",
        "frontier",
    ),
    CommandOption("--dtype T", OneOf(DTYPES), RUN, "float32 or float64", "run", "float32"),
    CommandOption(
        "--device D",
        OneOf(DEVICES),
        f"{RUN} {TRAINED}",
        "auto, cuda, cpu or reference",
        "run",
        "auto",
    ),
    CommandOption(
        "--precision P",
        OneOf(PRECISIONS),
        f"{RUN} {TRAINED}",
        "of products on a GPU: float32, tf32, or bf16 (persistent)",
        "run",
        "float32",
    ),
    CommandOption("--engine E", OneOf(ENGINES), RUN, "batched, persistent or auto", "run", "auto"),
    CommandOption(
        "--processors N",
        Whole(1, 2**16),
        RUN,
        "threads, on a GPU blocks, that share each task (persistent); by default chosen",
        "run",
        changes=True,
    ),
    CommandOption(
        "--threads N",
        Whole(1, 1024),
        f"{RUN} {TRAINED} {BENCH}",
        "CPU threads, BLAS included",
        "run",
        changes=True,
    ),
    CommandOption(
        "--patience N",
        Whole(0, 10**9),
        TRAIN,
        "stop after N epochs without a better dev value; 0: never",
        "run",
        0,
        changes=True,
    ),
    CommandOption("--resume RUN", PATH, TRAIN, "continue the run in this folder", of_file=False),
    CommandOption(
        "--continue",
        None,
        TRAIN,
        "continue the run in the --out folder where there is one, so that a restart goes on",
        of_file=False,
        own_name="go_on",
    ),
    CommandOption(
        "--shares N",
        Whole(1, 2**16),
        TRAIN,
        "parts of a minibatch for several processes: a power of two",
        "run",
    ),
    CommandOption(
        "--log tensorboard",
        OneOf(("tensorboard",)),
        TRAIN,
        "write the metrics for TensorBoard, too",
    ),
    CommandOption(
        "--trace FILE", PATH, TRAIN, "timeline of minibatches (persistent)", of_file=False
    ),
    CommandOption("--quiet", None, TRAIN, "print the result only"),
    CommandOption(
        "--out FILE",
        PATH,
        "predict",
        "file of JSON lines, one a graph; by default they are printed",
    ),
    CommandOption(
        "--max-length N",
        COUNT,
        TRAINED,
        "words that are generated at most, of a translation (default 100) or to go on with a text",
    ),
    CommandOption("--num-beams N", COUNT, TRAINED, "hypotheses of beam search (default 1)"),
    CommandOption("--length-penalty X", RATE, TRAINED, "compare score / words ** X (default 1)"),
    CommandOption("--temperature X", RATE, "predict", "draw words; 0, the default: the best one"),
    CommandOption("--top-k N", COUNT, "predict", "draw from the N most probable words"),
    CommandOption("--top-p P", SHARE, "predict", "draw from words of this probability together"),
    CommandOption("--seed N", Whole(0, 2**32 - 1), "predict", "of words that are drawn"),
    CommandOption("--bleu", None, "eval", "also BLEU of what is generated, by sacrebleu"),
    CommandOption(
        "--kernels ir|llvm",
        OneOf(KERNEL_FORMS),
        "explain",
        "print what each task program is lowered to, or its LLVM on a CPU, too",
        more={"nargs": "?", "const": "ir"},
    ),
    CommandOption(
        "--model MODEL",
        TEXT,
        BENCH,
        "by default tree-lstm; or FILE.py:CLASS, a model of yours: the file is run",
        default="tree-lstm",
    ),
    CommandOption("--leaves N", Whole(2, LARGEST_GRAPH), BENCH, "of a tree of tree-fc"),
    CommandOption("--hidden N", SIZE, BENCH, "and embedding size", default=64),
    CommandOption(
        "--set NAME=VALUE",
        SettingValue(),
        f"{RUN} {BENCH}",
        "any argument of the model's __init__; may be given several times",
        "model",
        more={"action": "append"},
    ),
    CommandOption(*_SIZES, "ablation", "graphs in a minibatch", default=(16, 64)),
    CommandOption(*_SIZES, "breakdown", "graphs in a minibatch", default=(1, 16, 64)),
    CommandOption("--device D", OneOf(DEVICES), BENCH, "auto (default), cuda, cpu", default="auto"),
    CommandOption(
        "--seconds S",
        Real(MOST_SECONDS),
        "ablation",
        "for each batch size, over all variants",
        default=60.0,
    ),
    CommandOption(
        "--seconds S", Real(MOST_SECONDS), "breakdown", "over all batch sizes", default=20.0
    ),
    CommandOption("--out DIR", PATH, BENCH, "folder for the results", default="bench"),
)


def options_of(command: str) -> list[CommandOption]:
    """Return the rows of a command."""
    return [row for row in OPTIONS if command in row.commands.split()]


# By name, of the options that models and runs have.
NUMBERS = {
    row.name: row.takes
    for row in OPTIONS
    if row.of != "command" and isinstance(row.takes, Whole | Real)
} | {"spelling": SIZE, "streams": COUNT}
RECORDED = {row.name: row for row in options_of("train") if row.of == "run"}
READING = tuple(row.name for row in options_of("train") if row.of == "format")
SHAPE = tuple(row.name for row in options_of("train") if row.of == "model" and row.name != "set")
NEUTRAL = {row.name: row.default for row in RECORDED.values() if row.default is not None}


MOST_SHOWN = 2  # models with a default of their own that the help names
COMMANDS = {
    "train": "train a model, or continue a run",
    "eval": "evaluate trained runs",
    "runs": "compare the runs of a folder",
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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a command or an action that there is not; nothing else has choices."""
        if action.choices is not None and value not in action.choices:
            near = nearest(value, action.choices)
            if not near and "train" in action.choices:
                near = f" A model comes after a command: vertexrt train {value}"
            raise UsageError.at(
                self.prog,
                f"unknown command '{value}'",
                "expected one of " + ", ".join(action.choices),
                f"See `{self.prog} --help`.{near}",
            )

    def add(self, rows: Iterable[CommandOption], defaults: Mapping[str, str] | None = None) -> None:
        """Add options.

        Args:
            defaults: what the help says of the default of each, by name.
        """
        for row in rows:
            text = (defaults or {}).get(row.name)
            settings = {"help": f"{row.help} ({text})" if text else row.help or None, **row.more}
            if row.takes is None:
                settings |= {"action": "store_const", "const": True}
            else:
                metavar = row.form.rpartition(" ")[2]
                settings |= {"metavar": metavar, "type": partial(row.takes.read, row.word)}
            if row.of != "run":
                settings["default"] = row.default
            flags = [row.word] if row.word.startswith("--") else []
            self.add_argument(*flags, dest=row.name, **settings)


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
            raise UsageError.at(
                option_string,
                "got two values",
                "expected one, since only one can hold",
                "Leave one out",
            )
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
        found[name] = f"default {most}"
        for value in others:
            few, more = owners[value], len(owners[value]) - 1
            text = ", ".join(few) if more < MOST_SHOWN else f"{few[0]} and {more} others"
            found[name] += f"; {value}: {text}"
    return found


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
    parsers = build()
    if "--version" in argv and len(argv) > 1:
        raise UsageError.at(
            "vertexrt", "--version and other words", "expected it alone", "Leave them out"
        )
    options, unknown = parsers[""].parse_known_args(list(argv))
    if unknown:
        command = parsers[getattr(options, "action", options.command) or ""]
        known = [word for action in command._actions for word in action.option_strings]
        _refuse_flag(command.prog, unknown[0].split("=")[0], known)
    run = getattr(options, "model", None)
    if options.command in ("explain", "warm") and run is not None and os.path.isdir(run):
        options.model, options.config = None, options.config or os.path.join(run, CONFIG_NAME)
    if getattr(options, "config", None) is not None:
        _fill(options)
    return options


def _refuse_flag(where: str, flag: str, known: Iterable[str]) -> NoReturn:
    what = "option" if flag.startswith("-") else "argument"
    found = replacement("--", flag)
    raise UsageError.at(
        where,
        f"unknown {what} '{one_line(flag)}'",
        "expected an option of this command",
        f"See `{where} --help`." + (f" Write {found}" if found else nearest(flag, known)),
    )


def _fill(options: argparse.Namespace) -> None:
    """Put in what the file of --config says and the command line does not.

    Raises: UsageError, when it cannot be read, holds something else than options, or names a
        program to run, or what is to be written or read instead.
    """
    where = options.config
    try:
        text = read_plain(Path(where)).decode()
        found = parse_json(text) if where.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # of both parsers the last two
        raise _no_options(where, getattr(error, "strerror", None) or str(error)) from error
    _require(where, "it", found, dict)
    stored = options_in(found, where)
    if options.model is None and stored.model is not None:
        words = f"{shlex.quote(stored.model)} --config {shlex.quote(where)}"
        how = f"name it: vertexrt {options.command} {words}"
        require_known(stored.model, where, how)
    settings = {**dict(stored.set or ()), **dict(options.set or ())}
    options.set = list(settings.items()) or None
    for name, value in vars(options).items():
        if value is None:
            setattr(options, name, getattr(stored, name, None))


def options_in(found: Mapping[str, Any], where: str, paths: Values = PATH) -> argparse.Namespace:
    """Read options that a file or a checkpoint says, within the limits of a command line.

    Args:
        found: values by the long names of options, None where there is none, switches as true or
            false; those of --set are a mapping.
        where: what said them, for errors.
        paths: what paths may be: a full one may lead through folders that nobody would type.
    Returns: the options of `vertexrt train` by name, None where nothing is said.
    Raises: UsageError, when one is not known, is not for files, has two values, or one that it
        does not take.
    """
    rows = {"--model" if row.name == "model" else row.word: row for row in options_of(TRAIN)}
    given = argparse.Namespace(**{row.name: None for row in rows.values()})
    for name, value in found.items():
        flag = "--" + name.replace("_", "-")
        if flag not in rows:
            _refuse_flag("vertexrt train", flag, rows)
        row = rows[flag]
        if value is None or (value is False and row.takes is None):
            continue
        if not row.of_file:
            expected = "expected what decides over the result"
            raise UsageError.at(where, f"it says {flag}", expected, "Give it on the command line")
        if getattr(given, row.name) is not None:
            raise _no_options(where, f"two values of {flag}")
        if flag == "--set":
            _require(where, name, value, dict)
            value = [*settings_in(value, where, flag).items()]
        elif row.takes is None:
            _require(where, name, value, bool)
        else:
            _require(where, name, value, int, float, str)
            takes = paths if row.takes is PATH else row.takes
            value = takes.read(flag, str(value))
        setattr(given, row.name, value)
    return given


def settings_in(found: Mapping[str, Any], where: str, flag: str) -> dict[str, Any]:
    """Return arguments of a model by name, each within the limits of the option of that name.

    Raises: UsageError.
    """
    settings = dict(found)
    for name, value in found.items():
        if got := _misfit(value, bool, int, float, str):
            expected = "expected true, false, a finite number or a text without NUL"
            raise UsageError.at(where, f"{one_line(name)} is {got}", expected, "Change it")
        if name in NUMBERS:
            settings[name] = NUMBERS[name].read(f"{flag} {name}", str(value))
    return settings


def _require(where: str, name: str, value: object, *kinds: type) -> None:
    if got := _misfit(value, *kinds):
        raise _no_options(where, f"{one_line(name)} is {got}")


def _misfit(value: object, *kinds: type) -> str:
    """Show a value of another kind, or one that a checkpoint cannot hold; "" of one that fits."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return "a number of too many digits"
    endless = isinstance(value, float) and not math.isfinite(value)
    cut = isinstance(value, str) and "\0" in value
    return f"{value!r:.{SHOWN}}" if endless or cut or type(value) not in kinds else ""


def _no_options(where: str, got: str) -> UsageError:
    expected = "expected options by their long names: epochs = 3; those of --set in a table"
    return UsageError.at(where, got, f"{expected} [set]", "Correct the file")
