"""`vrt.compile`: from a vertex function, or a model of several, to a network."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import numpy as np

from vertexrt.api.init import LARGEST_SEED, draw
from vertexrt.api.network import Network
from vertexrt.api.vertex_function import Model, VertexFunction
from vertexrt.checks import is_whole
from vertexrt.engine.devices import (
    DTYPES,
    ENGINES,
    PRECISIONS,
    WITH_PRECISIONS,
    device_named,
    module_of,
)
from vertexrt.engine.model import POLICIES, REDUCTIONS
from vertexrt.engine.variant import MOST_STREAMS, CompileOptions, Passes
from vertexrt.errors import UsageError, message, nearest
from vertexrt.ir.program import read_by
from vertexrt.locks import ProcessLock

_tracing = ProcessLock()
MOST_THREADS = 1024  # that share a batch, or processors of a group


def compile(
    function: VertexFunction | Model,
    *,
    device: str = "auto",
    engine: str = "auto",
    dtype: Any = "float32",
    policy: str = "frontier",
    seed: int = 0,
    threads: int | None = None,
    processors: int | None = None,
    tune: bool = False,
    reduction: str = "mean_graphs",
    precision: str = "float32",
    passes: Passes | None = None,
) -> Network:
    """Compile a vertex function.

    Args:
        function: F, or a model of several functions; each `forward` is traced once.
        device: `cuda`, `cpu`, `reference` (plain NumPy, the oracle), or `auto`: a GPU where there
            is a usable one and the engine runs there, else the CPU; `Network.device` says which.
        engine: `batched`; `persistent` (driven by scripts, whose processors share the weights of
            each task); or `auto`: a cost model of the device takes one for each batch, by F and by
            the batch's numbers of graphs, vertices, edges and levels alone.
        dtype: float32 or float64.
        policy: how vertices are batched: frontier, depth, agenda or serial. Results are equal.
        seed: of the initial parameters and of dropout; from 0 to 2**64 - 1.
        threads: how many share a batch; by default VERTEXRT_THREADS, or as many as the
            process may use (guide: speed); the network's `repr` says how many.
            A run repeats bit for bit with the same number.
        processors: of a group of the persistent engine; threads / processors groups share a batch.
            By default a cost model picks the number for each batch. On a GPU processors are
            blocks, and by default a group has as few as hold the weights.
        tune: let `auto` time the best four by that model on the first minibatches of each size, and
            keep the fastest, on disk too. Runs may differ in the last bits then.
        reduction: the loss is the sum over vertices of push `loss`, divided by the number of
            graphs (`mean_graphs`), by the number of vertices that have a loss (`mean_vertices`), or
            not (`sum`).
        precision: of products of float32 on a GPU: `float32`; `tf32`, whose operands keep 10 bits
            of the mantissa (relative error about 1e-3 a product); or, with the persistent engine,
            `bf16`, which keeps 7 (about 1e-2), and holds the weights of the recurrence in half the
            room. Sums, parameters and everything else stay float32. Where `auto` takes the CPU,
            products are of float32.
        passes: which optimisations run; all by default.
    Raises: TraceError for a mistake in F, UsageError for an unknown option, DeviceError where a
        device is missing or has too little memory.
    """
    try:
        real = str(np.dtype(dtype).name)
    except TypeError:  # NumPy does not know it either
        real = str(dtype)
    for given, known, name in (
        (engine, ENGINES, "engine"),
        (real, DTYPES, "dtype"),
        (policy, POLICIES, "policy"),
        (reduction, REDUCTIONS, "reduction"),
        (precision, PRECISIONS, "precision"),
    ):
        if not isinstance(given, str) or given not in known:
            raise UsageError.at(
                "compile",
                f"{name} is {given!r}",
                "one of " + ", ".join(known),
                f"choose one of these.{nearest(given, known)}",
            )
    if precision != "float32" and (device not in WITH_PRECISIONS or real != "float32"):
        raise UsageError.at(
            "compile",
            f"precision is {precision!r} with device={device!r}, dtype {real}",
            "device='cuda' and float32",
            "leave precision out",
        )
    if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
        raise UsageError.at(
            "compile", f"seed is {seed!r}", "a whole number from 0 to 2**64 - 1", "change it"
        )
    for name, number in (("threads", threads), ("processors", processors)):
        if number is not None and not (is_whole(number) and 1 <= number <= MOST_THREADS):
            raise UsageError.at(
                "compile", f"{name} is {number!r}", f"1 to {MOST_THREADS}", f"leave {name} out"
            )
    if not isinstance(tune, bool) or (tune and engine != "auto"):
        raise UsageError.at(
            "compile",
            f"tune is {tune!r} with engine={engine!r}",
            "True with engine='auto', or False",
            "leave tune out",
        )
    if not isinstance(device, str):
        raise UsageError.at("compile", f"device is {device!r}", "a string", "write device='cpu'")
    f: object = function
    if not isinstance(f, (VertexFunction, Model)):
        name = f.__name__ if isinstance(f, type) else "MyFunction"
        raise UsageError.at(
            "compile",
            f"the class {name}" if isinstance(f, type) else f"a {type(f).__name__}",
            "an instance of a subclass of vrt.VertexFunction or vrt.Model",
            f"write vrt.compile({name}(...))",
        )
    function.parameters()  # whose names are checked before all else
    device = device_named(device)
    chosen = Passes() if passes is None else passes
    if not isinstance(chosen, Passes):
        raise UsageError.at(
            "compile", f"passes is {passes!r}", "a Passes, or None", "leave passes out"
        )
    for field in fields(chosen):
        value = getattr(chosen, field.name)
        if type(value) is not type(field.default):
            raise UsageError.at(
                "compile",
                f"Passes({field.name}={value!r})",
                f"of type {type(field.default).__name__}",
                f"leave {field.name} out",
            )
    if chosen.streams not in range(1, MOST_STREAMS + 1):
        raise UsageError.at(
            "compile",
            f"Passes(streams={chosen.streams!r})",
            f"1 to {MOST_STREAMS}",
            "leave streams out, or take 2",
        )
    module = module_of(device)
    options = CompileOptions(
        np.dtype(dtype), policy, chosen, precision, engine, threads, processors, tune=tune
    )
    module.check(device, options)
    with _tracing.held:  # a thread at a time, since F notes what it has pulled and pushed
        traced = function.trace()
    executor = module.compile_for(device, traced, options)
    parameters = function.parameters()  # with the constants of its forward()
    for name, parameter in parameters.items():
        executor.model.store.value(name)[...] = draw(name, parameter.shape, parameter.init, seed)
    net = Network(executor, seed, reduction)
    unread = sorted(set(parameters) - read_by(traced, net.pushes))
    if unread:
        got, expected = f"nothing reads {', '.join(unread)}", "parameters that pushes depend on"
        warnings.warn(
            message("compile", got, expected, "compute with it in forward(), or leave it out"),
            stacklevel=2,
        )
    return net
