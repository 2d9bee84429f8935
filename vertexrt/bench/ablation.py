"""`vertexrt bench ablation`: what each optimisation brings, alone and as the last one missing.

There are two families of variants. In `one on`, everything is off (`baseline`) but one switch; in
`one off`, everything is on (`all on`) but one. A switch that belongs to one engine is compared with
that engine under the same settings, not with the head of its family: its `against` says so. What a
device has no form of is listed as missing, with the reason.

Every variant takes the same minibatches in turn, after it has been shown to compute the same:
against the reference in float64 on a few graphs, and against the first variant on a minibatch of
each size that is timed. What is compared is what is timed: the loss, the loss of every vertex,
and every gradient, taken from the step itself. Networks with the same layout of parameters
share their memory, since two equal networks differ by up to 13 % for where theirs is
(docs/performance.md).
"""

import multiprocessing
from argparse import Namespace
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import vertexrt as vrt
from vertexrt.bench.measure import Contender, Draw, Stepper, compare, count, measure
from vertexrt.bench.record import Entry, compared
from vertexrt.bench.run import Bench, Job, Setting, first_graphs, make_job, opened, say
from vertexrt.errors import DeviceError, PlanError
from vertexrt.kernels.backend import BLAS, FIXED, TIMED
from vertexrt.scheduler import POLICIES

ONE_ON, ONE_OFF = "one on", "one off"
BASELINE, ALL_ON = "baseline", "all on"
HELD, BATCHED = "+ persistent, weights on chip", "- persistent engine"
AGAIN = " again"  # the head of a family once more: how far its ratio is from 1 is the noise
GPU_GROUPS = (8, 16, 32)  # processors of a group, which no GPU is too small for
STREAMS = (2, 4)  # that share the launches of the batched engine

# Field of Passes -> name of the switch, for those that both engines have.
PASSES = {
    "specialise": "specialisation",
    "eager": "eager placement",
    "lazy": "lazy placement",
    "stack": "stacking",
    "fuse": "fusion",
    "merge": "merging",
}
GRADIENTS = "+ gradients on chip"
# Switch -> why a device has no form of it.
MISSING_ON_GPU = {
    "compiled loop": "a GPU has one form: the launches of a step are one compiled loop",
    "timed products": "a GPU has kernels for few rows, and cuBLAS above limits that are fixed",
}
MISSING_ON_HOST = {
    "streams": "a CPU has no streams; what is independent goes to threads by shares of the batch",
    "weights on chip": "a core keeps weights in its caches; nothing holds them from task to task",
    "gradients on chip": "a core sums up gradients in its caches; a GPU has registers for them",
    "asynchronous host": "a step on this device is over when the call returns: nothing runs ahead",
}

CHECKED_GRAPHS = 4  # with the reference, which is slow
ROUNDS = (5, 25)
HEADS = {ONE_ON: BASELINE, ONE_OFF: ALL_ON}  # of the families
TOTAL = "total"  # the family of `all on` against `baseline`, which it is timed with


class NamedSetting(NamedTuple):
    """A setting under the name of what differs from what it is compared with."""

    family: str
    name: str
    against: str
    setting: Setting


def variants(device: str, threads: int) -> list[NamedSetting]:
    """List the variants of both families; the head of each comes first, its control second.

    No name occurs twice, in the other family neither: what is timed goes by it.
    """
    gpu = device == "cuda"
    groups = GPU_GROUPS if gpu else [p for p in range(2, threads + 1) if threads % p == 0]
    found: dict[str, NamedSetting] = {}

    def head(family: str, name: str, setting: Setting) -> None:
        found[name] = NamedSetting(family, name, name, setting)
        add(name + AGAIN, name)

    def add(name: str, against: str, **changes: Any) -> None:
        other = found[against]
        setting = replace(other.setting, **changes)
        found[name] = NamedSetting(other.family, name, against, setting)

    off: dict[str, Any] = dict.fromkeys((*PASSES, "segment", "gradients"), False)
    # what the device has no switch for stays on
    base = Setting(loop=gpu, hold=not gpu, products=FIXED, policy="serial", engine="batched", **off)
    head(ONE_ON, BASELINE, replace(base, waits=gpu))
    for policy in POLICIES[:-1]:  # the last is that of all baselines
        add(f"+ policy {policy}", BASELINE, policy=policy)
    for field, name in PASSES.items():
        add(f"+ {name}", BASELINE, **{field: True})
    engine, against = "+ persistent engine", BASELINE
    if gpu:
        add("+ asynchronous host", BASELINE, waits=False)
        for streams in STREAMS:
            add(f"+ {streams} streams", BASELINE, streams=streams)
        # the persistent kernel has no sums over rows on its path
        engine, against = "+ lazy, persistent engine", "+ lazy placement"
    else:
        add("+ compiled loop", BASELINE, loop=True)
        add("+ timed products", BASELINE, products=TIMED)
    add(engine, against, engine="persistent")
    add("+ persistent, segments", engine, segment=True)
    if gpu:
        add(HELD, engine, hold=True)
        add("+ persistent, gradients on chip", HELD, gradients=True)
    for processors in groups:
        add(f"+ persistent, groups of {processors}", engine, processors=processors)

    head(ONE_OFF, ALL_ON, Setting())
    for policy in (POLICIES[-1], *POLICIES[1:-1]):
        add(f"policy {policy}", ALL_ON, policy=policy)
    add(BATCHED, ALL_ON, engine="batched")
    for field, name in PASSES.items():
        if gpu and field == "lazy":  # as above
            add(f"batched - {name}", BATCHED, lazy=False)
        else:
            add(f"- {name}", ALL_ON, **{field: False})
    add("- segments", ALL_ON, segment=False)
    add("- segments - fusion", ALL_ON, segment=False, fuse=False)
    if gpu:
        for streams in STREAMS:
            add(f"batched, {streams} streams", BATCHED, streams=streams)
        add("- weights on chip", ALL_ON, hold=False)
        add(GRADIENTS, ALL_ON, gradients=True)
        add("- asynchronous host", ALL_ON, waits=True)
    else:
        add("batched - compiled loop", BATCHED, loop=False)
        add("timed products", ALL_ON, products=TIMED)
        add("- register tiles", ALL_ON, products=BLAS)
    for processors in groups:
        label = f"groups of {processors}"
        add(label, ALL_ON, processors=processors)
        if gpu:  # groups as small as the weights fit in may have no room for gradients
            add(f"{label} {GRADIENTS}", label, gradients=True)
    return list(found.values())


