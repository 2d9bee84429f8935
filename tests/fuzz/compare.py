"""Run a function in one way and compare everything that comes out with the oracle."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz import oracle
from tests.fuzz.batches import BatchSpec, graph_batch, parameters, pulled_rows, relations_of
from tests.fuzz.bounded import Array, Bounded, exact
from tests.fuzz.evaluate import OracleGradients, OracleRun
from tests.fuzz.function import Build
from tests.fuzz.ways import NamedWay, ways_of
from tests.planned import by_plan
from tests.runs import PLAIN, Capture, cotangents, evaluate, train
from vertexrt.errors import NoKernelError

PARAMETERS = 7  # seed of the parameters of every function
# A result may be this many times off the first-order bound; two compared numbers that are this
# many times the bound apart are on the same side in every run.
SLACK = {"float64": 64.0, "float32": 8.0}
# A bound that is wider than this, relative to the largest element, would show nothing.
WIDEST = 0.02
DROPPED = 1000.0  # bound relative to the largest element, where two ways are compared
NOT_FINITE = "not finite"
GRADIENTS = ("gradient", "updated", "backward")  # how differences of gradients begin


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a batch is compared besides the first step; drawn from its seed.

    Attributes:
        sgd: the step is one of SGD with a learning rate of 1; else gradients are captured.
        again: a step without outputs, and an inference.
        back: record and backward.
        asked: pushes that forward is asked for; given: those whose gradient backward gets.
    """

    sgd: bool
    again: bool
    back: bool
    asked: tuple[str, ...]
    given: tuple[str, ...]


def plan_of(seed: int, pushes: Sequence[str]) -> Plan:
    """Draw a plan; a few pushes may be left out."""
    draw = random.Random(seed)
    asked = tuple(name for name in pushes if draw.random() < 0.7) or tuple(pushes[:1])
    given = tuple(name for name in asked if draw.random() < 0.8) or asked[:1]
    return Plan(draw.random() < 0.4, draw.random() < 0.2, draw.random() < 0.6, asked, given)


class Expected:
    """What the oracle says of a function and one batch.

    Attributes:
        pushes: [V, *shape] by name; loss: of a step; step: its gradients.
        back: gradients for drawn gradients of the pushes that the plan gives.
    """

    def __init__(self, build: Build, spec: BatchSpec) -> None:
        function = build(oracle)
        shapes = {name: p.shape for name, p in function.parameters().items()}
        self.parameters = parameters(shapes, PARAMETERS)
        self.batch = graph_batch(spec)
        children = spec.children
        relations = relations_of(spec, children)
        run = OracleRun(function, children, pulled_rows(spec), self.parameters, relations)
        self.tape = run.tape
        self.pushes = {name: run.push(name) for name in run.pushes}
        self.plan = plan_of(spec.seed, run.pushes)
        scale = 1.0 / len(spec.graphs)
        self.loss = self.pushes["loss"].sum(0) * exact(scale)
        count = self.batch.num_vertices
        self.step = run.gradients({"loss": np.full(count, scale)}).parameters
        self.d_pushes: dict[str, Array] = {
            name: np.round(d * 256) / 256
            for name, d in cotangents(
                {n: self.pushes[n].shape for n in self.plan.given}, spec.seed % 1000
            ).items()
        }
        self.back: OracleGradients = run.gradients(self.d_pushes)

    def unclear(self, dtype: str) -> bool:
        """Tell whether rounding in a type may lead elsewhere, or hide what is wrong."""
        eps = SLACK[dtype] * np.finfo(dtype).eps
        arrays = (*self.pushes.values(), *self.step.values(), *self.back.parameters.values())
        wide = max((float(np.max(a.error, initial=0.0)) / _scale(a) for a in arrays), default=0.0)
        return self.tape.closest <= eps or wide * eps > WIDEST


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        kind: "right", "refused" (there is no kernel of this engine), "tied" (gradients differ, and
            equal numbers were compared), "wrong", or for an error its class and its place.
        text: what differs, or the error.
    """

    kind: str
    text: str = ""

    @property
    def failed(self) -> bool:
        """Tell whether it is a finding."""
        return self.kind not in ("right", "refused", "tied")


def check(build: Build, expected: Sequence[Expected], way: NamedWay, shuffle: int = 1) -> Outcome:
    """Run batches after each other in one network; stop at the first that differs."""
    try:
        net = way.compile(network_of(build, expected[0].batch), expected[0].parameters, shuffle)
        for want in expected:
            texts = _differences(net, want, way.way.dtype)
            if want.tape.drops:
                texts = _dropped(net, build, want, way.way.dtype)
            found = [text for text in texts if text]
            if found:
                only_gradients = all(text.startswith(GRADIENTS) for text in found)
                tied = want.tape.tied and only_gradients and NOT_FINITE not in "; ".join(found)
                return Outcome("tied" if tied else "wrong", "; ".join(found))
    except NoKernelError as error:
        return Outcome("refused", str(error))
    except Exception as error:  # noqa: BLE001 - any error at all is what a fuzzer looks for
        return error_outcome(error)
    return Outcome("right")


def network_of(build: Build, batch: vrt.GraphBatch) -> Any:
    """Return what is compiled: the function, or where relations have names, a model of it alone."""
    function = build(vrt)
    if batch.types is None:
        return function
    model = vrt.Model()
    vars(model).update(function.parameters())  # so that they have the same names
    vars(model)["f"] = function
    return model


def error_outcome(error: Exception) -> Outcome:
    """Name the deepest line of the package that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "vertexrt" in Path(f.filename).parts[:-1]] or list(frames)
    last = inside[-1]
    where = f"{Path(last.filename).name} {last.name}"
    text = f"{type(error).__name__} in {where}, line {last.lineno}: {' '.join(str(error).split())}"
    return Outcome(f"{type(error).__name__} in {where}", text[:600])


