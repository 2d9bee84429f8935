"""The base classes of what users write: vertex functions, and networks of several of them.

The four functions gather, scatter, pull and push are those of Cavs (section 3.1).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Union

from vertexrt.api.trace import (
    ARRAYS,
    CHILDREN,
    NetworkNames,
    Parameter,
    Trace,
    active,
    current_trace,
    parameters_of,
    parts_of,
)
from vertexrt.checks import is_whole
from vertexrt.errors import FieldError, TraceError, nearest
from vertexrt.instead import no_name, replacement
from vertexrt.ir.builder import Builder, Operators, Value
from vertexrt.ir.join import join_programs
from vertexrt.ir.passes.simplify import simplify
from vertexrt.ir.passes.specialise import MOST_FUNCTIONS, MOST_SLOTS
from vertexrt.ir.program import FunctionSite, Program, related
from vertexrt.ir.user_line import refuse, user_line


class State(Operators):
    """The fields of a child's state, each a value: `self.gather(0).h`.

    Raises: FieldError for a field that the vertex function does not declare, TraceError where the
        state itself is used as a value.
    """

    def __init__(self, fields: Mapping[str, Value]) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):  # what Python and its libraries look for
            raise AttributeError(name)
        raise FieldError.at(
            "gather",
            f"field {name!r} at {user_line()}",
            f"the declared state {sorted(vars(self))}",
            f"declare it in state={{...}} and scatter it.{nearest(name, vars(self))}",
        )

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {v.type}' for name, v in vars(self).items())})"

    def _as_value(self, builder: Builder) -> NoReturn:
        """Refuse to stand for a value: the user has to pick a field."""
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        refuse(
            "gather",
            "a whole state is used as a value",
            f"one of its fields {sorted(vars(self))}",
            f"write .{min(vars(self), default='field')} after gather()",
        )

    _builder = __getitem__ = _refuse


Source = Union["VertexFunction", str]  # a function, or its name in the model


class VertexFunction:
    """F: what every vertex of every input graph computes. Subclass it and write `forward`.

    `forward` runs once, on symbols; shapes are per vertex and have no batch axis.

    Args:
        arity: slots for children, 0 to arity - 1; None where only `gather_all` is used.
        state: fields that a vertex hands to its parents, name -> elements.
        initial: name -> Parameter read in place of an absent child's field (zeros otherwise); in
            a `vrt.Model` only where such a child may be of this function.
        inputs: in a `vrt.Model`: name of a relation -> the vertex function of its children, or
            several functions whose states are declared alike; or their names in the model, where
            functions read each other. A relation that is not named here has children of the
            function's own type.
    """

    def __init__(
        self,
        *,
        arity: int | None = None,
        state: Mapping[str, int],
        initial: Mapping[str, Parameter] | None = None,
        inputs: Mapping[str, Source | Sequence[Source]] | None = None,
    ) -> None:
        given = {} if inputs is None else inputs
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise TraceError.at(
                "inputs",
                f"inputs is {given!r:.60}",
                "a dict of names of relations to vertex functions",
                "write inputs={'spelling': self.char}",
            )
        self.inputs: dict[str, Any] = dict(given)
        if arity is not None and (not is_whole(arity) or not 1 <= arity <= MOST_SLOTS):
            raise TraceError.at(
                "arity",
                f"arity is {arity!r}",
                f"1 to {MOST_SLOTS}, or None where only gather_all is used",
                "read many children by gather_all",
            )
        self.arity = None if arity is None else int(arity)
        action = "write state={'h': hidden}, or state={} for none"
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise TraceError.at(
                "state", f"state is {state!r}", "a dict of names to numbers of elements", action
            )
        for name, size in state.items():
            if not is_whole(size) or size < 1:
                raise TraceError.at(
                    "state", f"field {name!r} has {size!r} elements", "1 or more", action
                )
        self.state = {name: int(size) for name, size in state.items()}
        if initial is not None and not isinstance(initial, Mapping):
            raise TraceError.at(
                "state",
                f"initial is {initial!r}",
                "a dict of fields to parameters",
                "write {'h': self.h0}",
            )
        for name, parameter in (initial or {}).items():
            if name not in self.state:
                raise TraceError.at(
                    "state",
                    f"initial names field {name!r}",
                    f"fields are {sorted(self.state)}",
                    "correct the name",
                )
            if not isinstance(parameter, Parameter) or parameter.shape != (self.state[name],):
                raise TraceError.at(
                    "state",
                    f"the initial state of {name!r} is {parameter!r}",
                    f"a vrt.Parameter of shape {(self.state[name],)}",
                    "set it as an attribute first: self.h0 = vrt.Parameter(...)",
                )
        self.initial = dict(initial or {})

    def __repr__(self) -> str:
        name = type(self).__name__
        if "initial" not in vars(self):
            return f"{name}(without super().__init__())"
        parameters = {id(p): p for _, p in parameters_of(self)}.values()
        count = sum(math.prod(p.shape) for p in parameters)
        return f"{name}(arity={self.arity}, state={self.state}, {count:,} parameters)"

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> NoReturn:
            if replacement("function", name):
                raise no_name("function", name, dir(type(self)))
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    def forward(self) -> None:
        """Compute one vertex. Overridden by the user."""
        raise TraceError.at(
            "trace",
            "forward() is not written",
            "a method that scatters and pushes",
            "write def forward(self)",
        )

    # The four functions of Cavs.

    def gather(self, slot: int | str) -> State:
        """Read the state of the child in a slot; zeros (or the initial state) where it is absent.

        Args:
            slot: 0 to arity - 1; in a `vrt.Model` also the name of a relation in which a
                vertex has one child at most.
        Returns: an object with one attribute a field of the child's state, each of shape
            [elements].
        Raises: TraceError for a slot that was not declared.
        """
        trace = self._tracing("gather")
        b, number = trace.builder, self._slot("gather", slot)
        sources = sources_of(self, slot)
        initial = self.initial if any(source is self for source in sources) else {}
        fields: dict[str, Value] = {}
        for name, size in sources[0].state.items():
            field = _field(sources[0], trace, name)
            value = b.emit("gather", slot=number, field=field, shape=(size,))
            if name in initial:
                absent = 1.0 - b.emit("present", slot=number)
                value = value + absent * initial[name]._as_value(b)
            fields[name] = value
        return State(fields)

    def gather_all(self, relation: str = CHILDREN) -> State:
        """Read the states of all children, any number of them.

        Args:
            relation: in a `vrt.Model`, the name of the relation whose children are read; a function
                may read several, each by itself.
        Returns: an object with one attribute a field, a value per child: compute with it, then
            reduce it over the children by `vrt.sum`, `vrt.max` or `vrt.mean`, weighted by
            `vrt.softmax(score, axis="children")` for attention. An empty slot is not a child, and
            `initial` is not read. Values per child of two relations meet after they are reduced.
        Raises: TraceError for a name where a function stands alone, or of what `gather` reads.
        """
        trace = self._tracing("gather_all")
        of = {"slot": self.arity or 0, **related(trace.read_all(relation))}
        source, fields = sources_of(self, relation)[0], {}
        for name, size in source.state.items():
            field = _field(source, trace, name)
            fields[name] = trace.builder.emit("gather_all", field=field, shape=(size,), **of)
        return State(fields)

    def _slot(self, where: str, what: object) -> int:
        """Return the slot of a relation of one child: a number that was declared, or a name."""
        if isinstance(what, str) and not what.isdigit():
            return self._tracing(where).slot(what)
        slot = int(what) if isinstance(what, str) else what
        if self.arity is None or not is_whole(slot) or not 0 <= slot < self.arity:
            refuse(
                where,
                f"slot {slot!r}",
                f"{type(self).__name__} declares "
                + ("no slots" if self.arity is None else f"slots 0..{self.arity - 1}"),
                "declare a larger arity" if is_whole(slot) else "pass the number of a slot",
            )
        return int(slot)

    def _tracing(self, where: str) -> Trace:
        """Return the trace of this function's forward(), in which it is called.

        Raises: TraceError outside of it.
        """
        trace = current_trace()
        self._check_declared()
        if trace.function is not self:
            refuse(
                where,
                f"{type(self).__name__}.{where} in the forward() of another function",
                "a call on the function whose forward() runs",
                "call self." + where,
            )
        return trace

    def scatter(self, **state: Value) -> None:
        """Publish this vertex's state to its parents.

        Raises: TraceError, when the fields or shapes differ from the declared state.
        """
        trace = self._tracing("scatter")
        b = trace.builder
        if trace.scattered:
            refuse(
                "scatter",
                "called a second time",
                "one scatter in forward()",
                "scatter all fields at once",
            )
        trace.scattered = True
        if set(state) != set(self.state):
            refuse(
                "scatter",
                f"fields {sorted(state)}",
                f"the declared state {sorted(self.state)}",
                "scatter every field once",
            )
        for name, size in self.state.items():
            value = b.lift(state[name])
            if value.shape != (size,):
                refuse(
                    "scatter",
                    f"field {name!r} has shape {list(value.shape)}",
                    f"the declared state is [{size}]",
                    "scatter a value of that shape, or declare another size",
                )
            self._no_edges("scatter", name, value)
            b.emit("scatter", value, field=_field(self, trace, name), shape=value.shape)

    def pull(
        self, name: str, shape: tuple[int, ...] | int | None = None, dtype: str | None = None
    ) -> Value:
        """Read an external value of this vertex; zero where the vertex has none.

        Args:
            name: of the array in the graph batch.
            shape: per vertex, a number for a vector; by default one number.
            dtype: "float" where it may not become an integer; by default it is one, as from
                `pull_index`, if it is used as an index or a label.
        Raises: TraceError, when it was pulled before in another shape, or too many are pulled.
        """
        return self._tracing("pull").read("pull", name, shape, dtype)

    def pull_index(self, name: str) -> Value:
        """Read an integer of this vertex; -1 where the vertex has none.

        In arithmetic it is a real number.

        Args:
            name: of the array in the graph batch.
        Raises: TraceError, as `pull` does.
        """
        return self._tracing("pull").read("pull", name, (), None, index=True)

    def edge(
        self,
        name: str,
        shape: tuple[int, ...] | int | None = None,
        dtype: str | None = None,
        relation: int | str = CHILDREN,
    ) -> Value:
        """Read an external value of each edge to the children that `gather_all` reads, or of one.

        Args:
            name: of the array in `edge_pulls` of the graphs.
            shape, dtype: as of `pull`, for each edge.
            relation: in a `vrt.Model`, a relation of which `gather_all` reads all children; a name
                may be read of several, in one shape and dtype. Also a slot, or the name of a
                relation that was gathered before: the edge to that child.
        Returns: a value per child, of a slot one per vertex; zero (or -1) where an edge has none.
        Raises: TraceError, as `pull`, `gather` and `gather_all` do.
        """
        return self._edge(name, shape, dtype, relation)

    def edge_index(self, name: str, relation: int | str = CHILDREN) -> Value:
        """Read an integer of each edge to the children that `gather_all` reads, or of one.

        Args, Returns, Raises: as those of `edge`; -1 where an edge has none.
        """
        return self._edge(name, (), None, relation, index=True)

    def _edge(
        self,
        name: str,
        shape: object,
        dtype: str | None,
        relation: int | str,
        *,
        index: bool = False,
    ) -> Value:
        trace = self._tracing("edge")
        if not isinstance(relation, str) or relation.isdigit() or relation in trace.slots:
            slot = self._slot("edge", relation)
            of = relation if relation in trace.slots else str(slot)
            return trace.read("pull", name, shape, dtype, index, edge=name, of=of)
        whose = related(trace.read_all(relation))
        return trace.read("edge_pull", name, shape, dtype, index, slot=self.arity or 0, **whose)

    def present(self, what: int | str) -> Value:
        """Return 1.0 where the vertex has a child in a slot, or a pulled value; else 0.0.

        Kinds are specialised by presence, so `present(...) * x` costs nothing where it is 0.

        Args:
            what: a slot, the name of a pull that was read before, or the name of a relation that
                was gathered before.
        """
        trace = self._tracing("present")
        if not isinstance(what, str) or what in trace.slots:
            return trace.builder.emit("present", slot=self._slot("present", what))
        if what not in trace.pulled:
            refuse(
                "present",
                f"pull {what!r}",
                "the name of a pull that forward() has read",
                "call self.pull first",
            )
        return trace.builder.emit("has_pull", name=what)

    @property
    def training(self) -> Value:
        """1.0 where dropout drops, else 0.0: `vrt.where(self.training, x, y)` costs nothing.

        That is in `net.step` and `net.record`, and in `net(batch, dropout=True)`.
        """
        return self._tracing("training").builder.emit("training", shape=())

    def count_children(self, relation: str = CHILDREN) -> Value:
        """Return how many children there are, as a number; empty slots are none.

        Args:
            relation: as of `gather_all`.
        """
        trace = self._tracing("count_children")
        b, of = trace.builder, related(trace.read_all(relation))
        return b.emit("segment_sum", b.emit("has_child", **of))

    def push(self, name: str, value: Value) -> Value:
        """Write a value to the outside and return it.

        The push `loss`, a scalar, is minimised; it may be pushed several times, and is their sum.

        Raises: TraceError for another name used twice, or a loss that is not a scalar.
        """
        trace = self._tracing("push")
        b = trace.builder
        if not isinstance(name, str):
            refuse("push", f"name {name!r}", "a string", "write push(name, value)")
        if name in trace.pushed and name != "loss":
            refuse(
                "push",
                f"name {name!r} a second time",
                "a name of its own for each push",
                "rename one of them",
            )
        value = b.lift(value)
        if name == "loss" and value.shape != ():
            refuse(
                "push",
                f"the loss has shape {list(value.shape)}",
                "a scalar per vertex",
                "reduce it, by vrt.sum for example",
            )
        self._no_edges("push", name, value)
        whole = value
        if name in trace.pushed:  # the loss: its last push becomes one of the sum
            whole = b.value(b.nodes[trace.pushed[name]].inputs[0]) + value
            b.nodes[trace.pushed[name]] = b.const(0.0).node
        trace.pushed[name] = b.emit("push", whole, name=name, shape=value.shape).index
        return value

    # Tracing.

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters by attribute name; those of lists and dicts are numbered."""
        self._check_declared()
        found: dict[str, Parameter] = {}
        for name, parameter in parameters_of(self):
            parameter.name = parameter.name or name
            if found.setdefault(parameter.name, parameter) is not parameter:
                raise TraceError.at(
                    "parameters",
                    f"two parameters are called {parameter.name!r}: {name!r} got its name before, "
                    "in another vertex function",
                    "names that differ",
                    "share parameters under one attribute name",
                )
        return found

    def trace(self) -> Program:
        """Run `forward` once and return the program of F.

        Raises: TraceError for any mistake in the declaration, with the user's line.
        """
        return trace_in(self)[0]

    def _check_declared(self) -> None:
        if "initial" not in vars(self):
            raise TraceError.at(
                "trace",
                f"{type(self).__name__} has no arity and no state",
                "a call of super().__init__ in its __init__",
                "write super().__init__(arity=2, state={'h': hidden}) there",
            )

    def _no_edges(self, where: str, name: str, value: Value) -> None:
        if value.type.domain.name == "EDGE":
            refuse(
                where,
                f"{name!r} is a value per child",
                "a value per vertex",
                "reduce it over the children by vrt.sum, vrt.max or vrt.mean",
            )


