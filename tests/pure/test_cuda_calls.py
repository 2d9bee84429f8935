"""What is called by address: order and arguments, seen by functions in place of the driver's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from vertexrt.kernels.cuda.calls import launch_configured, order_streams

POINTER = ctypes.c_void_p
RECORD = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER)
WAIT = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, ctypes.c_uint)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER, POINTER)


def address(function: Any) -> int:
    return ctypes.cast(function, POINTER).value or 0


@pytest.mark.parametrize("code", [0, 700])
def test_a_stream_waits_for_what_another_one_has(code: int) -> None:
    seen: list[tuple[object, ...]] = []
    record = RECORD(lambda event, stream: seen.append(("record", event, stream)) or code)
    wait = WAIT(lambda stream, event, flags: seen.append(("wait", stream, event, flags)) or 0)
    event, before, after = 5, 6, 7
    assert order_streams(address(record), address(wait), event, before, after) == code
    waits = [] if code else [("wait", after, event, 0)]  # an event that failed is not waited for
    assert seen == [("record", event, before), *waits]


def test_a_launch_by_its_configuration() -> None:
    seen: list[tuple[object, ...]] = []
    launch = LAUNCH(lambda *given: seen.append(given) or 3)
    config, function, extra = 11, 12, 13
    assert launch_configured(address(launch), config, function, extra) == 3
    assert seen == [(config, function, None, extra)]
