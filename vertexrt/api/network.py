"""What `vrt.compile` returns: a vertex function ready to train and to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.explain import explain_batch, explain_function
from vertexrt.engine.model import (
    CompiledModel,
    Evaluation,
    outputs_of,
    step_seed,
)
from vertexrt.engine.trace import Timeline, recording
from vertexrt.engine.variant import Use
from vertexrt.errors import CheckpointError, PullError, UsageError, message, nearest
from vertexrt.graph import GraphBatch, Pulled
from vertexrt.ir.program import Program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What `Network.backward` returns: gradients of parameters and real pulled values, by name."""

    parameters: dict[str, Array]
    pulled: dict[str, Array]


class Network:
    """A compiled vertex function. Made by `vrt.compile`.

    Attributes:
        parameters: live arrays by name; writing to them changes the network.
        outputs: pushes of the last `step`, as it was asked, in the user's vertex order.
    """

    def __init__(self, model: CompiledModel, seed: int, reduction: str) -> None:
        self._model = model
        self._seed = seed
        self._step = 0
        self._reduction = reduction
        self._pending: tuple[GraphBatch, list[Any], list[Array], Use] | None = None
        self.outputs: dict[str, Array] = {}
        self._pushes = tuple(n["name"] for n in self.program.nodes if n.op == "push")
        self._uses: dict[tuple[str, ...], Use] = {}  # to train, by what is kept
        self._evaluations: dict[tuple[str, ...], Use] = {}  # by what is wanted

    @property
    def program(self) -> Program:
        """F as traced, with stacked products."""
        return self._model.function

    @property
    def device(self) -> str:
        """Name of the backend that runs it."""
        return self._model.backend.name

    @property
    def pushes(self) -> tuple[str, ...]:
        """Names of what F pushes."""
        return self._pushes

    @property
    def parameters(self) -> dict[str, Array]:
        """Live arrays by name; on a GPU as of now, and read again before the next step."""
        self._model.store.refresh()
        return {name: self._model.store.value(name) for name in self._model.store.names}

    def set_parameters(self, values: Mapping[str, Array]) -> None:
        """Copy values into the parameters.

        Raises: CheckpointError, when names or shapes differ; nothing is changed then.
        """
        store = self._model.store
        if set(values) != set(store.names):
            missing = sorted(set(store.names) - set(values))
            extra = sorted(set(values) - set(store.names))
            raise CheckpointError(
                message(
                    "parameters",
                    f"missing {missing}, unknown {extra}",
                    f"the parameters of {self.program.name}: {sorted(store.names)}",
                    "load a checkpoint of the same model",
                )
            )
        for name, value in values.items():
            if np.shape(value) != store.shapes[name]:
                raise CheckpointError(
                    message(
                        "parameters",
                        f"{name!r} has shape {list(np.shape(value))}",
                        f"{list(store.shapes[name])}",
                        "load a checkpoint of the same sizes",
                    )
                )
        store.refresh()
        for name, value in values.items():
            store.value(name)[...] = value

    def step(self, batch: GraphBatch, optimizer: Optimizer, outputs: Collection[str] = ()) -> float:
        """Train on a batch: forward, backward, update.

        Args:
            batch: graphs with the pulled values that F reads.
            optimizer: updates the parameters.
            outputs: pushes to keep in `self.outputs`.
        Returns: the loss, reduced as `vrt.compile` was told. On a GPU the step is not waited for:
            the loss is that of the step before, except for the first step and with outputs.
        Raises: NumericError, when the loss, a gradient, or a number that the update would write to
            a parameter or to the optimizer's state is not finite: it names the first op and vertex
            that made it, or the element of the update, and nothing has changed; on a GPU the next
            call raises it, and steps launched since have changed nothing either. An optimizer with
            an `update` of its own is called with finite gradients only, and what it has written is
            looked at: see `Optimizer`. PullError, when pulled values do not fit.
        """
        names = tuple(outputs)
        use = self._uses.get(names) or self._training(names)
        self._pending = None  # the arena is written anew
        loss, self.outputs = self._model.step(
            use,
            batch,
            optimizer,
            _asks(optimizer),
            self._reduction,
            self._next_seed(),
            names,
        )
        return loss

    def _training(self, names: tuple[str, ...]) -> Use:
        """Return what a step is that keeps pushes; UsageError, where there is none."""
        self._check_names(names)
        if "loss" not in self.pushes:
            raise UsageError(
                message(
                    "step",
                    f"{self.program.name} pushes {', '.join(self.pushes)}",
                    "a push named 'loss'",
                    "push a loss, or use forward and backward",
                )
            )
        use = self._uses[names] = Use(frozenset(names) | {"loss"}, loss=True)
        return use

    def sync(self) -> float:
        """Wait for all steps; return the loss of the last, nan if there was none.

        Raises: NumericError, as `step` does.
        """
        return self._model.sync()

    def forward(
        self, batch: GraphBatch, train: bool = False, outputs: Collection[str] | None = None
    ) -> dict[str, Array]:
        """Evaluate F on a batch.

        Args:
            train: keep what `backward` needs, and let dropout drop.
            outputs: names of pushes; all by default. With `train`, these can get gradients.
        Returns: name -> [V, *shape], in the user's vertex order.
        """
        if not train:
            return self.submit(batch, outputs).result()
        self._pending = None  # the arena is written anew
        names = self._wanted(outputs)
        reals = frozenset(p.name for p in self.program.pulls if p.dtype == "float")
        use = Use(frozenset(names), seeds=frozenset(names), pulls=reals)
        model = self._model
        runs = model.prepare(use, batch)
        parts = [slice(0, run.forward_launches) for run in runs]
        zero = self._zero_seeds(use, runs)
        arenas = model.execute(runs, parts, random_seed=self._next_seed(), seeds=zero)
        self._pending = (batch, runs, arenas, use)
        return {name: outputs_of(runs, arenas, name) for name in names}

    def submit(self, batch: GraphBatch, outputs: Collection[str] | None = None) -> Evaluation:
        """Begin to evaluate F on a batch, without dropout; `result()` of what it returns waits.

        On a GPU the next batch can be submitted, and others prepared, while this one runs. Results
        are of the parameters as they are now. Elsewhere they are there at once.

        Args:
            outputs: names of pushes; all by default.
        """
        self._pending = None  # the arena is written anew
        names = self._pushes if outputs is None else tuple(outputs)
        use = self._evaluations.get(names)
        if use is None:
            self._check_names(names)
            use = self._evaluations[names] = Use(frozenset(names))
        return self._model.submit(use, batch, names)

    def backward(self, d_outputs: Mapping[str, Array]) -> Gradients:
        """Return gradients of the last `forward(batch, train=True)`.

        Args:
            d_outputs: gradients of pushes by name, [V, *shape] in the user's vertex order; pushes
                left out have none.
        Returns: gradients of parameters, and of real pulled values in the shape of their arrays.
        Raises: UsageError, when there was no such forward; PullError, when a shape is wrong.
        """
        if self._pending is None:
            raise UsageError(
                message(
                    "backward",
                    "no forward pass to go back through",
                    "forward(batch, train=True) just before",
                    "call it once for each backward",
                )
            )
        batch, runs, _, use = self._pending
        self._pending = None
        model = self._model
        dtype = model.store.dtype
        whole: dict[str, Array] = {}
        for name in sorted(use.seeds):
            shape = (batch.num_vertices, *runs[0].variant.push_shape(name))
            given = d_outputs.get(name)
            if given is not None and np.shape(given) != shape:
                raise PullError(
                    message(
                        "backward",
                        f"the gradient of {name!r} has shape {list(np.shape(given))}",
                        f"{list(shape)}, one row a vertex",
                        "pass the gradient of what forward returned",
                    )
                )
            whole[name] = np.zeros(shape, dtype) if given is None else np.asarray(given, dtype)
        unknown = set(d_outputs) - set(use.seeds)
        if unknown:
            self._check_names(unknown)
            raise UsageError(
                message(
                    "backward",
                    f"a gradient of {sorted(unknown)}",
                    f"forward was asked for {sorted(use.seeds)}",
                    "name it in forward(outputs=...)",
                )
            )

        def seeds(k: int) -> tuple[Array, ...]:
            part = runs[k].share.vertices
            return tuple(np.ascontiguousarray(whole[n][part]).reshape(-1) for n in whole)

        touched = model.begin_gradients(runs)
        parts = [slice(run.forward_launches, None) for run in runs]
        seed = self._last_seed
        arenas = model.execute(runs, parts, random_seed=seed, seeds=seeds)
        model.collect_gradients(touched)
        parameters = {n: model.store.gradient(n).copy() for n in model.store.names}
        pulled = {n: _pulled_gradient(batch, runs, arenas, n) for n in sorted(use.pulls)}
        return Gradients(parameters, pulled)

    def random_state(self) -> dict[str, int]:
        """Return what continues the random draws: the seed and the number of draws so far."""
        return {"seed": self._seed, "step": self._step}

    def set_random_state(self, state: Mapping[str, int]) -> None:
        """Continue from a state that `random_state` returned."""
        self._seed, self._step = int(state["seed"]), int(state["step"])

    def explain(self) -> str:
        """Print F and dF, the kinds met so far, placement and fused groups."""
        return explain_function(self._model)

    def explain_batch(self, batch: GraphBatch) -> str:
        """Print what a batch costs: levels, rows per task, FLOPs, peak bytes, kernel calls."""
        return explain_batch(self._model, batch)

    def trace(self, timeline: Timeline | None = None) -> AbstractContextManager[Timeline]:
        """Record processors inside a `with`; UsageError, if the engine is not `persistent`."""
        return recording(self._model, timeline)

    def _wanted(self, outputs: Collection[str] | None) -> tuple[str, ...]:
        names = tuple(self.pushes if outputs is None else outputs)
        self._check_names(names)
        return names

    def _check_names(self, names: Collection[str]) -> None:
        for name in names:
            if name not in self.pushes:
                raise UsageError(
                    message(
                        "outputs",
                        f"{name!r}",
                        f"{self.program.name} pushes {', '.join(self.pushes)}",
                        f"ask for one of these.{nearest(name, self.pushes)}",
                    )
                )

    def _next_seed(self) -> int:
        self._last_seed = step_seed(self._seed, self._step)
        self._step += 1
        return self._last_seed

    def _zero_seeds(self, use: Use, runs: list[Any]) -> tuple[Array, ...]:
        return tuple(np.zeros(1, self._model.store.dtype) for _ in use.seeds)


def _asks(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer leaves the update to us; it may have one of its own."""
    return getattr(type(optimizer), "update", None) is Optimizer.update


def _pulled_gradient(batch: GraphBatch, runs: list[Any], arenas: list[Array], name: str) -> Array:
    """Add up the gradients of pulled values over the vertices that pulled them."""
    from vertexrt.engine.batched import rows_of_vertices

    value = batch.pulls[name]
    table = value.values if isinstance(value, Pulled) else value
    index = value.index if isinstance(value, Pulled) else None
    out = np.zeros(table.shape, arenas[0].dtype)
    if ("pull_grad", name) not in runs[0].variant.table.numbers:
        return out
    for run, data in zip(runs, arenas, strict=True):
        mine = run.share.vertices
        rows = mine if index is None else index[mine]
        has = np.flatnonzero(rows >= 0)
        given = rows_of_vertices(run, data, ("pull_grad", name), has).reshape(-1, *table.shape[1:])
        np.add.at(out, rows[has], given)
    return out
