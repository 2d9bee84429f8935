"""Make a failure small: fewer vertices, then fewer nodes, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.fuzz.batches import BatchSpec, ChildLists, fit
from tests.fuzz.compare import Expected, Outcome, check
from tests.fuzz.function import FunctionSpec, FuzzNode, ValueType, builder, prune, source
from tests.fuzz.ways import NamedWay

SCRIPT = '''"""{way} on {device}, {dtype}: {text}

Run it in the checkout: VERTEXRT_CHECK=1 PYTHONPATH=. python FILE
"""

from tests.fuzz.batches import BatchSpec, PullSpec
from tests.fuzz.compare import report
from tests.fuzz.function import PullForm


{source}

report(
    build,
    [
{batches}
    ],
    device={device!r},
    dtype={dtype!r},
    way={way!r},
    shuffle={shuffle},
)
'''


@dataclass(frozen=True, slots=True)
class Failure:
    """A function and batches, run one after another in one network, that fail in one way."""

    function: FunctionSpec
    batches: tuple[BatchSpec, ...]
    way: NamedWay
    shuffle: int
    outcome: Outcome

    def script(self) -> str:
        """Print it as Python that runs in a checkout and exits with 1 while it fails."""
        return SCRIPT.format(
            source=source(self.function),
            batches="\n".join(f"        {batch!r}," for batch in self.batches),
            way=self.way.name,
            device=self.way.way.device,
            dtype=self.way.way.dtype,
            shuffle=self.shuffle,
            text=self.outcome.text.replace("\\", "/").replace('"', "'"),
        )


def shrink(failure: Failure, seconds: float) -> Failure:
    """Return the smallest failure of the same kind that is found in a time."""
    end = time.monotonic() + seconds
    tried: set[str] = set()

    def still(candidate: Failure) -> Failure | None:
        """Run a candidate; None where it does not fail as the first one did."""
        key = source(candidate.function) + repr(candidate.batches)
        if time.monotonic() > end or key in tried:
            return None
        tried.add(key)
        outcome = _run(candidate)
        same = outcome.kind == failure.outcome.kind
        return replace(candidate, outcome=outcome) if same else None

    while (less := _first(_smaller(failure), still)) is not None:
        failure = less
    return failure


def _first(
    candidates: Iterator[Failure], still: Callable[[Failure], Failure | None]
) -> Failure | None:
    return next((found for c in candidates if (found := still(c)) is not None), None)


def _run(failure: Failure) -> Outcome:
    build = builder(source(failure.function))
    expected = [Expected(build, batch) for batch in failure.batches]
    if any(want.unclear(failure.way.way.dtype) for want in expected):
        return Outcome("unclear")
    return check(build, expected, failure.way, failure.shuffle)


def _smaller(failure: Failure) -> Iterator[Failure]:
    """Yield what is less than a failure: batches first, then functions, the smallest first."""
    for batches in smaller_batches(failure.batches):
        yield replace(failure, batches=batches)
    weight = failure.function.weight()
    functions = [f for f in smaller_functions(failure.function) if f.weight() < weight]
    for function in sorted(functions, key=FunctionSpec.weight):
        batches = tuple(fit(batch, function) for batch in failure.batches)
        yield replace(failure, function=function, batches=batches)


# Batches.


def smaller_batches(batches: Sequence[BatchSpec]) -> Iterator[tuple[BatchSpec, ...]]:
    """Yield fewer batches, graphs, vertices or slots."""
    for k, batch in enumerate(batches):
        if len(batches) > 1:
            yield (*batches[:k], *batches[k + 1 :])
        for less in _smaller_batch(batch):
            yield (*batches[:k], less, *batches[k + 1 :])


def _smaller_batch(batch: BatchSpec) -> Iterator[BatchSpec]:
    first = 0
    for g, graph in enumerate(batch.graphs):
        if len(batch.graphs) > 1:
            yield _without(batch, g, (), range(first, first + len(graph)))
        if len(graph) > 1:
            for v in range(len(graph)):
                yield _without(batch, g, _without_vertex(graph, v), [first + v])
        for v, slots in enumerate(graph):
            for k in range(len(slots)):
                less = (*slots[:k], *slots[k + 1 :])
                lists = (*graph[:v], less, *graph[v + 1 :])
                yield _without(batch, g, lists, (), (first + v, k))
        first += len(graph)
    if batch.apart:
        yield replace(batch, apart=False)
    for name, pull in batch.pulls.items():
        if pull.shared and (pull.form.bound or min(pull.index, default=0) >= 0):
            plain = replace(pull, shared=False)
            yield replace(batch, pulls={**batch.pulls, name: plain})


def _without_vertex(graph: ChildLists, v: int) -> ChildLists:
    return tuple(
        tuple(-1 if c == v else c - (c > v) for c in slots)
        for u, slots in enumerate(graph)
        if u != v
    )


def _without(
    batch: BatchSpec,
    g: int,
    graph: ChildLists,
    vertices: Sequence[int] | range,
    slot: tuple[int, int] | None = None,
) -> BatchSpec:
    """Put a graph, or none, in place of another; leave out vertices and a slot from the pulls."""
    graphs = (*batch.graphs[:g], *([graph] if graph else []), *batch.graphs[g + 1 :])
    owners = [(v, k) for v, slots in enumerate(batch.children) for k in range(len(slots))]
    gone, edges = (
        set(vertices),
        {e for e, of in enumerate(owners) if of[0] in vertices or of == slot},
    )
    pulls = {
        name: replace(
            pull,
            index=tuple(
                x for k, x in enumerate(pull.index) if k not in (edges if pull.form.edges else gone)
            ),
        )
        for name, pull in batch.pulls.items()
    }
    return replace(batch, graphs=graphs, pulls=pulls)


# Functions.


def smaller_functions(spec: FunctionSpec) -> Iterator[FunctionSpec]:
    """Yield functions without a push, a field or an initial state, or with nodes left out."""
    for name in spec.pushes:
        if name != "loss":
            yield prune(replace(spec, pushes={n: k for n, k in spec.pushes.items() if n != name}))
    if spec.initial:
        yield prune(replace(spec, initial={}))
    yield from _fewer_fields(spec)
    for k in range(len(spec.nodes) - 1, -1, -1):
        for other in _stand_ins(spec, k):
            yield prune(_redirected(spec, k, other))
        if spec.nodes[k].operands and not spec.nodes[k].type.per_child:
            yield prune(_with_parameter(spec, k))
    for field, k in spec.scatter.items():
        for other in _stand_ins(spec, k):
            yield prune(replace(spec, scatter={**spec.scatter, field: other}))
    for push, k in spec.pushes.items():
        for other in _stand_ins(spec, k):
            yield prune(replace(spec, pushes={**spec.pushes, push: other}))


def _fewer_fields(spec: FunctionSpec) -> Iterator[FunctionSpec]:
    read = {node.extra[-1] for node in spec.nodes if node.op in ("gather", "gather_all")}
    for field in set(spec.state) - read:
        yield prune(
            replace(
                spec,
                state={f: n for f, n in spec.state.items() if f != field},
                scatter={f: k for f, k in spec.scatter.items() if f != field},
                initial={f: name for f, name in spec.initial.items() if f != field},
            )
        )


def _stand_ins(spec: FunctionSpec, k: int) -> list[int]:
    """List earlier nodes of a node's type: its own operands, the first ones, and the last."""
    node = spec.nodes[k]
    if node.type.index or not node.operands:
        return []
    own = [x for x in node.operands if spec.nodes[x].type == node.type]
    others = [j for j in range(k) if spec.nodes[j].type == node.type and j not in own]
    return [*own, *others[:2], *others[2:][-2:]]


def _redirected(spec: FunctionSpec, old: int, new: int) -> FunctionSpec:
    """Let what reads a node read another."""

    def moved(node: FuzzNode) -> FuzzNode:
        inputs = tuple(new if x == old and not isinstance(x, float) else x for x in node.inputs)
        return replace(node, inputs=inputs)

    return replace(
        spec,
        nodes=tuple(moved(node) if k > old else node for k, node in enumerate(spec.nodes)),
        scatter={name: new if k == old else k for name, k in spec.scatter.items()},
        pushes={name: new if k == old else k for name, k in spec.pushes.items()},
    )


def _with_parameter(spec: FunctionSpec, k: int) -> FunctionSpec:
    """Put a new parameter in place of a node."""
    shape, name = spec.nodes[k].type.shape, f"q{len(spec.parameters)}"
    while name in spec.parameters:
        name += "q"
    leaf = FuzzNode("parameter", (), (name,), ValueType(shape))
    nodes = (*spec.nodes[:k], leaf, *spec.nodes[k + 1 :])
    return replace(spec, nodes=nodes, parameters={**spec.parameters, name: shape})
