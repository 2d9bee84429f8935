"""What a ring holds is verified as scripts go up: right ones pass, each kind of wrong one not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.paper_device import on_paper
from tests.strategies import pulls_for
from tests.wide import wide
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda import device_executor, ring
from vertexrt.kernels.cuda.instruction import (
    EXPECT,
    FAR,
    FOR_ALL,
    FOR_RING,
    HAS_OPERAND,
    IS_PUT,
    IS_SENT,
    SLOT,
    USES,
)
from vertexrt.kernels.cuda.kernel import SIDES
from vertexrt.kernels.cuda.verify_launch import verify_launch
from vertexrt.script.isa import NONE, OP, ROWS, TEMPORARY, WAIT

Array = np.ndarray
Change = Callable[[Array, Array], None]


@cache
def captured(name: str, processors: int, rows: int) -> tuple[Any, ...]:
    """Return what the verifier is given for a step."""
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_executor, "verify_launch", lambda *given: found.append(given))
        patch.setattr(ring, "MOST_ROWS", rows)
        on_paper(FUNCTIONS[name][0](), processors).step(wide(name, 2), vrt.SGD(0.1))
    return found[0]


def check(given: tuple[Any, ...], change: Change | None = None) -> None:
    written = given[-1]
    script, slots = written.script.copy(), written.child_slot.copy()
    if change is not None:
        change(script[written.common :], slots)
    verify_launch(*given[:-1], replace(written, script=script, child_slot=slots))


@pytest.mark.parametrize("rows", [8, 24, 192])
@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("name", ["tree-lstm", "gru", "attention", "lstm-lm"])
def test_what_is_written_passes(name: str, processors: int, rows: int) -> None:
    given = captured(name, processors, rows)
    assert len(given[-1].child_slot)
    check(given)


def uses(script: Array, bit: int) -> int:
    """Return an instruction of those with a bit, not the last one."""
    return int(np.flatnonzero(script[:, USES] & bit)[0])


def swap_puts(script: Array, slots: Array) -> None:
    script[uses(script, IS_PUT), SLOT] += 1


def send_nothing(script: Array, slots: Array) -> None:
    script[uses(script, IS_SENT), USES] &= ~IS_SENT


def put_nothing(script: Array, slots: Array) -> None:
    script[uses(script, IS_PUT), USES] &= ~(IS_PUT | IS_SENT)


def operand_elsewhere(script: Array, slots: Array) -> None:
    script[uses(script, HAS_OPERAND), SLOT] += 1


def operand_from_memory(script: Array, slots: Array) -> None:
    script[uses(script, HAS_OPERAND), USES] &= ~HAS_OPERAND


def wait_for_the_ring_alone(script: Array, slots: Array) -> None:
    script[np.flatnonzero(script[:, WAIT] == FOR_ALL)[0], WAIT] = FOR_RING


def expect_more(script: Array, slots: Array) -> None:
    script[np.flatnonzero(script[:, EXPECT])[0], EXPECT] += 1


def child_elsewhere(script: Array, slots: Array) -> None:
    slots[np.flatnonzero((slots >= 0) & (slots < 6))[0]] ^= 1


def child_from_memory(script: Array, slots: Array) -> None:
    slots[np.flatnonzero((slots >= 0) & (slots < 6))[0]] = -1


def copy_one_less(script: Array, slots: Array) -> None:
    script[np.flatnonzero(script[:, FAR])[0], FAR] -= 1


def copy_beyond(script: Array, slots: Array) -> None:
    slots[np.argmax(slots)] = 1000


CHANGES: list[Change] = [
    swap_puts,
    send_nothing,
    put_nothing,
    operand_elsewhere,
    operand_from_memory,
    wait_for_the_ring_alone,
    expect_more,
    child_elsewhere,
    child_from_memory,
    copy_one_less,
    copy_beyond,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_kind_of_wrong_script_is_refused(change: Change) -> None:
    with pytest.raises(PlanError):
        check(captured("tree-lstm", 2, 8), change)


def test_temporaries_of_several_tiles_end_before_the_ring() -> None:
    """A GRU has two tiles under way at once, beside a ring that takes what room is left."""
    leaves = 128
    lists: list[list[int]] = [[] for _ in range(leaves)]
    lists += [[2 * k, 2 * k + 1] for k in range(leaves - 1)]
    pulls = pulls_for(len(lists), 0)
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls)])
    net = on_paper(FUNCTIONS["gru"][0](), 2)
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_executor, "verify_launch", lambda *given: found.append(given))
        net.step(batch, vrt.SGD(0.1))
        executable = found[0][2]
        for tile in (8, 24, 40):
            executable.tile_beside_ring = tile
            net.step(batch, vrt.SGD(0.1))
    writer = executable.writer
    for given, tile in zip(found[1:], (8, 24, 40), strict=True):
        paths, written = given[-2:]
        assert paths.ring
        for side, stage in enumerate(SIDES):
            assert writer.fits(stage)
            check(given)
            first, end = (int(k) - written.common for k in written.sections[side, [0, -1]])
            rows = written.script[written.common :][first:end]
            if side == 1 and tile == 8:
                assert rows[:, TEMPORARY].max() > 0, "one tile after the other"
            sizes = {number: x.scratch[0] for number, x in writer.segments(stage)}
            ends = [int(row[TEMPORARY] + row[ROWS] * sizes[row[OP]]) for row in rows]
            assert max(ends) <= writer.used(stage, tile)

            def push_out(script: Array, slots: Array, where: slice = slice(first, end)) -> None:
                script[where, TEMPORARY] += 1 << 20  # all, so that nothing else is wrong

            more = (*given[:-2], replace(paths, temporary=1 << 22), written)
            with pytest.raises(PlanError, match="temporaries end at element"):
                check(more, push_out)


def test_who_has_nothing_to_send_is_waited_for() -> None:
    """Of five units some of eight processors have none, and no bytes say that they are through."""
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_executor, "verify_launch", lambda *given: found.append(given))
        net = on_paper(FUNCTIONS["tree-lstm"][0](), 8, of_device=16)
        net.step(wide("tree-lstm", 2), vrt.SGD(0.1))
    paths = found[0][-1].script[found[0][-1].common :]
    waits = paths[paths[:, WAIT] != NONE, WAIT]
    assert len(waits) > 0
    assert (waits == FOR_ALL).all()
    assert (paths[:, USES] & IS_SENT).any()
    check(found[0])

    def for_the_ring(script: Array, slots: Array) -> None:
        script[np.flatnonzero(script[:, WAIT] == FOR_ALL)[0], WAIT] = FOR_RING

    with pytest.raises(PlanError, match="everybody sends"):
        check(found[0], for_the_ring)
