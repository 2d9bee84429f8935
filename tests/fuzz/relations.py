"""What a network did before, and how it is asked, change no bit of its results.

A relation needs no oracle: it compares two runs. Of networks that drop, which no oracle judges, the
plainest way has to compute the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz.batches import draw_batch, graph_batch, parameters
from tests.fuzz.bounded import Array
from tests.fuzz.calls import PARAMETERS, Expected
from tests.fuzz.campaign import Finding, Settings, Tally
from tests.fuzz.compare import outcome_of, rounding, scale
from tests.fuzz.function import builder, source
from tests.fuzz.generate import FUNCTION, draw_network
from tests.planned import tables_of
from tests.runs import DRAWS, SERIAL, Capture, cotangents
from vertexrt.errors import NoKernelError

Arrays = dict[str, Array]
LOOSELY = 1000.0  # times rounding, relative to the largest element, for want of a better bound


def run(
    net: vrt.Network, batch: vrt.GraphBatch, between: Callable[[], object] = lambda: None
) -> Arrays:
    """Go forward and back, then take a step that changes nothing; name what each gave."""
    net.load_state({"random": DRAWS})
    made = net.record(batch)
    between()
    gradients = made.backward(cotangents({n: x.shape for n, x in made.outputs.items()}))
    found = {f"push {name}": np.array(value) for name, value in made.outputs.items()}
    found |= {f"gradient {name}": value for name, value in gradients.parameters.items()}
    found |= {f"pulled {name}": value for name, value in gradients.pulled.items()}
    net.load_state({"random": DRAWS})
    capture = Capture()
    loss = net.step(batch, capture, outputs=net.pushes)  # type: ignore[arg-type]
    found |= {f"updated {name}": value for name, value in capture.gradients.items()}
    return {**found, "loss": np.array(float(loss))}


def differences(
    first: vrt.Network,
    second: vrt.Network,
    batches: list[vrt.GraphBatch],
    again: vrt.GraphBatch,
    planned: float,
) -> Iterator[str]:
    """Say which results of the first batch have other bits.

    Args:
        first, second: networks of the same function, both alive; again: the first batch, anew.
        planned: what results of a plan may be off by, of the largest.
    """
    batch, other, third = batches
    base, alive = run(first, batch), []

    def same(where: str, got: Mapping[str, Any], want: Mapping[str, Any] = base) -> Iterator[str]:
        for name, value in want.items():
            if not np.array_equal(got[name], value, equal_nan=True):
                yield f"{where}: other bits of {name}"

    yield from same("repeated", run(first, batch))
    yield from same("of the same batch anew", run(first, again))
    yield from same("in a second network", run(second, batch))
    second(other)
    second.step(third, Capture())  # type: ignore[arg-type]
    yield from same("after other batches", run(second, batch))
    for call in (first, first.record):
        between = run(first, batch, lambda call=call: alive.append(call(other)))  # type: ignore[misc]
        yield from same("around another forward", between)
    got = first.plan(batch)(tables_of(batch))
    for name, value in first(batch).items():
        off = np.abs(got[name] - value) > planned * scale(value)
        if off.any() or not np.array_equal(np.isnan(got[name]), np.isnan(value)):
            yield f"by a plan: other bits of {name}"


def run_one(seed: int, settings: Settings) -> Tally:
    """Draw a network, or one that drops, and run it in one way; all take turns."""
    rng, tally = np.random.default_rng([seed, 52]), Tally(1)
    drops = bool(rng.random() < 0.2)
    style = replace(FUNCTION, nodes=settings.nodes, dropped=drops)
    network = draw_network(rng, style)
    while drops and "vrt.random.dropout" not in source(network):
        network = draw_network(rng, style)
    specs = [draw_batch(rng, network, settings.most) for _ in range(3)]
    values = parameters(Expected(network, specs).shapes, PARAMETERS)
    (way,) = settings.turns(seed, 1, plain=not drops)
    tally.tried[way.name] += 1
    try:
        function, batches = builder(source(network)), [graph_batch(spec) for spec in specs]
        nets = [way.compile(function(vrt), values, 1 + seed % 1_000_000) for _ in "ab"]
        # A plan merges no rows, and products of NumPy have other bits for another number of rows.
        planned = LOOSELY * rounding(settings.dtype) if settings.device == "reference" else 0.0
        found = [*differences(*nets, batches, graph_batch(specs[0]), planned)]
        if drops:
            plain = SERIAL.compile(function(vrt))
            plain.parameters.update(values)
            got = run(nets[0], batches[0])
            for name, value in run(plain, batches[0]).items():
                off = np.max(np.abs(got[name] - value), initial=0.0)
                if not off <= LOOSELY * scale(value) * rounding(settings.dtype):
                    found.append(f"{name}: off by {off} from the plainest way")
        kind = "other bits"
    except NoKernelError:
        tally.refused[way.name] += 1
        return tally
    except Exception as error:  # noqa: BLE001 - any error at all is what a fuzzer looks for
        outcome = outcome_of(error)
        kind, found = outcome.kind, [outcome.text]
    if found:
        again = (
            f"python -m tests.fuzz relations --seed {seed} --count 1 --device {settings.device} "
            f"--dtype {settings.dtype} --ways {way.name} --most {settings.most} "
            f"--nodes {settings.nodes}"
        )
        tally.findings.append(Finding(seed, way.name, kind, "; ".join(found), again))
    return tally
