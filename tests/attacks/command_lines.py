"""Run hostile command lines.

    python -m tests.attacks command_lines --count 5000 --seed 1

Each is a command line that works with some of its words replaced, removed, doubled or added, or a
soup of words; its output goes to a file, a full disk or nowhere, or is closed. It must end with
exit code 0 and the work done as it was asked for, or with the documented code and one line
`vertexrt: [where] ...`; never with a traceback, a signal, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

import vertexrt as vrt
from tests.attacks.forked import LIMIT, Child, Ended, in_process, write_trees
from tests.attacks.outcomes import FAILED, Tally

REFUSED, DONE = "refused in one line", "done as asked"
SIZES = {"train": 8, "dev": 4, "test": 4}
Rng = np.random.Generator

# What people, scripts and attackers put where a value should be. None of them is a long training.
PLAIN_VALUES = (
    "0 1 2 3 -1 +1 01 1_0 0x10 1e3 1e9999 1e-9999 nan inf -inf 1.5 .5 5. 1e-3 \u0661\u0662 \u00b2 "
    "\uff11 1,2 1,,2 , 18446744073709551615 18446744073709551616 2147483648 99999999999 None true "
    "x a\0b \udcff \ud800 \u202e %s %(prog)s {} $HOME ~ ~nosuchuser ~nosuchuser/x . .. / /dev/null "
    "/dev/full /dev/zero /proc/self/mem /nonexistent/x file folder locked pipe loop run "
    "run/last.safetensors run/metrics.jsonl trees trees/train.txt empty bad.json deep.json - -- "
    "-h --help --version --epochs --epochs=1 @file adam adamw sgd adagrad cpuu reference cuda "
    "float32 float64 fine binary dev test train depth serial agenda frontier persistent batched "
    "tree-lstm tree-fc lstm-lm list my.py my.py:Net = arity=2 trees= loss"
)
LONG_VALUES = ("9" * 30, "9" * 5000, "x" * 300, "x/" * 3000, "x" * 5000)
VALUES = (*PLAIN_VALUES.split(" "), *LONG_VALUES, "", " ", " 1", "1 ", "sst ", "\n", "a\nb")
FLAGS = (
    "data binary set config format task test pieces epochs batch-size window seed out hidden embed "
    "dropout lr optimizer momentum weight-decay clip-norm policy dtype device precision engine "
    "processors threads patience resume trace quiet split version help batch-sizes seconds "
    "schedule model leaves hiden dat max-length num-beams temperature top-p bleu"
)
OPTIONS = [f"--{flag}" for flag in FLAGS.split()]
SMALL = "--hidden 4 --embed 3 --batch-size 8 --device reference --threads 1"
TRAIN = f"train tree-lstm --data trees --epochs 1 {SMALL} --out"
EXPLAIN = f"explain tree-lstm --data trees {SMALL}"
BASES = (
    f"{TRAIN} out",
    f"{TRAIN} out --optimizer adam --lr 0.01 --dropout 0.1 --seed 3",
    f"{TRAIN} out --engine persistent --processors 1 --trace trace.json --quiet",
    "train --resume run --epochs 3 --quiet",
    "eval run --split test --data trees --batch-size 4",
    "eval run/last.safetensors",
    "predict run --data trees/test.txt --out predicted.jsonl",
    "train --config run/config.json --out out --epochs 1",
    "explain run --set arity=2",
    "train my.py:Net --data trees --task loss --out out",
    "info",
    EXPLAIN,
    "data list",
    "data fetch generated",
    "bench compare bad.json deep.json",
    "bench report folder",
    "bench ablation --model x --batch-sizes 1,2 --seconds 0",
    "--help",
    "train --help",
    "--version",
)
ODD_STREAMS: tuple[dict[int, str], ...] = (
    {1: "/dev/full"},
    {1: ""},
    {2: "/dev/full"},
    {2: ""},
    {1: "", 2: ""},
    {1: "/dev/null"},
)
STREAMS = (*({},) * 16, *ODD_STREAMS)


def prepare(folder: Path) -> None:
    """Fill a folder with what command lines name, and import and compile what they need."""
    write_trees(folder / "trees", SIZES)
    for name in ("folder", "empty", "locked"):
        (folder / name).mkdir()
    (folder / "file").write_text("text\n")
    (folder / "folder" / "x.json").write_text('{"schema": 1, "entries": [3]}')
    (folder / "bad.json").write_text("[]")
    (folder / "deep.json").write_text("[" * 100_000)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "locked").chmod(0)
    from vertexrt.cli import bench, data, evaluate, train  # noqa: F401 (children find them)

    with contextlib.chdir(folder):
        for line in (f"{TRAIN} run", f"{TRAIN} warm --engine persistent", EXPLAIN):
            in_process(line.split())


def words_of(rng: Rng) -> list[str]:
    """Make a command line."""
    if rng.random() < 0.1:
        pool = (*VALUES, *OPTIONS, *TRAIN.split(), "eval", "explain", "bench", "data")
        return [str(pool[int(rng.integers(len(pool)))]) for _ in range(int(rng.integers(0, 6)))]
    words = BASES[int(rng.integers(len(BASES)))].split()
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(len(words) + 1))
        value = VALUES[int(rng.integers(len(VALUES)))]
        option = OPTIONS[int(rng.integers(len(OPTIONS)))]
        kind = rng.integers(10)
        if kind < 5 and at < len(words):
            words[at] = value
        elif kind == 5 and at < len(words):
            del words[at]
        elif kind == 6:
            words[at:at] = [option, value]
        elif kind == 7:
            words[at:at] = [f"{option}={value}"]
        elif kind == 8:
            words += words[at : at + 2]
        else:
            words[at:at] = [value]
    return words


def case(number: int, seed: int, world: Path, scratch: Path) -> tuple[str, str]:
    """Run a command line in a fresh copy of the folder; return the command and how it ended."""
    rng = np.random.default_rng([seed, number])
    words = words_of(rng)
    streams = STREAMS[int(rng.integers(len(STREAMS)))]
    folder = scratch / "world"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world, folder, symlinks=True, copy_function=_copy)
    ended = Child(words, folder, streams).finish(LIMIT)
    name = next((word for word in words[:1] if word.isalpha()), "(none)")
    name = name if name in ("train", "eval", "explain", "bench", "data") else "(other)"
    wrong = judge(words, streams, ended, folder)
    if wrong:
        return name, f"{FAILED}: {wrong}\n    {words} {streams}\n    {ended.err[-800:]}"
    return name, DONE if ended.code == 0 else REFUSED


def _copy(source: str, target: str) -> None:
    if os.path.isfile(source):
        shutil.copy2(source, target)
    else:
        os.mkfifo(target)


def judge(words: list[str], streams: dict[int, str], ended: Ended, folder: Path) -> str:
    """Say what is wrong with the way a command line ended; "" if nothing is."""
    if "Traceback" in ended.err + ended.out or "Exception ignored" in ended.err:
        return "a traceback"
    if ended.code not in (0, 1, 2):
        return ended.how
    if ended.code:
        if 2 in streams:
            return ""
        told = ended.err.count("\n") == 1 and re.match(r"vertexrt: \[.+\] .+; .+; .+", ended.err)
        return "" if told else f"{ended.how} without one line in the form of an error"
    if 1 in streams:
        return "" if streams[1] == "/dev/null" else "exit code 0, and the output went nowhere"
    return unfinished(words, ended.out, folder)


def unfinished(words: list[str], out: str, folder: Path) -> str:
    """Say what a command that ended with 0 has not done."""
    if not out:
        return "exit code 0 without a word"
    if "usage: vertexrt" in out:
        return "" if {"-h", "--help"} & set(words) or not words else "a help that nobody asked for"
    if words == ["--version"]:
        return "" if out == f"vertexrt {vrt.__version__}\n" else "another version"
    if words[0] == "train":
        found = re.search(r"^run: (.*)$", out, re.MULTILINE)
        return _other_options(words, folder / found[1]) if found else "no run is named"
    expected = {
        "eval": r"^(dev|test|train|all): loss \d.*; \d+ graphs of ",
        "explain": r"\d+ graphs of ",
        "data": r"^name +format|^/",
        "predict": r"^predictions of \d+ graphs of |^{\"",
        "info": "^vertexrt +",
        "bench": "written: |equal|hidden|slower|faster",
    }.get(words[0], "$^")
    return "" if re.search(expected, out, re.MULTILINE) else f"{words[0]} did something else"


def _other_options(words: list[str], run_folder: Path) -> str:
    """Compare the options in a run's checkpoint with the words that it was started with."""
    stored = vrt.load_checkpoint(run_folder / "last.safetensors").meta["options"]
    stored = {**stored, **stored.pop("shape")}
    given = list(words)
    for at, word in enumerate(given):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in stored:
            continue
        value = value if equals else given[at + 1]
        kept = stored[name]
        if name == "data":
            same = Path(kept).name == Path(os.path.normpath(value)).name
        else:
            same = str(kept) == value or _number(kept) == _number(value) is not None
        if not same:
            return f"{flag} is {json.dumps(kept)}"
    return ""


def _number(value: object) -> float | None:
    return float(str(value)) if re.fullmatch(r"[0-9.e+-]+", str(value)) else None


def attack(count: int, seed: int, first: int = 0) -> Tally:
    """Run cases first..first+count-1."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="vertexrt-words-") as name:
        world = Path(name) / "prepared"
        prepare(world)
        for number in range(first, first + count):
            tally.add(number, *case(number, seed, world, Path(name)))
    return tally
