"""Reverse-mode differentiation: append dF to F, in the same IR.

Gather and scatter are each other's adjoints, and so are pull and push (Cavs section 3.1): the
gradient of a scattered value is gathered from the parents; the gradient of a gathered value is
scattered to that child. Every vjp is a rule of the op table. Parameter gradients are effects that
add up, one for each use of a parameter.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

from vertexrt.errors import PlanError
from vertexrt.ir.builder import Builder, Site, Value
from vertexrt.ir.ops import OPS, on_children
from vertexrt.ir.program import (
    Domain,
    Node,
    Program,
    attributes,
    depending,
    slots_with_gradient,
)

DERIVED = "the derivative of "  # before the user's line, where a node of dF says whence it comes


def differentiate(
    program: Program,
    d_pushes: Collection[str],
    pulls: Collection[str] = (),
    scaled_loss: bool = True,
    weighted: bool = False,
) -> Program:
    """Append the backward pass to a forward program.

    Args:
        program: F.
        d_pushes: names of pushes whose gradient is given, by the array passed to `backward`.
        scaled_loss: the gradient of the push `loss` is the loss scale of the step instead.
        weighted: a vertex may stand for several, so that its loss counts `weight` times.
        pulls: names of real pulled values whose gradient is wanted.

    Returns: F and dF in one program. Gradients leave by the effects `param_grad`, `pull_grad`,
        `scatter_child` (slot by slot) and `scatter_children` (from `gather_all`).
    Raises: PlanError, when a gradient comes to an op that depends on a parameter or a wanted pull
        and has no vjp.
    """
    return _Backward(program, d_pushes, pulls, scaled_loss, weighted).run()


@dataclass
class _Backward:
    """dF under construction.

    Attributes:
        written: (function, field, slot) with a gradient; slot -1: all children.
        together: what leaves by the edges of several relations, a row for each edge: function,
            effect and its attributes -> gradients so far, each 0 on edges of other relations.
    """

    program: Program
    d_pushes: Collection[str]
    pulls: Collection[str]
    scaled_loss: bool
    weighted: bool
    gradients: dict[int, list[Value]] = field(default_factory=dict)
    written: set[tuple[int, str, int]] = field(default_factory=set)
    together: dict[tuple[int, str, tuple[tuple[str, Any], ...]], list[Value]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.b = Builder(OPS, self.program.nodes)
        self.readers = {
            op: {(n.function, n["field"]) for n in self.program.nodes if n.op == op}
            for op in ("gather", "gather_all")
        }
        self.depends = self._differentiable()

    def run(self) -> Program:
        for index in range(len(self.program.nodes) - 1, -1, -1):
            node = self.program.nodes[index]
            self.b.where, self.b.function = f"{DERIVED}{node.where}", node.function
            if OPS[node.op].role == "effect":
                self._seed(node)
            elif index in self.gradients:
                self._propagate(index, node, reduce(add, self.gradients.pop(index)))
        # Gradients of the edges of several relations leave together, added up.
        for (function, effect, attrs), parts in self.together.items():
            self.b.where, self.b.function = parts[0].node.where, function
            self.b.emit(effect, reduce(add, parts), **dict(attrs))
        # `gather_parents` sums over all edges of a child, so each edge must have been written:
        # zeros, through slots and fields that no gradient reached.
        for node in [n for n in self.b.nodes if n.op == "gather_parents"]:
            for function in range(max(len(self.program.sites), 1)):
                self.b.function = function
                self._fill(node)
        return self.program.with_nodes(self.b.nodes)

    def _differentiable(self) -> list[bool]:
        """Mark what depends on a trained parameter or a wanted pull, also through states."""
        nodes, carried = self.program.nodes, set[str]()  # fields that do
        while True:
            found = depending(nodes, partial(self._is_wanted, fields=carried))
            now = {n["field"] for n in nodes if n.op == "scatter" and found[n.inputs[0]]}
            if now == carried:
                return found
            carried = now

    def _is_wanted(self, node: Node, fields: Collection[str]) -> bool:
        if node.op in ("pull", "edge_pull"):
            return node["edge" if node.has("edge") else "name"] in self.pulls
        if node.op in ("gather", "gather_all"):
            return node["field"] in fields
        return node.op == "param" and node["name"] not in self.program.frozen

    def _seed(self, node: Node) -> None:
        """Start from what a push or a scatter hands to the outside."""
        (source,) = node.inputs
        if not self.depends[source]:
            return
        if node.op == "push" and node["name"] in self.d_pushes:
            if node["name"] != "loss" or not self.scaled_loss:
                d = self.b.emit("seed", name=node["name"], shape=node["shape"])
            else:
                d = self.b.emit("loss_scale")
                d = d * self.b.emit("weight") if self.weighted else d
            self._add(source, d)
        elif node.op == "scatter":
            slots, every = self._tensors(node["field"])
            if slots or every:
                d = self.b.emit(
                    "gather_parents",
                    field=node["field"],
                    shape=node["shape"],
                    slots=slots,
                    every=every,
                )
                self._add(source, d)

    def _tensors(self, field: str) -> tuple[bool, bool]:
        """Tell in which tensors parents leave gradients of a field: of slots, of all children.

        There are both only where one function reads the same edges both ways, so that an edge has
        two gradients. Else there is one tensor, in whichever way each function reads.
        """
        by_slot, by_all = (
            {function for function, f in self.readers[op] if f == field}
            for op in ("gather", "gather_all")
        )
        both = bool(by_slot & by_all) and not self.program.sites
        return bool(by_slot) and (not by_all or both), bool(by_all)

    def _add(self, index: int, d: Value) -> None:
        """Add a contribution to the gradient of a node, summed to the node's shape."""
        node = self.program.nodes[index]
        if not self.depends[index]:
            return
        if d.shape != node.type.shape and not node.type.shape:
            d = self.b.emit("reduce_sum", d)
        if node.op == "param":
            summed = d.node.op in ("outer", "embed_grad")
            total = d if summed else self.b.emit("sum_rows", on_children(self.b, d))
            self.b.emit("param_grad", total, name=node["name"])
        else:
            self.gradients.setdefault(index, []).append(d)

    def _propagate(self, index: int, node: Node, d: Value) -> None:
        if node.op in ("gather", "gather_all"):
            self._leave_to_child(node, d)
        elif node.op in ("pull", "edge_pull"):
            d = on_children(self.b, d)
            self._leave(node, "pull_grad", d, name=node["name"], shape=d.shape)
        elif self.depends[index]:
            rule = OPS[node.op].vjp
            if rule is None:
                raise PlanError.at(
                    "autodiff",
                    f"a gradient comes to %{index} = {node.op}, made at {node.where}",
                    "an op with a vjp on the way to a parameter or a wanted pull",
                    "report this as a bug",
                )
            x = tuple(self.b.value(i) for i in node.inputs)
            given = rule(Site(self.b, node, x, self.b.value(index)), d)
            for source, part in zip(node.inputs, given, strict=True):
                if part is not None:
                    self._add(source, part)

    def _leave_to_child(self, node: Node, d: Value) -> None:
        """Leave the gradient of what was gathered to the child, or to all of them."""
        every, field, slot = node.op == "gather_all", node["field"], node["slot"]
        if every and self.program.relations > 1:
            self.written.add((node.function, field, -1))
            of = {"field": field, "slot": slot, "every": True, "shape": d.shape}
            self._leave(node, "scatter_children", on_children(self.b, d), **of)
        else:
            self._to_children(every, field, slot, d)

    def _leave(self, node: Node, effect: str, d: Value, **attrs: Any) -> None:
        """Hand a gradient to the outside; that of a value per child together with others there."""
        if node.type.domain != Domain.EDGE or self.program.relations == 1:
            self.b.emit(effect, d, **attrs)
        else:
            self.together.setdefault((node.function, effect, attributes(attrs)), []).append(d)

    def _fill(self, node: Node) -> None:
        """Leave zeros where a function leaves no gradient of a field."""
        field, here, arity = node["field"], self.b.function, self.program.arity or 0
        zero = self.b.const(0.0, node.type.shape)
        for slot in slots_with_gradient(self.program, here, node):
            if (here, field, slot) in self.written:
                continue
            if slot >= 0:
                self._to_children(False, field, slot, zero)
            else:
                self._to_children(True, field, arity, self.b.emit("to_edges", zero))

    def _to_children(self, every: bool, field: str, slot: int, d: Value) -> None:
        """Leave a gradient on the edge to the child in a slot, or on the edges to all children."""
        by_slot, by_all = self._tensors(field)
        self.written.add((self.b.function, field, -1 if every else slot))
        op = "scatter_children" if every else "scatter_child"
        tensor = every if by_slot and by_all else by_all
        self.b.emit(op, d, field=field, slot=slot, shape=d.shape, every=tensor)
