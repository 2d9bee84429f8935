"""What an ablation turns off is off, and results stay: launch by launch, an instruction a step."""

from dataclasses import replace

import pytest

import vertexrt as vrt
from tests.agreement import agree
from tests.backend.test_persistent import generated
from tests.devices import on_gpus
from tests.functions import FUNCTIONS
from tests.runs import OFF, Way, assert_same, train
from tests.strategies import with_pulls
from tests.watched_backend import watched
from vertexrt.engine.explain import training_use
from vertexrt.engine.variant import Passes
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.script.assemble import Batch, assemble

STEPWISE = Passes(segment=False)
OP_BY_OP = Passes(segment=False, fuse=False)


def batch_of(name: str) -> GraphBatch:
    return generated("chain" if name == "lstm-lm" else "tree", 2)


def instructions(way: Way, function: vrt.VertexFunction, batch: GraphBatch) -> int:
    """Count the instructions of a processor's script for a step."""
    model = way.model(function)
    (run,) = model.prepare(training_use(model), batch)
    shape, s = run.ready.shape, run.layout.schedule
    assert shape is not None
    launched = Batch(run.layout.table, s.edge_ptr, s.every_ptr, s.child_row)
    return assemble(shape, launched, way.processors or 1, 0).words.shape[1]


@pytest.mark.parametrize(
    ("name", "processors"), [("tree-lstm", 2), ("lstm-lm", 1), ("elementwise", 3)]
)
def test_instructions_of_single_steps_compute_the_same(name: str, processors: int) -> None:
    make, _ = FUNCTIONS[name]
    batch = batch_of(name)
    counts = []
    for passes in (Passes(), STEPWISE, OP_BY_OP, replace(OFF, segment=False)):
        way = Way(engine="persistent", processors=processors, passes=passes)
        agree(make, batch, way)
        counts.append(instructions(way, make(), batch))
    assert counts[0] < counts[1] < counts[2]


@on_gpus
@pytest.mark.parametrize("name", ["tree-lstm", "tied", "no-gather", "pass-on", "both"])
def test_gradients_come_after_the_path_of_a_group(name: str, device: str) -> None:
    """A processor has units of the path, so it has no sums over rows, where nothing is lazy."""
    make, arity = FUNCTIONS[name]
    lists = [[], [0], [1]] if arity == 1 else [[], [], [0, 1], [], [2, 3]]
    batch, passes = with_pulls([lists] * 3), Passes(lazy=False)
    agree(make, batch, Way(device, engine="persistent", processors=2, passes=passes))


def test_each_launch_is_a_call_without_the_compiled_loop() -> None:
    make, _ = FUNCTIONS["tree-fc"]
    batch = batch_of("tree-fc")
    loop, loop_calls = watched(Way("cpu"), make())
    one_by_one, calls = watched(Way("cpu", passes=Passes(loop=False)), make())
    assert_same(train(one_by_one, batch), train(loop, batch), 0.0)
    (launches,) = loop_calls.tables
    assert launches > 1
    assert calls.tables == [1] * launches


def test_a_device_refuses_what_it_has_no_other_form_of() -> None:
    function = FUNCTIONS["tree-fc"][0]
    for passes in (Passes(hold=False), Passes(cuts=False)):
        with pytest.raises(UsageError, match=r"with device='cpu'; .* the only form there; leave"):
            vrt.compile(function(), device="cpu", passes=passes)
    with pytest.raises(UsageError, match=r"on a GPU; .* the only form there; leave"):
        vrt.compile(function(), device="cuda", passes=Passes(loop=False))
