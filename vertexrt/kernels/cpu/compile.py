"""Compile LLVM and load it: machine code is kept in the cache, under a hash of its text.

An entry holds an object file as LLVM made it. What it calls outside (BLAS, the libraries here) is
found by name when it is loaded, so it is good for any process on this kind of machine.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import scipy.linalg.cython_blas

from vertexrt.cache import entries
from vertexrt.cache.compiled import COMPILING
from vertexrt.config import config
from vertexrt.kernels.cpu.drivers import drivers
from vertexrt.kernels.cpu.libraries import EXPORTS, library

KIND = "llvm"  # of cache entries

_numbers = itertools.count()
_loaded: dict[str, Any] = {}


@functools.cache
def _machine() -> tuple[Any, tuple[str, ...]]:
    """Return LLVM's view of this processor, and what names it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default", jit=True
    )
    version = ".".join(map(str, llvm.llvm_version_info))
    return machine, (triple, cpu, features, version)


@functools.cache
def _jit() -> Any:
    """Return what loads object files.

    JITLink gives all sections of one a single piece of memory. LLVM's older linker takes memory for
    code and for constants apart, and aborts the process where they lie over 2 GB from each other.
    """
    return llvm.create_lljit_compiler(_machine()[0], use_jit_link=True)


def load(text: str, exports: Sequence[str], imports: Mapping[str, int]) -> dict[str, int]:
    """Compile a module, or find it in the cache, and load it; once a process.

    Args:
        exports: functions whose addresses are returned.
        imports: addresses of functions that it declares.
    """
    machine, named = _machine()
    name = entries.key_of([text, *named])
    with COMPILING:
        if name not in _loaded:
            found = entries.read(KIND, name)
            image = found.content if found else _compiled(machine, text)
            if found is None:
                entries.write(KIND, name, image, {})
            builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
            for symbol, address in imports.items():
                builder.import_symbol(symbol, address)
            for symbol in exports:
                builder.export_symbol(symbol)
            _loaded[name] = builder.link(_jit(), f"vertexrt{next(_numbers)}")
        tracker = _loaded[name]
    return {symbol: tracker[symbol] for symbol in exports}


def _compiled(machine: Any, text: str) -> bytes:
    """Return the object file of a module."""
    module = llvm.parse_assembly(text)
    if config().check:
        module.verify()
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    image: bytes = machine.emit_object(module)
    return image


def _blas(name: str) -> int:
    """Return the address of a function of SciPy's BLAS."""
    capsule = scipy.linalg.cython_blas.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address: int = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return address


def register_size() -> int:
    """Return how many float32 elements a vector register of this processor holds."""
    features = _machine()[1][2]
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4


@functools.cache
def library_of(real: str, size: int = 0) -> dict[str, int]:
    """Return the addresses of what kernels of `float` or `double` call.

    Args:
        size: of vectors, in float32 elements; 0 for this processor's.
    """
    gemm = _blas("sgemm" if real == "float" else "dgemm")
    return load(library(real, size or register_size()), EXPORTS, {"vrt_gemm": gemm})


@functools.cache
def driver(name: str, arguments: str = "") -> Any:
    """Return one of the drivers as a function of Python.

    Args:
        arguments: of the driver, as `arguments_of` has them.
    """
    exports = ("vrt_run", "vrt_follow", "vrt_clock")
    address = load(drivers(), exports, {})[name]
    result = None if arguments else ctypes.c_int64
    kinds: list[Any] = [_Array if word[0] == "*" else ctypes.c_int64 for word in arguments.split()]
    return ctypes.CFUNCTYPE(result, *kinds)(address)


class _Array:
    """A NumPy array as an argument of ctypes; by its address."""

    @classmethod
    def from_param(cls, array: Any) -> Any:
        return ctypes.c_void_p(array.__array_interface__["data"][0])
