"""Arrays that stay on a device: what passes take and give back, against the reference on the host.

The shim is a device whose arrays are NumPy's; a GPU's are CuPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.devices import SHIM_AND_GPU, on_gpus, shim
from tests.runs import Way
from tests.shim_device import ShimDevice, put_in_place
from vertexrt.errors import DeviceError, NumericError, PullError, UsageError
from vertexrt.memory.aligned import aligned_zeros

SIZE = 4
ENGINES = ["batched", "persistent"]


class Node(vrt.VertexFunction):
    """Sums over children, with vectors of vertices, of edges and of a table."""

    def __init__(self) -> None:
        super().__init__(state={"h": SIZE})
        self.w = vrt.Parameter((SIZE, SIZE), vrt.init.normal(0.5))
        self.table = vrt.Parameter((5, SIZE), vrt.init.normal(0.5))
        self.fixed = vrt.Parameter((SIZE,), vrt.init.normal(0.5), trainable=False)

    def forward(self) -> None:
        x = self.pull("x", shape=(SIZE,)) * self.pull("shared", shape=(SIZE,))
        below = vrt.sum(self.gather_all().h * self.edge("y", shape=(SIZE,)), axis="children")
        h = vrt.tanh(self.w @ (x + below) + vrt.embed(self.table, self.pull("word")) + self.fixed)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Lent:
    """An array as libraries of a GPU lend theirs."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.held = aligned_zeros(array.size, array.dtype).reshape(array.shape)
        self.held[...] = array
        self.__cuda_array_interface__ = {
            **self.held.__array_interface__,
            "version": 3,
            "strides": None,
        }


def batch() -> vrt.GraphBatch:
    rng, made = np.random.default_rng(2), []
    table = rng.normal(size=(3, SIZE)).astype(np.float32)
    for lists in ([[], [], [0, 1], [2, 0]], [[], [0]], [[]]):
        n, edges = len(lists), sum(len(each) for each in lists)
        pulls = {
            "x": rng.normal(size=(n, SIZE)).astype(np.float32),
            "word": rng.integers(-1, 5, n),
            "shared": vrt.Rows(table, rng.integers(0, 3, n)),
        }
        edge_pulls = {"y": rng.normal(size=(edges, SIZE)).astype(np.float32)}
        made.append(vrt.InputGraph.from_children(lists, pulls, edge_pulls=edge_pulls))
    return vrt.GraphBatch.from_graphs(made)


def lend(device: str, array: np.ndarray[Any, Any]) -> Any:
    if device == "shim":
        return Lent(array)
    import cupy

    return cupy.asarray(array)


def host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def assert_near(found: Any, wanted: np.ndarray[Any, Any], name: str = "") -> None:
    assert found.shape == wanted.shape, name
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(host(found), wanted, rtol=0.0, atol=2e-5 * scale, err_msg=name)


def nets(device: str, engine: str, function: Any = Node) -> tuple[vrt.Network, vrt.Network]:
    found = Way(
        device, "float32", engine=engine, processors=4 if engine == "persistent" else None
    ).compile(function())
    wanted = Way("reference", "float64").compile(function())
    wanted.parameters.update(found.parameters)
    return found, wanted


@on_gpus
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sparse", [False, True])
def test_forward_and_backward(device: str, engine: str, sparse: bool) -> None:
    found, wanted = nets(device, engine)
    graphs, rng = batch(), np.random.default_rng(3)
    there = {"x": lend(device, graphs.pulls["x"])}
    shared = graphs.pulls["shared"]
    there["shared"] = vrt.Rows(lend(device, shared.table), shared.index)
    there["h"] = rng.normal(size=(graphs.num_vertices, SIZE)).astype(np.float32)
    given = {"h": there.pop("h")}
    for _ in range(2):
        out = found.record(graphs.with_pulls(there), arrays="device")
        expected = wanted.record(graphs)
        for name in ("h", "loss"):
            assert_near(out.outputs[name], expected.outputs[name], name)
        ours = out.backward(given, scale=0.5, sparse=sparse)
        theirs = expected.backward(given, scale=0.5, sparse=sparse)
        assert ours.parameters.keys() == theirs.parameters.keys()
        assert "fixed" not in ours.parameters
        for name, value in theirs.parameters.items():
            assert_near(ours.parameters[name], value, name)
        for name, value in theirs.pulled.items():
            assert_near(ours.pulled[name], value, name)
        assert ours.rows.keys() == theirs.rows.keys() == ({"table"} if sparse else set())
        for name, (rows, values) in theirs.rows.items():
            assert host(ours.rows[name][0]).tolist() == rows.tolist()
            assert_near(ours.rows[name][1], values, name)
    assert found.gradients.passes == 0, "those of arrays of the device are not added up"


@on_gpus
def test_what_is_refused(device: str) -> None:
    found, _ = nets(device, "batched")
    graphs = batch()
    there = graphs.with_pulls({"x": lend(device, graphs.pulls["x"])})
    for net in (vrt.compile(Node(), device=name) for name in ("cpu", "reference")):
        with pytest.raises(PullError, match=r"a pull lies on a GPU; the host"):
            net(there)
    out = found.record(there, arrays="device")
    with pytest.raises(PullError, match=r"shape \[7, 3\]; real numbers of shape \[7, 4\]"):
        out.backward({"h": np.zeros((7, 3))})
    with pytest.raises(UsageError, match="'z'; Node pushes h, loss"):
        found(there, outputs=["z"], arrays="device")
    with pytest.raises(PullError, match="whole numbers decide what runs"):
        graphs.with_pulls({"word": lend(device, np.zeros(7, np.int32))})
    with pytest.raises(PullError, match="float64, on a GPU; float32, the network's"):
        found(graphs.with_pulls({"x": lend(device, np.zeros((7, SIZE)))}))
    with pytest.raises(PullError, match=r"expected \[7, ...\]"):
        graphs.with_pulls({"x": lend(device, np.zeros((6, SIZE), np.float32))})
    with pytest.raises(PullError, match="in several arrays"):
        vrt.GraphBatch.concat([there, graphs.with_pulls({"x": lend(device, graphs.pulls["x"])})])


