"""What a ring holds is verified as scripts go up: right ones pass, each kind of wrong one not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.functions import FUNCTIONS
from tests.launches import Launch, device_of, launch_of
from tests.paper_device import on_paper
from tests.strategies import pulls_for
from tests.wide import wide
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
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
from vertexrt.kernels.cuda.verify_launch import verify_launch
from vertexrt.script.isa import NONE, OP, ROWS, TEMPORARY, WAIT

Array = np.ndarray
Change = Callable[[Array, Array], None]


# KiB of shared memory with which the forward ring has 8 to 20 rows.
FEW_ROWS = {"tree-lstm": 34, "gru": 27, "attention": 42, "lstm-lm": 29}
MORE_ROWS = 48


@cache
def launched(name: str, processors: int, kibibytes: int | None = None) -> Launch:
    """Return a step on processors with so much shared memory; with all that there is by default."""
    net = on_paper(FUNCTIONS[name][0](), processors)
    if kibibytes is not None:
        device_of(net).shared_bytes = kibibytes << 10
    return launch_of(net, wide(name, 2))


def check(launch: Launch, change: Change | None = None) -> None:
    written = launch.written
    script, slots = written.script.copy(), written.child_slot.copy()
    if change is not None:
        change(script[written.common :], slots)
    written = replace(written, script=script, child_slot=slots)
    verify_launch(*launch._replace(written=written))


@pytest.mark.parametrize("room", ["few rows", "more rows", "all rows"])
@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("name", ["tree-lstm", "gru", "attention", "lstm-lm"])
def test_what_is_written_passes(name: str, processors: int, room: str) -> None:
    kibibytes = {"few rows": FEW_ROWS[name], "more rows": MORE_ROWS, "all rows": None}[room]
    launch = launched(name, processors, kibibytes)
    assert len(launch.written.child_slot)
    rows = launch.executable.writer.rings[0].rows
    assert {"few rows": 8, "more rows": 21, "all rows": 100}[room] <= rows
    check(launch)


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
        check(launched("tree-lstm", 2, FEW_ROWS["tree-lstm"]), change)


def test_temporaries_of_several_tiles_end_before_the_ring() -> None:
    """A GRU has two tiles under way at once, beside a ring that takes what room is left."""
    leaves = 128
    lists: list[list[int]] = [[] for _ in range(leaves)]
    lists += [[2 * k, 2 * k + 1] for k in range(leaves - 1)]
    pulls = pulls_for(len(lists), 0)
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls)])
    net = on_paper(FUNCTIONS["gru"][0](), 2)
    executable, tiles = launch_of(net, batch).executable, (8, 24, 40)
    found = []
    for tile in tiles:
        executable.tile_beside_ring = tile
        found.append(launch_of(net, batch))
    writer = executable.writer
    for launch, tile in zip(found, tiles, strict=True):
        written = launch.written
        assert launch.paths.ring
        for side in range(len(writer.phases)):
            assert writer.fits(side)
            check(launch)
            first, end = (int(k) - written.common for k in written.sections[side, [0, -1]])
            rows = written.script[written.common :][first:end]
            if side == 1 and tile == 8:
                assert rows[:, TEMPORARY].max() > 0, "one tile after the other"
            sizes = {number: x.scratch[0] for number, x in writer.segments(side)}
            ends = [int(row[TEMPORARY] + row[ROWS] * sizes[row[OP]]) for row in rows]
            assert max(ends) <= writer.used(side, tile)

            def push_out(script: Array, slots: Array, where: slice = slice(first, end)) -> None:
                script[where, TEMPORARY] += 1 << 20  # all, so that nothing else is wrong

            more = launch._replace(paths=replace(launch.paths, temporary=1 << 22))
            with pytest.raises(PlanError, match="temporaries end at element"):
                check(more, push_out)


def test_who_has_nothing_to_send_is_waited_for() -> None:
    """Of five units some of eight processors have none, and no bytes say that they are through."""
    launch = launch_of(on_paper(FUNCTIONS["tree-lstm"][0](), 8, of_device=16), wide("tree-lstm", 2))
    paths = launch.written.script[launch.written.common :]
    waits = paths[paths[:, WAIT] != NONE, WAIT]
    assert len(waits) > 0
    assert (waits == FOR_ALL).all()
    assert (paths[:, USES] & IS_SENT).any()
    check(launch)

    def for_the_ring(script: Array, slots: Array) -> None:
        script[np.flatnonzero(script[:, WAIT] == FOR_ALL)[0], WAIT] = FOR_RING

    with pytest.raises(PlanError, match="all send"):
        check(launch, for_the_ring)
