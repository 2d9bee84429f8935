"""Compile F for the kinds of vertices that a batch has.

Kinds appear with the data; each new one is specialised and cut into task programs, which are handed
to the backend, which has most of them in its cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from vertexrt.engine.inputs import Inputs, refuse
from vertexrt.engine.make_ready import make_ready
from vertexrt.engine.variant import PATH_STAGES, Kind, Variant, verified
from vertexrt.graph import GraphBatch
from vertexrt.ir.layers import phase_of
from vertexrt.ir.passes.fuse import cut
from vertexrt.ir.passes.operands import copy_operands
from vertexrt.ir.passes.specialise import specialise
from vertexrt.ir.passes.stack import stack_rows
from vertexrt.ir.passes.store import LAZY_STAGES, Stored, lazy_part, store_values
from vertexrt.ir.program import Stage
from vertexrt.kernels.task_tensors import fingerprint
from vertexrt.scheduler.kinds import FINE, NEW_LAZY_KIND, NEW_PATH_KIND, read_vertices

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
    while True:
        facts = variant.vertex_facts()
        found, vertex, bits, _, lazy, *_ = read_vertices(
            inputs.child_ptr,
            inputs.child,
            inputs.functions,
            inputs.index,
            *facts,
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
            for bits in [bits for bits in other.path_kinds if bits not in variant.path_kinds]:
                add_path_kind(variant, bits)
            for bits in [bits for bits in other.lazy_kinds if bits not in variant.lazy_kinds]:
                add_lazy_kind(variant, bits)


def add_path_kind(variant: Variant, bits: int) -> Kind:
    """Compile what vertices of a path kind do before, on and after the path."""
    path = _on_path(variant, bits)
    kind = Kind(bits, {s: _add(variant, path, s) for s in PATH_STAGES}, path)
    variant.path_kinds = _ordered(variant.path_kinds, kind)
    variant.begin_anew()
    return kind


def add_lazy_kind(variant: Variant, bits: int) -> Kind:
    """Compile what vertices of a kind do between forward and backward."""
    path = _on_path(variant, bits)
    program = specialise(lazy_part(path), variant.atoms.facts(bits, variant.atoms.lazy))
    if variant.passes.stack:
        program = stack_rows(program, LAZY_STAGES, variant.origin)
    program = copy_operands(program, variant.backend.apart, variant.origin)
    lazy = store_values(program, path.of_origins())
    verified(lazy.program, "lazy kind")
    kind = Kind(
        bits, {s: _add(variant, lazy, s) for s in LAZY_STAGES}, lazy, _has_loss(variant, bits)
    )
    variant.lazy_kinds = _ordered(variant.lazy_kinds, kind)
    variant.begin_anew()
    return kind


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
    for key in variant.table.numbers:
        if key[0] in ("push", "pull_grad") or key in read:  # when the run is over
            spec = variant.table.specs[variant.table.numbers[key]]
            last = phase_of(variant.program, Stage.FINAL, 0)
            variant.table.use(key, spec.size, spec.edges, last)
    text = fingerprint(task)
    if text not in variant.numbers:
        variant.tasks.append(task)  # first: a signal may come before it has a number
        variant.numbers[text] = len(variant.tasks) - 1
    return variant.numbers[text]


def _has_loss(variant: Variant, bits: int) -> bool:
    """Tell whether a kind pushes a loss that is not known to be a constant.

    It is looked for in F, since what the programs of a kind know depends on passes and devices.
    """
    nodes = specialise(variant.program, variant.atoms.presence(bits, variant.atoms.lazy)).nodes
    losses = [n for n in nodes if n.op == "push" and n["name"] == "loss"]
    return any(nodes[n.inputs[0]].op != "const" for n in losses)
