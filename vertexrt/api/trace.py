"""Trace a vertex function: run its `forward` once and collect the program."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from vertexrt.api.declaration import read_pulled
from vertexrt.api.relations import Relations
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Builder
from vertexrt.ir.passes.specialise import MOST_PULLS
from vertexrt.ir.program import Node, Program, Pull, attributes
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import Value

_active = threading.local()
PULLS = ("pull", "edge_pull")  # ops of external values


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
        self._pulled_of: dict[tuple[str, int], Value] = {}  # by name and relation, of edges
        self.relations = Relations(names is None, arity)
        self._outer: Trace | None = None

    def __enter__(self) -> Trace:
        self._outer = getattr(_active, "trace", None)
        _active.trace = self
        return self

    def __exit__(self, *_: object) -> None:
        _active.trace = self._outer
        self.builder.closed = True

    def read(self, op: str, name: object, shape: object, dtype: str | None, **attrs: int) -> Value:
        """Return an external value of the vertex, or of its edges in a relation; it is read once.

        Args:
            op: of PULLS; attrs: of its node.
        Raises: TraceError, when the name was read before in another way, or too many are.
        """
        what = "pull" if op == "pull" else "edge"
        if not isinstance(name, str):
            got, action = f"name {name!r} at {user_line()}", "name an array of the batch"
            raise TraceError.at(what, got, "a string", action)
        extents = read_pulled(name, shape, dtype)
        if name not in self.pulled:
            self._check_room(what, name)
            self.pulled[name] = self._emit_pull(op, name, extents, dtype, attrs)
        found = self.pulled[name]
        if found.node.op != op:
            got, action = f"{name!r} of vertices and of edges, at {user_line()}", "rename one"
            raise TraceError.at(what, got, "a name of its own for each", action)
        if shape is not None and extents != found.shape:
            raise TraceError.at(
                what,
                f"{name!r} of shape {list(extents)} at {user_line()}",
                f"it was pulled before with shape {list(found.shape)}",
                "pull it once, or use two names",
            )
        relation = attrs.get("relation", 0)
        if relation == found.node.relation:
            return found
        if (name, relation) not in self._pulled_of:
            other = self._emit_pull(op, name, found.shape, dtype, attrs)
            self._pulled_of[name, relation] = other
        return self._pulled_of[name, relation]

    def _check_room(self, what: str, name: str) -> None:
        """Raise TraceError, when one more name is too many."""
        if len(self.pulled) == MOST_PULLS:
            raise TraceError.at(
                what,
                f"{name!r} at {user_line()}, after {MOST_PULLS} others",
                f"at most {MOST_PULLS} names",
                "pull vectors instead of many numbers",
            )

    def _emit_pull(
        self,
        op: str,
        name: str,
        shape: tuple[int, ...],
        dtype: str | None,
        attrs: Mapping[str, int],
    ) -> Value:
        """Append the node of an external value; without a dtype, its uses decide."""
        given = {"dtype": dtype or "float", "auto": not dtype}
        return self.builder.emit(op, name=name, shape=shape, **given, **attrs)

    def program(
        self, declared: Mapping[str, Declared], state: dict[str, int], arity: int | None
    ) -> Program:
        """Return the traced program with its declarations."""
        params = {name: p.shape for name, p in declared.items()}
        pulls: dict[str, Pull] = {}
        nodes: list[Node] = []
        for node in self.builder.nodes:
            if node.op in PULLS:
                attrs = {k: v for k, v in node.attrs if k != "auto"}
                node = replace(node, attrs=attributes({**attrs, "dtype": node.type.dtype}))
                self._note(node, pulls)
            nodes.append(node)
        found = tuple(pulls.values())
        return Program(
            self.name, tuple(nodes), params, state, arity, found, frozen=_frozen(declared)
        )

    def _note(self, node: Node, pulls: dict[str, Pull]) -> None:
        """Add the external value that a node reads to those that are declared.

        Raises: TraceError, when edges of two relations have numbers and indices of one name.
        """
        name, kind = node["name"], node.type
        given = pulls.setdefault(name, Pull(name, kind.shape, kind.dtype, node.op == "edge_pull"))
        if given.dtype != kind.dtype:
            raise TraceError.at(
                "edge",
                f"{name!r} is a number in one relation and an index in another, at {node.where}",
                "one of the two",
                "use two names, or declare edge(name, dtype='int') in both",
            )


def _frozen(declared: Mapping[str, Declared]) -> frozenset[str]:
    return frozenset(name for name, parameter in declared.items() if not parameter.trainable)
