"""What goes up for a step of the persistent engine on a GPU, as the verifier of scripts gets it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.api.network import Network
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts, write_launch

Array = np.ndarray[Any, Any]


def device_of(net: Network) -> Device:
    """Return the GPU of a network, or what stands in for one."""
    assert isinstance(net.executor, CudaExecutor)
    return net.executor.session.device


class Launch(NamedTuple):
    """What `verify_launch` takes, in its order."""

    run: Run
    table: Array
    written: WrittenScripts

    @property
    def executable(self) -> PersistentExecutable:
        """The kernel."""
        return self.written.executable


def launch_of(
    net: Network,
    batch: GraphBatch,
    clips: bool = False,
    optimizer: Optimizer | None = None,
) -> Launch:
    """Write the scripts of a training step on a GPU, or on what stands in for one.

    Args:
        optimizer: whose update the kernel has.
    """
    assert isinstance(net.executor, CudaExecutor)
    model = net.executor.model
    rule = None if optimizer is None else optimizer._next_update(model.store).rule
    use = Use(frozenset({"loss"}), loss=True, rule=rule)
    (run,) = model.prepare(use, batch)
    table = run.layout.table
    written = write_launch(run, table, net.executor.persistent_launch, clips, True)
    return Launch(run, table, written)
