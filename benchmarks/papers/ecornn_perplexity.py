"""Train a language model from the command line, and PyTorch's beside it (EcoRNN, table 1).

    python -m benchmarks.papers.ecornn_perplexity --out DIR -- --data ptb --hidden 650 ...

What comes after `--` are options of `vertexrt train lstm-lm`; state is carried from piece to piece,
and plain SGD is the optimizer. The peer is `nn.LSTM` with the same first parameters, minibatches,
dropout, clipping and learning rates, on a GPU one CUDA graph a step, whose minibatches lie ready on
the device. Losses of the first minibatch are compared before anything is trained. Dropout draws
other zeros there, so curves are alike, not equal. DIR gets `perplexity.json` and `perplexity.png`;
`--draw A.json B.json --out FILE.png` draws several models in one picture.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.cli.main import main as vertexrt_main
from vertexrt.cli.run_folder import BEST, METRICS
from vertexrt.cli.session import (
    RunSession,
    load,
    open_session,
    rate_of,
    training_loader,
)
from vertexrt.data import Loader
from vertexrt.pictures import HOW_TO_DRAW, can_draw, figure

ALWAYS = ["--set", "carried=true", "--optimizer", "sgd"]
BOUND = 2e-6  # of the first loss
STYLES: tuple[dict[str, Any], ...] = ({"marker": "o"}, {"marker": "x", "linestyle": "--"})
SPLITS = {"train": "0.6", "dev": "black"}  # and their greys
Curve = list[dict[str, float]]


def train_ours(folder: Path, options: Sequence[str]) -> tuple[RunSession, Curve, float]:
    """Train from the command line.

    Returns: the run with its first parameters; a row an epoch; the perplexity of test.
    """
    code = vertexrt_main(["train", "lstm-lm", *ALWAYS, *options, "--out", str(folder)])
    if code:
        raise SystemExit(code)
    session = open_session(load(folder / BEST).options)
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    found = {(line["split"], line["epoch"]): line for line in lines}
    words = int((np.asarray(session.dataset.splits["train"].pulls["label"]) >= 0).sum())
    curve = [
        {
            "train": found["train", k]["perplexity"],
            "dev": found["dev", k]["perplexity"],
            "words_per_s": words / found["train", k]["seconds"],
        }
        for k in range(1, session.options.epochs + 1)
    ]
    (test,) = (line["perplexity"] for line in lines if line["split"] == "test")
    return session, curve, test


def minibatches(session: RunSession, split: str) -> list[vrt.GraphBatch]:
    """Return piece after piece of all streams."""
    size = session.options.batch_size
    return list(Loader(session.dataset.splits[split], size, shuffle=False))


def train_torch(session: RunSession, device: str) -> tuple[Curve, float]:
    """Train the peer as a run says; return a row an epoch, and the perplexity of test."""
    options = session.options
    module = import_module("benchmarks.peers.torch_text")  # PyTorch is optional
    splits = {split: minibatches(session, split) for split in session.dataset.splits}
    values = session.net.parameters
    dropout = options.shape["dropout"]
    peer = module.TextTraining(values, splits, device, dropout, options.clip_norm)
    compare_first(session, peer)
    curve: Curve = []
    best, kept = math.inf, peer.kept()
    for k in range(options.epochs):
        epoch = peer.epoch(rate_of(options, k))
        curve.append(epoch._asdict())
        if epoch.dev < best:
            best, kept = epoch.dev, peer.kept()
        print(f"torch, epoch {k + 1}: dev perplexity {epoch.dev:.2f}", flush=True)
    peer.put_back(kept)
    return curve, peer.perplexity("test")


def compare_first(session: RunSession, peer: Any) -> None:
    """Check that both have one loss of the first minibatch, from states of zeros."""
    batch = next(iter(training_loader(session)))
    ours = float(np.sum(session.net(batch, outputs=["loss"])["loss"], dtype=np.float64))
    theirs = peer.first_loss()
    assert abs(ours - theirs) < BOUND * theirs, (ours, theirs)


def draw(models: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """Draw the perplexities of each model by epoch, of both libraries.

    Args:
        models: by their names.
    """
    from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

    size = 2.5 * len(models) + 0.7, 3.0
    with figure(path, 1, len(models), size, sharey=True) as (every,):
        for axes, (model, curves) in zip(every, models.items(), strict=True):
            for (name, curve), style in zip(curves.items(), STYLES, strict=True):
                for split, ink in SPLITS.items():
                    rows = [row[split] for row in curve]
                    given = {"label": f"{name}, {split}", "color": ink, "ms": 3.5, **style}
                    axes.plot(range(1, len(rows) + 1), rows, **given)
            axes.set_title(model, loc="left")
            axes.set_xlabel("epoch")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_yticks([40, 60, 80, 100, 150, 200, 300, 400])
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        every[0].set_ylabel("perplexity (log scale)")
        every[-1].legend()


def report(curves: Mapping[str, Curve], tests: Mapping[str, float]) -> None:
    """Print a line an epoch, and one for each library."""
    for k, rows in enumerate(zip(*curves.values(), strict=True)):
        words = "".join(
            f"  {name:8} train {row['train']:7.2f} dev {row['dev']:7.2f} "
            f"{row['words_per_s'] / 1000:6.1f} kwords/s"
            for name, row in zip(curves, rows, strict=True)
        )
        print(f"epoch {k + 1:2}{words}")
    for name, curve in curves.items():
        rate = np.median([row["words_per_s"] for row in curve]) / 1000
        print(f"{name:8} test perplexity {tests[name]:.2f}, {rate:.1f} kwords/s (median of epochs)")


def make_parser() -> argparse.ArgumentParser:
    """Declare the options."""
    name = "python -m benchmarks.papers.ecornn_perplexity"
    parser = argparse.ArgumentParser(name, description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="a new folder; a picture to draw")
    parser.add_argument("--draw", type=Path, nargs="+", help="files of models, for one picture")
    parser.add_argument("options", nargs="*", help="of `vertexrt train lstm-lm`, after --")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    """Read the options, train both, print a table; or draw what is on file."""
    own = make_parser().parse_args(given)
    if own.draw:
        found = [json.loads(path.read_text()) for path in own.draw]
        return draw({record["model"]: record["curves"] for record in found}, own.out)
    session, ours, our_test = train_ours(own.out / "run", own.options)
    theirs, their_test = train_torch(session, session.net.device)
    curves = {"vertexrt": ours, "torch": theirs}
    tests = {"vertexrt": our_test, "torch": their_test}
    report(curves, tests)
    model = "{layers} x {hidden}".format(**session.options.shape)
    record = {"model": model, "options": own.options, "curves": curves, "test": tests}
    (own.out / "perplexity.json").write_text(json.dumps(record, indent=1) + "\n")
    if not can_draw():
        print(f"no figure: {HOW_TO_DRAW}")
    else:
        draw({model: curves}, own.out / "perplexity.png")
    return None


if __name__ == "__main__":
    main()
