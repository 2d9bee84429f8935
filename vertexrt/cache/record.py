"""A compiled function as bytes and JSON, and back: what numba pickles, without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types, typing
from numba.core.compiler import CompileResult
from numba.core.environment import _rebuild_env
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.types.containers import BaseNamedTuple, BaseTuple

PLAIN = {str(each): each for each in (*types.number_domain, types.boolean, types.none)}


def serialize(made: Any, arguments: tuple[Any, ...]) -> tuple[bytes, dict[str, Any]] | None:
    """Return machine code and bitcode of a compile result, and the rest as facts for JSON.

    Args:
        arguments: types of the arguments.
    Returns: None, when it holds what has no form here: Python objects, addresses, or other types.
    """
    function = made.fndesc
    used = [made.environment, *made._find_referenced_environments()]
    environments = [_environment(each) for each in used]
    returned = _written(made.signature.return_type)
    dynamic = made.library.has_dynamic_globals
    unusual = (made.objectmode, made.lifted, made.reload_init, function.kws, dynamic)
    types_of_arguments = {made.signature.args, function.argtypes}
    if any(unusual) or returned is None or None in environments:
        return None
    if types_of_arguments != {arguments}:
        return None
    library, kind, (machine_code, bitcode) = made.library.serialize_using_object_code()
    facts = {
        "library": [library, kind, len(machine_code)],
        "returned": returned,
        "module": function.modname,
        "function": function.qualname,
        "unique": function.unique_name,
        "arguments": list(function.args),
        "symbol": function.mangled_name,
        "flags": [function.inline, function.noalias],
        "environments": environments,
    }
    return machine_code + bitcode, facts


def deserialize(
    context: Any, content: bytes, facts: dict[str, Any], arguments: tuple[Any, ...]
) -> CompileResult:
    """Return the compile result that `serialize` was given; the code is ready to run.

    Args:
        context: numba's of the target.
    """
    name, kind, cut = facts["library"]
    returned = _type_of(facts["returned"])
    environments = [
        _rebuild_env(module, [np.dtype(text) for text in dtypes], env)
        for module, env, dtypes in facts["environments"]
    ]
    inline, noalias = facts["flags"]
    function = PythonFunctionDescriptor(
        native=True,
        modname=facts["module"],
        qualname=facts["function"],
        unique_name=facts["unique"],
        doc="",
        typemap=None,
        restype=returned,
        calltypes=None,
        args=tuple(facts["arguments"]),
        kws=(),
        mangler=lambda *_, **__: facts["symbol"],
        argtypes=arguments,
        inline=inline,
        noalias=noalias,
        env_name=environments[0].env_name,
    )
    return CompileResult._rebuild(
        context,
        (name, kind, (content[:cut], content[cut:])),
        function,
        environments[0],
        typing.signature(returned, *arguments),
        False,
        (),
        "",
        (),
        tuple(environments[1:]),
    )


def _environment(used: Any) -> list[Any] | None:
    """Write where a compiled function finds objects; dtypes of new arrays are all that it may."""
    if not used.can_cache() or not all(isinstance(each, np.dtype) for each in used.consts):
        return None
    dtypes = [each.str for each in used.consts if each.kind in "biuf"]
    if len(dtypes) < len(used.consts):
        return None
    return [used.globals["__name__"], used.env_name, dtypes]


def _written(kind: Any) -> Any:
    """Write a type of a result for JSON; None for one that has no form here."""
    if PLAIN.get(str(kind)) == kind:
        return str(kind)
    if isinstance(kind, BaseTuple) and not isinstance(kind, BaseNamedTuple):
        parts = [_written(part) for part in kind.types]
        return None if None in parts else parts
    if isinstance(kind, types.Array) and str(kind.dtype) in PLAIN:
        array = {"array": [str(kind.dtype), kind.ndim, kind.layout, kind.mutable, kind.aligned]}
        return array if _type_of(array) == kind else None
    return None


def _type_of(written: Any) -> Any:
    """Return the type that `_written` wrote."""
    if isinstance(written, str):
        return PLAIN[written]
    if isinstance(written, list):
        return BaseTuple.from_types([_type_of(part) for part in written])
    dtype, ndim, layout, mutable, aligned = written["array"]
    return types.Array(PLAIN[dtype], ndim, layout, readonly=not mutable, aligned=aligned)
