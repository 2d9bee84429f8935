"""Hostile batches: each ends with the right result or an error of vertexrt, whatever it is made of.

    python -m tests.attacks.batches --count 1000000 --seed 1

A case draws a small batch and does one thing to it: before it is built, to the arrays and objects
it is built of; while, by another way to build it; after, through references that were kept,
through what the batch hands out, or through what a network is called with. What is accepted is
evaluated, and compared with `small_function.evaluate` on what was given.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
import traceback
import warnings
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.hostile_arrays import CHANGES, snapshot
from tests.attacks.hostile_batches import ATTACKS, BUILDS, FIELDS, Case, draw
from tests.attacks.outcomes import FAILED, Cases, Tally, finish, run_in_children
from tests.attacks.small_function import (
    CLASSES,
    Given,
    Invalid,
    Result,
    RowParts,
    Small,
    Table,
    evaluate,
    read_pulls,
    read_structure,
    whole,
)
from vertexrt.engine.variant import Passes

EQUAL = "equal"
TOLERANCE = {np.dtype(np.float32): 3e-5, np.dtype(np.float64): 1e-9}
SHARE = 0.1  # of the batches that nothing is done to that are evaluated


class Wrong(Exception):
    """A result that is not that of the evaluation, or an error where there is none."""


def taken(
    lists: list[list[int]], pulls: dict[str, Table], ends: list[int], ids: Any
) -> tuple[list[list[int]], dict[str, Table]]:
    """Return the child lists and pulls of the graphs named; or raise Invalid."""
    chosen = whole(ids)
    if not chosen or ids.dtype.kind not in "iu" or any(not 0 <= k < len(ends) - 1 for k in chosen):
        raise Invalid("ids")
    order: list[int] = []
    out: list[list[int]] = []
    for k in chosen:
        move = len(order) - ends[k]
        order += range(ends[k], ends[k + 1])
        for below in lists[ends[k] : ends[k + 1]]:
            out.append([c + move if c >= 0 else -1 for c in below])
    found = {}
    for name, table in pulls.items():
        rows = [table.rows[v] for v in order]
        found[name] = Table(table.values, rows, True)
        if not table.mapped:
            found[name] = Table(table.values[order], list(range(len(order))), False)
    return out, found


def frozen(given: Given) -> Given:
    """Return what the arrays hold now, in arrays of our own."""
    pulls = given.pulls
    if isinstance(pulls, dict):
        pulls = {
            name: RowParts(*(None if part is None else snapshot(part) for part in value))
            if isinstance(value, RowParts)
            else snapshot(value)
            for name, value in pulls.items()
        }
    return Given(*(snapshot(getattr(given, name)) for name in FIELDS), pulls)


def is_gradient(array: Any, size: int) -> bool:
    """Tell whether it is real numbers of the shape of `out`."""
    right = isinstance(array, np.ndarray) and array.shape == (size, CLASSES)
    return right and array.dtype.kind in "fiu"


class Networks:
    """Networks that hostile batches are evaluated by: two slots, and any number of children.

    Args:
        device: `cpu` or `reference`. On the CPU vertices are of one kind, since each is compiled.
    """

    def __init__(self, device: str) -> None:
        passes = Passes(specialise=device != "cpu")
        self.nets = [
            (True, vrt.compile(Small(True), device=device, threads=1, passes=passes, seed=1)),
            (
                False,
                vrt.compile(
                    Small(False),
                    device=device,
                    dtype="float64",
                    threads=1 if device == "reference" else 2,
                    passes=passes,
                    seed=2,
                ),
            ),
        ]
        self.optimizer = vrt.SGD(lr=0.0)
        self.parameters = [dict(net.parameters) for _, net in self.nets]

    def check(
        self,
        rng: random.Random,
        batch: vrt.GraphBatch,
        lists: list[list[int]],
        pulls: Any,
        gradient: str = "",
    ) -> None:
        """Evaluate a batch by one network and compare.

        Args:
            gradient: how the gradient that goes back is changed.

        Raises: Wrong; VertexrtError, as the network does.
        """
        which = rng.randrange(2)
        slots, net = self.nets[which]
        dtype = np.dtype("float64" if which else "float32")
        d_out: Any = np.array([[rng.gauss(0, 1) for _ in range(CLASSES)] for _ in lists])
        if gradient:
            d_out = CHANGES[gradient](rng, d_out)
        # None is what is left out.
        d_right = np.zeros((len(lists), CLASSES)) if d_out is None else snapshot(d_out)
        want: Result | None = None
        if is_gradient(d_right, len(lists)) and len(lists) == batch.num_vertices:
            d_right = d_right.astype(dtype).astype(np.float64)
            try:
                with np.errstate(all="ignore"):
                    want = evaluate(lists, pulls, self.parameters[which], slots, dtype, d_right)
            except Invalid:
                want = None
        finite = want is not None and all(
            np.isfinite(value).all() for value in (want.out, *want.gradients.values())
        )
        try:
            outputs, gradients = self._run(net, batch, 3 if gradient else rng.randrange(4), d_out)
        finally:
            if not finite:  # a step with a gradient that is not finite may have changed them
                net.parameters.update(self.parameters[which])
        if want is None:
            raise Wrong("what is no batch or gradient of the function was evaluated")
        for name, value in outputs.items():
            _compare(name, value, getattr(want, name), TOLERANCE[dtype])
        for name, value in gradients.items() if finite else ():
            _compare(name, value, want.gradients[name], 10 * TOLERANCE[dtype])

    def _run(
        self, net: vrt.Network, batch: vrt.GraphBatch, way: int, d_out: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if way == 0:
            return dict(net(batch)), {}
        if way == 1:
            loss = net.step(batch, self.optimizer, outputs=("out", "loss"))
            return dict(loss.outputs), {}
        if way == 2:
            return dict(net(batch, outputs=["loss", "out"])), {}
        run = net.record(batch)
        found = run.backward({"out": d_out})
        return dict(run.outputs), found.parameters | found.pulled


def _compare(name: str, got: Any, want: Any, tolerance: float) -> None:
    if got.shape != want.shape:
        raise Wrong(f"{name} has the shape {got.shape}, not {want.shape}")
    good = np.isfinite(want)
    scale = max(1.0, float(np.abs(want[good]).max(initial=0.0)))
    if not np.allclose(got, want, rtol=0, atol=tolerance * scale, equal_nan=True):
        raise Wrong(f"{name} is {got.tolist()}, not {want.tolist()}")


def run_case(networks: Networks, seed: int, number: int) -> tuple[str, str]:
    """Run one case; return the name of its attack, and how it ended."""
    rng = random.Random(seed * 1_000_000_007 + number)
    name = rng.choices(list(ATTACKS), [weight for weight, _ in ATTACKS.values()])[0]
    case = Case(rng, draw(rng), rng.choice(BUILDS))
    ATTACKS[name][1](case)
    lists, pulls, right = None, {}, frozen(case.given)
    try:
        lists = read_structure(right)
        pulls = read_pulls(right, len(lists))
        if case.ids is not None or name == "take":
            lists, pulls = taken(lists, pulls, whole(right.graph_ptr), case.ids)
    except Invalid:
        lists = None
    try:
        batch = case.build(case.given)
        for act in case.after:
            batch = act(batch)
    except vrt.errors.VertexrtError as error:
        if lists is None:
            return name, f"refused: {type(error).__name__}"
        return name, f"{FAILED}: a right batch was refused: {error}"
    except Exception as error:  # noqa: BLE001  any other is what is looked for
        return name, f"{FAILED}: {_where(error)}"
    if lists is None:
        return name, f"{FAILED}: what is no batch was built: {batch!r}"
    if name == "(nothing)" and rng.random() > SHARE:
        return name, "built"
    return name, _evaluated(networks, case, batch, lists, pulls)


def _evaluated(networks: Networks, case: Case, batch: Any, lists: Any, pulls: Any) -> str:
    try:
        networks.check(case.rng, batch, lists, pulls, case.gradient)
    except vrt.errors.VertexrtError as error:
        return f"refused: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001
        return f"{FAILED}: {_where(error)}"
    return EQUAL


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"{type(error).__name__} at {place}: {error}"[:300]


def make_cases(device: str, seed: int) -> Cases:
    """Return what runs a case by its number."""
    warnings.simplefilter("ignore")
    networks = Networks(device)
    gc.freeze()
    return lambda number: run_case(networks, seed, number)


def attack(count: int, seed: int, device: str, jobs: int = 1, first: int = 0) -> Tally:
    """Run cases first..first+count-1 in child processes."""
    # Memory that was not written to is not zero by chance.
    os.environ.setdefault("MALLOC_PERTURB_", "165")
    chunk = max(1000, min(50_000, count // max(jobs, 1)))
    return run_in_children(make_cases, (device, seed), count, jobs=jobs, chunk=chunk, first=first)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.batches", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--device", choices=("cpu", "reference"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="child processes at once")
    options = parser.parse_args()
    started = time.perf_counter()
    tally = attack(options.count, options.seed, options.device, options.jobs, options.first)
    return finish(tally, started)


if __name__ == "__main__":
    raise SystemExit(main())
