"""Layers of a network's functions, when they run, and sides of the path that share their code."""

from __future__ import annotations

import pytest

from vertexrt.ir.layers import Phase, chain_slot, find_layers
from vertexrt.ir.program import FunctionSite, Program, Stage
from vertexrt.kernels.cuda.path_function import OPENING
from vertexrt.kernels.cuda.shared_sides import MOST_WORDS, share_sides


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


def side(number: int, words: tuple[int, int], case: int, factor: int = 2) -> list[str]:
    a, b = words
    return [
        f"struct side_{number}_weights {{",
        f"  WeightsInRegisters<8, 16> param_{a}_0_8;",
        "};",
        f"bool side_{number}(int side) {{",
        f"  side_{number}_weights held;",
        OPENING,
        f"  case {case}: {{",
        f"  real* const tensor_{b} = (real*)job.w[{b + 30}];",
        f"  real* const param_{a} = (real*)job.w[{a}];",
        f"  const auto c{b}_2 = tensor_{b} + {factor};",
        f"  use(held.param_{a}_0_8, c{b}_2);",
        "}",
    ]


def test_sides_that_differ_in_names_and_numbers_are_one_function() -> None:
    shared, alone = share_sides(
        {0: side(0, (5, 7), 11), 3: side(3, (9, 2), 14), 4: side(4, (5, 7), 11, factor=3)}
    )
    assert (shared.name, shared.sides) == ("side_0", (0, 3))
    assert alone.sides == (4,)
    assert list(alone.lines) == side(4, (5, 7), 11, factor=3)
    text = "\n".join(shared.lines)
    assert "side_0_words[][2] = {{37, 5}, {32, 9}}" in text
    assert "case 11: case 14: {" in text
    assert "job.w[" not in text.replace("(job.w, ", "")
    assert text.index(OPENING) < text.index("own_words<2>") < text.index("own[0]")


def sides_of(*texts: list[str]) -> list[tuple[int, ...]]:
    """Return which of some texts became one function."""
    return [each.sides for each in share_sides({k: [OPENING, *t] for k, t in enumerate(texts)})]


def test_what_stands_for_two_words_in_one_side_is_no_match_for_one_word_in_another() -> None:
    words = [[f"f((real*)job.w[3], (real*)job.w[{k}]);"] for k in (3, 4)]
    rows = [[f"g(tensor_1_row, tensor_{k}_row);"] for k in (1, 2)]
    assert sides_of(*words) == sides_of(*rows) == [(0,), (1,)]


def test_sides_of_more_words_than_there_is_room_for_stay_apart() -> None:
    for count, sides in ((MOST_WORDS, [(0, 1)]), (MOST_WORDS + 1, [(0,), (1,)])):
        texts = [[f"f((real*)job.w[{k + n}]);" for n in range(count)] for k in range(2)]
        assert sides_of(*texts) == sides
