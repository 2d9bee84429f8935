"""Small batches, and what an attack does to them before, while and after they are built."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.attacks.hostile_arrays import CHANGES, scribble, snapshot
from tests.attacks.small_function import CLASSES, MARK, WORDS, Given, RowParts

FIELDS = ("graph_ptr", "child_ptr", "child")


@dataclasses.dataclass
class Case:
    """A batch to be, and what is done to it."""

    rng: random.Random
    given: Given
    build: Callable[[Given], vrt.GraphBatch]
    after: list[Callable[[vrt.GraphBatch], vrt.GraphBatch]] = dataclasses.field(
        default_factory=list
    )
    ids: Any = None  # of graphs that are taken
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
    n = ends[-1]
    real = np.dtype(rng.choice((np.float32, np.float64)))
    table = np.array([rng.gauss(0, 1) for _ in range(4 * MARK)], real).reshape(4, MARK)
    some = [rng.randrange(-1, 4) for _ in range(n)]
    pulls: dict[Any, Any] = {
        "word": np.array([rng.randrange(-1, WORDS) for _ in range(n)], np.int32),
        "label": np.array([rng.randrange(-1, CLASSES) for _ in range(n)], np.int32),
        "mark": RowParts(table, np.array(some, np.int32)),
        "gain": np.array([rng.gauss(0, 1) for _ in range(n)], real),
    }
    if rng.random() < 0.3:
        pulls["mark"] = np.array([rng.gauss(0, 1) for _ in range(MARK * n)], real).reshape(n, MARK)
    if rng.random() < 0.2:
        pulls["word"] = RowParts(np.arange(WORDS, dtype=np.int32), pulls["word"])
    return Given(*(np.array(a, np.int32) for a in (ends, slots, child)), pulls)


# Ways to build a batch.


def pulled(value: Any) -> Any:
    """Make a table with an index of a pair."""
    return vrt.Rows(*value) if isinstance(value, RowParts) else value


def pulls_of(given: Given) -> Any:
    """Make the tables of a batch's pulls."""
    if not isinstance(given.pulls, dict):
        return given.pulls
    return {name: pulled(value) for name, value in given.pulls.items()}


def directly(given: Given) -> vrt.GraphBatch:
    return vrt.GraphBatch(given.graph_ptr, given.child_ptr, given.child, pulls_of(given))


def from_arrays(given: Given) -> vrt.GraphBatch:
    return vrt.GraphBatch.from_arrays(
        given.graph_ptr, given.child_ptr, given.child, pulls_of(given)
    )


def replaced(given: Given) -> vrt.GraphBatch:
    other = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2)])
    fields = {name: getattr(given, name) for name in FIELDS}
    return dataclasses.replace(other, **fields, pulls=pulls_of(given))


def set_state(given: Given) -> vrt.GraphBatch:
    batch = object.__new__(vrt.GraphBatch)
    batch.__setstate__([given.graph_ptr, given.child_ptr, given.child, pulls_of(given)])
    return batch


def one_graph(given: Given) -> vrt.GraphBatch:
    """Build an input graph; what is given must have one graph and no other offsets."""
    return vrt.GraphBatch.from_graphs(
        [vrt.InputGraph(given.child_ptr, given.child, pulls_of(given))]
    )


def graph_by_graph(given: Given) -> vrt.GraphBatch:
    """Build each graph by itself, from parts of what is given, which must be right."""
    graphs = []
    for a, b in zip(given.graph_ptr, given.graph_ptr[1:], strict=False):
        slots = given.child_ptr[a : b + 1]
        child = given.child[slots[0] : slots[-1]]
        pulls = {
            name: RowParts(v.table, v.index[a:b]) if isinstance(v, RowParts) else v[a:b]
            for name, v in given.pulls.items()
        }
        part = Given(None, slots - slots[0], np.where(child >= 0, child - a, -1), pulls)
        graphs.append(vrt.InputGraph(part.child_ptr, part.child, pulls_of(part)))
    return vrt.GraphBatch.from_graphs(graphs)


BUILDS = (directly, from_arrays, replaced, set_state)


# What is done to a batch.


def nothing(case: Case) -> None:
    pass


def change_array(case: Case, name: str) -> None:
    """Change one of the arrays, or two."""
    change = CHANGES[name]
    for _ in range(case.rng.choice((1, 1, 1, 2))):
        places = [*FIELDS, *(case.given.pulls if isinstance(case.given.pulls, dict) else ())]
        place = case.rng.choice(places)
        if place in FIELDS:
            array = getattr(case.given, place)
            if _is_plain(array):
                setattr(case.given, place, change(case.rng, array))
            continue
        value = case.given.pulls[place]
        parts = list(value) if isinstance(value, RowParts) else [value]
        k = case.rng.randrange(len(parts))
        if _is_plain(parts[k]):
            parts[k] = change(case.rng, parts[k])
        case.given.pulls[place] = RowParts(*parts) if isinstance(value, RowParts) else parts[0]


