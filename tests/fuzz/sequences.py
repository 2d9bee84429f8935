"""Play random sequences of calls: `python -m tests.fuzz.sequences --count 1000 --device cpu`.

Networks of one to five vertex types are compared with PyTorch float64 after each call. Exit code 1
where one differs: a script, made small, is printed, and written to `--out`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("VERTEXRT_CHECK", "1")  # before the package reads its flags

import numpy as np
import torch
from tqdm import tqdm

from tests.fuzz.calls import (
    WITHOUT_BATCH,
    Call,
    Difference,
    Player,
    Rule,
    draw_calls,
    draw_rule,
)
from tests.fuzz.campaign import DIED, run_all
from tests.fuzz.typed import NetSpec, draw_network, smaller_networks, source, whole
from tests.fuzz.typed_batches import TypedBatch, draw_graph, fitted, smaller_batches
from tests.fuzz.ways import DEVICES, DTYPES, HOST
from tests.runs import Way
from vertexrt.errors import NoKernelError

BATCHES = 4  # of each network
SCRIPT = '''"""{device}, {engine}, {threads} threads, {dtype}: {text}

Run it in the checkout: VERTEXRT_CHECK=1 PYTHONPATH=. python FILE
"""

from tests.fuzz.calls import Rule
from tests.fuzz.sequences import report
from tests.fuzz.typed import Loss, NetSpec, Term, TypeSpec
from tests.fuzz.typed_batches import TypedGraph
from tests.runs import Way

# The network:
#
{source}

report(
    {spec!r},
    [
{batches}
    ],
    [
{calls}
    ],
    {rule!r},
    Way(
        device={device!r},
        dtype={dtype!r},
        engine={engine!r},
        threads={threads},
        processors={processors},
    ),
)
'''


@dataclass(frozen=True, slots=True)
class Played:
    """Calls on a network in one way: what a failure is made of."""

    spec: NetSpec
    batches: tuple[TypedBatch, ...]
    calls: tuple[Call, ...]
    rule: Rule
    way: Way


@dataclass(frozen=True, slots=True)
class Failed:
    """How a sequence failed: kinds are alike where one fault is likely; which call it was."""

    kind: str
    text: str
    number: int


@dataclass(slots=True)
class Counts:
    """What came of some sequences; a finding is a seed, its kind, its text and a script."""

    networks: int = 0
    sequences: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    findings: list[tuple[int, str, str, str]] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add what came of others."""
        self.networks += other.networks
        self.sequences += other.sequences
        self.calls.update(other.calls)
        self.refused += other.refused
        self.findings += other.findings


def ways_of(device: str, dtype: str) -> list[Way]:
    """List the ways that networks take in turn: both engines, 1 and 2 threads."""
    base = Way(device=device, dtype=dtype)
    found = [base, replace(base, engine="persistent", processors=1)]
    if device in HOST:
        two = replace(base, threads=2)
        found += [two, replace(two, engine="persistent", processors=2)]
        found.append(replace(two, engine="persistent", processors=1))
    return found


def failure(player: Player, calls: Sequence[Call], rule: Rule) -> Failed | None:
    """Play a sequence; say how it failed."""
    try:
        player.play(calls, rule)
    except NoKernelError:
        raise
    except Exception as error:  # noqa: BLE001 - any error at all is what a fuzzer looks for
        return failed(error, calls)
    return None


def failed(error: Exception, calls: Sequence[Call]) -> Failed:
    """Say what an error of a sequence is."""
    number = getattr(error, "number", len(calls) - 1)
    text = " ".join(str(error).split())[:300]
    if isinstance(error, Difference):
        what = text.partition(":")[0]
        kind = f"{calls[number][0]}: {what.rpartition(' ')[0] or what}"  # without a name
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} in {Path(last.filename).name} {last.name}"
    return Failed(kind, text, number)


def play(sequence: Played) -> Failed | None:
    """Play a sequence on networks of its own."""
    try:
        player = Player(sequence.spec, sequence.batches, sequence.way)
        return failure(player, sequence.calls, sequence.rule)
    except NoKernelError:
        return None
    except Exception as error:  # noqa: BLE001 - as above
        return failed(error, ())


