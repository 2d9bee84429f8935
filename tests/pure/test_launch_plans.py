"""What a GPU launches for a task program: what is decided, and that wrong plans are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import pytest

from tests.paper_device import PaperDevice
from tests.runs import Way, use_of
from tests.strategies import CLASSES, WORDS
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.instruction import FIRST_OP
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.persistent import outside_path
from vertexrt.kernels.cuda.task_launches import LaunchLowering, few_rows_products, tiled_product
from vertexrt.lower import launches
from vertexrt.lower.kernel import (
    MatrixProduct,
    Memory,
    Operand,
    Outer,
    PlaceRows,
    Temporary,
    ValuePlace,
)
from vertexrt.lower.launches import (
    EVERYTHING,
    BlockProduct,
    CopiedProduct,
    LaunchPlan,
    LibraryProduct,
)
from vertexrt.lower.verify import verify_launches
from vertexrt.models import TreeLSTM

FLOATS, BLOCK = 4, 256
TREE = [[], [], [0, 1]]
PULLS = {"word": [1, 2, -1], "label": [0, 1, 2]}


@cache
def plans(hidden: int, block: int = 0, vector: int = FLOATS) -> dict[Stage, list[LaunchPlan]]:
    """Lower the task programs of a training Tree-LSTM, by stage."""
    function = TreeLSTM(WORDS, hidden, hidden, CLASSES)
    options = Way(dtype="float32").options()
    model = compile_on(PaperDevice(), function.trace(), options).model
    batch = GraphBatch.from_graphs([InputGraph.from_children(TREE, PULLS)])
    (run,) = model.prepare(use_of("training", model.function), batch)
    found: dict[Stage, list[LaunchPlan]] = {}
    for task in run.variant.tasks:
        plan = LaunchLowering(task, run.variant.binding, vector, block).plan()
        found.setdefault(task.stage, []).append(plan)
    return found


def steps(plan: LaunchPlan, kind: type[Any]) -> list[Any]:
    """Return the steps of one kind."""
    return [step for step in plan.steps if isinstance(step, kind)]


def listed() -> LaunchPlan:
    """Return the launches of the leaves' final stage, which pack rows of a list."""
    return plans(8)[Stage.FINAL][0]


def backward(block: int = 0) -> LaunchPlan:
    """Return the launches of the path back of inner vertices: two products in one kernel."""
    return max(plans(8, block)[Stage.PATH_BACKWARD], key=lambda plan: len(str(plan)))


def test_splits_of_many_rows_have_partial_sums() -> None:
    wide = product(64, 4096).product
    step = tiled_product(wide, None, Temporary(0, 0, 0), BLOCK, FLOATS)
    plan = LaunchPlan((step,), needs=astuple(step.end))
    assert verify_launches(plan, LIMITS.counters) is plan
    with pytest.raises(PlanError, match="memory within"):
        verify_launches(replace(plan, needs=(64, 0, 0)), LIMITS.counters)


def product(wide: int, deep: int, transposed: bool = False, number: int = 0) -> CopiedProduct:
    """Return a product of the rows of a tensor."""
    m, n = (deep, wide) if transposed else (wide, deep)
    x, y = (
        Operand(ValuePlace(Memory.TENSOR, at, size, PlaceRows.ROW), None)
        for at, size in ((2 * number, deep), (2 * number + 1, wide))
    )
    return CopiedProduct(MatrixProduct(number, transposed, x, y, False, 1, m, n, ((0, wide),)))


def test_steps_of_a_persistent_kernel_that_differ_by_words_share_a_call() -> None:
    steps = [("copy", (3, 1)), ("add", (2,)), ("copy", (4, 1))]
    text = "\n".join(outside_path(steps, (), (0, 1)))
    first, second, third = range(FIRST_OP, FIRST_OP + 3)
    assert f"case {first}: case {third}: copy(step_arguments<Args<2>>());" in text
    assert f"case {second}: add(step_arguments<Args<1>>());" in text
    assert "STEP_WORDS[] = {3, 1, 2, 4, 1, 0};" in text
    assert "STEP_FIRST[] = {0, 2, 3, 5};" in text


# The verifier of plans.


