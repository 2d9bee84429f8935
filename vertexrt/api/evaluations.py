"""What a network is asked to compute: which pushes, of which vertices, how it draws."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import numpy as np

from vertexrt.api.arguments import (
    check_batch,
    check_draw,
    check_dropout,
    check_known,
    check_loss,
    check_optimizer,
    check_pulled,
    check_pushes,
    names_of,
    read_vertices,
    refuse_vertices,
    shared,
)
from vertexrt.api.forward_passes import ForwardPasses
from vertexrt.api.optimizer import Optimizer
from vertexrt.api.plan import Plan
from vertexrt.engine.executor import Asked, Evaluation, Executor, TrainStep, step_seed
from vertexrt.engine.planned import PlannedPulls, PlanRequest
from vertexrt.engine.variant import Use
from vertexrt.errors import PullError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import edge_pulls_of, pulls_of
from vertexrt.graph.by_index import pulls_by_index
from vertexrt.parallel.group import ProcessGroup


class Draws:
    """The random draws of a network, each of which has a seed of its own.

    Attributes:
        state: the seed of all, and how many there were, int64 [1].
    """

    def __init__(self, seed: int) -> None:
        self.state = seed, np.zeros(1, np.int64)

    def seed(self) -> int:
        """Return the seed of the next draw."""
        seed, count = self.state
        return step_seed(seed, int(count[0]))

    def take(self) -> int:
        """Return the seed of the next draw, which this is then."""
        found = self.seed()
        self.state[1][0] += 1
        return found


class Evaluations:
    """Reads what is asked of a network: steps, evaluations, plans. Whoever calls has its lock.

    Args:
        passes: that may be gone back through; draws: of the network.
        reduction: of the loss of steps.
    """

    def __init__(
        self,
        executor: Executor,
        passes: ForwardPasses,
        draws: Draws,
        reduction: str,
    ) -> None:
        self._executor, self._passes, self._draws = executor, passes, draws
        self.reduction = reduction
        program = executor.model.function
        self.pushes = tuple(dict.fromkeys(n["name"] for n in program.nodes if n.op == "push"))
        self._draws_always = bool(program.find("uniform"))  # in inference as well
        self._reals = program.real_pulls
        self._uses: dict[tuple[tuple[str, ...], bool], Use] = {}  # by outputs, with dropout
        self._steps: dict[tuple[str, ...], Use] = {}  # by what is kept
        self._training = cache(_training)

    def wanted(self, where: str, outputs: Collection[str] | None) -> tuple[str, ...]:
        """Return the pushes that are named, all by default; there is one. Raises: UsageError."""
        names = self.pushes if outputs is None else names_of(where, outputs)
        check_pushes(where, names, self.pushes, self._executor.model.function.name)
        return names

    def step(
        self,
        batch: GraphBatch,
        optimizer: Optimizer,
        outputs: Collection[str],
        group: ProcessGroup | None,
        vertices: object,
        stays: bool = False,
    ) -> TrainStep:
        """Return a training step that is to be done now: see `Network.step`. Raises: UsageError.

        Args:
            stays: of `TrainStep`.
        """
        asks = getattr(type(optimizer), "update", None) is Optimizer.update  # not its own
        if not asks:
            check_optimizer("step", optimizer)
        check_batch("step", batch)
        names, several = names_of("step", outputs), shared(group)
        chosen = read_vertices("step", vertices, batch)
        use = self._steps.get(names) or self.use_of_steps(names)
        if self._passes.here is not None:
            self._passes.make_room()
        _, count = self._draws.state
        how = asks, self.reduction, self._draws.seed(), count, names, several, chosen, stays
        return TrainStep(use, batch, optimizer, *how)

    def use_of_steps(self, names: tuple[str, ...]) -> Use:
        """Return what a step is that keeps pushes. Raises: UsageError."""
        use = self._steps.get(names)
        if use is None:
            function = self._executor.model.function.name
            check_known(names, self.pushes, function)
            check_loss("step", function, self.pushes)
            use = self._steps[names] = Use(frozenset(names) | {"loss"}, loss=True)
        return use

    def _use(self, where: str, names: tuple[str, ...], drops: bool) -> Use:
        use = self._uses.get((names, drops))
        if use is None:
            use = Use(frozenset(self.wanted(where, names)), dropout=drops or None)
            self._uses[names, drops] = use
        return use

    def seed(self, given: int | None, drops: bool) -> int:
        """Return the seed of an evaluation: where it draws, the next of the network's."""
        if given is not None:
            return given
        return self._draws.take() if self._draws_always or drops else 0

    def asked(
        self,
        where: str,
        batch: GraphBatch,
        outputs: Collection[str] | None,
        vertices: object = None,
        dropout: bool | None = None,
        seed: int | None = None,
    ) -> Asked:
        """Return an evaluation that is to be done. Raises: UsageError."""
        check_draw(seed)
        check_dropout(dropout)
        check_batch(where, batch)
        names = self.pushes if outputs is None else names_of(where, outputs)
        use = self._use(where, names, bool(dropout))
        chosen = read_vertices(where, vertices, batch)
        return Asked(use, batch, names, self.seed(seed, bool(dropout)), chosen)

    def training(
        self,
        batch: GraphBatch,
        outputs: Collection[str] | None,
        pulls: Collection[str] | None,
        dropout: bool | None,
        seed: int | None,
        vertices: object,
    ) -> Asked:
        """Return a pass whose pushes get gradients. Raises: UsageError; PullError.

        Other pushes may read pulls that the batch does not have.
        """
        check_draw(seed)
        check_dropout(dropout)
        refuse_vertices(vertices)
        check_batch("forward", batch)
        names = self.wanted("forward", outputs)
        reals = check_pulled(pulls, self._reals)
        missing = reals.difference(pulls_of(batch), edge_pulls_of(batch))
        if missing and pulls is not None:
            got = f"the batch has no pull {', '.join(sorted(missing))}"
            raise PullError.at("forward", got, "those whose gradients are asked for", "add them")
        use = self._training(names, reals - missing, dropout)
        return Asked(use, batch, names, self.seed(seed, True))

    def submit(self, asked: Asked) -> Evaluation:
        """Begin an evaluation whose results are of the host."""
        self._passes.make_room()
        return self._executor.submit(asked)

    def plan(self, asked: Asked, stays: bool) -> Plan:
        """Prepare an evaluation for requests with other pulls.

        Args:
            stays: results stay in the device's memory.
        Raises: PullError and GraphError, as `Network.forward` does.
        """
        executor = self._executor
        model = executor.model
        batch = pulls_by_index(asked.batch)
        tuner = model.tuner
        while tuner is not None and tuner.times(asked.use.backward, batch):
            self.submit(asked).result()
        runs = model.prepare_planned(asked.use, batch)
        pulls = PlannedPulls(batch, runs, model.store.dtype)
        launches = executor.plan(PlanRequest(runs, asked.outputs, asked.vertices, stays))
        drops = bool(asked.use.dropout)
        return Plan(executor, pulls, launches, lambda seed: self.seed(seed, drops))


def _training(names: tuple[str, ...], pulls: frozenset[str], dropout: bool | None) -> Use:
    starts = frozenset(names)
    return Use(starts, seeds=starts, pulls=pulls, dropout=dropout)
