"""What is decided of functions and of products, as golden text: groups, tensors, launches.

`python -m tests.pure.test_decided` writes `decided.txt` anew: a decision that changes shows there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as every
from pathlib import Path

import numpy as np

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests import typed_models as typed
from tests.functions import FUNCTIONS
from tests.paper_device import PaperDevice, on_paper
from tests.pure.test_launch_plans import BLOCK, FLOATS, plans, product
from tests.pure.test_script import of_one_group
from tests.runs import OFF, Way, use_of
from tests.strategies import with_pulls
from vertexrt.ir.passes.publish import publish_products
from vertexrt.ir.pretty import format_program
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.task_launches import LaunchLowering, few_rows_products, tiled_product
from vertexrt.lower.kernel import Temporary
from vertexrt.scheduler.batch_shape import shape_of
from vertexrt.script.isa import disassemble

TEXTS = Path(__file__).with_name("decided.txt")
HIDDEN = 4
CHAINS = [[[-1], [0], [1]], [[-1], [0]]]
SIZES = "512x2048 1024x256 2048x512 2048x516 650x2600 650x640 200x10000"
PROCESSORS = (0, LIMITS.blocks, LIMITS.in_clusters)


class Shared(vrt.VertexFunction):
    """One weight for two slots and for a parameter, another for all children, others for one."""

    def __init__(self) -> None:
        super().__init__(arity=3, state={"h": HIDDEN})
        self.w, self.once, self.added = (vrt.Parameter((HIDDEN, HIDDEN)) for _ in range(3))
        self.u = vrt.Parameter((2, HIDDEN))
        self.b = vrt.Parameter((HIDDEN,))

    def forward(self) -> None:
        left, right, kids = self.gather(0).h, self.gather(2).h, self.gather_all().h
        x = vrt.sigmoid(self.w @ left) * vrt.tanh(self.w @ right) + self.w @ self.b
        x = x + self.once @ left + self.added @ (left + right)
        h = vrt.tanh(x + vrt.sum(vrt.softmax(self.u @ kids, axis="children")[0] * kids))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def kinds(function: vrt.VertexFunction | vrt.Model, batch: vrt.GraphBatch, way: Way) -> str:
    """Tell what becomes of the kinds of a batch, and of the batch."""
    net = way.compile(function)
    net.step(batch, vrt.SGD(0.0))
    return net.explain().partition("each stage\n")[2] + "\n" + net.explain_batch(batch)


def of_function(name: str, way: Way) -> str:
    make, arity = FUNCTIONS[name]
    graph: list[list[int]] = [[], [], [0, 1], [2, 0], [-1, 3]]
    return kinds(make(), with_pulls([[children[:arity] for children in graph]]), way)


def launches(hidden: int, block: int) -> str:
    """Tell what a GPU launches for a Tree-LSTM; a persistent kernel has blocks of its own."""
    whole = (str(plan) for each in plans(hidden, block).values() for plan in each)
    lines = (line.strip() for text in whole for line in text.splitlines())
    told = (
        line for line in lines if line.startswith(("temporaries", "kernel", "cuBLAS", "blocks"))
    )
    return "\n".join(dict.fromkeys(told))


def inputs_of_a_layer(hidden: int, layers: int) -> str:
    """Tell what a persistent kernel makes of the inputs of the top layer before its path."""
    form = Form("LSTM", hidden, layers)
    model = compile_on(PaperDevice(), Stack(form).trace(), Way(dtype="float32").options()).model
    batch = stack_batch(form, np.zeros((1, 3, hidden), np.float32))
    (run,) = model.prepare(use_of("inference", model.function), batch)
    *_, eager = (task for task in run.variant.tasks if task.stage == Stage.EAGER)
    return str(LaunchLowering(eager, run.variant.binding, FLOATS, BLOCK).plan())


def of_products() -> str:
    """Tell how blocks share products, and deep ones of many rows."""
    lines = []
    for size, processors in every(SIZES.split(), PROCESSORS):
        wide, deep = map(int, size.split("x"))
        made = product(wide, deep, wide % 4 > 0)
        steps = few_rows_products([made], Temporary(0, 0, 0), processors)
        many = tiled_product(made.product, None, Temporary(0, 0, 0), BLOCK, FLOATS)
        lines.append(f"{size} on {processors}: {many.splits} splits of many rows")
        lines += map(str, steps)
    return "\n".join(lines)


def of_ways() -> str:
    """Tell which ways the cost model ranks first, of an inference and of a step."""
    lines = []
    for cell, hidden, count in every(("LSTM", "GRU"), (64, 512, 1024), (1, 16, 64)):
        form = Form(cell, hidden)
        chooser = on_paper(Stack(form), None, of_device=132, engine="auto").executor.model.chooser
        shape = shape_of(stack_batch(form, np.zeros((count, 50, hidden), np.float32)))
        first = [str(way) for trains in (False, True) for way in chooser.rank(trains, shape)[:2]]
        lines.append(f"{count} of {cell} {hidden}: {'; '.join(first)}")
    return "\n".join(lines)


TOLD: dict[str, Callable[[], str]] = {
    "a GRU over two children": lambda: of_function("gru", Way()),
    "an LSTM along chains": lambda: kinds(FUNCTIONS["lstm-lm"][0](), with_pulls(CHAINS), Way()),
    "attention, without passes": lambda: of_function("attention", Way(passes=OFF)),
    "several types": lambda: kinds(typed.Translator(), typed.translations(), Way()),
    "what children publish": lambda: format_program(publish_products(Shared().trace())),
    "launches of 18": lambda: launches(18, 0),
    "launches of 1024": lambda: launches(1024, 0),
    "launches of 800 in a persistent kernel": lambda: launches(800, BLOCK),
    "launches of 1024 in a persistent kernel": lambda: launches(1024, BLOCK),
    "inputs of a layer": lambda: inputs_of_a_layer(256, 1),
    "inputs of a small layer over another": lambda: inputs_of_a_layer(64, 2),
    "products": of_products,
    "scripts of tasks": lambda: disassemble(of_one_group(0)[0][0]),
    "scripts of tiles": lambda: disassemble(of_one_group(1)[0][1]),
    "ways of layers on a GPU": of_ways,
}


def told() -> str:
    return "".join(f"== {name} ==\n{tell()}\n\n" for name, tell in TOLD.items())


def test_decisions_are_as_they_were() -> None:
    assert told() == TEXTS.read_text(encoding="utf-8")


if __name__ == "__main__":
    TEXTS.write_text(told(), encoding="utf-8")
