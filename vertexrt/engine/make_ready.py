"""Load the task programs of a variant, and pack what per-batch code reads of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.launches import ProgramFacts
from vertexrt.engine.variant import PATH_STAGES, Kind, Ready, Variant
from vertexrt.engine.verify_tasks import verify_segments, verify_tasks
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, segment_tasks
from vertexrt.ir.passes.store import LAZY_STAGES
from vertexrt.ir.program import Stage
from vertexrt.kernels.backend import HostExecutable, LaunchByLaunch
from vertexrt.kernels.task_tensors import tensor_uses, uses_edges
from vertexrt.memory.plan import TensorTable, share
from vertexrt.script.shape import shape_of
from vertexrt.script.verify import verify_sums

Int64 = npt.NDArray[np.int64]


def make_ready(variant: Variant) -> Ready:
    """Load the task programs of all kinds so far.

    Raises: NoKernelError, where a device cannot run them.
    """
    if config().check:
        verify_tasks(variant)
    path_programs = _programs(variant.path_kinds, PATH_STAGES)
    executable, processors, shape = None, None, None
    if variant.processors:
        segmented = _cut_into_segments(variant)
        tasks = [s.task for s in segmented]
        processors = variant.backend.load_segments(
            segmented, variant.binding, variant.processors, path_programs, variant.use.rule
        )
        scratch = processors.scratch
        shape = shape_of(segmented, scratch)
    else:
        tasks = variant.tasks
        executable = variant.backend.load(tasks, variant.binding)
        scratch = executable.scratch
        if not variant.passes.loop:
            executable = LaunchByLaunch(cast("HostExecutable", executable))
    programs = _program_facts(variant, tasks, scratch, path_programs)
    return Ready(executable, processors, shape, programs, tuple(variant.path_kinds))


def _programs(kinds: Mapping[int, Kind], stages: Sequence[Stage]) -> Int64:
    """Return the programs of each kind by stage, [stages, kinds]; -1 for none."""
    return np.array([[k.programs[s] for k in kinds.values()] for s in stages], np.int64)


def _written(table: TensorTable, tasks: Sequence[TaskProgram]) -> tuple[Int64, Int64]:
    """Return the tensors that each program writes, as CSR."""
    found = [[table.numbers[u[0]] for u in tensor_uses(task) if u[3]] for task in tasks]
    ptr = np.cumsum([0] + [len(each) for each in found]).astype(np.int64)
    return ptr, np.array([number for each in found for number in each], np.int64)


def _program_facts(
    variant: Variant,
    tasks: Sequence[TaskProgram],
    scratch: Sequence[tuple[int, int, int]],
    path_programs: Int64,
) -> ProgramFacts:
    """Collect what is decided before a schedule."""
    table, sharing = variant.table, share(variant.table)
    writes_ptr, writes = _written(table, tasks)
    sizes = np.array([spec.size for spec in table], np.int64)
    layers = [variant.layer_of(bits) for bits in variant.path_kinds]
    return ProgramFacts(
        path_programs,
        np.array(layers, np.int64),
        _programs(variant.lazy_kinds, LAZY_STAGES),
        np.array([uses_edges(task) for task in tasks], np.bool_),
        np.array(scratch, np.int64).reshape(-1, 3),
        writes_ptr,
        writes,
        np.array([spec.edges for spec in table], np.bool_),
        sizes,
        sharing.buffer,
        sharing.width,
        variant.backend.most_scratch,
        int(np.max(sizes, initial=1)),
    )


def _cut_into_segments(variant: Variant) -> list[SegmentedTask]:
    """Cut the task programs for processors; what these exchange gets tensors."""
    segmented = segment_tasks(
        variant.tasks, alone=variant.processors == 1, whole=variant.passes.segment
    )
    if variant.processors != 1 and not variant.backend.shares_graphs:
        verify_sums(segmented)
    if config().check:
        for plan in segmented:
            verify_segments(plan)
    for task in (s.task for s in segmented):
        variant.note_tensors(task)
    return segmented
