"""Explain what became of a vertex function, and what a batch of it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.devices import KERNEL_FORMS
from vertexrt.engine.executor import Executor
from vertexrt.engine.explain_host import Explanation
from vertexrt.engine.model import BATCHED, CompiledModel
from vertexrt.engine.variant import PATH_STAGES, Kind, Use, Variant, ending_with
from vertexrt.errors import UsageError, number_of
from vertexrt.graph import GraphBatch
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.store import LAZY_STAGES
from vertexrt.ir.pretty import format_node, format_program
from vertexrt.ir.program import Domain, Program, Stage
from vertexrt.kernels.backend import HostBackend, host_backend
from vertexrt.kernels.layout import EDGES, PROGRAM, ROWS


def training_use(model: CompiledModel) -> Use:
    """Return training on the loss, as the last step that was compiled, or inference without one."""
    pushes = frozenset(n["name"] for n in model.function.nodes if n.op == "push")
    if "loss" in pushes:
        use = Use(frozenset({"loss"}), loss=True)
        met = [known for known, _ in model.variants if ending_with(known, None) == use]
        return met[-1] if met else use
    return Use(pushes)


def explain_function(executor: Executor, kernels: str = "") -> str:
    """Print F, dF with the stage of every node, and the kernels of the kinds met so far.

    Args:
        kernels: one of KERNEL_FORMS: print each task program as kernel IR, or as a CPU's LLVM.
    Raises: UsageError for another form.
    """
    if kernels not in ("", *KERNEL_FORMS):
        expected = f"one of {', '.join(KERNEL_FORMS)}"
        action = "choose one of these, or leave it out"
        raise UsageError.at("explain", f"kernels={kernels!r}", expected, action)
    model, explanation = executor.model, executor.explanation()
    use = training_use(model)  # as it has been compiled so far, or for the batched engine
    met = [variant for (known, _), variant in model.variants.items() if known == use]
    variant = met[-1] if met else model.variant(use, BATCHED)
    lines = ["F", format_program(model.function), ""]
    lines += ["F and dF, each node with the stage in which it runs", _stages(variant.program)]
    if variant.path_kinds:
        lines += ["", "Kinds of vertices, and the kernels of each stage"]
        atoms = variant.atoms
        for word, kinds, masks, stages in (
            ("path", variant.path_kinds, atoms.path, PATH_STAGES),
            ("lazy", variant.lazy_kinds, atoms.lazy, LAZY_STAGES),
        ):
            for kind in kinds.values():
                lines.append(f"  {word} kind {atoms.describe(kind.bits, masks)}")
                lines += _kind(variant, kind, stages, explanation)
        lines += ["", "Dynamic tensors: elements a row of each vertex (V) or edge (E), and life"]
        lines += [f"  {spec.describe()}" for spec in variant.table]
        if kernels:
            products = variant.passes.products
            host = host_backend("cpu", model.store.dtype, products) if kernels == "llvm" else None
            lines += _kernels(variant, explanation, host)
    else:
        lines += ["", "No batch yet, so no kind of vertex is known."]
    return "\n".join(lines)


def _kernels(variant: Variant, explanation: Explanation, host: HostBackend | None) -> list[str]:
    """Print what each task program is lowered to; tensors, parameters and pulls have numbers.

    Args:
        host: the CPU's, for LLVM; None for the kernel IR.
    """
    named = {
        "tensor": [spec.describe().split("  ")[0] for spec in variant.table],
        "param": list(variant.binding.params),
        "pull": list(variant.binding.ints),
    }
    lines = ["", "Kernels: what each task program is lowered to"]
    for what, names in named.items():
        lines += [f"  {what} {number}: {name}" for number, name in enumerate(names)]
    for number, task in enumerate(variant.tasks):
        lines += ["", f"  task program {number} ({task.stage.word})"]
        if host is None:
            text = explanation.kernels(variant, number)
        else:
            text = host.text(task, variant.binding, f"program{number}")
        lines += [f"    {line}" for line in text.splitlines()]
    return lines


def _stages(program: Program) -> str:
    lines = []
    for stage in Stage:
        mine = [k for k, n in enumerate(program.nodes) if n.stage == stage]
        if mine:
            products = sum(OPS[program.nodes[k].op].role == "product" for k in mine)
            lines.append(f"  {stage.word}: {len(mine)} nodes, {products} products")
            lines += ["    " + format_node(k, program.nodes[k]) for k in mine]
    return "\n".join(lines)


def _kind(
    variant: Variant, kind: Kind, stages: Sequence[Stage], explanation: Explanation
) -> list[str]:
    lines = []
    for stage in stages:
        number = kind.programs[stage]
        if number < 0:
            continue
        task = variant.tasks[number]
        lines.append(f"    {stage.word} (task program {number})")
        steps = [_step(task, step) for step in task.steps]
        lines += ["      " + text for text in (*steps, *explanation.program(variant, number))]
    return lines


def _step(task: TaskProgram, step: Group | Product) -> str:
    nodes = task.program.nodes
    if isinstance(step, Group):
        names = [nodes[k].op for k in step.nodes]
        what = "edges" if step.domain == Domain.EDGE else "rows"
        return f"fused over {what}: {' '.join(names)}"
    node = nodes[step.node]
    shapes = " ".join(str(nodes[i].type) for i in node.inputs)
    return f"product: {node.op} {shapes} -> {node.type}"


def explain_batch(executor: Executor, batch: GraphBatch) -> str:
    """Print what training on a batch costs, and how processors share it, where there are any."""
    model = executor.model
    use = training_use(model)
    runs = model.prepare(use, batch)
    lines = [
        f"{number_of(batch.num_graphs, 'graph')}, "
        f"{number_of(batch.num_vertices, 'vertex', 'vertices')}, "
        f"{number_of(batch.num_edges, 'edge')}, "
        f"policy {model.policy}, {number_of(len(runs), 'worker')}"
    ]
    for number, run in enumerate(runs):
        if len(runs) > 1:
            lines.append(f"worker {number}")
        lines += ["  " + line for line in _run(executor, run)]
    if runs[0].configuration.persistent:
        lines += ["", executor.explanation().scripts(runs[0])]
    if len(model.chooser.ways) > 1:
        lines += ["", model.chooser.describe(use.backward, batch)]
    return "\n".join(lines)


def _run(executor: Executor, run: Run) -> list[str]:
    s, model, explanation = run.layout.schedule, executor.model, executor.explanation()
    rows = np.diff(s.task_lo)
    quartiles = np.percentile(rows, [0, 25, 50, 75, 100]).astype(int).tolist()
    atoms = run.variant.atoms
    lines = [
        f"levels: {count_levels(run)}",
        f"rows: {len(s.order)} of {run.share.batch.num_vertices} vertices, identical ones once"
        if run.variant.merges
        else f"rows: {len(s.order)}, one a vertex",
        f"batching tasks: {s.num_tasks}; rows a task (min, quartiles, max): {quartiles}",
    ]
    for k, bits in enumerate(run.ready.kinds):
        mine = rows[s.task_kind == k]
        if len(mine):
            name, total = atoms.describe(bits, atoms.path), number_of(int(mine.sum()), "row")
            lines.append(f"  kind {name}: {number_of(len(mine), 'task')}, {total}")
    forward = flops(run, forward=True)
    lines += [
        f"FLOPs of products: {forward + flops(run, forward=False):.3e} (forward {forward:.3e})",
        f"peak of the arena: {run.layout.plan.arena_bytes(model.store.dtype):,} bytes; "
        f"parameters and gradients: {2 * model.store.values.nbytes:,} bytes",
        f"launches: {len(run.layout.table)}; kernel calls: {explanation.calls(run)}",
    ]
    return lines


def count_levels(run: Run) -> int:
    """Count the levels of the graphs: vertices on the longest path to a leaf."""
    s = run.layout.schedule
    level = np.ones(len(s.order), np.int64)
    for t in range(s.num_tasks):  # children lie in earlier tasks
        lo, hi = s.task_lo[t], s.task_lo[t + 1]
        for ptr in (s.edge_ptr, s.every_ptr):
            edges = slice(ptr[lo], ptr[hi])
            has = s.child_row[edges] >= 0
            below = level[s.child_row[edges][has]] + 1
            np.maximum.at(level, s.edge_row[edges][has], below)
    return int(np.max(level, initial=0))


def flops(run: Run, forward: bool) -> float:
    """Count multiplications and additions of all products of a step, forward or after."""
    launches = run.layout.forward if forward else run.layout.backward
    total = 0.0
    for launch in run.layout.table[launches]:
        task = run.variant.tasks[int(launch[PROGRAM])]
        nodes = task.program.nodes
        for step in task.steps:
            if isinstance(step, Group):
                continue
            node = nodes[step.node]
            matrix = node if node.op == "outer" else nodes[node.inputs[0]]
            operand = nodes[node.inputs[0]] if node.op == "outer" else node
            count = launch[EDGES] if operand.type.domain == Domain.EDGE else launch[ROWS]
            several = operand.type.shape[0] if len(operand.type.shape) == 2 else 1
            total += 2.0 * float(count) * several * matrix.type.size
    return total
