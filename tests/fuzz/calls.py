"""Sequences of calls on one network, and what the oracle and PyTorch's optimizers say of each.

A call is a tuple: its name and what it is called with. `Player` makes it on the network and on the
expected state; everything that a user can read is compared after each call, and the expected state
goes on from what the network has, so that rounding errors do not add up from call to call.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz import oracle
from tests.fuzz.batches import BatchSpec, gradient_rows, graph_batch, parameters
from tests.fuzz.bounded import Array, Bounded, exact
from tests.fuzz.compare import (
    WIDEST,
    Difference,
    Outcome,
    Unclear,
    difference,
    outcome_of,
    rounding,
    scale,
)
from tests.fuzz.evaluate import OracleGradients, OracleRun, PulledRows
from tests.fuzz.function import LABELLED, NetworkSpec, Shape, builder, source
from tests.fuzz.generate import CARRIED
from tests.fuzz.updates import CLIPS, NUMBERS, VALUE, Rule, draw_groups
from tests.fuzz.ways import NamedWay
from tests.planned import by_plan
from vertexrt.errors import NoKernelError, NumericError, UsageError

Call = tuple[Any, ...]
Bounds = dict[str, Bounded]
PARAMETERS = 7  # seed of the parameters of every network
DECAY = 0.75  # of averages
CLOSE = {"float64": 1e-12, "float32": 1e-5}  # of an update, relative to what it adds up
PACKAGE = str(Path(vrt.__file__).parent)


class Expected:
    """What the oracle says of a network and batches.

    Attributes:
        shapes: of parameters by the network's names.
        tables: of which rows are followed, as the network that was compiled has it.
    """

    tables: set[str]

    def __init__(self, network: NetworkSpec, batches: Sequence[BatchSpec]) -> None:
        self.network, self.batches = network, batches
        model = builder(source(network))(oracle)
        self.functions = {kind: getattr(model, kind) if kind else model for kind in network.types}
        owners = {n: network.names()[n].rpartition(".")[0] for n in network.names()}
        self.named = {
            name: vars(self.functions[owners[n]])[n] for n, name in network.names().items()
        }
        self.shapes: dict[str, Shape] = {n: p.shape for n, p in self.named.items()}
        self.trained = [n for n, p in self.named.items() if p.trainable]
        self.least, self.most = ({network.names()[n] for n in each} for each in network.tables())

    def run(
        self, b: int, values: Mapping[str, Array], others: Mapping[str, PulledRows] | None = None
    ) -> OracleRun:
        """Evaluate a batch with some parameters, and other pulls than its own."""
        batch = self.batches[b]
        pulls = {**{name: batch.rows(name) for name in batch.forms}, **(others or {})}
        order = [self.functions[kind] for kind in batch.kinds]
        return OracleRun(order, batch.children, pulls, values, batch.relations, self.named)

    def loss_scale(self, b: int) -> float:
        """Return the factor of the sum of the losses."""
        batch = self.batches[b]
        if self.network.reduction == "mean_graphs":
            return 1.0 / len(batch.graphs)
        if self.network.reduction == "sum":
            return 1.0
        counted = np.zeros(len(batch.kinds), bool)
        for kind, function in self.network.types.items():
            labels = [n.operands[-1] for n in function.nodes if n.op in LABELLED]
            for name in {function.nodes[k].extra[0] for k in labels}:
                counted |= (np.array(batch.kinds) == kind) & (batch.index(name) >= 0)
        return 1.0 / max(1, int(counted.sum()))


class OwnRule(vrt.Optimizer):
    """An `update` of a user's own, which keeps gradients; with `breaks` it raises at the end."""

    breaks = False

    def update(self, store: Any) -> None:
        """Go down along the gradient."""
        self.gradients = {name: store.gradient(name).copy() for name in store.trained}
        for name in store.trained:
            store.value(name)[...] -= self.lr * store.gradient(name)
        if self.breaks:
            raise InterruptedError


@dataclass(slots=True)
class Alive:
    """A forward pass that is kept: what it returned, what it was of, and for which parameters."""

    run: Any
    of: OracleRun
    b: int
    asked: tuple[str, ...]
    version: int
    used: bool = False
    perhaps: bool = False  # over: an exception came out of a call since


@dataclass(slots=True)
class Side:
    """A network and what is expected of it.

    Attributes:
        base: the rate that the optimizer had when its groups were given; metrics: that its
            schedule has observed.
        moments: by "MOMENT/NAME"; steps: of the optimizer.
        gradients: accumulated, None before they are first read; rows: of tables, that passes looked
            up; passes: how many were added up.
        average: with what is expected of it.
        version: counts what makes passes stale.
        kept: what each chain has ended with, by graph and type; streams: graphs of the last piece.
    """

    net: vrt.Network
    optimizer: Any
    schedule: Any
    rule: Rule
    base: float
    parameters: dict[str, Array]
    moments: dict[str, Array] = field(default_factory=dict)
    steps: int = 0
    metrics: list[float] = field(default_factory=list)
    gradients: Bounds | None = None
    rows: dict[str, set[int]] = field(default_factory=dict)
    passes: int = 0
    average: vrt.ExponentialMovingAverage | None = None
    averaged: dict[str, Array] = field(default_factory=dict)
    version: int = 0
    alive: dict[int, Alive] = field(default_factory=dict)
    plans: dict[int, tuple[Any, int]] = field(default_factory=dict)
    carried: Any = None
    kept: dict[tuple[int, str], Array] = field(default_factory=dict)
    streams: int = 0
    module: Any = None


