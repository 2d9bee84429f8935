"""The text of a refusal of weights that do not fit on chip: what they take, and what helps."""

from __future__ import annotations

from vertexrt.kernels.cuda.weights import Budget, Misfit, ResidentWeight, place_weights

SHARED_BYTES = 227 << 10


def refused(rows: int, deep: int, processors: int) -> Misfit:
    """Place one weight of four gates and return why that fails."""
    cuts = tuple(rows // 4 * k for k in range(5))
    held = [ResidentWeight("w", deep, False, cuts, deep)]
    placed = place_weights(held, 0, Budget(processors, 4, SHARED_BYTES, 48))
    assert isinstance(placed, Misfit)
    return placed


def test_more_processors_are_named_where_they_help() -> None:
    misfit = refused(4096, 1024, 16)
    assert misfit.text(128) == (
        "[cuda] the weights of the path take 1,024 KiB of each of 16 processors, 0 KiB of it "
        "padding to tiles of 16 by 16; each weight whole in 48 KiB of registers or 211 KiB of "
        "shared memory; take processors=86, or engine='batched'."
    )
    held = [ResidentWeight("w", 1024, False, (0, 1024, 2048, 3072, 4096), 1024)]
    placed = place_weights(held, 0, Budget(misfit.fitting[0], 4, SHARED_BYTES, 48))
    assert not isinstance(placed, Misfit)


def test_more_processors_than_there_are_do_not_help() -> None:
    text = refused(4096, 1024, 16).text(80)
    assert text.endswith("take engine='batched'; more processors a group do not help.")


def test_rows_that_are_padded_do_not_get_fewer() -> None:
    """A processor owns one row of each gate, and pays for 16."""
    misfit = refused(64, 16_384, 16)
    assert misfit.fitting == ()
    assert "1,024 KiB of each of 16 processors, 768 KiB of it padding" in misfit.text(128)
    assert misfit.text(128).endswith("take engine='batched'; more processors a group do not help.")