def sources_of(function: VertexFunction, relation: int | str) -> tuple[VertexFunction, ...]:
    """Return the functions whose vertices may be the children of a relation."""
    given = function.inputs.get(str(relation), function)
    several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    declared = [getattr(source, "state", None) for source in several]
    if not several or any(state is None or state != declared[0] for state in declared):
        raise TraceError.at(
            "inputs",
            f"{str(relation)!r} is {given!r}",
            "a vertex function, or several that declare the same state",
            "write inputs={'spelling': self.char}",
        )
    return several


def _field(function: VertexFunction, trace: Trace, name: str) -> str:
    """Return what a field of a function's state is called in the program that is traced."""
    return name if trace.names is None else f"{trace.names.states[id(function)]}.{name}"


def trace_in(function: VertexFunction, names: NetworkNames | None = None) -> tuple[Program, Trace]:
    """Run `forward` once; return the program of F, and its trace, which says what it reads.

    Args:
        names: of the network that the function is a part of; None, where it is alone.
    Raises: TraceError, as `VertexFunction.trace` does.
    """
    called, params = type(function).__name__, {}
    if names is None:
        params = function.parameters()
    else:
        called = names.states[id(function)]
        params = {names.parameters[id(p)]: p for _, p in parameters_of(function)}
    given = inspect.signature(function.forward)
    if any(each.default is each.empty and each.kind < 2 for each in given.parameters.values()):
        raise TraceError.at(  # the kinds from 2 on need no argument
            "trace",
            f"{type(function).__name__}.forward{given} takes arguments",
            "forward(self)",
            "read what a vertex is given by self.pull(name, shape)",
        )
    trace = Trace(function, called, function.arity, names)
    token = active.set(trace)
    try:
        function.forward()
    finally:
        active.reset(token)
        trace.builder.closed = True
    if function.state and not trace.scattered:
        raise TraceError.at(
            "scatter",
            "forward() does not scatter",
            f"the state {sorted(function.state)}",
            "scatter it there, or write state={}",
        )
    if function.initial and not any(n.op == "gather" for n in trace.builder.nodes):
        raise TraceError.at(
            "initial",
            f"initial gives {sorted(function.initial)}, and forward() gathers no slot",
            "gather(slot), which reads it where a child is absent; gather_all does not",
            "leave initial out, or gather slots",
        )
    if names is None and not trace.pushed:
        raise TraceError.at(
            "push",
            "forward() pushes nothing",
            "at least one push",
            "write self.push('h', h): what forward() returns is not read",
        )
    state = {_field(function, trace, name): size for name, size in function.state.items()}
    params |= {p.name or "": p for p in vars(function).get(ARRAYS, ())}
    return simplify(trace.program(params, state)), trace


