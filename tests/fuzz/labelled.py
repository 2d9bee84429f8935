"""Draw small networks whose whole loss is of labels: a vertex without one has no loss."""

from __future__ import annotations

import numpy as np

from tests.fuzz.function import Build, FunctionSpec, PullForm, builder

# Of logits `z` and a label `y`.
LOSSES = (
    "vrt.losses.cross_entropy(z, y)",
    "vrt.losses.cross_entropy(z, y, 0.1)",
    "vrt.losses.multi_margin_loss(z, y)",
    "0.5 * vrt.losses.cross_entropy(z, y, 0.2) + vrt.losses.cross_entropy(2.0 * z, y)",
    "vrt.losses.cross_entropy(z, y) * vrt.losses.cross_entropy(z, y)",
)
BELOW = {2: "self.gather(0).h + self.gather(1).h", None: "vrt.sum(self.gather_all().h)"}
CELLS = ("vrt.tanh(x + self.u @ b)", "vrt.tanh(self.u @ (x * b) + x)", "vrt.tanh(x + b)")
SOURCE = """def build(vrt):
    class F(vrt.VertexFunction):
        def __init__(self):
            self.table = vrt.Parameter(({words}, {n}))
            self.u = vrt.Parameter(({n}, {n}))
            self.v = vrt.Parameter(({classes}, {n}))
            super().__init__(arity={arity}, state={{"h": {n}}})

        def forward(self):
            x = vrt.embed(self.table, self.pull("word"))
            b = {below}
            h = {cell}
            self.scatter(h=h)
            z = self.push("z", self.v @ h)
            y = self.pull("y")
            self.push("loss", {loss})

    return F()
"""


def draw_labelled(rng: np.random.Generator) -> tuple[FunctionSpec, Build]:
    """Return what a batch has to pull, and what builds the network."""
    arity = (2, None)[int(rng.integers(2))]
    words, classes, n = (int(rng.integers(2, 9)) for _ in range(3))
    text = SOURCE.format(
        words=words,
        classes=classes,
        n=n,
        arity=arity,
        below=BELOW[arity],
        cell=rng.choice(CELLS),
        loss=rng.choice(LOSSES),
    )
    pulls = {"word": PullForm(bound=words), "y": PullForm(bound=classes)}
    return FunctionSpec(arity, {"h": n}, {}, {}, pulls, (), {}, {}), builder(text)