def play_network(seed: int, way: Way, per: int, wide: float, shrinks: float) -> Counts:
    """Draw the network of a seed, and play sequences on it."""
    torch.set_num_threads(1)
    rng, counts = np.random.default_rng([seed]), Counts()
    spec = draw_network(rng, wide)
    batches = tuple(
        tuple(draw_graph(rng, spec) for _ in range(int(rng.choice([1, 2, 3]))))
        for _ in range(BATCHES)
    )
    counts.networks = 1
    before: tuple[Call, ...] = ()
    module = way.device != "reference"
    try:
        player = Player(spec, batches, way)
        for _ in range(per):
            rule, calls = draw_rule(rng), draw_calls(rng, spec, BATCHES, module)
            counts.sequences += 1
            counts.calls.update(call[0] for call in calls)
            found = failure(player, calls, rule)
            if found is not None:
                one = Played(spec, batches, calls[: found.number + 1], rule, way)
                counts.findings.append((seed, *_shown(one, before, found, shrinks)))
                break  # what the network is then is not known
            before = (*before, *calls, ("reset",))
    except NoKernelError:
        counts.refused = 1
    except Exception as error:  # noqa: BLE001 - as above
        one = Played(spec, batches, (), Rule("SGD", {"lr": 0.25}), way)
        counts.findings.append((seed, *_shown(one, (), failed(error, ()), shrinks)))
    return counts


def _shown(
    one: Played, before: tuple[Call, ...], found: Failed, seconds: float
) -> tuple[str, str, str]:
    """Return kind, text and script of a failure; with the sequences before, where these matter."""
    if not seconds:
        return found.kind, found.text, ""
    again = play(one)
    if again is None or again.kind != found.kind:
        one = replace(one, calls=(*before, *one.calls))
    small = shrink(one, found, seconds)
    return found.kind, found.text, script(small, found.text)


def script(one: Played, text: str) -> str:
    """Print a sequence as Python that runs in a checkout and exits with 1 while it fails."""
    way = one.way
    return SCRIPT.format(
        text=text.replace("\\", "/").replace('"', "'"),
        source="\n".join(f"#     {line}".rstrip() for line in source(one.spec).splitlines()),
        spec=one.spec,
        batches="\n".join(f"        {batch!r}," for batch in one.batches),
        calls="\n".join(f"        {call!r}," for call in one.calls),
        rule=one.rule,
        device=way.device,
        dtype=way.dtype,
        engine=way.engine,
        threads=way.threads,
        processors=way.processors,
    )


def report(
    spec: NetSpec,
    batches: Sequence[TypedBatch],
    calls: Sequence[Call],
    rule: Rule,
    way: Way,
) -> None:
    """Play a sequence and exit: 1 with what is wrong, 0 without. Shrunk failures call it."""
    found = play(Played(spec, tuple(batches), tuple(calls), rule, way))
    print("right" if found is None else f"call {found.number}, {found.kind}: {found.text}")
    sys.exit(found is not None)


# Smaller.


def shrink(one: Played, found: Failed, seconds: float) -> Played:
    """Return the smallest sequence that fails in the same way and is found in a time."""
    end = time.monotonic() + seconds
    tried: set[str] = set()
    one = _with_used(one)
    while True:
        for less in _smaller(one):
            key = repr(less)
            if key in tried:
                continue
            tried.add(key)
            if time.monotonic() > end:
                return one
            again = play(less)
            if again is not None and again.kind == found.kind:
                one = _with_used(replace(less, calls=less.calls[: again.number + 1]))
                break
        else:
            return one


def _with_used(one: Played) -> Played:
    """Leave out batches that no call names."""

    def batch(call: Call) -> int | None:
        return None if len(call) == 1 or call[0] in WITHOUT_BATCH else call[1]

    used = sorted({b for b in map(batch, one.calls) if b is not None})
    calls = tuple(
        call if batch(call) is None else (call[0], used.index(call[1]), *call[2:])
        for call in one.calls
    )
    return replace(one, batches=tuple(one.batches[b] for b in used), calls=calls)


