"""What is set as attributes of a vertex function or a model, also in cells, lists and dicts."""

from __future__ import annotations

from collections.abc import Iterator

from vertexrt.api.parameter import Parameter


class Cell:
    """An object that holds parameters and is called on values: a part to build functions with.

    Its attributes may be parameters, other cells, and lists and dicts of them. Set as an attribute
    of a vertex function, its parameters are named after it: `cell.weight`.
    """


def parts_of(owner: object) -> Iterator[tuple[str, object]]:
    """Yield what attributes hold, by name; of cells `cell.weight`, in lists `layers.0`.

    Attributes whose names begin with _ are left out.
    """
    stack = [(str(name), value) for name, value in reversed(_attributes(owner))]
    while stack:
        name, value = stack.pop()
        inside = _inside(value)
        if inside is None:
            yield name, value
        else:
            stack += [(f"{name}.{key}", item) for key, item in reversed(inside)]


def _inside(value: object) -> list[tuple[object, object]] | None:
    """List what is in a cell, a list or a dict, by name or number; None for anything else."""
    if isinstance(value, Cell):
        return _attributes(value)
    if isinstance(value, (list, tuple)):
        return [*enumerate(value)]
    return [*value.items()] if isinstance(value, dict) else None


def _attributes(owner: object) -> list[tuple[object, object]]:
    return [(name, value) for name, value in vars(owner).items() if not name.startswith("_")]


def parameters_of(owner: object) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of an owner by name, one as often as it is found."""
    for name, part in parts_of(owner):
        if isinstance(part, Parameter):
            yield name, part
