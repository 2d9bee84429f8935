"""Trace a vertex function: run its `forward` once and collect the program."""

from __future__ import annotations

import threading
from dataclasses import replace

from vertexrt.errors import TraceError, message
from vertexrt.ir.builder import Builder
from vertexrt.ir.program import Node, Program, Pull, attributes
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import Value

_active = threading.local()


def current_builder() -> Builder:
    """Return the builder of the vertex function that is being traced.

    Raises: TraceError outside of a trace.
    """
    builder = getattr(_active, "builder", None)
    if builder is None:
        raise TraceError(
            message(
                "trace",
                "an operation on parameters runs outside of forward()",
                "F is traced by vrt.compile, which calls forward() once",
                "move the expression into forward()",
            )
        )
    return builder  # type: ignore[no-any-return]


def as_index(x: Value) -> Value:
    """Read a pull as an integer, the first time that it is used as an index or a label."""
    node = x.node
    if node.op == "pull" and node["auto"]:
        settled = replace(
            node,
            type=replace(node.type, dtype="int"),
            attrs=attributes({**dict(node.attrs), "dtype": "int", "auto": False}),
        )
        builder = x.builder
        readers = [n for n in builder.nodes if x.index in n.inputs]
        if readers:
            raise TraceError(
                message(
                    "pull",
                    f"{node['name']!r} is used as a number and as an index, at {user_line()}",
                    "one of the two",
                    "pull two arrays, or declare pull(name, dtype='int')",
                )
            )
        builder.nodes[x.index] = settled
    return x


class Trace:
    """A program under construction, active while `forward` runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.builder = Builder()
        self.pulled: dict[str, Value] = {}
        self._outer: Builder | None = None

    def __enter__(self) -> Trace:
        self._outer = getattr(_active, "builder", None)
        _active.builder = self.builder
        return self

    def __exit__(self, *_: object) -> None:
        _active.builder = self._outer
        self.builder.closed = True

    def program(
        self, params: dict[str, tuple[int, ...]], state: dict[str, int], arity: int | None
    ) -> Program:
        """Return the traced program with its declarations."""
        pulls: list[Pull] = []
        nodes: list[Node] = []
        for node in self.builder.nodes:
            if node.op == "pull":
                attrs = {k: v for k, v in node.attrs if k != "auto"}
                node = replace(node, attrs=attributes({**attrs, "dtype": node.type.dtype}))
                if all(p.name != node["name"] for p in pulls):
                    pulls.append(Pull(node["name"], node.type.shape, node.type.dtype))
            nodes.append(node)
        return Program(self.name, tuple(nodes), params, state, arity, tuple(pulls))
