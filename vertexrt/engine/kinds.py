"""Compile F for the kinds of vertices that a batch has.

Kinds appear with the data; each new one is specialised and cut into task programs, which are handed
to the backend, which has most of them in its cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from vertexrt.config import config
from vertexrt.engine.inputs import Inputs, refuse
from vertexrt.engine.layouts import ProgramFacts
from vertexrt.engine.variant import PATH_STAGES, Int64, Kind, Ready, Variant, verified
from vertexrt.engine.verify_tasks import verify_segments, verify_tasks
from vertexrt.graph import GraphBatch
from vertexrt.ir.layers import phase_of
from vertexrt.ir.passes.fuse import copy_operands, cut
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.ir.passes.specialise import specialise
from vertexrt.ir.passes.stack import stack_rows
from vertexrt.ir.passes.store import LAZY_STAGES, Stored, lazy_part, store_values
from vertexrt.ir.program import Stage
from vertexrt.kernels.backend import HostExecutable, LaunchByLaunch
from vertexrt.kernels.task_tensors import fingerprint, tensor_uses, uses_edges
from vertexrt.memory.plan import share
from vertexrt.scheduler.batch_shape import levels_of
from vertexrt.scheduler.kinds import FINE, NEW_LAZY_KIND, NEW_PATH_KIND, read_vertices
from vertexrt.script.shape import shape_of
from vertexrt.script.verify import verify_sums

Array = np.ndarray[Any, Any]


def meet_kinds(variant: Variant, batch: GraphBatch, inputs: Inputs) -> None:
    """Compile the kinds of a batch that have not been seen before.

    Raises: as `find_kinds`; NoKernelError, where a device cannot run them.
    """
    find_kinds(variant, batch, inputs)
    if variant.loaded is None:
        variant.loaded = make_ready(variant)


def find_kinds(variant: Variant, batch: GraphBatch, inputs: Inputs) -> Array:
    """Note the kinds of a batch that have not been seen before.

    Returns: [V] 1 where a vertex has a loss, else 0.
    Raises: PullError, when pulled values do not fit; GraphError, when a vertex has more children
        than the function has slots.
    """
    graph = inputs.structure
    while True:
        facts = variant.vertex_facts()
        found, vertex, bits, _, lazy, *_ = read_vertices(
            *graph[:3], inputs.index, facts, levels_of(batch)
        )
        if found == FINE:
            has_loss: Array = facts.has_loss[lazy]
            return has_loss
        if found == NEW_PATH_KIND:
            add_path_kind(variant, bits)
        elif found == NEW_LAZY_KIND:
            add_lazy_kind(variant, bits)
        else:
            refuse(variant.reader, batch, inputs, found, vertex)


def take_kinds(variant: Variant, others: Iterable[Variant]) -> None:
    """Note the kinds that variants of the same use have seen.

    What a GPU's kernel holds on chip, and with it the order of sums, depends on all its kinds.
    """
    for other in others:
        if other.atoms == variant.atoms:
            for bits in other.path_kinds:
                if bits not in variant.path_kinds:
                    add_path_kind(variant, bits)
            for bits in other.lazy_kinds:
                if bits not in variant.lazy_kinds:
                    add_lazy_kind(variant, bits)


def add_path_kind(variant: Variant, bits: int) -> None:
    """Compile what vertices of a path kind do before, on and after the path."""
    path = _on_path(variant, bits)
    kind = Kind(bits, {s: _add(variant, path, s) for s in PATH_STAGES}, path)
    variant.path_kinds = _ordered(variant.path_kinds, kind)
    variant.begin_anew()


def add_lazy_kind(variant: Variant, bits: int) -> None:
    """Compile what vertices of a kind do between forward and backward."""
    path = _on_path(variant, bits)
    program = specialise(lazy_part(path), variant.atoms.facts(bits, variant.atoms.lazy))
    if variant.passes.stack:
        program = stack_rows(program, LAZY_STAGES, variant.origin)
    program = copy_operands(program, variant.backend.apart, variant.origin)
    # By their origins, which all kinds have in common.
    known = {path.program.nodes[k].origin: read for k, read in path.reads.items()}
    lazy = store_values(program, known)
    verified(lazy.program, "lazy kind")
    # The loss is looked for in F: what the programs of a kind know depends on passes and devices.
    nodes = specialise(variant.program, variant.atoms.presence(bits, variant.atoms.lazy)).nodes
    pushed = (nodes[n.inputs[0]] for n in nodes if n.op == "push" and n["name"] == "loss")
    has_loss = any(value.op != "const" for value in pushed)
    kind = Kind(bits, {s: _add(variant, lazy, s) for s in LAZY_STAGES}, lazy, has_loss)
    variant.lazy_kinds = _ordered(variant.lazy_kinds, kind)
    variant.begin_anew()


def _ordered(known: Mapping[int, Kind], kind: Kind) -> dict[int, Kind]:
    """Add a kind where its bits say, not when it was met: tasks and sums follow this order."""
    return dict(sorted({**known, kind.bits: kind}.items()))


def _on_path(variant: Variant, bits: int) -> Stored:
    """Return the program of a path kind, lazy stages by what the path knows."""
    known = variant.atoms.on_path(bits)
    if known not in variant.paths:
        program = specialise(variant.program, variant.atoms.facts(bits, variant.atoms.path))
        if variant.passes.stack:
            program = stack_rows(program, PATH_STAGES, variant.origin)
        program = copy_operands(program, variant.backend.apart, variant.origin)
        variant.paths[known] = store_values(program)
        verified(variant.paths[known].program, "path kind")
    return variant.paths[known]


def _add(variant: Variant, stored: Stored, stage: Stage) -> int:
    task = cut(stored, stage, variant.passes.fuse, variant.backend.apart)
    if task is None:
        return -1
    variant.note_tensors(task)
    read = set(variant.pushes.keys.values())
    for spec in variant.table:
        if spec.key[0] in ("push", "pull_grad") or spec.key in read:  # when the run is over
            spec.last = phase_of(variant.program, Stage.FINAL, 0)
    text = fingerprint(task)
    if variant.passes.gradients and stage == Stage.PATH_BACKWARD:  # which sums up what is final
        nodes = stored.program.nodes
        outers = [x for x in nodes if x.op == "outer" and x.inputs[0] in task.homes]
        text += str([[nodes[i].origin for i in x.inputs] for x in outers])
    if text not in variant.numbers:
        variant.tasks.append(task)  # first: a signal may come before it has a number
        variant.numbers[text] = len(variant.tasks) - 1
    return variant.numbers[text]


def make_ready(variant: Variant) -> Ready:
    """Load the task programs of all kinds so far.

    Raises: NoKernelError, where a device cannot run them.
    """
    if config().check:
        verify_tasks(variant)
    executable, processors, shape = None, None, None
    if variant.processors:
        alone = variant.processors == 1
        segmented = segment_tasks(variant.tasks, alone=alone, whole=variant.passes.segment)
        if not (alone or variant.backend.shares_graphs):
            verify_sums(segmented)
        if config().check:
            for plan in segmented:
                verify_segments(plan)
        tasks = [s.task for s in segmented]
        for task in tasks:  # what processors exchange gets tensors
            variant.note_tensors(task)
        processors = variant.backend.load_segments(
            segmented, variant.binding, variant.processors, variant.use.rule
        )
        scratch = processors.scratch
        shape = shape_of(segmented, scratch)
    else:
        tasks = variant.tasks
        executable = variant.backend.load(tasks, variant.binding)
        scratch = executable.scratch
        if not variant.passes.loop:
            executable = LaunchByLaunch(cast("HostExecutable", executable))
    table, sharing = variant.table, share(variant.table)
    written = np.zeros((len(tasks), len(table)), bool)
    for k, task in enumerate(tasks):
        written[k, [table.numbers[use[0]] for use in tensor_uses(task) if use[3]]] = True
    if variant.processors and variant.backend.shares_graphs:
        # States of the functions of a path have the same rows: some are read for all of them.
        states = np.array([key[0] == "state" for key in table.numbers])
        for phase in {task.phase for task in tasks if task.stage == Stage.PATH}:
            mine = written[[task.phase == phase for task in tasks]].any(0) & states
            written[(written & mine).any(1)] |= mine
    sizes = np.array([spec.size for spec in table], np.int64)
    programs = ProgramFacts(
        _programs(variant.path_kinds, PATH_STAGES),
        np.array([variant.layer_of(bits) for bits in variant.path_kinds], np.int64),
        _programs(variant.lazy_kinds, LAZY_STAGES),
        np.array([uses_edges(task) for task in tasks], np.bool_),
        np.array(scratch, np.int64).reshape(-1, 3),
        np.cumsum([0, *written.sum(1)]),
        np.flatnonzero(written) % len(table),
        np.array([spec.edges for spec in table], np.bool_),
        sizes,
        sharing.buffer,
        sharing.width,
        variant.backend.most_scratch,
        int(np.max(sizes, initial=1)),
    )
    return Ready(executable, processors, shape, programs, tuple(variant.path_kinds))


def _programs(kinds: Mapping[int, Kind], stages: Sequence[Stage]) -> Int64:
    """Return the programs of each kind by stage, [stages, kinds]; -1 for none."""
    return np.array([[k.programs[s] for k in kinds.values()] for s in stages], np.int64)
