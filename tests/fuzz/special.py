"""A network whose gradients are what is pulled."""

from __future__ import annotations

import numpy as np

from tests.fuzz.function import FunctionSpec, NetworkSpec, PullForm
from tests.fuzz.sketch import Sketch


def draw_linear() -> NetworkSpec:
    """Return a network whose loss is linear, with a table that is not in it and a frozen factor."""
    s = Sketch(np.random.default_rng(0), [], {}, {}, [], {})
    shapes = {"w": (5,), "m": (3, 4), "both": (4, 2), "table": (6, 3), "side": (4, 3), "e": (3,)}

    def read(name: str) -> int:
        s.parameters[name] = shapes[name]
        return s.emit("parameter", (), shapes[name], 1.0, (name,))

    def pulled(name: str, shape: tuple[int, ...], bound: int = 0) -> int:
        s.pulls[name] = PullForm(shape, bound)
        return s.emit("pull", (), shape, 1.0, (name,), "", bound > 0)

    def look_up(name: str, index: int) -> int:
        return s.emit("embed", (read(name), index), shapes[name][1:], 1.0)

    row, other = pulled("row", (), 6), pulled("other", (), 4)
    terms = [
        s.map("mul", read(name), pulled(f"g{name}", shapes[name])) for name in ("w", "m", "both")
    ]
    terms.append(s.map("mul", look_up("both", other), pulled("gother", (2,))))
    terms.append(s.map("mul", look_up("table", row), pulled("grow", (3,))))
    side = s.map("mul", look_up("side", other), read("e"))
    loss = s.add([s.reduce("sum", term) for term in terms])
    function = FunctionSpec({}, tuple(s.nodes), {}, {"side": side, "loss": loss}, s.pulls, every=())
    return NetworkSpec({"": function}, s.parameters, frozenset({"e"}))
