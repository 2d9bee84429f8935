"""An update on a device that ends no step: by gradients which the host has added up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.cuda.finish_step import finish_step
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import FOUND, StepEnd

Array = npt.NDArray[Any]


def update_from_host(session: Session, gradients: Array, end: StepEnd) -> Array:
    """Copy gradients to the device, update by them as a step does, and wait.

    Args:
        gradients: of the parameter store.
        end: of a step without a loss.
    Returns: what a step finds, see `step_end`: the norm, and whether the update was refused.
    """
    memory, addresses, held = session.memory, [], []
    memory.upload(session.gradients, gradients)
    for ranges in (end.starts, end.widths):
        held.append(memory.take(max(ranges.nbytes, 16), "rows of tables"))
        if ranges.nbytes:
            memory.upload(held[-1], ranges)
        addresses.append(held[-1].address)
    finish_step(session, 0, np.array(addresses, np.int64), end)
    found = np.zeros(FOUND)
    memory.download(found, session.found.address)
    return found