def _scale(want: Bounded) -> float:
    return max(1.0, float(np.max(np.abs(want.value), initial=0.0)))


def difference(got: Any, want: Bounded, dtype: str, what: str) -> str:
    """Say how a result differs; "" where it is within the bound."""
    array = np.asarray(got)
    if array.shape != want.shape:
        return f"{what}: shape {array.shape}, not {want.shape}"
    if not np.isfinite(array).all():
        return f"{what}: {NOT_FINITE}"
    eps = SLACK[dtype] * float(np.finfo(dtype).eps)
    allowed = eps * (want.error + np.abs(want.value)) + 4.0 * np.finfo(dtype).tiny
    off = np.abs(array - want.value)
    if (off <= allowed).all():
        return ""
    return (
        f"{what}: off by {off.max():.3g} of {_scale(want):.3g}, {(off / allowed).max():.3g} times"
    )


def _all(
    got: Mapping[str, Any], want: Mapping[str, Bounded], dtype: str, what: str
) -> Iterator[str]:
    for name, value in want.items():
        yield difference(got[name], value, dtype, f"{what} {name}")


def _differences(net: vrt.Network, want: Expected, dtype: str) -> Iterator[str]:
    """Yield what differs, in the order in which things are run; "" for what does not."""
    plan = want.plan
    if plan.again:
        yield from _inference(net, want, dtype)
    yield from _step(net, want, dtype)
    if plan.again:
        capture = Capture()
        loss = net.step(want.batch, capture)  # type: ignore[arg-type]
        yield difference(float(loss), want.loss, dtype, "loss of a step without outputs")
        yield from _all(capture.gradients, want.step, dtype, "gradient of a step without outputs")
    if plan.back:
        found = net.record(want.batch, outputs=plan.asked)
        pushes = {name: want.pushes[name] for name in plan.asked}
        yield from _all(found.outputs, pushes, dtype, "record")
        if plan.again:
            net(want.batch, outputs=plan.asked)
        gradients = found.backward(want.d_pushes)
        if gradients.parameters.keys() != want.back.parameters.keys():
            yield f"backward: gradients of {sorted(gradients.parameters)}"
        yield from _all(gradients.parameters, want.back.parameters, dtype, "backward")
        pulled = {name: want.back.pulled[name] for name in gradients.pulled}
        yield from _all(gradients.pulled, pulled, dtype, "backward of pull")


def _inference(net: vrt.Network, want: Expected, dtype: str) -> Iterator[str]:
    asked = want.plan.asked
    pushes = {name: want.pushes[name] for name in asked}
    yield from _all(net(want.batch, outputs=asked), pushes, dtype, "inference")
    yield from _all(by_plan(net, want.batch, asked), pushes, dtype, "plan")


def _dropped(net: vrt.Network, build: Build, want: Expected, dtype: str) -> Iterator[str]:
    """Yield how a function with dropout differs: from the oracle in inference, which does not drop,
    and in training from the plainest way, whose masks are the same.
    """
    yield from _inference(net, want, dtype)
    plain = PLAIN.compile(network_of(build, want.batch))
    plain.parameters.update(want.parameters)
    for run in (evaluate, train):
        got, other = run(net, want.batch), run(plain, want.batch)
        yield difference(got.loss, _loosely(np.float64(other.loss)), dtype, "loss with dropout")
        for part in ("outputs", "parameters", "pulled"):
            theirs = {name: _loosely(value) for name, value in getattr(other, part).items()}
            yield from _all(getattr(got, part), theirs, dtype, f"{part} with dropout:")


def _loosely(value: Any) -> Bounded:
    """Return what another way computed, with a bound for want of a better one."""
    number = exact(value)
    return Bounded(number.value, np.full(number.shape, DROPPED * _scale(number)))


def _step(net: vrt.Network, want: Expected, dtype: str) -> Iterator[str]:
    """Take a step that captures gradients, or one of SGD that moves parameters by them."""
    names = tuple(want.pushes)
    capture, sgd = Capture(), vrt.SGD(lr=1.0)
    optimizer: Any = sgd if want.plan.sgd else capture
    loss = net.step(want.batch, optimizer, outputs=names)
    yield difference(float(loss), want.loss, dtype, "loss")
    yield from _all(loss.outputs, want.pushes, dtype, "push")
    if want.plan.sgd:
        moved = {n: exact(p) for n, p in want.parameters.items()}
        moved |= {n: moved[n] - gradient for n, gradient in want.step.items()}
        yield from _all(net.parameters, moved, dtype, "updated parameter")
        net.parameters.update(want.parameters)
    else:
        yield from _all(capture.gradients, want.step, dtype, "gradient")


def report(
    build: Build, batches: Sequence[BatchSpec], device: str, dtype: str, way: str, shuffle: int = 1
) -> None:
    """Run one way and exit: 1 with what is wrong, 0 without. Shrunk failures call it."""
    (named,) = [w for w in ways_of(device, dtype) if w.name == way]
    outcome = check(build, [Expected(build, b) for b in batches], named, shuffle)
    print(outcome.kind, outcome.text)
    sys.exit(outcome.failed)
