"""The text of a refusal of weights that do not fit on chip: what they take, and what helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vertexrt.kernels.cuda.weights import (
    Budget,
    Layout,
    Misfit,
    ResidentWeight,
    SideWeights,
    place_weights,
)

SHARED_BYTES = 227 << 10


def refused(rows: int, deep: int, processors: int, pairs: bool = False) -> Misfit:
    """Place one weight of four gates and return why that fails."""
    cuts = tuple(rows // 4 * k for k in range(5))
    held = [ResidentWeight("w", deep, False, cuts, deep)]
    placed = place_weights(held, 0, Budget(processors, 4, SHARED_BYTES, 48, pairs=pairs))
    assert isinstance(placed, Misfit)
    return placed


def test_more_processors_are_named_where_they_help() -> None:
    misfit = refused(4096, 1024, 16)
    assert misfit.text(128) == (
        "[cuda] the weights of the path take 1,024 KiB of each of 16 processors, 0 KiB of it "
        "padding to tiles of 16 by 16; each weight whole in 48 KiB of registers or 218 KiB of "
        "shared memory, or one of them in both; take processors=64, or engine='batched'."
    )
    held = [ResidentWeight("w", 1024, False, (0, 1024, 2048, 3072, 4096), 1024)]
    placed = place_weights(held, 0, Budget(misfit.fitting[0], 4, SHARED_BYTES, 48, divides=True))
    assert not isinstance(placed, Misfit)


def test_pairs_take_half_the_room() -> None:
    whole, pairs = refused(4096, 1024, 16), refused(4096, 1024, 16, pairs=True)
    assert "take 512 KiB of each of 16 processors" in pairs.text(128)
    assert pairs.fitting[0] <= whole.fitting[0] / 2
    weight = ResidentWeight("w", 256, False, (0, 256), 256)
    budgets = [Budget(4, 4, SHARED_BYTES, 96, pairs=pairs) for pairs in (False, True)]
    assert budgets[0].bytes([weight]) == 2 * budgets[1].bytes([weight])
    assert budgets[0].words(weight) == 2 * budgets[1].words(weight)


def test_more_processors_than_there_are_do_not_help() -> None:
    text = refused(4096, 1024, 16).text(60)
    assert text.endswith("take engine='batched'; more processors a group do not help.")


def test_rows_that_are_padded() -> None:
    """A processor owns three rows of each gate, and pays for 16."""
    misfit = refused(144, 32_768, 16)
    assert "2,048 KiB of each of 16 processors, 512 KiB of it padding" in misfit.text(128)
    assert misfit.fitting == ()


@pytest.mark.parametrize(
    ("rows", "deep", "fold", "elements"),
    [(16, 2048, 1, 128), (8, 2048, 1, 64), (5, 2048, 1, 64), (4, 2048, 4, 32), (1, 4096, 8, 32)],
)
def test_a_few_rows_are_folded(rows: int, deep: int, fold: int, elements: int) -> None:
    """No more than 16 elements a row and 16 columns of a warp are left empty."""
    assert (Layout(rows, deep).fold, Layout(rows, deep).elements) == (fold, elements)


@pytest.mark.parametrize(("rows", "elements"), [(16, 48), (17, 72), (24, 72), (25, 96)])
def test_the_last_rows_take_half_a_slab(rows: int, elements: int) -> None:
    """All warps share the depth of 650, six blocks of 16 columns each."""
    layout = Layout(rows, 650)
    assert layout.elements == elements
    assert layout.partial == 8 * 8 * -(-rows // 8) * 8, "of 8 warps and 8 rows of a tile"


def test_folds_leave_work_for_all_warps() -> None:
    assert Layout(4, 255).fold == 1
    assert Layout(4, 256).fold == 1, "two parts take no less than half a slab"
    assert Layout(4, 512).fold == 4


def test_one_weight_may_lie_in_registers_and_in_shared_memory() -> None:
    """The largest of those that registers do not hold whole: an LSTM of 512 by 16 processors."""
    wide = ResidentWeight("wide", 512, False, (0, 512, 1024, 1536, 2048), 512)
    narrow = ResidentWeight("narrow", 512, False, (0, 512), 512)
    budget = Budget(16, 4, SHARED_BYTES, 144, divides=True)
    placed = place_weights([wide], 0, budget)
    assert isinstance(placed, SideWeights)
    assert (placed.in_registers, placed.divided) == (0, 36)
    assert placed.shared == (64 - 36) * 16 * 256
    assert budget.registers_of(placed) == 144
    placed = place_weights([wide, narrow], 0, budget)
    assert isinstance(placed, SideWeights)
    assert [h.word for h in placed.held] == ["narrow", "wide"]
    assert (placed.in_registers, placed.divided) == (1, 20)
    assert budget.registers_of(placed) == 64 + 20 * 4
    assert isinstance(place_weights([wide, replace(wide, word="other")], 0, budget), Misfit)


def test_what_else_is_in_shared_memory_has_to_fit() -> None:
    held = [ResidentWeight("w", 64, False, (0, 64), 64)]
    budget = Budget(1, 4, SHARED_BYTES, 96, streams=True)
    assert isinstance(place_weights(held, SHARED_BYTES, budget), Misfit)
