"""Verify what a repetition executes: as a segment, and what it leaves for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.repeated_segments import RepeatedSegment
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.segment_accesses import stores_of
from vertexrt.kernels.cuda.verify_segments import verify_segments
from vertexrt.lower.kernel import Memory


def verify_repeated_segments(
    tasks: Mapping[int, PathTask], repeated: Mapping[int, RepeatedSegment]
) -> None:
    """Verify the segments of a side that may be repeated; both are by number.

    Raises: PlanError.
    """
    for number, x in repeated.items():
        verify_repeated(tasks[number], x)


def verify_repeated(task: PathTask, repeated: RepeatedSegment) -> None:
    """Check that temporaries which a repetition does not copy are left by the one before.

    Raises: PlanError, when some are not, or more are; and as `verify_segments`.
    """
    verify_segments(LoweredTask(task, repeated.parts))
    steps = chain.from_iterable(part.flat for part in repeated.parts)
    stored = chain.from_iterable(map(stores_of, steps))
    left = sorted(str(x) for x in stored if x.memory == Memory.CARRIED)
    wanted = sorted(str(replace(x.to, memory=Memory.CARRIED)) for x in repeated.carried)
    if left != wanted:
        raise PlanError.at(
            "cuda",
            f"a repetition leaves {', '.join(left) or 'nothing'}",
            f"{', '.join(wanted) or 'nothing'}, which the next one does not copy",
            "report this as a bug",
        )
