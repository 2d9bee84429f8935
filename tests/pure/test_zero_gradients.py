"""Which gradients lie on the edges of a network: none that are zero for all parents of a layer."""

from __future__ import annotations

from collections import defaultdict

import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack
from tests.read_by_others import Forks, cell_too, every, marks, marks_of_every, one, signs
from tests.typed_models import UpDown
from vertexrt.engine.variant import Passes, Use, make_variant
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.ir.program import PARENTS
from vertexrt.kernels.reference.backend import ReferenceBackend

ONE = "fork.c own, fork.h, reader.h; fork leaves c, h; reader leaves fork.h, h"
LAYERS = "0.h, 1.h, 2.h; 0 leaves h; 1 leaves 0.h, h; 2 leaves 1.h, h"  # of which all is read

TOGETHER = "functions that run together sum over all edges"
# A network -> the fields whose gradients are summed, of parents of their own layer or of those
# above where not of all; what each function leaves for its children; fields that get zeros.
NETWORKS: dict[str, tuple[vrt.Model, str]] = {
    "the cell of a lower layer has a gradient from the next step alone": (
        Stack(Form("LSTM", 4, 3)),
        "0.c own, 0.h, 1.c own, 1.h, 2.c, 2.h; 0 leaves c, h; 1 leaves 0.h, c, h; "
        "2 leaves 1.h, c, h",
    ),
    "what only the layer above reads has none from the next step": (
        Stack(Form("LSTM", 4, 2, residual=True)),
        "0.c own, 0.h above, 0.inner own, 1.c, 1.inner; 0 leaves c, inner; 1 leaves 0.h, c, inner",
    ),
    "layers of GRU": (Stack(Form("GRU", 4, 3)), LAYERS),
    "layers of RNN": (Stack(Form("RNN", 4, 3)), LAYERS),
    "one field is read": (Forks(one), ONE),
    "the cell is read too": (
        Forks(cell_too),
        "fork.c, fork.h, reader.h; fork leaves c, h; reader leaves fork.c, fork.h, h",
    ),
    "all children are read": (Forks(every), ONE),
    "marks are read": (
        Forks(marks),
        "fork.c own, fork.h own, fork.mark above, reader.h; fork leaves c, h; "
        "reader leaves fork.mark, h",
    ),
    "a mark has no gradient": (Forks(signs), ONE),
    "readers without slots sum over the same edges": (
        Forks(marks_of_every, chain=False),
        "fork.c own, fork.h own, fork.mark above; fork leaves c, h; reader leaves fork.mark",
    ),
    # Of what a vertex of the way down leaves, `c` is zero, but a leaf has it from phrases too.
    "a slot of two layers keeps what one of them sums": (
        UpDown(),
        "down.d, leaf.c, leaf.c of phrase own, leaf.h, leaf.h of phrase; down leaves d, leaf.c, "
        "leaf.h; phrase leaves leaf.c, leaf.h; zeros for leaf.c",
    ),
    TOGETHER: (
        Stack(Form("LSTM", 4, 2)),
        "0.c, 0.h, 1.c, 1.h; 0 leaves c, h; 1 leaves 0.c, 0.h, c, h; zeros for 0.c",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_who_leaves_a_gradient_follows_from_what_is_read(name: str) -> None:
    model, found = NETWORKS[name]
    function = stack_parameters(place(model.trace()))
    params = [*function.params, *("+".join(names) for names in function.stacks)]
    use, passes = Use(frozenset({"loss"}), loss=True), Passes(layers=name != TOGETHER)
    program = make_variant(function, use, ReferenceBackend(), params, passes).program
    names = [site.name.removeprefix("layers.") for site in program.sites]
    sums, zeros = [], ""
    left: dict[str, set[str]] = defaultdict(set)
    for node in program.nodes:
        if not node.has("field"):
            continue
        owner, field = names[node.function], node["field"].removeprefix("layers.")
        if node.op == "gather_parents":
            of = "" if field.startswith(owner) else f" of {owner}"
            parents = f" {node[PARENTS]}" if node.has(PARENTS) else ""
            sums.append(field + of + parents)
        elif node.op in ("scatter_child", "scatter_children"):
            left[owner].add(field.removeprefix(f"{owner}."))
            if program.nodes[node.inputs[0]].op == "const":
                zeros += f"; zeros for {field}"
    told = ", ".join(sorted(sums))
    for owner in sorted(left):
        told += f"; {owner} leaves {', '.join(sorted(left[owner]))}"
    assert told + zeros == found

    # Function 1 is of layer 2: above layers 0 and 1 its edges come, above layer 2 none.
