"""A network whose arrays stay on its device: `net.on_device`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt

from vertexrt.api.arguments import (
    check_known,
    check_mapping,
    names_of,
    refuse_pulls,
)
from vertexrt.api.evaluations import Evaluations
from vertexrt.api.forward_passes import ForwardPasses
from vertexrt.api.optimizer import Optimizer
from vertexrt.api.plan import Plan
from vertexrt.api.turns import in_turn
from vertexrt.engine.executor import Asked, Evaluation, Executor
from vertexrt.engine.results import Gradients, PushRows
from vertexrt.errors import PullError, UsageError
from vertexrt.graph import GraphBatch
from vertexrt.parallel.group import ProcessGroup


class OnDevice:
    """The same network, whose arrays stay on its device. Made by `Network.on_device`.

    On a GPU they are CuPy's, which PyTorch and JAX take without a copy (`torch.from_dlpack`); on a
    CPU they are NumPy's. On a GPU nothing is waited for: what is called here comes after what
    CuPy's current stream has, and before what that gets afterwards. Real pulls may lie there, too:
    `batch.with_pulls({"x": array})`.
    """

    def __init__(
        self,
        executor: Executor,
        passes: ForwardPasses,
        evaluations: Evaluations,
    ) -> None:
        self.executor = executor
        self._passes, self._evaluations = passes, evaluations
        self._results = executor.results_here()
        self._outputs = threading.local()

    def __repr__(self) -> str:
        return (
            f"OnDevice({self.executor.model.function.name} on {self.executor.model.backend.name})"
        )

    @property
    def outputs(self) -> dict[str, Any]:
        """Pushes of the last `step` of this object that this thread called, by name."""
        return getattr(self._outputs, "of_step", {})

    @property
    def parameters(self) -> dict[str, Any]:
        """Live arrays by name: what is written to them changes the network.

        Once asked for, parameters on a GPU are written to through these, or by setting
        `net.parameters[name]`, but not through the arrays of `net.parameters`, which are copies.
        """
        with self.executor.lock:
            return self._results.parameters()

    @in_turn
    def step(
        self,
        batch: GraphBatch,
        optimizer: Optimizer,
        outputs: Collection[str] = (),
        group: ProcessGroup | None = None,
        *,
        vertices: npt.ArrayLike | None = None,
    ) -> float:
        """Train on a batch; see `Network.step`.

        Pushes that are kept in `self.outputs` are arrays of the device. On a GPU a step is not
        waited for where they are asked for, unless processes share it.
        Returns: the loss, as `Network.step` does.
        Raises: as `Network.step` does. What a step has pushed that is refused has no meaning.
        """
        step = self._evaluations.step(batch, optimizer, outputs, group, vertices, stays=True)
        loss, found = self.executor.step(step)
        self._outputs.of_step = {n: self._results.array(x, x.shape) for n, x in found.items()}
        return loss

    @in_turn
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
    ) -> dict[str, Any]:
        """Evaluate F on a batch; see `Network.forward`.

        Returns: name -> [V, *shape], in the user's vertex order; with `train` it names the pass.
        Raises: as `Network.forward` does. DeviceError of a launch that failed comes with one of
            the next calls.
        """
        if train:
            asked = self._evaluations.training(batch, outputs, pulls, dropout, seed, vertices)
            return self._passes.run(asked, self._results)
        refuse_pulls(pulls)
        asked = self._evaluations.asked("forward", batch, outputs, vertices, dropout, seed)
        return self._evaluate(asked)

    @in_turn
    def submit(
        self,
        batch: GraphBatch,
        outputs: Collection[str] | None = None,
        *,
        vertices: npt.ArrayLike | None = None,
    ) -> Evaluation:
        """Begin to evaluate F on a batch; see `Network.submit`.

        Returns: an evaluation whose `result()` gives arrays of the device, and on a GPU does not
            wait either.
        Raises: as `Network.submit` does.
        """
        found = self._evaluate(self._evaluations.asked("submit", batch, outputs, vertices))
        return Evaluation(self.executor, lambda: found)

    def _evaluate(self, asked: Asked) -> dict[str, Any]:
        wanted = [PushRows(name, asked.vertices) for name in asked.outputs]
        found = self._passes.evaluate(asked, wanted, self._results)
        return dict(zip(asked.outputs, found, strict=True))

    @in_turn
    def plan(
        self,
        batch: GraphBatch,
        outputs: Collection[str] | None = None,
        *,
        vertices: npt.ArrayLike | None = None,
        dropout: bool = False,
    ) -> Plan:
        """Prepare a batch to be evaluated again and again; see `Network.plan`.

        Returns: a plan whose `forward(pulls)` gives arrays of the device, and on a GPU waits for
            nothing.
        Raises: as `Network.plan` does.
        """
        asked = self._evaluations.asked("plan", batch, outputs, vertices, dropout)
        return self._evaluations.plan(asked, stays=True)

    @in_turn
    def backward(
        self, d_outputs: Mapping[str, Any], *, of: Mapping[str, Any], sparse: bool = False
    ) -> Gradients:
        """Go back through a `forward(batch, train=True)` of this object, once.

        Args:
            d_outputs: gradients of pushes by name, [V, *shape], arrays of the device or of the
                host; pushes left out have none.
            of: what that forward returned.
            sparse: of tables, which are only looked up in, return the rows that were looked up.
        Returns: gradients of this pass alone: of parameters, and of real pulls in the shape of
            their arrays. `Network.gradients` stay as they are. Where vertices on a GPU share rows
            of a table, the order of their sum is not fixed.
        Raises: UsageError, when there is no such forward; PullError, when a shape is wrong.
        """
        check_mapping("backward", d_outputs, UsageError)
        made = self._passes.find(of, self._results)
        function = self.executor.model.function
        unknown = names_of("backward", sorted(set(d_outputs) - made.use.seeds, key=str))
        check_known(unknown, sorted(made.use.seeds), function.name)
        given = {}
        for name in sorted(made.use.seeds):
            shape = (made.batch.num_vertices, *made.runs[0].variant.pushes.shapes[name])
            given[name] = self._given(name, d_outputs.get(name), shape)
        return self._passes.go_back(made, given, 1.0, sparse)

    def _given(self, name: str, given: Any, shape: tuple[int, ...]) -> Any:
        """Return the gradient of a push as an array of the device. Raises: PullError."""
        try:
            array = self._results.array(given, shape)
            wrong = "" if array.shape == shape else f"has shape {list(array.shape)}"
        except (TypeError, ValueError, OverflowError) as error:
            wrong = f"is a {type(given).__name__}: {error}"
        if wrong:
            got = f"the gradient of {name!r} {wrong}"
            action = "pass the gradient of what forward returned"
            raise PullError.at("backward", got, f"shape {list(shape)}, one row a vertex", action)
        return array
