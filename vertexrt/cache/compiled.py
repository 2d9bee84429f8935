"""`njit` with a cache on disk: numba compiles, and the result is kept and found here.

numba's own cache (`cache=True`) trusts what it finds: it unpickles an index and the code, and fails
where its folder cannot be written. Here an entry holds machine code and LLVM bitcode as numba made
them, and what else numba needs to take them in again as names and types in JSON. Nothing is
unpickled, and no entry is used that does not agree with its digest (`entries.py`).

An entry's name is a hash of what the function is made from (`fingerprint.py`), the types of its
arguments, and the environment: versions of Python and libraries, processor and its features.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import Timer
from typing import Any, TypeVar

import llvmlite
import numba
import numpy as np
from numba.core import sigutils
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.types.misc import unliteral

from vertexrt.cache import entries, notes, record
from vertexrt.cache.fingerprint import PACKAGE, file_hash, fingerprint
from vertexrt.cache.folders import folders
from vertexrt.locks import hold_at_fork

KIND = "cpu"

# Another thread may be compiling; its lock would stay taken in a forked child.
hold_at_fork(
    global_compiler_lock.acquire, global_compiler_lock.release, global_compiler_lock.release
)

Function = TypeVar("Function", bound=Callable[..., Any])


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """Compile a function at its first call, as `numba.njit` does.

    Args:
        cache: keep the machine code in the cache folder, and find it there.
        options: of `numba.njit`.
    """

    def compiled(function: Function) -> Function:
        made: Any = numba.njit(**options)(function)
        if made is not function:  # the same, where NUMBA_DISABLE_JIT is set
            made.get_call_template = functools.partial(_call_template, made.get_call_template)
            if cache:
                made._cache = KernelCache(made)
        return made  # type: ignore[no-any-return]

    return compiled


def inner(function: Function) -> Function:
    """Compile a function that only compiled code calls.

    What would let Python and C call it takes half of the time that compiling a short function
    takes. It is kept on disk as a part of what calls it. A division by zero is not looked for.
    """
    unwrapped = njit(
        error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    return unwrapped(function)


def _call_template(find: Callable[..., Any], args: Any, kws: Any) -> Any:
    """Find what a call runs, by types: numba would compile a callee for each constant."""
    return find([unliteral(a) for a in args], {k: unliteral(kws[k]) for k in kws})


def is_kept(function: Any, *arguments: Any) -> bool:
    """Tell whether the cache has a function of `njit`, compiled for such arguments."""
    kinds = tuple(map(numba.typeof, arguments))
    name = function._cache._name(kinds, cpu_target.target_context.codegen())
    return bool(name) and entries.read(KIND, name) is not None


@functools.cache
def _environment(*processor: str) -> tuple[str, ...]:
    """Return what decides how a function is compiled, in addition to the function."""
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
    names = sorted(name for name in os.environ if "NUMBA_" in name and name != "NUMBA_CACHE_DIR")
    settings = [f"{name}={os.environ[name]}" for name in names]
    form = file_hash(record)  # of entries
    return (*versions, form, *processor, *settings)


class KernelCache(_Cache):  # type: ignore[misc]
    """The cache of one compiled function; numba asks it while it holds its compiler's lock."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._enabled = True
        self._note: Timer | None = None  # while numba compiles

    @property
    def cache_path(self) -> str:
        """The folder that new entries are written to."""
        return str(folders(KIND).write or "")

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """Return what was compiled for the types of arguments; None where there is nothing."""
        target_context.refresh()
        name = self._name(sig, target_context.codegen())
        found = entries.read(KIND, name) if name else None
        if found is None:
            own = self._function.py_func.__module__.startswith(f"{PACKAGE}.")
            self._note = notes.begin("host code" if own else "kernels")
            return None
        return record.deserialize(target_context, found.content, found.facts, _arguments(sig))

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        """Keep what was compiled, if all of it can be written down."""
        if self._note is not None:
            self._note.cancel()
        name = self._name(sig, data.codegen)
        found = record.serialize(data, _arguments(sig)) if name else None
        if found is not None:
            entries.write(KIND, name, *found)

    def enable(self) -> None:
        """Use the cache."""
        self._enabled = True

    def disable(self) -> None:
        """Leave the cache alone."""
        self._enabled = False

    def flush(self) -> None:
        """Forget nothing: an entry is as good as what would be compiled."""

    def _name(self, sig: Any, codegen: Any) -> str:
        """Return the name of an entry; "" where there can be none."""
        made_from = fingerprint(self._function) if self._enabled else None
        if made_from is None:
            return ""
        _, returned = sigutils.normalize_signature(sig)
        types = [str(each) for each in (*_arguments(sig), returned)]
        processor = [str(each) for each in codegen.magic_tuple()]
        return entries.key_of([made_from, *types, "", *_environment(*processor)])


def _arguments(sig: Any) -> tuple[Any, ...]:
    arguments, _ = sigutils.normalize_signature(sig)
    return tuple(arguments)
