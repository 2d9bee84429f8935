"""A timeline of a GPU's processors has every instruction of their scripts, one after the other."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_cuda_persistent import DAG, batch_of
from tests.devices import SHIM_AND_GPU, require
from tests.functions import FUNCTIONS
from tests.launches import launch_of
from tests.runs import Way
from vertexrt.api.network import Network
from vertexrt.engine.trace import Timeline
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.device_timeline import record_launch
from vertexrt.kernels.cuda.instruction import BACKWARD, FORWARD
from vertexrt.kernels.cuda.persistent_launch import (
    BOTH_CLOCKS,
    Paths,
    PersistentLaunch,
    WrittenScripts,
)
from vertexrt.script.isa import OP

ROUNDING = 2e-3  # microseconds; times are rounded to nanoseconds
GRAPHS, RUNS, PROCESSORS = 5, 2, 2
Event = dict[str, Any]


def network(device: str) -> Network:
    require(device)
    return Way(device=device, dtype="float64", engine="persistent", processors=PROCESSORS).compile(
        FUNCTIONS["tree-lstm"][0]()
    )


@cache
def recorded(device: str) -> tuple[Timeline, WrittenScripts, Paths]:
    """Record two steps, and what both launch."""
    net, batch = network(device), batch_of("tree-lstm", GRAPHS, DAG)
    with net.trace() as timeline:
        for _ in range(RUNS):
            net.step(batch, vrt.SGD(0.1))
    net.step(batch, vrt.SGD(0.1))  # not recorded
    launch = launch_of(net, batch)
    return timeline, launch.written, launch.paths


def slices(device: str) -> list[Event]:
    return [e for e in recorded(device)[0].events() if e["ph"] == "X"]


def numbers(written: WrittenScripts, group: int) -> list[int]:
    """List the instructions of a group's processors in order."""
    found = []
    for at in range(written.common - 1):  # without the end
        found.append(at)
        op = written.script[at, OP]
        if op in (FORWARD, BACKWARD) and group < written.sections.shape[1] - 1:
            side = written.sections[0 if op == FORWARD else 1]
            found += range(side[group], side[group + 1])
    return found


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_every_instruction_is_there_in_order(device: str) -> None:
    timeline, written, paths = recorded(device)
    assert timeline.runs == RUNS
    rows: dict[tuple[int, int], list[int]] = {}
    for e in slices(device):
        if e["cat"] != "wait":
            rows.setdefault((e["args"]["run"], e["tid"]), []).append(e["args"]["instruction"])
    groups = paths.lengths.shape[1]
    assert groups > 1
    assert {row for _, row in rows} >= set(range(groups * PROCESSORS))
    for (_, row), found in rows.items():
        assert found == numbers(written, min(row // PROCESSORS, groups))


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_names_are_those_of_the_cpu(device: str) -> None:
    names = {e["name"] for e in slices(device)}
    assert {"eager.0", "path.0", "path'.0", "path'.1", "lazy.0", "final.0", "update"} <= names
    assert {"weights", "weights'", "loss", "wait", "wait for all"} <= names
    for e in slices(device):
        assert {"run", "group", "instruction"} <= e["args"].keys()
        if "." in e["name"]:
            assert {"rows", "first", "program"} <= e["args"].keys()


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_slices_of_one_processor_do_not_overlap(device: str) -> None:
    ends: dict[int, float] = {}
    for e in slices(device):
        assert e["dur"] >= 0
        assert e["ts"] >= ends.get(e["tid"], 0.0) - ROUNDING
        ends[e["tid"]] = e["ts"] + e["dur"]


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_groups_meet_by_themselves_and_stages_with_all(device: str) -> None:
    _, _, paths = recorded(device)
    all_of_them = {e["args"]["threshold"] for e in slices(device) if e["name"] == "wait for all"}
    assert all_of_them == {len({e["tid"] for e in slices(device)})}
    own = [e for e in slices(device) if e["name"] == "wait"]
    assert {e["args"]["threshold"] for e in own} == {PROCESSORS}
    assert {e["args"]["group"] for e in own} == set(range(paths.lengths.shape[1]))


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_every_run_ends_with_the_update(device: str) -> None:
    last: dict[tuple[int, int], list[str]] = {}
    for e in slices(device):
        last.setdefault((e["args"]["run"], e["tid"]), []).append(e["name"])
    for names in last.values():
        assert names[-2:] == ["wait for all", "update"]


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_weights_are_loaded_before_the_wait(device: str) -> None:
    events = slices(device)
    for k, e in enumerate(events):
        if e["name"] in ("weights", "weights'"):
            assert events[k + 1]["name"] == "wait for all"
            assert events[k + 1]["tid"] == e["tid"]
            assert events[k + 1]["args"] == e["args"]


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_recording_changes_no_result(device: str) -> None:
    one, other = network(device), network(device)
    batch = batch_of("tree-lstm", GRAPHS)
    with one.trace() as timeline:
        outputs = one(batch)
        first = one.step(batch, vrt.SGD(0.1))
    assert timeline.runs == 2
    assert "update" not in {e["name"] for e in timeline.events() if e["args"].get("run") == 0}
    for name, value in other(batch).items():
        assert np.array_equal(value, outputs[name])
    assert first == other.step(batch, vrt.SGD(0.1))
    for name, value in one.parameters.items():
        assert np.array_equal(value, other.parameters[name])


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_the_file_is_json_with_a_name_for_every_row(device: str, tmp_path: Path) -> None:
    timeline, *_ = recorded(device)
    timeline.write(tmp_path / "trace.json")
    whole = json.loads((tmp_path / "trace.json").read_text())
    assert whole["traceEvents"] == timeline.events()
    names = {e["tid"]: e["args"]["name"] for e in whole["traceEvents"] if e["ph"] == "M"}
    assert names == {row: f"processor {row}" for row in {e["tid"] for e in slices(device)}}


class KeepsStamps(PersistentLaunch):
    """Launches whose time stamps are kept."""

    stamps: Any = None

    def seen(self) -> Any:
        self.stamps = super().seen()
        return self.stamps


@pytest.mark.parametrize("device", SHIM_AND_GPU[:1])
def test_clocks_become_seconds_by_the_times_at_both_ends(device: str) -> None:
    """Clocks of processors start anywhere and run at other rates; the nanoseconds are common."""
    net, batch = network(device), batch_of("tree-lstm", GRAPHS)
    launch, executor = launch_of(net, batch), net.executor
    assert isinstance(executor, CudaExecutor)
    executor.persistent_launch = persistent_launch = KeepsStamps(executor.session)
    with net.trace():
        net.step(batch, vrt.SGD(0.1))
    executable, path, written = launch.executable, launch.paths, launch.written
    stamps = persistent_launch.stamps
    plain, other = Timeline(), Timeline()
    record_launch(plain, executable, written, path, stamps)
    faster = stamps.copy()
    for p, own in enumerate(faster):
        clock = np.zeros(own.shape, np.bool_)
        clock[:, 1] = True
        clock[own[:, 0] != BOTH_CLOCKS, 1:] = True
        own[clock] = own[clock] * (p + 2) + 12345 * p
    record_launch(other, executable, written, path, faster)
    assert plain.events() == other.events()
    given_up = stamps.copy()
    given_up[0, 5:] = 0  # this one never came to its end
    short = Timeline()
    record_launch(short, executable, written, path, given_up)
    assert {r.group for r in short.records} == {r.group for r in plain.records} - {0}
