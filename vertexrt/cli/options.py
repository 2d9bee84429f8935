"""The options of the command line: a row for each.

The parsers of all commands and their help, what a file for --config may say, what a run records
and what --resume may change are made from the rows. A value is read within the same limits from a
command line, a file or a checkpoint. They are far above what is trained in practice: they keep a
slip of the keyboard, or a damaged file, from becoming a size that no machine has.

Nothing heavy is imported, so that `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from vertexrt.cli.tasks import TASKS
from vertexrt.engine.devices import DEVICES, DTYPES, ENGINES, KERNEL_FORMS, PRECISIONS
from vertexrt.errors import UsageError, nearest
from vertexrt.ir.updates import OPTIMIZERS as ROWS
from vertexrt.models.catalogue import names

if TYPE_CHECKING:
    from vertexrt.api.json_record import JsonRecord

POLICIES: Final = ("frontier", "depth", "agenda", "serial")
OPTIMIZERS: Final = {row.name: row for row in ROWS}
WITH_MOMENTUM: Final = tuple(name for name, row in OPTIMIZERS.items() if "momentum" in row.names())
SCHEDULES: Final = ("constant", "cosine", "linear", "halving")  # of the learning rate
SPLITS: Final = ("dev", "test", "train")
CONFIG_NAME: Final = "config.json"  # of the options in a run folder

# Digits of ASCII only: no spaces, signs, underscores, other bases or other scripts.
_WHOLE = re.compile(r"[0-9]{1,20}")
_REAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_NAME = re.compile(r"[^\W\d]\w*")  # of an argument
_HALF_OF_A_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that no path has
LONGEST_REAL = 64  # characters
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

    def stored(self, fields: JsonRecord, name: str) -> Any:
        """Return a field of a checkpoint, within the same limits. Raises: CheckpointError."""
        return fields.text(name)


@dataclass(frozen=True)
class Whole(Values):
    """Whole numbers within limits, written in decimal digits.

    Attributes:
        optional: a run may leave it to the runtime.
    """

    least: int
    most: int
    optional: bool = False

    def read(self, flag: str, text: str) -> int:
        """Return the number."""
        if _WHOLE.fullmatch(text) is None or int(text) < self.least:
            _refuse_value(flag, text, f"a whole number, {self.least} or more")
        if int(text) > self.most:
            _refuse_value(flag, text, f"a whole number, {self.most} at most")
        return int(text)

    def stored(self, fields: JsonRecord, name: str) -> int | None:
        """Return a number of a checkpoint; earlier ones do not have all that are optional."""
        if self.optional and (name not in fields.unread() or fields.null(name)):
            return None
        return fields.whole(name, self.least, self.most)


@dataclass(frozen=True)
class Real(Values):
    """Numbers from 0 up to, and without, `below`, written as 0.05 or 5e-2."""

    below: float

    def read(self, flag: str, text: str) -> float:
        """Return the number."""
        fits = len(text) <= LONGEST_REAL and _REAL.fullmatch(text) is not None
        value = float(text) if fits else math.nan
        if not 0.0 <= value < self.below:
            limit = "" if self.below > 1.0 else f" and less than {self.below:g}"
            _refuse_value(flag, text, f"a number, 0 or more{limit}")
        if value == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
            _refuse_value(flag, text, "a number that is not too small to be told from 0")
        return value

    def stored(self, fields: JsonRecord, name: str) -> float:
        """Return a number of a checkpoint."""
        value = fields.real(name, 0.0)
        if value >= self.below:
            fields.refuse(name, f"a number less than {self.below:g}")
        return value


@dataclass(frozen=True)
class OneOf(Values):
    """One of some words."""

    known: Sequence[str]

    def read(self, flag: str, text: str) -> str:
        """Return the word."""
        if text not in self.known:
            near = nearest(text, self.known)
            _refuse_value(flag, text, "one of " + ", ".join(self.known), near)
        return text

    def stored(self, fields: JsonRecord, name: str) -> str:
        """Return a word of a checkpoint."""
        return fields.text(name, self.known)


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
        return name, float(value) if _REAL.fullmatch(digits) else value

    def stored(self, fields: JsonRecord, name: str) -> Any:
        """Return a value of a checkpoint."""
        return NUMBERS[name].stored(fields, name) if name in NUMBERS else fields.scalar(name)


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


@dataclass(frozen=True, slots=True)
class CommandOption:
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
        of_file: a file for --config may say it. By the others, a file that others wrote would
            choose where something is written, or be another run.
        own_name: by which the program has it, where it is not that of the word.
    """

    form: str
    takes: Values | None
    commands: str
    help: str
    of: str = "command"
    default: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)
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
SIZE, COUNT, TEXT, PATH = Whole(1, 2**16), Whole(1, 2**31 - 1), Values(), PathText()
RATE, SHARE = Real(1e30), Real(1.0)
*_FIRST, _LAST = names()
_MODELS = f"{', '.join(_FIRST)} or {_LAST}, or FILE.py:CLASS, a model of yours: the file is run"
_ONE, _SWITCH = {"nargs": "?"}, {"action": "store_true"}
_DATA = "data set, or a folder that holds one"
_SEVERAL_SIZES = Several(COUNT)
OPTIONS = (
    CommandOption("MODEL", TEXT, TRAIN, _MODELS, more=_ONE),
    CommandOption("MODEL", TEXT, "explain warm", f"{_MODELS}; or a run folder", more=_ONE),
    CommandOption("RUN", PATH, TRAINED, "run folder, one checkpoint of it, or an exported folder"),
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
    CommandOption("--data NAME|PATH", PATH, RUN, _DATA, "run", changes=True),
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
    CommandOption(
        "--dev FILE", PATH, RUN, "file of the dev split, where --data is a file", "format"
    ),
    CommandOption(
        "--test FILE", PATH, RUN, "file of the test split, where --data is a file", "format"
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
        more={"action": "store_const", "const": True},
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
    CommandOption("--lr X", RATE, TRAIN, "learning rate", "run"),
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
        Whole(1, 2**16, optional=True),
        RUN,
        "threads, on a GPU blocks, that share each task (persistent); by default chosen",
        "run",
        changes=True,
    ),
    CommandOption(
        "--threads N",
        Whole(1, 1024),
        f"{RUN} {TRAINED}",
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
        more=_SWITCH,
        of_file=False,
        own_name="go_on",
    ),
    CommandOption(
        "--shares N",
        Whole(1, 2**16, optional=True),
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
    CommandOption("--quiet", None, TRAIN, "print the result only", more=_SWITCH),
    CommandOption(
        "--out FILE",
        PATH,
        "predict",
        "file of JSON lines, one a graph; by default they are printed",
    ),
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
    CommandOption("--data NAME|PATH", PATH, BENCH, _DATA),
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
    CommandOption(
        "--batch-sizes N,N,...",
        _SEVERAL_SIZES,
        "ablation",
        "graphs in a minibatch",
        default=(16, 64),
    ),
    CommandOption(
        "--batch-sizes N,N,...",
        _SEVERAL_SIZES,
        "breakdown",
        "graphs in a minibatch",
        default=(1, 16, 64),
    ),
    CommandOption("--device D", OneOf(DEVICES), BENCH, "auto (default), cuda, cpu", default="auto"),
    CommandOption("--threads N", Whole(1, 1024), BENCH, "CPU threads"),
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
