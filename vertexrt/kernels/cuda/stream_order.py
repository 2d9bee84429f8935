"""Which stream each launch of a step has, and a verifier: what needs each other is never at once.

A launch runs after all that its stream has before it, and after what that waits for. Whether this
is enough is found anew, by the elements of the arena that launches touch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.errors import PlanError, message
from vertexrt.ir.pretty import STAGE_WORD
from vertexrt.kernels.cuda.driver import extent
from vertexrt.kernels.cuda.steps import CHUNKED, Kernel, adding, takes_temporaries
from vertexrt.kernels.cuda.touched_rows import Minibatch, touched_rows
from vertexrt.kernels.layout import gradient_owners, tensor_uses
from vertexrt.script.verifier import REPORT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.executable import CudaExecutable

Array = np.ndarray[Any, Any]

COLUMNS = 5  # of `Order.steps`
CHILDREN, PARENTS = range(2)  # columns of `Needs.gathers`
OF_STREAM, REGION, RECORDED, FIRST_WAIT, END_WAIT = range(COLUMNS)


@dataclass(frozen=True, slots=True)
class Order:
    """The streams of the launches of a step.

    Attributes:
        steps: int32 [*, 5], of each step that is launched, in the order of the table: its stream,
            0 for the main one; the stream whose temporaries its launch has; the event that is
            recorded after it, or -1; the first and the end of its waits.
        waits: int32 [*] the events that streams wait for before steps.
        events: how many there are, with those of beginning and end.
    """

    steps: npt.NDArray[np.int32]
    waits: npt.NDArray[np.int32]
    events: int


class Needs(NamedTuple):
    """What launches of task programs need of each other, whatever the minibatch.

    Attributes:
        gathers: bool [programs, 2] reads rows of children, and of parents.
        reuses: bool [programs, programs], of an earlier and a later one: the later one writes to a
            buffer where the earlier one has another tensor.
        adds: bool [steps] see `Adding.only`; adds_ptr, added: CSR of the gradients of each step.
        temporaries: bool [steps] which have some.
        follows: bool [steps] which go on with what the step before them has made.
    """

    gathers: Array
    reuses: Array
    adds: Array
    adds_ptr: Array
    added: Array
    temporaries: Array
    follows: Array


def needs_of(variant: Variant, executable: CudaExecutable) -> Needs:
    """Find what launches of a variant's task programs need of each other."""
    ops = [{task.program.nodes[k].op for k in task.members} for task in variant.tasks]
    gathers = [(bool(o & {"gather", "gather_all"}), "gather_parents" in o) for o in ops]
    every = [step for x in executable.launches for step in x.steps]
    adds = adding(every, gradient_owners(executable.params))
    return Needs(
        gathers=np.array(gathers, np.bool_).reshape(-1, 2),
        reuses=_reuses(variant),
        adds=adds.only,
        adds_ptr=adds.ptr,
        added=adds.gradients,
        temporaries=np.array([takes_temporaries(s) for s in every], np.bool_),
        follows=np.array([isinstance(s, Kernel) and s.when == CHUNKED for s in every], np.bool_),
    )


def _reuses(variant: Variant) -> Array:
    """Return `Needs.reuses`: tensors share a buffer where their lives do not overlap."""
    tasks, buffer = variant.tasks, variant.ready().sharing.buffer
    uses = [
        (p, key, int(buffer[variant.table.numbers[key]]), written)
        for p, task in enumerate(tasks)
        for key, _, _, written in tensor_uses(task)
    ]
    found = np.zeros((len(tasks), len(tasks)), np.bool_)
    for p, key, number, written in uses:
        if written:
            found[[a for a, other, at, _ in uses if at == number and other != key], p] = True
    return found


class _Steps(NamedTuple):
    """The steps that are launched: [steps] each.

    Attributes:
        launch, number: of the table, and of the step among all of its executable.
        region: the stream whose temporaries its launch has.
        after: [steps, steps] it begins when another one is done.
    """

    launch: Array
    number: Array
    region: Array
    after: Array


class _Use(NamedTuple):
    """What a launch has of a buffer: elements of the arena, or rows of a tensor."""

    launch: int
    key: Any
    written: bool
    rows: Array
    first: int
    end: int

    def meets(self, other: _Use) -> bool:
        """Tell whether both touch some element, and one writes it."""
        if not (self.written or other.written):
            return False
        if self.key == other.key:
            return bool(np.any(self.rows & other.rows))
        return self.first < other.end and other.first < self.end


def verify_streams(
    run: Run, table: Array, lookups: tuple[Array, ...], order: Order, needs: Needs
) -> None:
    """Check the streams of the launches of a table.

    Every step is there once, in order; a step comes after those of its launch that it needs, those
    that add to the same gradient come in the order of the table, and so do launches of which one
    writes what the other touches: rows of tensors, buffers, and temporaries.

    Raises: PlanError, which names the launches.
    """
    steps = _list_steps(run, table, lookups, order)
    for what, needed in _needed(run, table, steps, needs):
        late = np.argwhere(np.tril(needed, -1) & ~steps.after)
        if len(late):
            k, other = late[0].tolist()
            got = f"step {steps.number[k]} does not wait for step {steps.number[other]} of launch "
            expected = what.format(region=steps.region[k])
            _fail(
                run,
                table[steps.launch[k]],
                steps.launch[k],
                f"{got}{steps.launch[other]}",
                expected,
            )


