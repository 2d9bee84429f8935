"""What is set as attributes of a vertex function or a model, also in lists and dicts."""

from __future__ import annotations

from collections.abc import Iterator

from vertexrt.api.parameter import Parameter


def parts_of(owner: object) -> Iterator[tuple[str, object]]:
    """Yield what attributes hold, by name; what is in lists and dicts is numbered: `layers.0`.

    Attributes whose names begin with _ are left out.
    """
    stack = [(n, v) for n, v in reversed(vars(owner).items()) if not n.startswith("_")]
    while stack:
        name, value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack += [(f"{name}.{k}", item) for k, item in reversed([*enumerate(value)])]
        elif isinstance(value, dict):
            stack += [(f"{name}.{key}", item) for key, item in reversed(value.items())]
        else:
            yield name, value


def parameters_of(owner: object) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of an owner by name, one as often as it is found."""
    for name, part in parts_of(owner):
        if isinstance(part, Parameter):
            yield name, part
