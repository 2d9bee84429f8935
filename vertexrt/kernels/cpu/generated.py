"""Modules of generated source: equal texts are one module, in a process and in the cache."""

from __future__ import annotations

import hashlib
import linecache
import sys
from types import ModuleType

from vertexrt.locks import ProcessLock

_loading = ProcessLock()


def load_source(source: str) -> ModuleType:
    """Return the module of a generated source; it is made once, by the first thread that asks.

    Its text is never read from a file: what is kept on disk is machine code (`vertexrt.cache`).
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:24]
    name = f"vertexrt_generated_{digest}"
    with _loading:
        found = sys.modules.get(name)
        if found is None:
            found = ModuleType(name)
            file = f"<{name}>"
            # So that errors of the compiler show lines.
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            exec(compile(source, file, "exec"), found.__dict__)
            sys.modules[name] = found
    return found
