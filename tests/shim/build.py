"""Build CUDA source for the CPU: a module of kernels that `cuLaunchKernel`'s stand-in can run.

The runtime (`runtime.cpp`) is one library, loaded once, so that any launch address runs the kernels
of any module. Compiled files are kept in the cache folder as those for a GPU are.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vertexrt.cache import entries
from vertexrt.errors import DeviceError, message
from vertexrt.kernels.cuda.compile import FOLDER, GENERATED, KIND, SOURCE_NAME, first_errors

SHIM = Path(__file__).parent
OPTIONS = (
    "-std=c++20",
    "-shared",
    "-fPIC",
    "-w",
    "-fvisibility=hidden",  # modules have functions of the same names
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",  # its longjmp refuses to change stacks
)
# -O0: tests run them for less time than -O1 would add to compiling them. Nothing in them throws.
KERNEL_OPTIONS = ("-O0", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-fno-rtti")
RUNTIME_OPTIONS = ("-O3",)
# What a source begins with: what it defines, and its first header.
BEGIN = re.compile(r'(?:#define .*\n|//.*\n|\s*\n)*#include "(\w+\.cuh)"')
DEFINED = re.compile(r"#define (\w+) ?(.*)")
FIRST = "first.h"
NO_DEFINES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ShimModule:
    """Kernels for the CPU, and addresses to use in place of those of the driver and of cuBLAS.

    Attributes:
        functions: kernel name -> what `launch` takes as a CUfunction.
        launch: as `cuLaunchKernel` with the parameter in `extra`. It returns 0, or a CUDA error
            after it has printed why: 719 for a deadlock, 716 for a misaligned vector, 700 for a
            write past the dynamic shared memory; 1 and 701 for a launch that a GPU refuses as well.
        gemm32, gemm64: as `cublasSgemm_v2` and `cublasDgemm_v2`; the handle is not looked at.
        memset: as `cuMemsetD8Async`.
    """

    functions: dict[str, int]
    launch: int
    gemm32: int
    gemm64: int
    memset: int

    def seed(self, n: int) -> None:
        """Choose the order of the threads of all later launches; 0 takes them in turn."""
        _runtime().shim_seed(ctypes.c_ulonglong(n))


def available() -> bool:
    """Tell whether there is a C++ compiler."""
    return bool(compiler_command())


def build(source: str, defines: Mapping[str, str] = NO_DEFINES) -> ShimModule:
    """Compile a module and load it, or find it in this process or on disk.

    Args:
        source: CUDA C++; it may include the headers that `compile_cubin` gives.
        defines: macro -> its text.
    Raises: DeviceError, when there is no compiler, or the source does not compile.
    """
    return _build(source, tuple(sorted(defines.items())))


@functools.cache
def _build(source: str, defines: tuple[tuple[str, str], ...]) -> ShimModule:
    runtime = _runtime()
    options = [*KERNEL_OPTIONS, *(f"-D{name}={text}" for name, text in defines)]
    loaded = ctypes.CDLL(str(library(source, options)))
    following, name_of = loaded.shim_next_kernel, loaded.shim_kernel_name
    following.argtypes, following.restype = [ctypes.c_void_p], ctypes.c_void_p
    name_of.argtypes, name_of.restype = [ctypes.c_void_p], ctypes.c_char_p
    functions: dict[str, int] = {}
    kernel = following(None)
    while kernel:
        functions[name_of(kernel).decode()] = kernel
        kernel = following(kernel)

    def address(name: str) -> int:
        return ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value or 0

    return ShimModule(
        functions,
        launch=address("shim_launch"),
        gemm32=address("shim_gemm32"),
        gemm64=address("shim_gemm64"),
        memset=address("shim_memset"),
    )


@functools.cache
def _runtime() -> ctypes.CDLL:
    """Load what all modules share: one, also where the cache folder changes."""
    path = library((SHIM / "runtime.cpp").read_text(), [*RUNTIME_OPTIONS])
    # Global, since modules find what their kernels call in it.
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def library(source: str, options: list[str]) -> Path:
    """Return the path of a shared library made from a source, compiling it if it is new."""
    compiler = compiler_command()
    if not compiler:
        raise DeviceError(
            message(
                "cuda shim",
                "no C++ compiler is found",
                "g++ or c++ on the PATH, or its name in CXX",
                "install one, such as g++",
            )
        )
    headers = [
        p for where in (FOLDER, SHIM) for p in sorted((*where.glob("*.cuh"), *where.glob("*.h")))
    ]
    texts = [text for p in headers for text in (p.name, p.read_text())]
    texts += [text for generated in GENERATED.items() for text in generated]
    options = [*OPTIONS, *options]
    known = [_version(compiler), *options, "", *texts]
    key = entries.key_of([source, *known])
    found = entries.read(KIND, f"{key}.so")
    if found is not None:
        return found.path
    with tempfile.TemporaryDirectory() as scratch:
        written, made = Path(scratch, SOURCE_NAME), Path(scratch, "kernels.so")
        written.write_text(source)
        for name, text in GENERATED.items():
            Path(scratch, name).write_text(text)
        command = [*compiler, *options, f"-I{FOLDER}", f"-I{SHIM}", "-I."]
        command += _first_header(Path(scratch), source, command, known)
        run = _compile([*command, "-x", "c++", SOURCE_NAME, "-o", made.name], scratch)
        if run.returncode:
            failed = entries.write_file(KIND, f"failed_{key}.cu", source.encode())
            raise DeviceError(
                message(
                    "cuda shim",
                    f"a kernel does not compile: {first_errors(run.stderr)}",
                    f"a source that {compiler[0]} takes",
                    f"report this as a bug with {failed}",
                )
            )
        return entries.write(KIND, f"{key}.so", made.read_bytes(), None)


def _compile(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _first_header(scratch: Path, source: str, command: list[str], known: list[str]) -> list[str]:
    """Return options that include the first header of a source as it was compiled once before.

    What the source defines in front of the header is defined by options too, since GCC takes a
    compiled header only where the same is defined.
    """
    begin = BEGIN.match(source)
    if begin is None:
        return []
    defines = [f"-D{name}={text}" for name, text in DEFINED.findall(begin[0])]
    (scratch / FIRST).write_text(f'#include "{begin[1]}"\n')
    key = entries.key_of([begin[1], *defines, *known])
    found = entries.read(KIND, f"{key}.gch")
    if found is None:
        words = [*command, *defines, "-x", "c++-header", FIRST, "-o", "made.gch"]
        if _compile(words, str(scratch)).returncode:
            return []
        path = entries.write(KIND, f"{key}.gch", (scratch / "made.gch").read_bytes(), None)
    else:
        path = found.path
    (scratch / f"{FIRST}.gch").symlink_to(path)
    return [*defines, "-include", FIRST]


@functools.cache
def compiler_command() -> tuple[str, ...]:
    """Return the command of a C++ compiler; () if there is none."""
    for given in (os.environ.get("CXX", ""), "g++", "c++"):
        words = shlex.split(given)
        if words and shutil.which(words[0]):
            return tuple(words)
    return ()


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    run = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return run.stdout
