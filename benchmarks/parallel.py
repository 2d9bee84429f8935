"""Several processes against one: Tree-LSTM, and a language model with a dense softmax.

    python -m benchmarks.parallel --processes 1,2 [--device cuda] [--trees SST] [--text PTB]

Each number of processes is a group, started as torchrun does, a GPU each; all groups stay alive and
take turns. First the parameters after some steps, cut into the same shares, must have the same bits
in all groups. Then rates are compared round by round with those of one process, which knows no
group: at the whole minibatch ("the same minibatch"), and at its part of it ("its own minibatch").
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import vertexrt as vrt
from benchmarks.turns import ratio_text
from vertexrt.bench.measure import in_turn
from vertexrt.data import load
from vertexrt.models import get

RATE, BITS = 1e-3, 4  # learning rate, and steps before bits are compared
LENGTH, LINES = 24, 2000  # of generated text
LIMIT = 120.0  # seconds that a process waits for another: the second model is compiled late
HOST = "127.0.0.1"


class Setting(NamedTuple):
    """A model that is compared: its engine on a GPU, and sizes."""

    engine: str
    format: str
    sizes: dict[str, Any]


SETTINGS = {
    "tree-lstm": Setting("persistent", "trees", {"hidden": 256, "embed": 256, "dropout": 0.0}),
    "lstm-lm": Setting("batched", "text", {"hidden": 256, "embed": 256, "dropout": 0.0}),
}


class Worker:
    """A process of a group: compiles each model once, and does what it is told."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.group = vrt.parallel.init(limit=LIMIT)
        self.bits = self.group.shared_out(options.shares)
        self.networks: dict[str, tuple[vrt.Network, vrt.GraphBatch]] = {}

    def network(self, model: str) -> tuple[vrt.Network, vrt.GraphBatch]:
        """Return a compiled model and its data."""
        if model not in self.networks:
            spec, setting, options = get(model), SETTINGS[model], self.options
            sizes = dict(spec.options) | setting.sizes
            path = options.trees if setting.format == "trees" else options.text
            data = load(path or "generated", format=setting.format, **spec.reading(sizes))
            gpu = options.device == "cuda"
            net = vrt.compile(
                spec.build(data, **sizes),
                device=options.device,
                engine=setting.engine if gpu else "batched",
                seed=1,
                threads=1,
            )
            self.networks[model] = net, data.splits["train"]
        return self.networks[model]

    def bits_of(self, model: str, size: int) -> dict[str, Any]:
        """Take steps from the first parameters on; return a digest of those that come out."""
        net, pool = self.network(model)
        first = dict(net.parameters)
        adam, rng = vrt.Adam(RATE, clip_norm=1.0), np.random.default_rng(5)
        for _ in range(BITS):
            batch = pool.take(rng.integers(0, pool.num_graphs, size))
            net.step(batch, adam, group=self.bits)
        net.sync()
        digest = hashlib.sha256()
        for value in net.parameters.values():
            digest.update(np.ascontiguousarray(value).tobytes())
        words = sum(value.size for value in net.parameters.values())
        net.parameters.update(first)
        return {"digest": digest.hexdigest(), "parameters": words, "data": pool.num_graphs}

    def seconds_of(self, model: str, size: int, steps: int) -> dict[str, Any]:
        """Take steps; return the seconds of one."""
        net, pool = self.network(model)
        group = self.group if self.group.size > 1 else None
        sgd, rng = vrt.SGD(RATE), np.random.default_rng(size)
        drawn = [rng.integers(0, pool.num_graphs, size) for _ in range(steps)]
        net.sync()
        start = time.perf_counter()
        for chosen in drawn:
            net.step(pool.take(chosen), sgd, group=group)
        net.sync()
        return {"seconds": (time.perf_counter() - start) / steps}

    def serve(self) -> None:
        """Do what each line of the input asks for; process 0 answers by a line."""
        for line in sys.stdin:
            asked = json.loads(line)
            work = self.bits_of if asked.pop("what") == "bits" else self.seconds_of
            found = work(**asked)
            if self.group.rank == 0:
                print(json.dumps(found), flush=True)


