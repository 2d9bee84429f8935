"""The benchmark of perplexities: without dropout both libraries train alike."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.ecornn_perplexity import main
from tests.devices import gpu, require


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_both_train_alike(device: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    require(device)
    rng = np.random.default_rng(0)
    for split, count in (("train", 401), ("valid", 90), ("test", 90)):  # the last pieces are short
        words = " ".join(f"w{word}" for word in rng.integers(0, 20, count))
        (tmp_path / f"ptb.{split}.txt").write_text(words + "\n")
    given = "--hidden 8 --embed 8 --layers 2 --pieces 7 --batch-size 4 --dropout 0 --lr 1"
    more = ["--epochs", "3", "--schedule", "halving", "--clip-norm", "0.5"]
    where = ["--data", str(tmp_path), "--device", device]
    main(["--out", str(tmp_path / "out"), "--", *where, *given.split(), *more])
    found = json.loads((tmp_path / "out" / "perplexity.json").read_text())
    for split in ("train", "dev"):
        ours, theirs = ([row[split] for row in found["curves"][n]] for n in ("vertexrt", "torch"))
        assert len(ours) == 3
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    np.testing.assert_allclose(found["test"]["vertexrt"], found["test"]["torch"], rtol=1e-5)
