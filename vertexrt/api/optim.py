"""The update rules: SGD, SGD with momentum, Adagrad, Adam and AdamW.

In the formulas g is the gradient, clipped and with weight decay added.

Sparse parameters (embedding tables) are updated lazily: only rows that have a gradient in this step
move. The moments of the others rest and weight decay does not reach them, while the bias correction
of Adam counts every step. So a table differs from the same parameter declared dense, except under
Adagrad and under SGD without momentum, both without weight decay, where the two agree.
"""

from typing import Any

from vertexrt.api.optimizer import Optimizer, above_zero
from vertexrt.errors import UsageError, message


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum as an option.

    value -= lr * g; with momentum: velocity = momentum * velocity + g, value -= lr * velocity
    (Polyak 1964, in the form of Sutskever et al. 2013 with lr outside the velocity).
    """

    def __init__(
        self,
        lr: float,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        """Take the options; momentum is in [0, 1). Raises: UsageError."""
        super().__init__(lr, weight_decay, clip_norm)
        self.momentum = self._checked("momentum", momentum, below_one, "in [0, 1)")
        self.rule = "momentum" if self.momentum else "sgd"
        self.moment_names = ("velocity",) if self.momentum else ()

    def _scalars(self) -> tuple[float, ...]:
        plain = (self.weight_decay, self.lr)
        return (*plain, self.momentum) if self.momentum else plain

    def _options(self) -> dict[str, Any]:
        return {"momentum": self.momentum}


class Adagrad(Optimizer):
    """Adagrad with a diagonal matrix (Duchi et al., JMLR 2011).

    sum += g^2; value -= lr * g / (sqrt(sum) + eps). The sums start at zero.
    """

    rule = "adagrad"
    moment_names = squares = ("sum",)

    def __init__(
        self,
        lr: float,
        *,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        """Take the options; eps is above 0. Raises: UsageError."""
        super().__init__(lr, weight_decay, clip_norm)
        self.eps = self._checked("eps", eps, above_zero, "> 0")

    def _scalars(self) -> tuple[float, ...]:
        return (self.weight_decay, self.lr, self.eps)

    def _options(self) -> dict[str, Any]:
        return {"eps": self.eps}


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1).

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    value -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps).
    """

    rule = "adam"
    moment_names = ("m", "v")
    squares = ("v",)

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        """Take the options; betas are in [0, 1), eps is above 0. Raises: UsageError."""
        super().__init__(lr, weight_decay, clip_norm)
        given: Any = betas
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            name = type(self).__name__
            raise UsageError(message(name, f"betas={given!r}", "two numbers", "set both"))
        self.betas = (
            self._checked("betas[0]", betas[0], below_one, "in [0, 1)"),
            self._checked("betas[1]", betas[1], below_one, "in [0, 1)"),
        )
        self.eps = self._checked("eps", eps, above_zero, "> 0")

    def _scalars(self) -> tuple[float, ...]:
        return (self.weight_decay, self.lr, *self.betas, self.eps, 1.0, self.steps + 1)

    def _options(self) -> dict[str, Any]:
        return {"betas": list(self.betas), "eps": self.eps}


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    value *= 1 - lr * weight_decay, then the step of Adam without decay in the gradient. The
    schedule multiplier of the paper is `lr` itself, so that the decay follows it.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.01,
        clip_norm: float | None = None,
    ) -> None:
        """Take the options; betas are in [0, 1), eps is above 0. Raises: UsageError."""
        super().__init__(lr, betas, eps, weight_decay=weight_decay, clip_norm=clip_norm)

    def _scalars(self) -> tuple[float, ...]:
        shrink = 1.0 - self.lr * self.weight_decay
        return (0.0, self.lr, *self.betas, self.eps, shrink, self.steps + 1)


def below_one(value: float) -> bool:
    """Tell whether an option is at least 0 and less than 1."""
    return 0.0 <= value < 1.0
