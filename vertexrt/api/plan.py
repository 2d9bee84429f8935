"""A batch that is prepared once, and evaluated with other pulled values: `net.plan(batch)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vertexrt.api.arguments import check_draw, check_mapping
from vertexrt.engine.executor import Executor
from vertexrt.engine.lazy import Outputs
from vertexrt.engine.planned import PlannedLaunches, PlannedPulls
from vertexrt.errors import PullError


class Plan:
    """The structure of a batch, ready to run with other pulls. Made by `Network.plan`.

    Graphs are read, scheduled and laid out once, and the memory of the run is the plan's own; on a
    GPU its indices and scripts are there already, and a request is one launch. So a plan stays
    right whatever else the network runs, and it computes with the parameters as they are at each
    request. Identical vertices are not merged, since which are identical depends on the pulls. Its
    memory is freed with it.

    Attributes:
        pulls: what a request may give, shapes by name.
        outputs: names of the pushes that it returns.
    """

    def __init__(
        self,
        executor: Executor,
        pulls: PlannedPulls,
        launches: PlannedLaunches,
        seed: Callable[[int | None], int],
        convert: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._executor = executor
        self._pulls, self._launches, self._seed, self._convert = pulls, launches, seed, convert
        self.pulls: dict[str, tuple[int, ...]] = pulls.shapes()
        self.outputs: tuple[str, ...] = tuple(launches.outputs)

    def __repr__(self) -> str:
        pulls = ", ".join(f"{name} {list(shape)}" for name, shape in self.pulls.items()) or "none"
        name, device = self._executor.model.function.name, self._executor.model.backend.name
        return f"Plan({name} on {device}; pulls: {pulls}; outputs: {', '.join(self.outputs)})"

    def __call__(
        self, pulls: Mapping[str, Any] | None = None, *, seed: int | None = None
    ) -> Outputs:
        """Evaluate F with other pulled values.

        Args:
            pulls: by name, of vertices or edges, in the shapes of `pulls`; of `Rows`, its
                table. Those left out are as the batch had them. Whole numbers are -1 at the same
                vertices. Real ones may lie on a GPU, for a network that does.
            seed: of what is drawn, from 0 to 2**32 - 1; by default the next of the network's.
        Returns: name -> [V, *shape], or [n, *shape] of the vertices chosen: new arrays, of the kind
            that the plan was made for. Those of NumPy are waited for.
        Raises: PullError, when a pull is unknown or does not fit; the plan is as it was then.
        """
        check_draw("plan", seed)
        given = {} if pulls is None else pulls
        check_mapping("plan", given, PullError)
        with self._executor.lock:
            found = self._launches.forward(self._pulls.take(given), self._seed(seed))
            return Outputs(self._convert(found))
