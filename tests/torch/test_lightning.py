"""The example for PyTorch Lightning learns; where Lightning is installed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lightning", reason="PyTorch Lightning is not installed")

from examples import lightning_trees
from vertexrt.data import load


@pytest.mark.filterwarnings("ignore")
def test_roots_are_told_better_than_by_their_share() -> None:
    dev = load("generated", format="trees").splits["dev"]
    share = np.bincount(dev.pulls["label"][dev.roots]).max() / dev.num_graphs
    assert lightning_trees.train(epochs=2) > share + 0.1