def shared(*parts: BlockProduct, elements: int = 1 << 20) -> LaunchPlan:
    """Return a kernel of such products, for any number of rows."""
    of = few_rows_products([part.of for part in parts], Temporary(0, 0, 0))[0]
    rows = replace(of.rows, high=LIMITS.few_rows)
    few = replace(of, parts=parts, rows=rows, elements=elements)
    above = replace(rows, low=rows.high, high=EVERYTHING)
    rest = (LibraryProduct(part.of.product, above) for part in parts)
    return LaunchPlan((few, *rest), needs=(0, 0, elements))


def split_pair() -> LaunchPlan:
    """Return a kernel of two products whose depth blocks share."""
    pair = [product(64, 256), product(64, 256, number=1)]
    few = few_rows_products(pair, Temporary(0, 0, 0))[0]
    assert all(part.splits > 1 for part in few.parts)
    return shared(*few.parts, elements=few.elements)


def with_second(**changes: int) -> LaunchPlan:
    """Return that kernel with something else about its second product."""
    first, second = split_pair().steps[0].parts  # type: ignore[union-attr]
    elements = split_pair().needs[2]
    return shared(first, replace(second, **changes), elements=elements)


def first_of(plan: LaunchPlan, kind: type[Any], wanted: Callable[[Any], bool]) -> int:
    """Return where the first such step of a kind is."""
    return next(k for k, s in enumerate(plan.steps) if isinstance(s, kind) and wanted(s))


def without(
    plan: LaunchPlan, kind: type[Any], wanted: Callable[[Any], bool] = lambda step: True
) -> LaunchPlan:
    """Return a plan without such a step."""
    at = first_of(plan, kind, wanted)
    return replace(plan, steps=plan.steps[:at] + plan.steps[at + 1 :])


def with_rows(plan: LaunchPlan, kind: type[Any], **bounds: int) -> LaunchPlan:
    """Return a plan whose first step of a kind is there for other rows."""
    at = first_of(plan, kind, lambda step: True)
    step = plan.steps[at]
    changed = replace(step, rows=replace(step.rows, **bounds))  # type: ignore[union-attr, arg-type]
    return replace(plan, steps=(*plan.steps[:at], changed, *plan.steps[at + 1 :]))


def with_number(product: MatrixProduct, number: int) -> CopiedProduct:
    """Return a product of the rows of another tensor."""
    place = replace(product.x.place, number=number)
    return CopiedProduct(replace(product, x=replace(product.x, place=place)))


def reading_each_other() -> LaunchPlan:
    """Return a kernel whose second product reads what the first one writes."""
    first, second = split_pair().steps[0].parts  # type: ignore[union-attr]
    of = with_number(second.of.product, first.of.product.y.place.number)
    return shared(first, replace(second, of=of), elements=split_pair().needs[2])


# Plans that are wrong, and a part of what is said of them.
WRONG = {
    # Products that are there for some rows twice, or not at all.
    "with_rows(backward(), LibraryProduct, low=300)": "129 rows.* there 0 times",
    "with_rows(backward(), LibraryProduct, low=200)": "101 rows.* there 2 times",
    "without(backward(), LibraryProduct)": "there 0 times",
    # What nothing has written before.
    "without(listed(), GroupLaunch)": "before that writes it",
    "without(listed(), GroupLaunch, lambda step: step.only_listed)": (
        "of a list.* is read; a step before that writes it"
    ),
    "reading_each_other()": "two launches",
    # What two products have at once, or is outside of what there is.
    "with_second(first=0)": "blocks? from",
    "with_second(blocks=1)": "blocks? from",
    "with_second(partial=0)": "what is apart",
    "with_second(partial=1 << 20)": "and within",
    "with_second(counter=0)": "what is apart",
    "with_second(counter=LIMITS.counters)": "and within",
    "replace(backward(), needs=(0, *backward().needs[1:]))": "memory within",
    "replace(backward(), temporaries=backward().temporaries[:1] * len(backward().temporaries))": (
        "apart from"
    ),
}


@pytest.mark.parametrize("code", WRONG)
def test_plans_that_are_wrong_are_refused(code: str) -> None:
    verify_launches(backward(), LIMITS.counters)
    verify_launches(split_pair(), LIMITS.counters)
    with pytest.raises(PlanError, match=WRONG[code]):
        verify_launches(eval(code, {**vars(launches), **globals()}), LIMITS.counters)


def test_a_sum_may_add_to_a_gradient_twice() -> None:
    at = first_of(listed(), LibraryProduct, lambda step: isinstance(step.product, Outer))
    plan = replace(listed(), steps=(*listed().steps, listed().steps[at]))
    assert verify_launches(plan, LIMITS.counters) is plan
