"""Kernels take as many arguments as their steps have; a persistent one is refused in time."""

from __future__ import annotations

import pytest

from tests.devices import on_gpus
from tests.many_vectors import ManyVectors, two_chains
from tests.runs import PLAIN, Way, assert_same, train
from vertexrt.engine.variant import Passes

VECTORS = 100


@pytest.mark.parametrize("streams", [1, 2])
@on_gpus
def test_a_loop_reads_many_parameters(device: str, streams: int) -> None:
    here = Way(device=device, passes=Passes(streams=streams)).compile(ManyVectors(VECTORS))
    there, batch = PLAIN.compile(ManyVectors(VECTORS)), two_chains()
    assert_same(train(here, batch), train(there, batch), 1e-11)
