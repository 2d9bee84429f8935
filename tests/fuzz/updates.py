"""What PyTorch says of an update: its optimizers and schedules, and Lion by its paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.fuzz.bounded import Array
from vertexrt.ir.updates import OPTIMIZERS

NUMBERS: dict[str, tuple[Any, ...]] = {
    "momentum": (0.0, 0.3, 0.9),
    "betas": ((0.9, 0.999), (0.8, 0.97), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-10, 1e-8, 1e-3),
    "alpha": (0.99, 0.9, 0.0),
}
VALUE = "value"  # as which parameters are kept beside moments
CLIPS = ("weight_decay", "clip_norm", "clip_value")
# How PyTorch calls what is kept of an element.
KEPT = {"velocity": "momentum_buffer", "sum": "sum", "square": "square_avg"}
KEPT |= {"m": "exp_avg", "v": "exp_avg_sq"}
OURS = vrt.schedules
Numbers = tuple[int, float, float, str]  # steps, a factor, the least rate, "min" or "max"
# Schedules: ours of a rate, and what makes PyTorch's of its module and an optimizer.
SCHEDULES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "step": (
        lambda lr, n, share, least, mode: OURS.step(lr, every=n, factor=share),
        lambda of, o, n, share, least, mode: of.StepLR(o, n, share),
    ),
    "linear": (
        lambda lr, n, share, least, mode: OURS.linear(share * lr, (1.0 - share) * lr, steps=n),
        lambda of, o, n, share, least, mode: of.LinearLR(o, share, 1.0 - share, n),
    ),
    "cosine": (
        lambda lr, n, share, least, mode: OURS.cosine(lr, steps=3 * n, least=least),
        lambda of, o, n, share, least, mode: of.CosineAnnealingLR(o, 3 * n, least),
    ),
    "own": (
        lambda lr, n, share, least, mode: lambda step: lr * share ** (step % n),
        lambda of, o, n, share, least, mode: of.LambdaLR(o, lambda step: share ** (step % n)),
    ),
    "plateau": (
        lambda lr, n, share, least, mode: OURS.Plateau(
            lr, mode=mode, factor=share, patience=n % 3, least=least
        ),
        lambda of, o, n, share, least, mode: of.ReduceLROnPlateau(
            o, mode, share, n % 3, min_lr=least
        ),
    ),
    "join": (
        lambda lr, n, share, least, mode: OURS.join(
            OURS.linear(share * lr, lr, steps=n), OURS.cosine(lr, steps=2 * n, least=least), at=[n]
        ),
        lambda of, o, n, share, least, mode: of.SequentialLR(
            o,
            [
                of.LinearLR(o, share, total_iters=n),
                of.CosineAnnealingLR(o, 2 * n, least),
            ],
            milestones=[n],
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: its class and options, as `vrt` takes them, and a schedule with its numbers."""

    name: str
    options: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedule: tuple[str, Numbers] | None = None

    def make(self) -> tuple[Any, Any]:
        """Return the optimizer, and a schedule of its own or its rate."""
        lr = self.options["lr"]
        if self.schedule is not None:
            name, numbers = self.schedule
            lr = SCHEDULES[name][0](lr, *numbers)
        groups = {k: dict(x) for k, x in self.groups.items()}
        return getattr(vrt, self.name)(**{**self.options, "lr": lr}, groups=groups), lr

    def rate(self, steps: int, metrics: Sequence[float]) -> float:
        """Return the rate after so many steps, and what a plateau has observed."""
        if self.schedule is None:
            return float(self.options["lr"])
        import torch  # an optional extra, which takes seconds

        name, numbers = self.schedule
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=self.options["lr"])
        theirs = SCHEDULES[name][1](torch.optim.lr_scheduler, optimizer, *numbers)
        optimizer.step()
        for metric in metrics if name == "plateau" else [()] * steps:
            theirs.step(*np.atleast_1d(metric))
        return float(optimizer.param_groups[0]["lr"])

    def of(self, name: str) -> dict[str, Any]:
        """Return what the groups give a parameter; later ones win."""
        found: dict[str, Any] = {}
        for pattern, own in self.groups.items():
            if fnmatchcase(name, pattern):
                found.update(own)
        return found

    def update(
        self,
        now: float,
        ratio: float,
        steps: int,
        kept: Mapping[str, Array],
        gradients: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Return values and moments after a step.

        Args:
            now: the rate; ratio: over the one that the groups were given with.
            kept: by "value/NAME" and "MOMENT/NAME"; of tables, the rows that are looked up.
        """
        moving = {n: g for n, g in gradients.items() if not self.of(n).get("frozen")}
        bound = self.options.get("clip_value") or np.inf
        moving = {n: np.clip(g, -bound, bound) for n, g in moving.items()}
        norm = float(np.sqrt(sum(float((g**2).sum()) for g in moving.values())))
        most = self.options.get("clip_norm") or np.inf
        factor = 1.0 if norm <= most else most / norm
        if self == PLAIN:
            return {f"{VALUE}/{n}": kept[f"{VALUE}/{n}"] - now * g for n, g in moving.items()}
        import torch  # as above

        def tensor(array: Any) -> Any:
            return torch.tensor(np.asarray(array, np.float64))

        own_options = {n: self.options[n] for n in NUMBERS if n in self.options}
        make = lion if self.name == "Lion" else getattr(torch.optim, self.name)
        found = dict(kept)
        for name, g in moving.items():
            own = self.of(name)
            p = tensor(kept[f"{VALUE}/{name}"]).requires_grad_()
            decay = own.get("weight_decay", self.options["weight_decay"])
            rate = own["lr"] * ratio if "lr" in own else now
            theirs = make([p], lr=rate, weight_decay=decay, **own_options)
            mine = {f"{slot}/{name}": called for slot, called in KEPT.items()}
            mine = {key: called for key, called in mine.items() if key in kept}
            theirs.state[p] = {called: tensor(kept[key]) for key, called in mine.items()}
            theirs.state[p]["step"] = torch.tensor(float(steps))
            p.grad = tensor(g * factor)
            theirs.step()
            found[f"{VALUE}/{name}"] = p.detach().numpy()
            found |= {key: theirs.state[p][called].numpy() for key, called in mine.items()}
        return found


PLAIN = Rule("SGD", {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0})


def lion(parameters: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> Any:
    """Make an optimizer of PyTorch's kind: Chen et al., NeurIPS 2023, algorithm 2."""

    import torch  # as above

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for p, state in self.state.items():
                m = state["exp_avg"]
                p.mul_(1 - lr * weight_decay)
                p.sub_(lr * torch.sign(betas[0] * m + (1 - betas[0]) * p.grad))
                m.copy_(betas[1] * m + (1 - betas[1]) * p.grad)

    return Lion(parameters, {})


def draw_rule(rng: np.random.Generator, row: int, whole: bool, names: Sequence[str]) -> Rule:
    """Draw an optimizer.

    Args:
        row: of the table of optimizers.
        whole: all options, groups and schedules; else those whose update is not much less exact
            than its gradient.
        names: of parameters, for groups.
    """
    drawn = OPTIMIZERS[row]
    options: dict[str, Any] = {
        "lr": float(rng.choice([0.001, 0.1, 1.0] if whole else [0.0625, 0.25]))
    }
    for option in drawn.options:
        given = NUMBERS[option.name] if whole or option.name != "eps" else (0.0625,)
        options[option.name] = given[int(rng.integers(len(given)))]
    for name, numbers in (
        ("weight_decay", (0.0, 0.05, 0.5)),
        ("clip_norm", (None, 1e-3, 1.0, 50.0) if whole else (None, None, 0.5)),
        ("clip_value", (None, None, 0.3, 1e3)),
    ):
        options[name] = numbers[int(rng.integers(len(numbers)))]
    if not whole:
        return Rule(drawn.title, options)
    schedule = None
    if rng.random() < 0.6:
        numbers = int(rng.integers(1, 6)), float(rng.uniform(0.1, 0.9))
        least, mode = float(rng.uniform(0.0, 0.02)), str(rng.choice(["min", "max"]))
        schedule = str(rng.choice(list(SCHEDULES))), (*numbers, least, mode)
    groups = draw_groups(rng, names) if rng.random() < 0.6 else {}
    return Rule(drawn.title, options, groups, schedule)


def draw_groups(rng: np.random.Generator, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Draw options of some parameters."""
    found: dict[str, dict[str, Any]] = {}
    patterns = ["*", *names]
    patterns += [p for p in ("*0", "*t*", "?1*") if any(fnmatchcase(n, p) for n in names)]
    for pattern in rng.permutation(patterns)[: int(rng.integers(1, 4))]:
        own = {
            "lr": float(rng.choice([0.0, 0.01, 0.3])),
            "weight_decay": float(rng.choice([0.0, 0.2])),
        }
        own["frozen"] = bool(rng.random() < 0.4)
        found[str(pattern)] = {n: x for n, x in own.items() if rng.random() < 0.5}
    return found
