"""Kernels of a GPU are told apart by their names; times are noted as functions return."""

import time

import pytest

from tests.devices import shim
from tests.functions import FUNCTIONS
from tests.runs import Way
from tests.strategies import pulls_for
from vertexrt.bench.breakdown import kind_of, quiet, sample_host
from vertexrt.bench.measure import Draw, timed
from vertexrt.graph import GraphBatch, InputGraph

SOURCES = {"k_1": "product_tile(a, b)", "k_2": "h = tanh(x)", "k_4": "sum_columns(x)"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("k_1", "products, ours"),
        ("k_2", "elementwise, gather, scatter"),
        ("k_3", "the persistent kernel"),
        ("k_4", "sums over rows"),
        ("update_adam", "loss and update"),
        ("finish_step", "loss and update"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("sm90_xmma_gemm_f32f32", "products, cuBLAS"),
        ("something_else", "other"),
    ],
)
def test_the_kind_of_a_kernel(name: str, kind: str) -> None:
    assert kind_of(name, SOURCES) == kind


def test_the_profiler_is_told_what_it_knows() -> None:
    def old(*, activities: object) -> None: ...

    def new(*, activities: object, acc_events: bool = False) -> None: ...

    assert quiet(old) == {}
    assert quiet(new) == {"acc_events": True}


def test_seconds_are_noted_while_it_is_asked_for() -> None:
    class Sleeper:
        def sleep(self, seconds: float) -> str:
            time.sleep(seconds)
            return "slept"

    sleeper = Sleeper()
    with timed(sleeper, "sleep") as noted:
        assert sleeper.sleep(0.002) == "slept"
    sleeper.sleep(0.0)
    (seconds,) = noted
    assert seconds >= 0.002


@shim
@pytest.mark.parametrize(("engine", "processors"), [("batched", None), ("persistent", 1)])
def test_the_host_schedules_and_launches_with_both_engines(
    engine: str, processors: int | None
) -> None:
    lists = [[], [], [0, 1]]
    graphs = [InputGraph.from_children(lists, pulls_for(3, k)) for k in range(2)]
    way = Way("shim", engine=engine, processors=processors)
    net = way.compile(FUNCTIONS["tree-lstm"][0]())
    samples = sample_host(net, Draw(GraphBatch.from_graphs(graphs), 2), steps=1, rounds=2)
    assert all(len(values) == 2 and min(values) > 0.0 for values in samples.values())
    assert set(samples) == {"whole", "host: schedule", "host: scripts and launches"}
    assert "prepare" not in vars(net.executor.model), "all is put back"
    assert "_launch" not in vars(net.executor)
