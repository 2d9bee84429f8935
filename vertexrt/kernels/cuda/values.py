"""The text of values where they are read: inputs of the program, views, scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from vertexrt.ir.ops import OPS
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.row_text import MustCloseError, NeedsMemoryError, RowText
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.render import CUDA, render
from vertexrt.lower.places import ValuePlace

J = "j"  # the element at which a thread's vector starts


class ValueText:
    """Where the values of a group are while its kernel is written.

    Attributes:
        place: position -> where it lies in memory.
        variable: position -> the name of a scalar of the row.
        inside: the members of the group: what is made here.
        in_parts: those of the group that are made where parts of them are read.
    """

    def __init__(
        self, nodes: Sequence[Node], binding: Binding, t: RowText, place: dict[int, ValuePlace]
    ) -> None:
        self.nodes, self.binding, self.t, self.place = nodes, binding, t, place
        self.vector = t.vector
        self.variable: dict[int, str] = {}
        self.inside: set[int] = set()
        self.in_parts: frozenset[int] = frozenset()

    def index(self, k: int) -> str:
        """Return the variable that holds an integer pull of this row (-1: absent)."""
        number = self.binding.ints[self.nodes[k]["name"]]
        pull = self.t.word(f"int_{number}", "const int*")
        return self.t.row_value(f"i{number}", "int", f"{pull}[{self.user_vertex()}]")

    def user_vertex(self) -> str:
        """Return the variable that holds the user's number of the vertex."""
        order = self.t.word("order", "const int*")
        return self.t.row_value("u", "int", f"{order}[row]")

    def child(self, slot: int) -> str:
        """Return the row of the child in a slot, -1 where there is none."""
        pointer = self.t.word("child_row", "const int*")
        first, end = self.t.first_edge(), self.t.end_edge()
        return self.t.row_value(
            f"child{slot}",
            "int",
            f"{first} + {slot} < {end} ? {pointer}[{first} + {slot}] : -1",
        )

    def edge_child(self) -> str:
        """Return the row of the child of an edge, -1 for an empty slot."""
        pointer = self.t.word("child_row", "const int*")
        return self.t.edge_value("child", "int", f"{pointer}[e]")

    def element(self, k: int, j: str) -> str:
        """Return the text of an element: `j` is J plus an offset (lane c), or a fixed number."""
        if self.t.awaits(k):
            raise MustCloseError
        if k in self.variable:
            return self.variable[k]
        if j == J and self.t.makes(k):
            return f"r{k}.v[c]"
        if k in self.place:
            return self._load(k, self.place[k], j)
        if k in self.inside:
            raise NeedsMemoryError(k)
        if k in self.in_parts:
            return f"({self.scalar_op(self.nodes[k], j)})"
        return self.leaf(k, j)

    def _load(self, k: int, place: ValuePlace, j: str) -> str:
        t, bare = self.t, self.nodes[k].type.shape == ()
        t.needs(k)
        base = t.base(place)
        if bare:
            return f"(*({base}))"
        if place.own is not None:
            at = self.own_element(j, *place.own)
            return t.read(f"{base} + {at}", False) if t.loop is not None else f"{base}[{at}]"
        if not j.startswith(J):
            return f"{base}[{j}]"
        return t.read(f"{base} + {j}", self.aligned(place, offset_of(j)))

    def own_element(self, j: str, piece: int, each: int) -> str:
        """Return which of the processor's own elements an element is.

        Args:
            piece: elements of each piece of the value; each: how many of them the processor owns.
        """
        loop = self.t.loop
        if loop is not None and loop.cuts == (0, piece) and j.startswith(J):
            pieces, rest = divmod(offset_of(j), piece)
            if rest == 0:
                return f"({pieces * each} + j - rank * {each})"
        return f"(({j}) / {piece} * {each} + ({j}) % {piece} - rank * {each})"

    def aligned(self, place: ValuePlace, offset: int = 0) -> bool:
        """Tell whether vectors of a row start on 16 bytes: tensors and temporaries do."""
        return (place.start + offset) % self.vector == 0 and place.step % self.vector == 0

    def _at(self, base: str, j: str, size: int) -> str:
        """Read an element of the row at a pointer; rows have `size` elements."""
        if not j.startswith(J):
            return f"{base}[{j}]"
        aligned = size % self.vector == 0 and offset_of(j) % self.vector == 0
        return self.t.read(f"{base} + {j}", aligned)

    def leaf(self, k: int, j: str) -> str:
        """Return the text of an element of a leaf or a view; see `element`."""
        assert self.nodes[k].op in self._LEAVES, f"{self.nodes[k].op} (%{k}) has no expression"
        return self._LEAVES[self.nodes[k].op](self, k, j)

    def _slice(self, k: int, j: str) -> str:
        node = self.nodes[k]
        (i,), start = node.inputs, node["start"]
        if not j.startswith(J):
            return self.element(i, str(int(j) + start))
        if node.type.shape == ():
            return self.element(i, str(start))
        offset = offset_of(j) + start
        return self.element(i, f"j + {offset}" if offset else J)

    def _spread(self, k: int, j: str) -> str:
        return self.element(self.nodes[k].inputs[0], j)

    def _const(self, k: int, j: str) -> str:
        node = self.nodes[k]
        value = node["value"]
        return f"real({value!r})" if node.type.dtype == "float" else f"({value})"

    def _loss_scale(self, k: int, j: str) -> str:
        pointer = self.t.word("scale", "const double*")
        return self.t.row_value("scale_", "real", f"real(*{pointer})")

    def _weight(self, k: int, j: str) -> str:
        pointer = self.t.word("weight", "const real*")
        return self.t.row_value("weight_", "real", f"{pointer}[row]")

    def _param(self, k: int, j: str) -> str:
        number = self.binding.params[self.nodes[k]["name"]]
        return self._of_row(self.t.word(f"param_{number}", "const real*"), k, j)

    def _gather(self, k: int, j: str) -> str:
        node, size = self.nodes[k], self._size(k)
        define = self.t.row_value if node.op == "gather" else self.t.edge_value
        base = define(f"c{k}", "auto", self.state_of_child(k, node, size))
        return self._at(base, j, size)

    def _present(self, k: int, j: str) -> str:
        return f"real({self.child(self.nodes[k]['slot'])} >= 0)"

    def _has_child(self, k: int, j: str) -> str:
        return f"real({self.edge_child()} >= 0)"

    def _has_pull(self, k: int, j: str) -> str:
        name, ints = self.nodes[k]["name"], self.binding.ints
        word = f"int_{ints[name]}" if name in ints else f"float_index_{self.binding.floats[name]}"
        return f"real({self.t.word(word, 'const int*')}[{self.user_vertex()}] >= 0)"

    def _degree(self, k: int, j: str) -> str:
        pointer = self.t.word("child_row", "const int*")
        first, end = self.t.first_edge(), self.t.end_edge()
        return self.t.row_value("degree", "real", f"vrt_degree({pointer}, {first}, {end})")

    def _pull(self, k: int, j: str) -> str:
        t, node = self.t, self.nodes[k]
        if node.type.dtype == "int":
            return self.index(k)
        number = self.binding.floats[node["name"]]
        where = t.word(f"float_index_{number}", "const int*")
        table = t.word(f"float_{number}", "const real*")
        zero = t.word("zero", "const real*")
        at = t.row_value(f"x{number}", "int", f"{where}[{self.user_vertex()}]")
        row = f"{at} >= 0 ? {table} + (long long){at} * {self._size(k)} : {zero}"
        return self._of_row(t.row_value(f"pulled{number}", "auto", row), k, j)

    def _seed(self, k: int, j: str) -> str:
        number = self.binding.seeds[self.nodes[k]["name"]]
        table = self.t.word(f"seed_{number}", "const real*")
        row = f"{table} + (long long){self.user_vertex()} * {self._size(k)}"
        return self._of_row(self.t.row_value(f"s_{k}", "auto", row), k, j)

    def _embed(self, k: int, j: str) -> str:
        t, (source, index) = self.t, self.nodes[k].inputs
        number, size = self.binding.params[self.nodes[source]["name"]], self._size(k)
        rows, zero = t.word(f"param_{number}", "const real*"), t.word("zero", "const real*")
        word = self.index(index)
        row = f"{word} >= 0 ? {rows} + (long long){word} * {size} : {zero}"
        return self._at(t.row_value(f"row_{k}", "auto", row), j, size)

    _LEAVES: ClassVar[Mapping[str, Callable[[ValueText, int, str], str]]] = {
        "slice": _slice,
        "spread": _spread,
        "to_edges": _spread,
        "const": _const,
        "loss_scale": _loss_scale,
        "weight": _weight,
        "param": _param,
        "gather": _gather,
        "gather_all": _gather,
        "present": _present,
        "has_child": _has_child,
        "has_pull": _has_pull,
        "degree": _degree,
        "pull": _pull,
        "seed": _seed,
        "embed": _embed,
    }

    def _size(self, k: int) -> int:
        return max(self.nodes[k].type.size, 1)

    def _of_row(self, base: str, k: int, j: str) -> str:
        """Read an element of a row that a pointer is to, or the one number there."""
        return f"(*{base})" if self.nodes[k].type.shape == () else self._at(base, j, self._size(k))

    def state_of_child(self, k: int, node: Node, size: int) -> str:
        """Return where the state of a child lies, or zeros."""
        tensor = self.t.word(f"tensor_{self.binding.tensors['state', node['field']]}", "real*")
        zero = self.t.word("zero", "const real*")
        child = self.child(node["slot"]) if node.op == "gather" else self.edge_child()
        return f"{child} >= 0 ? (const real*){tensor} + (long long){child} * {size} : {zero}"

    def reads_parents(self) -> None:
        """Take note that the open loop reads what parents stored."""

    def scalar_op(self, node: Node, j: str) -> str:
        expression = OPS[node.op].scalar
        assert expression is not None
        operands = [self.element(i, j) for i in node.inputs]
        keep = ""
        if node.op == "dropout":
            threshold = min(int(node["p"] * 2**32), 2**32 - 1)
            seed = self.t.row_value(
                "seed_", "unsigned", f"(unsigned)*{self.t.word('random_seed', 'const long long*')}"
            )
            element = f"{j} + c" if j.startswith(J) else j
            counter = self._counter(node.type.domain == Domain.EDGE)
            draw = f"vrt_uniform({seed}, {node['key']}u, {counter}, {element})"
            factor = 1.0 / (1.0 - node["p"])
            keep = f"({draw} >= {threshold}u ? real({factor!r}) : real(0))"
        return render(expression, operands, CUDA, keep)

    def _counter(self, edges: bool) -> str:
        """Return what numbers the random draws: the user's vertex, or the user's edge."""
        u = self.user_vertex()
        if not edges:
            return u
        user_edge = self.t.word("user_edge", "const int*")
        return f"({user_edge}[{u}] + e - {self.t.first_edge()})"


def offset_of(j: str) -> int:
    """Return the offset of an index text: "j", or "j + 256"."""
    return 0 if j == J else int(j.removeprefix(f"{J} + "))
