"""Compile LLVM and load it: machine code is kept in the cache, under a hash of its text.

An entry holds an object file as LLVM made it. What it calls outside (BLAS, the libraries here) is
found by name when it is loaded, so it is good for any process on this kind of machine.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from vertexrt.cache import entries
from vertexrt.config import config
from vertexrt.locks import hold_at_fork

KIND = "llvm"  # of cache entries
SPEED_LEVEL = 3  # of LLVM's passes
METHOD = 2  # how this module compiles: entries of another one are not used

# Another thread may be compiling; its lock would stay taken in a forked child.
COMPILING = threading.RLock()
hold_at_fork(COMPILING.acquire, COMPILING.release, COMPILING.release)


class LoadedCode(dict[str, int]):
    """Addresses of functions, by name. The code is freed with this, which its users keep."""

    def __init__(self, tracker: Any, exports: Sequence[str]) -> None:
        super().__init__((symbol, tracker[symbol]) for symbol in exports)
        self.tracker = tracker  # LLVM's: it frees the code when it is dropped


_numbers = itertools.count()
_loaded: WeakValueDictionary[Any, LoadedCode] = WeakValueDictionary()  # by name and imports
compiled_here: list[str] = []  # the entries that this process has made


@functools.cache
def machine() -> tuple[Any, tuple[str, ...]]:
    """Return LLVM's view of this processor, and what names it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default", jit=True
    )
    version = f"{'.'.join(map(str, llvm.llvm_version_info))}, level {SPEED_LEVEL}, as of {METHOD}"
    return machine, (triple, cpu, features, version)


@functools.cache
def _jit() -> Any:
    """Return what loads object files.

    JITLink gives all sections of one a single piece of memory. LLVM's older linker takes memory for
    code and for constants apart, and aborts the process where they lie over 2 GB from each other.
    """
    return llvm.create_lljit_compiler(machine()[0], use_jit_link=True)


def load(
    text: str | Callable[[], str],
    exports: Sequence[str],
    imports: Mapping[str, int],
    unroll: bool = True,
    parts: Sequence[str] = (),
) -> LoadedCode:
    """Compile a module, or find it in the cache, and load it; once for all that use it at a time.

    Args:
        text: of the module; or what makes it, where it is not in the cache.
        exports: functions whose addresses are returned.
        imports: addresses of functions that it declares.
        unroll: loops; they are vectorised in any case.
        parts: all that a text is made from that is not given.
    """
    target, named = machine()
    given = [text] if isinstance(text, str) else [*parts]
    name = entries.key_of([*given, *([] if unroll else ["not unrolled"]), *named])
    with COMPILING:
        key = name, tuple(imports.items())
        code = _loaded.get(key)
        if code is None:
            found = entries.read(KIND, name)
            if found is not None:
                image = found.content
            else:
                made = text if isinstance(text, str) else text()
                image = _compiled(target, made, unroll)
                entries.write(KIND, name, image, {})
                compiled_here.append(name)
            builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
            for symbol, address in imports.items():
                builder.import_symbol(symbol, address)
            for symbol in exports:
                builder.export_symbol(symbol)
            tracker = builder.link(_jit(), f"vertexrt{next(_numbers)}")
            code = _loaded[key] = LoadedCode(tracker, exports)
    return code


def _compiled(machine: Any, text: str, unroll: bool) -> bytes:
    """Return the object file of a module."""
    module = llvm.parse_assembly(text)
    if config().check:
        module.verify()
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    options.loop_unrolling = unroll
    passes = llvm.create_pass_builder(machine, options)
    pipeline = passes.getModulePassManager()
    pipeline.run(module, passes)
    # llvmlite's `close` finds another `_dispose` before this one, which frees 70 KB a module.
    NewPassManager._dispose(pipeline)
    pipeline.detach()
    with nullcontext() if unroll else _without_strength_reduction():
        image: bytes = machine.emit_object(module)
    return image


@contextmanager
def _without_strength_reduction() -> Iterator[None]:
    """Leave out a pass of LLVM's that takes a third of what code generation does.

    It looks for the cheapest counters and addresses of a loop. For a kernel of 60 loops in one over
    rows that took 3.3 s of 3.6 s, and kernels run no faster for it (`docs/performance.md`). That is
    an option of the process: other threads that use LLVM have it as long.
    """
    llvm.set_option("vertexrt", "-disable-lsr")
    try:
        yield
    finally:
        llvm.set_option("vertexrt", "-disable-lsr=false")