class Player:
    """A drawn network, and a twin of it where one is needed, on which sequences are played.

    Args:
        batches: which calls name by number.
        way: how the networks are compiled; shuffle: of the order of threads of the shim.
    """

    def __init__(
        self, network: NetworkSpec, batches: Sequence[BatchSpec], way: NamedWay, shuffle: int = 1
    ) -> None:
        self.network, self.way, self.shuffle = network, way, shuffle
        self.dtype, self.device = way.way.dtype, way.way.device
        self.expected = Expected(network, batches)
        self.tied = False
        self.known: dict[int, tuple[Any, Any]] = {}  # by batch, the last run and of what it is
        self.start = parameters(self.expected.shapes, PARAMETERS)
        self.pushes = {
            name: f.nodes[k].type.shape
            for f in network.types.values()
            for name, k in f.pushes.items()
        }
        self.built: list[vrt.GraphBatch] = []
        self.nets: list[vrt.Network] = []
        self.sides: list[Side] = []

    def compile(self) -> vrt.Network:
        """Compile a network of its own."""
        model = builder(source(self.network))(vrt)
        return self.way.compile(model, self.start, self.shuffle, self.network.reduction)

    def play(self, calls: Sequence[Call], rule: Rule) -> Outcome:
        """Make calls after a reset, and say what came of them."""
        number, unclear = 0, 0
        try:
            self.reset(rule)
            for number, call in enumerate(calls):  # noqa: B007 - of the call that failed
                try:
                    getattr(self, f"do_{call[0]}")(*call[1:])
                    self.check()
                except Unclear:
                    unclear += 1
                    for side in self.sides:
                        self.take(side)
        except NoKernelError as error:
            return Outcome("refused", str(error))
        except Exception as error:  # noqa: BLE001 - any error at all is what a fuzzer looks for
            found = outcome_of(error, number)
            told = isinstance(error, Difference)
            return replace(found, kind=f"{calls[number][0]}: {found.kind}") if told else found
        return Outcome("unclear" if 2 * unclear > len(calls) else "right")

    def reset(self, rule: Rule) -> None:
        """Give all networks the parameters that they began with; nothing else is left."""
        if not self.nets:
            self.built = [graph_batch(batch) for batch in self.expected.batches]
            self.nets = [self.compile()]
            self.expected.tables = {*self.nets[0].executor.model.sparse}  # type: ignore[attr-defined]
            if not self.expected.least <= self.expected.tables <= self.expected.most:
                raise Difference(f"tables: {self.expected.tables}, not {self.expected.least}")
        self.sides = [self._side(net, rule) for net in self.nets]

    def _side(self, net: vrt.Network, rule: Rule) -> Side:
        net.zero_grad()
        net.parameters.update(self.start)
        net.load_state({"random": {"seed": 3, "draws": 0}})
        optimizer, schedule = rule.make()
        base = float(getattr(schedule, "peak", rule.options["lr"]))
        parameters = {n: np.array(net.parameters[n]) for n in self.start}
        side = Side(net, optimizer, schedule, rule, base, parameters)
        if net._gradients is not None:
            side.gradients = self._zeros()
        return side

    def _zeros(self) -> Bounds:
        return {n: exact(np.zeros(self.start[n].shape)) for n in self.expected.trained}

    @property
    def side(self) -> Side:
        """The network that is played on."""
        return self.sides[0]

    @property
    def other(self) -> Side:
        """Its twin, which is made when it is first asked for."""
        if len(self.sides) < 2:
            self.nets.append(self.compile())
            self.sides.append(self._side(self.nets[1], self.side.rule))
        return self.sides[1]

    def do_reset(self) -> None:
        """Begin anew, as another sequence does."""
        self.reset(self.sides[0].rule)

    # What is compared.

    def close(self, got: Any, want: Bounded, what: str, back: bool = False) -> None:
        """Compare within the bound. Raises: Difference; Unclear, where rounding may decide.

        Args:
            back: it is a gradient, or made of some.
        """
        widest = float(np.max(want.error, initial=0.0)) * rounding(self.dtype)
        if widest > WIDEST * scale(want.value):
            raise Unclear
        text = difference(got, want, self.dtype, what)
        if text and back and self.tied and np.isfinite(np.asarray(got)).all():
            raise Unclear
        if text:
            raise Difference(text)

    def near(self, got: Any, want: Array, allowed: Any, what: str) -> None:
        """Compare within what is allowed for each element. Raises: Difference."""
        off = np.abs(np.asarray(got) - want)
        if not (off <= allowed).all():  # nan is not
            if self.tied and np.isfinite(off).all():
                raise Unclear
            raise Difference(f"{what}: off by {np.max(off):.3g} of {scale(want):.3g}")

    def same(self, got: Any, want: Any, what: str) -> None:
        """Compare bit by bit. Raises: Difference."""
        array, wanted = np.asarray(got), np.asarray(want)
        if array.shape != wanted.shape:
            raise Difference(f"{what}: shape {array.shape}, not {wanted.shape}")
        if not np.array_equal(array, wanted):
            off = np.abs(array - wanted).max()
            raise Difference(f"{what}: not the same, off by {off:.3g}")

    def check(self) -> None:
        """Compare what can be read of the networks with what is expected; go on from it."""
        for k, side in enumerate(self.sides):
            who = "" if k == 0 else "other network's "
            for name, want in side.parameters.items():
                self.same(side.net.parameters[name], want, f"{who}parameter {name}")
            state = side.optimizer.state()
            self.same(state["steps"], side.steps, f"{who}count of steps")
            for key, want in side.moments.items():
                self.same(state[key], want, f"{who}moment {key}")
            if side.gradients is not None:
                for name, sum_of in side.gradients.items():
                    got = np.array(side.net.gradients[name])
                    self.close(got, sum_of, f"{who}gradients of {name}", True)
                    side.gradients[name] = exact(got)
            if side.average is not None:
                for name, want in side.averaged.items():
                    got = np.array(side.average.parameters[name])
                    self.near(got, want, CLOSE[self.dtype] * scale(want), f"{who}average of {name}")
                    side.averaged[name] = got

    def take(self, side: Side) -> None:
        """Take what a network has as what is expected, after something unclear."""
        side.parameters = {n: np.array(x) for n, x in side.net.parameters.items()}
        state = dict(side.optimizer.state())
        side.steps = int(state.pop("steps"))
        side.moments = {key: np.array(x) for key, x in state.items()}
        if side.net._gradients is not None:
            side.gradients = {n: exact(np.array(x)) for n, x in side.net.gradients.items()}
        if side.average is not None:
            side.averaged = {n: np.array(side.average.parameters[n]) for n in self.expected.trained}
        self._thrown(side)

    # What is expected.

    def evaluated(
        self,
        b: int,
        values: Mapping[str, Array] | None = None,
        others: Mapping[str, PulledRows] | None = None,
    ) -> OracleRun:
        """Evaluate a batch with the network's parameters, or others. Raises: Unclear."""
        given = list((self.side.parameters if values is None else values).items())
        known, run = self.known.get(b, (None, None))
        same = known and all(n == m and x is y for (n, x), (m, y) in zip(given, known, strict=True))
        if run is None or not same or others:
            run = self.expected.run(b, dict(given), others)
            self.known[b] = None if others else given, run
        if run.closest <= rounding(self.dtype):
            raise Unclear
        return run

    def push(self, of: OracleRun, name: str) -> Bounded:
        """Return a push of all vertices."""
        return of.push(name, self.pushes[name])

    def outputs(
        self, found: Mapping[str, Any], of: OracleRun, asked: Sequence[str], chosen: Any = ...
    ) -> None:
        """Compare pushes, of all vertices or of those that are chosen."""
        for name in asked:
            self.close(found[name], self.push(of, name)[chosen], f"push {name}")

    def looked_up(self, of: OracleRun) -> dict[str, set[int]]:
        """Return the rows of each table that are looked up."""
        return {name: of.looked_up(name) for name in self.expected.tables}

    def updated(
        self, side: Side, gradients: Mapping[str, Bounded], rows: Mapping[str, set[int]]
    ) -> None:
        """Compare a network with what it is after an update, and go on from there.

        A row that is looked up and has no gradient may be moved or not: whether a gradient comes
        is a matter of the program.
        """
        trained, tables = self.expected.trained, self.expected.tables
        old = {f"{VALUE}/{n}": side.parameters[n] for n in trained}
        for slot in side.optimizer.moment_names:
            for n in trained:
                none = np.zeros(self.start[n].shape)
                old[f"{slot}/{n}"] = side.moments.get(f"{slot}/{n}", none)
        at = {n: np.array(sorted(rows[n]), np.int64) if n in tables else ... for n in trained}
        before = {key: x[at[key.partition("/")[2]]] for key, x in old.items()}
        now = side.rule.rate(side.steps, side.metrics)
        ratio = now / side.base if side.base else 1.0
        ends = []
        for sign in (0.0, 1.0, -1.0):  # where gradients are off by their bounds
            moved = {
                n: (g.value + sign * rounding(self.dtype) * (g.error + np.abs(g.value)))[at[n]]
                for n, g in gradients.items()
            }
            ends.append(side.rule.update(now, ratio, side.steps, before, moved))
        state = side.optimizer.state()
        for key, want in old.items():
            slot, _, name = key.partition("/")
            got = np.array(side.net.parameters[name] if slot == VALUE else state[key])
            here, first, (after, high, low) = got[at[name]], before[key], (e[key] for e in ends)
            allowed = CLOSE[self.dtype] * (np.abs(after) + np.abs(first) + now) + 1e-300
            allowed = allowed + np.abs(high - after) + np.abs(low - after)
            g = gradients[name].value[at[name]]
            comes = (g != 0.0).any(tuple(range(int(name in tables), g.ndim)), keepdims=True)
            rests = (here == first) & ~comes
            self.near(np.where(rests, after, here), after, allowed, f"updated {key}")
            want = want.copy()
            want[at[name]] = here
            self.same(got, want, f"updated {key}, where nothing comes,")
            if slot == VALUE:
                side.parameters[name] = got
            else:
                side.moments[key] = got
        side.steps += 1
        side.version += 1

    def stepped(
        self, side: Side, b: int, found: Any, of: OracleRun, asked: Sequence[str], chosen: Any = ...
    ) -> None:
        """Compare what a step has returned and done."""
        factor = self.expected.loss_scale(b)
        self.close(float(found), self.push(of, "loss").sum(0) * exact(factor), "loss")
        self.outputs(found.outputs, of, asked, chosen)
        self.updated(side, self._loss_gradients(of, b), self.looked_up(of))

    def _loss_gradients(self, of: OracleRun, b: int) -> Bounds:
        """Return the gradients of a step."""
        self.tied = of.tape.tied
        factor = np.full(self.push(of, "loss").shape, self.expected.loss_scale(b))
        return of.gradients({"loss": factor}).parameters

    # Calls.

    def do_step(self, b: int, asked: tuple[str, ...], roots: bool = False, other: int = 0) -> None:
        """Take a step; with `other` on the other network."""
        side, batch = self.other if other else self.side, self.built[b]
        of = self.evaluated(b, side.parameters)
        chosen = batch.roots if roots else None
        found = side.net.step(batch, side.optimizer, outputs=asked, vertices=chosen)
        self.stepped(side, b, found, of, asked, chosen if roots else ...)

    def do_own(
        self, b: int, asked: tuple[str, ...], breaks: bool = False, lr: float = 0.0625
    ) -> None:
        """Take a step with an update of one's own, which may raise after it has begun."""
        side = self.side
        of = self.evaluated(b)
        rule = OwnRule(lr=lr)
        rule.breaks = breaks
        try:
            found = side.net.step(self.built[b], rule, outputs=asked)
        except InterruptedError:
            return self._thrown(side)  # nothing has changed
        gradients = self._loss_gradients(of, b)
        self.close(
            float(found), self.push(of, "loss").sum(0) * exact(self.expected.loss_scale(b)), "loss"
        )
        self.outputs(found.outputs, of, asked)
        for name, want in gradients.items():
            self.close(rule.gradients[name], want, f"gradient of {name}", True)
            if not lr:
                continue
            moved = side.parameters[name] - rule.lr * rule.gradients[name]
            got = np.array(side.net.parameters[name])
            self.near(got, moved, CLOSE[self.dtype] * scale(moved), f"updated {name}")
            side.parameters[name] = got
        side.version += 1

    def _thrown(self, side: Side) -> None:
        """Note that it is not known what a call has done: passes may be over or not."""
        for made in side.alive.values():
            made.perhaps = True

    def do_interrupt(self, b: int, instant: int) -> None:
        """Interrupt a step where it calls a function of Python; it is done, or nothing is."""
        side = self.side
        of = self.evaluated(b)
        calls = 0

        def watch(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            code = frame.f_code
            if code.co_flags & inspect.CO_GENERATOR:
                return  # where it is closed, an exception would be lost
            if event == "call" and code.co_filename.startswith(PACKAGE):
                calls += 1
                if calls == instant:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        try:
            sys.setprofile(watch)
            side.net.step(self.built[b], side.optimizer)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        self._thrown(side)
        if int(side.optimizer.state()["steps"]) == side.steps:
            side.net.sync()  # `check` finds what has changed
        else:
            self.updated(side, self._loss_gradients(of, b), self.looked_up(of))

    def do_forward(self, b: int, asked: tuple[str, ...], how: str) -> None:
        """Evaluate, by one of several calls."""
        net, batch, of = self.side.net, self.built[b], self.evaluated(b)
        if how == "plan":
            found = net.plan(batch, outputs=asked)()
        elif how == "another":
            found = by_plan(net, batch, asked)
        elif how == "device":
            found = net(batch, outputs=asked, arrays="device")
            found = {n: x.get() if hasattr(x, "get") else x for n, x in found.items()}
        else:
            found = net(batch, outputs=asked)
        self.outputs(found, of, asked)

    def do_plan(self, b: int, number: int) -> None:
        """Make a plan that is kept."""
        self.side.plans[number] = self.side.net.plan(self.built[b]), b

    def do_replan(self, number: int) -> None:
        """Ask a plan again, perhaps after the parameters have changed."""
        if number in self.side.plans:
            plan, b = self.side.plans[number]
            of = self.evaluated(b)
            self.outputs(plan(), of, [*self.pushes])

    def do_train(self, b: int, asked: tuple[str, ...], number: int) -> None:
        """Go forward, and keep the pass."""
        side, of = self.side, self.evaluated(b)
        found = side.net.record(self.built[b], outputs=asked)
        self.outputs(found.outputs, of, asked)
        side.alive[number] = Alive(found, of, b, asked, side.version)

    def do_drop(self, number: int) -> None:
        """Let a pass go."""
        self.side.alive.pop(number, None)

    def do_back(
        self, number: int, seed: int | None, factor: float, adds: bool, sparse: bool
    ) -> None:
        """Go back through a pass: from the loss, or from drawn gradients."""
        side = self.side
        made = side.alive.get(number)
        if made is None:
            return
        d_pushes = None
        of = made.of
        if seed is not None:
            rng = np.random.default_rng(seed)
            given = [n for n in made.asked if rng.random() < 0.7] or list(made.asked)
            d_pushes = {n: rng.integers(-16, 17, self.push(of, n).shape) / 8.0 for n in given}
        refused = made.used or made.version != side.version
        refused |= d_pushes is None and "loss" not in made.asked
        try:
            options = {"scale": factor, "accumulate": adds, "sparse": sparse}
            got = made.run.backward(d_pushes, **options)
        except UsageError:
            if refused or made.perhaps:
                return
            raise
        if refused:
            raise Difference("backward through a pass that is over was not refused")
        made.used = True
        if d_pushes is None:
            d_pushes = {
                "loss": np.full(self.push(of, "loss").shape, self.expected.loss_scale(made.b))
            }
        want = of.gradients({n: d * factor for n, d in d_pushes.items()})
        self.tied = of.tape.tied
        self._went_back(made.b, of, got, want, sparse)
        if adds:
            side.gradients = side.gradients or self._zeros()
            for name, d in want.parameters.items():
                side.gradients[name] = side.gradients[name] + d
            for name, looked in self.looked_up(of).items():
                side.rows.setdefault(name, set()).update(looked)
            side.passes += 1

    def _went_back(
        self, b: int, of: OracleRun, got: Any, want: OracleGradients, sparse: bool
    ) -> None:
        dense = {n for n in want.parameters if not sparse or n not in self.expected.tables}
        if {*got.parameters} != dense:
            raise Difference(f"gradients: of {sorted(got.parameters)}, not {sorted(dense)}")
        for name in dense:
            self.close(got.parameters[name], want.parameters[name], f"gradient of {name}", True)
        for name in want.parameters.keys() - dense:
            at, values = got.rows[name]
            d, rows = want.parameters[name], set(at.tolist())
            if not rows <= of.looked_up(name) or len(rows) != len(at):
                raise Difference(f"rows of {name}: {at}, of {sorted(of.looked_up(name))}")
            self.close(values, d[at], f"gradient of rows of {name}", True)
            rest = np.setdiff1d(np.arange(len(d.value)), at)
            self.close(np.zeros(d[rest].shape), d[rest], f"gradient of rows without {name}", True)
        for name in of.read & want.pulled.keys():
            d = gradient_rows(self.expected.batches[b], self.built[b], name, got.pulled[name])
            self.close(d, want.pulled[name], f"gradient of pull {name}", True)

    def do_add(self, number: int, amount: float) -> None:
        """Write to accumulated gradients by hand."""
        side, trained = self.side, self.expected.trained
        if not trained:
            return
        which = trained[number % len(trained)]
        side.net.gradients[which] += amount
        side.gradients = side.gradients or self._zeros()
        side.gradients[which] = exact(np.array(side.gradients[which].value + amount))

    def do_zero(self) -> None:
        """Begin another sum."""
        side = self.side
        side.net.zero_grad()
        if side.gradients is not None:
            side.gradients = self._zeros()
        side.rows, side.passes = {}, 0

    def do_update(self) -> None:
        """Update by the accumulated gradients."""
        side = self.side
        if not side.passes:
            try:
                side.optimizer.step(side.net)
            except UsageError:
                return
            raise Difference("an update without gradients was not refused")
        assert side.gradients is not None
        side.optimizer.step(side.net)
        rows = {n: side.rows.get(n, set()) for n in self.expected.tables}
        self.updated(side, side.gradients, rows)

    def do_refused(self, number: int, amount: float) -> None:
        """A gradient that is not finite changes nothing."""
        side, trained = (
            self.side,
            [n for n in self.expected.trained if n not in self.expected.tables],
        )
        if not side.passes or not trained:
            return
        which = trained[number % len(trained)]
        if not side.rule.of(which).get("frozen"):
            side.net.gradients[which][...] = amount
            try:
                side.optimizer.step(side.net)
            except NumericError:
                return self.do_zero()
            raise Difference("a gradient that is not finite was taken")

    def do_rate(self, lr: float, metric: float) -> None:
        """Set the learning rate, or let a schedule look at a measure."""
        side = self.side
        if side.rule.schedule is None:
            side.optimizer.lr = lr
            side.rule = replace(side.rule, options={**side.rule.options, "lr": lr})
        elif side.rule.schedule[0] == "plateau":
            side.schedule.observe(metric)
            side.metrics.append(metric)
        now = side.rule.rate(side.steps, side.metrics)
        self.near(side.optimizer.lr, np.float64(now), 1e-12 * now, "rate")

    def do_option(self, seed: int) -> None:
        """Set an option while it trains; momentum keeps whether it is 0."""
        side, rng = self.side, np.random.default_rng(seed)
        options = dict(side.rule.options)
        name = str(rng.choice([*CLIPS, *(n for n in NUMBERS if n in options)]))
        numbers: Sequence[Any] = [0.0, 0.1, 0.7] if name == "weight_decay" else [None, 0.1, 10.0]
        if name in NUMBERS:
            numbers = [n for n in NUMBERS[name] if bool(n) == bool(options[name])]
        options[name] = numbers[int(rng.integers(len(numbers)))]
        setattr(side.optimizer, name, options[name])
        side.rule = replace(side.rule, options=options)

    def do_regroup(self, seed: int) -> None:
        """Give groups while it trains: some thaw, some have rates of their own."""
        side, rng = self.side, np.random.default_rng(seed)
        now = side.rule.rate(side.steps, side.metrics)
        if not self.expected.trained or (side.rule.schedule is None and now == 0.0):
            return  # there is nothing to group; rates of groups keep their ratio to it
        groups = draw_groups(rng, self.expected.trained) if rng.random() < 0.6 else {}
        side.optimizer.groups = {name: dict(own) for name, own in groups.items()}
        side.rule = replace(side.rule, groups=groups)
        if side.rule.schedule is None:
            side.base = now

    def do_write(self, seed: int, how: str) -> None:
        """Write parameters, if there are any: where none is written, passes stay alive."""
        side, rng = self.side, np.random.default_rng(seed)
        if not side.parameters:
            return
        names = [n for n in side.parameters if rng.random() < 0.5] or list(side.parameters)[:1]
        new = {}
        for n in names:
            drawn = rng.uniform(-0.5, 0.5, self.start[n].shape)
            new[n] = np.asarray(np.round(drawn * 256) / 256, side.parameters[n].dtype)
        if how == "all":
            side.net.load_state({"parameters": new}, strict=False)
        elif how == "several":
            side.net.parameters.update(new)
        for n, x in new.items():
            if how == "one":
                side.net.parameters[n] = x
        side.parameters.update(new)
        side.version += 1

    def do_average(self) -> None:
        """Take the parameters into an average, which the first call makes."""
        side = self.side
        if side.average is None:
            side.average = vrt.ExponentialMovingAverage(side.net, DECAY)
            side.averaged = {n: side.parameters[n].copy() for n in self.expected.trained}
            return
        side.average.update()
        for n in self.expected.trained:
            side.averaged[n] = DECAY * side.averaged[n] + (1.0 - DECAY) * side.parameters[n]

    def do_inside(self, b: int) -> None:
        """Evaluate with the average."""
        side = self.side
        if side.average is not None:
            of = self.evaluated(b, {**side.parameters, **side.averaged})
            with side.average.in_place():
                found = side.net(self.built[b], outputs=list(self.pushes))
            side.version += 1
            self.outputs(found, of, [*self.pushes])

    def do_reload(self) -> None:
        """Save a checkpoint, load it into the other network, and go on with that."""
        self._load()
        self.sides.reverse()

    def do_resume(self, b: int) -> None:
        """Save a checkpoint and load it: a step of each of both networks has the same bits."""
        self._load()
        losses = []
        for side in self.sides:
            losses.append(float(side.net.step(self.built[b], side.optimizer)))
            side.version += 1
        one, two = self.sides
        self.same(*losses, "resumed loss")
        for n, x in one.net.parameters.items():
            self.same(two.net.parameters[n], x, f"resumed {n}")
        for side in self.sides:
            self.take(side)

    def _load(self) -> None:
        """Give the other network what this one has, through a file."""
        one, two = self.side, self.other
        if one.steps and not self.expected.trained:
            raise Unclear  # a state without moments is refused, as that of another optimizer is
        observes = one.rule.schedule is not None and one.rule.schedule[0] == "plateau"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            meta = {"random": one.net.state()["random"]}
            if observes:
                meta["schedule"] = one.schedule.state()
            vrt.save_checkpoint(path, one.net, one.optimizer, meta=meta, average=one.average)
            found = vrt.load_checkpoint(path)
        two.net.parameters.update(found.parameters)
        two.net.load_state({"random": found.meta["random"]})
        first = one.rule.options if one.rule.schedule else {**one.rule.options, "lr": one.base}
        two.optimizer, two.schedule = replace(one.rule, options=first).make()
        two.optimizer.load_state(found.optimizer_state)
        if observes:
            two.schedule.load_state(found.meta["schedule"])
            two.optimizer.lr = two.schedule
        elif one.rule.schedule is None:
            two.optimizer.lr = one.optimizer.lr
        two.rule, two.base, two.metrics = one.rule, one.base, list(one.metrics)
        two.parameters = {n: x.copy() for n, x in one.parameters.items()}
        two.moments = {n: x.copy() for n, x in one.moments.items()}
        two.steps, two.version = one.steps, two.version + 1
        two.average, two.averaged = None, {}
        if one.average is not None:
            two.average = vrt.ExponentialMovingAverage(two.net, DECAY)
            two.average.load_state(found.average)
            two.averaged = {n: x.copy() for n, x in one.averaged.items()}

    def do_carried(self, b: int, trains: bool) -> None:
        """Take a piece of streams, which begins with the states that the one before ended in."""
        side, batch = self.side, self.expected.batches[b]
        if side.carried is None:
            side.carried = vrt.CarriedState(side.net)
        if len(batch.graphs) > side.streams:
            side.carried.restart()
            side.kept = {}
        side.streams = len(batch.graphs)
        carriers = {k for k, f in self.network.types.items() if CARRIED in f.pushes}
        chains = [(g, kind) for g, graph in enumerate(batch.graphs) for kind in graph.kinds]
        ends = {chain: v for v, chain in enumerate(chains) if chain[1] in carriers}
        rows = np.zeros((len(chains), *batch.forms[CARRIED].form.shape))
        for chain in ends:
            rows[chains.index(chain)] = side.kept.get(chain, 0.0)
        index = np.arange(len(rows), dtype=np.int32)
        of = self.evaluated(b, None, {CARRIED: PulledRows(rows, index)})
        given = side.carried.put(self.built[b])
        if trains:
            ends_of = side.carried.ends(given)
            found = side.net.step(given, side.optimizer, outputs=(CARRIED,), vertices=ends_of)
            side.carried.keep(given, found.outputs)
        else:
            found = side.net(given)
            side.carried.keep(given, found)
        states = self.push(of, CARRIED).value
        side.kept = {key: row for key, row in side.kept.items() if key[0] < len(batch.graphs)}
        side.kept |= {chain: states[v] for chain, v in ends.items()}
        if trains:
            self.stepped(side, b, found, of, ())
        else:
            self.outputs(found, of, [*self.pushes])

    def do_module(self, b: int, seed: int, lr: float) -> None:
        """Call the network as a module of PyTorch, go back, and let PyTorch update it."""
        if self.device == "reference" or not self.expected.trained:
            return  # PyTorch goes back to what is trained alone
        import torch

        import vertexrt.torch as vt

        side, of = self.side, self.evaluated(b)
        if side.module is None:
            side.module = vt.Module(side.net)
        self.tied = of.tape.tied
        if seed % 2:
            side.module.loss(self.built[b]).backward()
            want = self._loss_gradients(of, b)
        else:
            found = side.module(self.built[b])
            rng = np.random.default_rng(seed)
            d_pushes = {n: rng.integers(-8, 9, x.shape) / 8.0 for n, x in found.items()}
            self.outputs({n: x.detach().cpu().numpy() for n, x in found.items()}, of, [*found])
            given = {n: torch.as_tensor(d).to(found[n]) for n, d in d_pushes.items()}
            torch.autograd.backward([found[n] for n in given], [given[n] for n in given])
            want = of.gradients(d_pushes).parameters
        side.version += 1
        side.alive.clear()
        for name, p in side.module.named_parameters():
            if p.requires_grad:
                got = np.zeros(p.shape) if p.grad is None else p.grad.detach().cpu().numpy()
                with torch.no_grad():
                    p -= lr * p.grad if p.grad is not None else 0.0
                p.grad = None
                expected = side.parameters[name] - lr * got
                side.parameters[name] = np.array(side.net.parameters[name])
                allowed = CLOSE[self.dtype] * scale(expected)
                self.near(side.parameters[name], expected, allowed, f"module's {name}")
                self.close(got, want[name], f"module's gradient of {name}", True)


# Drawn.


@dataclass
class Draft:
    """Draws what calls are made with.

    Attributes:
        asks: of which pushes; more of them would compile for longer.
        passes: how many have been recorded.
    """

    rng: np.random.Generator
    batches: int
    asks: Sequence[tuple[str, ...]]
    passes: int = 0

    def chance(self, p: float) -> bool:
        """Draw a truth with probability p."""
        return bool(self.rng.random() < p)

    def below(self, end: int) -> int:
        """Draw a number."""
        return int(self.rng.integers(max(end, 1)))

    def pick(self, *items: Any) -> Any:
        """Draw one of several."""
        return items[self.below(len(items))]

    @property
    def b(self) -> int:
        """Draw the number of a batch."""
        return self.below(self.batches)

    @property
    def asked(self) -> tuple[str, ...]:
        """Draw pushes, or none."""
        return self.pick(*self.asks) if self.chance(0.5) else ()

    def train(self) -> Call:
        """Draw a pass, which has the next number."""
        self.passes += 1
        return self.b, self.pick(*self.asks), self.passes - 1


# How often each call is drawn, relative to the others, and what it is made with.
CALLS: dict[str, tuple[float, Callable[[Draft], Call]]] = {
    "step": (4.0, lambda d: (d.b, d.asked, d.chance(0.2), d.pick(0, 0, 0, 0, 0, 1))),
    "forward": (1.0, lambda d: (d.b, d.pick(*d.asks), d.pick("", "plan", "another", "device"))),
    "plan": (0.3, lambda d: (d.b, 0)),
    "replan": (0.3, lambda d: (0,)),
    "train": (1.5, Draft.train),
    "back": (
        2.0,
        lambda d: (
            *(d.below(d.passes), d.below(100) if d.chance(0.5) else None, d.pick(1.0, 0.5)),
            *(d.chance(0.8), d.chance(0.3)),
        ),
    ),
    "drop": (0.2, lambda d: (d.below(d.passes),)),
    "add": (0.6, lambda d: (d.below(20), d.pick(0.5, -1.0))),
    "zero": (0.7, lambda d: ()),
    "update": (1.0, lambda d: ()),
    "rate": (0.2, lambda d: (d.pick(0.125, 0.02, 0.5), d.pick(1.0, 0.5, 2.0))),
    "write": (0.5, lambda d: (d.below(100), d.pick("all", "one", "several"))),
    "average": (0.6, lambda d: ()),
    "inside": (0.4, lambda d: (d.b,)),
    "own": (0.4, lambda d: (d.b, d.asked, d.chance(0.3))),
    "interrupt": (0.4, lambda d: (d.b, 1 + d.below(150))),
    "reload": (0.4, lambda d: ()),
    "resume": (0.3, lambda d: (d.b,)),
    "refused": (0.2, lambda d: (d.below(20), d.pick(np.inf, -np.inf))),
    "option": (0.3, lambda d: (d.below(100),)),
    "regroup": (0.3, lambda d: (d.below(100),)),
    "carried": (9.0, lambda d: (d.b, d.chance(0.5))),
    "module": (1.0, lambda d: (d.b, d.below(100), 0.125)),
}
# Where updates are the subject.
OF_UPDATES = {"step": 6.0, "rate": 3.0, "option": 1.0, "regroup": 1.0, "refused": 1.0}
OF_BATCHES = ("step", "own", "interrupt", "forward", "plan", "train", "inside", "resume")
OF_BATCHES += ("carried", "module")  # begin with its number


def draw_calls(
    rng: np.random.Generator, network: NetworkSpec, batches: int, device: str, updates: bool = False
) -> tuple[Call, ...]:
    """Draw 3 to 12 calls.

    Args:
        updates: they are the subject.
    """
    names = network.pushes()
    draft = Draft(rng, batches, [tuple(names), tuple(names[:1]), tuple(names[1:] or names)])
    left_out = {"module": device == "reference" or updates, "carried": CARRIED not in names}
    weights = {kind: weight for kind, (weight, _) in CALLS.items() if not left_out.get(kind)}
    weights |= OF_UPDATES if updates else {}
    share = np.array(list(weights.values())) / sum(weights.values())
    kinds = rng.choice(list(weights), int(rng.integers(3, 13)), p=share)
    return tuple((str(kind), *CALLS[str(kind)][1](draft)) for kind in kinds)


def draw_checks(rng: np.random.Generator, network: NetworkSpec, batches: int) -> tuple[Call, ...]:
    """Draw calls that look at all that a network computes of batches, one after another."""
    calls: list[Call] = []
    names = network.pushes()
    for b in range(batches):
        asked = tuple(n for n in names if rng.random() < 0.7) or tuple(names[:1])
        again = bool(rng.random() < 0.2)
        if again:
            calls += [("forward", b, asked, ""), ("forward", b, asked, "another")]
        if "loss" in names:
            moves = rng.random() < 0.4
            calls.append(
                ("step", b, tuple(names)) if moves else ("own", b, tuple(names), False, 0.0)
            )
            calls += [("own", b, (), False, 0.0)] if again else []
        if rng.random() < 0.6 or "loss" not in names:
            calls.append(("train", b, asked, b))
            calls += [("forward", b, asked, "")] if again else []
            adds, sparse = bool(rng.random() < 0.3), bool(rng.random() < 0.2)
            calls.append(("back", b, int(rng.integers(100)), 1.0, adds, sparse))
    return tuple(calls)
