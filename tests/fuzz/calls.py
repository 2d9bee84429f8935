"""Sequences of calls on one network, and what PyTorch says of each of them.

A call is a tuple: its name and what it is called with. `Player` makes it on the network and on the
expected state; everything that a user can read is compared after each call, and the expected state
goes on from what the network has, so that rounding errors do not add up from call to call.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz import eager
from tests.fuzz.function import builder
from tests.fuzz.typed import CARRIED, NetSpec, source
from tests.fuzz.typed_batches import Array, Evaluated, Gradients, TypedBatch, build_batch
from tests.runs import TOLERANCE, Way
from vertexrt.errors import UsageError

Call = tuple[Any, ...]
DECAY = 0.5  # of averages
PACKAGE = str(Path(vrt.__file__).parent)


class Difference(Exception):
    """The network differs from what is expected."""


class Unclear(Exception):
    """Rounding may decide something, or the call means nothing here: it is left out."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: its class and options, written as `vrt` takes them."""

    name: str
    options: Mapping[str, Any]

    def make(self) -> vrt.Optimizer:
        """Return the optimizer."""
        found: vrt.Optimizer = getattr(vrt, self.name)(**self.options)
        return found


class OwnRule(vrt.Optimizer):
    """An `update` of a user's own; with `breaks` it raises after it has written something."""

    breaks = False

    def update(self, store: Any) -> None:
        """Go down along the gradient."""
        for name in store.trained:
            store.value(name)[...] -= self.lr * store.gradient(name)
            if self.breaks:
                raise InterruptedError


