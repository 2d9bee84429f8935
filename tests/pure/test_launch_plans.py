"""What a GPU launches for a task program: what is decided, and that wrong plans are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.paper_device import PaperDevice
from tests.runs import Way, use_of
from tests.strategies import CLASSES, WORDS
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.instruction import FIRST_OP
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.launch_text import write_launches
from vertexrt.kernels.cuda.outside_path import OutsideStep, outside_path
from vertexrt.kernels.cuda.products import few_rows_products, tiled_product
from vertexrt.kernels.cuda.steps import Kernel
from vertexrt.kernels.cuda.task_launches import lower_launches
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
    ChildRows,
    CopiedProduct,
    FewRowsProducts,
    FinishedRows,
    GroupLaunch,
    LaunchPlan,
    LibraryProduct,
    LookupSum,
    RowsGiven,
    RowSum,
    TiledProduct,
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
        plan = lower_launches(task, run.variant.binding, vector, block)
        found.setdefault(task.stage, []).append(plan)
    return found


def steps(plan: LaunchPlan, kind: type[Any]) -> list[Any]:
    """Return the steps of one kind."""
    return [step for step in plan.steps if isinstance(step, kind)]


def gradients(plan: LaunchPlan) -> list[TiledProduct]:
    """Return the gradients of weights that a persistent kernel makes."""
    return [step for step in steps(plan, TiledProduct) if isinstance(step.product, Outer)]


def listed() -> LaunchPlan:
    """Return the launches of the leaves' final stage, which pack rows of a list."""
    return plans(8)[Stage.FINAL][0]


def backward(block: int = 0) -> LaunchPlan:
    """Return the launches of the path back of inner vertices: two products in one kernel."""
    return max(plans(8, block)[Stage.PATH_BACKWARD], key=lambda plan: len(str(plan)))


def test_products_of_few_rows_are_one_kernel_and_scatter_by_themselves() -> None:
    few = steps(backward(), FewRowsProducts)
    assert [(s.rows.low, s.rows.high, s.tile_rows) for s in few] == [
        (0, LIMITS.few_rows, LIMITS.few_tile),
        (LIMITS.few_rows, LIMITS.shared_rows, LIMITS.tile),
        (LIMITS.shared_rows, LIMITS.many_rows, LIMITS.tile),
    ]
    above = steps(backward(), LibraryProduct)
    assert {s.rows.low for s in above} == {LIMITS.many_rows}
    assert {s.product for s in above} == {part.of.product for s in few for part in s.parts}


def test_the_library_takes_more_rows_of_heavy_weights() -> None:
    every = [p for x in plans(1024).values() for p in x]
    few = [s for p in every for s in steps(p, FewRowsProducts)]
    highs = {
        s.rows.high: max(part.of.product.m * part.of.product.n for part in s.parts) for s in few
    }
    assert highs[LIMITS.heavy_rows] >= LIMITS.heavy > highs[LIMITS.shared_rows]
    above = {s.rows.low for p in every for s in steps(p, LibraryProduct) if s.rows}
    assert above == {LIMITS.heavy_rows, LIMITS.shared_rows}


def test_in_a_persistent_kernel_heavy_weights_have_a_product_of_many_rows_sooner() -> None:
    few = [s for x in plans(1024, BLOCK).values() for p in x for s in steps(p, FewRowsProducts)]
    weights = [{p.of.product.m * p.of.product.n for p in s.parts} for s in few]
    heavy = [s for s, sizes in zip(few, weights, strict=True) if max(sizes) >= LIMITS.heavy]
    light = [s for s in few if s not in heavy]
    assert heavy
    assert max(s.rows.high for s in heavy) == LIMITS.heavy_alone
    assert max(s.rows.high for s in light) == LIMITS.shared_rows


def inputs_of_a_layer(hidden: int, layers: int = 1) -> LaunchPlan:
    """Return what a persistent kernel makes of the inputs of the top layer before its path."""
    form = Form("LSTM", hidden, layers)
    model = compile_on(PaperDevice(), Stack(form).trace(), Way(dtype="float32").options()).model
    batch = stack_batch(form, np.zeros((1, 3, hidden), np.float32))
    (run,) = model.prepare(use_of("inference", model.function), batch)
    *_, eager = (task for task in run.variant.tasks if task.stage == Stage.EAGER)
    return lower_launches(eager, run.variant.binding, FLOATS, BLOCK)


