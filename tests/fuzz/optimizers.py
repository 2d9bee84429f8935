"""Run sequences of updates, and of all that comes between them, against PyTorch in float64.

The network's loss is linear, so that its gradients are what its vertices pull. The judge has one
tensor for each dense parameter and one for each row of a table: PyTorch leaves a tensor without a
gradient alone, as vertexrt does a row that was not looked up. The number of the step is that of the
whole optimizer. Lion, which PyTorch lacks, is written here after its paper.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz.bounded import Array
from tests.fuzz.campaign import Finding, Settings, Tally
from tests.fuzz.compare import error_outcome
from tests.fuzz.ways import NamedWay
from tests.runs import ALL
from vertexrt.errors import NumericError
from vertexrt.ir.updates import OPTIMIZERS, OptimizerRow

try:
    import torch
    from torch.optim import lr_scheduler, swa_utils
except ImportError:  # an optional extra: `run_one` cannot be called then
    torch = lr_scheduler = swa_utils = None  # type: ignore[assignment]

EVENTS = 10
TOLERANCE = 1e-12  # of the largest number that an element has been, over `EVENTS` steps
TABLES = ("table", "side")  # of which only looked-up rows are updated
SHAPES = {"w": (5,), "m": (3, 4), "both": (4, 2), "table": (6, 3), "side": (4, 3), "e": (3,)}
FROZEN = ("e",)
NUMBERS: dict[str, tuple[Any, ...]] = {
    "momentum": (0.0, 0.3, 0.9),
    "betas": ((0.9, 0.999), (0.8, 0.97), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-10, 1e-8, 1e-3),
    "alpha": (0.99, 0.9, 0.0),
}
SIZES = (0.0, 1e-170, 1e-9, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e60)


class Linear(vrt.VertexFunction):
    """The gradient of a parameter is what vertices pull; `side` is pushed, and not in the loss."""

    def __init__(self) -> None:
        for name, shape in SHAPES.items():
            setattr(self, name, vrt.Parameter(shape, trainable=name not in FROZEN))
        super().__init__(state={})

    def forward(self) -> None:
        row, other = self.pull("row"), self.pull("other")
        loss = vrt.sum(self.w * self.pull("w", shape=SHAPES["w"]))
        loss = loss + vrt.sum(self.m * self.pull("m", shape=SHAPES["m"]))
        loss = loss + vrt.sum(self.both * self.pull("both", shape=SHAPES["both"]))
        loss = loss + vrt.sum(vrt.embed(self.both, other) * self.pull("looked_up", shape=(2,)))
        loss = loss + vrt.sum(vrt.embed(self.table, row) * self.pull("table", shape=(3,)))
        self.push("side", vrt.embed(self.side, other) * self.e)
        self.push("loss", loss)


# What PyTorch does.


def lion(parameters: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> Any:
    """Make an optimizer of PyTorch's kind: Chen et al., NeurIPS 2023, algorithm 2."""

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for group in self.param_groups:
                (beta1, beta2), lr = group["betas"], group["lr"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.mul_(1 - lr * group["weight_decay"])
                    p.sub_(lr * torch.sign(beta1 * m + (1 - beta1) * p.grad))
                    m.copy_(beta2 * m + (1 - beta2) * p.grad)

    return Lion(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


@dataclass
class Judge:
    """PyTorch's optimizer over the parameters of a network, and the options of now.

    Attributes:
        tensors: by name: one, or of a table one for each row.
        lr, weight_decay, clip_norm, clip_value, groups: see `vrt.Optimizer`.
        lr_of_groups: the rate that the optimizer had when the groups were given.
        largest: how large each element has been.
    """

    title: str
    options: dict[str, Any]
    values: Mapping[str, Array]
    lr: float
    groups: dict[str, dict[str, Any]]
    lr_of_groups: float
    weight_decay: float
    clip_norm: float | None
    clip_value: float | None
    steps: int = 0
    tensors: dict[str, list[Any]] = field(default_factory=dict)
    largest: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups = []
        for name, value in self.values.items():
            rows = value if name in TABLES else [value]
            self.tensors[name] = [torch.tensor(np.array(r), requires_grad=True) for r in rows]
            self.largest[name] = np.abs(value)
            groups.append({"params": self.tensors[name], "lr": 0.0, "weight_decay": 0.0})
        make = lion if self.title == "Lion" else getattr(torch.optim, self.title)
        self.torch = make(groups, lr=0.0, weight_decay=0.0, **self.options)
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor.grad = torch.zeros_like(tensor)
        self.torch.step()  # moves nothing, and makes what is kept of each tensor

    def options_of(self, name: str) -> dict[str, Any]:
        """Return what the groups give a parameter; later ones win."""
        found: dict[str, Any] = {}
        for pattern, own in self.groups.items():
            if fnmatchcase(name, pattern):
                found.update(own)
        return found

    def step(self, gradients: Mapping[str, Array], rows: Mapping[str, set[int]]) -> None:
        """Update by gradients; of tables, the rows that were looked up."""
        given: list[tuple[Any, Array]] = []
        for name, group in zip(self.tensors, self.torch.param_groups, strict=True):
            own = self.options_of(name)
            group["lr"] = own["lr"] * (self.lr / self.lr_of_groups) if "lr" in own else self.lr
            group["weight_decay"] = own.get("weight_decay", self.weight_decay)
            gradient = gradients[name]
            for k, tensor in enumerate(self.tensors[name]):
                tensor.grad = None
                rests = own.get("frozen") or name in FROZEN
                if not rests and (name not in TABLES or k in rows[name]):
                    given.append((tensor, gradient[k] if name in TABLES else gradient))
        bound = np.inf if self.clip_value is None else self.clip_value
        clipped = [np.clip(g, -bound, bound) for _, g in given]
        norm = float(np.sqrt(sum((g**2).sum() for g in clipped)))
        factor = 1.0 if self.clip_norm is None or norm <= self.clip_norm else self.clip_norm / norm
        for (tensor, _), g in zip(given, clipped, strict=True):
            tensor.grad = torch.tensor(g * factor)
        for state in self.torch.state.values():
            if "step" in state:
                state["step"] = torch.tensor(float(self.steps))
        self.torch.step()
        self.steps += 1
        for name, value in self.now().items():
            self.largest[name] = np.maximum(self.largest[name], np.abs(value))

    def now(self) -> dict[str, Array]:
        """Return the parameters by name."""
        found = {}
        for name, tensors in self.tensors.items():
            arrays = [t.detach().numpy() for t in tensors]
            found[name] = np.stack(arrays) if name in TABLES else arrays[0].copy()
        return found

    def set(self, name: str, value: Array) -> None:
        """Set a parameter."""
        with torch.no_grad():
            for k, tensor in enumerate(self.tensors[name]):
                tensor.copy_(torch.tensor(value[k] if name in TABLES else value))
        self.largest[name] = np.maximum(self.largest[name], np.abs(value))


# Schedules, made with either module.

Make = Callable[[Any, Any], Any]


def draw_schedule(rng: np.random.Generator, lr: float) -> tuple[Any, Make]:
    """Return a schedule, and what makes PyTorch's of its module of schedules and an optimizer.

    Args:
        lr: of the optimizer.
    """
    count, share = int(rng.integers(1, 6)), float(rng.uniform(0.1, 0.9))
    least, patience = float(rng.uniform(0.0, 0.02)), int(rng.integers(0, 3))
    mode = str(rng.choice(["min", "max"]))

    def sequence(of: Any, optimizer: Any) -> Any:
        first = of.LinearLR(optimizer, share, total_iters=count)
        second = of.CosineAnnealingLR(optimizer, 2 * count, least)
        return of.SequentialLR(optimizer, [first, second], milestones=[count])

    ours = vrt.schedules
    warm_up = ours.linear(share * lr, lr, steps=count)
    plateau = {"mode": mode, "factor": share, "patience": patience}
    made: list[tuple[Any, Make]] = [
        (
            ours.step(lr, every=count, factor=share),
            lambda of, optimizer: of.StepLR(optimizer, count, share),
        ),
        (
            ours.linear(share * lr, (1.0 - share) * lr, steps=count),
            lambda of, optimizer: of.LinearLR(optimizer, share, 1.0 - share, total_iters=count),
        ),
        (
            ours.cosine(lr, steps=3 * count, least=least),
            lambda of, optimizer: of.CosineAnnealingLR(optimizer, 3 * count, eta_min=least),
        ),
        (
            lambda n: lr * share ** (n % count),
            lambda of, optimizer: of.LambdaLR(optimizer, lambda n: share ** (n % count)),
        ),
        (
            ours.Plateau(lr, least=least, **plateau),
            lambda of, optimizer: of.ReduceLROnPlateau(optimizer, min_lr=least, **plateau),
        ),
        (ours.join(warm_up, ours.cosine(lr, steps=2 * count, least=least), at=[count]), sequence),
    ]
    return made[int(rng.integers(len(made)))]


# One sequence.


class Wrong(Exception):
    """Something differs; the text says what, and after which events."""


class Sequence:
    """A network, its optimizer, schedule and average, and the judge of all of them.

    Args:
        seed: everything else is drawn from it.
    """

    def __init__(self, row: OptimizerRow, seed: int, way: NamedWay) -> None:
        self.rng, self.way = np.random.default_rng([seed, 7]), way
        rng = self.rng
        self.events: list[str] = []
        own = {option.name: self.choice(*NUMBERS[option.name]) for option in row.options}
        self.make = partial(getattr(vrt, row.title), **own)
        lr = float(rng.choice([0.001, 0.1, 1.0]))
        self.net = self.network()
        options = {
            "weight_decay": float(rng.choice([0.0, 0.05, 0.5])),
            "clip_norm": self.choice(None, 1e-3, 1.0, 50.0),
            "clip_value": self.choice(None, None, 0.3, 1e3),
        }
        groups = self.draw_groups() if rng.random() < 0.6 else {}
        self.schedule: Any = None
        if rng.random() < 0.6:
            self.schedule, make_theirs = draw_schedule(rng, lr)
            self.at_first = copy.deepcopy(self.schedule)
            theirs = torch.optim.SGD([torch.zeros(1)], lr=lr)
            self.rates = theirs.param_groups[0]
            self.their_schedule = make_theirs(lr_scheduler, theirs)
        self.peak = getattr(self.schedule, "peak", lr)  # groups are in proportion to it
        self.optimizer = self.make(lr=self.schedule or lr, groups=groups, **options)
        self.judge = Judge(row.title, own, self.values(), lr, groups, self.peak, **options)
        if self.schedule is not None:
            self.judge.lr = self.rates["lr"]
        self.decay = float(rng.choice([0.0, 0.5, 0.9]))
        self.average = vrt.ExponentialMovingAverage(self.net, self.decay)
        self.averages = {n: torch.tensor(v) for n, v in self.judge.now().items()}
        self.total = {n: np.zeros(s) for n, s in SHAPES.items()}  # of `net.gradients`
        self.rows: dict[str, set[int]] = {name: set() for name in TABLES}
        self.passes = 0

    def network(self) -> vrt.Network:
        """Compile the network."""
        return self.way.compile(Linear(), None, 1)

    def choice(self, *of: Any) -> Any:
        """Choose one of several things."""
        return of[int(self.rng.integers(len(of)))]

    def values(self) -> dict[str, Array]:
        """Copy the network's parameters."""
        return dict(self.net.parameters)

    def draw_groups(self) -> dict[str, dict[str, Any]]:
        """Draw options of some parameters."""
        found: dict[str, dict[str, Any]] = {}
        for pattern in self.rng.permutation(["w", "m", "*t*", "table", "*", "?oth"])[
            : self.choice(1, 2, 3)
        ]:
            own = {"lr": self.choice(0.0, 0.01, 0.3), "weight_decay": self.choice(0.0, 0.2)}
            own["frozen"] = bool(self.rng.random() < 0.4)
            kept = [name for name in own if self.rng.random() < 0.5]
            found[str(pattern)] = {name: own[name] for name in kept}
        return found

    def draw_batch(self) -> tuple[vrt.GraphBatch, dict[str, Array], dict[str, set[int]]]:
        """Draw a batch of one graph; return it, its gradients, and the rows that it looks up."""
        count = int(self.rng.integers(1, 5))

        def reals(shape: tuple[int, ...], rows: int) -> Array:
            drawn = self.rng.standard_normal((rows, *shape))
            sizes = self.rng.choice(SIZES, drawn.shape) if self.rng.random() < 0.5 else 1.0
            return np.asarray(drawn * sizes)

        def indices(rows: int) -> Array:
            twice = self.rng.permutation(2 * rows)[:count] % rows  # two terms: any order is exact
            return np.where(self.rng.random(count) < 0.8, twice, -1).astype(np.int32)

        pulls: dict[str, Any] = {"row": indices(6), "other": indices(4)}
        gradients = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        for name in ("w", "m", "both"):  # of one vertex: no sums
            pulls[name] = np.zeros((count, *SHAPES[name]))
            pulls[name][0] = gradients[name] = reals(SHAPES[name], 1)[0]
        gradients["both"] = gradients["both"].copy()
        pulls["looked_up"], pulls["table"] = reals((2,), count), reals((3,), count)
        self.gather(gradients["both"], pulls["other"], pulls["looked_up"])
        self.gather(gradients["table"], pulls["row"], pulls["table"])
        rows = {"table": set(pulls["row"][pulls["row"] >= 0].tolist()), "side": set()}
        graph = vrt.InputGraph.from_children([[]] * count, pulls)
        return vrt.GraphBatch.from_graphs([graph]), gradients, rows

    @staticmethod
    def gather(into: Array, index: Array, rows: Array) -> None:
        """Add rows where an index says; the rows of one place first."""
        added = np.zeros_like(into)
        np.add.at(added, index[index >= 0], rows[index >= 0])
        into += added

    # What may happen.

    def step(self) -> None:
        """A step, with or without outputs that are kept."""
        batch, gradients, rows = self.draw_batch()
        outputs = self.choice((), ("side",), ("loss", "side"))
        self.events[-1] += f" {outputs}"
        want = self.loss(self.judge.now(), gradients)
        got = self.net.step(batch, self.optimizer, outputs=outputs)
        self.updated(gradients, rows)
        self.same("loss", got, *want)

    @staticmethod
    def loss(values: Mapping[str, Array], gradients: Mapping[str, Array]) -> tuple[float, float]:
        """Return a loss, which is linear, and the sum of its absolute terms."""
        terms = [values[name] * gradients[name] for name in ("w", "m", "both", "table")]
        return sum(t.sum() for t in terms), sum(np.abs(t).sum() for t in terms)

    def backward(self) -> None:
        """Gradients of a pass are added."""
        batch, gradients, rows = self.draw_batch()
        scale = self.choice(1.0, 0.5, 0.0)
        self.net.record(batch, outputs=["loss"]).backward(scale=scale)
        for name, total in self.total.items():
            total += scale * gradients[name]
        for name, some in rows.items():
            self.rows[name] |= some
        self.passes += 1

    def update(self) -> None:
        """The optimizer takes what passes have added up; the sum stays."""
        if not self.passes:
            self.backward()
        self.optimizer.step(self.net)
        self.updated(self.total, self.rows)
        if self.rng.random() < 0.7:
            self.zero()

    def zero(self) -> None:
        """The sum begins anew, whatever was written to it."""
        if self.rng.random() < 0.3:
            self.net.gradients[self.choice("w", "table", "side")] += 1.0
        self.net.zero_grad()
        self.total = {n: np.zeros(s) for n, s in SHAPES.items()}
        self.rows, self.passes = {name: set() for name in TABLES}, 0

    def refused(self) -> None:
        """A gradient that is not finite changes nothing."""
        self.zero()
        self.backward()
        name = self.choice("w", "m", "both")
        if self.judge.options_of(name).get("frozen"):
            return self.zero()
        self.net.gradients[name][...] = self.choice(np.nan, np.inf, -np.inf)
        try:
            self.optimizer.step(self.net)
        except NumericError:
            return self.zero()
        raise Wrong("a gradient that is not finite was taken")

    def rate(self) -> None:
        """The schedule looks at a measure, or the rate is set."""
        if self.schedule is None:
            self.optimizer.lr = self.judge.lr = float(self.choice(0.0, 0.02, 0.5))
        elif isinstance(self.schedule, vrt.schedules.Plateau):
            metric = float(self.choice(1.0, 0.5, 2.0, np.nan))
            self.schedule.observe(metric)
            self.their_schedule.step(metric)
            self.judge.lr = self.rates["lr"]
        self.same("lr", self.optimizer.lr, self.judge.lr)

    def updated(self, gradients: Mapping[str, Array], rows: Mapping[str, set[int]]) -> None:
        """The judge has an update too, after which a schedule of steps goes on."""
        self.judge.step(gradients, rows)
        if self.schedule is not None and not isinstance(self.schedule, vrt.schedules.Plateau):
            self.their_schedule.step()
            self.judge.lr = self.rates["lr"]

    def regroup(self) -> None:
        """Groups are given while it trains: some thaw, some have rates of their own."""
        if self.schedule is None and self.judge.lr == 0.0:
            return  # rates of groups keep their ratio to it
        groups = self.choice({}, self.draw_groups())
        self.optimizer.groups = copy.deepcopy(groups)
        now = self.judge.lr if self.schedule is None else self.peak
        self.judge.groups, self.judge.lr_of_groups = groups, now

    def option(self) -> None:
        """An option is set while it trains; momentum keeps whether it is 0."""
        name = self.choice("weight_decay", "clip_norm", "clip_value", *self.judge.options)
        if name in self.judge.options:
            numbers = [n for n in NUMBERS[name] if bool(n) == bool(self.judge.options[name])]
            value = self.judge.options[name] = self.choice(*numbers)
            for group in self.judge.torch.param_groups:
                group[name] = value
        else:
            numbers = [0.0, 0.1, 0.7] if name == "weight_decay" else [None, 0.1, 10.0]
            value = self.choice(*numbers)
            setattr(self.judge, name, value)
        self.events[-1] += f" {name}={value}"
        setattr(self.optimizer, name, value)

    def set_parameter(self) -> None:
        """A parameter is set, a frozen one say."""
        name = self.choice("e", "w", "table")
        value = self.rng.standard_normal(SHAPES[name])
        self.net.parameters[name] = value
        self.judge.set(name, value)

    def average_updated(self) -> None:
        """The average takes what the parameters are now; of frozen ones it has no opinion."""
        self.average.update()
        for name, value in self.judge.now().items():
            average = swa_utils.get_ema_avg_fn(self.decay)
            self.averages[name] = average(self.averages[name], torch.tensor(value), torch.tensor(1))

    def averaged(self) -> None:
        """The network computes with the averages, and then with its own again."""
        batch, gradients, _ = self.draw_batch()
        own = self.values()
        values = {n: a.numpy() for n, a in self.averages.items()} | {n: own[n] for n in FROZEN}
        with self.average.in_place():
            for name, value in self.net.parameters.items():
                self.same(f"average of {name}", value, values[name], self.judge.largest[name])
            got = self.net(batch, outputs=["loss"])["loss"].sum()
            terms = {n: self.judge.largest[n] * np.abs(g) for n, g in gradients.items()}
            size = sum(float(t.sum()) for t in terms.values())
            self.same("loss of the average", got, self.loss(values, gradients)[0], size)
        for name, value in self.net.parameters.items():
            if not np.array_equal(value, own[name]):
                raise Wrong(f"{name} has not come back after the average")

    def resumed(self) -> None:
        """Another network, optimizer, average and schedule go on from a checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved"
            plateau = isinstance(self.schedule, vrt.schedules.Plateau)
            kept = {"schedule": self.schedule.state()} if plateau else {}
            kept = json.loads(json.dumps(kept))
            vrt.save_checkpoint(path, self.net, self.optimizer, kept, self.average)
            found = vrt.load_checkpoint(path)
        self.net = self.network()
        self.net.parameters.update(found.parameters)
        judge = self.judge
        self.optimizer = self.make(
            lr=judge.lr_of_groups if self.schedule is None else self.at_first,
            groups=judge.groups,
            weight_decay=judge.weight_decay,
            clip_norm=judge.clip_norm,
            clip_value=judge.clip_value,
        )
        for name, value in judge.options.items():
            setattr(self.optimizer, name, value)
        self.optimizer.load_state(found.optimizer_state)
        if self.schedule is None:
            self.optimizer.lr = judge.lr
        elif plateau:
            self.schedule = copy.deepcopy(self.at_first)
            self.schedule.load_state(found.meta["schedule"])
            self.optimizer.lr = self.schedule
        self.average = vrt.ExponentialMovingAverage(self.net, self.decay)
        self.average.load_state(found.average)
        self.zero()

    def same(self, what: str, got: Any, want: Any, size: Any = 0.0) -> None:
        """Compare numbers; `size` is how large terms have been."""
        allowed = TOLERANCE * (np.abs(want) + np.abs(size) + self.judge.lr) + 1e-300
        off = np.abs(np.asarray(got) - want)
        if not (off <= allowed).all():
            raise Wrong(f"{what} is off by {np.max(off):.3g}")

    def run(self) -> str:
        """Let things happen, and compare after each; return what is wrong, "" if nothing is."""
        happens = [self.step] * 6 + [self.update] * 3 + [self.rate] * 3 + [self.average_updated] * 2
        happens += [self.backward, self.zero, self.refused, self.regroup, self.option]
        happens += [self.set_parameter, self.averaged, self.resumed]
        try:
            for _ in range(EVENTS):
                event = self.choice(*happens)
                self.events.append(event.__name__)
                event()
                if self.optimizer.steps != self.judge.steps:
                    raise Wrong(f"{self.optimizer.steps} steps; there were {self.judge.steps}")
                for name, value in self.judge.now().items():
                    got = self.net.parameters[name]
                    self.same(name, got, value, self.judge.largest[name])
        except Wrong as wrong:
            return f"{wrong}: {self.optimizer!r} after {', '.join(self.events)}"
        return ""


def ways(settings: Settings) -> list[NamedWay]:
    """List the ways of a device that leave passes as they are."""
    return [w for w in settings.listed() if w.way.passes == ALL and w.tile is None]


def run_one(seed: int, settings: Settings) -> Tally:
    """Draw a sequence and run it in one way; all take turns."""
    tally, listed = Tally(1), ways(settings)
    way = listed[seed % len(listed)]
    tally.tried[way.name] += 1
    try:
        row = OPTIMIZERS[seed // len(listed) % len(OPTIMIZERS)]
        text = Sequence(row, seed, way).run()
        kind = "wrong"
    except Exception as error:  # noqa: BLE001 - any error at all is what a fuzzer looks for
        outcome = error_outcome(error)
        kind, text = outcome.kind, outcome.text
    if text:
        command = f"python -m tests.fuzz optimizers --seed {seed} --count 1"
        script = f"{command} --device {settings.device}{settings.of_ways()}"
        tally.findings.append(Finding(seed, way.name, kind, text, script))
    return tally
