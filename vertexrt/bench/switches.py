"""The switches of an ablation: what each turns on, on which device it exists, and the variants.

There are two families of variants. In `one on`, everything is off (`baseline`) but one switch; in
`one off`, everything is on (`all on`) but one. A switch that belongs to one engine is compared with
that engine under the same settings, not with the head of its family: its `against` says so. What a
device has no form of is listed as missing, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import vertexrt as vrt
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.kernels.backend import BLAS, FIXED, TIMED
from vertexrt.scheduler import POLICIES

ONE_ON, ONE_OFF = "one on", "one off"
BASELINE, ALL_ON = "baseline", "all on"
HELD = "+ persistent, weights on chip"
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
OFF = Passes(
    **dict.fromkeys((*PASSES, "loop", "segment", "hold", "gradients"), False), products=FIXED
)
ALL = Passes()
GRADIENTS = f"{'-' if ALL.gradients else '+'} gradients on chip"  # the other than by default
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


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run.

    Attributes:
        processors: of a group of the persistent engine; None as it chooses.
        waits: each step is waited for.
    """

    policy: str = "frontier"
    engine: str = "persistent"
    passes: Passes = ALL
    processors: int | None = 1
    waits: bool = False

    def compile(
        self, function: vrt.VertexFunction | vrt.Model, device: str, threads: int
    ) -> Network:
        """Compile F so; all settings draw the same initial parameters."""
        return vrt.compile(
            function,
            device=device,
            engine=self.engine,
            policy=self.policy,
            threads=threads,
            processors=self.processors if self.engine == "persistent" else None,
            passes=self.passes,
            seed=1,
        )

    def but(self, **passes: bool | int | str) -> Setting:
        """Return the same with other passes."""
        return replace(self, passes=replace(self.passes, **passes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class NamedSetting:
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
    groups = GPU_GROUPS if gpu else _groups(threads)
    passes = replace(OFF, loop=gpu, hold=not gpu)  # what the device has no switch for stays on
    baseline = Setting("serial", "batched", passes, None if gpu else 1, waits=gpu)
    all_on = Setting(processors=None if gpu else 1)
    found = []
    for family, name, head, changes in (
        (ONE_ON, BASELINE, baseline, _one_on(baseline, gpu, groups)),
        (ONE_OFF, ALL_ON, all_on, _one_off(all_on, gpu, groups)),
    ):
        found += [NamedSetting(family, label, name, head) for label in (name, name + AGAIN)]
        found += [
            NamedSetting(family, label, against or name, setting)
            for label, against, setting in changes
        ]
    return found


def missing(device: str, threads: int) -> dict[str, str]:
    """Return the switches that do not exist on a device, with the reason."""
    if device == "cuda":
        return MISSING_ON_GPU
    if _groups(threads):
        return MISSING_ON_HOST
    return MISSING_ON_HOST | {"group size": f"{threads} thread: a group has one processor"}


def _groups(threads: int) -> tuple[int, ...]:
    return tuple(p for p in range(2, threads + 1) if threads % p == 0)


def _one_on(
    base: Setting, gpu: bool, groups: tuple[int, ...]
) -> Iterator[tuple[str, str, Setting]]:
    for policy in POLICIES[:-1]:  # the last is that of all baselines
        yield f"+ policy {policy}", "", replace(base, policy=policy)
    for field, name in PASSES.items():
        yield f"+ {name}", "", base.but(**{field: True})
    engine, against, persistent = "+ persistent engine", "", replace(base, engine="persistent")
    if gpu:
        yield "+ asynchronous host", "", replace(base, waits=False)
        for streams in STREAMS:
            yield f"+ {streams} streams", "", base.but(streams=streams)
        # the persistent kernel has no sums over rows on its path
        engine, against = "+ lazy, persistent engine", "+ lazy placement"
        persistent = persistent.but(lazy=True)
    else:
        yield "+ compiled loop", "", base.but(loop=True)
        yield "+ timed products", "", base.but(products=TIMED)
    yield engine, against, persistent
    yield "+ persistent, segments", engine, persistent.but(segment=True)
    if gpu:
        yield HELD, engine, persistent.but(hold=True)
        yield "+ persistent, gradients on chip", HELD, persistent.but(hold=True, gradients=True)
    for processors in groups:
        label = f"+ persistent, groups of {processors}"
        yield label, engine, replace(persistent, processors=processors)


def _one_off(
    base: Setting, gpu: bool, groups: tuple[int, ...]
) -> Iterator[tuple[str, str, Setting]]:
    for policy in (POLICIES[-1], *POLICIES[1:-1]):
        yield f"policy {policy}", "", replace(base, policy=policy)
    engine, batched = "- persistent engine", replace(base, engine="batched")
    for field, name in PASSES.items():
        if gpu and field == "lazy":  # see `_one_on`
            yield f"batched - {name}", engine, batched.but(lazy=False)
        else:
            yield f"- {name}", "", base.but(**{field: False})
    yield engine, "", batched
    yield "- segments", "", base.but(segment=False)
    yield "- segments - fusion", "", base.but(segment=False, fuse=False)
    if gpu:
        for streams in STREAMS:
            yield f"batched, {streams} streams", engine, batched.but(streams=streams)
        yield "- weights on chip", "", base.but(hold=False)
        yield GRADIENTS, "", base.but(gradients=not ALL.gradients)
        yield "- asynchronous host", "", replace(base, waits=True)
    else:
        yield "batched - compiled loop", engine, batched.but(loop=False)
        yield "timed products", "", base.but(products=TIMED)
        yield "- register tiles", "", base.but(products=BLAS)
    for processors in groups:
        label, group = f"groups of {processors}", replace(base, processors=processors)
        yield label, "", group
        if gpu:  # groups as small as the weights fit in have no room for gradients
            yield f"{label} {GRADIENTS}", label, group.but(gradients=not ALL.gradients)
