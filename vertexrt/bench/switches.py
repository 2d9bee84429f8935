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

ONE_ON, ONE_OFF = "one on", "one off"
BASELINE, ALL_ON = "baseline", "all on"
HELD = "+ persistent, weights on chip"
AGAIN = " again"  # the head of a family once more: how far its ratio is from 1 is the noise
GPU_GROUPS = (8, 16, 32)  # processors of a group, which no GPU is too small for
STREAMS = (2, 4)  # that share the launches of the batched engine

OFF = Passes(
    specialise=False,
    eager=False,
    lazy=False,
    stack=False,
    fuse=False,
    merge=False,
    loop=False,
    segment=False,
    hold=False,
    gradients=False,
)
ALL = Passes()
GRADIENTS = f"{'-' if ALL.gradients else '+'} gradients on chip"  # the other than by default
# Field of Passes -> name of the switch, for those that both engines have.
PASSES = {
    "specialise": "specialisation",
    "eager": "eager placement",
    "lazy": "lazy placement",
    "stack": "stacking",
    "fuse": "fusion",
    "merge": "merging",
}
POLICIES = ("frontier", "depth", "agenda")

NO_STREAMS = "a CPU has no streams; what is independent goes to threads by shares of the batch"
NO_REGISTERS = "a core keeps weights in its caches; nothing holds them from task to task"
NO_SUMS = "a core sums up gradients in its caches; only a GPU has registers to keep them in"
NO_WAIT = "a step on this device is over when the call returns: there is nothing to run ahead of"
ONE_FORM = "a GPU has one form: the launches of a step are one compiled loop"


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
        self, function: vrt.VertexFunction, device: str, threads: int, dtype: str = "float32"
    ) -> Network:
        """Compile F so; all settings draw the same initial parameters."""
        return vrt.compile(
            function,
            device=device,
            engine=self.engine,
            dtype=dtype,
            policy=self.policy,
            threads=threads,
            processors=self.processors if self.engine == "persistent" else None,
            passes=self.passes,
            seed=1,
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting under the name of what differs from what it is compared with."""

    family: str
    name: str
    against: str
    setting: Setting


@dataclass(frozen=True, slots=True)
class Missing:
    """A switch that does not exist here."""

    name: str
    because: str


def kind_of(device: str) -> str:
    """Return which reasons hold: those of a GPU, or of the host's devices."""
    return "cuda" if device == "cuda" else "cpu"


def baseline(device: str) -> Setting:
    """Return everything off that the device can turn off."""
    gpu = kind_of(device) == "cuda"
    passes = replace(OFF, loop=gpu, hold=not gpu)
    return Setting("serial", "batched", passes, None if gpu else 1, waits=gpu)


def all_on(device: str) -> Setting:
    """Return everything on."""
    return Setting(processors=None if kind_of(device) == "cuda" else 1)


def variants(device: str, threads: int) -> list[Variant]:
    """List the variants of both families; the head of each comes first, its control second."""
    found = []
    for family, head, changes in (
        (ONE_ON, baseline(device), _one_on),
        (ONE_OFF, all_on(device), _one_off),
    ):
        name = BASELINE if family == ONE_ON else ALL_ON
        found.append(Variant(family, name, name, head))
        found.append(Variant(family, name + AGAIN, name, head))
        for label, against, setting in changes(head, kind_of(device), threads):
            found.append(Variant(family, label, against or name, setting))
    return found


def _one_on(base: Setting, kind: str, threads: int) -> Iterator[tuple[str, str, Setting]]:
    for policy in POLICIES:
        yield f"+ policy {policy}", "", replace(base, policy=policy)
    for field, name in PASSES.items():
        yield f"+ {name}", "", _with(base, field, True)
    if kind == "cpu":
        yield "+ compiled loop", "", _with(base, "loop", True)
    else:
        yield "+ asynchronous host", "", replace(base, waits=False)
        for streams in STREAMS:
            yield f"+ {streams} streams", "", _with(base, "streams", streams)
    engine, persistent = "+ persistent engine", replace(base, engine="persistent")
    against = ""
    if kind == "cuda":  # the persistent kernel has no sums over rows on its path
        engine, persistent = "+ lazy, persistent engine", _with(persistent, "lazy", True)
        against = "+ lazy placement"
    yield engine, against, persistent
    yield "+ persistent, segments", engine, _with(persistent, "segment", True)
    if kind == "cuda":
        held = _with(persistent, "hold", True)
        yield HELD, engine, held
        yield "+ persistent, gradients on chip", HELD, _with(held, "gradients", True)
    for processors in _groups(kind, threads):
        label = f"+ persistent, groups of {processors}"
        yield label, engine, replace(persistent, processors=processors)


def _one_off(base: Setting, kind: str, threads: int) -> Iterator[tuple[str, str, Setting]]:
    for policy in ("serial", *POLICIES[1:]):
        yield f"policy {policy}", "", replace(base, policy=policy)
    engine = "- persistent engine"
    batched = replace(base, engine="batched")
    for field, name in PASSES.items():
        if kind == "cuda" and field == "lazy":  # see `_one_on`
            yield f"batched - {name}", engine, _with(batched, field, False)
        else:
            yield f"- {name}", "", _with(base, field, False)
    yield engine, "", batched
    stepwise = _with(base, "segment", False)
    yield "- segments", "", stepwise
    yield "- segments - fusion", "", _with(stepwise, "fuse", False)
    if kind == "cpu":
        yield "batched - compiled loop", engine, _with(batched, "loop", False)
    else:
        for streams in STREAMS:
            yield f"batched, {streams} streams", engine, _with(batched, "streams", streams)
        yield "- weights on chip", "", _with(base, "hold", False)
        yield GRADIENTS, "", _with(base, "gradients", not ALL.gradients)
        yield "- asynchronous host", "", replace(base, waits=True)
    for processors in _groups(kind, threads):
        label, group = f"groups of {processors}", replace(base, processors=processors)
        yield label, "", group
        if kind == "cuda":  # groups as small as the weights fit in have no room for gradients
            yield f"{label} {GRADIENTS}", label, _with(group, "gradients", not ALL.gradients)


def _with(setting: Setting, field: str, value: bool | int) -> Setting:
    passes = replace(setting.passes, **{field: value})  # type: ignore[arg-type]
    return replace(setting, passes=passes)


def _groups(kind: str, threads: int) -> tuple[int, ...]:
    if kind == "cuda":
        return GPU_GROUPS
    return tuple(p for p in range(2, threads + 1) if threads % p == 0)


def missing(device: str, threads: int) -> list[Missing]:
    """List the switches that do not exist on a device, with the reason."""
    kind = kind_of(device)
    found = []
    if kind == "cuda":
        found.append(Missing("compiled loop", ONE_FORM))
    else:
        found.append(Missing("streams", NO_STREAMS))
        found.append(Missing("weights on chip", NO_REGISTERS))
        found.append(Missing("gradients on chip", NO_SUMS))
    if kind == "cpu":
        found.append(Missing("asynchronous host", NO_WAIT))
        if not _groups(kind, threads):
            found.append(Missing("group size", f"{threads} thread: a group has one processor"))
    return found