def _fail(run: Run, row: Array, t: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about a launch, a row of the table."""
    p, n, lo = row[:3].tolist()
    where = f"launch {t} ({STAGE_WORD[run.variant.tasks[p].stage]}, {n} rows from {lo}): "
    raise PlanError(message("streams", where + got, expected, REPORT))


def _list_steps(run: Run, table: Array, lookups: tuple[Array, ...], order: Order) -> _Steps:
    """List what is launched."""
    steps_ptr, steps, _ = cast("CudaExecutable", run.ready.executable).program
    launched = [
        (t, s)
        for t, row in enumerate(table)
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1])
        if extent(steps[s], row, lookups[1], lookups[0][t]).across
    ]
    if len(order.steps) < len(launched):
        t, s = launched[len(order.steps)]
        _fail(run, table[t], t, f"no stream for step {s}", "one for each that is launched")
    if len(order.steps) > len(launched):
        got, t = f"streams for {len(order.steps)} steps", len(table) - 1
        _fail(run, table[t], t, got, f"{len(launched)}, all that are launched")
    launch, number = np.array(launched, np.int64).reshape(-1, 2).T
    after = np.zeros((len(launched), len(launched)), np.bool_)
    for k, done in enumerate(_done(order)):
        if done is None:
            t = int(launch[k])
            _fail(run, table[t], t, "a wait for events to come", "events that are recorded before")
        after[k] = done
    return _Steps(launch, number, order.steps[:, REGION], after)


def _done(order: Order) -> Iterator[Array | None]:
    """Mark the steps that are done before each begins; None where it waits for no step before."""
    streams = 1 + int(max(order.steps[:, OF_STREAM], default=0))
    known = np.zeros((streams, len(order.steps)), np.bool_)  # what is done when a stream goes on
    come: dict[int, Array] = {}
    for k, (stream, _, event, first, end) in enumerate(order.steps.tolist()):
        waits = order.waits[first:end].tolist()
        if not come.keys() >= set(waits):
            yield None
        for wait in waits:
            known[stream] |= come[wait]
        yield known[stream].copy()
        known[stream, k] = True
        come[event] = known[stream].copy()


def _needed(run: Run, table: Array, steps: _Steps, needs: Needs) -> Iterator[tuple[str, Array]]:
    """List what steps need, as what they should wait for, and [later step, earlier step]."""
    launch, count = steps.launch, len(steps.launch)
    of_launch, adds = launch[:, None] == launch, needs.adds[steps.number]
    before = np.eye(count, k=-1, dtype=np.bool_) & needs.follows[steps.number][:, None]
    yield "the steps of its launch before it", of_launch & (~adds | before)
    to = np.zeros((count, int(needs.added.max()) + 1), np.int64)
    for k, s in enumerate(steps.number.tolist()):
        to[k, needs.added[needs.adds_ptr[s] : needs.adds_ptr[s + 1]]] = 1
    yield "a wait for what adds to its gradients before it", to @ to.T > 0
    has = needs.temporaries[steps.number]
    both, same = has[:, None] & has, steps.region[:, None] == steps.region
    apart = np.argwhere(of_launch & both & ~same)
    if len(apart):
        t = int(launch[apart[0, 0]])
        _fail(run, table[t], t, "temporaries of several streams", "those of one")
    yield "a wait for the temporaries of stream {region}", both & same & ~of_launch
    makes, all_of = _meetings(run, table)
    wanted = np.where(adds, all_of[launch][:, launch], makes[launch][:, launch])
    yield "a wait for the launch, which touches what it writes, or writes what it touches", wanted


def _meetings(run: Run, table: Array) -> tuple[Array, Array]:
    """Find which launches have to run in the order of the table: [later launch, earlier launch].

    Returns: after what the earlier one makes, and after all of it. A step that only adds to
        gradients writes no tensor. It may read what its launch wrote; but what two launches write
        of one tensor are other slots of the same edges.
    """
    makes, all_of = np.zeros((2, len(table), len(table)), np.bool_)
    for uses in _uses(run, table).values():
        for earlier, later in itertools.combinations(uses, 2):
            at = later.launch, earlier.launch
            if later.launch != earlier.launch and later.meets(earlier):
                makes[at] = True
                all_of[at] |= later.written and not (earlier.written and earlier.key == later.key)
    return makes, all_of


def _uses(run: Run, table: Array) -> dict[int, list[_Use]]:
    """List what launches have of each buffer."""
    minibatch = Minibatch(table, run.schedule, run.rows, run.share.batch.graph_ptr)
    tensors, buffer = run.variant.table, run.ready.sharing.buffer
    found: dict[int, list[_Use]] = defaultdict(list)
    for t, row in enumerate(table):
        for key, _, edges, written in tensor_uses(run.variant.tasks[int(row[0])]):
            number = tensors.numbers[key]
            rows = touched_rows(minibatch, row, key, edges, written)
            at, size, base = np.flatnonzero(rows), tensors.specs[number].size, run.plan.base[number]
            if len(at):
                first, end = (int(base + r * size) for r in (at[0], at[-1] + 1))
                found[int(buffer[number])].append(_Use(t, key, written, rows, first, end))
    return found
