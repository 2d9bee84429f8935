"""Steps of several processes: the bits of one with the same shares, the gradients of one without.

Processes are threads here; `tests/train/test_parallel_cli.py` starts real ones.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import vertexrt as vrt
from tests.processes import ThreadCommunicator, lost, together
from tests.runs import assert_bits
from vertexrt.data.treebank import generate_treebank
from vertexrt.errors import UsageError
from vertexrt.models import get
from vertexrt.parallel import ProcessGroup

SHARES, STEPS = 8, 5
SETTINGS: dict[str, dict[str, Any]] = {
    "tree-lstm": {"hidden": 8, "embed": 6, "dropout": 0.3},
    "lstm-lm": {"hidden": 8, "embed": 6, "dropout": 0.3, "layers": 2},
}


class Trained(NamedTuple):
    losses: list[float]
    parameters: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@cache
def dataset(model: str) -> vrt.data.Dataset:
    folder = tempfile.mkdtemp()
    if model == "tree-lstm":
        for split, text in generate_treebank(0).items():
            (Path(folder) / f"{split}.txt").write_text(text, encoding="utf-8", newline="\n")
        return vrt.data.load(folder, format="trees")
    spec = get(model)
    rng = np.random.default_rng(4)
    for split in ("train", "valid", "test"):
        words = rng.integers(12, size=(60, 9))
        lines = [" ".join(f"w{word}" for word in line[: 3 + k % 7]) for k, line in enumerate(words)]
        with open(f"{folder}/ptb.{split}.txt", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return vrt.data.load(
        folder, format="text", **spec.reading(dict(spec.options) | SETTINGS[model])
    )


def train(
    model: str,
    group: ProcessGroup | None,
    optimizer: str = "Adam",
    batch_size: int = 20,
    **options: Any,
) -> Trained:
    """Train for a few steps; every other one keeps pushes of roots alone."""
    spec, data = get(model), dataset(model)
    function = spec.build(data, **dict(spec.options) | SETTINGS[model])
    net = vrt.compile(function, seed=3, **{"device": "cpu", **options})
    update = getattr(vrt, optimizer)(0.05, clip_norm=1.0)
    losses: list[float] = []
    pushed: dict[str, np.ndarray] = {}
    for batch in vrt.data.Loader(data.splits["train"], batch_size, seed=1):
        chosen = batch.roots if len(losses) % 2 else None
        loss = net.step(batch, update, outputs=("loss",), vertices=chosen, group=group)
        losses.append(float(loss))
        pushed[f"loss of step {len(losses)}"] = loss.outputs["loss"]
        kept = batch.num_vertices if chosen is None else len(chosen)
        assert len(loss.outputs["loss"]) == kept
        if len(losses) == STEPS:
            break
    parameters = dict(net.parameters)
    return Trained(losses, parameters, pushed)


def assert_same_bits(one: object, other: Trained) -> None:
    assert isinstance(one, Trained), one
    assert one.losses == other.losses
    for mine, others in ((one.parameters, other.parameters), (one.outputs, other.outputs)):
        assert_bits(mine, others)


WAYS = [
    ("tree-lstm", "Adam", {}),
    ("tree-lstm", "SGD", {"engine": "persistent", "threads": 2, "processors": 2}),
    ("tree-lstm", "SGD", {"reduction": "mean_vertices", "threads": 2}),
    ("tree-lstm", "Adam", {"dtype": "float64"}),
    ("lstm-lm", "Adam", {"engine": "persistent", "processors": 1, "threads": 1}),
    ("lstm-lm", "SGD", {}),
]


@pytest.mark.parametrize(("model", "optimizer", "options"), WAYS, ids=str)
def test_any_number_of_processes_gives_the_same_bits(
    model: str, optimizer: str, options: dict[str, Any]
) -> None:
    one = train(model, ProcessGroup(shares=SHARES), optimizer, **options)
    alone = train(model, None, optimizer, **options)
    assert not all(np.array_equal(one.parameters[n], alone.parameters[n]) for n in one.parameters)
    for size in (2, 4):

        def work(communicator: ThreadCommunicator) -> Trained:
            return train(model, ProcessGroup(communicator, SHARES), optimizer, **options)

        for found in together(size, work):
            assert_same_bits(found, one)


@pytest.mark.parametrize("model", SETTINGS)
@pytest.mark.parametrize("reduction", ["mean_graphs", "mean_vertices", "sum"])
def test_a_step_is_that_of_one_process_up_to_rounding(model: str, reduction: str) -> None:
    """With SGD, so that what is compared is the gradient."""
    options = {"device": "reference", "dtype": "float64", "reduction": reduction}
    alone = train(model, None, "SGD", **options)

    def work(communicator: ThreadCommunicator) -> Trained:
        return train(model, ProcessGroup(communicator), "SGD", **options)

    for found in together(3, work):
        assert isinstance(found, Trained), found
        assert np.allclose(found.losses, alone.losses, rtol=1e-12)
        for mine, want in ((found.parameters, alone.parameters), (found.outputs, alone.outputs)):
            for name, array in want.items():
                assert np.allclose(mine[name], array, rtol=0, atol=1e-11 * np.abs(array).max())


def test_processes_without_a_graph_take_part() -> None:
    """Minibatches of three graphs, eight shares, four processes."""
    one = train("tree-lstm", ProcessGroup(shares=SHARES), batch_size=3)
    for found in together(4, lambda c: train("tree-lstm", ProcessGroup(c, SHARES), batch_size=3)):
        assert_same_bits(found, one)


class Bad(vrt.VertexFunction):
    """Its loss is the logarithm of what it pulls."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 2})
        self.w = vrt.Parameter((2,), init=vrt.init.ones)

    def forward(self) -> None:
        x = vrt.log(self.pull("x", shape=(2,)))
        self.scatter(h=x)
        self.push("loss", vrt.sum(self.w * x))


