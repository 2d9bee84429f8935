"""A timeline has every instruction of every processor, one after the other, on each device."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, shim
from tests.functions import FUNCTIONS
from tests.launches import launch_of
from tests.runs import Way, assert_bits
from tests.strategies import with_pulls
from vertexrt.engine.trace import Timeline
from vertexrt.engine.variant import Passes
from vertexrt.errors import UsageError
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.persistent_launch import BOTH_CLOCKS, PersistentLaunch, record_launch

ROUNDING = 2e-3  # microseconds; times are rounded to nanoseconds
RUNS = 2
Event = dict[str, Any]
# A device, processors of a group, threads.
ON_HOST = [("cpu", 1, 1), ("cpu", 2, 4), ("cpu", 3, 3), ("reference", 2, 2)]
ON_GPU = [(device, 2, 1) for device in SHIM_AND_GPU]
on_host = pytest.mark.parametrize(("device", "processors", "threads"), ON_HOST)
on_gpu = pytest.mark.parametrize(("device", "processors", "threads"), ON_GPU)
everywhere = pytest.mark.parametrize(("device", "processors", "threads"), [*ON_HOST, *ON_GPU])


def network(device: str, processors: int, threads: int, engine: str = "persistent") -> vrt.Network:
    passes = Passes(specialise=device != "cpu")
    way = Way(device, engine=engine, processors=processors, threads=threads, passes=passes)
    return way.compile(FUNCTIONS["tree-lstm"][0]())


def batch() -> vrt.GraphBatch:
    return with_pulls([[[], [], [0, 1], [0, 2], [2, 3]]] * 5)  # of several parents


@cache
def recorded(*how: Any) -> tuple[vrt.Network, Timeline]:
    """Record two steps."""
    net = network(*how)
    with net.trace() as timeline:
        for _ in range(RUNS):
            net.step(batch(), vrt.SGD(0.1))
    net.step(batch(), vrt.SGD(0.1))  # not recorded
    assert timeline.runs == RUNS
    return net, timeline


def slices(*how: Any) -> list[Event]:
    return [e for e in recorded(*how)[1].events() if e["ph"] == "X"]


def instructions(*how: Any) -> dict[tuple[int, int], list[int]]:
    """Return the instructions of a run's processor, as they came."""
    found: dict[tuple[int, int], list[int]] = {}
    for e in slices(*how):
        levels = e["name"] in ("path", "path'")  # of the instruction that loads weights
        if e["cat"] != "wait" and not levels and "instruction" in e["args"]:
            found.setdefault((e["args"]["run"], e["tid"]), []).append(e["args"]["instruction"])
    return found


