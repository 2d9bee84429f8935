"""A persistent kernel that spills gives way to the next one, which compiled beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.paper_device import PaperDevice
from vertexrt.engine.variant import CompileOptions, Passes
from vertexrt.errors import NoKernelError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.models import TreeLSTM


class Spilling(PaperDevice):
    """A device on which the first persistent kernels spill."""

    def __init__(self, spills: int) -> None:
        super().__init__(processors=8)
        self.most = spills
        self.tried: list[tuple[str, Sequence[str]]] = []

    def spills(self, source: str, real: np.dtype[Any], ahead: Sequence[str] = ()) -> str:
        """Take note of what was asked."""
        self.tried.append((source, ahead))
        return "[cuda] it spills" if len(self.tried) <= self.most else ""


def evaluate(device: Spilling) -> None:
    single = np.dtype("float32")
    options = CompileOptions(single, "frontier", Passes(), "float32", "persistent", 1, None)
    executor = compile_on(device, TreeLSTM(5, 4, 256, 3).trace(), options)
    pulls = {"word": [0, 1, -1], "label": [1, 1, 1]}
    batch = GraphBatch.from_graphs([InputGraph.from_children([[], [], [0, 1]], pulls)])
    vrt.Network(executor, 0, "graph").forward(batch, ("logits",))


@pytest.mark.parametrize("spills", [0, 1, 2])
def test_the_next_kernel_compiles_beside_the_first(spills: int) -> None:
    device = Spilling(spills)
    evaluate(device)
    tried = [source for source, _ in device.tried]
    assert len(tried) == len({*tried}) == spills + 1
    for (_, ahead), following in zip(device.tried, tried[1:], strict=False):
        assert list(ahead) == [following]


def test_all_kernels_spill() -> None:
    device = Spilling(99)
    with pytest.raises(NoKernelError, match="it spills"):
        evaluate(device)
    tried = [source for source, _ in device.tried]
    assert len(tried) == len({*tried}) > 1
    assert device.tried[-1][1] == []
