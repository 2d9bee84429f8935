"""What is compiled ahead need not be compiled when it is met."""

from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.train.cli_runs import SIZES, train, write_trees
from vertexrt.cli.main import main
from vertexrt.native.load import compiled_here

LEAF, INNER = "path kind {} word", "path kind {0,1}"


def test_a_run_compiles_nothing_after_warm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_trees(tmp_path / "trees")
    small = ["--hidden", SIZES["--hidden"], "--embed", SIZES["--embed"], "--batch-size", "8"]
    words = ["--data", str(data), *small, "--device", "cpu", "--threads", "1"]
    assert main(["warm", "tree-lstm", *words]) == 0
    assert capsys.readouterr().out.startswith("tree-lstm is compiled, ")
    words = ["--device", "cpu", "--threads", "1", "--epochs", "1"]
    before = len(compiled_here)
    assert train(data, tmp_path / "run", *words) == 0
    assert len(compiled_here) == before


def test_all_kinds_of_a_batch_are_met_at_once_and_nothing_is_run() -> None:
    net = vrt.compile(FUNCTIONS["tree-lstm"][0](), device="cpu", threads=1)
    pulls = {"word": [1, 2, -1], "label": [0, 1, 1]}
    tree = vrt.InputGraph.from_children([[], [], [0, 1]], pulls=pulls)
    leaf = vrt.InputGraph.from_children([[]], pulls={"word": [1], "label": [0]})
    before = dict(net.parameters)
    net.warm(vrt.GraphBatch.from_graphs([leaf, tree]), vrt.SGD(0.1))
    net.warm(vrt.GraphBatch.from_graphs([leaf, tree]), outputs=["logits"])
    for name, values in net.parameters.items():
        np.testing.assert_array_equal(values, before[name])
    net.step(vrt.GraphBatch.from_graphs([leaf]), vrt.SGD(0.1))
    shown = net.explain()
    assert LEAF in shown
    assert INNER in shown
