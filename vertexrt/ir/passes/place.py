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
ON_PATH = (Stage.PATH, Stage.PATH_BACKWARD)
BELOW = "below"  # in place of an op that is about children of the layers below
BACKWARD = ("loss_scale", "seed", "gather_parents")
CHEAP = ("leaf", "scalar", "view")


def place(
    program: Program, eager: bool = True, lazy: bool = True, sums_in_tasks: bool = True
) -> Program:
    """Return the program with the stage of every node set.

    Args:
        program: F, or F and dF, with the layers of its functions.
        eager: False puts eager nodes into every task (the ablation's baseline).
        lazy: False puts lazy and final nodes into every task.
        sums_in_tasks: so are sums over rows; False leaves them for the end.
    """
    above = _above(program)
    stages = _by_dependence(program, above)
    if not eager:
        stages = [Stage.PATH if s == Stage.EAGER else s for s in stages]
    if not lazy:
        apart = () if sums_in_tasks else OVER_ROWS
        stages = [
            _in_task(s, ops) if ops.isdisjoint(apart) else Stage.FINAL
            for s, ops in zip(stages, above, strict=True)
        ]
    return _numbered(program, stages)


def _numbered(program: Program, stages: list[Stage]) -> Program:
    """Return a program whose nodes have these stages, and their origins."""
    nodes = [replace(n, stage=s) for n, s in zip(program.nodes, stages, strict=True)]
    if program.layers:
        nodes = _read_once(nodes)
    return program.with_nodes([replace(n, origin=k) for k, n in enumerate(nodes)])


def _read_once(nodes: list[Node]) -> list[Node]:
    """Let the path read a copy of what was gathered before it: a row of its own."""
    wanted = _gathered_before(nodes)
    found: list[Node] = []
    moved: list[int] = []  # where each node has gone, and its copy
    copies: list[int] = []
    for k, node in enumerate(nodes):
        places = copies if node.stage in ON_PATH else moved
        moved.append(len(found))
        found.append(node.moved(tuple(places[i] for i in node.inputs)))
        if k in wanted:
            found.append(_copy_of(node, moved[k]))
        copies.append(len(found) - 1)
    return found


def _gathered_before(nodes: list[Node]) -> set[int]:
    """Return what the path reads of what is gathered before it."""
    read = {i for node in nodes if node.stage in ON_PATH for i in node.inputs}
    return {i for i in read if nodes[i].op == "gather" and nodes[i].stage not in ON_PATH}


def _copy_of(node: Node, position: int) -> Node:
    made = attributes({"shape": node.type.shape, COPIED: True})
    return Node(
        "concat", (position,), node.type, made, node.where, node.stage, function=node.function
    )


def _name(program: Program, node: Node) -> str:
    """Return the op of a node, or BELOW."""
    if node.op in (*UP, *DOWN) and not is_within_layer(program, node):
        return BELOW
    return node.op


def _above(program: Program) -> list[frozenset[str]]:
    """Return the ops that each node depends on, its own among them."""
    found: list[frozenset[str]] = []
    for node in program.nodes:
        found.append(frozenset([_name(program, node)]).union(*(found[i] for i in node.inputs)))
    return found


def _below(program: Program) -> list[frozenset[str]]:
    """Return the ops that depend on each node, its own among them."""
    found = [frozenset([_name(program, node)]) for node in program.nodes]
    for k in range(len(program.nodes) - 1, -1, -1):
        for source in program.nodes[k].inputs:
            found[source] |= found[k]
    return found


def _by_dependence(program: Program, above: list[frozenset[str]]) -> list[Stage]:
    pairs = zip(above, _below(program), strict=True)
    stages = [_stage(ops, readers) for ops, readers in pairs]
    if not any(node.op in ("gather", "gather_all") for node in program.nodes):
        return [Stage.LAZY if s in (Stage.EAGER, Stage.PATH) else s for s in stages]
    return _sink_parts(program, _sink(program, stages))


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