@on_host
def test_every_instruction_is_there(device: str, processors: int, threads: int) -> None:
    records = recorded(device, processors, threads)[1].records
    assert len(records) == RUNS * (threads // processors)
    assert instructions(device, processors, threads) == {
        (record.run, record.group * processors + r): [*range(record.script.shape[1])]
        for record in records
        for r in range(processors)
    }


@on_gpu
def test_every_instruction_of_a_gpu_is_there(device: str, processors: int, threads: int) -> None:
    launch = launch_of(recorded(device, processors, threads)[0], batch())
    groups, count = launch.written.groups, len(launch.written.script)
    found = instructions(device, processors, threads)
    assert {row for _, row in found} >= set(range(groups * processors))
    assert groups > 1
    assert all(numbers == [*range(count - 1)] for numbers in found.values())  # without the end


@everywhere
def test_slices_have_names_and_do_not_overlap(device: str, processors: int, threads: int) -> None:
    ends: dict[Any, float] = {}
    events = slices(device, processors, threads)
    for e in events:
        assert e["dur"] >= 0
        place = e["args"].get("run"), e["tid"]
        assert e["ts"] >= ends.get(place, 0.0) - ROUNDING
        ends[place] = e["ts"] + e["dur"]
        if "." in e["name"]:
            assert {"rows", "first", "program", "run", "group"} <= e["args"].keys()
    of_gpu = device in ("cuda", "shim")
    if not of_gpu:
        assert {row for _, row in ends} == {*range(threads)}
    assert {"eager.0", "path.0", "path'.0", "lazy.0", "final.0"} <= {e["name"] for e in events}
    waits = [e["args"]["threshold"] for e in events if e["name"] == "wait"]
    assert set(waits) == ({processors} if processors > 1 and not of_gpu else set())


@on_gpu
def test_stages_of_a_gpu(device: str, processors: int, threads: int) -> None:
    """Weights are loaded, all meet, the path runs to the next instruction; the update is last."""
    events = slices(device, processors, threads)
    names = {e["name"] for e in events}
    assert {"update", "weights", "weights'", "loss", "wait for all"} <= names
    meetings = {e["args"]["threshold"] for e in events if e["name"] == "wait for all"}
    assert meetings == {len({e["tid"] for e in events})}
    last: dict[tuple[int, int], list[str]] = {}
    for e, after, path in zip(events, [*events[1:], {}], [*events[2:], {}, {}], strict=True):
        last.setdefault((e["args"]["run"], e["tid"]), []).append(e["name"])
        if e["name"] in ("weights", "weights'"):
            assert after["name"] == "wait for all"
            assert path["name"] == e["name"].replace("weights", "path")
            assert all((x["tid"], x["args"]) == (e["tid"], e["args"]) for x in (after, path))
    assert all(found[-2:] == ["wait for all", "update"] for found in last.values())


def test_on_the_reference_one_instruction_runs_at_a_time() -> None:
    events = [e for e in slices(*ON_HOST[-1]) if e["name"] != "wait" and not e["args"]["run"]]
    for one, after in pairwise(sorted(events, key=lambda e: e["ts"])):
        assert one["ts"] + one["dur"] <= after["ts"] + ROUNDING


@everywhere
def test_the_file_is_json_with_a_name_for_every_row(
    device: str, processors: int, threads: int, tmp_path: Path
) -> None:
    _, timeline = recorded(device, processors, threads)
    timeline.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == timeline.events()
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {row: f"processor {row}" for row in {e["tid"] for e in events}}


@everywhere
def test_recording_changes_no_result(device: str, processors: int, threads: int) -> None:
    one, other = (network(device, processors, threads) for _ in range(2))
    with one.trace() as timeline:
        outputs = one(batch())
        first = one.step(batch(), vrt.SGD(0.1))
    assert timeline.runs == 2
    assert "update" not in {e["name"] for e in timeline.events() if e["args"].get("run") == 0}
    assert_bits(outputs, other(batch()))
    assert first == other.step(batch(), vrt.SGD(0.1))
    assert_bits(other.parameters, one.parameters)


def test_only_processors_are_traced() -> None:
    assert Timeline().events() == []
    net = network("reference", 1, 1, engine="batched")
    with pytest.raises(UsageError, match=r"\[trace\] the engine is batched or auto"), net.trace():
        pass


class KeepsStamps(PersistentLaunch):
    """Launches whose time stamps are kept."""

    stamps: Any = None

    def seen(self) -> Any:
        self.stamps = super().seen()
        return self.stamps


@shim
def test_clocks_become_seconds_by_the_times_at_both_ends() -> None:
    """Clocks of processors start anywhere and run at other rates; the nanoseconds are common."""
    net = network("shim", 2, 1)
    launch, executor = launch_of(net, batch()), net.executor
    assert isinstance(executor, CudaExecutor)
    executor.persistent_launch = kept = KeepsStamps(executor.session)
    with net.trace():
        net.step(batch(), vrt.SGD(0.1))

    def timeline(stamps: Any) -> Timeline:
        found = Timeline()
        record_launch(found, launch.written, stamps)
        return found

    plain, faster, given_up = timeline(kept.stamps), kept.stamps.copy(), kept.stamps.copy()
    for p, own in enumerate(faster):
        clock = np.zeros(own.shape, np.bool_)
        clock[:, 1] = True
        clock[own[:, 0] != BOTH_CLOCKS, 1:] = True
        own[clock] = own[clock] * (p + 2) + 12345 * p
    assert timeline(faster).events() == plain.events()
    given_up[0, 5:] = 0  # this one never came to its end
    groups = {r.group for r in plain.records}
    assert {r.group for r in timeline(given_up).records} == groups - {0}
