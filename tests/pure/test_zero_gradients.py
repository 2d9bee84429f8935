"""Which gradients lie on the edges of a network: none that are zero for all parents of a layer."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack
from tests.read_by_others import (
    Body,
    Forks,
    cell_too,
    every,
    marks,
    marks_of_every,
    one,
    signs,
)
from tests.typed_models import UpDown
from vertexrt.engine.variant import Passes, Use, make_variant
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.ir.program import PARENTS, Program
from vertexrt.kernels.reference.backend import ReferenceBackend
from vertexrt.scheduler.rows import ABOVE_EDGE, EDGE_PTR, number_rows, part_of

EFFECTS = ("scatter_child", "scatter_children")


def trained(model: vrt.Model, layers: bool = True) -> Program:
    """Return the program of a network and of its gradient."""
    function = stack_parameters(place(model.trace()))
    params = [*function.params, *("+".join(names) for names in function.stacks)]
    use = Use(frozenset({"loss"}), loss=True)
    passes = Passes(layers=layers)
    return make_variant(function, use, ReferenceBackend(), params, passes).program


def summed(program: Program) -> dict[str, str]:
    """Return the fields with a gradient, each with which parents leave it: "" for all."""
    nodes = [program.nodes[k] for k in program.find("gather_parents")]
    return {n["field"]: n[PARENTS] if n.has(PARENTS) else "" for n in nodes}


def left(program: Program) -> set[tuple[str, str]]:
    """Return which functions leave gradients of which fields."""
    names = [site.name for site in program.sites]
    return {(names[n.function], n["field"]) for n in program.nodes if n.op in EFFECTS}


def zeros(program: Program) -> list[str]:
    """Return the fields of which a function leaves zeros."""
    effects = [n for n in program.nodes if n.op in EFFECTS]
    return [n["field"] for n in effects if program.nodes[n.inputs[0]].op == "const"]


def test_the_cell_of_a_lower_layer_has_a_gradient_from_the_next_step_alone() -> None:
    program = trained(Stack(Form("LSTM", 4, 3)))
    of_top = {"layers.2.c": "", "layers.2.h": ""}  # which no layer reads
    of_others = {f"layers.{k}.c": "own" for k in range(2)} | {f"layers.{k}.h": "" for k in range(2)}
    assert summed(program) == of_top | of_others
    own = {(f"layers.{k}", f"layers.{k}.{field}") for k in range(3) for field in "ch"}
    assert left(program) == own | {("layers.1", "layers.0.h"), ("layers.2", "layers.1.h")}
    assert not zeros(program)


def test_what_only_the_layer_above_reads_has_no_gradient_from_the_next_step() -> None:
    program = trained(Stack(Form("LSTM", 4, 2, residual=True)))
    lower = {name: of for name, of in summed(program).items() if name.startswith("layers.0")}
    assert lower == {"layers.0.c": "own", "layers.0.inner": "own", "layers.0.h": "above"}
    assert {name for owner, name in left(program) if owner == "layers.1"} == {
        "layers.0.h", "layers.1.c", "layers.1.inner",
    }  # fmt: skip
    assert not zeros(program)


@pytest.mark.parametrize(
    ("body", "sums"),
    [
        (one, {"fork.c": "own", "fork.h": "", "reader.h": ""}),
        (cell_too, {"fork.c": "", "fork.h": "", "reader.h": ""}),
        (every, {"fork.c": "own", "fork.h": "", "reader.h": ""}),
        (marks, {"fork.c": "own", "fork.h": "own", "fork.mark": "above", "reader.h": ""}),
        (signs, {"fork.c": "own", "fork.h": "", "reader.h": ""}),  # no gradient of a mark
    ],
)
def test_who_leaves_a_gradient_follows_from_what_is_read(body: Body, sums: dict[str, str]) -> None:
    program = trained(Forks(body))
    assert summed(program) == sums
    assert not zeros(program)


def test_readers_that_have_no_slots_sum_over_the_same_edges() -> None:
    program = trained(Forks(marks_of_every, chain=False))
    assert summed(program) == {"fork.c": "own", "fork.h": "own", "fork.mark": "above"}
    assert not zeros(program)


def test_a_slot_that_holds_vertices_of_two_layers_keeps_what_one_of_them_sums() -> None:
    """Of what a vertex of the way down leaves, `c` is zero, but a leaf has it from phrases too."""
    program = trained(UpDown())
    nodes = [program.nodes[k] for k in program.find("gather_parents")]
    names = [site.name for site in program.sites]
    found = {(names[n.function], n["field"][-1]): n.has(PARENTS) for n in nodes}
    assert found == {
        ("leaf", "c"): False, ("leaf", "h"): False, ("phrase", "c"): True, ("phrase", "h"): False,
        ("down", "d"): False,
    }  # fmt: skip
    assert zeros(program) == ["leaf.c"]


def test_functions_that_run_together_sum_over_all_edges() -> None:
    program = trained(Stack(Form("LSTM", 4, 2)), layers=False)
    assert set(summed(program).values()) == {""}
    assert zeros(program) == ["layers.0.c"]


@pytest.mark.parametrize("cell", ["GRU", "RNN"])
def test_where_all_is_read_nothing_changes(cell: str) -> None:
    program = trained(Stack(Form(cell, 4, 3)))
    assert set(summed(program).values()) == {""}
    assert not zeros(program)


def test_edges_are_numbered_layer_by_layer() -> None:
    """Two chains of three, one above the other, and a layer of which no vertex is there."""
    none, functions = np.zeros(0, np.int64), np.array([0, 0, 0, 1, 1, 1], np.int32)
    children = [[-1], [0], [1], [0, -1], [1, 3], [2, 4]]
    ptr = np.cumsum([0, *map(len, children)]).astype(np.int32)
    child = np.concatenate(children).astype(np.int32)
    kinds, level = functions.copy(), np.arange(6, dtype=np.int32)
    ints, extents, _ = number_rows(
        ptr, child, functions, none, np.array([0, 2, 1]), none.astype(np.int32), kinds, 2, level, 0,
        np.zeros((0, 6), np.int32), none, np.zeros(0), False, False, False,
    )  # fmt: skip
    edges = part_of(ints, extents, EDGE_PTR)
    assert part_of(ints, extents, ABOVE_EDGE).tolist() == [edges[3], edges[3], 9]
    # Function 1 is of layer 2: above layers 0 and 1 its edges come, above layer 2 none.
