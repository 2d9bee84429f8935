"""Options of the optimizers: what is refused, and how an optimizer describes itself."""

from collections.abc import Callable
from typing import Any

import pytest

from vertexrt.api.optim import SGD, Adagrad, Adam, AdamW
from vertexrt.api.optimizer import Optimizer
from vertexrt.errors import UsageError


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SGD(-1.0), "[SGD] lr=-1.0; lr >= 0; set it."),
        (lambda: SGD(float("nan")), "[SGD] lr=nan; lr >= 0; set it."),
        (lambda: SGD(0.1, 1.0), "[SGD] momentum=1.0; momentum in [0, 1); set it."),
        (lambda: Adagrad(0.1, eps=0.0), "[Adagrad] eps=0.0; eps > 0; set it."),
        (
            lambda: Adagrad(0.1, weight_decay=-0.1),
            "[Adagrad] weight_decay=-0.1; weight_decay >= 0; set it.",
        ),
        (lambda: Adam(betas=(0.9, 1.0)), "[Adam] betas[1]=1.0; betas[1] in [0, 1); set it."),
        (
            lambda: AdamW(clip_norm=0.0),
            "[AdamW] clip_norm=0.0; clip_norm > 0, or None; set it.",
        ),
    ],
)
def test_refused_options(make: Callable[[], Optimizer], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == text


def test_describe() -> None:
    assert SGD(0.1, 0.5, clip_norm=5.0).describe() == {
        "class": "SGD",
        "lr": 0.1,
        "momentum": 0.5,
        "weight_decay": 0.0,
        "clip_norm": 5.0,
    }
    assert AdamW().describe() == {
        "class": "AdamW",
        "lr": 1e-3,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01,
        "clip_norm": None,
    }


class Own(Optimizer):
    """An optimizer with an update and an option of its own."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.warm = 3

    def update(self, store: Any) -> None:
        """Change nothing."""


@pytest.mark.parametrize(
    ("make", "name", "value", "text"),
    [
        (lambda: SGD(0.1), "lr", -1.0, "[SGD] lr=-1.0; lr >= 0; set it."),
        (lambda: SGD(0.1, 0.5), "momentum", 1.0, "[SGD] momentum=1.0; momentum in [0, 1); set it."),
        (
            lambda: SGD(0.1),
            "momentum",
            0.9,
            "[SGD] momentum=0.9 after 0.0; a moment from the first ",
        ),
        (
            lambda: SGD(0.1, 0.5),
            "momentum",
            0.0,
            "[SGD] momentum=0.0 after 0.5; a moment from the ",
        ),
        (
            lambda: SGD(0.1),
            "weight_decay",
            -0.1,
            "[SGD] weight_decay=-0.1; weight_decay >= 0; set ",
        ),
        (lambda: SGD(0.1), "clip_norm", -1.0, "[SGD] clip_norm=-1.0; clip_norm > 0, or None; set "),
        (lambda: Adam(), "clip_value", "1", "[Adam] clip_value='1'; clip_value > 0, or None; set "),
        (lambda: Adam(), "betas", 0.9, "[Adam] betas=0.9; 2 numbers; set all."),
        (lambda: Adam(), "eps", 0.0, "[Adam] eps=0.0; eps > 0; set it."),
        (lambda: Adam(), "beta1", 0.5, "[Adam] no option 'beta1'; one of lr, betas, eps, weight_d"),
        (
            Own,
            "clip_value",
            1.0,
            "[Own.update] clip_value, for an update of its own; options that ",
        ),
        (Own, "groups", {"*": {"lr": 0.1}}, "[Own.update] groups, for an update of its own; opti"),
    ],
)
def test_options_are_checked_when_they_are_set_later(
    make: Callable[[], Optimizer], name: str, value: Any, text: str
) -> None:
    """Issue 52."""
    optimizer = make()
    before = optimizer.describe()
    with pytest.raises(UsageError) as caught:
        setattr(optimizer, name, value)
    assert str(caught.value).startswith(text)
    assert optimizer.describe() == before


def test_options_that_are_set_later_count() -> None:
    optimizer = Adam(groups={"*": {"lr": 0.1}})
    optimizer.betas, optimizer.clip_norm, optimizer.weight_decay = [0.5, 0.6], 2, 0.1
    found = optimizer.describe()
    assert [found[name] for name in ("betas", "clip_norm", "weight_decay")] == [
        [0.5, 0.6],
        2.0,
        0.1,
    ]
    with pytest.raises(TypeError):
        optimizer.groups["*"]["lr"] = 0.2
    own = Own()
    own.warm = 4
    assert own.warm == 4
