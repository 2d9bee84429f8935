"""What the assembler knows of the task programs of a function: flat arrays over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.ir.ops import OVER_ROWS
from vertexrt.ir.passes.segment import PATH as PATH_STAGES
from vertexrt.ir.passes.segment import SegmentedTask


class Shape(NamedTuple):
    """Stages, segments and temporaries of the task programs.

    Attributes:
        stage: [programs]; phase: [programs] the place of each, see `ir.layers.Phase`.
        segment_ptr: [programs + 1]; split: [segments]; gathers: [programs].
        tiled: [programs] on the path, without sums over rows.
        scratch: [programs, 3] elements of temporaries for each row, for each edge, and once.
    """

    stage: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int64]
    segment_ptr: npt.NDArray[np.int64]
    split: npt.NDArray[np.int64]
    gathers: npt.NDArray[np.bool_]
    tiled: npt.NDArray[np.bool_]
    scratch: npt.NDArray[np.int64]


def shape_of(tasks: list[SegmentedTask], scratch: Sequence[tuple[int, int, int]]) -> Shape:
    """Collect what the assembler needs, once per compiled function.

    Args:
        scratch: of the backend, see `Executable`.
    """
    counts = [len(t.segments) for t in tasks]
    ops = [[t.task.program.nodes[k].op for s in t.segments for k in s.members] for t in tasks]
    tiled = [
        t.task.stage in PATH_STAGES and not {*OVER_ROWS}.intersection(each)
        for t, each in zip(tasks, ops, strict=True)
    ]
    return Shape(
        np.array([int(t.task.stage) for t in tasks], np.int64),
        np.array([t.task.phase.place for t in tasks], np.int64),
        np.cumsum([0, *counts]).astype(np.int64),
        np.array([int(s.split) for t in tasks for s in t.segments], np.int64),
        np.array([t.gathers for t in tasks], np.bool_),
        np.array(tiled, np.bool_),
        np.array(scratch, np.int64).reshape(-1, 3),
    )
