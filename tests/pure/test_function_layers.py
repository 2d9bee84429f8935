"""Layers of a network's functions, when they run, and sides of the path that share their code."""

from __future__ import annotations

import pytest

from vertexrt.ir.layers import Phase, chain_slot, find_layers
from vertexrt.ir.program import FunctionSite, Program, Stage


def sites(reads: str) -> tuple[FunctionSite, ...]:
    """Return functions, given of each slot which functions its children are: "; 0 or 1, 1"."""
    found = []
    for k, text in enumerate(reads.split(";")):
        slots = text.split(",") if text.strip() else []
        children = tuple(
            tuple(int(child) for child in slot.split(" or ") if child.strip()) for slot in slots
        )
        names = tuple(f"r{slot}" for slot in range(len(slots)))
        found.append(FunctionSite(f"f{k}", names, 0, children))
    return tuple(found)


@pytest.mark.parametrize(
    ("reads", "layers"),
    [
        ("0; 0, 1; 1, 2; 2", (0, 1, 2, 3)),  # a stack, and a class
        ("0 or 1; 0 or 1; 1", (0, 0, 1)),  # two that read each other
        ("0; 1; 0, 1, 2; 2", (0, 0, 1, 2)),  # both directions
        ("; 0 or 1, 0 or 1", (0, 1)),  # leaves, and vertices over leaves and vertices
        ("0; 1; ; 0", (0, 0, 1, 1)),  # unread ones come last, together
        ("; 0; 1; 0, 2", (0, 1, 2, 3)),
        (";", (0, 0)),
    ],
)
def test_layers_follow_from_what_functions_read(reads: str, layers: tuple[int, ...]) -> None:
    assert find_layers(sites(reads)) == layers


def test_phases_are_in_the_order_in_which_they_run() -> None:
    phases = {Phase.of(stage, layer, 2) for stage in Stage for layer in range(2)}
    assert ", ".join(phase.name for phase in sorted(phases)) == (
        "EAGER, PATH, EAGER 1, PATH 1, LAZY, LAZY_BACKWARD, PATH_BACKWARD 1, FINAL 1, "
        "PATH_BACKWARD, FINAL"
    )
    assert sorted(Phase.of(stage) for stage in Stage) == [Phase.of(stage) for stage in Stage]


def test_vertices_are_chains_by_one_slot_of_their_layer() -> None:
    reads = sites("0; 0, 1; 1, 2, 2; 0 or 3; 4, 4, ")  # the last slot has no children
    program = Program("p", (), sites=reads, layers=(0, 1, 2, 1, 3))
    assert [chain_slot(program, f) for f in range(5)] == [0, 1, -1, 0, -1]
    together = Program("p", (), sites=reads)
    assert chain_slot(together, 1) == -1, "both of its slots are of the only layer"
    assert chain_slot(Program("p", (), arity=1), 0) == 0
    assert chain_slot(Program("p", (), arity=2), 0) == -1
