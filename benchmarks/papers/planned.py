"""Requests that a plan answers: with arrays of the host, with arrays of a GPU, and its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.papers.in_turn import Sample, each_waited
from benchmarks.requests import Subject, kernel_times

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """Requests of one structure, which pull `x` and are answered by `h`.

    Attributes:
        batch: its graphs. rows: float32 [N, H], what it pulls.
        vertices: whose `h` are returned; None for all.
        wait: waits for the device.
    """

    batch: vrt.GraphBatch
    rows: Array
    vertices: Array | None
    wait: Callable[[], None]

    def on_host(self, net: vrt.Network) -> Callable[[], Array]:
        """Return a request with arrays of the host."""
        plan = net.plan(self.batch, outputs=("h",), vertices=self.vertices)
        return lambda: plan({"x": self.rows})["h"]

    def on_device(self, net: vrt.Network) -> tuple[Sample, Sample]:
        """Return what times requests with arrays of the GPU, and the kernels of such requests."""
        plan = net.plan(self.batch, outputs=("h",), vertices=self.vertices, arrays="device")
        lent = arrays_of(net).asarray(self.rows)

        def call(_: int = 0) -> Any:
            return plan({"x": lent})["h"]

        subject = Subject(net, self.rows[None], [lent], self.wait)

        def kernel(times: int) -> float:
            return float(np.mean(kernel_times(subject, call, times))) * 1e-6

        return each_waited(call, self.wait), kernel


def arrays_of(net: vrt.Network) -> Any:
    """Return the library whose arrays lie on the GPU of a network."""
    return net.executor.session.device.arrays()  # type: ignore[attr-defined]
