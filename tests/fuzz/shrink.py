"""Make a failure small, as long as it fails in the same way, and print it as a script."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz.batches import BatchSpec, smaller_batches
from tests.fuzz.calls import OF_BATCHES, Call, Player
from tests.fuzz.compare import Outcome
from tests.fuzz.function import FunctionSpec, FuzzNode, NetworkSpec, ValueType, prune, source
from tests.fuzz.updates import Rule
from tests.fuzz.ways import NamedWay, ways_of

SCRIPT = '''"""{way} on {device}, {dtype}: {text}

Run it in the checkout: VERTEXRT_CHECK=1 PYTHONPATH=. python FILE
"""

from tests.fuzz.batches import BatchSpec, GraphSpec, Pulled
from tests.fuzz.function import FunctionSpec, FuzzNode, NetworkSpec, PullForm, ValueType
from tests.fuzz.shrink import Case, report
from tests.fuzz.updates import Rule

# The network:
#
{source}

report(
    Case(
        {network!r},
        (
{batches}
        ),
        (
{calls}
        ),
        {rule!r},
    ),
    device={device!r},
    dtype={dtype!r},
    way={way!r},
    shuffle={shuffle},
)
'''


@dataclass(frozen=True, slots=True)
class Case:
    """Calls on a network: what a failure is made of."""

    network: NetworkSpec
    batches: tuple[BatchSpec, ...]
    calls: tuple[Call, ...]
    rule: Rule

    def play(self, way: NamedWay, shuffle: int = 1) -> Outcome:
        """Play it on networks of its own."""
        return Player(self.network, self.batches, way, shuffle).play(self.calls, self.rule)

    def script(self, way: NamedWay, shuffle: int, text: str) -> str:
        """Print it as Python that runs in a checkout and exits with 1 while it fails."""
        lines = source(self.network).splitlines()
        return SCRIPT.format(
            source="\n".join(f"#     {line}".rstrip() for line in lines),
            network=self.network,
            batches="\n".join(f"            {batch!r}," for batch in self.batches),
            calls="\n".join(f"            {call!r}," for call in self.calls),
            rule=self.rule,
            way=way.name,
            device=way.way.device,
            dtype=way.way.dtype,
            shuffle=shuffle,
            text=text.replace("\\", "/").replace('"', "'"),
        )


def report(case: Case, device: str, dtype: str, way: str, shuffle: int = 1) -> None:
    """Play a case and exit: 1 with what is wrong, 0 without. Shrunk failures call it."""
    (named,) = [w for w in ways_of(device, dtype) if w.name == way]
    outcome = case.play(named, shuffle)
    print(outcome.kind, outcome.text)
    sys.exit(outcome.failed)


def shrink(case: Case, way: NamedWay, shuffle: int, found: Outcome, seconds: float) -> Case:
    """Return the smallest case that fails in the same way and is found in a time."""
    end = time.monotonic() + seconds
    tried: set[str] = set()
    case = _used(replace(case, calls=case.calls[: found.number + 1]))
    while True:
        for less in _smaller(case):
            if time.monotonic() > end:
                return case
            if (key := repr(less)) in tried:
                continue
            tried.add(key)
            outcome = less.play(way, shuffle)
            if outcome.kind == found.kind:
                case = _used(replace(less, calls=less.calls[: outcome.number + 1]))
                break
        else:
            return case


def _batch(call: Call) -> int | None:
    return call[1] if call[0] in OF_BATCHES else None


def _used(case: Case) -> Case:
    """Leave out batches that no call names."""
    used = sorted({b for call in case.calls if (b := _batch(call)) is not None}) or [0]
    calls = tuple(
        call if (b := _batch(call)) is None else (call[0], used.index(b), *call[2:])
        for call in case.calls
    )
    return replace(case, batches=tuple(case.batches[b] for b in used), calls=calls)


def _smaller(case: Case) -> Iterator[Case]:
    """Yield what is less than a case: calls first, then batches, networks, and the optimizer."""
    calls, rule = case.calls, case.rule
    if len(calls) > 7:
        yield replace(case, calls=calls[len(calls) // 2 :])
    for k in range(len(calls) - 1):
        yield replace(case, calls=(*calls[:k], *calls[k + 1 :]))
    for k, batch in enumerate(case.batches):
        for less in smaller_batches(batch):
            yield replace(case, batches=(*case.batches[:k], less, *case.batches[k + 1 :]))
    weight = case.network.weight()
    networks = [n for n in smaller_networks(case.network) if n.weight() < weight]
    for network in sorted(networks, key=NetworkSpec.weight):
        batches = tuple(batch.fit(network) for batch in case.batches)
        if "loss" in network.pushes() and all(batch.graphs for batch in batches):
            yield replace(case, network=network, batches=batches)
    if case.network.frozen:
        yield replace(case, network=replace(case.network, frozen=frozenset()))
    if case.network.reduction != "mean_graphs":
        yield replace(case, network=replace(case.network, reduction="mean_graphs"))
    if rule.groups or rule.schedule:
        yield replace(case, rule=Rule(rule.name, rule.options))
    plain = {"lr": rule.options["lr"], "momentum": 0.0, "weight_decay": 0.0}
    if rule != Rule("SGD", plain):
        yield replace(case, rule=Rule("SGD", plain))
    for k, call in enumerate(calls):
        for at, given in enumerate(call):
            if isinstance(given, tuple) and len(given) > (call[0] not in ("step", "own")):
                less_call = (*call[:at], given[1:], *call[at + 1 :])
                yield replace(case, calls=(*calls[:k], less_call, *calls[k + 1 :]))


# Networks.


def smaller_networks(network: NetworkSpec) -> Iterator[NetworkSpec]:
    """Yield networks without a type, a push, a field or an initial state, or with less nodes.

    Some are none, and fail in another way than what is shrunk.
    """
    for kind, function in network.types.items():
        others = {name: f for name, f in network.types.items() if name != kind}
        if others:
            yield prune(replace(network, types=others))
        for less in _smaller_functions(function):
            yield prune(replace(network, types={**network.types, kind: less}))
        for k in range(len(function.nodes)):
            if function.nodes[k].operands and not function.nodes[k].type.relation:
                yield prune(_with_parameter(network, kind, k))


def _smaller_functions(function: FunctionSpec) -> Iterator[FunctionSpec]:
    for name in function.pushes:
        yield replace(function, pushes=_without(function.pushes, name))
    yield replace(function, initial={})
    for name in function.state:
        fields = {each: _without(getattr(function, each), name) for each in ("state", "scatter")}
        yield replace(function, **fields, initial=_without(function.initial, name))
    for k in range(len(function.nodes) - 1, -1, -1):
        for other in _stand_ins(function, k):
            yield _redirected(function, k, other)


def _without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in given.items() if each != name}


def _stand_ins(function: FunctionSpec, k: int) -> list[int]:
    """List earlier nodes of a node's type: its own operands, the first ones, and the last."""
    node = function.nodes[k]
    if node.type.index or not node.operands:
        return []
    own = [x for x in node.operands if function.nodes[x].type == node.type]
    others = [j for j in range(k) if function.nodes[j].type == node.type and j not in own]
    return [*own, *others[:2], *others[2:][-2:]]


def _redirected(function: FunctionSpec, old: int, new: int) -> FunctionSpec:
    """Let what reads a node read another."""

    def moved(node: FuzzNode) -> FuzzNode:
        inputs = tuple(new if x == old and not isinstance(x, float) else x for x in node.inputs)
        return replace(node, inputs=inputs)

    return replace(
        function,
        nodes=tuple(moved(node) if k > old else node for k, node in enumerate(function.nodes)),
        scatter={name: new if k == old else k for name, k in function.scatter.items()},
        pushes={name: new if k == old else k for name, k in function.pushes.items()},
    )


def _with_parameter(network: NetworkSpec, kind: str, k: int) -> NetworkSpec:
    """Put a new parameter in place of a node."""
    function = network.types[kind]
    shape, name = function.nodes[k].type.shape, f"q{len(network.parameters)}"
    while name in network.parameters:
        name += "q"
    leaf = FuzzNode("parameter", (), (name,), ValueType(shape))
    nodes = (*function.nodes[:k], leaf, *function.nodes[k + 1 :])
    types = {**network.types, kind: replace(function, nodes=nodes)}
    return replace(network, types=types, parameters={**network.parameters, name: shape})
