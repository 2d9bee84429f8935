"""Networks of several vertex functions: one for each type of vertex."""

from __future__ import annotations

from vertexrt.api.parameter import Parameter
from vertexrt.api.parts import parameters_of, parts_of
from vertexrt.api.trace import NetworkNames
from vertexrt.api.vertex_function import (
    VertexFunction,
    check_declared,
    sources_of,
    trace_in,
)
from vertexrt.errors import TraceError
from vertexrt.ir.join import join_programs
from vertexrt.ir.passes.specialise import MOST_FUNCTIONS
from vertexrt.ir.program import FunctionSite, Program


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
        found = dict(parameters_of(self))
        for kind, function in self.functions().items():
            found |= {f"{kind}.{name}": p for name, p in parameters_of(function)}
        names: dict[int, str] = {}
        for name, parameter in found.items():
            names.setdefault(id(parameter), name)
        return {name: p for name, p in found.items() if names[id(p)] == name}

    def trace(self) -> Program:
        """Run the `forward` of each function once and return the program of the network.

        Raises: TraceError for any mistake in the declarations, with the user's line.
        """
        functions = self.functions()
        own = {id(function) for function in functions.values()}
        for name, function in functions.items():
            check_declared(function)
            for relation in function.inputs:
                strange = [x for x in sources_of(function, relation) if id(x) not in own]
                if strange:
                    got = f"{name} reads {relation!r} of a {type(strange[0]).__name__}"
                    raise self._error(got, "vertex functions that are attributes of the model")
        # The state of each function is called as the first whose vertices may be the same child.
        states = {id(function): name for name, function in functions.items()}
        for function in functions.values():
            for relation in function.inputs:
                several = [states[id(source)] for source in sources_of(function, relation)]
                states = {k: several[0] if n in several else n for k, n in states.items()}
        names = NetworkNames(states, {id(p): name for name, p in self.parameters().items()})
        numbers = {id(function): k for k, function in enumerate(functions.values())}
        parts = []
        for name, function in functions.items():
            program, read = trace_in(function, names)
            unread = set(function.inputs) - set(read.names)
            if unread:
                raise self._error(
                    f"{name} names {sorted(unread)} in inputs and does not gather them",
                    "a gather of each relation",
                )
            children = tuple(
                tuple(numbers[id(source)] for source in sources_of(function, relation))
                for relation in read.names
            )
            site = FunctionSite(name, read.names, len(read.every), children)
            parts.append((program, site))
        network = join_programs(type(self).__name__, parts)
        if not network.find("push"):
            raise self._error("forward() of no function pushes anything", "at least one push")
        return network

    def _error(self, got: str, expected: str) -> TraceError:
        name = type(self).__name__
        return TraceError.at("model", f"{name} has {got}", expected, f"correct {name}")