@pytest.mark.parametrize(("hidden", "rows"), [(64, LIMITS.light_rows), (256, LIMITS.shared_rows)])
def test_tiles_for_few_rows_take_more_rows_of_small_weights(hidden: int, rows: int) -> None:
    *_, last = steps(inputs_of_a_layer(hidden), FewRowsProducts)
    assert last.rows.high == rows


def test_products_read_the_rows_of_a_pull_where_they_lie_and_add_biases() -> None:
    plan = inputs_of_a_layer(64)
    few = steps(plan, FewRowsProducts)
    assert {part.of.source for s in few for part in s.parts} == {RowsGiven(0)}
    for target in [part.of.target for s in few for part in s.parts]:
        assert isinstance(target, FinishedRows)
        assert len(target.statements) == 3  # two biases are added, and the sum is stored
    # Only products of more rows need a copy before, and a sum after them.
    groups = steps(plan, GroupLaunch)
    assert [x.rows.low for x in groups] == [LIMITS.light_rows] * 2


def test_products_read_the_rows_of_the_layer_below_where_they_lie() -> None:
    plan = inputs_of_a_layer(64, 2)
    few = steps(plan, FewRowsProducts)
    (source,) = {part.of.source for s in few for part in s.parts}
    assert isinstance(source, ChildRows)
    assert source.listed
    assert [x.rows.low for x in steps(plan, GroupLaunch)] == [LIMITS.light_rows] * 2


def test_a_warp_makes_two_columns_where_blocks_of_one_take_another_turn() -> None:
    def columns(wide: int, deep: int, processors: int) -> int:
        step, *_ = few_rows_products([product(wide, deep)], Temporary(0, 0, 0), processors)
        return step.warp_columns

    assert columns(1024, 256, LIMITS.blocks) == 1
    assert columns(1024, 256, LIMITS.in_clusters) == 2
    assert columns(768, 256, LIMITS.in_clusters) == 1
    assert columns(2048, 512, LIMITS.in_clusters) == 2  # three turns would take longer than two
    assert columns(2048, 516, LIMITS.in_clusters) == 1  # two rows of the weight do not fit
    assert columns(4096, 1024, LIMITS.blocks) == 1


def test_in_a_persistent_kernel_a_warp_makes_a_column_of_the_fewest_rows() -> None:
    (forward,) = (p for p in plans(8, BLOCK)[Stage.PATH] if steps(p, FewRowsProducts))
    first, *_ = steps(forward, FewRowsProducts)
    assert first.warp_columns == 1
    assert first.rows.high == LIMITS.warp_rows
    assert steps(forward, TiledProduct)
    assert not any(steps(p, LibraryProduct) for x in plans(8, BLOCK).values() for p in x)


