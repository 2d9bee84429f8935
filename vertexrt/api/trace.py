"""Trace a vertex function: run its `forward` once and collect the program."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from vertexrt.api.relations import Relations
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Builder
from vertexrt.ir.program import Node, Program, Pull, attributes
from vertexrt.ir.values import Value

_active = threading.local()


def current_builder() -> Builder:
    """Return the builder of the vertex function that is being traced.

    Raises: TraceError outside of a trace.
    """
    trace = getattr(_active, "trace", None)
    if trace is None:
        raise TraceError.at(
            "trace",
            "an operation on parameters runs outside of forward()",
            "F is traced by vrt.compile, which calls forward() once",
            "move the expression into forward()",
        )
    return trace.builder  # type: ignore[no-any-return]


def name_in_network(part: object) -> str | None:
    """Return what a parameter is called in the network that is being traced, if there is one."""
    trace = getattr(_active, "trace", None)
    names = None if trace is None else trace.names
    return None if names is None else names.parameters.get(id(part))


def name_in_trace() -> str:
    """Return what the function that is traced is called; in a network, its states' prefix.

    Raises: TraceError outside of a trace.
    """
    current_builder()
    name: str = _active.trace.name
    return name


@dataclass(frozen=True, slots=True)
class NetworkNames:
    """What the parts of a network of several functions are called, by their identity.

    Attributes:
        states: of each function, before the names of its fields; functions whose vertices may be
            the same child have one state.
        parameters: of each parameter.
    """

    states: Mapping[int, str]
    parameters: Mapping[int, str]


class Declared(Protocol):
    """A parameter, as it was declared."""

    shape: tuple[int, ...]
    trainable: bool


class Trace:
    """A program under construction, active while `forward` runs.

    Args:
        arity: slots that the function declares by number.
        names: of the network that the function is a part of; None, where it is alone.
    """

    def __init__(self, name: str, arity: int | None, names: NetworkNames | None = None) -> None:
        self.name = name
        self.names = names
        self.builder = Builder()
        self.pulled: dict[str, Value] = {}
        self.relations = Relations(names is None, arity)
        self._outer: Trace | None = None

    def __enter__(self) -> Trace:
        self._outer = getattr(_active, "trace", None)
        _active.trace = self
        return self

    def __exit__(self, *_: object) -> None:
        _active.trace = self._outer
        self.builder.closed = True

    def program(
        self, declared: Mapping[str, Declared], state: dict[str, int], arity: int | None
    ) -> Program:
        """Return the traced program with its declarations."""
        params = {name: p.shape for name, p in declared.items()}
        pulls: list[Pull] = []
        nodes: list[Node] = []
        for node in self.builder.nodes:
            if node.op == "pull":
                attrs = {k: v for k, v in node.attrs if k != "auto"}
                node = replace(node, attrs=attributes({**attrs, "dtype": node.type.dtype}))
                if all(p.name != node["name"] for p in pulls):
                    pulls.append(Pull(node["name"], node.type.shape, node.type.dtype))
            nodes.append(node)
        found = tuple(pulls)
        return Program(
            self.name, tuple(nodes), params, state, arity, found, frozen=_frozen(declared)
        )


def _frozen(declared: Mapping[str, Declared]) -> frozenset[str]:
    return frozenset(name for name, parameter in declared.items() if not parameter.trainable)
