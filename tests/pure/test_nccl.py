"""What is asked of NCCL through CuPy, of which there are two forms, without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.device import LINK
from vertexrt.kernels.cuda.nccl import FIRST, NcclLink, new_number


class NcclError(RuntimeError):
    pass


class FakeNccl:
    """`cupy.cuda.nccl`, which writes down what it is asked for.

    Args:
        number: the id that it gives; refuses: the call that fails.
    Attributes:
        unknown: a status that CuPy has no name for.
    """

    NCCL_INT8 = 0
    NcclError = NcclError

    def __init__(self, number: Any, refuses: str = "") -> None:
        self.number, self.refuses = number, refuses
        self.unknown = 0
        self.asked: list[tuple[Any, ...]] = []

    def get_unique_id(self) -> Any:
        return self.number

    def _ask(self, *call: Any) -> None:
        self.asked.append(call)
        if self.unknown:
            raise KeyError(self.unknown)
        if call[0] == self.refuses:
            raise NcclError("unhandled system error")

    def groupStart(self) -> None:
        self._ask("start")

    def groupEnd(self) -> None:
        self._ask("end")

    def NcclCommunicator(self, *given: Any) -> Any:
        self._ask("make", *given)
        return SimpleNamespace(
            send=lambda *given: self._ask("send", *given),
            recv=lambda *given: self._ask("recv", *given),
            check_async_error=lambda: self._ask("check"),
            abort=lambda: self._ask("abort"),
        )


ROOM = SimpleNamespace(ptr=4096)
NUMBERS = [tuple(range(-64, 64)), tuple(range(100, 228)), bytes(range(128))]


@pytest.mark.parametrize("number", NUMBERS, ids=["signed", "unsigned", "bytes"])
def test_an_id_arrives_as_it_was(number: Any) -> None:
    nccl = FakeNccl(number)
    sent = new_number(nccl)
    assert sent.shape == (LINK,)
    assert sent.dtype == np.int16
    NcclLink(nccl, sent, (1, 2), 77, ROOM, np.zeros(1, np.int64))
    assert nccl.asked[0] == ("make", 2, number, 1)
    assert type(nccl.asked[0][2]) is type(number)


def test_exchanges_are_one_group_on_the_stream() -> None:
    nccl = FakeNccl(NUMBERS[0])
    link = NcclLink(nccl, new_number(nccl), (0, 3), 77, ROOM, np.zeros(1, np.int64))
    first = [("recv", 4096 + FIRST * (k + 1), FIRST, 0, k, 77) for k in (1, 2)]
    first += [("send", 4096, FIRST, 0, k, 77) for k in (1, 2)]
    assert nccl.asked[1:] == [("start",), *first, ("end",)], "all GPUs are connected at once"
    nccl.asked.clear()
    link.exchange([(2, (16, 8))], [(1, (32, 4))])
    calls = [("start",), ("recv", 32, 4, 0, 1, 77), ("send", 16, 8, 0, 2, 77), ("end",)]
    assert nccl.asked == calls
    assert link.failure() == ""
    flag = ctypes.c_int64.from_address(link.stopped)
    assert flag.value == 0
    link.abort()
    assert nccl.asked[-1] == ("abort",)
    assert flag.value == 1, "kernels after an exchange that was ended know"


@pytest.mark.parametrize("call", ["make", "end"])
def test_what_nccl_refuses_is_named(call: str) -> None:
    nccl = FakeNccl(NUMBERS[0], call)
    with pytest.raises(DeviceError, match="NCCL: unhandled system error; GPUs that it can link"):
        NcclLink(nccl, new_number(nccl), (0, 2), 77, ROOM, np.zeros(1, np.int64))


@pytest.mark.parametrize("call", ["send", "check"])
def test_a_failure_is_kept_until_it_is_asked_for(call: str) -> None:
    nccl = FakeNccl(NUMBERS[0])
    link = NcclLink(nccl, new_number(nccl), (0, 2), 77, ROOM, np.zeros(1, np.int64))
    nccl.refuses = call
    link.exchange([(1, (16, 8))], [(1, (32, 4))])
    assert link.failure() == "unhandled system error"
    assert ("end",) in nccl.asked[-2:], "no group stays open"
    stopped = ctypes.c_int64.from_address(link.stopped).value
    assert stopped == (call == "send"), "what is not exchanged must not be updated by"


def test_a_status_that_cupy_does_not_know_is_a_failure() -> None:
    nccl = FakeNccl(NUMBERS[0])
    link = NcclLink(nccl, new_number(nccl), (0, 2), 77, ROOM, np.zeros(1, np.int64))
    nccl.unknown = 6
    assert link.failure() == "6"
