"""Kill training runs at random instants, inside saves too, go on with them, and compare the bits.

    python -m tests.attacks kills --count 200 --seed 1

A case is a small training whose process is killed (SIGKILL) one to four times, then continued as
the folder allows, by --resume or again by --out, to its end. Parameters, optimizer state and
metrics must then be those of the run that nobody killed, and nothing else may be in the folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.forked import Child, in_process, run, write_trees
from tests.attacks.outcomes import FAILED, Tally
from tests.train.cli_runs import require_same_run

SHAPE = ("--hidden", "4", "--embed", "3", "--batch-size", "8", "--threads", "1", "--quiet")
VARIANTS = (
    ("--device", "reference", "--dropout", "0.3"),
    ("--device", "cpu", "--optimizer", "adam", "--dropout", "0.2"),
    ("--device", "cpu", "--optimizer", "sgd", "--momentum", "0.9", "--window", "2"),
    ("--device", "cpu", "--engine", "persistent", "--processors", "1"),
)
MOST_KILLS = 4
SAVE_SECONDS = 0.004  # about what a save takes; a kill inside one comes so long after its start
SIZES = {"train": 24, "dev": 8, "test": 8}


@dataclass(frozen=True, slots=True)
class Whole:
    """A run that nobody kills: its words, its folder, the seconds that it takes."""

    words: tuple[str, ...]
    folder: Path
    seconds: float


def prepare(scratch: Path, epochs: int, variants: int) -> list[Whole]:
    """Write the data and train the runs to compare with; compile what they need in this process."""
    data = write_trees(scratch / "trees", SIZES)
    found = []
    for number, variant in enumerate(VARIANTS[:variants]):
        words = ("train", "tree-lstm", "--data", str(data), "--epochs", str(epochs))
        words += (*SHAPE, *variant)
        in_process([*words, "--out", str(scratch / f"warm-{number}")])
        folder, start = scratch / f"whole-{number}", time.monotonic()
        ended = run([*words, "--out", str(folder)], scratch)
        if ended.code:
            raise RuntimeError(f"the run to compare with: {ended.how}, {ended.err}")
        found.append(Whole(words, folder, time.monotonic() - start))
    return found


def case(number: int, seed: int, wholes: list[Whole], scratch: Path) -> tuple[str, str]:
    """Kill a run, go on, compare; return the attack's name and its outcome."""
    rng = np.random.default_rng([seed, number])
    whole = wholes[int(rng.integers(len(wholes)))]
    out = scratch / f"run-{number}"
    kills, inside = 0, 0
    for _ in range(int(rng.integers(1, MOST_KILLS + 1))):
        child = Child(_next_words(whole, out), scratch)
        saving = rng.random() < 0.6
        left = _kill(child, out, rng, rng.uniform(0.0, 1.1) * whole.seconds, saving=saving)
        ended = child.finish()
        if ended.code not in (0, -9):
            return "kills", f"{FAILED}: {ended.how}: {ended.err}"
        kills += ended.code == -9
        inside += left and ended.code == -9
    ended = run(_next_words(whole, out), scratch)
    if ended.code:
        return "kills", f"{FAILED}: at the end {ended.how}: {ended.err}"
    try:
        require_same_run(out, whole.folder)
        assert meta_of(out) == meta_of(whole.folder)
        assert {*os.listdir(out)} == {*os.listdir(whole.folder)}
    except AssertionError as error:
        return "kills", f"{FAILED}: not the run that nobody killed: {error} ({out} is kept)"
    shutil.rmtree(out)
    name = "killed inside a save" if inside else "killed" if kills else "ended before the kill"
    return name, "the same bits"


def _next_words(whole: Whole, out: Path) -> list[str]:
    """Say what the run's owner would: continue it if it can be, else start it again."""
    if (out / "last.safetensors").is_file():
        return ["train", "--resume", str(out), "--quiet"]
    return [*whole.words, "--out", str(out)]


def _kill(
    child: Child, out: Path, rng: np.random.Generator, seconds: float, *, saving: bool
) -> bool:
    """Kill a child after so many seconds, or in the next save then; tell whether it was in one."""
    if child.ended(seconds):
        return False
    while saving and not child.ended(0.0):
        if _temporaries(out):
            time.sleep(rng.uniform(0.0, SAVE_SECONDS))
            break
    child.kill()
    child.ended(1.0)
    return bool(_temporaries(out))


def meta_of(run: Path) -> dict[str, Any]:
    """Return the meta data of the last checkpoint but for totals, which have times."""
    meta = vrt.load_checkpoint(run / "last.safetensors").meta
    return {**meta, "state": {**meta["state"], "totals": None}}


def _temporaries(out: Path) -> list[str]:
    return [name for name in os.listdir(out) if name.endswith(".tmp")] if out.is_dir() else []


def attack(
    count: int, seed: int, first: int = 0, epochs: int = 12, variants: int = len(VARIANTS)
) -> Tally:
    """Run cases first..first+count-1."""
    tally = Tally()
    scratch = Path(tempfile.mkdtemp(prefix="vertexrt-kills-"))
    wholes = prepare(scratch, epochs, variants)
    for number in range(first, first + count):
        tally.add(number, *case(number, seed, wholes, scratch))
    if not tally.failures:
        shutil.rmtree(scratch)
    return tally
