"""What a run does in several processes: one writes its folder, all read the same data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vertexrt.cli.measures import MEASURES
from vertexrt.cli.metrics import Totals
from vertexrt.cli.run_folder import LAST, RunFolder
from vertexrt.cli.session import RunSession
from vertexrt.cli.tasks import Task
from vertexrt.errors import ParallelError, UsageError
from vertexrt.parallel import ProcessGroup


def open_folder(group: ProcessGroup, make: Callable[[], RunFolder]) -> RunFolder:
    """Return a run folder that process 0 has made, and which it alone writes.

    Raises: in process 0 what `make` raises, and ParallelError in the others then.
    """
    if group.rank == 0:
        try:
            folder = make()
        except BaseException:
            group.broadcast(b"")
            raise
        group.broadcast(os.fsencode(folder.path.resolve()))
        return folder
    path = group.broadcast(b"")
    if not path:
        expected = "a run folder that it can write"
        raise ParallelError.at("parallel", "process 0 has stopped", expected, "see what it says")
    return RunFolder(Path(os.fsdecode(path)), writes=False)


def run_to_continue(group: ProcessGroup, out: str | None) -> str | None:
    """Return the folder that `--continue` goes on with; None where a run begins.

    Raises: UsageError, when no folder is named.
    """
    if out is None:
        action = "Give one with --out: a restart has to find it"
        raise UsageError.at("--continue", "no run folder", "expected a name of it", action)
    there = (Path(out) / LAST).is_file()
    return out if group.largest(int(there)) else None


def skip_draws(session: RunSession) -> None:
    """Count the random draws of a minibatch that another process evaluates."""
    net = session.net
    if net.program.find("uniform"):
        state = net.random_state()
        net.set_random_state({**state, "step": state["step"] + 1})


def in_turn(own: list[Totals], task: Task, count: int, group: ProcessGroup) -> list[Totals]:
    """Return what each minibatch of an evaluation adds, in order.

    So sums are those of one process, bit for bit.

    Args:
        own: of the minibatches of this process: one in `group.size`, from `group.rank` on.
        count: minibatches.
    """
    names = sorted({name for measure in task.measures for name in MEASURES[measure].sums})
    table = np.zeros((-(-count // group.size), 2 + len(names)))
    for row, part in zip(table, own, strict=False):
        row[:] = part.loss, part.graphs, *(part.sums.get(name, 0) for name in names)
    found = group.gather(table).swapaxes(0, 1).reshape(-1, table.shape[1])[:count]
    return [
        Totals(loss, int(graphs), 0.0, dict(zip(names, sums, strict=True)))
        for loss, graphs, *sums in found.tolist()
    ]