def _smaller(one: Played) -> Iterator[Played]:
    half = len(one.calls) // 2
    if half > 3:
        yield replace(one, calls=one.calls[half:])
    for k in range(len(one.calls) - 1):
        yield replace(one, calls=(*one.calls[:k], *one.calls[k + 1 :]))
    for spec in smaller_networks(one.spec):
        if whole(spec):
            batches = tuple(fitted(batch, spec) for batch in one.batches)
            calls = tuple(_asking(call, spec) for call in one.calls)
            if all(batches):
                yield replace(one, spec=spec, batches=batches, calls=calls)
    for k, batch in enumerate(one.batches):
        for less in smaller_batches(batch):
            yield replace(one, batches=(*one.batches[:k], less, *one.batches[k + 1 :]))
    for name in one.rule.options:
        if name not in ("lr", "eps"):
            options = {n: x for n, x in one.rule.options.items() if n != name}
            yield replace(one, rule=Rule(one.rule.name, options))
    if one.rule.name != "SGD":
        kept = {n: x for n, x in one.rule.options.items() if n != "eps"}
        yield replace(one, rule=Rule("SGD", kept))
    for k, call in enumerate(one.calls):
        for at, given in enumerate(call):
            if isinstance(given, tuple) and len(given) > (call[0] != "step"):
                less_call = (*call[:at], given[1:], *call[at + 1 :])
                yield replace(one, calls=(*one.calls[:k], less_call, *one.calls[k + 1 :]))


def _asking(call: Call, spec: NetSpec) -> Call:
    """Leave out pushes that a network does not have."""
    known = spec.pushes()

    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in names if n in known) or (() if call[0] == "step" else ("loss",))

    return tuple(kept(x) if isinstance(x, tuple) else x for x in call)


# Many.


def run_one(seed: int, ways: Sequence[Way], per: int, wide: float, shrinks: float) -> Counts:
    """Play what a seed draws; all ways take turns."""
    return play_network(seed, ways[seed % len(ways)], per, wide, shrinks)


def died(seed: int) -> Counts:
    """Return what stands for a seed that ended its process."""
    return Counts(1, findings=[(seed, DIED, DIED, "")])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser("python -m tests.fuzz.sequences", description=__doc__)
    p.add_argument("--count", type=int, default=1000, help="sequences (default: 1000)")
    p.add_argument("--seed", type=int, default=0, help="of the first network (default: 0)")
    p.add_argument("--device", choices=DEVICES, default="reference")
    p.add_argument("--dtype", choices=DTYPES, default="float64")
    p.add_argument("--per", type=int, default=50, help="sequences of each network (default: 50)")
    p.add_argument("--wide", type=float, default=0.02, help="share of long vectors (0.02)")
    p.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    p.add_argument("--seconds", type=float, default=math.inf, help="begin none after this time")
    p.add_argument("--shrink", type=float, default=60.0, help="seconds a failure, or 0 (60)")
    p.add_argument("--out", type=Path, help="file to which scripts of failures are appended")
    return p


def main() -> int:
    """Run what the command line asks for."""
    a = parser().parse_args()
    ways, total, start = ways_of(a.device, a.dtype), Counts(), time.monotonic()
    seeds = range(a.seed, a.seed + math.ceil(a.count / a.per))
    begun = itertools.takewhile(lambda _: time.monotonic() < start + a.seconds, seeds)
    kinds: Counter[str] = Counter()
    one = partial(run_one, ways=ways, per=a.per, wide=a.wide, shrinks=a.shrink)
    with (
        contextlib.suppress(KeyboardInterrupt),
        tqdm(total=a.count, unit="sequences", disable=None) as progress,
    ):
        for counts in run_all(begun, one, died, a.jobs):
            total.add(counts)
            progress.update(counts.sequences)
            for seed, kind, text, shown in counts.findings:
                kinds[kind] += 1
                tqdm.write(f"# seed {seed}, {kind}: {text}")
                if a.out is not None and shown:
                    with a.out.open("a") as file:
                        file.write(f"# seed {seed}, {kind}\n{shown}\n")
    taken = time.monotonic() - start
    print(f"{total.sequences} sequences of {total.calls.total()} calls", end="")
    print(f" on {total.networks} networks ({total.refused} refused), {len(total.findings)} wrong")
    print(", ".join(f"{name} {count}" for name, count in total.calls.most_common()))
    for kind, count in kinds.most_common():
        print(f"  {count:5} {kind}")
    rate = total.sequences / max(taken, 1e-9) / a.jobs
    print(
        f"seeds {seeds.start} to {seeds.stop - 1}, {taken:.0f} s, {rate:.1f} a second and process"
    )
    return 1 if total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
