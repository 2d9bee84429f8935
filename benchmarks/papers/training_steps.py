"""A step of training of a stack of recurrent layers, ours and PyTorch's: checked, then timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.papers.in_turn import PEER, Sample, Table, nothing, torch_layers, waited_once
from benchmarks.papers.planned import arrays_of
from benchmarks.papers.stacks import Form, stack_batch
from vertexrt.bench.measure import CHECKING_LR, Stepper
from vertexrt.bench.record import Key

BOUND = 1e-5  # of the loss, and of a gradient's largest element; sums over all steps
RATE = 1e-6  # so small that the parameters stay where they are


def time_steps(
    table: Table, key: Key, nets: Mapping[str, vrt.Network], form: Form, steps: int
) -> None:
    """Compare loss and gradients at one size, then time whole steps: forward, backward and SGD.

    Inputs lie on the device on both sides, and their gradients are not asked for. A step of ours
    schedules its minibatch; that of the peer is a CUDA graph on a GPU.

    Args:
        key: has the batch size.
    """
    torch_stacks = torch_layers()
    count = int(key["batch_size"])
    rng = np.random.default_rng(form.hidden + count)
    x = rng.standard_normal((count, steps, form.hidden)).astype(np.float32)
    here = torch_stacks.time_first(x, table.device)
    start = {name: np.array(v) for name, v in next(iter(nets.values())).parameters.items()}
    layers = torch_stacks.Layers(form, start, table.device)
    exact = deepcopy(layers).double().gradients(here.double())
    found: dict[str, Any] = {PEER: layers.gradients(here)}
    wait = torch_stacks.synchronize if table.gpu else nothing
    ways: dict[str, Sample] = {}
    batch = stack_batch(form, x)
    for name, net in nets.items():
        net.parameters.update(start)  # timing another size has trained them unequally
        lent = batch_on_device(net, batch) if table.gpu else batch
        found[name] = gradients_of(Stepper(net), lent)
        ways[name] = waited_once(step_of(net, lent), net.sync, table.clock)
    table.check(f"{form}, batch {count}", found, exact, BOUND)
    step = torch_stacks.train_step(layers, here, RATE)
    table.time(key, {PEER: waited_once(step, wait, table.clock), **ways})


def gradients_of(stepper: Stepper, batch: vrt.GraphBatch) -> dict[str, Any]:
    """Return the gradients of a step of SGD, how far it goes divided by its rate, and the loss."""
    before = stepper.parameters()
    stepper.train(batch, CHECKING_LR)
    loss = stepper.loss()
    after = stepper.parameters()
    stepper.set_parameters(before)
    return {"loss": loss} | {n: (value - after[n]) / CHECKING_LR for n, value in before.items()}


def step_of(net: vrt.Network, batch: vrt.GraphBatch) -> Callable[[], Any]:
    """Return what takes a step."""
    optimizer = vrt.SGD(lr=RATE)
    return lambda: net.step(batch, optimizer)


def batch_on_device(net: vrt.Network, batch: vrt.GraphBatch) -> vrt.GraphBatch:
    """Return a batch whose `x` lies on the GPU of a network."""
    x = batch.pulls["x"]
    assert isinstance(x, vrt.Rows), type(x)
    return batch.with_pulls({"x": vrt.Rows(arrays_of(net).asarray(x.table), x.index)})
