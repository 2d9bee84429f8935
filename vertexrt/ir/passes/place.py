"""Place: decide when each node runs (Cavs section 3.4, lazy batching; the split of dF is ours).

Dependence alone decides. A node that depends on no gather and feeds the path is eager; between a
gather and a scatter it is on the path; what feeds no scatter is lazy. In dF the gather from the
parents and the scatter to the children bound the path in the same way, and what the path of dF
leaves behind (parameter gradients, gradients of eager values) is final.
"""

from __future__ import annotations

from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.program import Program, Stage

UP = ("gather", "gather_all", "present", "degree")
DOWN = ("scatter_child", "scatter_children")
CHEAP = ("leaf", "scalar", "view")


def place(program: Program, eager: bool = True, lazy: bool = True) -> Program:
    """Return the program with the stage of every node set.

    Args:
        program: F, or F and dF.
        eager: False puts eager nodes into every task (the ablation's baseline).
        lazy: False puts lazy and final nodes into every task.
    """
    stages = _by_dependence(program)
    if not eager:
        stages = [Stage.PATH if s == Stage.EAGER else s for s in stages]
    if not lazy:
        behind = _after(program, "gather_parents")
        backward = _backward_nodes(program)
        moved = {Stage.LAZY: Stage.PATH, Stage.FINAL: Stage.PATH_BACKWARD}
        moved[Stage.LAZY_BACKWARD] = Stage.PATH_BACKWARD
        stages = [
            Stage.PATH_BACKWARD if moved.get(s) and (behind[k] or backward[k]) else moved.get(s, s)
            for k, s in enumerate(stages)
        ]
    placed = zip(program.nodes, stages, strict=True)
    return program.with_nodes([replace(n, stage=s, origin=k) for k, (n, s) in enumerate(placed)])


def _after(program: Program, *ops: str) -> list[bool]:
    """Mark the nodes that depend on one of these ops."""
    found: list[bool] = []
    for node in program.nodes:
        found.append(node.op in ops or any(found[i] for i in node.inputs))
    return found


def _before(program: Program, *ops: str) -> list[bool]:
    """Mark the nodes that one of these ops depends on."""
    found = [node.op in ops for node in program.nodes]
    for k in range(len(program.nodes) - 1, -1, -1):
        if found[k]:
            for source in program.nodes[k].inputs:
                found[source] = True
    return found


def _backward_nodes(program: Program) -> list[bool]:
    return _after(program, "loss_scale", "seed", "gather_parents")


def _by_dependence(program: Program) -> list[Stage]:
    gathered = _after(program, *UP)
    scattered = _before(program, "scatter")
    from_parents = _after(program, "gather_parents")
    to_children = _before(program, *DOWN)
    seeded = _after(program, "seed")
    stages: list[Stage] = []
    for k in range(len(program.nodes)):
        if from_parents[k]:
            stages.append(Stage.PATH_BACKWARD if to_children[k] else Stage.FINAL)
        elif scattered[k]:
            stages.append(Stage.PATH if gathered[k] else Stage.EAGER)
        else:
            stages.append(Stage.LAZY_BACKWARD if seeded[k] else Stage.LAZY)
    if not any(node.op in ("gather", "gather_all") for node in program.nodes):
        return [Stage.LAZY if s in (Stage.EAGER, Stage.PATH) else s for s in stages]
    return _sink(program, stages)


def _sink(program: Program, stages: list[Stage]) -> list[Stage]:
    """Move cheap lazy nodes to the stage of their first reader, so that fusion takes them in.

    An elementwise value that only the backward path reads (tanh', say) costs a pass over memory
    when it is made apart. Leaves go to their first reader in any case.
    """
    stages = list(stages)
    readers = program.consumers()
    for k in range(len(program.nodes) - 1, -1, -1):
        node, role = program.nodes[k], OPS[program.nodes[k].op].role
        if not readers[k]:
            continue
        first = min(stages[r] for r in readers[k])
        free = role == "leaf" and node.op not in ("gather", "gather_all")
        if free or (stages[k] == Stage.LAZY and role in CHEAP and first > Stage.LAZY):
            stages[k] = first
    return stages
