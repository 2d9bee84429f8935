"""A timeline is valid JSON, has every instruction, and no processor does two things at once."""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import write_trees
from vertexrt import data, models
from vertexrt.api.network import Network
from vertexrt.engine.trace import Timeline
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch

ROUNDING = 1e-5  # microseconds; times are rounded to nanoseconds
OUTPUTS = ["logits"]  # as the command line asks for


@cache
def treebank() -> data.Dataset:
    """Read what runs of the command line read in their tests: the same kernels serve both."""
    with TemporaryDirectory() as folder:
        return data.load(str(write_trees(Path(folder))), format=models.get("tree-lstm").format)


def network(processors: int, threads: int, **options: str) -> tuple[Network, GraphBatch]:
    spec, dataset = models.get("tree-lstm"), treebank()
    function = spec.build(dataset, hidden=6, embed=5)
    net = vrt.compile(
        function, threads=threads, processors=processors, **{"engine": "persistent", **options}
    )
    return net, dataset.splits["train"].take(np.arange(4))


@cache
def recorded(processors: int, threads: int) -> Timeline:
    net, batch = network(processors, threads)
    with net.trace() as timeline:
        for _ in range(2):
            net.step(batch, vrt.SGD(0.1), outputs=OUTPUTS)
    net.step(batch, vrt.SGD(0.1), outputs=OUTPUTS)  # not recorded
    return timeline


GROUPS = ((1, 1), (2, 2), (2, 4), (3, 3))


@pytest.mark.parametrize(("processors", "threads"), GROUPS)
def test_every_instruction_is_there(processors: int, threads: int) -> None:
    timeline = recorded(processors, threads)
    assert timeline.runs == 2
    assert len(timeline.records) == 2 * (threads // processors)
    expected = [
        (record.run, record.group * processors + r, k)
        for record in timeline.records
        for r in range(processors)
        for k in range(record.script.shape[1])
    ]
    slices = [e for e in timeline.events() if e["ph"] == "X" and "instruction" in e["args"]]
    slices = [e for e in slices if e["name"] != "wait"]
    found = [(e["args"]["run"], e["tid"], e["args"]["instruction"]) for e in slices]
    assert sorted(found) == sorted(expected)
    assert {"eager.0", "path.0", "path'.0", "lazy.0", "final.0"} <= {e["name"] for e in slices}
    assert all({"rows", "first", "program"} <= e["args"].keys() for e in slices)


@pytest.mark.parametrize(("processors", "threads"), GROUPS)
def test_slices_of_one_processor_do_not_overlap(processors: int, threads: int) -> None:
    ends: dict[int, float] = {}
    for event in recorded(processors, threads).events():
        if event["ph"] != "X":
            continue
        row = event["tid"]
        assert event["dur"] >= 0
        assert event["ts"] >= ends.get(row, 0.0) - ROUNDING
        ends[row] = event["ts"] + event["dur"]
    assert sorted(ends) == list(range(threads))


def test_waits_are_slices_that_name_their_counter() -> None:
    waits = [e for e in recorded(2, 2).events() if e["name"] == "wait"]
    assert waits
    assert all(e["args"]["wait"] >= 0 and e["args"]["threshold"] == 2 for e in waits)
    assert not [e for e in recorded(1, 1).events() if e["name"] == "wait"]


def test_the_file_is_json_with_a_name_for_every_row(tmp_path: Path) -> None:
    recorded(2, 2).write(tmp_path / "trace.json")
    whole = json.loads((tmp_path / "trace.json").read_text())
    assert whole["traceEvents"] == recorded(2, 2).events()
    names = {e["tid"]: e["args"]["name"] for e in whole["traceEvents"] if e["ph"] == "M"}
    assert names == {0: "processor 0", 1: "processor 1"}


def test_recording_changes_no_result() -> None:
    (one, batch), (other, _) = network(2, 2), network(2, 2)
    with one.trace():
        first = one.step(batch, vrt.SGD(0.1), outputs=OUTPUTS)
    assert first == other.step(batch, vrt.SGD(0.1), outputs=OUTPUTS)
    for name, value in one.parameters.items():
        assert np.array_equal(value, other.parameters[name])


def test_nothing_recorded_is_an_empty_timeline() -> None:
    assert Timeline().events() == []


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_only_processors_are_traced(engine: str) -> None:
    net, _ = network(2, 2, engine=engine)
    with (
        pytest.raises(UsageError, match=r"\[trace\] the engine is batched or auto"),
        net.trace(),
    ):
        pass


def test_on_the_reference_one_instruction_runs_at_a_time() -> None:
    net, batch = network(2, 2, device="reference")
    with net.trace() as timeline:
        net.step(batch, vrt.SGD(0.1), outputs=OUTPUTS)
    slices = [e for e in timeline.events() if e["ph"] == "X" and e["name"] != "wait"]
    assert len(slices) == timeline.records[0].script.shape[1] * 2
    slices.sort(key=lambda e: e["ts"])
    for one, after in pairwise(slices):
        assert one["ts"] + one["dur"] <= after["ts"] + ROUNDING