class Model:
    """A network of vertex functions, one for each type of vertex. Subclass it.

    Set vertex functions as attributes in `__init__`: the name of an attribute is the name of a
    vertex type. Functions read each other's states by named relations (`inputs` of
    `VertexFunction`), and may share parameters. All of it is one program with one schedule:
    vertices run as soon as their children are done, whatever their type.

    Source: DyNet and Cavs have one F; types and relations follow heterogeneous graphs
    (Schlichtkrull et al. 2018).
    """

    def functions(self) -> dict[str, VertexFunction]:
        """Return the vertex functions by the name of their type.

        Raises: TraceError, when there is none, or too many, or one stands under two names.
        """
        found = {name: part for name, part in parts_of(self) if isinstance(part, VertexFunction)}
        if not 1 <= len(found) <= MOST_FUNCTIONS:
            raise self._error(
                f"{len(found)} vertex functions", f"1 to {MOST_FUNCTIONS}, set as attributes"
            )
        if len({id(function) for function in found.values()}) < len(found):
            raise self._error(
                "one vertex function under two names", "a function for each type of vertex"
            )
        return found

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters by name: `left.w`, or `w` of the model's own."""
        owners = {"": self, **{f"{kind}.": f for kind, f in self.functions().items()}}
        found: dict[int, tuple[str, Parameter]] = {}  # by identity
        for prefix, owner in owners.items():
            for name, parameter in parameters_of(owner):
                found.setdefault(id(parameter), (prefix + name, parameter))
        return dict(found.values())

    def trace(self) -> Program:
        """Run the `forward` of each function once and return the program of the network.

        Raises: TraceError for any mistake in the declarations, with the user's line.
        """
        functions = self.functions()
        # The state of each function is called as the first whose vertices may be the same child.
        states = {id(function): name for name, function in functions.items()}
        for name, function in functions.items():
            function._check_declared()
            function.inputs = {
                relation: tuple(self._named(functions, each) for each in given)
                if isinstance(given, (list, tuple))
                else self._named(functions, given)
                for relation, given in function.inputs.items()
            }
            for relation in function.inputs:
                sources = sources_of(function, relation)
                strange = [type(source).__name__ for source in sources if id(source) not in states]
                if strange:
                    got = f"{name} reads {relation!r} of a {strange[0]}"
                    raise self._error(got, "vertex functions that are attributes of the model")
                several = [states[id(source)] for source in sources]
                states = {k: several[0] if n in several else n for k, n in states.items()}
        types = {id(function): name for name, function in functions.items()}
        names = NetworkNames(types, states, {id(p): name for name, p in self.parameters().items()})
        numbers = {id(function): k for k, function in enumerate(functions.values())}
        parts = []
        for name, function in functions.items():
            program, trace = trace_in(function, names)
            unread = set(function.inputs) - set(trace.relations)
            if unread:
                raise self._error(
                    f"{name} names {sorted(unread)} in inputs and does not gather them",
                    "a gather of each relation",
                )
            children = tuple(
                tuple(numbers[id(source)] for source in sources_of(function, relation))
                for relation in trace.relations
            )
            site = FunctionSite(name, trace.relations, len(trace.every), children)
            parts.append((program, site))
        network = join_programs(type(self).__name__, parts)
        if not network.find("push"):
            raise self._error("forward() of no function pushes anything", "at least one push")
        return network

    def _named(self, functions: Mapping[str, VertexFunction], given: object) -> object:
        """Return the function of a name; functions are given as they are."""
        if not isinstance(given, str):
            return given
        if given not in functions:
            known = f"one of the vertex types {', '.join(functions)}"
            raise self._error(f"inputs from {given!r}", known + nearest(given, functions))
        return functions[given]

    def _error(self, got: str, expected: str) -> TraceError:
        name = type(self).__name__
        return TraceError.at("model", f"{name} has {got}", expected, f"correct {name}")
