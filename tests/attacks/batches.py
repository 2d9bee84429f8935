"""Hostile batches: each ends with the right result or an error of vertexrt, whatever it is made of.

    python -m tests.attacks batches --count 1000000 --seed 1

A case draws a small batch, which graphs are taken of it, and the gradient that goes back; changes
some of these arrays; and may write to them once the batch is built. What is accepted is evaluated,
and compared with what the same network computes of plain arrays with what was given. Which arrays
are a batch is told here without vertexrt.
"""

from __future__ import annotations

import contextlib
import gc
import os
import traceback
import warnings
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.hostile_arrays import CHANGES, Array, Rng, snapshot
from tests.attacks.outcomes import FAILED, Cases, Tally, run_in_children
from tests.attacks.small_function import CLASSES, MARK, SLOTS, WORDS, Small
from vertexrt.engine.variant import Passes

TOLERANCE = 3e-5, 1e-9  # of the networks
FIELDS = ("graph_ptr", "child_ptr", "child")
PULLS = {"word": WORDS, "label": CLASSES, "gain": (), "mark": (MARK,)}  # bounds, or shapes
# Fields, pulls, and as `NAME index` the index of a table; `ids` of graphs; the gradient `d_out`.
Given = dict[str, Any]


class Invalid(Exception):
    """What was given is no batch, or not one of the function."""


def draw(rng: Rng) -> Given:
    """Draw one to three graphs of one to five vertices, with every pull.

    One graph may have no `graph_ptr`: it is built by itself.
    """
    sizes = rng.integers(1, 6, rng.integers(1, 4))
    ends = np.cumsum([0, *sizes])
    n, first = ends[-1], np.repeat(ends[:-1], sizes)
    degree = np.where(np.arange(n) > first, rng.integers(0, 3, n), 0)
    child = rng.integers(np.repeat(first - 1, degree), np.repeat(np.arange(n), degree))
    child[child < np.repeat(first, degree)] = -1
    ids = rng.integers(0, len(sizes), rng.integers(1, 6))
    given = {
        **dict(zip(FIELDS, (ends, np.cumsum([0, *degree]), child), strict=True)),
        "word": rng.integers(-1, WORDS, n),
        "label": np.arange(CLASSES),
        "label index": rng.integers(-1, CLASSES, n),
        "gain": rng.standard_normal(n),
        "mark": rng.standard_normal((4, MARK)),
        "mark index": rng.integers(-1, 4, n),
        "ids": ids,
        "d_out": rng.standard_normal((sizes[ids].sum(), CLASSES)),
    }
    if len(sizes) == 1 and rng.random() < 0.5:
        del given["graph_ptr"]
    real = rng.choice(["f4", "f8"])
    return {name: a.astype("i4" if a.dtype.kind == "i" else real) for name, a in given.items()}


def change(rng: Rng, case: Given) -> str:
    """Change one of the arrays, leave a pull out, or put an array in two places; say how."""
    place, name = rng.choice([*case]), str(rng.choice([*CHANGES]))
    array, kind = case[place], rng.random()
    if kind < 0.05 and place in PULLS:
        del case[place]
        return "a pull that is missing"
    if kind < 0.1 and place in FIELDS:
        case[place] = case["child_ptr"]
        return "arrays in others' places"
    plain = type(array) is np.ndarray and array.ndim > 0 and 0 < array.size < 1000
    if plain and array.dtype.str in ("<i4", "<i8", "<f4", "<f8"):  # not made odd already
        case[place] = CHANGES[name][rng.integers(len(CHANGES[name]))](rng, array)
        return name
    return "(nothing)"


def built(case: Given) -> vrt.GraphBatch:
    """Build a batch, or the graph, and take graphs of it."""
    pulls = {name: case[name] for name in PULLS if name in case}
    for name in pulls:
        if f"{name} index" in case:
            pulls[name] = vrt.Rows(pulls[name], case[f"{name} index"])
    fields = [case[name] for name in FIELDS if name in case]
    if "graph_ptr" in case:
        return vrt.GraphBatch(*fields, pulls).take(case["ids"])
    return vrt.GraphBatch.from_graphs([vrt.InputGraph(*fields, pulls)]).take(case["ids"])


# Which arrays are a batch.


def whole(array: Any, low: int = -1, end: int = 2**31) -> list[int]:
    """Return whole numbers of one axis, within bounds."""
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise Invalid("not in one row")
    numbers: list[Any] = array.tolist()
    if (numbers and array.dtype.kind not in "iu") or any(not low <= k < end for k in numbers):
        raise Invalid("no whole numbers, or beyond the bounds")
    return numbers


def read(given: Given) -> Given:
    """Return the same as plain arrays. Raises: Invalid, where they are no batch."""
    slots, child = (whole(given[name]) for name in FIELDS[1:])
    ends = whole(given["graph_ptr"]) if "graph_ptr" in given else [0, len(slots) - 1]
    for offsets, total in ((ends, len(slots) - 1), (slots, len(child))):
        if not offsets or offsets[0] != 0 or offsets[-1] != total or offsets != sorted(offsets):
            raise Invalid("offsets")
    if len(ends) < 2 or any(a == b for a, b in pairwise(ends)):
        raise Invalid("no vertices")
    lists = [child[a:b] for a, b in pairwise(slots)]
    for first, end in pairwise(ends):
        if any(c != -1 and not first <= c < end for below in lists[first:end] for c in below):
            raise Invalid("child")
    try:
        TopologicalSorter({v: {*below} - {-1} for v, below in enumerate(lists)}).prepare()
    except CycleError:
        raise Invalid("cycle") from None
    ids = whole(given["ids"], 0, len(ends) - 1)
    if not ids or given["ids"].dtype.kind not in "iu":
        raise Invalid("ids")
    plain = zip((*FIELDS, "ids"), (ends, slots, child, ids), strict=True)
    found = {name: np.array(numbers, np.int32) for name, numbers in plain}
    for name in PULLS:
        if name in given:
            found |= _pull(given[name], given.get(f"{name} index"), name, len(lists))
    return found


