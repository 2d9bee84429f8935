"""Steps of several GPUs: gradients stay there, and the bits are those of one process.

Devices are the CPU's stand-ins here, and processes threads. Tests on GPUs come last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_parallel_step import SETTINGS, STEPS, Trained, assert_same_bits, dataset
from tests.devices import shim
from tests.processes import ThreadCommunicator, together
from tests.shim_device import ShimDevice
from vertexrt.engine.variant import CompileOptions, Passes
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.nccl import own_gpu
from vertexrt.models import get
from vertexrt.parallel import ProcessGroup

pytestmark = shim
SHARES = 4


class Counting(ShimDevice):
    """A device that counts the bytes that come down to the host."""

    down = 0

    def download(self, to: np.ndarray, source: int) -> None:
        self.down += to.nbytes
        super().download(to, source)


def network(device: Device, model: str, **options: Any) -> vrt.Network:
    spec = get(model)
    given = {"dropout": 0.0} | {
        k: options[k] for k in ("dropout", "hidden", "embed") if k in options
    }
    sizes = dict(spec.options) | SETTINGS[model] | given
    function = spec.build(dataset(model), **sizes)
    engine = options.get("engine", "batched")
    processors = options.get("processors")
    compiled = CompileOptions(
        np.dtype(options.get("dtype", "float32")),
        "frontier",
        options.get("passes", Passes()),
        "float32",
        engine,
        1,
        processors,
    )
    net = vrt.Network(compile_on(device, function.trace(), compiled), 3, "mean_graphs")
    rng = np.random.default_rng(3)
    net.parameters.update(
        {n: 0.3 * rng.standard_normal(v.shape) for n, v in net.parameters.items()}
    )
    return net


def stepped(net: vrt.Network, batch: vrt.GraphBatch, optimizer: Any, group: ProcessGroup) -> float:
    """Take a step and wait for it."""
    return float(net.step(batch, optimizer, group=group))


def train(
    model: str, group: ProcessGroup | None, optimizer: Any, device: Device, **options: Any
) -> Trained:
    """Train for a few steps."""
    net, losses = network(device, model, **options), []
    for batch in vrt.data.Loader(dataset(model).splits["train"], 6, seed=1):
        loss = net.step(batch, optimizer, outputs=("loss",), group=group)
        losses.append(float(loss))
        if len(losses) == STEPS:
            break
    parameters = dict(net.parameters)
    return Trained(losses, parameters, dict(loss.outputs))


GROUPS = {"w": {"lr": 0.03}, "b*": {"weight_decay": 0.1}}
ADAM = ("Adam", {"lr": 0.05, "clip_norm": 1.0})
WAYS = [
    ("tree-lstm", *ADAM, {}),
    ("tree-lstm", "SGD", {"lr": 0.1}, {"engine": "persistent", "processors": 2, "dropout": 0.3}),
    ("tree-lstm", "SGD", {"lr": 0.1, "clip_value": 0.01}, {"passes": Passes(streams=2)}),
    ("lstm-lm", *ADAM, {"engine": "persistent", "processors": 2}),
    ("lstm-lm", "SGD", {"lr": 0.1}, {"dropout": 0.3}),
    (
        "tree-lstm",
        "RMSprop",
        {"lr": 0.01, "clip_norm": 0.5},
        {"hidden": 5, "embed": 8, "dtype": "float64"},
    ),
    ("tree-lstm", "SGD", {"lr": 0.1, "groups": GROUPS, "clip_norm": 1.0}, {}),
]


@pytest.mark.parametrize(("model", "optimizer", "rates", "options"), WAYS, ids=str)
def test_any_number_of_devices_gives_the_same_bits(
    model: str, optimizer: str, rates: dict[str, float], options: dict[str, Any]
) -> None:
    def run(group: ProcessGroup | None) -> Trained:
        rule = getattr(vrt, optimizer)(**rates)
        return train(model, group, rule, ShimDevice(), **options)

    one, alone = run(ProcessGroup(shares=SHARES)), run(None)
    assert np.allclose(one.losses, alone.losses, rtol=1e-5), "dropout counts in the whole batch"
    for size in (2, 4):
        for found in together(size, lambda c: run(ProcessGroup(c, SHARES))):
            assert_same_bits(found, one)


def test_gradients_stay_on_the_device() -> None:
    """What comes down is what a step finds; hosts tell each other nothing, and wait for nothing."""

    def work(communicator: ThreadCommunicator) -> tuple[int, int, int, int]:
        device, sgd = Counting(), vrt.SGD(0.1)
        net, group = network(device, "tree-lstm", hidden=64), ProcessGroup(communicator)
        pool = dataset("tree-lstm").splits["train"]
        first = net.step(pool[:12], sgd, group=group)
        flights = net.executor.flights  # type: ignore[attr-defined]
        assert not flights.under_way
        (link,) = device.links
        before, sent = (device.down, communicator.sent), link.sent
        second = net.step(pool[12:24], sgd, group=group)
        assert len(flights.under_way) == 1
        assert second != first
        large = net.executor.model.store.dense_size * 4
        return device.down - before[0], communicator.sent - before[1], link.sent - sent, large

    for found in together(2, work):
        assert isinstance(found, tuple), found
        down, by_host, linked, large = found
        assert down < 500, "what it found, and what processes told each other"
        assert by_host == 0
        assert linked >= large


def test_an_optimizer_of_ones_own_and_one_device_for_two_go_by_the_host() -> None:
    class Own(vrt.SGD):
        def update(self, store: Any) -> None:
            for name in store.trained:
                store.value(name)[...] -= self.lr * store.gradient(name)

    def own(communicator: ThreadCommunicator) -> Trained:
        return train("tree-lstm", ProcessGroup(communicator, SHARES), Own(0.1), ShimDevice())

    one = train("tree-lstm", ProcessGroup(shares=SHARES), Own(0.1), ShimDevice())
    for found in together(2, own):
        assert_same_bits(found, one)

    class Shared(ShimDevice):
        def place(self) -> str:
            return "GPU 0"

    def shared(communicator: ThreadCommunicator) -> Trained:
        device, group = Shared(), ProcessGroup(communicator, SHARES)
        found = train("tree-lstm", group, vrt.SGD(0.1), device)
        assert not device.links
        return found

    one = train("tree-lstm", ProcessGroup(shares=SHARES), vrt.SGD(0.1), ShimDevice())
    with pytest.warns(UserWarning, match="processes 0 and 1 have one GPU; expected a GPU for each"):
        every = together(2, shared)
    for found in every:
        assert_same_bits(found, one)


def test_a_process_takes_the_gpu_of_its_number() -> None:
    four = {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "2"}
    assert own_gpu({}, 8) is None
    assert own_gpu(four, 8) == own_gpu(four, 4) == 2
    assert own_gpu(four, 1) is None
    mpi = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert own_gpu(mpi, 2) == 0
    assert own_gpu({"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}, 2) == 1
    with pytest.raises(DeviceError, match="4 processes of a group on this machine, and 2 GPUs"):
        own_gpu(four, 2)
