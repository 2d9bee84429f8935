"""Kernels of a GPU are told apart by their names; times are noted as functions return."""

import time

import pytest

from vertexrt.bench.breakdown.device_time import kind_of, quiet, timed

GENERATED = {"k_1": "products, ours", "k_2": "elementwise, gather, scatter"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("k_1", "products, ours"),
        ("k_2", "elementwise, gather, scatter"),
        ("k_3", "the persistent kernel"),
        ("update_adam", "loss and update"),
        ("finish_step", "loss and update"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("sm90_xmma_gemm_f32f32", "products, cuBLAS"),
        ("something_else", "other"),
    ],
)
def test_the_kind_of_a_kernel(name: str, kind: str) -> None:
    assert kind_of(name, GENERATED) == kind


def test_the_profiler_is_told_what_it_knows() -> None:
    def old(*, activities: object) -> None: ...

    def new(*, activities: object, acc_events: bool = False) -> None: ...

    assert quiet(old) == {}
    assert quiet(new) == {"acc_events": True}


def test_seconds_are_noted() -> None:
    noted: list[float] = []

    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    assert timed(sleep, noted)(0.002) == "slept"
    (seconds,) = noted
    assert seconds >= 0.002
