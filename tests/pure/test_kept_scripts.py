"""Scripts of groups follow from the graphs of a minibatch, and are kept for the next such one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.launches import Launch, launch_of
from tests.paper_device import on_paper
from tests.strategies import WORDS, with_pulls

CHAIN: list[list[int]] = [[], [0], [1], [2], [3], [4]]
TREE: list[list[int]] = [[], [], [0, 1], [], [2, 3], [], [4, 5]]
OTHER: list[list[int]] = [[], [], [], [], [2, 3], [1, 4], [0, 5]]


def batch_of(shape: list[list[int]], seed: int) -> vrt.GraphBatch:
    """Return three graphs of one shape, with other words for another seed."""
    batch = with_pulls([shape] * 3)
    word = np.random.default_rng(seed).integers(WORDS, size=batch.num_vertices).astype(np.int32)
    word[np.asarray(batch.pulls["word"]) < 0] = -1
    pulls = {**batch.pulls, "word": word}
    return vrt.GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls)


def arrays_of(launch: Launch) -> list[Any]:
    """Return all that goes up of the scripts of a launch."""
    written = launch.written
    return [
        *(written.script, written.apart, written.lookup_ptr, written.lookup_at, *written.lookups),
        *(written.elements, written.counters),
        *(written.groups, written.cells, written.cell_sections),
    ]


def assert_as_anew(net: vrt.Network, found: Launch, batch: vrt.GraphBatch, clips: bool) -> None:
    """Compare a launch with what is written where nothing is kept."""
    scripts = found.run.layout.scripts
    kept = dict(scripts)
    scripts.clear()
    for one, other in zip(arrays_of(found), arrays_of(launch_of(net, batch, clips)), strict=True):
        assert np.array_equal(one, other)
    scripts.clear()
    scripts.update(kept)


@pytest.mark.parametrize(
    ("name", "shapes"), [("lstm-lm", (CHAIN, CHAIN[:-1])), ("tree-lstm", (TREE, OTHER))]
)
@pytest.mark.parametrize("processors", [1, 2])
def test_scripts_that_were_kept_are_those_that_would_be_written(
    name: str, shapes: tuple[list[list[int]], list[list[int]]], processors: int
) -> None:
    net = on_paper(FUNCTIONS[name][0](), processors)
    for seed, shape in enumerate((0, 1, 0, 0, 1, 1, 1)):
        batch, clips = batch_of(shapes[shape], seed), bool(seed % 2)
        assert_as_anew(net, launch_of(net, batch, clips), batch, clips)


def test_scripts_are_written_once_for_a_layout_that_comes_again() -> None:
    net = on_paper(FUNCTIONS["lstm-lm"][0](), 2)
    assert not launch_of(net, batch_of(CHAIN, 0)).run.layout.scripts, "it has come once"
    launches = [launch_of(net, batch_of(CHAIN, seed), bool(seed % 2)) for seed in (1, 2, 3)]
    (first,), (second,) = (each.run.layout.scripts.values() for each in launches[1:])
    assert first is second


def test_scripts_of_a_part_are_not_those_of_a_whole_step() -> None:
    net, batch = on_paper(FUNCTIONS["lstm-lm"][0](), 2), batch_of(CHAIN, 0)
    for _ in range(3):
        net(batch)
        assert_as_anew(net, launch_of(net, batch), batch, False)
