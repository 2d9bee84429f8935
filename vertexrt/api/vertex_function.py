"""The base class of vertex functions: gather, scatter, pull, push (Cavs, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from vertexrt.api.parameter import Parameter
from vertexrt.api.trace import Trace, current_builder
from vertexrt.errors import TraceError, message
from vertexrt.ir.builder import Value, user_line
from vertexrt.ir.passes.simplify import simplify
from vertexrt.ir.program import Program

MOST_SLOTS = 32  # a kind is 63 bits: the slots, and the pulls
MOST_PULLS = 30


class VertexFunction:
    """F: what every vertex of every input graph computes. Subclass it and write `forward`.

    `forward` runs once, on symbols; shapes are per vertex and have no batch axis.

    Args:
        arity: slots for children, 0 to arity - 1; None where only `gather_all` is used.
        state: fields that a vertex hands to its parents, name -> elements.
        initial: name -> Parameter read in place of an absent child's field (zeros otherwise).
    """

    def __init__(
        self,
        *,
        arity: int | None = None,
        state: Mapping[str, int],
        initial: Mapping[str, Parameter] | None = None,
    ) -> None:
        self.arity = arity
        self.state = dict(state)
        self.initial = dict(initial or {})
        self._trace: Trace | None = None
        self._scattered = False
        self._pushed: set[str] = set()
        if arity is not None and not 1 <= arity <= MOST_SLOTS:
            raise self._error(
                "arity",
                f"arity is {arity}",
                f"1 to {MOST_SLOTS}, or None where only gather_all is used",
                "read many children by gather_all",
            )
        for name, size in self.state.items():
            if not isinstance(size, int) or size < 1:
                raise self._error("state", f"field {name!r} has {size!r} elements", "1 or more")
        for name in self.initial:
            if name not in self.state:
                raise self._error(
                    "state", f"initial names field {name!r}", f"fields are {sorted(self.state)}"
                )

    def forward(self) -> None:
        """Compute one vertex. Overridden by the user."""
        raise self._error("trace", "forward() is not written", "a method that scatters and pushes")

    # The four functions of Cavs.

    def gather(self, slot: int) -> Any:
        """Read the state of the child in a slot; zeros (or the initial state) where it is absent.

        Args:
            slot: 0 to arity - 1.
        Returns: an object with one attribute a field, each of shape [elements].
        Raises: TraceError for a slot that was not declared.
        """
        if self.arity is None or not 0 <= slot < self.arity:
            raise self._error(
                "gather",
                f"slot {slot} at {user_line()}",
                f"{type(self).__name__} declares "
                + ("no slots" if self.arity is None else f"slots 0..{self.arity - 1}"),
                "declare a larger arity",
            )
        b = current_builder()
        fields: dict[str, Value] = {}
        for name, size in self.state.items():
            value = b.emit("gather", slot=slot, field=name, shape=(size,))
            if name in self.initial:
                absent = 1.0 - b.emit("present", slot=slot)
                value = value + absent * self.initial[name].as_value(b)
            fields[name] = value
        return SimpleNamespace(**fields)

    def gather_all(self) -> Any:
        """Read the states of all children, any number of them.

        Returns: an object with one attribute a field, a value per child: compute with it, then
            reduce it by `vrt.sum`, `vrt.max` or `vrt.mean`.
        """
        b = current_builder()
        slot = self.arity or 0
        return SimpleNamespace(
            **{
                name: b.emit("gather_all", slot=slot, field=name, shape=(size,))
                for name, size in self.state.items()
            }
        )

    def scatter(self, **state: Value) -> None:
        """Publish this vertex's state to its parents.

        Raises: TraceError, when the fields or shapes differ from the declared state.
        """
        if self._scattered:
            raise self._error(
                "scatter", f"called a second time at {user_line()}", "one scatter in forward()"
            )
        self._scattered = True
        if set(state) != set(self.state):
            raise self._error(
                "scatter",
                f"fields {sorted(state)} at {user_line()}",
                f"the declared state {sorted(self.state)}",
                "scatter every field once",
            )
        b = current_builder()
        for name, size in self.state.items():
            value = b.lift(state[name])
            if value.shape != (size,):
                raise self._error(
                    "scatter",
                    f"field {name!r} has shape {list(value.shape)} at {user_line()}",
                    f"the declared state is [{size}]",
                    "scatter a value of that shape, or declare another size",
                )
            self._no_edges("scatter", name, value)
            b.emit("scatter", value, field=name, shape=value.shape)

    def pull(
        self, name: str, shape: tuple[int, ...] | None = None, dtype: str | None = None
    ) -> Value:
        """Read an external value of this vertex; zero where the vertex has none.

        Args:
            name: of the array in the graph batch.
            shape: per vertex; a number by default.
            dtype: `int` or `float`; by default an integer if it is used as an index or a label.
        Raises: TraceError, when it was pulled before in another shape, or too many are pulled.
        """
        b = current_builder()
        assert self._trace is not None
        if dtype not in (None, "int", "float"):
            raise self._error(
                "pull", f"dtype {dtype!r} of {name!r} at {user_line()}", "'int' or 'float'"
            )
        if name not in self._trace.pulled:
            if len(self._trace.pulled) == MOST_PULLS:
                raise self._error(
                    "pull",
                    f"{name!r} at {user_line()}, after {MOST_PULLS} others",
                    f"at most {MOST_PULLS} names",
                    "pull vectors instead of many numbers",
                )
            self._trace.pulled[name] = b.emit(
                "pull", name=name, shape=tuple(shape or ()), dtype=dtype or "float", auto=not dtype
            )
        found = self._trace.pulled[name]
        if shape is not None and tuple(shape) != found.shape:
            raise self._error(
                "pull",
                f"{name!r} of shape {list(shape)} at {user_line()}",
                f"it was pulled before with shape {list(found.shape)}",
                "pull it once, or use two names",
            )
        return found

    def present(self, what: int | str) -> Value:
        """Return 1.0 where the vertex has a child in a slot, or a pulled value; else 0.0.

        Kinds are specialised by presence, so `present(...) * x` costs nothing where it is 0.

        Args:
            what: a slot, or the name of a pull that was read before.
        """
        b = current_builder()
        if isinstance(what, str):
            if self._trace is None or what not in self._trace.pulled:
                raise self._error(
                    "present",
                    f"pull {what!r} at {user_line()}",
                    "the name of a pull that forward() has read",
                    "call self.pull first",
                )
            return b.emit("has_pull", name=what)
        if self.arity is None or not 0 <= what < self.arity:
            raise self._error(
                "present", f"slot {what} at {user_line()}", "a declared slot", "declare more"
            )
        return b.emit("present", slot=what)

    def push(self, name: str, value: Value) -> Value:
        """Write a value to the outside and return it. The push `loss`, a scalar, is minimised.

        Raises: TraceError for a name used twice, or a loss that is not a scalar.
        """
        if name in self._pushed:
            raise self._error(
                "push",
                f"name {name!r} a second time at {user_line()}",
                "a name of its own for each push",
                "rename one of them",
            )
        self._pushed.add(name)
        b = current_builder()
        value = b.lift(value)
        if name == "loss" and value.shape != ():
            raise self._error(
                "push",
                f"the loss has shape {list(value.shape)} at {user_line()}",
                "a scalar per vertex",
                "reduce it, by vrt.sum for example",
            )
        self._no_edges("push", name, value)
        b.emit("push", value, name=name, shape=value.shape)
        return value

    # Tracing.

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters by attribute name; those of lists and dicts are numbered."""
        found: dict[str, Parameter] = {}

        def visit(name: str, value: object) -> None:
            if isinstance(value, Parameter):
                value.name = value.name or name
                if found.setdefault(value.name, value) is not value:
                    raise self._error(
                        "parameters",
                        f"two parameters are called {value.name!r}: {name!r} got its name before, "
                        "in another vertex function",
                        "names that differ",
                        "share parameters under one attribute name",
                    )
            elif isinstance(value, (list, tuple)):
                for k, item in enumerate(value):
                    visit(f"{name}.{k}", item)
            elif isinstance(value, dict):
                for key, item in value.items():
                    visit(f"{name}.{key}", item)

        for name, value in vars(self).items():
            if not name.startswith("_"):
                visit(name, value)
        return found

    def trace(self) -> Program:
        """Run `forward` once and return the program of F.

        Raises: TraceError for any mistake in the declaration, with the user's line.
        """
        params = {name: p.shape for name, p in self.parameters().items()}
        self._scattered = False
        self._pushed = set()
        with Trace(type(self).__name__) as trace:
            self._trace = trace
            self.forward()
            if self.state and not self._scattered:
                raise self._error(
                    "scatter", "forward() does not scatter", f"the state {sorted(self.state)}"
                )
            if not self._pushed:
                raise self._error("push", "forward() pushes nothing", "at least one push")
        self._trace = None
        return simplify(trace.program(params, self.state, self.arity))

    def _no_edges(self, where: str, name: str, value: Value) -> None:
        if value.type.domain.name == "EDGE":
            raise self._error(
                where,
                f"{name!r} is a value per child at {user_line()}",
                "a value per vertex",
                "reduce it by vrt.sum, vrt.max or vrt.mean",
            )

    def _error(self, where: str, got: str, expected: str, action: str = "") -> TraceError:
        return TraceError(message(where, got, expected, action or f"correct {type(self).__name__}"))