def move(
    rule: Rule, lr: float, steps: int, value: Array, g: Array, moments: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Return a value and its moments after an update by a clipped gradient, as the papers say."""
    o = rule.options
    decay = o.get("weight_decay", 0.01 if rule.name == "AdamW" else 0.0)
    if rule.name == "AdamW":
        value = value * (1.0 - lr * decay)
    else:
        g = g + decay * value
    t = steps + 1
    if rule.name == "SGD":
        if not o.get("momentum"):
            return value - lr * g, {}
        velocity = o["momentum"] * moments["velocity"] + g
        return value - lr * velocity, {"velocity": velocity}
    if rule.name == "Adagrad":
        total = moments["sum"] + g * g
        return value - lr * g / (np.sqrt(total) + o["eps"]), {"sum": total}
    if rule.name == "RMSprop":
        square = 0.99 * moments["square"] + 0.01 * g * g
        by = g / (np.sqrt(square) + o["eps"])
        found = {"square": square}
        if o.get("momentum"):
            by = found["velocity"] = o["momentum"] * moments["velocity"] + by
        return value - lr * by, found
    m = 0.9 * moments["m"] + 0.1 * g
    v = 0.999 * moments["v"] + 0.001 * g * g
    by = m / (1.0 - 0.9**t) / (np.sqrt(v / (1.0 - 0.999**t)) + o["eps"])
    return value - lr * by, {"m": m, "v": v}


@dataclass(slots=True)
class Alive:
    """A forward pass that is kept: what it returned, what it was of, and for which parameters."""

    run: Any
    of: Evaluated
    asked: tuple[str, ...]
    version: int
    used: bool = False
    perhaps: bool = False  # over: an exception came out of a call since


@dataclass(slots=True)
class Side:
    """A network and what is expected of it.

    Attributes:
        parameters: by the network's name; moments: by "MOMENT/NAME"; steps: of the optimizer.
        gradients: accumulated, None before they are first read; rows: of tables, that passes looked
            up; passes: how many were added up.
        average: with what is expected of it.
        version: counts what makes passes stale.
        kept: what each chain has ended with, by graph and type; streams: graphs of the last piece.
    """

    net: vrt.Network
    optimizer: vrt.Optimizer
    rule: Rule
    parameters: dict[str, Array]
    moments: dict[str, Array] = field(default_factory=dict)
    steps: int = 0
    gradients: dict[str, Array] | None = None
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
    """A drawn network with a twin, on which sequences are played.

    Args:
        batches: which calls name by number.
        way: how the networks are compiled.
    """

    def __init__(self, spec: NetSpec, batches: Sequence[TypedBatch], way: Way) -> None:
        self.spec, self.batches, self.way = spec, batches, way
        self.build = builder(source(spec))
        model = self.build(eager)
        self.functions = {kind.name: getattr(model, kind.name) for kind in spec.types}
        self.names = spec.names()
        self.own = {name: p for p, name in self.names.items()}
        self.tables = {self.names[p] for p in spec.tables()}
        self.pushes = spec.pushes()
        self.lossy = self.pushes["loss"]
        self.tolerance = TOLERANCE[way.dtype]
        self.built = [build_batch(batch, spec) for batch in batches]
        self.nets = [self.compile() for _ in range(2)]
        self.start = {n: x.copy() for n, x in self.nets[0].parameters.items()}
        self.trained = [n for p, n in self.names.items() if spec.parameters[p][1]]
        self.sides: list[Side] = []

    def compile(self) -> vrt.Network:
        """Compile a network of its own."""
        net = self.way.compile(self.build(vrt))
        if self.spec.reduction != "mean_graphs":
            net = vrt.Network(net.executor, 3, self.spec.reduction)
        return net

    def play(self, calls: Sequence[Call], rule: Rule) -> None:
        """Make calls after a reset. Raises: Difference, or what a call raises, with `number`."""
        self.reset(rule)
        for number, call in enumerate(calls):
            try:
                getattr(self, f"do_{call[0]}")(*call[1:])
                self.check()
            except Unclear:
                for side in self.sides:
                    self.take(side)
                    self._thrown(side)
            except Exception as error:
                error.number = number  # type: ignore[attr-defined]
                raise

    def reset(self, rule: Rule) -> None:
        """Give both networks the parameters that they began with; nothing else is left."""
        self.sides = []
        for net in self.nets:
            net.zero_grad()
            net.parameters.update(self.start)
            net.load_state({"random": {"seed": 3, "draws": 0}})
            parameters = {n: x.copy() for n, x in self.start.items()}
            side = Side(net, rule.make(), rule, parameters)
            if net._gradients is not None:
                side.gradients = {n: np.zeros_like(self.start[n]) for n in self.trained}
            self.sides.append(side)

    def do_reset(self) -> None:
        """Begin anew, as another sequence does."""
        self.reset(self.sides[0].rule)

    # What is compared.

    def near(self, got: Any, want: Array, what: str, fixed: Array | None = None) -> None:
        """Compare within rounding; where `fixed`, bit by bit. Raises: Difference."""
        array = np.asarray(got)
        if array.shape != np.shape(want):
            raise Difference(f"{what}: shape {array.shape}, not {np.shape(want)}")
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        off = np.abs(array - want)
        if not (off <= self.tolerance * scale).all():  # nan is not
            raise Difference(f"{what}: off by {off.max():.3g} of {scale:.3g}")
        if fixed is not None and not np.array_equal(array[fixed], np.asarray(want)[fixed]):
            raise Difference(f"{what}: moved by {off[fixed].max():.3g} where nothing comes")

    def same(self, got: Any, want: Any, what: str) -> None:
        """Compare bit by bit. Raises: Difference."""
        array, wanted = np.asarray(got), np.asarray(want)
        if array.shape != wanted.shape:
            raise Difference(f"{what}: shape {array.shape}, not {wanted.shape}")
        if not np.array_equal(array, wanted):
            off = np.abs(array - wanted).max()
            raise Difference(f"{what}: not the same, off by {off:.3g}")

    def check(self) -> None:
        """Compare what can be read of both networks with what is expected; go on from it."""
        for k, side in enumerate(self.sides):
            who = "" if k == 0 else "other network's "
            for name, want in side.parameters.items():
                self.same(side.net.parameters[name], want, f"{who}parameter {name}")
            state = side.optimizer.state()
            self.same(state["steps"], side.steps, f"{who}count of steps")
            for key, want in side.moments.items():
                self.same(state[key], want, f"{who}moment {key}")
            if side.gradients is not None:
                for name, want in side.gradients.items():
                    self.near(side.net.gradients[name], want, f"{who}gradients of {name}")
                    side.gradients[name] = np.array(side.net.gradients[name])
            if side.average is not None:
                for name, want in side.averaged.items():
                    self.near(side.average.parameters[name], want, f"{who}average of {name}")
                    side.averaged[name] = side.average.parameters[name].copy()

    def take(self, side: Side) -> None:
        """Take what a network has as what is expected, after something unclear."""
        side.parameters = {n: np.array(x) for n, x in side.net.parameters.items()}
        state = dict(side.optimizer.state())
        side.steps = int(state.pop("steps"))
        side.moments = {key: np.array(x) for key, x in state.items()}
        if side.net._gradients is not None:
            side.gradients = {n: np.array(x) for n, x in side.net.gradients.items()}
        if side.average is not None:
            side.averaged = {n: side.average.parameters[n].copy() for n in self.trained}

    # What is expected.

    def evaluated(
        self, side: Side, b: int, carried: Mapping[tuple[int, str], Array] | None = None
    ) -> Evaluated:
        """Evaluate a batch with a network's parameters, or others. Raises: Unclear."""
        values = {p: side.parameters[name] for p, name in self.names.items()}
        return self._of(b, values, carried)

    def _of(self, b: int, values: Mapping[str, Array], carried: Any = None) -> Evaluated:
        return Evaluated(self.spec, self.functions, self.batches[b], values, carried or {})

    def outputs(self, found: Mapping[str, Any], of: Evaluated, asked: Sequence[str]) -> None:
        """Compare pushes."""
        if of.unclear:
            raise Unclear
        for name in asked:
            want = of.push(name)
            (self.same if name.startswith("hard") else self.near)(found[name], want, f"push {name}")

    def loss_gradients(self, of: Evaluated) -> tuple[float, dict[str, Array], dict[str, list[int]]]:
        """Return the loss, gradients by the network's names, and the rows that are looked up."""
        if of.unclear:
            raise Unclear
        loss = of.push("loss") * of.scale()
        found = of.gradients({"loss": np.full(len(of.vertices), of.scale())}).parameters
        return float(loss.sum()), self._named(found), self._named(of.looked_up(self.lossy, set()))

    def _named(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names[p]: x for p, x in found.items()}

    def update(
        self, side: Side, gradients: Mapping[str, Array], rows: Mapping[str, Any]
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Return parameters and moments after an update, and where they do not move."""
        o = side.rule.options
        moving = {}
        for name in self.trained:
            moving[name] = np.ones(self.start[name].shape, bool)
            if name in self.tables:
                moving[name][:] = False
                moving[name][sorted(rows[name])] = True
        g = {n: np.where(moving[n], gradients[n], 0.0) for n in self.trained}
        if o.get("clip_value"):
            g = {n: np.clip(x, -o["clip_value"], o["clip_value"]) for n, x in g.items()}
        if o.get("clip_norm"):
            norm = np.sqrt(sum(float((x * x).sum()) for x in g.values()))
            if norm > o["clip_norm"]:
                g = {n: x * (o["clip_norm"] / norm) for n, x in g.items()}
        values = {n: np.asarray(x, np.float64) for n, x in side.parameters.items()}
        moments: dict[str, Array] = {}
        for name in self.trained:
            zeros = np.zeros(self.start[name].shape)
            slots = side.optimizer.moment_names
            old = {s: side.moments.get(f"{s}/{name}", zeros) for s in slots}
            value, new = move(side.rule, side.optimizer.lr, side.steps, values[name], g[name], old)
            values[name] = np.where(moving[name], value, values[name])
            for s, x in new.items():
                moments[f"{s}/{name}"] = np.where(moving[name], x, old[s])
        return values, moments, {n: ~x for n, x in moving.items()}

    def updated(self, side: Side, after: tuple[Any, Any, Any]) -> None:
        """Compare a network with what it is after an update, and go on from there."""
        values, moments, fixed = after
        for name, want in values.items():
            got = side.net.parameters[name]
            still = fixed.get(name, np.ones(want.shape, bool))
            self.near(got, want, f"updated {name}", still)
            side.parameters[name] = np.array(got)
        state = side.optimizer.state()
        for key, want in moments.items():
            self.near(state[key], want, f"moment {key}", fixed[key.partition("/")[2]])
            side.moments[key] = np.array(state[key])
        side.steps += 1
        side.version += 1

    # Calls.

    @property
    def side(self) -> Side:
        """The network that is played on."""
        return self.sides[0]

    def do_step(self, b: int, asked: tuple[str, ...], roots: bool = False, other: int = 0) -> None:
        """Take a step; with `other` on the other network."""
        side, batch = self.sides[other], self.built[b]
        of = self.evaluated(side, b)
        chosen = batch.roots if roots else None
        found = side.net.step(batch, side.optimizer, outputs=asked, vertices=chosen)
        self._stepped(side, found, of, asked, chosen)

    def _stepped(
        self, side: Side, found: Any, of: Evaluated, asked: Sequence[str], chosen: Any = None
    ) -> None:
        loss, gradients, rows = self.loss_gradients(of)
        self.near(float(found), np.float64(loss), "loss")
        for name in asked:
            want = of.push(name)
            want = want if chosen is None else want[chosen]
            self.near(found.outputs[name], want, f"output {name}")
        self.updated(side, self.update(side, gradients, rows))

    def do_own(self, b: int, breaks: bool) -> None:
        """Take a step with an update of one's own, which may raise after it has begun."""
        side = self.side
        of = self.evaluated(side, b)
        rule = OwnRule(lr=0.0625)
        rule.breaks = breaks
        try:
            found = side.net.step(self.built[b], rule)
        except InterruptedError:
            self._thrown(side)
            return  # nothing has changed
        loss, gradients, _ = self.loss_gradients(of)
        self.near(float(found), np.float64(loss), "loss")
        values = {n: x - rule.lr * gradients.get(n, 0.0) for n, x in side.parameters.items()}
        steps, fixed = side.steps, {n: np.zeros(x.shape, bool) for n, x in values.items()}
        self.updated(side, (values, {}, fixed))
        side.steps = steps

    def _thrown(self, side: Side) -> None:
        """Note that it is not known what a call has done: passes may be over or not."""
        for made in side.alive.values():
            made.perhaps = True

    def do_interrupt(self, b: int, instant: int) -> None:
        """Interrupt a step where it calls a function of Python; it is done, or nothing is."""
        side = self.side
        of = self.evaluated(side, b)
        before = {n: x.copy() for n, x in side.parameters.items()}
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
        if of.unclear:
            raise Unclear
        if int(side.optimizer.state()["steps"]) == side.steps:
            for name, want in before.items():
                self.same(side.net.parameters[name], want, f"interrupted, {name}")
            side.net.sync()
        else:
            _, gradients, rows = self.loss_gradients(of)
            self.updated(side, self.update(side, gradients, rows))

    def do_forward(self, b: int, asked: tuple[str, ...], how: str) -> None:
        """Evaluate, by one of several calls."""
        side, batch = self.side, self.built[b]
        of = self.evaluated(side, b)
        if how == "plan":
            found = side.net.plan(batch, outputs=asked)()
        elif how == "device":
            found = side.net(batch, outputs=asked, arrays="device")
            found = {n: x.get() if hasattr(x, "get") else x for n, x in found.items()}
        else:
            found = side.net(batch, outputs=asked)
        self.outputs(found, of, asked)

    def do_plan(self, b: int, number: int) -> None:
        """Make a plan that is kept."""
        self.side.plans[number] = self.side.net.plan(self.built[b]), b

    def do_replan(self, number: int) -> None:
        """Ask a plan again, perhaps after the parameters have changed."""
        if number in self.side.plans:
            plan, b = self.side.plans[number]
            self.outputs(plan(), self.evaluated(self.side, b), tuple(self.pushes))

    def do_train(self, b: int, asked: tuple[str, ...], number: int) -> None:
        """Go forward, and keep the pass."""
        side = self.side
        of = self.evaluated(side, b)
        found = side.net.record(self.built[b], outputs=asked)
        self.outputs(found.outputs, of, asked)
        side.alive[number] = Alive(found, of, asked, side.version)

    def do_drop(self, number: int) -> None:
        """Let a pass go."""
        self.side.alive.pop(number, None)

    def do_back(
        self, number: int, seed: int | None, scale: float, adds: bool, sparse: bool
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
            d_pushes = {n: rng.integers(-8, 9, of.push(n).shape) / 8.0 for n in given}
        refused = made.used or made.version != side.version
        refused |= d_pushes is None and "loss" not in made.asked
        try:
            options = {"scale": scale, "accumulate": adds, "sparse": sparse}
            got = made.run.backward(d_pushes, **options)
        except UsageError:
            if refused or made.perhaps:
                return
            raise
        if refused:
            raise Difference("backward through a pass that is over was not refused")
        made.used = True
        whole = d_pushes or {"loss": np.full(len(of.vertices), of.scale())}
        want = of.gradients({n: d * scale for n, d in whole.items()})
        self._went_back(side, made, got, want, adds, sparse)

    def _went_back(
        self, side: Side, made: Alive, got: Any, want: Gradients, adds: bool, sparse: bool
    ) -> None:
        of = made.of
        roots = set().union(*(self.pushes[n] for n in made.asked if not n.startswith("side")))
        rows = self._named(of.looked_up(roots, set(made.asked)))
        gradients = self._named(want.parameters)
        for name, d in gradients.items():
            if sparse and name in self.tables:
                at, values = got.rows[name]
                self.same(at, np.array(rows[name], np.int64), f"rows of {name}")
                self.near(values, d[rows[name]], f"gradient of rows of {name}")
            else:
                self.near(got.parameters[name], d, f"gradient of {name}")
        batch = self.built[self.batches.index(of.batch)]
        for name in want.pulled.keys() & got.pulled.keys():
            d_rows, pull = want.pulled[name], batch.pulls[name]
            if isinstance(pull, vrt.Rows) and pull.index is not None:
                there = np.asarray(pull.index) >= 0
                if not there.any():
                    continue
                total = np.zeros((len(pull.table), *d_rows.shape[1:]))
                np.add.at(total, np.asarray(pull.index)[there], d_rows[there])
                d_rows = total
            self.near(got.pulled[name], d_rows, f"gradient of pull {name}")
        if adds:
            if side.gradients is None:
                side.gradients = {n: np.zeros_like(self.start[n]) for n in self.trained}
            for name, d in gradients.items():
                side.gradients[name] = side.gradients[name] + d
            for name, looked in rows.items():
                side.rows.setdefault(name, set()).update(looked)
            side.passes += 1

    def do_add(self, name: int, number: float) -> None:
        """Write to accumulated gradients by hand."""
        side = self.side
        if not self.trained:
            return
        which = self.trained[name % len(self.trained)]
        side.net.gradients[which] += number
        if side.gradients is None:
            side.gradients = {n: np.zeros_like(self.start[n]) for n in self.trained}
        side.gradients[which] = side.gradients[which] + number

    def do_zero(self) -> None:
        """Begin another sum."""
        side = self.side
        side.net.zero_grad()
        if side.gradients is not None:
            side.gradients = {n: np.zeros_like(x) for n, x in side.gradients.items()}
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
        rows = {n: side.rows.get(n, set()) for n in self.tables}
        self.updated(side, self.update(side, side.gradients, rows))

    def do_rate(self, lr: float) -> None:
        """Set the learning rate."""
        self.side.optimizer.lr = lr

    def do_write(self, seed: int, how: str) -> None:
        """Write parameters, if there are any: where none is written, passes stay alive."""
        side, rng = self.side, np.random.default_rng(seed)
        if not side.parameters:
            return
        names = [n for n in side.parameters if rng.random() < 0.5] or list(side.parameters)[:1]
        new = {}
        for n in names:
            drawn = rng.uniform(-0.5, 0.5, self.start[n].shape)
            new[n] = np.asarray(np.round(drawn * 256) / 256, self.start[n].dtype)
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
            side.averaged = {n: side.parameters[n].copy() for n in self.trained}
            return
        side.average.update()
        for n in self.trained:
            side.averaged[n] = DECAY * side.averaged[n] + (1.0 - DECAY) * side.parameters[n]

    def do_inside(self, b: int) -> None:
        """Evaluate with the average."""
        side = self.side
        if side.average is None:
            return
        both = {**side.parameters, **side.averaged}
        of = self._of(b, {p: both[name] for p, name in self.names.items()})
        asked = tuple(self.pushes)
        with side.average.in_place():
            found = side.net(self.built[b], outputs=asked)
        side.version += 1
        self.outputs(found, of, asked)

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
        one, two = self.sides
        if one.steps and not self.trained:
            raise Unclear  # a state without moments is refused, as that of another optimizer is
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            meta = {"random": one.net.state()["random"]}
            vrt.save_checkpoint(path, one.net, one.optimizer, meta=meta, average=one.average)
            found = vrt.load_checkpoint(path)
        two.net.parameters.update(found.parameters)
        two.net.load_state({"random": found.meta["random"]})
        two.optimizer = one.rule.make()
        two.optimizer.load_state(found.optimizer_state)
        two.optimizer.lr = one.optimizer.lr
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
        side = self.side
        if CARRIED not in self.pushes:
            return
        if side.carried is None:
            side.carried = vrt.CarriedState(side.net)
        batch = self.batches[b]
        ends = {
            (g, kind.name): kind
            for g, graph in enumerate(batch)
            for kind in self.spec.types
            if kind.carried and graph.sizes[kind.name]
        }
        if len(batch) > side.streams:
            side.carried.restart()
            side.kept = {}
        side.streams = len(batch)
        of = self.evaluated(side, b, side.kept)
        given = side.carried.put(self.built[b])
        if trains:
            ends_of = side.carried.ends(given)
            found = side.net.step(given, side.optimizer, outputs=(CARRIED,), vertices=ends_of)
            side.carried.keep(given, found.outputs)
        else:
            found = side.net(given)
            side.carried.keep(given, found)
        states = of.push(CARRIED)
        side.kept = {key: row for key, row in side.kept.items() if key[0] < len(batch)}
        for row, (g, kind, _, _) in zip(states, of.vertices, strict=True):
            if (g, kind.name) in ends:
                side.kept[g, kind.name] = row  # the last one stays
        if of.unclear:
            raise Unclear
        if trains:
            self._stepped(side, found, of, ())
        else:
            self.outputs(found, of, tuple(self.pushes))

    def do_module(self, b: int, seed: int, lr: float) -> None:
        """Call the network as a module of PyTorch, go back, and let PyTorch update it."""
        if self.way.device == "reference" or not self.trained:
            return  # PyTorch goes back to what is trained alone
        import torch

        import vertexrt.torch as vt

        side = self.side
        if side.module is None:
            side.module = vt.Module(side.net)
        of = self.evaluated(side, b)
        if seed % 2:
            side.module.loss(self.built[b]).backward()
            d_pushes = {"loss": np.full(len(of.vertices), of.scale())}
        else:
            found = side.module(self.built[b])
            rng = np.random.default_rng(seed)
            d_pushes = {n: rng.integers(-8, 9, x.shape) / 8.0 for n, x in found.items()}
            shown = {n: x.detach().cpu().numpy() for n, x in found.items()}
            given = {n: torch.as_tensor(d).to(found[n]) for n, d in d_pushes.items()}
            torch.autograd.backward([found[n] for n in given], [given[n] for n in given])
        if of.unclear:
            side.module = None
            raise Unclear
        want = self._named(of.gradients(d_pushes).parameters)
        for name, p in side.module.named_parameters():
            if p.requires_grad:
                got = np.zeros(p.shape) if p.grad is None else p.grad.detach().cpu().numpy()
                self.near(got, want[name], f"module's gradient of {name}")
                with torch.no_grad():
                    p -= lr * p.grad if p.grad is not None else 0.0
                p.grad = None
                expected = side.parameters[name] - lr * want[name]
                self.near(side.net.parameters[name], expected, f"module's {name}")
                side.parameters[name] = np.array(side.net.parameters[name])
        if not seed % 2:
            self.outputs(shown, of, tuple(shown))
        side.version += 1
        side.alive.clear()


# Drawn.


def draw_rule(rng: np.random.Generator) -> Rule:
    """Draw an optimizer whose update is not much less exact than its gradient."""
    name = str(rng.choice(["SGD", "SGD", "Adam", "AdamW", "Adagrad", "RMSprop"]))
    options: dict[str, Any] = {"lr": float(rng.choice([0.0625, 0.25]))}
    if (name == "SGD" and rng.random() < 0.6) or (name == "RMSprop" and rng.random() < 0.5):
        options["momentum"] = 0.5
    if name != "SGD":
        options["eps"] = 0.0625
    for key, value in (("weight_decay", 0.125), ("clip_norm", 0.5), ("clip_value", 0.25)):
        if rng.random() < (0.5 if key == "weight_decay" else 0.2):
            options[key] = value
    return Rule(name, options)


# How often each call is drawn, relative to the others.
WEIGHTS = {
    "step": 4.0,
    "other": 0.7,
    "forward": 1.0,
    "plan": 0.3,
    "replan": 0.3,
    "train": 1.5,
    "back": 2.0,
    "drop": 0.2,
    "add": 0.6,
    "zero": 0.7,
    "update": 1.0,
    "rate": 0.2,
    "write": 0.5,
    "average": 0.6,
    "inside": 0.4,
    "own": 0.4,
    "interrupt": 0.4,
    "reload": 0.4,
    "resume": 0.3,
}
CARRIED_WEIGHT, MODULE_WEIGHT = 3.0, 1.0
WITHOUT_BATCH = {"back", "drop", "replan", "add", "rate", "write"}  # others begin with its number


class CallDraft:
    """Draws calls.

    Args:
        names: of pushes; batches: how many there are.
    """

    def __init__(self, rng: np.random.Generator, names: Sequence[str], batches: int) -> None:
        self.rng, self.batches, self.passes = rng, batches, 0
        # More of them would compile for longer.
        self.asked = [tuple(names), tuple(names[:1]), tuple(names[1:] or names)]

    def chance(self, p: float) -> bool:
        """Draw a truth with probability p."""
        return bool(self.rng.random() < p)

    def below(self, end: int) -> int:
        """Draw a number."""
        return int(self.rng.integers(max(end, 1)))

    def pick(self, *items: Any) -> Any:
        """Draw one of several."""
        return items[self.below(len(items))]

    def draw(self, kind: str) -> Call:
        """Draw a call of a kind."""
        b, asked = self.below(self.batches), self.pick(*self.asked)
        match kind:
            case "step":
                return kind, b, asked if self.chance(0.5) else (), self.chance(0.2)
            case "other":
                return "step", b, (), False, 1
            case "forward":
                return kind, b, asked, self.pick("", "plan", "device")
            case "train":
                self.passes += 1
                kept = asked if self.chance(0.5) else self.asked[0]
                return kind, b, kept, self.passes - 1
            case "back":
                seed = None if self.chance(0.5) else self.below(100)
                scale, adds, sparse = self.pick(1.0, 0.5), self.chance(0.8), self.chance(0.3)
                return kind, self.below(self.passes), seed, scale, adds, sparse
            case "drop":
                return kind, self.below(self.passes)
            case "plan":
                return kind, b, 0
            case "replan":
                return kind, 0
            case "add":
                return kind, self.below(20), self.pick(0.5, -1.0)
            case "rate":
                return kind, 0.125
            case "write":
                return kind, self.below(100), self.pick("all", "one", "several")
            case "own":
                return kind, b, self.chance(0.3)
            case "interrupt":
                return kind, b, 1 + self.below(150)
            case "carried":
                return kind, b, self.chance(0.5)
            case "module":
                return kind, b, self.below(100), 0.125
            case "inside" | "resume":
                return kind, b
            case _:
                return (kind,)


def draw_calls(
    rng: np.random.Generator, spec: NetSpec, batches: int, module: bool
) -> tuple[Call, ...]:
    """Draw 3 to 12 calls.

    Args:
        module: the network may be called as a module of PyTorch.
    """
    names = list(spec.pushes())
    weights = dict(WEIGHTS)
    if CARRIED in names:
        weights["carried"] = CARRIED_WEIGHT
    if module:
        weights["module"] = MODULE_WEIGHT
    draft = CallDraft(rng, names, batches)
    share = np.array(list(weights.values())) / sum(weights.values())
    kinds = rng.choice(list(weights), int(rng.integers(3, 13)), p=share)
    return tuple(draft.draw(str(kind)) for kind in kinds)
