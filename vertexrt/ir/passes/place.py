"""Place: decide when each node runs (Cavs section 3.4, lazy batching; the split of dF is ours).

Dependence alone decides. A node that depends on no gather and feeds the path is eager; between a
gather and a scatter it is on the path; what feeds no scatter is lazy. In dF the gather from the
parents and the scatter to the children bound the path in the same way, and what the path of dF
leaves (parameter gradients, gradients of eager values) is final.

Where functions of a network have layers (`ir.layers`), each layer has a path of its own: a gather
from the layers below bounds none. What depends on such gathers alone is eager, before the path of
its layer; gradients that go to the layers below are final, after it.
"""

from __future__ import annotations

from dataclasses import replace

from vertexrt.ir.layers import is_within_layer
from vertexrt.ir.ops import OPS, OVER_ROWS
from vertexrt.ir.program import COPIED, Node, Program, Stage, attributes

UP = ("gather", "gather_all", "present", "degree")
DOWN = ("scatter_child", "scatter_children")
GATHERS = ("gather", "gather_all")
ON_PATH = (Stage.PATH, Stage.PATH_BACKWARD)
BELOW = "below"  # in place of an op that is about children of the layers below
BACKWARD = ("loss_scale", "seed", "gather_parents")
CHEAP = ("leaf", "scalar", "view")


def place(
    program: Program, eager: bool = True, lazy: bool = True, by_units: bool = False
) -> Program:
    """Return the program with the stage of every node set.

    Args:
        program: F, or F and dF, with the layers of its functions.
        eager: False puts eager nodes into every task (the ablation's baseline).
        lazy: False puts lazy and final nodes into every task.
        by_units: processors own units of the path, not rows. So sums over rows are left for the
            end in any case; and the path finds what is pulled, given as a gradient or drawn in rows
            of its own, without an index, where it need not be made there.
    """
    own = [
        frozenset([BELOW if n.op in (*UP, *DOWN) and not is_within_layer(program, n) else n.op])
        for n in program.nodes
    ]
    above: list[frozenset[str]] = []  # the ops that each node depends on, its own among them
    for ops, node in zip(own, program.nodes, strict=True):
        above.append(ops.union(*(above[i] for i in node.inputs)))
    below = own  # and those that depend on it
    for k in range(len(program.nodes) - 1, -1, -1):
        for source in program.nodes[k].inputs:
            below[source] |= below[k]
    stages = [_stage(ops, readers) for ops, readers in zip(above, below, strict=True)]
    if any(node.op in GATHERS for node in program.nodes):
        stages = _sink_parts(program, _sink(program, stages, by_units))
    else:
        stages = [Stage.LAZY if s in (Stage.EAGER, Stage.PATH) else s for s in stages]
    if not eager:
        stages = [Stage.PATH if s == Stage.EAGER else s for s in stages]
    if not lazy:
        apart = OVER_ROWS if by_units else ()
        stages = [
            _in_task(s, ops) if ops.isdisjoint(apart) else Stage.FINAL
            for s, ops in zip(stages, above, strict=True)
        ]
    nodes = [replace(n, stage=s) for n, s in zip(program.nodes, stages, strict=True)]
    nodes = _read_once(nodes, by_units)
    return program.with_nodes([replace(n, origin=k) for k, n in enumerate(nodes)])


def _given_in_rows(node: Node) -> bool:
    """Tell whether a node is a vector that the user gives, which is found by an index."""
    return node.op in ("pull", "seed") and node.type.dtype == "float" and node.type.shape != ()


def _read_once(nodes: list[Node], given: bool) -> list[Node]:
    """Let the path read a copy of what was gathered, or given, before it: a row of its own."""
    read = {i for node in nodes if node.stage in ON_PATH for i in node.inputs}
    found: list[Node] = []
    moved: list[int] = []  # where each node has gone, and its copy
    copies: list[int] = []
    for k, node in enumerate(nodes):
        places = copies if node.stage in ON_PATH else moved
        moved.append(len(found))
        found.append(node.moved(tuple(places[i] for i in node.inputs)))
        copied = node.op == "gather" or (given and _given_in_rows(node))
        if k in read and copied and node.stage not in ON_PATH:
            made = attributes({"shape": node.type.shape, COPIED: True})
            found.append(replace(node, op="concat", inputs=(moved[k],), attrs=made))
        copies.append(len(found) - 1)
    return found


def _stage(above: frozenset[str], below: frozenset[str]) -> Stage:
    """Return when a node runs, from the ops that it depends on and those that depend on it."""
    if "gather_parents" in above:
        return Stage.FINAL if below.isdisjoint(DOWN) else Stage.PATH_BACKWARD
    if "scatter" in below:
        return Stage.EAGER if above.isdisjoint(UP) else Stage.PATH
    return Stage.LAZY_BACKWARD if "seed" in above else Stage.LAZY


def _in_task(stage: Stage, above: frozenset[str]) -> Stage:
    """Return the stage of the path in which a node runs that could run once after it."""
    if stage < Stage.LAZY:
        return stage
    after = stage > Stage.LAZY or not above.isdisjoint(BACKWARD)
    return Stage.PATH_BACKWARD if after else Stage.PATH


def _sink(program: Program, stages: list[Stage], by_units: bool) -> list[Stage]:
    """Move cheap lazy nodes to the stage of their first reader, so that fusion takes them in.

    An elementwise value that only the backward path reads (tanh', say) costs a pass over memory
    when it is made apart. Leaves go to their first reader in any case; what draws, or looks the
    user's rows up, does not where processors share the path `by_units`.
    """
    stages = list(stages)
    readers = program.consumers()
    for k in range(len(program.nodes) - 1, -1, -1):
        node, role = program.nodes[k], OPS[program.nodes[k].op].role
        if not readers[k]:
            continue
        first = min(stages[r] for r in readers[k])
        free = role == "leaf" and node.op not in GATHERS
        if by_units and (OPS[node.op].draws or _given_in_rows(node)):
            continue
        if free or (stages[k] == Stage.LAZY and role in CHEAP and first > Stage.LAZY):
            stages[k] = first
    return stages


def _sink_parts(program: Program, stages: list[Stage]) -> list[Stage]:
    """Let the path take the parts of what comes before it, where it alone reads them: all of it.

    The gates of a product of inputs, say: the product is stored as it is, and not part by part.
    """
    readers = program.consumers()

    def is_part(k: int) -> bool:
        eager = program.nodes[k].op == "slice" and stages[k] == Stage.EAGER
        return eager and {stages[r] for r in readers[k]} == {Stage.PATH}

    found = list(stages)
    for k, node in enumerate(program.nodes):
        eager = stages[k] == Stage.EAGER and OPS[node.op].role in ("scalar", "product")
        if eager and all(map(is_part, readers[k])):
            for part in readers[k]:
                found[part] = Stage.PATH
    return found
