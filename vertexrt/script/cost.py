"""What an instruction costs, from what its segment does to a row and to an edge.

The constants are declared here and nowhere else: stages that are split by rows are balanced with
them, graphs are shared out with them, and configurations are ranked with them. They are seconds on
one core of a 2-core Xeon (float32, hidden size 256); only their ratios matter.

Source: GRNN (EuroSys 2019), section 7, and VPPS (MICRO 2018), section III-A, choose kernels by such
a model; to balance instructions with it is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import SUMS, Segment, SegmentedTask
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain

MULTIPLY_ADD = 1.3e-11
WEIGHT = 5e-11  # of a matrix, to read it: a product takes at least this, however few its rows are
ELEMENT = 5e-10  # that an op of a fused loop makes or copies
INSTRUCTION = 0.3e-6  # to decode it and to call its products
EXCHANGE = 1.5e-6  # to signal and to notice, for each processor of the group


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that an instruction takes for each of its rows and edges."""

    row: float
    edge: float


def cost_of(task: SegmentedTask, segment: Segment) -> Cost:
    """Add up what one processor alone would take for a segment."""
    nodes = task.task.program.nodes
    row, edge = ELEMENT, 0.0  # a row costs something, whatever is done to it
    for step in segment.steps:
        for k in step.nodes if isinstance(step, Group) else (step.node,):
            node = nodes[k]
            inputs = [nodes[i].type for i in node.inputs]
            seconds = 0.0
            if node.op == "matmul":
                times = node.type.shape[0] if len(node.type.shape) > 1 else 1
                seconds = inputs[0].size * times * MULTIPLY_ADD
            elif node.op == "outer":
                seconds = node.type.size * MULTIPLY_ADD
            elif not is_free(node):
                made = 1 if node.op in SUMS else node.type.size  # of a sum: what each row adds
                seconds = max(made, *(t.size for t in inputs if t.domain != Domain.PARAM), 1)
                seconds *= ELEMENT
            if Domain.EDGE in (node.type.domain, *(t.domain for t in inputs)):
                edge += seconds
            else:
                row += seconds
    return Cost(row, edge)


def level_in_vertices(work: float) -> float:
    """Return how many vertices a level of its own is worth, however narrow it is.

    Args:
        work: multiplications a vertex, forward, back, and for the gradients of its weights.
    """
    level = 2 * (INSTRUCTION + work / 3 * WEIGHT)  # gradients are made after all levels
    return level / (INSTRUCTION + work * MULTIPLY_ADD)