def _pull(table: Any, index: Any, name: str, size: int) -> Given:
    if not isinstance(table, np.ndarray) or table.ndim == 0:
        raise Invalid("no table")
    if table.dtype.kind == "f" and table.dtype.itemsize not in (4, 8):
        raise Invalid("no floats")
    if table.dtype.kind != "f":
        whole(table)
    found = {name: np.array(table, "f8" if table.dtype.kind == "f" else "i4", order="C")}
    if index is None:
        if len(table) != size:
            raise Invalid("length")
        return found
    if len(whole(index, -1, len(table))) != size or index.dtype.kind not in "iu":
        raise Invalid("index")
    return {**found, f"{name} index": index.astype(np.int32)}


def gradient_of(batch: vrt.GraphBatch, d_out: Any, slots: bool) -> Array:
    """Return the gradient of `out`. Raises: Invalid, where it or the batch is none of `Small`."""
    for name, bound in PULLS.items():
        pull = batch.pulls.get(name, np.zeros(0, "?"))
        values: Any = pull.table if isinstance(pull, vrt.Rows) else pull
        if isinstance(bound, tuple):
            right = values.dtype.kind == "f" and values.shape[1:] == bound
        else:
            if isinstance(pull, vrt.Rows):
                values = values[pull.index[pull.index >= 0]]
            right = values.dtype.kind == "i" and values.max(initial=-1) < bound
        if not right:
            raise Invalid(name)
    for a, b in pairwise(batch.child_ptr):
        if slots and (batch.child[a:b] >= 0)[len(SLOTS) :].any():
            raise Invalid("too many children")
    shape = batch.num_vertices, CLASSES
    d_right = np.zeros(shape) if d_out is None else d_out  # None is what is left out
    right = isinstance(d_right, np.ndarray) and d_right.shape == shape
    if not right or d_right.dtype.kind not in "fiu":
        raise Invalid("gradient")
    return d_right


class Networks:
    """Networks that hostile batches are evaluated by: two slots, and any number of children.

    Args:
        device: `cpu` or `reference`. On the CPU vertices are of one kind, since each is compiled.
    """

    def __init__(self, device: str, seed: int) -> None:
        self.seed, passes = seed, Passes(specialise=device != "cpu")
        self.nets = [
            vrt.compile(
                Small(slots), device=device, dtype=dtype, threads=threads, passes=passes, seed=1
            )
            for slots, dtype, threads in (
                (True, "float32", 1),
                (False, "float64", 1 if device == "reference" else 2),
            )
        ]

    def case(self, number: int) -> tuple[str, str]:
        """Run one case; return what was changed last, and how it ended."""
        rng = np.random.default_rng([self.seed, number])
        case, name, which = draw(rng), "(nothing)", int(rng.integers(2))
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            name = change(rng, case)
        held = {part: None if a is None else snapshot(a) for part, a in case.items()}
        want: Any = None
        with contextlib.suppress(Invalid), np.errstate(all="ignore"):
            plain = built(read(held))
            d_right = gradient_of(plain, held["d_out"], which == 0)
            want = self.run(which, plain, d_right)
        try:
            batch = built(case)
            for array in case.values() if rng.random() < 0.3 else ():
                if array is not case["d_out"] and isinstance(array, np.ndarray):
                    with contextlib.suppress(ValueError, TypeError):  # NumPy says no
                        array[...] = 77
            with np.errstate(all="ignore"):
                found = self.run(which, batch, case["d_out"])
        except vrt.errors.VertexrtError as error:
            if want is None:
                return name, f"refused: {type(error).__name__}"
            return name, f"{FAILED}: a right batch was refused: {error}"
        except Exception as error:  # noqa: BLE001  any other is what is looked for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            return name, f"{FAILED}: {type(error).__name__} at {place}: {error}"[:300]
        if want is None:
            return name, f"{FAILED}: what is no batch or gradient of it was evaluated"
        return name, _compared(found, want, TOLERANCE[which])

    def run(self, which: int, batch: vrt.GraphBatch, d_out: Any) -> Given:
        """Go forward and back."""
        run = self.nets[which].record(batch)
        back = run.backward({"out": d_out})
        return {**run.outputs, **back.parameters, **back.pulled}


def _compared(found: Given, want: Given, tolerance: float) -> str:
    for name, value in want.items():
        scale = max(1.0, float(np.abs(value[np.isfinite(value)]).max(initial=0.0)))
        wide = tolerance * scale * (1 if name == "out" else 10)
        if found[name].shape != value.shape or not np.allclose(
            found[name], value, rtol=0, atol=wide, equal_nan=True
        ):
            return f"{FAILED}: {name} is {found[name].tolist()}, not {value.tolist()}"
    return "equal"


def make_cases(device: str, seed: int) -> Cases:
    """Return what runs a case by its number."""
    warnings.simplefilter("ignore")
    networks = Networks(device, seed)
    gc.freeze()
    return networks.case


def attack(count: int, seed: int, device: str = "cpu", jobs: int = 1, first: int = 0) -> Tally:
    """Run cases first..first+count-1 in child processes."""
    # Memory that was not written to is not zero by chance.
    os.environ.setdefault("MALLOC_PERTURB_", "165")
    chunk = max(1000, min(50_000, count // max(jobs, 1)))
    return run_in_children(make_cases, (device, seed), count, jobs=jobs, chunk=chunk, first=first)