class Full:
    """A module of arrays for which no memory is left."""

    def __getattr__(self, name: str) -> Any:
        raise MemoryError(f"no room for {name}")


class FullDevice(ShimDevice):
    """A device that may be full."""

    full = False

    def arrays(self) -> Any:
        return Full() if self.full else super().arrays()


@shim
def test_memory_that_is_missing_for_arrays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 52: CuPy's own error came through."""
    device = FullDevice()
    put_in_place(monkeypatch, lambda: device)
    net = Way("cuda", "float32").compile(Node())
    out = net.record(batch(), arrays="device")
    device.full = True
    with pytest.raises(DeviceError, match="no memory is left for an array"):
        out.backward({"h": np.ones_like(out.outputs["h"])})


class Streams(ShimDevice):
    """Takes note of the order of a caller's streams and of launches."""

    def __init__(self) -> None:
        super().__init__()
        self.current, self.log = 7, [""]

    def caller(self) -> int:
        return self.current

    def use(self, stream: int | None = None) -> None:
        self.log.append("own" if stream is None else f"on {stream}")

    def follow_caller(self, stream: int | None = None) -> None:
        self.log.append(f"after {self.current if stream is None else stream}")

    def lead_caller(self, stream: int | None = None) -> None:
        self.log.append(f"before {self.current if stream is None else stream}")

    def upload(self, to: int, source: np.ndarray[Any, Any]) -> None:
        self.log.append("upload")
        super().upload(to, source)


def test_a_launch_comes_after_what_callers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass leaves on the device is read by the caller's stream, which nobody waits for."""
    device = Streams()
    put_in_place(monkeypatch, lambda: device)
    net, graphs = vrt.compile(Node(), device="cuda", engine="persistent", seed=1), batch()
    net(graphs)

    def logged(run: Callable[[], object]) -> list[str]:
        device.log.clear()
        run()
        return [now for before, now in pairwise(["", *device.log]) if now != before]

    assert logged(lambda: net(graphs)) == ["own", "upload"]
    assert logged(lambda: net(graphs, arrays="device")) == ["on 7", "upload", "before 7"]
    assert logged(lambda: net(graphs, arrays="device")) == ["on 7", "upload", "before 7"]
    assert logged(lambda: net(graphs)) == ["own", "upload"]
    passed = net.record(graphs, arrays="device")
    device.current = 8
    wanted = ["on 8", "upload", "before 8"]
    assert logged(lambda: net(graphs, arrays="device")) == wanted
    device.current = 9
    d = {name: np.ones_like(value) for name, value in passed.outputs.items()}
    assert logged(lambda: passed.backward(d))[:2] == ["on 9", "upload"]
    assert logged(lambda: net.step(graphs, vrt.SGD(0.1)))[:2] == ["own", "upload"]


class Carrying(Declared, arity=1, state={"h": SIZE}, w=(SIZE, SIZE)):
    """A chain whose first vertex pulls a state, which is pushed by all."""

    def forward(self) -> None:
        before = self.gather(0).h + self.pull("h", shape=(SIZE,))
        h = vrt.tanh(self.w @ before + self.pull("x", shape=(SIZE,)))
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


def pieces(count: int) -> list[vrt.GraphBatch]:
    rng = np.random.default_rng(5)
    draw = lambda: {"x": rng.normal(size=(3, SIZE)).astype(np.float32)}  # noqa: E731
    return [
        vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3, draw()) for _ in range(2)])
        for _ in range(count)
    ]


@pytest.mark.parametrize("device", ["cpu", *SHIM_AND_GPU])
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_that_carry_states_on_the_device(device: str, engine: str) -> None:
    """They give what steps give whose states come through the host, in float64."""
    net, exact = nets(device, engine, Carrying)
    carried, oracle = vrt.CarriedState(net), vrt.CarriedState(exact)
    for piece in pieces(6):
        mine, theirs = carried.put(piece), oracle.put(piece)
        ends = carried.ends(mine)
        found = net.step(mine, vrt.SGD(0.1), outputs=["h"], vertices=ends, arrays="device")
        if device != "cpu":
            assert net.executor.flights.under_way, "nobody waits"  # type: ignore[attr-defined]
        carried.keep(mine, found.outputs)
        loss = exact.step(theirs, vrt.SGD(0.1), outputs=["h"])
        oracle.keep(theirs, loss.outputs)
        assert_near(found.outputs["h"], loss.outputs["h"][ends])
    net.sync()
    assert_near(net.parameters["w"], exact.parameters["w"])


@on_gpus
def test_a_refused_step_that_reads_arrays_of_the_device(device: str) -> None:
    net, _ = nets(device, "batched", Carrying)
    (piece,) = pieces(1)
    wrong = np.zeros((2, SIZE), np.float32)
    wrong[1, 2] = np.nan
    lent = vrt.Rows(lend(device, wrong), np.array([0, -1, -1, 1, -1, -1]))
    with pytest.raises(NumericError, match="pull of vertex 0 of graph 1"):
        float(net.step(piece.with_pulls({"h": lent}), vrt.SGD(0.1), arrays="device"))
