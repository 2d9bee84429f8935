"""`vertexrt bench ablation`: what each optimisation brings, alone and as the last one missing.

Every variant takes the same minibatches in turn, after it has been shown to compute the same:
against the reference in float64 on a few graphs, and against the first variant on a minibatch of
each size that is timed. What is compared is what is timed: the loss, the loss of every vertex,
and every gradient, taken from the step itself. Networks with the same layout of parameters
share their memory, since two equal networks differ by up to 13 % for where theirs is
(docs/results.md).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import vertexrt as vrt
from vertexrt.bench.measure import Contender, Draw, Stepper, compare, measure
from vertexrt.bench.record import Entry, compared
from vertexrt.bench.run import Bench, Job, JobOptions, first_graphs, make_job, opened, say
from vertexrt.bench.switches import (
    AGAIN,
    ALL_ON,
    BASELINE,
    ONE_OFF,
    ONE_ON,
    NamedSetting,
    Setting,
    missing,
    variants,
)
from vertexrt.errors import DeviceError, PlanError

CHECKED_GRAPHS = 4  # with the reference, which is slow
ROUNDS = (5, 25)
# Family -> its head, and which variants of the other family take part.
FAMILIES = {ONE_ON: (BASELINE, (ALL_ON,)), ONE_OFF: (ALL_ON, ())}
TOTAL = "total"  # the family of `all on` against `baseline`
Steppers = dict[NamedSetting, Stepper]


def run(options: JobOptions, command: list[str], job: Job | None = None) -> Path:
    """Check, count, time, print tables, write the JSON file; return its path.

    Args:
        options: `seconds` are for each batch size, over all variants.
        job: F and its graphs; by default the options' model on its data.
    """
    with opened("ablation", options, command, job) as bench:
        plan = variants(bench.device, bench.threads)
        lacking = missing(bench.device, bench.threads)
        bench.record.missing += [{"name": n, "because": why} for n, why in lacking.items()]
        if job is None and bench.device != "reference":
            _compile_ahead(bench, plan)
        steppers = _make_steppers(bench, plan)
        if bench.device != "cuda":
            share_memory(stepper.net for stepper in steppers.values())
        _check(bench, steppers)
        for batch_size in options.batch_sizes:
            one_on = _one_family(bench, batch_size, ONE_ON, steppers)
            bench.keep("", one_on + _one_family(bench, batch_size, ONE_OFF, steppers))
    return bench.path


def _compile_ahead(bench: Bench, plan: Sequence[NamedSetting]) -> None:
    """Compile all settings once, each core another, so that their kernels are on disk."""
    settings = list(dict.fromkeys(v.setting for v in plan))
    say(f"compiling {len(settings)} settings")
    one = partial(_compile_one, bench.options, bench.device, bench.threads)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(one, settings))


def _compile_one(options: JobOptions, device: str, threads: int, setting: Setting) -> None:
    job = make_job(options.model, options.data, options.leaves, options.set)
    with suppress(DeviceError, PlanError):  # said when the network is made for the run
        _compiled(job, options, device, threads, setting)


def _compiled(
    job: Job, options: JobOptions, device: str, threads: int, setting: Setting
) -> vrt.Network:
    """Compile a setting and its kernels, which takes a step.

    Raises: DeviceError, PlanError, when it cannot be built on the device.
    """
    net = setting.compile(job.make(options.hidden), device, threads)
    net.step(first_graphs(job, max(options.batch_sizes)), vrt.SGD(lr=0.0))
    net.sync()
    return net


def _make_steppers(bench: Bench, plan: Sequence[NamedSetting]) -> Steppers:
    """Compile all variants; what cannot be built on the device is listed as missing."""
    steppers = {}
    for variant in plan:
        setting = variant.setting
        try:
            net = _compiled(bench.job, bench.options, bench.device, bench.threads, setting)
        except (DeviceError, PlanError) as error:
            bench.record.missing.append({"name": variant.name, "because": str(error)})
            continue
        steppers[variant] = Stepper(net, setting.waits)
    return steppers


def share_memory(nets: Iterable[vrt.Network]) -> None:
    """Let networks with the same layout share parameters, gradients and arenas."""
    first: dict[tuple[bytes, int], Any] = {}
    for net in nets:
        executor: Any = net.executor
        model = executor.model
        alike = first.setdefault((model.param_at.tobytes(), model.store.values.size), executor)
        model.store, executor.workers = alike.model.store, alike.workers


def _check(bench: Bench, steppers: Steppers) -> None:
    function = bench.job.make(bench.options.hidden)
    oracle = Stepper(vrt.compile(function, device="reference", dtype="float64", threads=1, seed=1))
    drawn = {name: value.astype("float32") for name, value in oracle.parameters().items()}
    contenders: dict[str, Contender] = {"reference": oracle}
    contenders |= {variant.name: stepper for variant, stepper in steppers.items()}
    for size in (CHECKED_GRAPHS, *bench.options.batch_sizes):
        for contender in contenders.values():
            contender.set_parameters(drawn)
        where = f"{bench.job.model}, batch {size}"
        compare(bench.record, contenders, first_graphs(bench.job, size), where, bench.job.kinked)
        contenders.pop("reference", None)


def _one_family(bench: Bench, batch_size: int, family: str, steppers: Steppers) -> list[Entry]:
    """Time the variants of a family, and its guests, in turn; none where its head is missing."""
    head, guests = FAMILIES[family]
    against = {v.name: v.against for v in steppers if v.family == family}
    if head not in against:
        return []
    mine = {v.name: s for v, s in steppers.items() if v.name in (*against, *guests)}
    say(f"{bench.job.model}, batch {batch_size}: timing {len(mine)} variants, {family}")
    draw = Draw(bench.job.pool, batch_size)
    samples = measure(mine, draw, bench.options.seconds / 2, ROUNDS)
    sample = first_graphs(bench.job, batch_size)
    counts = {name: stepper.count(sample) for name, stepper in mine.items()}
    key = bench.key(mode="train", batch_size=batch_size)
    entries = compared(key, samples, head + AGAIN, counts, against)
    for entry in entries:
        entry.key["family"] = family if entry.key["variant"] in against else TOTAL
    return entries
