"""Parts: parameters of which rows are read by themselves become stacks of these rows.

The nodes of `w[:8]`, `w[8:]` and `w` read `w[0:8]`, `w[8:16]` and the stack of both, which lie
where w lies: products read a part in place, products of one vector with all parts are one, and
gradients of a part and of the whole add to the same memory. To users there is w alone.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vertexrt.errors import TraceError
from vertexrt.ir.passes.rewrite import Rewriter, rewrite
from vertexrt.ir.program import Domain, Node, Program, attributes


@dataclass(frozen=True, slots=True)
class Divided:
    """A program whose parameters are whole, or parts of others.

    Attributes:
        places: by the name of a part or of a parameter that is read in another shape: the parameter
            as it is declared, and which of its elements the part begins at.
    """

    program: Program
    places: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a parameter that a node reads, [begin, end) of all that it has of that length."""

    begin: int
    end: int
    columns: int


def divide_parameters(program: Program) -> Divided:
    """Give rows of parameters that are read by themselves names of their own.

    Raises: TraceError with the user's line, when rows of a parameter overlap in part, or rows of
        several lengths are read.
    """
    read: dict[str, list[Node]] = defaultdict(list)
    program = _vectors_as_rows(program)
    for node in program.nodes:
        if node.op == "param":
            read[node["name"]].append(node)
    places: dict[str, tuple[str, int]] = {}
    for name, uses in read.items():
        if any(node.has("start") for node in uses):
            parts = _parts(name, uses, math.prod(program.params[name]))
            places |= {part: (name, rows.begin * rows.columns) for part, rows in parts.items()}
            program = _with_parts(program, name, parts)
    return Divided(program, places)


def _vectors_as_rows(program: Program) -> Program:
    """Let what reads a vector read the rows as which it is read elsewhere, laid flat."""
    matrices = {
        node["name"]: node.type
        for node in program.nodes
        if node.op == "param" and node.has("start") and len(node.type.shape) == 2
    }

    def read(out: Rewriter, node: Node) -> int | None:
        if node.op != "param" or len(node.type.shape) != 1 or node["name"] not in matrices:
            return None
        matrix = matrices[node["name"]]
        columns = matrix.shape[1]
        rows = replace(matrix, shape=(node.type.size // columns, columns))
        whole = out.derived(node, "param", (), rows, name=node["name"], shape=rows.shape, start=0)
        type_ = replace(node.type, domain=Domain.VERTEX)
        return out.derived(node, "slice", (whole,), type_, start=0, shape=type_.shape)

    return rewrite(program, read) if matrices else program


def _with_parts(program: Program, name: str, parts: Mapping[str, _Rows]) -> Program:
    """Let all that reads a parameter read its parts, or the stack of all."""
    whole, last = "+".join(parts), max(rows.end for rows in parts.values())
    named = {rows: part for part, rows in parts.items()}
    named[_Rows(0, last, next(iter(named)).columns)] = whole

    def renamed(node: Node) -> Node:
        if node.op != "param" or node["name"] != name:
            return node
        made = {"name": named[_rows_of(node, name, node)], "shape": node.type.shape}
        return replace(node, attrs=attributes(made))

    params = {part: (rows.end - rows.begin, rows.columns) for part, rows in parts.items()}
    return replace(
        program,
        nodes=tuple(map(renamed, program.nodes)),
        params={n: shape for n, shape in program.params.items() if n != name} | params,
        stacks=(*program.stacks, tuple(parts)),  # also one alone: it joins no other
        frozen=program.frozen | (program.frozen & {name} and {*parts, whole}),
    )


def _rows_of(node: Node, name: str, first: Node) -> _Rows:
    """Return the rows that a node reads."""
    shape, columns = node.type.shape, first.type.shape[-1]
    if len(shape) != 2 or shape[1] != columns:
        raise TraceError.at(
            "parts",
            f"{name!r} is read as {list(first.type.shape)} and as {list(shape)}, at {node.where}",
            "rows of one length, where parts of a parameter are read or it is reshaped",
            "declare two parameters",
        )
    begin = node["start"] // columns if node.has("start") else 0
    return _Rows(begin, begin + shape[0], columns)


def _parts(name: str, uses: list[Node], size: int) -> dict[str, _Rows]:
    """Cut a parameter where a part of it begins or ends."""
    rows = [_rows_of(node, name, uses[0]) for node in uses]
    columns = rows[0].columns
    whole = _Rows(0, size // columns, columns)
    bounds = {0, whole.end, *(each.begin for each in rows), *(each.end for each in rows)}
    parts = [_Rows(a, b, columns) for a, b in itertools.pairwise(sorted(bounds))]
    for node, each in zip(uses, rows, strict=True):
        if each not in parts and each != whole:
            raise TraceError.at(
                "parts",
                f"rows {each.begin} to {each.end} of {name!r}, of which others are read by "
                f"themselves, at {node.where}",
                "parts that are equal or apart, or all rows",
                "multiply by the smaller parts, and join the products by vrt.concat",
            )
    return {f"{name}[{each.begin}:{each.end}]": each for each in parts}