def missing(device: str, threads: int) -> dict[str, str]:
    """Return the switches that do not exist on a device, with the reason."""
    if device == "cuda":
        return MISSING_ON_GPU
    if threads > 1:
        return MISSING_ON_HOST
    return MISSING_ON_HOST | {"group size": f"{threads} thread: a group has one processor"}


def run(options: Namespace, command: list[str]) -> Path:
    """Check, count, time, print tables, write the JSON file; return its path.

    Args:
        options: `seconds` are for each batch size, over all variants.
    """
    with opened("ablation", options, command) as bench:
        plan = variants(bench.device, bench.threads)
        lacking = missing(bench.device, bench.threads)
        bench.record.missing += [{"name": n, "because": why} for n, why in lacking.items()]
        if bench.device != "reference":
            # Once, each core another setting, so that their kernels are on disk.
            settings = list(dict.fromkeys(v.setting for v in plan))
            say(f"compiling {len(settings)} settings")
            one = partial(_compile_one, options, bench.device, bench.threads)
            with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
                list(pool.map(one, settings))
        steppers: dict[str, Stepper] = {}
        for variant in plan:
            try:
                net = _compiled(bench.job, options, bench.device, bench.threads, variant.setting)
            except (DeviceError, PlanError) as error:
                bench.record.missing.append({"name": variant.name, "because": str(error)})
                continue
            steppers[variant.name] = Stepper(net, variant.setting.waits)
        if bench.device != "cuda":
            share_memory(stepper.net for stepper in steppers.values())
        _check(bench, steppers)
        for batch_size in options.batch_sizes:
            found = [
                entry
                for family in HEADS
                for entry in _one_family(bench, batch_size, family, plan, steppers)
            ]
            bench.keep("", found)
    return bench.path


def _compile_one(options: Namespace, device: str, threads: int, setting: Setting) -> None:
    job = make_job(options.model, options.data, options.leaves, options.set)
    with suppress(DeviceError, PlanError):  # said when the network is made for the run
        _compiled(job, options, device, threads, setting)


def _compiled(
    job: Job, options: Namespace, device: str, threads: int, setting: Setting
) -> vrt.Network:
    """Compile a setting and its kernels, which takes a step.

    Raises: DeviceError, PlanError, when it cannot be built on the device.
    """
    net = setting.compile(job.make(options.hidden), device, threads)
    net.step(first_graphs(job, max(options.batch_sizes)), vrt.SGD(lr=0.0))
    net.sync()
    return net


def share_memory(nets: Iterable[vrt.Network]) -> None:
    """Let networks with the same layout share parameters, gradients and arenas."""
    first: dict[tuple[bytes, int], Any] = {}
    for net in nets:
        executor: Any = net.executor
        model = executor.model
        alike = first.setdefault((model.param_at.tobytes(), model.store.values.size), executor)
        model.store, executor.memories = alike.model.store, alike.memories


def _check(bench: Bench, steppers: dict[str, Stepper]) -> None:
    function = bench.job.make(bench.options.hidden)
    oracle = Stepper(vrt.compile(function, device="reference", dtype="float64", threads=1, seed=1))
    drawn = {name: value.astype("float32") for name, value in oracle.parameters().items()}
    contenders: dict[str, Contender] = {"reference": oracle, **steppers}
    for size in (CHECKED_GRAPHS, *bench.options.batch_sizes):
        for contender in contenders.values():
            contender.set_parameters(drawn)
        where = f"{bench.job.model}, batch {size}"
        compare(bench.record, contenders, first_graphs(bench.job, size), where, bench.job.kinked)
        contenders.pop("reference", None)


def _one_family(
    bench: Bench,
    batch_size: int,
    family: str,
    plan: list[NamedSetting],
    steppers: dict[str, Stepper],
) -> list[Entry]:
    """Time the variants of a family, and `all on`, in turn; none where its head is missing."""
    head = HEADS[family]
    against = {v.name: v.against for v in plan if v.family == family}
    if head not in steppers:
        return []
    mine = {name: step for name, step in steppers.items() if name in (*against, ALL_ON)}
    say(f"{bench.job.model}, batch {batch_size}: timing {len(mine)} variants, {family}")
    draw = Draw(bench.job.pool, batch_size)
    samples = measure(mine, draw, bench.options.seconds / 2, ROUNDS)
    sample = first_graphs(bench.job, batch_size)
    counts = {
        name: count(step.net, sample) | {"host_waits": float(step.waits)}
        for name, step in mine.items()
    }
    key = bench.key(mode="train", batch_size=batch_size)
    entries = compared(key, samples, head + AGAIN, counts, against)
    for entry in entries:
        entry.key["family"] = family if entry.key["variant"] in against else TOTAL
    return entries
