"""What `vrt.compile` returns: a vertex function ready to train and to run."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from vertexrt.api.arguments import (
    check_batch,
    check_graphs,
    check_known,
    check_loss,
    check_mapping,
    check_optimizer,
    check_scale,
    names_of,
    refuse_pulls,
)
from vertexrt.api.evaluations import Draws, Evaluations
from vertexrt.api.forward_passes import ForwardPasses
from vertexrt.api.gradients import AccumulatedGradients, given_gradients
from vertexrt.api.init import LARGEST_SEED
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.on_device import OnDevice
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer
from vertexrt.api.parameters import NameDifferences, Parameters
from vertexrt.api.plan import Plan
from vertexrt.api.turns import in_turn
from vertexrt.engine.executor import Evaluation, Executor, loss_scale
from vertexrt.engine.explain import explain_batch, explain_function
from vertexrt.engine.results import Gradients
from vertexrt.engine.trace import Timeline, recording
from vertexrt.engine.variant import Use
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Program
from vertexrt.parallel.group import ProcessGroup

Array = np.ndarray[Any, Any]


class Network:
    """A compiled vertex function. Made by `vrt.compile`.

    Threads may share it: each call has it to itself, and others wait. `forward(train=True)` and
    `backward` are two calls: where another thread comes between, keep what `forward` returned and
    pass it to `backward`, or it raises UsageError.
    A forked child has a network of its own, as it was; on a GPU it has none (`spawn` works).
    On the host, whatever exception ends a step, KeyboardInterrupt at any time too, parameters, the
    state of the optimizer and the random state are those before the step or after it.

    Attributes:
        on_device: the same network, whose arrays stay on its device.
        parameters: live arrays by name; writing to them, or setting them, changes the network.
        outputs: pushes of the last `step` of this thread, in the user's vertex order, or of the
            vertices that it was asked for.
    """

    def __init__(self, executor: Executor, seed: int, reduction: str) -> None:
        self._executor = executor
        self._model = executor.model
        self._draws = Draws(seed)
        self._gradients: AccumulatedGradients | None = None
        self._passes = ForwardPasses(executor)
        self._evaluations = Evaluations(executor, self._passes, self._draws, reduction)
        self.on_device = OnDevice(executor, self._passes, self._evaluations)
        self._outputs = threading.local()
        self._pushes = self._evaluations.pushes

    def __repr__(self) -> str:
        engine, store = self._model.engine, self._model.store
        count = sum(math.prod(shape) for shape in store.shapes.values())
        how = f"engine={engine!r}, threads={self._model.threads}, {store.dtype}"
        what = f"{self.program.name} on {self.device}, {how}"
        return f"Network({what}, {count:,} parameters, pushes {', '.join(self.pushes)})"

    @property
    def executor(self) -> Executor:
        """What prepares and runs batches on the device; to look at and to measure, not to use."""
        return self._executor

    @property
    def program(self) -> Program:
        """F as traced, with stacked products."""
        return self._model.function

    @property
    def device(self) -> str:
        """Name of the backend that runs it."""
        return self._model.backend.name

    @property
    def reduction(self) -> str:
        """How `step` reduces the loss, see `vrt.compile`."""
        return self._evaluations.reduction

    @property
    def pushes(self) -> tuple[str, ...]:
        """Names of what F pushes."""
        return self._pushes

    @property
    def outputs(self) -> dict[str, Array]:
        """Pushes of the last `step` that this thread called, by name."""
        return getattr(self._outputs, "of_step", {})

    def __reduce_ex__(self, _: object) -> NoReturn:
        """Refuse copies, and with them pickling: it holds compiled code and a device."""
        again = "vrt.compile(...).set_parameters(net.parameters)"
        action = f"compile the function again and copy the parameters: {again}"
        got = "a network is to be copied or pickled"
        raise UsageError.at("network", got, "arrays, which can be", action)

    @property
    def parameters(self) -> Parameters:
        """Live arrays by name; setting one copies. On a GPU as of now, and read before a step."""
        with self._executor.lock:
            return Parameters(self._model.store, self._executor.lock)

    @in_turn
    def set_parameters(
        self, values: Mapping[str, Array], *, strict: bool = True
    ) -> NameDifferences:
        """Copy values into parameters by name.

        Args:
            strict: names must be those of all parameters; else parameters without a value stay as
                they are, and values without a parameter are left out.
        Returns: which names are missing and unexpected; none, if `strict`.
        Raises: CheckpointError, when names differ and `strict`, or shapes differ, or numbers are
            not real and finite; nothing is changed then.
        """
        return self.parameters.replace(values, strict, self.program.name)

    def step(
        self,
        batch: GraphBatch,
        optimizer: Optimizer,
        outputs: Collection[str] = (),
        group: ProcessGroup | None = None,
        *,
        vertices: npt.ArrayLike | None = None,
    ) -> float:
        """Train on a batch: forward, backward, update.

        Args:
            batch: graphs with the pulled values that F reads.
            optimizer: updates the parameters.
            outputs: pushes to keep in `self.outputs`.
            group: of processes, all of which pass the whole batch: see `vrt.parallel.init`.
            vertices: whole numbers [n], the vertices whose pushes are kept, in that order, such as
                `batch.roots`; all by default.
        Returns: the loss, reduced as `vrt.compile` was told. On a GPU the step is not waited for:
            the loss is that of the step before, where `steps_under_way` is not 0.
        Raises: NumericError, when the loss, a gradient, or a number that the update would write to
            a parameter or to the optimizer's state is not finite: it names the first op and vertex
            that made it, or the element of the update, and nothing has changed; on a GPU the next
            call raises it, and steps launched since have changed nothing either. An optimizer with
            an `update` of its own is called with finite gradients only, and what it has written is
            looked at: see `Optimizer`. PullError, when pulled values do not fit; ParallelError
            and UsageError, when another process is lost, or has another batch.
        """
        with self._executor.lock:
            step = self._evaluations.step(batch, optimizer, outputs, group, vertices)
            loss, self._outputs.of_step = self._executor.step(step)
            return loss

    @in_turn
    def warm(
        self,
        batch: GraphBatch,
        optimizer: Optimizer | None = None,
        outputs: Collection[str] | None = None,
        graphs: int | None = None,
    ) -> None:
        """Compile what the kinds of vertices of a batch need; run nothing.

        Args:
            optimizer, outputs: of the steps to come; without an optimizer, of evaluations.
            graphs: of a minibatch, by which `engine="auto"` chooses; None for those of `batch`.
        Raises: PullError, when pulled values do not fit; UsageError.
        """
        check_batch("warm", batch)
        check_graphs("warm", graphs)
        if optimizer is None:
            names = self._evaluations.wanted("warm", outputs)
            return self._model.meet(Use(frozenset(names)), batch, batch[:graphs])
        check_optimizer("warm", optimizer)
        asks = getattr(type(optimizer), "update", None) is Optimizer.update
        rule = optimizer._request(self._model.store).rule_in_step if asks else None
        use = self._evaluations.use_of_steps(names_of("warm", outputs or ()))
        return self._model.meet(use._replace(rule=rule), batch, batch[:graphs])

    @property
    def steps_under_way(self) -> int:
        """How many steps were launched and not looked at: `step` has not returned their losses."""
        return self._executor.under_way

    @in_turn
    def sync(self) -> float:
        """Wait for all steps; return the loss of the last, nan if there was none.

        Raises: NumericError, as `step` does.
        """
        return self._executor.wait()

    def forward(
        self,
        batch: GraphBatch,
        train: bool = False,
        outputs: Collection[str] | None = None,
        *,
        pulls: Collection[str] | None = None,
        dropout: bool | None = None,
        seed: int | None = None,
        vertices: npt.ArrayLike | None = None,
    ) -> dict[str, Array]:
        """Evaluate F on a batch.

        Args:
            train: keep what `backward` needs.
            outputs: names of pushes; all by default. With `train`, these can get gradients.
            pulls: real pulls whose gradients `backward` is to return; all of the batch by default.
            dropout: let dropout drop; by default with `train`.
            seed: of what is drawn, from 0 to 2**32 - 1; by default the next of the network's.
            vertices: whole numbers [n], the vertices whose pushes are returned, in that order, such
                as `batch.roots`; all by default. Not with `train`.
        Returns: name -> [V, *shape], in the user's vertex order. With `train` it is a dict that
            names the pass: `backward(..., of=outputs)` goes back through it as long as it lives,
            whatever else has run. Several may be alive; their memory is freed with them.
        Raises: UsageError, for an unknown name; PullError, when pulled values do not fit.
        """
        if not train:
            refuse_pulls(pulls)
            with self._executor.lock:
                given = "submit", batch, outputs, vertices, dropout, seed
                evaluation = self._evaluations.submit(self._evaluations.asked(*given))
            return evaluation.result()
        with self._executor.lock:
            asked = self._evaluations.training(batch, outputs, pulls, dropout, seed, vertices)
            return self._passes.run(asked)

    @in_turn
    def submit(
        self,
        batch: GraphBatch,
        outputs: Collection[str] | None = None,
        *,
        vertices: npt.ArrayLike | None = None,
    ) -> Evaluation:
        """Begin to evaluate F on a batch, without dropout; `result()` of what it returns waits.

        On a GPU the next batch can be submitted, and others prepared, while this one runs. Results
        are of the parameters as they are now. Elsewhere they are there at once.

        Args:
            outputs, vertices: of `forward`.
        Raises: UsageError, when no push is named, or one that F does not have; PullError, when
            pulled values do not fit.
        """
        asked = self._evaluations.asked("submit", batch, outputs, vertices)
        return self._evaluations.submit(asked)

    @in_turn
    def plan(
        self,
        batch: GraphBatch,
        outputs: Collection[str] | None = None,
        *,
        vertices: npt.ArrayLike | None = None,
        dropout: bool = False,
    ) -> Plan:
        """Prepare a batch to be evaluated again and again, with other pulls.

        Args:
            outputs, vertices, dropout: of `forward`.
        Returns: a plan, whose `forward(pulls)` gives arrays of the host; that of a plan of
            `net.on_device` gives arrays of the device.
        Raises: as `forward` does.
        """
        asked = self._evaluations.asked("plan", batch, outputs, vertices, dropout)
        return self._evaluations.plan(asked, stays=False)

    @in_turn
    def backward(
        self,
        d_outputs: Mapping[str, Array] | None = None,
        *,
        of: Mapping[str, Array] | None = None,
        scale: float = 1.0,
        accumulate: bool = True,
        sparse: bool = False,
    ) -> Gradients:
        """Go back through a `forward(batch, train=True)`, once; add to `self.gradients`.

        Args:
            d_outputs: gradients of pushes by name, [V, *shape] in the user's vertex order; pushes
                left out have none. By default it starts from the push `loss`, reduced as
                `vrt.compile` was told: what `step` goes down along.
            of: what that forward returned. By default the last of this thread, which must be kept
                if anything else runs in between.
            scale: factor of `d_outputs`: 1 / n where the loss is the mean over n batches.
            accumulate: add to `self.gradients`.
            sparse: of tables, which are only looked up in, return the rows that were looked up.
        Returns: gradients of this pass alone, copies: of parameters, and of real pulled values in
            the shape of their arrays.
        Raises: UsageError, when there is no such forward, or parameters have been updated or set
            since; PullError, when a shape is wrong.
        """
        if d_outputs is not None:
            check_mapping("backward", d_outputs, UsageError)
        check_scale(scale)
        made, model = self._passes.find(of), self._model
        batch, runs, use = made.batch, made.runs, made.use
        if d_outputs is None:
            check_loss("backward", self.program.name, self.pushes)
            d_loss = loss_scale(self.reduction, batch, runs)
            d_outputs = {"loss": np.full(batch.num_vertices, d_loss)}
        unknown = names_of("backward", sorted(set(d_outputs) - use.seeds, key=str))
        check_known(unknown, self._pushes, self.program.name)
        shapes = {n: (batch.num_vertices, *runs[0].variant.pushes.shapes[n]) for n in use.seeds}
        whole = given_gradients(d_outputs, shapes, model.store.dtype)

        found = self._passes.go_back(made, whole, scale, sparse)
        if accumulate:
            self.gradients.add()
        return found

    @in_turn
    def keeps(self, outputs: Mapping[str, Array]) -> bool:
        """Tell whether `backward(of=outputs)` may still go back through a pass."""
        return self._passes.keeps(outputs)

    @property
    def gradients(self) -> AccumulatedGradients:
        """Gradients of parameters by name, summed over `backward` since `zero_grad`: live arrays.

        `optimizer.step(net)` updates by them. `step` neither reads nor changes them.
        """
        with self._executor.lock:
            if self._gradients is None:
                self._gradients = AccumulatedGradients(self._model.store)
            return self._gradients

    @in_turn
    def zero_grad(self) -> None:
        """Set `gradients` to zero, to begin another sum."""
        if self._gradients is not None:
            self._gradients.zero()

    @in_turn
    def random_state(self) -> dict[str, int]:
        """Return what continues the random draws: the seed and the number of draws so far."""
        seed, count = self._draws.state
        return {"seed": seed, "step": int(count[0])}

    @in_turn
    def set_random_state(self, state: Mapping[str, int]) -> None:
        """Continue from a state that `random_state` returned.

        Raises: CheckpointError, when it is not one: whole numbers `seed` and `step`.
        """
        fields = JsonRecord(dict(state), "random state")
        seed, count = fields.whole("seed", 0, LARGEST_SEED), fields.whole("step", 0, LARGEST_COUNT)
        fields.end()
        self._draws.state = seed, np.array([count], np.int64)

    @in_turn
    def explain(self, *, kernels: str = "") -> str:
        """Print F and dF, kinds met, placement, fused groups; kernels as `ir` or `llvm`, too."""
        return explain_function(self._executor, kernels)

    @in_turn
    def explain_batch(self, batch: GraphBatch) -> str:
        """Print what a batch costs: levels, rows per task, FLOPs, peak bytes, kernel calls."""
        check_batch("explain_batch", batch)
        return explain_batch(self._executor, batch)

    def trace(self, timeline: Timeline | None = None) -> AbstractContextManager[Timeline]:
        """Record processors inside a `with`; UsageError, if the engine is not `persistent`."""
        return recording(self._model, timeline)
