"""The names of numba that are not public and that the cache needs; a new numba may have others.

Where this fails, change `vertexrt/cache/` or bound numba in pyproject.toml. Nothing of the package
is imported here, so that it fails by itself and not at an import.
"""

import inspect
from importlib import import_module

import numba
import pytest

# module, name, what it has: parameters in order of a function, attributes of a class
USED = [
    ("numba.core.environment", "_rebuild_env", ["modname", "consts", "env_name"]),
    ("numba.core.extending", "_Intrinsic", []),
    ("numba.core.caching", "_Cache", ["load_overload", "save_overload", "enable", "disable"]),
    ("numba.core.compiler_lock", "global_compiler_lock", ["acquire", "release"]),
    ("numba.core.sigutils", "normalize_signature", ["sig"]),
    (
        "numba.core.compiler",
        "CompileResult",
        ["_rebuild", "_find_referenced_environments"],
    ),
    ("numba.core.codegen", "CPUCodeLibrary", ["serialize_using_object_code"]),
    ("numba.core.codegen", "JITCPUCodegen", ["magic_tuple"]),
    ("numba.core.types.containers", "BaseTuple", ["from_types"]),
    ("numba.core.types.containers", "BaseNamedTuple", []),
]
REBUILT = [
    "target_context", "libdata", "fndesc", "env", "signature", "objectmode", "lifted", "typeann",
    "reload_init", "referenced_envs",
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "parts"), USED, ids=lambda x: str(x))
def test_names_of_numba_are_there(module: str, name: str, parts: list[str]) -> None:
    found = getattr(import_module(module), name, None)
    assert found is not None, f"numba {numba.__version__} has no {module}.{name}"
    if inspect.isfunction(found):
        assert list(inspect.signature(found).parameters) == parts
    else:
        missing = [part for part in parts if not hasattr(found, part)]
        assert not missing, f"{module}.{name} of numba {numba.__version__} has no {missing}"


def test_a_compile_result_is_rebuilt_from_the_same() -> None:
    from numba.core.compiler import CompileResult

    assert list(inspect.signature(CompileResult._rebuild).parameters) == REBUILT