class Group:
    """Processes that were started together; the others of a run wait for their turn."""

    def __init__(self, size: int, words: list[str]) -> None:
        self.size = size
        shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": free_port()}
        own = os.environ | {name: str(value) for name, value in shared.items()}
        own["MASTER_ADDR"] = HOST
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.parallel", *words],
                env=own | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(size)
        ]

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Let all processes do something; return the answer of the first."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
        first = self.processes[0]
        assert first.stdout is not None
        line = first.stdout.readline()
        if not line:
            raise SystemExit(f"a group of {self.size} has ended; see what it says above")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End."""
        for process in self.processes:
            process.communicate()


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def compare(model: str, groups: Sequence[Group], options: argparse.Namespace) -> None:
    """Check bits, time all groups in turn, and print what was found."""
    size = options.batch if SETTINGS[model].format == "trees" else options.text_batch
    found = [group.ask(what="bits", model=model, size=size) for group in groups]
    if len({each["digest"] for each in found}) > 1:
        raise SystemExit(f"{model}: groups of {options.processes} have other bits: {found}")
    print(
        f"{model}: {found[0]['parameters']:,} parameters, {found[0]['data']:,} graphs", flush=True
    )
    print(
        f"  same bits after {BITS} steps of {size} with {options.processes} processes", flush=True
    )
    one, *several = groups
    parts = [size // group.size for group in several]
    runs = [(group, size) for group in groups] + [(one, part) for part in dict.fromkeys(parts)]

    def seconds_of(group: Group, batch: int, number: int) -> float:
        asked = {"what": "seconds", "model": model, "size": batch, "steps": options.steps}
        seconds: float = group.ask(**asked)["seconds"]
        return seconds

    ways = {(group.size, batch): partial(seconds_of, group, batch) for group, batch in runs}
    took = in_turn(ways, options.rounds, -1)
    for (processes, batch), seconds in took.items():
        ms = 1e3 * float(np.median(seconds))
        print(f"  {processes} of {batch:4}: {ms:8.2f} ms, {1e3 * batch / ms:9,.0f} graphs/s")
    for group, part in zip(several, parts, strict=True):
        both = took[group.size, size]
        same, own = took[1, size], took[1, part]
        print(f"  {group.size} to 1, the same minibatch of {size}: {ratio_text(same, both)}")
        rate = ratio_text([each * size / part for each in own], both)
        print(f"  {group.size} to 1, its own minibatch of {part}: {rate}", flush=True)


def write_text(folder: str, vocabulary: int) -> str:
    """Write lines of words that are drawn; return the folder."""
    rng = np.random.default_rng(2)
    for split in ("train", "valid", "test"):
        words = rng.integers(vocabulary, size=(LINES if split == "train" else 8, LENGTH))
        if split == "train":
            words.reshape(-1)[:vocabulary] = np.arange(vocabulary)
        lines = [" ".join(f"w{word}" for word in line) for line in words]
        Path(folder, f"ptb.{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    """Read the options, start the groups, compare."""
    parser = argparse.ArgumentParser("python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--processes", default="1,2", help="1 first")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", default=",".join(SETTINGS))
    parser.add_argument("--trees", help="folder of bracketed trees; generated by default")
    parser.add_argument("--text", help="folder with ptb.train.txt; generated by default")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="of generated text")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--text-batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shares", type=int, help=argparse.SUPPRESS)  # of a worker
    options = parser.parse_args()
    if options.shares:
        return Worker(options).serve()
    sizes = [int(size) for size in options.processes.split(",")]
    if sizes[0] != 1 or len(sizes) < 2:
        parser.error(f"--processes {options.processes}: 1 and others, as 1,2")
    with tempfile.TemporaryDirectory() as folder:
        words = ["--device", options.device, "--shares", str(max(sizes))]
        words += ["--text", options.text or write_text(folder, options.vocabulary)]
        words += ["--trees", options.trees] if options.trees else []
        groups = [Group(size, words) for size in sizes]
        for model in options.models.split(","):
            compare(model, groups, options)
        for group in groups:
            group.close()
    return None


if __name__ == "__main__":
    main()