@pytest.mark.parametrize(("block", "most"), [(0, LIMITS.most_blocks), (BLOCK, LIMITS.blocks)])
def test_many_blocks_share_deep_products_where_they_run_side_by_side(block: int, most: int) -> None:
    few = [s for x in plans(800, block).values() for p in x for s in steps(p, FewRowsProducts)]
    parts = [part for s in few if s.rows.high == LIMITS.shared_rows for part in s.parts]
    deep = [part for part in parts if part.of.product.deep >= 2 * LIMITS.deep_split]
    assert deep
    for part in deep:
        tiles = (4 if block else 2) * -(-part.of.product.wide // LIMITS.tile)
        assert part.splits == 1 or tiles * part.splits <= most
        depth = part.of.product.deep / part.splits
        assert depth < 2 * LIMITS.deep_split or tiles * (part.splits + 1) > most
    assert any(part.splits > 2 for part in deep) == (block == 0)


def test_products_whose_rows_are_no_whole_vectors_load_less_at_once() -> None:
    few = [s for x in plans(18).values() for p in x for s in steps(p, FewRowsProducts)]
    assert {part.width for step in few for part in step.parts} == {1, 2}
    assert {part.width for step in steps(backward(), FewRowsProducts) for part in step.parts} == {4}


def test_short_results_of_odd_sizes_are_the_librarys_where_there_are_many() -> None:
    every = [p for x in plans(6).values() for p in x]
    few = {s.product: s.rows for p in every for s in steps(p, TiledProduct) if s.is_short}
    assert {3, 6} <= {p.wide for p in few}
    many = {s.product: s.rows for p in every for s in steps(p, LibraryProduct)}
    for p, rows in few.items():
        assert rows.low == 0
        assert (above := many[p]) is not None
        assert above.low == rows.high == LIMITS.shared_rows


def test_sums_over_rows_have_partial_sums_of_their_own() -> None:
    final = plans(8, BLOCK)[Stage.FINAL]
    outer = [s for p in final for s in gradients(p)]
    assert all(s.end.once - s.partial.once >= s.splits * s.product.m * s.product.n for s in outer)
    assert len({s.partial for s in gradients(final[1])}) == 2
    sums = [s for p in final for s in steps(p, RowSum)]
    assert {s.elements for s in sums} == {LIMITS.chunks * 4 * 8}
    assert [s.width for p in final for s in steps(p, LookupSum)] == [FLOATS]


def test_rows_of_a_list_are_copied_once() -> None:
    """Though a product and a gradient read the same ones."""
    for plan in (p for x in plans(8, BLOCK).values() for p in x):
        copies = [s.kernel.parts for s in steps(plan, GroupLaunch) if s.only_listed]
        assert len(copies) == len(set(copies))
        packed = {s.product.x.packed for s in gradients(plan)}
        assert len(packed) <= len(copies) + 1


def test_deep_products_of_many_rows_are_shared_out() -> None:
    """Where few tiles across would leave most of a device idle."""
    sizes = [(200, 10000), (650, 10000), (10000, 200), (2600, 1024), (8, 8192)]
    start = Temporary(0, 0, 0)
    steps = [tiled_product(product(*s).product, None, start, BLOCK, FLOATS) for s in sizes]
    assert [step.splits for step in steps] == [8, 4, 1, 1, 1]
    step = tiled_product(product(64, 4096).product, None, start, BLOCK, FLOATS)
    plan = LaunchPlan((step,), needs=(4 * 64, 0, 0))
    assert verify_launches(plan, LIMITS.counters) is plan
    with pytest.raises(PlanError, match="memory within"):
        verify_launches(replace(plan, needs=(64, 0, 0)), LIMITS.counters)


@pytest.mark.parametrize("block", [0, BLOCK])
def test_each_step_is_printed_as_one_kernel(block: int) -> None:
    for plan in (p for x in plans(8, block).values() for p in x):
        for step, printed in zip(plan.steps, write_launches(plan).steps, strict=True):
            assert isinstance(printed, Kernel) != isinstance(step, LibraryProduct)


def product(wide: int, deep: int, transposed: bool = False, number: int = 0) -> CopiedProduct:
    """Return a product of the rows of a tensor."""
    m, n = (deep, wide) if transposed else (wide, deep)
    x, y = (
        Operand(ValuePlace(Memory.TENSOR, at, size, PlaceRows.ROW), None)
        for at, size in ((2 * number, deep), (2 * number + 1, wide))
    )
    return CopiedProduct(MatrixProduct(number, transposed, x, y, False, 1, m, n, ((0, wide),)))


def test_deep_products_are_shared_by_blocks_where_there_are_few_tiles() -> None:
    def splits(wide: int, deep: int, form: int) -> int:
        pair = [product(wide, deep), product(wide, deep, number=1)]
        return few_rows_products(pair, Temporary(0, 0, 0))[form].parts[0].splits

    few, _, many = range(3)
    assert splits(512, 2048, few) == 8
    assert splits(2048, 512, few) == 2
    assert splits(4096, 512, few) == 1
    assert splits(32, 64, few) == 1
    assert splits(512, 2048, many) == 1


def test_a_depth_that_is_much_is_shared_by_blocks_of_two_turns_of_the_processors() -> None:
    def splits(wide: int, deep: int) -> int:
        step = few_rows_products([product(wide, deep, True)], Temporary(0, 0, 0), LIMITS.blocks)[-1]
        assert step.rows.high == LIMITS.shared_rows
        (part,) = step.parts
        return part.splits

    assert splits(650, 2600) == 3  # 84 tiles of 128 rows, on 128 processors
    assert splits(650, 640) == 1  # a second turn would take longer than the depth
    assert splits(800, 3200) == 1  # nor do two splits of 100 tiles end sooner, in two turns
    assert splits(200, 800) == 4  # in one turn


def test_steps_of_a_persistent_kernel_that_differ_by_words_share_a_call() -> None:
    steps = [OutsideStep("copy", (3, 1)), OutsideStep("add", (2,)), OutsideStep("copy", (4, 1))]
    text = "\n".join(outside_path(steps, (), (), (0, 1)))
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
        verify_launches(eval(code), LIMITS.counters)


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
