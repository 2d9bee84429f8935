"""What the instructions of scripts cost: graphs are shared out, and configurations ranked, by it.

The constants are seconds on one core of a 2-core Xeon (float32, hidden size 256); only their ratios
matter.

Source: GRNN (EuroSys 2019), section 7, and VPPS (MICRO 2018), section III-A, choose kernels by such
a model.
"""

from __future__ import annotations

MULTIPLY_ADD = 1.3e-11
WEIGHT = 5e-11  # of a matrix, to read it: a product takes at least this, however few its rows are
INSTRUCTION = 0.3e-6  # to decode it and to call its products
EXCHANGE = 1.5e-6  # to signal and to notice, for each processor of the group


def level_in_vertices(work: float) -> float:
    """Return how many vertices a level of its own is worth, however narrow it is.

    Args:
        work: multiplications a vertex, forward, back, and for the gradients of its weights.
    """
    level = 2 * (INSTRUCTION + work / 3 * WEIGHT)  # gradients are made after all levels
    return level / (INSTRUCTION + work * MULTIPLY_ADD)
