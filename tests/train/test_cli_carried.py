"""State that is carried over pieces of text: the same numbers as of one long chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.device_rows import Taken, watch_steps
from tests.devices import shim
from tests.shim_device import put_in_place
from tests.train.cli_runs import records
from vertexrt.cli.main import main
from vertexrt.data import Loader, load
from vertexrt.models.language_model import LSTMLanguageModel

TEXT = "the cat sees a dog\na dog sees the cat\nno cat sees me\n"
STREAMS = 2


def write(folder: Path) -> Path:
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(TEXT * 2)
    return folder


def losses(net: vrt.Network, folder: Path, pieces: int) -> list[float]:
    """Return the loss of each word, in the order of the streams."""
    form = {"pieces": pieces, "streams": STREAMS, "layers": 2}
    graphs = load(folder, format="text", **form).splits["dev"]  # type: ignore[arg-type]
    carried = vrt.CarriedState(net)
    found: list[list[float]] = [[] for _ in range(STREAMS)]
    for batch in Loader(graphs, STREAMS, shuffle=False, prepare=carried.put):
        pushed = net(batch, outputs=("loss", "h", "c"))
        carried.keep(batch, pushed)
        words = batch.of_type("next")
        for word, loss in zip(words, pushed["loss"][words], strict=True):
            found[batch.graph_of[word]].append(float(loss))
    return [loss for stream in found for loss in stream]


def test_pieces_are_one_chain(tmp_path: Path) -> None:
    model = LSTMLanguageModel(12, 3, 4, layers=2, carried=True)
    net = vrt.compile(model, device="reference", dtype="float64", seed=1)
    whole, cut = (losses(net, write(tmp_path), pieces) for pieces in (1000, 4))
    assert len(whole) == len(cut) == 34
    np.testing.assert_allclose(cut, whole, rtol=0, atol=1e-12)


def test_a_run_carries_its_state(tmp_path: Path) -> None:
    words = ["--hidden", "4", "--embed", "4", "--layers", "2", "--epochs", "2", "--batch-size", "2"]
    more = ["--pieces", "4", "--set", "carried=true", "--set", "tied=true", "--device", "reference"]
    run = tmp_path / "run"
    given = ["train", "lstm-lm", "--data", str(write(tmp_path)), "--out", str(run)]
    assert main([*given, *words, *more]) == 0
    assert records(run)[0]["perplexity"] > records(run)[2]["perplexity"]
    assert main(["eval", str(run), "--split", "test"]) == 0
    assert main([*given[:4], *words, *more[2:], "--out", str(tmp_path / "other")]) == 2


@shim
def test_a_run_on_a_device_waits_for_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    under_way: list[int] = []

    def after(taken: Taken) -> None:
        flights: Any = getattr(taken.executor, "flights", None)  # of a device
        under_way.append(0 if flights is None else len(flights.under_way))

    watch_steps(monkeypatch, after=after)
    words = "--hidden 4 --embed 4 --layers 2 --epochs 2 --batch-size 2 --pieces 4 --dropout 0.2"
    given = ["train", "lstm-lm", "--data", str(write(tmp_path)), *words.split()]
    given += ["--set", "carried=true", "--dtype", "float64", "--threads", "1"]
    found = {}
    for device in ("cuda", "reference"):
        assert main([*given, "--device", device, "--out", str(tmp_path / device)]) == 0
        found[device] = [line["perplexity"] for line in records(tmp_path / device)]
    steps = len(under_way) // 2
    assert under_way[:steps] == [1] * steps
    assert found["cuda"] == pytest.approx(found["reference"], rel=1e-9)
