"""Verify the scripts of a step on a GPU before its launch, as they go up to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.persistent_launch import Paths, WrittenScripts
from vertexrt.kernels.cuda.verify_cells import verify_cells
from vertexrt.kernels.cuda.verify_rounds import verify_rounds

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]


def verify_launch(
    run: Run,
    table: Array,
    executable: PersistentExecutable,
    path: Paths,
    written: WrittenScripts,
) -> None:
    """Check all scripts of a launch.

    Args:
        table: the launches that the scripts stand for.
    Raises: PlanError, which names group or launch, and the instruction.
    """
    verify_rounds(run, table, executable, written)
    verify_cells(table, run.layout.schedule, run.share.batch.graph_ptr, executable, path)
