"""Parameters and moments are on the device and, as a copy, on the host: which one is newer."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.engine.parameters import ParameterStore
from vertexrt.kernels.cuda.session import Session

Array = np.ndarray[Any, Any]


class Copies:
    """The two copies of parameters and moments.

    Attributes:
        host_newer, device_newer: which of them may have been written to since both were the same.
        shared: others write to parameters on the device, in the order of the caller's stream, and
            read them there: what the host writes goes there at once.
    """

    def __init__(self, session: Session, store: ParameterStore) -> None:
        self._session, self._store = session, store
        self.host_newer, self.device_newer, self.shared = True, False, False
        self._moments: Array | None = None
        self._moments_newer = False  # on the host

    def to_host(self) -> None:
        """Bring parameters and moments to the host, where they may be changed."""
        session = self._session
        if self.shared:
            session.device.follow_caller()
        if self.shared and self.host_newer:
            session.memory.upload(session.values, self._store.values)  # and waits
        elif self.device_newer or self.shared:
            session.memory.download(self._store.values, session.values.address)
        if self.device_newer and self._moments is not None and session.moments is not None:
            session.memory.download(self._moments, session.moments.address)
        self.host_newer, self._moments_newer = not self.shared, True
        self.device_newer = False  # last: a signal may come before it, and all is done again

    def written(self) -> None:
        """Note that parameters on the host are being set."""
        self.host_newer = True

    def to_device(self, moments: Array | None = None) -> None:
        """Bring to the device what is newer on the host, and moments that a step needs."""
        session = self._session
        other = moments is not None and moments is not self._moments
        if other and self._moments is not None:
            self.to_host()  # what another optimizer has on the device would be lost
        if self.host_newer:
            session.memory.upload(session.values, self._store.values)
        if moments is not None and (other or self._moments_newer):
            self._moments = None  # until all of these are there
            session.take_moments(moments)
            self._moments, self._moments_newer = moments, False
        self.host_newer = False
