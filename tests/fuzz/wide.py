"""Run networks with long vectors, wide tables, many classes or children, against the oracle.

Lengths are near the powers of two and the threads of a block: what is counted in blocks, tiles or
words goes wrong there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.fuzz.batches import BatchSpec, PullSpec
from tests.fuzz.campaign import Finding, Settings, Tally
from tests.fuzz.compare import Expected, check
from tests.fuzz.function import Build, PullForm, builder
from tests.fuzz.ways import NamedWay
from tests.runs import ALL

LENGTHS = (1, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513)
LONG = (1023, 1024, 1025, 1200, 2047, 2049)
SMALL = (3, 5, 8, 17)
SLOW = 600  # states whose matrices are square take the oracle long from here on
WIDENED = ("state", "columns", "rows", "classes", "children", "pulled", "two")

# Of the word's row x, the sum b of the children's h, and the pulled vector p.
CELLS = {
    "rnn": "h = vrt.tanh(self.w @ x + self.u @ b)",
    "times": "h = vrt.tanh(self.w @ x + self.u @ ((self.q @ p) * b))",
    "times_own": "y = self.q @ p\n            h = vrt.tanh(self.u @ (y * b) + y + self.w @ x)",
    "gated": "y = self.w @ x\n            g = vrt.sigmoid(y + self.u @ b)\n"
    "            h = g * vrt.tanh(self.u @ (g * b) + self.q @ p) + (1.0 - g) * b",
    "plain": "h = vrt.tanh(self.w @ x + self.q @ p + 0.5 * b)",
}
BELOW = {1: "self.gather(0).h", 2: "self.gather(0).h + self.gather(1).h"}
SOURCE = """def build(vrt):
    class F(vrt.VertexFunction):
        def __init__(self):
            self.table = vrt.Parameter(({rows}, {columns}))
            self.w = vrt.Parameter(({state}, {columns}))
{square}            self.q = vrt.Parameter(({state}, {pulled}))
            self.v = vrt.Parameter(({classes}, {state}))
            self.c = vrt.Parameter(({classes},))
            super().__init__(arity={arity}, state={{"h": {state}}})

        def forward(self):
            x = vrt.embed(self.table, self.pull("word"))
            p = self.pull("p", shape=({pulled},))
            b = {below}
            {cell}
            self.scatter(h=h)
            z = self.push("z", self.v @ h + self.c)
            near = vrt.losses.squared_error(h, 0.25)
            self.push("loss", vrt.losses.cross_entropy(z, self.pull("y")) + near)

    return F()
"""


def draw_wide(seed: int) -> tuple[str, BatchSpec]:
    """Return the text of a network and a batch for it."""
    rng = np.random.default_rng([seed, 1024])
    names = ("state", "columns", "rows", "classes", "children", "pulled")
    sizes = {name: int(rng.choice(SMALL)) for name in names}
    which = str(rng.choice(WIDENED))
    wide = rng.choice(names, 2, replace=False) if which == "two" else [which]
    for name in wide:
        sizes[name] = int(rng.choice(LONG if rng.random() < 0.6 else LENGTHS))
    children = sizes.pop("children")
    arity = None if "children" in wide else (None, 1, 2)[int(rng.integers(3))]
    cells = list(CELLS) if sizes["state"] < SLOW or rng.random() < 0.1 else ["plain"]
    cell = CELLS[str(rng.choice(cells))]
    square = "            self.u = vrt.Parameter(({state}, {state}))\n".format(**sizes)
    text = SOURCE.format(
        **sizes,
        square=square if "self.u" in cell else "",
        arity=arity,
        below=BELOW.get(
            arity or 0, f"vrt.{rng.choice(('sum', 'mean', 'max'))}(self.gather_all().h)"
        ),
        cell=cell,
    )
    return text, _batch(rng, arity, children, sizes)


def _batch(
    rng: np.random.Generator, arity: int | None, children: int, sizes: dict[str, int]
) -> BatchSpec:
    """Draw a chain or a tree of a few levels, and one vertex alone."""
    if arity is None:
        lists = [*[()] * children, tuple(range(children)), (children,), (children + 1, 0)]
    elif arity == 1:
        lists = [(), *((v,) for v in range(int(rng.integers(1, 5))))]
    else:
        lists = [(), (), (0, 1), (), (2, 3), (4, -1)]
    count = len(lists) + 1

    def some(bound: int, share: float) -> tuple[int, ...]:
        found = np.where(rng.random(count) < share, rng.integers(bound, size=count), -1)
        return tuple(found.tolist())

    pulls = {
        "word": PullSpec(PullForm(bound=sizes["rows"]), False, some(sizes["rows"], 0.8)),
        "y": PullSpec(PullForm(bound=sizes["classes"]), False, some(sizes["classes"], 0.7)),
        "p": PullSpec(PullForm((sizes["pulled"],)), True, some(3, 0.8)),
    }
    return BatchSpec((tuple(lists), ((),)), pulls, int(rng.integers(1 << 30)))


def ways(settings: Settings) -> list[NamedWay]:
    """List the ways of a device that leave passes as they are."""
    return [w for w in settings.listed() if w.way.passes == ALL]


def run_one(seed: int, settings: Settings) -> Tally:
    """Draw a network and run it in some ways; all take turns."""
    tally = Tally()
    text, batch = draw_wide(seed)
    build: Build = builder(text)
    first, want = Expected(build, batch), Expected(build, replace(batch, seed=batch.seed + 1))
    first.plan = replace(first.plan, sgd=True)  # so that what updates a table is seen
    if any(each.unclear(settings.dtype) for each in (first, want)):
        tally.unclear += 1
        return tally
    tally.functions += 1
    listed = ways(settings)
    for k in range(min(settings.per, len(listed))):
        way = listed[(seed * settings.per + k) % len(listed)]
        outcome = check(build, [first, want], way, 1 + seed % 1_000_000)
        tally.tried[way.name] += 1
        tally.refused[way.name] += outcome.kind == "refused"
        tally.tied[way.name] += outcome.kind == "tied"
        if outcome.failed:
            tally.findings.append(Finding(seed, way.name, outcome.kind, outcome.text, text))
    return tally
