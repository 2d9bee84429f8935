"""Passes: simplify, specialise, place, stack, fuse; on functions where each can be counted.

What passes leave is told as text: the ops in order, or the products of each stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS, GRU
from tests.runs import Way
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.builder import Builder
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.simplify import ZERO_IF_ZERO, simplify, without_dropout
from vertexrt.ir.passes.specialise import Presence, find_atoms, specialise
from vertexrt.ir.passes.stack import stack_parameters, stack_rows
from vertexrt.ir.program import Node, Program, Stage
from vertexrt.ir.verify import verify


class Of(vrt.VertexFunction):
    """A function that runs a body with itself and the state of its child, and pushes a value."""

    def __init__(self, body: Callable[[Any, Any], Any], **shapes: tuple[int, ...]) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.body = body
        for name, shape in shapes.items():
            setattr(self, name, vrt.Parameter(shape))

    def forward(self) -> None:
        h = self.body(self, self.gather(0).h)
        self.scatter(h=h)
        self.push("h", h)


def with_gradient(program: Program) -> Program:
    return place(simplify(differentiate(program, {"loss"})))


def kind(program: Program, slots: set[int], *pulls: str) -> Program:
    """Specialise a placed program for vertices with these slots and pulls, whatever the stage."""
    atoms = find_atoms(program)
    present = slots | ({program.arity or 0} if slots else set())
    bits = sum(1 << s for s in present)
    bits |= sum(1 << atoms.slots + k for k, name in enumerate(atoms.pulls) if name in pulls)
    return verify(specialise(program, atoms.facts(bits, atoms.lazy)), "kind", placed=True)


def products(program: Program) -> str:
    """Name the parameters of the products of each stage: `u`, `u'` transposed, `d u` a gradient."""
    nodes, found = program.nodes, []
    for stage in Stage:
        names = []
        for node in nodes:
            if node.op == "matmul" and node.stage == stage:
                names.append(nodes[node.inputs[0]]["name"] + ("'" if node["transpose"] else ""))
            outer = node.op == "param_grad" and nodes[node.inputs[0]].op == "outer"
            if outer and node.stage == stage:
                names.append(f"d {node['name']}")
        if names:
            found.append(f"{stage.word}: {', '.join(sorted(names))}")
    return "; ".join(found)


# Simplify.


def simplified(code: str) -> tuple[Node, ...]:
    """Build F around one pushed value, which a code emits; simplify it and return the nodes."""
    b = Builder(OPS)
    names: dict[str, Any] = {"emit": b.emit, "const": b.const}
    for name in "xy":
        names[name] = b.emit("pull", name=name, shape=(4,), dtype="float")
    names["i"] = b.emit("pull", name="i", shape=(), dtype="int")
    names["o"] = b.const(0.0, (4,))
    out = eval(code, names)
    b.emit("push", out, name="out", shape=out.shape)
    return verify(simplify(Program("F", tuple(b.nodes)))).nodes


SIMPLIFIED = {
    "x + 0.0 * y": "pull push",
    "x * 1.0 / 1.0 - 0.0": "pull push",
    "0.0 - x": "pull neg push",
    'emit("where", const(2.0), x, y)': "pull push",
    'emit("where", y, x, x)': "pull push",
    'x + emit("where", y, const(0.0), const(0.0))': "pull push",
    "x * y + x * y": "pull pull mul add push",
    "x[1:3][1:2]": "pull slice push",
    'emit("concat", x, y, shape=(8,))[4:8]': "pull push",
    'emit("concat", x, y, shape=(8,))[5:7]': "pull slice push",
    'emit("concat", x[:1], x[1:], shape=(4,))': "pull push",
    # Parts that are padded with zeros, as gradients of slices are.
    'emit("concat", o[:2], o[:1], x[1:], shape=(6,)) + (emit("concat", x[:2], o, shape=(6,)) + '
    'emit("concat", o[:2], y[:1], o[:3], shape=(6,)))': "pull pull slice slice slice concat push",
    'emit("spread", const(3.0), shape=(4,))': "const push",
    'emit("reduce_sum", y) * 1.0 + 0.0 * x': "pull reduce_sum spread push",
    'emit("exp", const(0.0)) * x': "pull push",
    'emit("log", const(0.0)) + x': "pull const log add push",
}


@pytest.mark.parametrize("code", SIMPLIFIED)
def test_simplify_leaves(code: str) -> None:
    assert " ".join(n.op for n in simplified(code)) == SIMPLIFIED[code]


# Op -> it with a zero `o` [4] where it is zero with it; others take it alone.
ZEROS = {
    "matmul": 'emit("matmul", emit("param", name="w", shape=(3, 4)), o, transpose=False)',
    "outer": 'emit("outer", o, x)',
    "embed_grad": 'emit("embed_grad", i, o, shape=(7, 4))',
    "nll_grad": 'emit("nll_grad", x, i, emit("present", slot=0), const(0.0))',
    "dropout": 'emit("dropout", o, p=0.5, key=1)',
    "dropout_by": 'emit("dropout_by", o, i, p=0.5, key=1)',
    "slice": 'emit("slice", o, start=1, shape=(2,))',
    "spread": 'emit("spread", const(0.0), shape=(4,))',
    "div": 'emit("div", o, x)',
    "mul": 'emit("mul", o, x)',
}


@pytest.mark.parametrize("op", ZERO_IF_ZERO)
def test_zeros_are_propagated(op: str) -> None:
    """Each op of the table goes as soon as its operand is zero."""
    zero, push = simplified(ZEROS.get(op, f'emit("{op}", o)'))
    assert (zero.op, zero["value"], push.op) == ("const", 0.0, "push")
    assert zero.type.shape == push["shape"]


def test_inference_has_no_dropout() -> None:
    program = FUNCTIONS["dropout"][0]().trace()
    assert len(program.find("dropout")) == 4
    assert not without_dropout(program).find("dropout")


# Specialise, and place: products of a program, and of kinds of its vertices.


def test_labels_do_not_split_tasks() -> None:
    """What only lazy ops read is no part of a path kind; without the pass nothing is known."""
    program = with_gradient(FUNCTIONS["tree-lstm"][0]().trace())
    atoms = find_atoms(program)
    word, label = (1 << atoms.slots + atoms.pulls.index(n) for n in ("word", "label"))
    assert atoms.path[0] & word
    assert not atoms.path[0] & label
    assert atoms.lazy[0] & label
    plain = find_atoms(program, specialised=False)
    assert plain.path == (0,)
    assert plain.facts(word | label, plain.lazy) == Presence({}, {})
    assert atoms.describe(0b1011 & ~word | word, atoms.path).startswith("{0,1}")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_stages_that_are_turned_off_are_empty(name: str) -> None:
    """All others read no later stage, which is verified."""
    traced = FUNCTIONS[name][0]().trace()
    reals = [p.name for p in traced.pulls if p.dtype == "float"]
    pushes = {n["name"] for n in traced.nodes if n.op == "push"}
    program = simplify(differentiate(traced, pushes, reals, scaled_loss=False))
    for eager, lazy in ((True, True), (False, True), (True, False), (False, False)):
        placed = verify(place(program, eager=eager, lazy=lazy), "place", placed=True)
        stages = {n.stage for n in placed.nodes}
        assert eager or Stage.EAGER not in stages
        assert lazy or not stages & {Stage.LAZY, Stage.LAZY_BACKWARD, Stage.FINAL}


@pytest.mark.parametrize("pushes", [False, True])
def test_the_path_takes_the_parts_of_what_comes_before_it_if_nothing_else_reads_them(
    pushes: bool,
) -> None:
    """Gates of a product of the input."""

    def body(f: Any, h: Any) -> Any:
        a, b = vrt.split(f.w @ f.pull("x", (2,)), 2)
        if pushes:
            f.push("b", b)
        return vrt.tanh(a * h + b)

    program = place(Of(body, w=(6, 2)).trace())
    stages = {n.stage for n in program.nodes if n.op == "slice"}
    assert stages == {Stage.EAGER if pushes else Stage.PATH}
    assert products(program) == "eager: w"


# Stack.


def test_gates_declared_apart_are_one_product_and_one_matrix() -> None:
    stacked = verify(stack_parameters(place(GRU().trace())), "stack")
    assert stacked.stacks == (("w_r", "w_z", "w_n"), ("u_r", "u_z", "u_n"))
    assert products(stacked) == "path: u_r+u_z+u_n, v, w_r+w_z+w_n"
    net = Way().compile(GRU())
    parts = [net.executor.model.store.value(n) for n in ("u_r", "u_z", "u_n")]
    addresses = [part.__array_interface__["data"][0] for part in parts]
    assert addresses == [addresses[0] + k * parts[0].nbytes for k in range(3)]
    assert products(kind(with_gradient(stacked), {0})) == (
        "path: u_r+u_z+u_n; lazy: v; path': u_r+u_z+u_n'; final: d u_r+u_z+u_n"
    )


def test_products_in_a_row_are_not_joined() -> None:
    """W (W x) cannot be one product, whatever the weights."""
    twice = Of(lambda f, h: f.w @ (f.w @ h + 1.0), w=(3, 3))
    stages = (Stage.EAGER, Stage.PATH)
    joined = stack_rows(kind(place(twice.trace()), {0}), stages, lambda key: 1000)
    assert products(joined) == "path: w, w"


# Fuse. That steps come in an order in which values are made before they are read is verified in
# every test (`engine/verify_tasks.py`).
