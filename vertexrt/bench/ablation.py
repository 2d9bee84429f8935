"""`vertexrt bench ablation`: what each optimisation brings, alone and as the last one missing.

Every variant takes the same minibatches in turn, after it has been shown to compute the same:
against the reference in float64 on a few graphs, and against the first variant on a minibatch of
each size that is timed. What is compared is what is timed: the loss, the loss of every vertex,
and every gradient, taken from the step itself. Networks whose parameters lie alike share their
memory, since two equal networks differ by up to 13 % for where theirs is (docs/results.md).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import vertexrt as vrt
from vertexrt.bench.check import BOUNDS, check
from vertexrt.bench.counts import Counts
from vertexrt.bench.jobs import Job, JobOptions, first_graphs, make_job, require_graphs
from vertexrt.bench.measure import LR, Draw, Runner, Timing, measure
from vertexrt.bench.record import Entry, Record, make_entry
from vertexrt.bench.run import pinned, recording, say
from vertexrt.bench.spread import noise_of, ratio_of
from vertexrt.bench.stepper import Stepper
from vertexrt.bench.switches import (
    AGAIN,
    ALL_ON,
    BASELINE,
    ONE_OFF,
    ONE_ON,
    Setting,
    Variant,
    missing,
    variants,
)
from vertexrt.bench.text import table
from vertexrt.engine.devices import device_named
from vertexrt.errors import DeviceError, PlanError

CHECKED_GRAPHS = 4  # with the reference, which is slow
ROUNDS = (5, 25)
TOTAL = "total"  # the family of `all on` beside `baseline`
DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Options(JobOptions):
    """What the command line says; `seconds` are for each batch size, over all variants.

    Attributes:
        compilers: processes that compile at once; 1 compiles in this one.
    """

    compilers: int


def run(options: Options, command: list[str]) -> Path:
    """Check, count, time, print tables, write the JSON file; return its path."""
    device = device_named(options.device)
    job = make_job(options.model, options.data, options.leaves)
    for batch_size in options.batch_sizes:
        require_graphs(job, batch_size)
    kept = asdict(options)
    del kept["compilers"]
    kept |= {"name": options.model, "device": device}
    with (
        pinned(options.threads) as threads,
        recording("ablation", command, kept, threads, device) as (record, path),
    ):
        record.jobs[job.model] = job.description
        say(f"{job.description}; hidden {options.hidden}, {device}, {threads} threads")
        plan = variants(device, threads)
        record.missing = [{"name": m.name, "because": m.because} for m in missing(device, threads)]
        _compile_ahead(options, device, threads, plan)
        steppers = _make_steppers(options, device, threads, job, plan, record)
        if device != "cuda":
            share_memory([s.net for s in steppers.values()])
        _check(job, options, steppers, record)
        for batch_size in options.batch_sizes:
            found = _one_size(job, options, batch_size, plan, steppers)
            record.entries += found
            print(table(found), flush=True)
            record.write(path)
        for lack in record.missing:
            print(f"not available here: {lack['name']}, because {lack['because']}")
    return path


# Compiling.


def compile_one(options: Options, device: str, threads: int, setting: Setting) -> None:
    """Compile a setting, so that its kernels are on disk."""
    job = make_job(options.model, options.data, options.leaves)
    net = setting.compile(job.make(options.hidden), device, threads)
    try:
        net.step(first_graphs(job, max(options.batch_sizes)), vrt.SGD(lr=0.0))
    except (DeviceError, PlanError):
        return  # said when the network is made for the run


def _compile_ahead(options: Options, device: str, threads: int, plan: Sequence[Variant]) -> None:
    if options.compilers == 1 or device == "reference":
        return
    settings = list(dict.fromkeys(v.setting for v in plan))
    say(f"compiling {len(settings)} settings in {options.compilers} processes")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.compilers, mp_context=context) as pool:
        work = [pool.submit(compile_one, options, device, threads, s) for s in settings]
        for each in work:
            each.result()


def _make_steppers(
    options: Options,
    device: str,
    threads: int,
    job: Job,
    plan: Sequence[Variant],
    record: Record,
) -> dict[tuple[str, str], Stepper]:
    """Compile all variants; what cannot be built on the device is listed as missing."""
    steppers = {}
    batch = first_graphs(job, max(options.batch_sizes))
    for variant in plan:
        setting = variant.setting
        try:
            net = setting.compile(job.make(options.hidden), device, threads)
            net.step(batch, vrt.SGD(lr=0.0))
            net.sync()
        except (DeviceError, PlanError) as error:
            record.missing.append({"name": variant.name, "because": str(error)})
            continue
        steppers[variant.family, variant.name] = Stepper(net, setting.waits)
    return steppers


def share_memory(nets: Iterable[vrt.Network]) -> None:
    """Let networks whose parameters lie alike share parameters, gradients and arenas."""
    first: dict[tuple[bytes, int], Any] = {}
    for net in nets:
        executor: Any = net._executor
        model = executor.model
        alike = first.setdefault((model.param_at.tobytes(), model.store.values.size), executor)
        model.store, executor.workers = alike.model.store, alike.workers


# Checking.


def _check(
    job: Job, options: Options, steppers: Mapping[tuple[str, str], Stepper], record: Record
) -> None:
    function = job.make(options.hidden)
    oracle = Stepper(
        vrt.compile(function, device="reference", dtype="float64", threads=1, seed=1), False
    )
    drawn = {name: value.astype(DTYPE) for name, value in oracle.parameters().items()}
    everyone = {"reference": oracle} | {f"{name}": s for (_, name), s in steppers.items()}
    for size in (CHECKED_GRAPHS, *options.batch_sizes):
        contenders = dict(everyone)
        if size != CHECKED_GRAPHS:
            del contenders["reference"]
        for contender in contenders.values():
            contender.set_parameters(drawn)
        against = next(iter(contenders))
        batch = first_graphs(job, size)
        where = f"{job.model}, batch {size}"
        off = check(contenders, batch, BOUNDS[DTYPE], where, job.kinked)
        entry: dict[str, Any] = {"where": where, "against": against, "bound": BOUNDS[DTYPE]}
        record.checks.append(entry | {"largest_difference": off, "variants": len(contenders)})
        say(f"{where}: {len(contenders)} variants agree with {against} within {off:.1e}")


# Timing.


def _one_size(
    job: Job,
    options: Options,
    batch_size: int,
    plan: Sequence[Variant],
    steppers: Mapping[tuple[str, str], Stepper],
) -> list[Entry]:
    found = []
    sample = first_graphs(job, batch_size)
    key: dict[str, str | int] = {"model": job.model, "mode": "train", "batch_size": batch_size}
    key["hidden"] = options.hidden
    for family, head in ((ONE_ON, BASELINE), (ONE_OFF, ALL_ON)):
        chosen = {v.name: v for v in plan if v.family == family and (family, v.name) in steppers}
        contenders = {name: steppers[family, name] for name in chosen}
        if head not in contenders:
            continue
        if family == ONE_ON and (ONE_OFF, ALL_ON) in steppers:
            contenders[ALL_ON] = steppers[ONE_OFF, ALL_ON]
        say(f"{job.model}, batch {batch_size}: timing {len(contenders)} variants, {family}")
        timing = _time(contenders, Draw(job.pool, batch_size), options.seconds / 2)
        counts = {name: s.counts(sample) for name, s in contenders.items()}
        found += entries(key | {"family": family}, head, chosen, timing, counts)
        if ALL_ON in contenders and family == ONE_ON:
            total = Variant(TOTAL, ALL_ON, BASELINE, chosen[BASELINE].setting)
            rows = entries(key | {"family": TOTAL}, head, {ALL_ON: total}, timing, counts)
            found += rows
    return found


def _time(contenders: Mapping[str, Stepper], draw: Draw, seconds: float) -> Timing:
    def sync() -> None:
        for contender in contenders.values():
            contender.sync()

    def runner(contender: Stepper) -> Runner:
        return Runner(lambda batch: contender.train(batch, LR), sync)

    runners = {name: runner(contender) for name, contender in contenders.items()}
    return measure(runners, draw, seconds, ROUNDS)


def entries(
    key: dict[str, str | int],
    head: str,
    chosen: Mapping[str, Variant],
    timing: Timing,
    counts: Mapping[str, Counts],
) -> list[Entry]:
    """Return an entry for each variant, compared with what it is against."""
    samples = timing.samples
    control = samples.get(head + AGAIN)
    noise = noise_of(None if control is None else ratio_of(control, samples[head]))
    found = []
    for name, variant in chosen.items():
        against = variant.against if variant.against in samples else None
        if name == head:
            against = None
        found.append(
            make_entry(
                {**key, "variant": name},
                samples[name],
                "graphs/s",
                against=against,
                reference=None if against is None else samples[against],
                noise=noise,
                counts=counts[name],
            )
        )
    return found
