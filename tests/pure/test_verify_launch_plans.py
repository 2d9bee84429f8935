"""The verifier of plans of launches: what it accepts, and that it refuses plans that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.pure.test_launch_plans import backward, listed, product
from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.products import few_rows_products
from vertexrt.lower.kernel import MatrixProduct, Outer, Temporary
from vertexrt.lower.launches import (
    EVERYTHING,
    BlockProduct,
    CopiedProduct,
    GroupLaunch,
    LaunchPlan,
    LibraryProduct,
)
from vertexrt.lower.verify import verify_launches


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


WRONG = {
    "a gap": (lambda: with_rows(backward(), LibraryProduct, low=300), "129 rows.* there 0 times"),
    "twice": (lambda: with_rows(backward(), LibraryProduct, low=200), "101 rows.* there 2 times"),
    "no product": (lambda: without(backward(), LibraryProduct), "there 0 times"),
    "what nothing writes": (lambda: without(listed(), GroupLaunch), "before that writes it"),
    "no copy where rows are listed": (
        lambda: without(listed(), GroupLaunch, lambda step: step.only_listed),
        "of a list.* is read; a step before that writes it",
    ),
    "blocks of two": (lambda: with_second(first=0), "blocks? from"),
    "blocks of none": (lambda: with_second(blocks=1), "blocks? from"),
    "partial sums of two": (lambda: with_second(partial=0), "what is apart"),
    "partial sums outside": (lambda: with_second(partial=1 << 20), "and within"),
    "counters of two": (lambda: with_second(counter=0), "what is apart"),
    "counters outside": (lambda: with_second(counter=LIMITS.counters), "and within"),
    "products that need each other": (reading_each_other, "two launches"),
    "temporaries outside": (
        lambda: replace(backward(), needs=(0, *backward().needs[1:])),
        "memory within",
    ),
    "temporaries of two": (
        lambda: replace(
            backward(), temporaries=(backward().temporaries[0],) * len(backward().temporaries)
        ),
        "apart from",
    ),
}


@pytest.mark.parametrize(("broken", "said"), WRONG.values(), ids=WRONG)
def test_plans_that_are_wrong_are_refused(broken: Callable[[], LaunchPlan], said: str) -> None:
    verify_launches(backward(), LIMITS.counters)
    verify_launches(split_pair(), LIMITS.counters)
    with pytest.raises(PlanError, match=said):
        verify_launches(broken(), LIMITS.counters)


GOLDEN = """\
temporaries: 0 elements a row, 0 an edge, 8192 once
kernel of products, 16 blocks of 256 threads across, 1 to 16 rows, tiles of 8 rows:
  blocks 0:8: tensor 1[row][0:64] = tensor 0[row][0:256] param 0 [64, 256]^T, rows, 4 at a time; \
4 share the depth, partial sums from 0, counters from 0
  blocks 8:16: tensor 3[row][0:64] = tensor 2[row][0:256] param 1 [64, 256]^T, rows, 4 at a time; \
4 share the depth, partial sums from 4096, counters from 4
cuBLAS, weight [64, 256], rows, above 16 rows:
  tensor 1[row][0:64] = tensor 0[row][0:256] param 0 [64, 256]^T, rows
cuBLAS, weight [64, 256], rows, above 16 rows:
  tensor 3[row][0:64] = tensor 2[row][0:256] param 1 [64, 256]^T, rows"""


def test_a_plan_prints_what_was_decided() -> None:
    assert str(split_pair()) == GOLDEN


def test_a_sum_may_add_to_a_gradient_twice() -> None:
    at = first_of(listed(), LibraryProduct, lambda step: isinstance(step.product, Outer))
    plan = replace(listed(), steps=(*listed().steps, listed().steps[at]))
    assert verify_launches(plan, LIMITS.counters) is plan
