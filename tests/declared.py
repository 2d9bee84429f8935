"""A vertex function whose state and parameters are named where its class begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import vertexrt as vrt


class Declared(vrt.VertexFunction):
    """`class F(Declared, arity=2, state={"h": 4}, w=(4, 4))` has a parameter `w`.

    `F("w")` has it frozen.
    """

    declared: tuple[int | None, Mapping[str, int], dict[str, Any]]

    def __init_subclass__(
        cls, arity: int | None = None, state: Mapping[str, int] | None = None, **shapes: Any
    ) -> None:
        if state is not None:
            cls.declared = arity, state, shapes

    def __init__(self, *frozen: str, **more: Any) -> None:
        arity, state, shapes = self.declared
        super().__init__(arity=arity, state=state, **more)
        for name, shape in shapes.items():
            setattr(self, name, vrt.Parameter(shape, trainable=name not in frozen))
