"""Join the programs of several vertex functions into one: a network.

Functions meet in states alone: what one scatters, another gathers. So the programs stand side by
side, each node marked with its function, and every pass works on all of them at once.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from vertexrt.errors import TraceError
from vertexrt.ir.builder import Builder
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.specialise import FUNCTION_AT
from vertexrt.ir.program import FunctionSite, Node, Program, Pull, attributes

Form = TypeVar("Form")


def join_programs(name: str, parts: Sequence[tuple[Program, FunctionSite]]) -> Program:
    """Return the program of a network.

    Args:
        name: of the network.
        parts: the program of each function, whose fields have names that differ from function to
            function, and how the function stands in the network.
    Raises: TraceError, when functions declare one parameter, pull or push in two shapes, or have
        too many slots and pulls together.
    """
    programs: tuple[Program, ...]
    programs, sites = zip(*parts, strict=True)
    arity = max(p.arity or 0 for p in programs) or None
    nodes: list[Node] = []
    pushes = _agreed("push", programs, _pushes)
    pulls = _agreed("pull", programs, lambda program: {p.name: p for p in program.pulls})
    _agreed(
        "pull",
        programs,
        lambda program: {
            p.source: "of edges" if p.of_edges else "of vertices" for p in program.pulls
        },
    )
    for number, program in enumerate(programs):
        start = len(nodes)
        for node in program.nodes:
            attrs = node.attrs
            if node.op in ("gather_all", "degree", "edge_pull"):
                attrs = attributes({**dict(attrs), "slot": arity or 0})
            inputs = tuple(i + start for i in node.inputs)
            nodes.append(replace(node, inputs=inputs, attrs=attrs, function=number))
        nodes += _missing_pushes(program, number, len(nodes), pushes)
    params = _agreed("parameter", programs, lambda program: program.params)
    state = dict(ChainMap(*(dict(p.state) for p in reversed(programs))))
    slots = arity or 0
    if slots + 1 + len(pulls) > FUNCTION_AT:  # the bits that the number of a kind has for them
        raise TraceError.at(
            "model",
            f"{name} has {slots} slots and {len(pulls)} pulls",
            f"{FUNCTION_AT - 1} together",
            "pull vectors instead of many numbers",
        )
    declared = tuple(pulls.values())
    frozen = frozenset[str]().union(*(program.frozen for program in programs))
    return Program(name, tuple(nodes), params, state, arity, declared, sites=sites, frozen=frozen)


def _agreed(
    what: str, programs: Sequence[Program], declared: Callable[[Program], Mapping[str, Form]]
) -> dict[str, Form]:
    """Join declarations by name; those of one name must be equal."""
    found: dict[str, tuple[str, Form]] = {}
    for program in programs:
        owner = program.name
        for name, form in declared(program).items():
            first, known = found.setdefault(name, (owner, form))
            if known != form:
                raise TraceError.at(
                    "model",
                    f"{what} {name!r} is {_text(known)} in {first}, {_text(form)} in {owner}",
                    "one shape for each name",
                    "rename one of them",
                )
    return {name: form for name, (_, form) in found.items()}


def _text(form: object) -> str:
    if not isinstance(form, Pull):
        return str(form)
    return f"{form.dtype}{list(form.shape)}{' of edges' if form.edges else ''}"


def _pushes(program: Program) -> dict[str, tuple[int, ...]]:
    return {n["name"]: tuple(n["shape"]) for n in program.nodes if n.op == "push"}


def _missing_pushes(
    program: Program, function: int, start: int, pushes: Mapping[str, tuple[int, ...]]
) -> list[Node]:
    """Push zeros where a function does not push what another one does: each vertex has a row."""
    builder = Builder(OPS)
    builder.function, builder.where = function, program.name
    own = _pushes(program)
    for name, shape in pushes.items():
        if name not in own:
            builder.emit("push", builder.const(0.0, shape), name=name, shape=shape)
    return [node.moved(tuple(i + start for i in node.inputs)) for node in builder.nodes]