def points(values: list[float]) -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs(
        [vrt.InputGraph.from_children([[]], {"x": np.full((1, 2), each)}) for each in values]
    )


def test_processes_with_other_batches_seeds_or_parameters_are_refused() -> None:
    def refusal(change: str) -> list[str]:
        def work(communicator: ThreadCommunicator) -> None:
            last = communicator.rank == 1
            net = vrt.compile(Bad(), device="reference", seed=5 if change == "seed" and last else 0)
            if change == "parameters" and last:
                net.parameters["w"] = np.zeros(2)
            values = [1.0, 2.0, 3.0] if change == "batch" and last else [1.0, 2.0]
            net.step(points(values), vrt.SGD(0.1), group=ProcessGroup(communicator))

        found = together(2, work)
        assert all(isinstance(each, UsageError) for each in found), found
        return [str(each) for each in found]

    for change, text in (
        ("batch", "process 1 has another batch than process 0"),
        ("seed", "process 1 has another random seed than process 0"),
        ("parameters", "process 1 has other parameters than process 0"),
    ):
        assert all(text in each for each in refusal(change)), change


def test_a_process_that_leaves_is_an_error_in_the_others() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        net, group = vrt.compile(Bad(), device="reference"), ProcessGroup(communicator, limit=1.0)
        for step in range(3):
            if communicator.rank == 1 and step == 2:
                return
            net.step(points([1.0, 2.0]), vrt.SGD(0.1), group=group)

    texts = lost(together(3, work))
    assert len(texts) == 2
    assert all("process 1 of 3 has ended" in each for each in texts)


def test_a_group_is_a_group() -> None:
    net = vrt.compile(Bad(), device="reference")
    with pytest.raises(UsageError, match=r"pass what vrt\.parallel\.init returns"):
        net.step(points([1.0]), vrt.SGD(0.1), group=2)  # type: ignore[arg-type]
