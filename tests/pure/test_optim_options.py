"""Options of the optimizers: what is refused, and how an optimizer describes itself."""

from collections.abc import Callable

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
