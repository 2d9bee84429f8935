"""Trace a vertex function: run its `forward` once and collect the program."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

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
        self._of_edges: dict[str, bool] = {}  # by name of what is pulled
        self._read: dict[tuple[str, int | str], Value] = {}  # by that name, and whose edges
        self.relations = Relations(names is None, arity)
        self._outer: Trace | None = None

    def __enter__(self) -> Trace:
        self._outer = getattr(_active, "trace", None)
        _active.trace = self
        return self

    def __exit__(self, *_: object) -> None:
        _active.trace = self._outer
        self.builder.closed = True

    def read(self, op: str, name: object, shape: object, dtype: str | None, **attrs: Any) -> Value:
        """Return an external value of the vertex, or of its edges in a relation; it is read once.

        Args:
            op: of PULLS; attrs: of its node, which say whose edges they are.
        Raises: TraceError, when the name was read before in another way, or too many are.
        """
        of_edges = op == "edge_pull" or "edge" in attrs
        what = "edge" if of_edges else "pull"
        if not isinstance(name, str):
            raise TraceError.at(
                what, f"name {name!r} at {user_line()}", "a string", "name an array of the batch"
            )
        extents = read_pulled(name, shape, dtype)
        if self._of_edges.setdefault(name, of_edges) != of_edges:
            raise TraceError.at(
                what,
                f"{name!r} of vertices and of edges, at {user_line()}",
                "a name of its own for each",
                "rename one",
            )
        before = next((v for (n, _), v in self._read.items() if n == name), None)
        if before is not None and shape is not None and extents != before.shape:
            raise TraceError.at(
                what,
                f"{name!r} of shape {list(extents)} at {user_line()}",
                f"it was pulled before with shape {list(before.shape)}",
                "pull it once, or use two names",
            )
        whose = attrs.get("of", attrs.get("relation", 0))
        if (name, whose) not in self._read:
            called = f"({name} of edge {whose})" if "of" in attrs else name
            if len(self.pulled) == MOST_PULLS and called not in self.pulled:
                raise TraceError.at(
                    what,
                    f"{called!r} at {user_line()}, after {MOST_PULLS} others",
                    f"at most {MOST_PULLS} names",
                    "pull vectors instead of many numbers",
                )
            given = {"dtype": dtype or "float", "auto": not dtype, **attrs}
            extents = extents if before is None else before.shape
            found = self.builder.emit(op, name=called, shape=extents, **given)
            self._read[name, whose] = self.pulled[called] = found
        return self._read[name, whose]

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
                attrs["dtype"] = node.type.dtype
                if node.op == "edge_pull" and node.relation and node.type.dtype == "int":
                    # Numbers of rows, maybe of another table than in other relations.
                    name = node["name"]
                    attrs |= {"name": f"({name} of edges {node.relation})", "edge": name}
                node = replace(node, attrs=attributes(attrs))
                self._note(node, pulls)
            nodes.append(node)
        found = tuple(pulls.values())
        frozen = frozenset(name for name, p in declared.items() if not p.trainable)
        return Program(self.name, tuple(nodes), params, state, arity, found, frozen=frozen)

    def _note(self, node: Node, pulls: dict[str, Pull]) -> None:
        """Add the external value that a node reads to those that are declared.

        Raises: TraceError, when edges of two relations have numbers and indices of one name.
        """
        name, kind = node["name"], node.type
        of = {key: node[key] for key in ("edge", "of") if node.has(key)}
        form = Pull(name, kind.shape, kind.dtype, node.op == "edge_pull", **of)
        pulls.setdefault(name, form)
        others = [pull for pull in pulls.values() if pull.edges and pull.source == form.source]
        if form.edges and any(pull.dtype != kind.dtype for pull in others):
            uses = "a number in one relation and an index in another"
            raise TraceError.at(
                "edge",
                f"{form.source!r} is {uses}, at {node.where}",
                "one of the two",
                "use two names, or declare edge(name, dtype='int') in both",
            )
