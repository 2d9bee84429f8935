"""GPUs of several processes, linked by NCCL through CuPy; and which GPU a process takes.

Arrays are exchanged by grouped sends and receives: the order in which NCCL's own all-reduce adds up
depends on the number of GPUs, and with it the bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DeviceError, one_line
from vertexrt.kernels.cuda.device import Message
from vertexrt.parallel.start import number_here, processes_here

Array = npt.NDArray[Any]

FIRST = 512  # bytes of the first exchange


def own_gpu(environ: Mapping[str, str], count: int) -> int | None:
    """Return which GPU a process takes that was started with others; None, where it may stay.

    Args:
        environ: of the process; count: of GPUs that it sees. Where it sees one, it has that.
    Raises: DeviceError, when there are several GPUs, but not one for each process.
    """
    processes, number = processes_here(environ), number_here(environ)
    if processes == 1 or count == 1 or number is None:
        return None
    if count < processes:
        raise DeviceError.at(
            "parallel",
            f"{processes} processes of a group on this machine, and {count} GPUs",
            "a GPU for each process",
            f"start {count} processes, or set CUDA_VISIBLE_DEVICES to one GPU for each",
        )
    return number


def new_number(nccl: Any) -> Array:
    """Return a new id of NCCL: whether CuPy has it as bytes (a newer one has), and its bytes."""
    number = nccl.get_unique_id()
    return np.array([isinstance(number, bytes), *number], np.int16)


class NcclLink:
    """A communicator of NCCL. Making it waits for the other processes, without a limit.

    Args:
        nccl: `cupy.cuda.nccl`.
        number: what `new_number` has returned in one process.
        place: rank and size.
        stream: address of the stream.
        room: memory of FIRST bytes for each process and once more, for a first exchange: NCCL
            connects GPUs then, and waits for them.
        flag: eight bytes of page-locked memory of the host.
    Attributes:
        stopped: its address; see `Link`.
    Raises: DeviceError, when NCCL refuses.
    """

    def __init__(
        self, nccl: Any, number: Array, place: tuple[int, int], stream: int, room: Any, flag: Array
    ) -> None:
        self._flag, self.stopped = flag.view(np.int64), int(flag.ctypes.data)
        self._flag[0] = 0
        self._nccl, self._stream, self._room, self._failure = nccl, stream, room, ""
        # CuPy raises KeyError for a status of NCCL that it has no name for.
        self._errors = (nccl.NcclError, KeyError)
        as_bytes, *values = number.tolist()
        rank, size = place
        try:
            given = bytes(values) if as_bytes else tuple(values)
            self._communicator: Any = nccl.NcclCommunicator(size, given, rank)
        except self._errors as error:
            raise _refused(str(error)) from error
        others = [peer for peer in range(size) if peer != rank]
        self.exchange(
            [(peer, (room.ptr, FIRST)) for peer in others],
            [(peer, (room.ptr + FIRST * (peer + 1), FIRST)) for peer in others],
        )
        if self._failure:
            raise _refused(self._failure)

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """Send and receive as one group, so that no order can lock.

        What goes wrong is kept; kernels after the exchange know by the flag.
        """
        nccl, own = self._nccl, self._communicator
        try:
            nccl.groupStart()
            try:
                for peer, (address, size) in receive:
                    own.recv(address, size, nccl.NCCL_INT8, peer, self._stream)
                for peer, (address, size) in send:
                    own.send(address, size, nccl.NCCL_INT8, peer, self._stream)
            finally:
                nccl.groupEnd()
        except self._errors as error:
            self._failure = one_line(str(error))
            self._flag[0] = 1  # the stream goes on without it

    def failure(self) -> str:
        """Ask NCCL for errors of what runs."""
        try:
            self._communicator.check_async_error()
        except self._errors as error:
            return self._failure or one_line(str(error))
        return self._failure

    def abort(self) -> None:
        """Abort, so that the stream goes on; what comes after an exchange knows by the flag."""
        self._flag[0] = 1
        self._communicator.abort()


def _refused(text: str) -> DeviceError:
    return DeviceError.at(
        "parallel",
        f"NCCL: {one_line(text)}",
        "GPUs that it can link",
        "set NCCL_DEBUG=WARN and see what it says; NCCL_NVLS_ENABLE=0 or NCCL_P2P_DISABLE=1 helps "
        "on some machines",
    )
