"""Hostile batches: each ends with the right result or an error of vertexrt, whatever it is made of.

    python -m tests.attacks batches --count 1000000 --seed 1

A case draws a small batch and does one thing to it: before it is built, to the arrays and objects
it is built of; while, by another way to build it; after, through references that were kept,
through what the batch hands out, or through what a network is called with. What is accepted is
evaluated, and compared with what the same network computes of a plain batch of what was given.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import gc
import os
import pickle
import random
import traceback
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.hostile_arrays import CHANGES, change, scribble, snapshot
from tests.attacks.outcomes import FAILED, Cases, Tally, run_in_children
from tests.attacks.small_function import (
    CLASSES,
    FIELDS,
    MARK,
    WORDS,
    Given,
    Invalid,
    Lists,
    Pulls,
    Small,
    plain,
    pulls_of,
    read,
    taken,
)
from vertexrt.engine.variant import Passes

EQUAL = "equal"
TOLERANCE = 3e-5, 1e-9  # of the networks
SHARE = 0.1  # of the batches that nothing is done to that are evaluated
Build = Callable[[Sequence[Any], Any], vrt.GraphBatch]  # of the fields and the pulls


class Wrong(Exception):
    """A result that is not that of the plain batch, or one where there is none."""


# Ways to build a batch.


def replaced(fields: Sequence[Any], pulls: Any) -> vrt.GraphBatch:
    other = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2)])
    return dataclasses.replace(other, **dict(zip(FIELDS, fields, strict=True)), pulls=pulls)


def set_state(fields: Sequence[Any], pulls: Any) -> vrt.GraphBatch:
    batch = object.__new__(vrt.GraphBatch)
    batch.__setstate__([*fields, pulls])
    return batch


def one_graph(fields: Sequence[Any], pulls: Any) -> vrt.GraphBatch:
    """Build an input graph; what is given must have one graph and no other offsets."""
    return vrt.GraphBatch.from_graphs([vrt.InputGraph(*fields[1:], pulls)])


def graph_by_graph(fields: Sequence[Any], pulls: Any) -> vrt.GraphBatch:
    """Build each graph by itself, from parts of what is given, which must be right."""
    ends, slots, child = fields
    graphs = []
    for a, b in pairwise(ends):
        own = child[slots[a] : slots[b]]
        parts = {
            name: vrt.Rows(v.table, v.index[a:b]) if isinstance(v, vrt.Rows) else v[a:b]
            for name, v in pulls.items()
        }
        moved = np.where(own >= 0, own - a, -1)
        graphs.append(vrt.InputGraph(slots[a : b + 1] - slots[a], moved, parts))
    return vrt.GraphBatch.from_graphs(graphs)


BUILDS: tuple[Build, ...] = (
    lambda fields, pulls: vrt.GraphBatch(*fields, pulls),
    lambda fields, pulls: vrt.GraphBatch.from_arrays(*fields, pulls),
    replaced,
    set_state,
)


@dataclasses.dataclass
class Case:
    """A batch to be, and what is done to it."""

    rng: random.Random
    given: Given
    build: Build
    pulls: Callable[[Given], Any] = pulls_of
    right: bool = True  # unless what is built of the arrays is none of theirs
    after: list[Callable[[Any], Any]] = dataclasses.field(default_factory=list)
    takes: bool = False  # graphs, by their numbers
    ids: Any = None
    gradient: str = ""  # how the gradient that goes back is changed


def draw(rng: random.Random) -> Given:
    """Draw one to three graphs of one to five vertices, with every pull."""
    ends, slots, child = [0], [0], []
    for _ in range(rng.choice((1, 1, 2, 3))):
        first, size = ends[-1], rng.randrange(1, 6)
        for v in range(size):
            for _ in range(rng.randrange(3) if v else 0):
                child.append(rng.choice((-1, first + rng.randrange(v), first + v - 1)))
            slots.append(len(child))
        ends.append(first + size)
    n, numpy_rng = ends[-1], np.random.default_rng(rng.randrange(2**32))
    real = np.dtype(rng.choice((np.float32, np.float64)))
    given: Given = {
        name: np.array(a, np.int32) for name, a in zip(FIELDS, (ends, slots, child), strict=True)
    }
    given["word"] = numpy_rng.integers(-1, WORDS, n, np.int32)
    given["label"] = numpy_rng.integers(-1, CLASSES, n, np.int32)
    given["gain"] = numpy_rng.standard_normal(n).astype(real)
    given["mark"] = numpy_rng.standard_normal((n, MARK)).astype(real)
    if rng.random() < 0.7:
        given["mark"] = numpy_rng.standard_normal((4, MARK)).astype(real)
        given["mark index"] = numpy_rng.integers(-1, 4, n, np.int32)
    if rng.random() < 0.2:
        given["word index"], given["word"] = given["word"], np.arange(WORDS, dtype=np.int32)
    return given


# What is done to a batch.


def nothing(case: Case) -> None:
    pass


def change_array(case: Case, name: str) -> None:
    """Change one of the arrays, or two."""
    for _ in range(case.rng.choice((1, 1, 1, 2))):
        place = case.rng.choice(list(case.given))
        array = case.given[place]
        plain = type(array) is np.ndarray and array.ndim > 0 and array.size < 1000
        if plain and array.dtype.str in ("<i4", "<i8", "<f4", "<f8"):  # not made odd already
            case.given[place] = change(name, case.rng, array)


def change_graph(case: Case) -> None:
    """Build one input graph of changed arrays."""
    while len(case.given["graph_ptr"]) > 2:
        case.given = draw(case.rng)
    case.build, before = one_graph, case.given["graph_ptr"]
    change_array(case, case.rng.choice(list(CHANGES)))
    case.given["graph_ptr"] = before


def wire(case: Case) -> None:
    """Give slots other children: of the same graph, above them, of another graph, or far away."""
    child, n = case.given["child"], len(case.given["child_ptr"]) - 1
    for _ in range(case.rng.randrange(1, 4)):
        if len(child):
            child[case.rng.randrange(len(child))] = case.rng.randrange(-2, n + 2)


def swap(case: Case) -> None:
    """Put one array in the place of another, or one array in two places."""
    a, b = case.rng.sample(FIELDS, 2)
    first, case.given[a] = case.given[a], case.given[b]
    if case.rng.random() < 0.5:
        case.given[b] = first
    if case.rng.random() < 0.3:
        case.given["word"] = first


def other_pulls(case: Case) -> None:
    """Leave pulls out, add some, call them otherwise, or pass no dict."""
    rng, given = case.rng, case.given
    n = len(given["child_ptr"]) - 1
    name = rng.choice(("word", "label", "mark", "gain"))
    none = np.full(n, -1, np.int32)
    wrong = rng.choice(([1, 2], "word", 5, object(), [("word", given["word"])]))
    other = rng.choice((3, None, ("word",), b"word"))
    added = rng.choice((np.zeros((n, 0)), np.arange(n), np.ones((n, 2, 2), "f4")))
    way = rng.randrange(9)
    if way == 0:
        del given[name]
    elif way == 1:
        given[other] = given.pop(name)
    elif way == 2:
        given["other"] = added
    elif way == 3:
        case.pulls, case.right = lambda given: wrong, False
    elif way == 4:
        case.pulls = lambda given: collections.UserDict(pulls_of(given))
    elif way == 5:
        given["word"], given["label"] = given["label"], given["word"]
    elif way == 6:
        given |= {"mark": np.zeros((0, MARK)), "mark index": none + rng.choice((0, 0, 1))}
    elif way == 7:
        given |= {"word": np.zeros(0, np.int32), "word index": none + rng.choice((0, 1))}
    else:
        given |= {"mark": np.ones((n, MARK)), "mark index": None}


def kept_references(case: Case) -> None:
    """Write to all arrays that a batch was built of, once it is built."""
    kept = list(case.given.values())
    if case.rng.random() < 0.3:  # arrays that nobody else holds
        del kept[: len(FIELDS)]
    views = [a[:] if case.rng.random() < 0.3 else a for a in kept]

    def write(batch: vrt.GraphBatch) -> vrt.GraphBatch:
        for array in (*views, *kept):
            scribble(case.rng, array)
        return batch

    case.after.append(write)


def handed_out(case: Case) -> None:
    """Write to all arrays that a batch hands out, to their bases, and to its attributes."""

    def write(batch: vrt.GraphBatch) -> vrt.GraphBatch:
        arrays: list[Any] = [getattr(batch, name) for name in FIELDS]
        for value in batch.pulls.values():
            arrays += (value.table, value.index) if isinstance(value, vrt.Rows) else (value,)
        for array in arrays:
            scribble(case.rng, array)
        pulls: Any = batch.pulls
        acts: list[Callable[[], object]] = [
            lambda: pulls.update(word=None),
            lambda: pulls.__setitem__("word", np.full(99, 10**9)),
            lambda: pulls.__delitem__("word"),
        ]
        for name in (*FIELDS, "pulls", "other"):
            acts.append(lambda name=name: setattr(batch, name, np.zeros(1, np.int32)))
            acts.append(lambda name=name: delattr(batch, name))
        for act in acts:  # Python says no
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                act()
        return batch

    case.after.append(write)


def copies(case: Case) -> None:
    """Pickle, copy or replace a batch, and write to what it was made of."""
    ways = (
        lambda b: pickle.loads(pickle.dumps(b, case.rng.randrange(2, 6))),
        copy.copy,
        copy.deepcopy,
        dataclasses.replace,
        lambda b: dataclasses.replace(b, pulls=dict(b.pulls)),
        lambda b: vrt.GraphBatch.from_arrays(b.graph_ptr, b.child_ptr, b.child, b.pulls),
    )
    case.after.append(case.rng.choice(ways))
    for more in (kept_references, handed_out):
        if case.rng.random() < 0.5:
            more(case)


def graphs(case: Case) -> None:
    """Build a batch graph by graph."""
    case.build = graph_by_graph
    if case.rng.random() < 0.3:
        kept_references(case)


def not_graphs(case: Case) -> None:
    """Give from_graphs something else than graphs."""
    graph = vrt.InputGraph.chain(2)
    other = vrt.InputGraph.chain(2, {"word": np.zeros(2, np.int32)})
    tree = vrt.InputGraph.from_brackets("(1 (0 a) (1 b))")
    batch = vrt.GraphBatch.from_graphs([graph])
    ways = ([], None, 5, "ab", graph, tree, [tree], [graph, None], [graph, other], [batch])
    wrong: Any = case.rng.choice(ways)
    case.build, case.right = lambda fields, pulls: vrt.GraphBatch.from_graphs(wrong), False


def take(case: Case) -> None:
    """Take graphs that are there, and such that are not, named by hostile arrays."""
    rng, count = case.rng, len(case.given["graph_ptr"]) - 1
    ids: Any = np.array([rng.randrange(count) for _ in range(rng.randrange(1, 6))])
    if rng.random() < 0.6:
        ids = change(rng.choice(list(CHANGES)), rng, ids)
    case.takes, case.ids = True, snapshot(ids)
    case.after.append(lambda batch: batch.take(ids))


def gradients(case: Case) -> None:
    """Go back with a hostile array as the gradient of a push."""
    case.gradient = case.rng.choice(list(CHANGES))


# By name, how many of the cases, and what is done.
ATTACKS: dict[str, tuple[int, Callable[[Case], None]]] = {
    "(nothing)": (2, nothing),
    "graphs one by one": (3, graphs),
    "what are no graphs": (1, not_graphs),
    "one graph of changed arrays": (12, change_graph),
    "wired otherwise": (8, wire),
    "arrays in others' places": (3, swap),
    "other pulls": (6, other_pulls),
    "kept references": (6, kept_references),
    "what is handed out": (6, handed_out),
    "copies and pickles": (3, copies),
    "take": (8, take),
    "gradients that go back": (4, gradients),
}
for _name in CHANGES:
    ATTACKS[f"array: {_name}"] = (
        9 if _name == "values" else 5,
        lambda case, name=_name: change_array(case, name),
    )


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
            vrt.compile(
                Small(slots), device=device, dtype=dtype, threads=threads, passes=passes, seed=1
            )
            for slots, dtype, threads in (
                (True, "float32", 1),
                (False, "float64", 1 if device == "reference" else 2),
            )
        ]
        self.optimizer = vrt.SGD(lr=0.0)
        self.parameters = [dict(net.parameters) for net in self.nets]

    def check(
        self,
        rng: random.Random,
        batch: vrt.GraphBatch,
        lists: Lists,
        pulls: Pulls,
        gradient: str = "",
    ) -> None:
        """Evaluate a batch by one network, and what it was made of by the same one; compare.

        Args:
            gradient: how the gradient that goes back is changed.

        Raises: Wrong; VertexrtError, as the network does.
        """
        which = rng.randrange(2)
        net, tolerance = self.nets[which], TOLERANCE[which]
        d_out: Any = np.array([[rng.gauss(0, 1) for _ in range(CLASSES)] for _ in lists])
        if gradient:
            d_out = change(gradient, rng, d_out)
        # None is what is left out.
        d_right = np.zeros((len(lists), CLASSES)) if d_out is None else snapshot(d_out)
        want: tuple[dict[str, Any], dict[str, Any]] | None = None
        with np.errstate(all="ignore"):
            if is_gradient(d_right, len(lists)) and len(lists) == batch.num_vertices:
                with contextlib.suppress(Invalid):
                    want = self._run(net, plain(lists, pulls, which == 0), 3, d_right)
        finite = want is not None and all(
            np.isfinite(value).all() for value in (want[0]["out"], *want[1].values())
        )
        try:
            outputs, gradients = self._run(net, batch, 3 if gradient else rng.randrange(4), d_out)
        finally:
            if not finite:  # a step with a gradient that is not finite may have changed them
                net.parameters.update(self.parameters[which])
        if want is None:
            raise Wrong("what is no batch or gradient of the function was evaluated")
        for name, value in outputs.items():
            _compare(name, value, want[0][name], tolerance)
        for name, value in want[1].items() if finite and gradients else ():
            _compare(name, gradients[name], value, 10 * tolerance)

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
    read_as: tuple[Lists, Pulls] | None = None
    with contextlib.suppress(Invalid):
        held = {part: a if a is None else snapshot(a) for part, a in case.given.items()}
        ends, *parts = read(held)
        if case.takes:
            parts = [*taken(ends, *parts, case.ids)]
        read_as = (parts[0], parts[1]) if case.right else None
    try:
        batch: Any = case.build([case.given[field] for field in FIELDS], case.pulls(case.given))
        for act in case.after:
            batch = act(batch)
        if read_as is None:
            return name, f"{FAILED}: what is no batch was built: {batch!r}"
    except vrt.errors.VertexrtError as error:
        if read_as is None:
            return name, f"refused: {type(error).__name__}"
        return name, f"{FAILED}: a right batch was refused: {error}"
    except Exception as error:  # noqa: BLE001  any other is what is looked for
        return name, f"{FAILED}: {_where(error)}"
    if name == "(nothing)" and rng.random() > SHARE:
        return name, "built"
    try:
        networks.check(case.rng, batch, *read_as, case.gradient)
    except vrt.errors.VertexrtError as error:
        return name, f"refused: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001
        return name, f"{FAILED}: {_where(error)}"
    return name, EQUAL


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


def attack(count: int, seed: int, device: str = "cpu", jobs: int = 1, first: int = 0) -> Tally:
    """Run cases first..first+count-1 in child processes."""
    # Memory that was not written to is not zero by chance.
    os.environ.setdefault("MALLOC_PERTURB_", "165")
    chunk = max(1000, min(50_000, count // max(jobs, 1)))
    return run_in_children(make_cases, (device, seed), count, jobs=jobs, chunk=chunk, first=first)
