"""A vertex function whose forward is given, for what one line of it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import vertexrt as vrt


class WithBody(vrt.VertexFunction):
    """A vertex function that runs a body with itself, and pushes a loss."""

    def __init__(
        self, body: Callable[[Any], object] = lambda f: None, arity: int | None = 2, **more: Any
    ) -> None:
        super().__init__(arity=arity, state={"c": 3, "h": 3}, **more)
        self.body = body
        self.w = vrt.Parameter((4, 3))
        self.b = vrt.Parameter((3,))
        self.t3 = vrt.Parameter((2, 3, 3))

    def forward(self) -> None:
        self.body(self)
        self.scatter(c=self.b * 1.0, h=self.b * 1.0)
        self.push("out", self.b)
        self.push("loss", vrt.sum(self.b * self.gather(0).h))


def left_over() -> Any:
    """Return a value of a forward() that is over."""
    kept: list[Any] = []
    WithBody(lambda f: kept.append(f.b * 1.0)).trace()
    return kept[0]


def network_of() -> vrt.Network:
    return vrt.compile(WithBody(), device="reference")
