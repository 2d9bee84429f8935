"""What is called by address: order and arguments, seen by functions in place of the driver's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from vertexrt.kernels.cuda.device import LaunchStruct
from vertexrt.kernels.cuda.driver import launch_configured, order_streams

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


def test_a_struct_that_is_launched_is_as_it_was_written_last() -> None:
    """The driver is told of an address and a size, and copies what is there."""
    struct, seen = LaunchStruct(bytes(16), np.array([3], np.int64).data), []

    def launch(config: int, function: int, params: int, extra: int) -> int:
        pointer, at, size, size_at, end = (POINTER * 5).from_address(extra)
        count = ctypes.c_int64.from_address(size_at).value // 8
        seen.append((pointer, size, end, list((ctypes.c_int64 * count).from_address(at))))
        return 0

    call = LAUNCH(launch)
    for number in (7, 8):
        struct.words[1] = number
        assert launch_configured(address(call), 1, 2, struct.extra) == 0
    assert seen == [(1, 2, None, [0, number, 3]) for number in (7, 8)]
