"""The arena of a device, read from the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.kernels.cuda.session import Session

Array = np.ndarray[Any, Any]


class DeviceArena:
    """The arena after a run, read as if it were an array: a slice or elements are copied."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.dtype = session.dtype

    def __getitem__(self, key: slice | Array) -> Array:
        if isinstance(key, slice):
            assert key.step is None
            return self._copy(key.start or 0, key.stop)
        if key.size == 0:
            return np.zeros(key.shape, self.dtype)
        first = int(key.min())
        return np.asarray(self._copy(first, int(key.max()) + 1)[key - first])

    def _copy(self, start: int, stop: int) -> Array:
        array = np.empty(max(0, stop - start), self.dtype)
        self._session.memory.download(
            array, self._session.arena.address + start * self.dtype.itemsize
        )
        return array
