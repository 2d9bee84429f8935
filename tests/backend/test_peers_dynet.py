"""The DyNet peer computes what the vertex function does."""

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.peers.ours import Ours
from vertexrt import models
from vertexrt.bench.measure import compare
from vertexrt.bench.record import Results
from vertexrt.graph import GraphBatch, InputGraph

pytest.importorskip("dynet", reason="DyNet is not installed (`pip install dynet38`)")

from benchmarks.peers.dynet_tree_lstm import DynetTreeLstm


def test_loss_gradients_and_logits_agree_with_the_reference() -> None:
    rng = np.random.default_rng(2)
    graphs = []
    for leaves in (1, 4, 2):
        n = 2 * leaves - 1
        word = np.where(np.arange(n) < leaves, rng.integers(6, size=n), -1)
        pulls = {"word": word, "label": rng.integers(-1, 3, size=n)}
        graphs.append(InputGraph.complete_tree(leaves, pulls=pulls))
    batch = GraphBatch.from_graphs(graphs)
    net = vrt.compile(models.TreeLSTM(6, 4, 5, 3), device="reference", dtype="float64")
    ours = Ours(net, "logits")
    drawn = {name: value.astype("float32") for name, value in ours.parameters().items()}
    ours.set_parameters(drawn)
    record = Results("peers", (), {})
    compare(record, {"ours": ours, "dynet": DynetTreeLstm(drawn)}, batch, "trees")
    assert record.checks[0]["largest_difference"] > 0.0  # of another precision