def _is_plain(value: Any) -> bool:
    """Tell whether it can be changed: it is an array that has not been made odd already."""
    plain = type(value) is np.ndarray and value.ndim > 0
    return plain and value.dtype.str in ("<i4", "<i8", "<f4", "<f8") and value.size < 1000


def change_graph(case: Case) -> None:
    """Build one input graph of changed arrays."""
    while len(case.given.graph_ptr) > 2:
        case.given = draw(case.rng)
    case.build = one_graph
    before = case.given.graph_ptr
    change_array(case, case.rng.choice(list(CHANGES)))
    case.given.graph_ptr = before


def wire(case: Case) -> None:
    """Give slots other children: of the same graph, above them, of another graph, or far away."""
    child, n = case.given.child, len(case.given.child_ptr) - 1
    for _ in range(case.rng.randrange(1, 4)):
        if len(child):
            child[case.rng.randrange(len(child))] = case.rng.randrange(-2, n + 2)


def swap(case: Case) -> None:
    """Put one array in the place of another, or one array in two places."""
    a, b = case.rng.sample(FIELDS, 2)
    first, second = getattr(case.given, a), getattr(case.given, b)
    setattr(case.given, a, second)
    if case.rng.random() < 0.5:
        setattr(case.given, b, first)
    if case.rng.random() < 0.3:
        case.given.pulls["word"] = first


def other_pulls(case: Case) -> None:
    """Leave pulls out, add some, call them otherwise, or pass no dict."""
    rng, pulls = case.rng, case.given.pulls
    n = len(case.given.child_ptr) - 1
    name = rng.choice(list(pulls))
    way = rng.randrange(9)
    if way == 0:
        del pulls[name]
    elif way == 1:
        pulls[rng.choice((3, None, ("word",), b"word"))] = pulls.pop(name)
    elif way == 2:
        pulls["other"] = rng.choice((np.zeros((n, 0)), np.arange(n), np.ones((n, 2, 2), "f4")))
    elif way == 3:
        case.given.pulls = rng.choice(([1, 2], "word", 5, object(), [("word", pulls["word"])]))
    elif way == 4:
        case.build = lambda given: vrt.GraphBatch(
            given.graph_ptr,
            given.child_ptr,
            given.child,
            collections.UserDict(pulls_of(given)),  # type: ignore[arg-type]
        )
    elif way == 5:
        pulls["word"], pulls["label"] = pulls["label"], pulls["word"]
    elif way == 6:
        pulls["mark"] = RowParts(np.zeros((0, MARK)), np.full(n, rng.choice((-1, -1, 0)), np.int32))
    elif way == 7:
        pulls["word"] = RowParts(np.zeros(0, np.int32), np.full(n, rng.choice((-1, 0)), np.int32))
    else:
        pulls["mark"] = RowParts(np.ones((n, MARK)))


def kept_references(case: Case) -> None:
    """Write to all arrays that a batch was built of, once it is built."""
    kept = [getattr(case.given, name) for name in FIELDS]
    for value in case.given.pulls.values():
        kept += list(value) if isinstance(value, RowParts) else [value]
    if case.rng.random() < 0.3:  # arrays that nobody else holds
        del kept[:3]
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
            parts = (value.table, value.index) if isinstance(value, vrt.Rows) else (value,)
            arrays += [part for part in parts if part is not None]
        for array in arrays:
            scribble(case.rng, array)
        for name in (*FIELDS, "pulls", "other"):
            _try(lambda name=name: setattr(batch, name, np.zeros(1, np.int32)))
            _try(lambda name=name: delattr(batch, name))
        pulls: Any = batch.pulls
        _try(lambda: pulls.update(word=None))
        _try(lambda: pulls.__setitem__("word", np.full(99, 10**9)))
        _try(lambda: pulls.__delitem__("word"))
        return batch

    case.after.append(write)


def _try(act: Callable[[], Any]) -> None:
    try:
        act()
    except (TypeError, ValueError, AttributeError, dataclasses.FrozenInstanceError):
        return  # Python says no


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
    if case.rng.random() < 0.5:
        kept_references(case)
    if case.rng.random() < 0.5:
        handed_out(case)


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
    case.build = lambda given: vrt.GraphBatch.from_graphs(wrong)
    case.given.pulls = None  # the evaluation refuses it


def take(case: Case) -> None:
    """Take graphs that are there, and such that are not, named by hostile arrays."""
    rng, count = case.rng, len(case.given.graph_ptr) - 1
    ids: Any = np.array([rng.randrange(count) for _ in range(rng.randrange(1, 6))])
    if rng.random() < 0.6:
        name = rng.choice(list(CHANGES))
        ids = CHANGES[name](rng, ids)
    case.ids = snapshot(ids)
    case.after.append(lambda batch: batch.take(ids))


def gradients(case: Case) -> None:
    """Go back with a hostile array as the gradient of a push."""
    case.gradient = case.rng.choice(list(CHANGES))


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
    **{
        f"array: {name}": (
            9 if name == "values" else 5,
            lambda case, name=name: change_array(case, name),
        )
        for name in CHANGES
    },
}
