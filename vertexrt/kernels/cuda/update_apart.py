"""An update on a device that ends no step: by gradients which were added up before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Update
from vertexrt.kernels.cuda.device import address_of
from vertexrt.kernels.cuda.finish_step import finish_step
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import FOUND, Found, StepEnd, end_of, starts_and_widths


def update_apart(
    session: Session, store: ParameterStore, update: Update, begin: Callable[[StepEnd], object]
) -> Found:
    """Update by the gradients of the store as a step does, and wait.

    Args:
        begin: is told how it ends, before that is launched.
    Returns: what a step finds, see `step_end`: the norm, and whether the update was refused.
    """
    memory = session.memory
    end = end_of(store, update, store.touched)
    memory.upload(session.gradients, store.gradients)
    starts, widths = starts_and_widths(end.ranges)
    ranges = np.concatenate([starts.view(np.uint8), widths.view(np.uint8)])
    held = memory.take(max(ranges.nbytes, 16), "rows of tables")
    if ranges.nbytes:
        memory.upload(held, ranges)
    at, found = held.address, memory.pinned(8 * FOUND)
    end.tell_to(found.view(np.float64), address_of(found))
    begin(end)
    ranges_at = np.array((at, at + starts.nbytes), np.int64)
    session.launch_each(finish_step(session, end, 0, ranges_at))
    if not end.told:
        session.device.download(found, session.found.address)
    memory.synchronize()
    return found.view(np.float64)
