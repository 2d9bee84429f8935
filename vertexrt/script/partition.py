"""Partition the path weights of F over the processors of a group, for a budget of each.

A weight that path stages multiply by is split by output rows, in the pieces that `ir.passes.units`
finds, so that a processor owns the same units of every gate. The forward product reads rows of W;
the backward product reads rows of W transposed, which are other elements, so that it needs a copy
of its own. The gradient of W has W's rows; beside the weights it costs no traffic, and where it
does not fit it becomes a deferred product over all rows of the minibatch, after the path.

Source: VPPS (MICRO 2018), section III: weights and their gradients stay in registers, split by
rows. Alignment over gates, shared memory as a second place, and the deferred product are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vertexrt.ir.passes.fuse import Group, Product
from vertexrt.ir.passes.segment import PATH, SegmentedTask
from vertexrt.ir.program import Stage
from vertexrt.script.budget import WORD, Budget, kib

Ranges = tuple[tuple[int, int], ...]  # first row and end


@dataclass(frozen=True, slots=True)
class Share:
    """A matrix whose rows the processors own.

    Attributes:
        name: of the parameter.
        role: "forward", "transposed" (rows are columns of the parameter) or "gradient".
        columns: elements of a row.
        cuts: first rows of the pieces that are each split evenly, and the number of rows.
        place: "registers", "memory", "deferred" or "streamed".
        why: for the last two: what did not fit.
    """

    name: str
    role: str
    columns: int
    cuts: tuple[int, ...]
    place: str = ""
    why: str = ""

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return self.cuts[-1]

    def owned(self, processor: int, processors: int) -> Ranges:
        """Return the rows of a processor: its share of each piece; neighbours are joined."""
        found: list[tuple[int, int]] = []
        for a, b in pairwise(self.cuts):
            first = a + (b - a) * processor // processors
            end = a + (b - a) * (processor + 1) // processors
            if first == end:
                continue
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], end)
            else:
                found.append((first, end))
        return tuple(found)

    def elements(self, processor: int, processors: int) -> int:
        """Count the elements that a processor owns."""
        rows = sum(end - first for first, end in self.owned(processor, processors))
        return rows * self.columns


@dataclass(frozen=True, slots=True)
class Partition:
    """Where a group keeps the path weights of F.

    Attributes:
        shares: forward, then transposed, then gradients.
        operand_bytes: memory for rows that each processor holds in full: operands of products.
        replicated: what that is, and parameters that every processor reads in full.
        elsewhere: parameters that no path product reads.
    """

    budget: Budget
    processors: int
    itemsize: int
    shares: tuple[Share, ...]
    operand_bytes: int
    replicated: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def bytes_of(self, share: Share, processor: int) -> int:
        """Return the bytes of a matrix that a processor owns."""
        return share.elements(processor, self.processors) * self.itemsize

    def bytes_in(self, place: str, processor: int) -> int:
        """Return the bytes that a processor keeps in a place."""
        total = sum(self.bytes_of(s, processor) for s in self.shares if s.place == place)
        return total + (self.operand_bytes if place == "memory" else 0)

    @property
    def registers_per_thread(self) -> int:
        """Registers of a thread that hold weights, on the processor that has most."""
        most = max(self.bytes_in("registers", r) for r in range(self.processors))
        return -(-most // (WORD * self.budget.threads))

    @property
    def fits(self) -> bool:
        """Tell whether every path weight stays with its processor; gradients may be deferred."""
        return all(s.place != "streamed" for s in self.shares)


def make_partition(
    tasks: Sequence[SegmentedTask],
    processors: int,
    budget: Budget,
    itemsize: int = 4,
    tile_rows: int = 8,
) -> Partition:
    """Give every path weight, and its gradient, a place on the processors of a group.

    Weights come first, forward ones before transposed ones, in the order of declaration; registers
    are filled before memory. A weight that fits in neither is streamed: read from beyond the budget
    for every tile. A gradient that fits in neither is deferred.

    Args:
        tasks: segmented task programs of all kinds, as `segment_tasks` returns them.
        processors: of the group.
        itemsize: bytes of an element.
        tile_rows: rows of a tile, for the operands that every processor holds in full.
    """
    drafts = _weights(tasks)
    trained = _trained(tasks)
    drafts += [
        Share(s.name, "gradient", s.columns, s.cuts)
        for s in drafts
        if s.role == "forward" and s.name in trained
    ]
    operands = _operands(tasks)
    widest = max((width for _, width in operands), default=0)
    operand_bytes = 2 * widest * tile_rows * itemsize if processors > 1 else 0  # one in flight
    left = {
        "registers": budget.register_bytes,
        "memory": budget.memory_bytes - operand_bytes,
    }
    shares = []
    for draft in drafts:
        need = max(draft.elements(r, processors) for r in range(processors)) * itemsize
        room = [place for place in left if need <= left[place]]
        if room:
            place, why = room[0], ""
            left[place] -= need
        else:
            place = "deferred" if draft.role == "gradient" else "streamed"
            names = {"registers": "registers", "memory": budget.memory}
            rest = [f"{kib(max(n, 0))} of {names[p]}" for p, n in left.items() if _has(budget, p)]
            why = f"needs {kib(need)}, left are {' and '.join(rest)}"
        shares.append(Share(draft.name, draft.role, draft.columns, draft.cuts, place, why))
    params = {n: s for t in tasks for n, s in t.task.program.params.items()}
    split = {s.name for s in shares}
    full = _read_in_full(tasks) if processors > 1 else []
    rows = [f"{name} [{width}], {tile_rows} rows" for name, width in operands]
    return Partition(
        budget,
        processors,
        itemsize,
        tuple(shares),
        operand_bytes,
        tuple(rows if processors > 1 else []) + tuple(f"parameter {n}" for n in full),
        tuple(n for n in params if n not in split and n not in full),
    )


def _has(budget: Budget, place: str) -> bool:
    return place == "memory" or budget.registers > 0


def _weights(tasks: Sequence[SegmentedTask]) -> list[Share]:
    """Collect the weights of path products: forward ones, then transposed ones."""
    pieces: dict[tuple[str, bool], set[int]] = {}
    columns: dict[tuple[str, bool], int] = {}
    for segmented in tasks:
        task = segmented.task
        nodes, params = task.program.nodes, task.program.params
        if task.stage not in PATH:
            continue
        for step in task.steps:
            if isinstance(step, Group) or nodes[step.node].op != "matmul":
                continue
            node = nodes[step.node]
            matrix = nodes[node.inputs[0]]
            outputs = matrix.type.shape[1 if node["transpose"] else 0]
            # Of several rows of operands each has the same cuts: those of the first count.
            cuts = {c for c in segmented.cuts.get(step.node, (0, outputs)) if c <= outputs}
            start = 0
            for name in matrix["name"].split("+"):
                m, n = params[name]
                key = (name, bool(node["transpose"]))
                if node["transpose"]:
                    mine = cuts | {0, n}
                else:
                    mine = {c - start for c in cuts if start <= c <= start + m} | {0, m}
                    start += m
                pieces.setdefault(key, set()).update(mine)
                columns[key] = m if node["transpose"] else n
    return [
        Share(name, role, columns[name, back], tuple(sorted(pieces[name, back])))
        for back, role in ((False, "forward"), (True, "transposed"))
        for name in (tasks[0].task.program.params if tasks else ())
        if (name, back) in pieces
    ]


def _trained(tasks: Sequence[SegmentedTask]) -> set[str]:
    """Name the parameters that get a gradient."""
    return {
        node["name"]
        for t in tasks
        if t.task.stage == Stage.FINAL
        for node in t.task.program.nodes
        if node.op == "param_grad"
    }


def _operands(tasks: Sequence[SegmentedTask]) -> list[tuple[str, int]]:
    """List the operands of path products by what they are: name, most elements a row."""
    found: dict[str, int] = {}
    for segmented in tasks:
        task = segmented.task
        nodes = task.program.nodes
        if task.stage not in PATH:
            continue
        for step in task.steps:
            if isinstance(step, Product) and nodes[step.node].op == "matmul":
                weight, x = nodes[step.node].inputs
                turned = " transposed" if nodes[step.node]["transpose"] else ""
                name = f"operand of {nodes[weight]['name']}{turned}"
                found[name] = max(found.get(name, 0), nodes[x].type.size)
    return sorted(found.items())


def _read_in_full(tasks: Sequence[SegmentedTask]) -> list[str]:
    """Name the parameters that every processor reads in full on the path, other than by products.

    These are read by values that all processors make for themselves.
    """
    found: dict[str, None] = {}
    for segmented in tasks:
        nodes = segmented.task.program.nodes
        if segmented.task.stage not in PATH:
            continue
        for k in sorted(segmented.whole):
            for i in nodes[k].inputs:
                if nodes[i].op == "param" and nodes[k].op != "matmul":
                    found[nodes[i]["name"]] = None
    return list(found)
