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
    programs, sites = zip(*parts, strict=True)
    arity = max(p.arity or 0 for p in programs) or None
    nodes: list[Node] = []
    pushes = _agreed("push", programs, _pushes)
    pulls = _agreed("pull", programs, _pulls)
    _agreed("pull", programs, _owners)
    for number, program in enumerate(programs):
        nodes += _moved(program, number, len(nodes), arity)
        nodes += _missing_pushes(program, number, len(nodes), pushes)
    params = _agreed("parameter", programs, lambda program: program.params)
    state = dict(ChainMap(*(dict(p.state) for p in reversed(programs))))
    _check_size(name, arity or 0, len(pulls))
    declared = tuple(pulls.values())
    frozen = frozenset[str]().union(*(program.frozen for program in programs))
    return Program(name, tuple(nodes), params, state, arity, declared, sites=sites, frozen=frozen)


def _check_size(name: str, slots: int, pulls: int) -> None:
    """Refuse more slots and pulls than the number of a kind has bits for."""
    if slots + 1 + pulls > FUNCTION_AT:
        raise TraceError.at(
            "model",
            f"{name} has {slots} slots and {pulls} pulls",
            f"{FUNCTION_AT - 1} together",
            "pull vectors instead of many numbers",
        )


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


def _pulls(program: Program) -> dict[str, Pull]:
    return {pull.name: pull for pull in program.pulls}


def _owners(program: Program) -> dict[str, str]:
    return {p.source: "of edges" if p.of_edges else "of vertices" for p in program.pulls}


def _moved(program: Program, function: int, start: int, arity: int | None) -> list[Node]:
    """Return nodes of a function for their places in the network."""
    found = []
    for node in program.nodes:
        attrs = node.attrs
        if node.op in ("gather_all", "degree", "edge_pull"):
            attrs = attributes({**dict(attrs), "slot": arity or 0})
        inputs = tuple(i + start for i in node.inputs)
        found.append(replace(node, inputs=inputs, attrs=attrs, function=function))
    return found


def _missing_pushes(
    program: Program, function: int, start: int, pushes: Mapping[str, tuple[int, ...]]
) -> list[Node]:
    """Push zeros where a function does not push what another one does: each vertex has a row."""
    builder = Builder()
    builder.function, builder.where = function, program.name
    own = _pushes(program)
    for name, shape in pushes.items():
        if name not in own:
            builder.emit("push", builder.const(0.0, shape), name=name, shape=shape)
    return [node.moved(tuple(i + start for i in node.inputs)) for node in builder.nodes]
