"""A network whose arrays stay on its device: `net.on_device`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from vertexrt.api.arguments import (
    check_batch,
    check_draw,
    check_dropout,
    check_known,
    check_mapping,
    check_pulled,
    check_pushes,
    names_of,
    refuse_pulls,
)
from vertexrt.api.forward_passes import ForwardPasses
from vertexrt.api.turns import in_turn
from vertexrt.engine.batched import Part
from vertexrt.engine.executor import Executor
from vertexrt.engine.results import Gradients, PassResults
from vertexrt.engine.variant import Use
from vertexrt.errors import PullError, UsageError
from vertexrt.graph import GraphBatch


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
        next_seed: Callable[[], int],
        results: PassResults | None = None,
    ) -> None:
        self.executor = executor
        self._passes, self._next_seed = passes, next_seed
        self._results = executor.results_here() if results is None else results
        program = executor.model.function
        self._pushes = tuple(dict.fromkeys(n["name"] for n in program.nodes if n.op == "push"))
        self._reals = program.real_pulls
        self._training = cache(self._make_training)
        self._evaluating = cache(self._make_evaluating)

    def __repr__(self) -> str:
        return (
            f"OnDevice({self.executor.model.function.name} on {self.executor.model.backend.name})"
        )

    def _returning(self, results: PassResults) -> OnDevice:
        """Return one whose arrays are of another library."""
        return OnDevice(self.executor, self._passes, self._next_seed, results)

    @property
    def parameters(self) -> dict[str, Any]:
        """Live arrays by name: what is written to them changes the network.

        Once asked for, parameters on a GPU are written to through these, or by setting
        `net.parameters[name]`, but not through the arrays of `net.parameters`, which are copies.
        """
        with self.executor.lock:
            return self._results.parameters()

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
    ) -> dict[str, Any]:
        """Evaluate F on a batch; see `Network.forward`.

        Returns: name -> [V, *shape], in the user's vertex order; with `train` it names the pass.
        Raises: as `Network.forward` does. DeviceError of a launch that failed comes with one of
            the next calls.
        """
        check_draw(seed)
        check_dropout(dropout)
        check_batch("forward", batch)
        names = self._pushes if outputs is None else names_of("forward", outputs)
        seed = self._next_seed() if seed is None else seed
        if train:
            wanted = check_pulled(pulls, self._reals)
            use = self._training(names, wanted, dropout)
            return self._passes.run(use, names, batch, seed, self._results)
        refuse_pulls(pulls)
        self._passes.make_room()
        runs = self.executor.model.prepare(self._evaluating(names, dropout), batch)
        parts = [Part(slice(0, run.forward_launches), random_seed=seed) for run in runs]
        return self._results.forward(runs, parts, names)

    def _make_training(
        self, names: tuple[str, ...], pulls: frozenset[str], dropout: bool | None
    ) -> Use:
        """Return what a pass is for whose pushes get gradients. Raises: UsageError."""
        check_pushes("forward", names, self._pushes, self.executor.model.function.name)
        starts = frozenset(names)
        return Use(starts, seeds=starts, pulls=pulls, dropout=dropout)

    def _make_evaluating(self, names: tuple[str, ...], dropout: bool | None) -> Use:
        """Return what a pass is for that ends with its pushes. Raises: UsageError."""
        check_pushes("forward", names, self._pushes, self.executor.model.function.name)
        return Use(frozenset(names), dropout=dropout or None)

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
            shape = (made.batch.num_vertices, *made.runs[0].variant.push_shape(name))
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
