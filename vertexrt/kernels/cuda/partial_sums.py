"""Products on the path whose partial sums are added up by the groups that read them.

The warps of a processor share the depth of a product, so its result is partial sums in shared
memory. The next group adds them up where it reads them; only what others read as well, or what
belongs to edges, is added up first and stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.path_steps import (
    Step,
    groups_after,
    nodes_in,
    own_cuts,
    products_in,
    readers_of,
)
from vertexrt.lower.threads import Cuts


def added_by_groups(plan: SegmentedTask, steps: Sequence[Step], processors: int) -> set[int]:
    """List the products of a segment that only the groups right after them read, row by row."""
    found: set[int] = set()
    for number, step in enumerate(steps):
        products = products_in(step)
        after = {*nodes_in(groups_after(steps, number))}
        alike = processors == 1 or all(pieces_alike(own_cuts(plan, k)) for k in products)
        if alike and all(_stays_in(plan, k, after) for k in products):
            found |= {*products}
    return found


def _stays_in(plan: SegmentedTask, k: int, after: set[int]) -> bool:
    """Tell whether a value of rows is read by these nodes alone, element by element."""
    rows = plan.task.program.nodes[k].type.domain == Domain.VERTEX
    return rows and k in plan.task.local and _read_by(plan, k) <= after


def _read_by(plan: SegmentedTask, k: int) -> set[int]:
    """Collect what reads a value, itself where it is not read element by element."""
    nodes = plan.task.program.nodes
    found: set[int] = set()
    stack = [k]
    while stack:
        for reader in readers_of(plan, stack.pop()):
            stored = reader in plan.task.homes or reader in plan.task.local
            if OPS[nodes[reader].op].role == "scalar":
                found.add(reader)
            elif nodes[reader].op == "slice" and not stored:
                stack.append(reader)
            else:
                found.add(k)  # which is in no group
    return found


def pieces_alike(cuts: Cuts) -> int:
    """Return the elements of each piece of a value, 0 where they differ."""
    each = cuts[1]
    return each if all(b - a == each for a, b in pairwise(cuts)) else 0
