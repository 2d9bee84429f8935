"""Run a vertex function in one way or another, so that two ways can be compared.

A `Result` holds what a run gives to the outside: pushes, gradients of parameters and of pulled
values. Gradients come back through both doors: from arrays that the user gives for every push
(`evaluate`), and from the push `loss` inside `step` (`train`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.engine.devices import module_of
from vertexrt.engine.executor import Executor
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import CompileOptions, Passes, Use
from vertexrt.ir.program import Program
from vertexrt.kernels.cuda.compile_for_gpu import compile_on

Arrays = dict[str, np.ndarray]

# Relative to the largest element of each array. Sums run in another order, nothing else differs.
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gives to the outside."""

    outputs: Arrays
    parameters: Arrays
    pulled: Arrays
    loss: float = 0.0


ALL = Passes()


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running: everything that may not change a result."""

    device: str = "reference"
    dtype: str = "float64"
    policy: str = "frontier"
    threads: int = 1
    passes: Passes = ALL
    engine: str = "batched"
    processors: int | None = None
    tune: bool = False
    order: str | int = "last"  # of the shim's streams
    shuffle: int = 0  # seed of the order of the shim's threads; 0 takes them in turn

    def __str__(self) -> str:
        """Name what is not as it is by default."""
        named = [self.device, self.dtype, self.policy, self.engine, self.threads, self.processors]
        plain = ("float64", "frontier", "batched", 1, None)
        told = [str(x) for k, x in enumerate(named) if x not in plain or not k]
        changed = asdict(self.passes).items() - asdict(ALL).items()
        return "-".join([*told, *sorted(f"{field}={x}" for field, x in changed)])

    def compile(self, function: vrt.VertexFunction | vrt.Model, seed: int = 3) -> vrt.Network:
        if self.device == "shim":
            net = vrt.Network(self.executor(function), seed, "mean_graphs")
        else:
            net = vrt.compile(
                function,
                device=self.device,
                dtype=self.dtype,
                policy=self.policy,
                threads=self.threads,
                passes=self.passes,
                engine=self.engine,
                processors=self.processors,
                tune=self.tune,
                seed=seed,
            )
        return self.with_values(net, seed)

    def with_values(self, net: vrt.Network, seed: int = 3) -> vrt.Network:
        """Set all parameters. None may be zero: half of the derivatives would be."""
        drawn = cotangents({name: value.shape for name, value in net.parameters.items()}, seed)
        net.parameters.update({name: 0.5 * value for name, value in drawn.items()})
        return net

    def model(self, function: vrt.VertexFunction | vrt.Model) -> CompiledModel:
        """Compile what a network has inside, to prepare batches and look at what became of F."""
        return self.executor(function).model

    def executor(self, function: vrt.VertexFunction | vrt.Model) -> Executor:
        """Compile what a network hands its batches to; on the shim, the CPU is the GPU."""
        if self.device != "shim":
            module = module_of(self.device)
            return module.compile_for(self.device, function.trace(), self.options())
        from tests.shim_device import ShimDevice

        shim = ShimDevice(self.shuffle, order=self.order)
        return compile_on(shim, function.trace(), self.options())

    def options(self) -> CompileOptions:
        return CompileOptions(
            np.dtype(self.dtype),
            self.policy,
            self.passes,
            "float32",
            self.engine,
            self.threads,
            self.processors,
            tune=self.tune,
        )


OFF = Passes(specialise=False, eager=False, lazy=False, stack=False, fuse=False, merge=False)
DRAWS = {"seed": 11, "draws": 4}  # where the random draws of a run start
# What devices are compared with: of frontiers, which take half as long in Python as one vertex a
# task does. That is for where policies are judged.
PLAIN = Way(passes=OFF)
SERIAL = replace(PLAIN, policy="serial")


def use_of(kind: str, program: Program) -> Use:
    """Return what `evaluate` ("gradients"), `train` ("training") or an inference asks for."""
    pushes = frozenset(n["name"] for n in program.nodes if n.op == "push")
    if kind == "training":
        return Use(pushes, loss=True)
    if kind == "inference":
        return Use(pushes)
    return Use(pushes, d_pushes=pushes, pulls=program.real_pulls)


def cotangents(shapes: dict[str, tuple[int, ...]], seed: int = 5) -> Arrays:
    """Draw a gradient for each push; the same for the same name and shape."""
    return {
        name: np.random.default_rng([seed, *name.encode()]).standard_normal(shape)
        for name, shape in shapes.items()
    }


def evaluate(net: vrt.Network, batch: vrt.GraphBatch) -> Result:
    """Go forward and back with drawn gradients of all pushes."""
    net.load_state({"random": DRAWS})
    run = net.record(batch)
    d_outputs = cotangents({name: value.shape for name, value in run.outputs.items()})
    gradients = run.backward(d_outputs)
    return Result(dict(run.outputs), gradients.parameters, gradients.pulled)


class Capture:
    """An optimizer that keeps the gradients of a step and changes nothing."""

    def __init__(self) -> None:
        self.gradients: Arrays = {}

    def update(self, store: Any) -> None:
        self.gradients = {name: store.gradient(name).copy() for name in store.trained}


def train(net: vrt.Network, batch: vrt.GraphBatch) -> Result:
    """Take a step whose update is left out."""
    net.load_state({"random": DRAWS})
    capture = Capture()
    loss = net.step(batch, capture, outputs=net.pushes)  # type: ignore[arg-type]
    return Result(dict(loss.outputs), capture.gradients, {}, float(loss))


def assert_close(
    got: np.ndarray, want: np.ndarray, rtol: float, what: str, rounding: float = 0.0
) -> None:
    """Compare relative to the largest element wanted; not-a-number never passes.

    Args:
        rounding: what it may be off by besides.
    """
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    if got.size:
        error = np.abs(got.astype(np.float64) - want).max()
        scale = max(float(np.abs(want).max()), 1e-3)
        off = f"{what}: off by {error:.3g} at scale {scale:.3g}"
        assert error <= rtol * scale + rounding, off


def assert_bits(got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """Compare arrays by name, to the last bit; `got` may have more."""
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def assert_same(got: Result, want: Result, rtol: float, rounded: Result | None = None) -> None:
    """Compare everything that two runs gave to the outside.

    Args:
        rounded: of the plainest way in float32: where sums cancel, that is off by more than `rtol`,
            and another order of them by up to four times as much.
    """
    for part in ("outputs", "parameters", "pulled"):
        mine, theirs = getattr(got, part), getattr(want, part)
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            rounding = 0.0
            if rounded is not None:
                rounding = 4.0 * np.abs(getattr(rounded, part)[name] - value).max(initial=0.0)
            assert_close(mine[name], value, rtol, f"{part} {name}", rounding)
    terms = want.outputs.get("loss", np.zeros(1))  # which may cancel each other
    scale = max(abs(want.loss), float(np.abs(terms).max(initial=0.0)), 1e-3)
    rounding = 0.0 if rounded is None else 4.0 * abs(rounded.loss - want.loss)
    assert abs(got.loss - want.loss) <= max(rtol * scale, rounding)


STEP = 1e-6  # of central differences in float64: rounding and curvature are both near 1e-10


def assert_output_gradients(net: vrt.Network, batch: vrt.GraphBatch) -> None:
    """Check the gradients of `backward`, of parameters and pulls, against central differences."""
    got = evaluate(net, batch)
    d_outputs = cotangents({name: value.shape for name, value in got.outputs.items()})

    def value(here: vrt.GraphBatch) -> float:
        net.load_state({"random": DRAWS})
        out = net.record(here)
        return sum(float((out.outputs[name] * d_outputs[name]).sum()) for name in out.outputs)

    for moved in [[name] for name in got.parameters] + [list(got.parameters)]:
        _assert_along(net, got.parameters, moved, lambda: value(batch))
    for name, gradient in got.pulled.items():
        d = cotangents({name: gradient.shape}, seed=7)[name]
        plus = value(_with_pull(batch, name, STEP * d))
        minus = value(_with_pull(batch, name, -STEP * d))
        _compare(float((gradient * d).sum()), (plus - minus) / (2 * STEP), f"pull {name}")


def assert_loss_gradients(net: vrt.Network, batch: vrt.GraphBatch) -> None:
    """Check the gradients of `step` against central differences of the loss that it returns."""
    got = train(net, batch)
    _assert_along(net, got.parameters, list(got.parameters), lambda: train(net, batch).loss)


def _assert_along(
    net: vrt.Network, gradients: Arrays, moved: list[str], value: Callable[[], float]
) -> None:
    """Move some parameters in a random direction and back."""
    start = dict(net.parameters)
    directions = cotangents({name: given.shape for name, given in start.items()}, seed=6)
    ends = []
    for sign in (1, -1):
        net.parameters.update(
            {n: p + sign * STEP * directions[n] * (n in moved) for n, p in start.items()}
        )
        ends.append(value())
    net.parameters.update(start)
    along = sum(float((gradients[n] * directions[n]).sum()) for n in moved)
    _compare(along, (ends[0] - ends[1]) / (2 * STEP), f"parameters {', '.join(moved)}")


def _with_pull(batch: vrt.GraphBatch, name: str, by: np.ndarray) -> vrt.GraphBatch:
    of_edges = name in batch.edge_pulls
    given = batch.edge_pulls if of_edges else batch.pulls
    pull = given[name]
    moved = vrt.Rows(pull.table + by, pull.index) if isinstance(pull, vrt.Rows) else pull + by
    both = {**given, name: moved}
    return replace(batch, edge_pulls=both) if of_edges else replace(batch, pulls=both)


def _compare(got: float, want: float, what: str) -> None:
    assert abs(got - want) <= 1e-7 * max(1.0, abs(want)), f"{what}: {got}, by differences {want}"
