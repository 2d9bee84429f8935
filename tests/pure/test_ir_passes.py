"""Passes: simplify, specialise, place, stack; on functions where each can be counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS, GRU
from tests.runs import Way
from tests.strategies import CLASSES, WORDS
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.builder import Builder
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.simplify import ZERO_IF_ZERO, simplify, without_dropout
from vertexrt.ir.passes.specialise import Presence, find_atoms, specialise
from vertexrt.ir.passes.stack import stack_parameters, stack_rows
from vertexrt.ir.program import Domain, Node, Program, Stage
from vertexrt.ir.verify import verify
from vertexrt.models.tree_lstm import TreeLSTM

FORWARD = (Stage.EAGER, Stage.PATH)


def tree_lstm() -> Program:
    return TreeLSTM(WORDS, 3, 5, CLASSES).trace()


def with_gradient(program: Program, **options: Any) -> Program:
    return place(simplify(differentiate(program, {"loss"}, **options)))


def kind(program: Program, slots: set[int], pulls: set[str]) -> Program:
    """Specialise a placed program for vertices with these slots and pulls, whatever the stage."""
    atoms = find_atoms(program)
    present = slots | ({program.arity or 0} if slots else set())
    bits = sum(1 << s for s in present)
    bits |= sum(1 << atoms.slots + k for k, name in enumerate(atoms.pulls) if name in pulls)
    return verify(specialise(program, atoms.facts(bits, atoms.lazy)), "kind", placed=True)


def products(program: Program, stages: tuple[Stage, ...]) -> dict[str, int]:
    """Count the products by parameter: matrix times vector, and outer products of its gradient."""
    nodes = program.nodes
    found: Counter[str] = Counter()
    for node in nodes:
        if node.op == "matmul" and node.stage in stages:
            found[nodes[node.inputs[0]]["name"] + ("'" if node["transpose"] else "")] += 1
        if node.op == "param_grad" and nodes[node.inputs[0]].op == "outer" and node.stage in stages:
            found["d " + node["name"]] += 1
    return dict(found)


# Simplify.


def built(make: Any) -> list[Node]:
    """Build F around one pushed value, simplify it and return the nodes."""
    b = Builder(OPS)
    x = b.emit("pull", name="x", shape=(4,), dtype="float")
    y = b.emit("pull", name="y", shape=(4,), dtype="float")
    out = make(b, x, y)
    b.emit("push", out, name="out", shape=out.shape)
    return list(verify(simplify(Program("F", tuple(b.nodes)))).nodes)


@pytest.mark.parametrize(
    ("make", "ops"),
    [
        (lambda b, x, y: x + 0.0 * y, ["pull", "push"]),
        (lambda b, x, y: x * 1.0 / 1.0 - 0.0, ["pull", "push"]),
        (lambda b, x, y: 0.0 - x, ["pull", "neg", "push"]),
        (lambda b, x, y: b.emit("where", b.const(2.0), x, y), ["pull", "push"]),
        (lambda b, x, y: b.emit("where", y, x, x), ["pull", "push"]),
        (lambda b, x, y: x + b.emit("where", y, b.const(0.0), b.const(0.0)), ["pull", "push"]),
        (lambda b, x, y: x * y + x * y, ["pull", "pull", "mul", "add", "push"]),
        (lambda b, x, y: x[1:3][1:2], ["pull", "slice", "push"]),
        (lambda b, x, y: b.emit("concat", x, y, shape=(8,))[4:8], ["pull", "push"]),
        (lambda b, x, y: b.emit("concat", x, y, shape=(8,))[5:7], ["pull", "slice", "push"]),
        (lambda b, x, y: b.emit("concat", x[:1], x[1:], shape=(4,)), ["pull", "push"]),
        (lambda b, x, y: b.emit("spread", b.const(3.0), shape=(4,)), ["const", "push"]),
        (lambda b, x, y: b.emit("exp", b.const(0.0)) * x, ["pull", "push"]),
        (lambda b, x, y: b.emit("log", b.const(0.0)) + x, ["pull", "const", "log", "add", "push"]),
    ],
)
def test_simplify_leaves(make: Any, ops: list[str]) -> None:
    assert [n.op for n in built(make)] == ops


def test_a_scalar_stands_for_each_element_also_when_it_is_simplified() -> None:
    nodes = built(lambda b, x, y: b.emit("reduce_sum", y) * 1.0 + 0.0 * x)
    assert [n.op for n in nodes] == ["pull", "reduce_sum", "spread", "push"]
    assert nodes[2].type.shape == (4,)


def test_gradients_of_slices_become_one_concat() -> None:
    b = Builder(OPS)
    parts = [b.emit("pull", name=f"x{n}", shape=(n,), dtype="float") for n in (2, 1, 3)]
    zero = [b.const(0.0, (n,)) for n in (2, 1, 3)]
    padded = [
        b.emit("concat", *(p if k == m else zero[m] for m in range(3)), shape=(6,))
        for k, p in enumerate(parts)
    ]
    total = padded[2] + (padded[0] + padded[1])
    b.emit("push", total, name="out", shape=(6,))
    assert [n.op for n in simplify(Program("F", tuple(b.nodes))).nodes][3:] == ["concat", "push"]


@pytest.mark.parametrize("op", ZERO_IF_ZERO)
def test_zeros_are_propagated(op: str) -> None:
    """Each op of the table goes as soon as its operand is zero; at other positions it stays."""
    b = Builder(OPS)
    operands = {
        "matmul": [b.emit("param", name="w", shape=(3, 4)), b.const(0.0, (4,))],
        "outer": [b.const(0.0, (3,)), b.emit("gather", slot=0, field="h", shape=(4,))],
        "embed_grad": [b.emit("pull", name="i", shape=(), dtype="int"), b.const(0.0, (4,))],
        "nll_grad": [
            b.emit("gather", slot=0, field="h", shape=(4,)),
            b.emit("pull", name="i", shape=(), dtype="int"),
            b.emit("present", slot=0),
            b.const(0.0),
        ],
        "dropout_by": [b.const(0.0, (4,)), b.emit("pull", name="i", shape=(), dtype="int")],
        "spread": [b.const(0.0)],
        "div": [b.const(0.0, (4,)), b.emit("present", slot=0)],
        "mul": [b.const(0.0, (4,)), b.emit("present", slot=0)],
    }.get(op, [b.const(0.0, (4,))])
    attrs: dict[str, Any] = {
        "matmul": {"transpose": False},
        "slice": {"start": 1, "shape": (2,)},
        "spread": {"shape": (4,)},
        "embed_grad": {"shape": (7, 4)},
        "dropout": {"p": 0.5, "key": 1},
        "dropout_by": {"p": 0.5, "key": 1},
    }.get(op, {})
    assert all(operands[k].node.op == "const" for k in ZERO_IF_ZERO[op][:1])
    out = b.emit(op, *operands, **attrs)
    b.emit("push", out, name="out", shape=out.shape)
    nodes = simplify(Program("F", tuple(b.nodes))).nodes
    assert [n.op for n in nodes] == ["const", "push"]
    assert nodes[0]["value"] == 0.0
    assert nodes[0].type.shape == out.shape


def test_inference_has_no_dropout() -> None:
    program = FUNCTIONS["dropout"][0]().trace()
    assert len(program.find("dropout")) == 4
    assert not without_dropout(program).find("dropout")


# Specialise.


def test_a_leaf_has_no_product_with_u_and_an_inner_vertex_none_with_w() -> None:
    program = with_gradient(tree_lstm())
    leaf, inner = kind(program, set(), {"word"}), kind(program, {0, 1}, set())
    assert products(leaf, FORWARD) == {"w": 1}
    assert products(inner, FORWARD) == {"u_iou": 1, "u_f": 2}
    back = (Stage.PATH_BACKWARD, Stage.FINAL)
    assert products(leaf, back) == {"w'": 1, "d w": 1}
    assert products(inner, back) == {"u_iou'": 1, "u_f'": 2, "d u_iou": 1, "d u_f": 2}


def test_a_vertex_without_a_label_has_no_classifier_gradient() -> None:
    program = with_gradient(tree_lstm())
    lazy = (Stage.LAZY, Stage.LAZY_BACKWARD)
    assert products(kind(program, {0, 1}, {"label"}), lazy) == {"v": 1, "v'": 1, "d v": 1}
    quiet = kind(program, {0, 1}, set())
    assert "d v" not in products(quiet, lazy)
    assert "v'" not in products(quiet, lazy)


def test_labels_do_not_split_tasks() -> None:
    """What only lazy ops read is no part of a path kind; without the pass nothing is known."""
    program = with_gradient(tree_lstm())
    atoms = find_atoms(program)
    word, label = (1 << atoms.slots + atoms.pulls.index(n) for n in ("word", "label"))
    assert atoms.path[0] & word
    assert not atoms.path[0] & label
    assert atoms.lazy[0] & label
    plain = find_atoms(program, specialised=False)
    assert plain.path == (0,)
    assert plain.facts(word | label, plain.lazy) == Presence({}, {})
    assert atoms.describe(0b1011 & ~word | word, atoms.path).startswith("{0,1}")


def test_a_childless_vertex_has_nothing_to_do_for_children() -> None:
    """Values per child are dropped with all that only they need, forward and back."""
    program = with_gradient(FUNCTIONS["attention"][0]().trace())
    leaf = kind(program, set(), {"word"})
    assert not any(n.type.domain == Domain.EDGE for n in leaf.nodes)
    assert products(leaf, FORWARD) == {"w": 1}
    assert any(n.type.domain == Domain.EDGE for n in kind(program, {0}, {"word"}).nodes)


# Place.


def test_stages_of_the_tree_lstm() -> None:
    program = with_gradient(tree_lstm())
    where = products_by_stage(program)
    assert where["w"] == {Stage.EAGER}
    assert where["u_iou"] == where["u_f"] == {Stage.PATH}
    assert where["v"] == {Stage.LAZY}
    assert where["u_iou'"] == where["u_f'"] == {Stage.PATH_BACKWARD}
    for name in ("d w", "d u_iou", "d u_f"):
        assert where[name] == {Stage.FINAL}
    assert where["d v"] == {Stage.LAZY}


def products_by_stage(program: Program) -> dict[str, set[Stage]]:
    found: dict[str, set[Stage]] = {}
    for stage in Stage:
        for name in products(program, (stage,)):
            found.setdefault(name, set()).add(stage)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_placed_programs_run_in_order(name: str) -> None:
    """No node reads a later stage; eager ones gather nothing; lazy ones feed no scatter."""
    traced = FUNCTIONS[name][0]().trace()
    reals = [p.name for p in traced.pulls if p.dtype == "float"]
    pushes = {n["name"] for n in traced.nodes if n.op == "push"}
    program = simplify(differentiate(traced, pushes, reals, scaled_loss=False))
    placed = verify(place(program), "place", placed=True)
    below: list[bool] = []
    for node in placed.nodes:
        below.append(node.op in ("gather", "gather_all") or any(below[i] for i in node.inputs))
        assert not (node.stage == Stage.EAGER and below[-1])
        if node.op == "scatter" and placed.find("gather") + placed.find("gather_all"):
            assert node.stage in FORWARD
    for off in ({"eager": False}, {"lazy": False}, {"eager": False, "lazy": False}):
        other = verify(place(program, **off), "place", placed=True)
        stages = {n.stage for n in other.nodes}
        if off.get("eager") is False:
            assert Stage.EAGER not in stages
        if off.get("lazy") is False:
            assert not stages & {Stage.LAZY, Stage.LAZY_BACKWARD, Stage.FINAL}


# Stack.


class Parts(vrt.VertexFunction):
    """Gates of a product of the input; `pushes` one of them as well."""

    def __init__(self, pushes: bool) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.w, self.pushes = vrt.Parameter((6, 2)), pushes

    def forward(self) -> None:
        a, b = vrt.split(self.w @ self.pull("x", (2,)), 2)
        h = vrt.tanh(a * self.gather(0).h + b)
        self.scatter(h=h)
        self.push("h", h)
        if self.pushes:
            self.push("b", b)


@pytest.mark.parametrize("pushes", [False, True])
def test_the_path_takes_the_parts_of_what_comes_before_it_if_nothing_else_reads_them(
    pushes: bool,
) -> None:
    program = place(Parts(pushes).trace())
    stages = {n.stage for n in program.nodes if n.op == "slice"}
    assert stages == {Stage.EAGER if pushes else Stage.PATH}
    (product,) = (n for n in program.nodes if n.op == "matmul")
    assert product.stage == Stage.EAGER


def test_gates_declared_apart_are_one_product_and_one_matrix() -> None:
    traced = GRU().trace()
    stacked = verify(stack_parameters(place(traced)), "stack")
    assert stacked.stacks == (("w_r", "w_z", "w_n"), ("u_r", "u_z", "u_n"))
    assert products(stacked, tuple(Stage)) == {"w_r+w_z+w_n": 1, "u_r+u_z+u_n": 1, "v": 1}
    net = Way().compile(GRU())
    parts = [net.executor.model.store.value(n) for n in ("u_r", "u_z", "u_n")]
    addresses = [part.__array_interface__["data"][0] for part in parts]
    assert addresses == [addresses[0] + k * parts[0].nbytes for k in range(3)]
    inner = kind(with_gradient(stacked), {0}, set())
    back = (Stage.PATH_BACKWARD, Stage.FINAL)
    assert products(inner, back) == {"u_r+u_z+u_n'": 1, "d u_r+u_z+u_n": 1}


def test_a_table_that_is_looked_up_joins_no_stack() -> None:
    class Shared(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": 3})
            self.table = vrt.Parameter((WORDS, 3))
            self.u = vrt.Parameter((3, 3))

        def forward(self) -> None:
            h = vrt.tanh(vrt.embed(self.table, self.pull("word")) + self.gather(0).h)
            self.scatter(h=h)
            self.push("one", self.table @ h)
            self.push("two", self.u @ h)

    assert stack_parameters(place(Shared().trace())).stacks == ()


def test_a_stack_joins_no_other_stack() -> None:
    """Two of three parameters are stacked for one vector; all three multiply another."""

    class Shared(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={})
            self.u, self.v, self.w = (vrt.Parameter((5, 3)) for _ in range(3))
            self.a, self.b = vrt.Parameter((3,)), vrt.Parameter((3,))

        def forward(self) -> None:
            first = self.u @ self.a + self.v @ self.a
            self.push(
                "loss", vrt.sum(first * (self.v @ self.b + self.w @ self.b + self.u @ self.b))
            )

    assert stack_parameters(place(Shared().trace())).stacks == (("u", "v"),)


def test_forget_gates_of_two_children_are_one_product() -> None:
    origins: dict[object, int] = {}
    program = kind(with_gradient(tree_lstm()), {0, 1}, set())
    stages = (*FORWARD, Stage.PATH_BACKWARD, Stage.FINAL)
    joined = stack_rows(program, stages, lambda key: origins.setdefault(key, 1000 + len(origins)))
    verify(joined, "stack rows", placed=True)
    assert products(joined, FORWARD) == {"u_iou": 1, "u_f": 1}
    back = (Stage.PATH_BACKWARD, Stage.FINAL)
    assert products(joined, back) == {"u_iou'": 1, "u_f'": 1, "d u_iou": 1, "d u_f": 1}
    (product,) = [
        n
        for n in joined.nodes
        if n.op == "matmul" and joined.nodes[n.inputs[0]]["name"] == "u_f" and n.stage == Stage.PATH
    ]
    assert product.type.shape == (2, 5)


def test_products_in_a_row_are_not_joined() -> None:
    """W (W x) cannot be one product, whatever the weights."""

    class Twice(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": 3})
            self.w = vrt.Parameter((3, 3))

        def forward(self) -> None:
            h = self.w @ (self.w @ self.gather(0).h + 1.0)
            self.scatter(h=h)
            self.push("loss", vrt.sum(h))

    program = kind(with_gradient(Twice().trace()), {0}, set())
    joined = stack_rows(program, FORWARD, lambda key: 1000)
    assert products(joined, FORWARD) == {"w": 2}
