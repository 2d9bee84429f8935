"""The optimizers of `vrt`: a class for each row of `ir/updates.py`, which says what it computes.

Sparse parameters (embedding tables) are updated lazily: only rows that have a gradient in this step
move. The state of the others rests and weight decay does not reach them, while bias corrections
count every step. So a table differs from the same parameter declared dense, except under rules
without averages (Adagrad, SGD without momentum), both without weight decay, where the two agree.
"""

from __future__ import annotations

from vertexrt.api.optimizer import Groups, Optimizer, Rate
from vertexrt.ir.updates import OPTIMIZERS as ROWS

_ROWS = {row.title: row for row in ROWS}


class SGD(Optimizer):
    """SGD (Polyak 1964, in the form of Sutskever et al. (ICML 2013) with lr outside).

    In step t, where g is the gradient, clipped and with weight_decay * value added:

        velocity = momentum * velocity + g
        value = value - lr * velocity

    Args:
        lr: learning rate, a number or a function of the updates so far (>= 0).
        momentum: share of the velocity that a step keeps; 0: none (in [0, 1)).
        weight_decay: added to g as weight_decay * value (>= 0).
        clip_norm: largest norm of all gradients together (> 0, or None).
        clip_value: largest size of a gradient; sees them first (> 0, or None).
        groups: lr, weight_decay, frozen by pattern of names ({"*.b": {"lr": 0.0}}).
    Raises: UsageError, for an option out of its range.
    """

    row = _ROWS["SGD"]

    def __init__(
        self,
        lr: Rate,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, clip_norm, clip_value, groups, momentum=momentum)


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., JMLR 2011, with a diagonal matrix).

    In step t, where g is the gradient, clipped and with weight_decay * value added:

        sum = sum + g * g
        value = value - lr * g / (sqrt(sum) + eps)

    Args:
        lr: learning rate, a number or a function of the updates so far (>= 0).
        eps: added to the root, as large as a gradient (> 0).
        weight_decay: added to g as weight_decay * value (>= 0).
        clip_norm: largest norm of all gradients together (> 0, or None).
        clip_value: largest size of a gradient; sees them first (> 0, or None).
        groups: lr, weight_decay, frozen by pattern of names ({"*.b": {"lr": 0.0}}).
    Raises: UsageError, for an option out of its range.
    """

    row = _ROWS["Adagrad"]

    def __init__(
        self,
        lr: Rate,
        eps: float = 1e-10,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, clip_norm, clip_value, groups, eps=eps)


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1).

    In step t, where g is the gradient, clipped and with weight_decay * value added:

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        value = value - lr / (1 - beta1**t) * m / (sqrt(v) * (1 / sqrt(1 - beta2**t)) + eps)

    Args:
        lr: learning rate, a number or a function of the updates so far (>= 0).
        betas: shares of the averages of g and of its square that a step keeps (in [0, 1)).
        eps: added to the root, as large as a gradient (> 0).
        weight_decay: added to g as weight_decay * value (>= 0).
        clip_norm: largest norm of all gradients together (> 0, or None).
        clip_value: largest size of a gradient; sees them first (> 0, or None).
        groups: lr, weight_decay, frozen by pattern of names ({"*.b": {"lr": 0.0}}).
    Raises: UsageError, for an option out of its range.
    """

    row = _ROWS["Adam"]

    def __init__(
        self,
        lr: Rate = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, clip_norm, clip_value, groups, betas=betas, eps=eps)


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter, ICLR 2019, algorithm 2, whose schedule is lr itself).

    In step t, where g is the gradient, clipped:

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        value = value - lr / (1 - beta1**t) * m / (sqrt(v) * (1 / sqrt(1 - beta2**t)) + eps)

    Args:
        lr: learning rate, a number or a function of the updates so far (>= 0).
        betas: shares of the averages of g and of its square that a step keeps (in [0, 1)).
        eps: added to the root, as large as a gradient (> 0).
        weight_decay: value is multiplied by 1 - lr * weight_decay first (>= 0).
        clip_norm: largest norm of all gradients together (> 0, or None).
        clip_value: largest size of a gradient; sees them first (> 0, or None).
        groups: lr, weight_decay, frozen by pattern of names ({"*.b": {"lr": 0.0}}).
    Raises: UsageError, for an option out of its range.
    """

    row = _ROWS["AdamW"]

    def __init__(
        self,
        lr: Rate = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        *,
        weight_decay: float = 0.01,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, clip_norm, clip_value, groups, betas=betas, eps=eps)


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5, in PyTorch's form: eps outside the root).

    In step t, where g is the gradient, clipped and with weight_decay * value added:

        square = alpha * square + (1 - alpha) * (g * g)
        velocity = momentum * velocity + g / (sqrt(square) + eps)
        value = value - lr * velocity

    Args:
        lr: learning rate, a number or a function of the updates so far (>= 0).
        alpha: share of the average of squares that a step keeps (in [0, 1)).
        eps: added to the root, as large as a gradient (> 0).
        momentum: share of the velocity that a step keeps; 0: none (in [0, 1)).
        weight_decay: added to g as weight_decay * value (>= 0).
        clip_norm: largest norm of all gradients together (> 0, or None).
        clip_value: largest size of a gradient; sees them first (> 0, or None).
        groups: lr, weight_decay, frozen by pattern of names ({"*.b": {"lr": 0.0}}).
    Raises: UsageError, for an option out of its range.
    """

    row = _ROWS["RMSprop"]

    def __init__(
        self,
        lr: Rate = 0.001,
        alpha: float = 0.99,
        eps: float = 1e-08,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(
            lr, weight_decay, clip_norm, clip_value, groups, alpha=alpha, eps=eps, momentum=momentum
        )


class Lion(Optimizer):
    """Lion (Chen et al., NeurIPS 2023, algorithm 2).

    In step t, where g is the gradient, clipped:

        c = beta1 * m + (1 - beta1) * g
        value = value - lr * (0.0 if c == 0.0 else (1.0 if c > 0.0 else -1.0))
        m = beta2 * m + (1 - beta2) * g

    Args:
        lr: learning rate, a number or a function of the updates so far (>= 0).
        betas: shares of the average that the direction and a step keep (in [0, 1)).
        weight_decay: value is multiplied by 1 - lr * weight_decay first (>= 0).
        clip_norm: largest norm of all gradients together (> 0, or None).
        clip_value: largest size of a gradient; sees them first (> 0, or None).
        groups: lr, weight_decay, frozen by pattern of names ({"*.b": {"lr": 0.0}}).
    Raises: UsageError, for an option out of its range.
    """

    row = _ROWS["Lion"]

    def __init__(
        self,
        lr: Rate = 0.0001,
        betas: tuple[float, float] = (0.9, 0.99),
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, clip_norm, clip_value, groups, betas=betas)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    made.__name__: made for made in (SGD, Adagrad, Adam, AdamW, RMSprop, Lion)
}
