"""The one way from CUDA source to machine code: NVRTC, called through ctypes, and a cache on disk.

It needs no device and no driver, so tests compile what a GPU will run. CuPy is not used here: its
call of the compiler does not give the log of ptxas, which says what registers a kernel takes.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from vertexrt.cache import entries, notes
from vertexrt.config import config
from vertexrt.errors import DeviceError, NoKernelError, message
from vertexrt.kernels.cuda import instruction, structs

KIND = "cuda"  # of entries in the cache
FOLDER = Path(__file__).parent / "src"  # its *.cuh are what a source may include
GENERATED = {each.HEADER: each.header() for each in (instruction, structs)}  # and these
SOURCE_NAME = "kernels.cu"  # in the messages of the compiler
OPTIONS = (
    "--std=c++17",
    "--fmad=true",  # the rest of fast-math stays off: results agree with the other backends
    "--device-as-default-execution-space",
    "--ptxas-options=-v",
)
NO_DEFINES: Mapping[str, str] = MappingProxyType({})
ERRORS_SHOWN = 3
VERSIONS = (13, 12)  # of CUDA, by major version, the newest first
ANY = 0  # of these


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes: registers and local memory by thread, shared memory by block."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    @property
    def local(self) -> int:
        """Bytes of local memory that it uses, one way or another."""
        return self.stack_bytes + self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one module.

    Attributes:
        content: the ELF file, as the driver loads it.
        path: of its entry in the cache.
        usage: kernel name -> what it takes.
    """

    content: bytes
    path: Path
    usage: dict[str, Usage]


class Spilled(NamedTuple):
    """What of a kernel does not fit in registers.

    Attributes:
        bytes: of a thread, on its stack or stored to it, whichever is more; 0 where all fit.
        text: of an error, since it would run, but perhaps many times slower; '' where all fit.
    """

    bytes: int
    text: str


ALL_FIT = Spilled(0, "")


def compile_cubin(
    source: str, arch: str, defines: Mapping[str, str] = NO_DEFINES, cuda: int = ANY
) -> Cubin:
    """Compile a module, or find it in this process or on disk.

    Args:
        source: CUDA C++; it may include the headers of this folder.
        arch: such as "sm_80", "sm_90a", "sm_100".
        defines: macro -> its text.
        cuda: major version of the CUDA that loads the code; drivers refuse that of a newer one.
    Raises: DeviceError, when NVRTC is missing or the source does not compile.
    """
    root = config().cache_dir  # tests change it
    return _compile(source, arch, tuple(sorted(defines.items())), cuda, root)


@functools.cache
def _compile(
    source: str, arch: str, defines: tuple[tuple[str, str], ...], cuda: int, root: Path
) -> Cubin:
    nvrtc = load_nvrtc(cuda)
    headers = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cuh"))} | GENERATED
    options = [f"--gpu-architecture={arch}", *OPTIONS]
    options += [f"--define-macro={name}={text}" for name, text in defines]
    version = "NVRTC {}.{}".format(*nvrtc.version())
    texts = itertools.chain(*headers.items())
    key = entries.key_of([version, source, *options, "", *texts])
    found = entries.read(KIND, f"{key}.cubin")
    if found is not None and found.facts:
        usage = {name: Usage(**use) for name, use in found.facts.items()}
        return Cubin(found.content, found.path, usage)
    with notes.compiling("kernels for the GPU"):
        content, log = nvrtc.compile(source, headers, options)
        if content is not None and not parse_usage(log):  # NVRTC had it in a cache of its own
            content, log = nvrtc.compile(source, headers, [*options, "--no-cache"])
    if content is None:
        failed = entries.write_file(KIND, f"failed_{key}.cu", source.encode())
        raise DeviceError.at(
            "cuda",
            f"a kernel does not compile for {arch}: {first_errors(log)}",
            f"a source that {version} takes",
            f"report this as a bug with {failed}",
        )
    usage = parse_usage(log)
    if _ANGLES.search(source):
        usage = {name: _without_table(use) for name, use in usage.items()}
    facts = {name: asdict(use) for name, use in usage.items()}
    path = entries.write(KIND, f"{key}.cubin", content, facts)
    return Cubin(content, path, usage)


# In a source: CUDA's sine and cosine, which have a table of so many bytes of stack, for angles of
# more than 1e5 alone.
_ANGLES = re.compile(r"\b(sin|cos)\(")
ANGLE_BYTES = 40


def _without_table(use: Usage) -> Usage:
    return replace(use, stack_bytes=0) if use.stack_bytes <= ANGLE_BYTES else use


ONE_BLOCK = "#define VRT_BLOCKS 1"  # in a source: a multiprocessor has one block of it


def compile_in_registers(
    source: str,
    arch: str,
    defines: Mapping[str, str] = NO_DEFINES,
    cuda: int = ANY,
    may_spill: bool = False,
) -> Cubin:
    """Compile a module whose values all stay in registers.

    Left to itself, ptxas trades registers for blocks on a multiprocessor and may spill for it: for
    sm_100 it spilled 8 bytes of a Tree-LSTM's backward kernel to stay at 32 registers. Such a
    module is compiled again for one block.

    Args:
        may_spill: take it also if they do not.
    Raises: DeviceError, as `compile_cubin`, and when values do not fit even so.
    """
    cubin = compile_cubin(source, arch, defines, cuda)
    if any(use.local for use in cubin.usage.values()):
        if ONE_BLOCK not in source:
            cubin = compile_cubin(source, arch, {**defines, "VRT_BLOCKS": "1"}, cuda)
        if not may_spill and (spilled := spilled_of(cubin)).text:
            raise NoKernelError(spilled.text)
    return cubin


def spilled_of(cubin: Cubin) -> Spilled:
    """Say which values do not fit in registers, or are arrays that are indexed at run time."""
    for name, use in cubin.usage.items():
        if use.local:
            text = message(
                "cuda",
                f"kernel {name} has {use.stack_bytes} bytes of stack, spills "
                f"{use.spill_store_bytes} and reloads {use.spill_load_bytes} bytes at "
                f"{use.registers} registers",
                "values in registers: in local memory they take many times as long",
                "take engine='batched' or device='cpu', and report this as a bug with "
                f"{cubin.path}",
            )
            return Spilled(max(use.stack_bytes, use.spill_store_bytes), text)
    return ALL_FIT


_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']*'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_APART = re.compile(r"Function properties for _Z\d*apart\S*\n.*?" + _STACK.pattern)
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_usage(log: str) -> dict[str, Usage]:
    """Read what `ptxas -v` says: kernel name -> usage.

    A function that was not inlined is reported inside the part of a kernel; its stack and spills
    count as the kernel's. Where sides of the path are functions of their own (`apart` of
    script_loop.cuh), it is the one of them that spills most: the kernel's frame has room for all
    that it calls, and others save registers, once a call.
    """
    parts = _ENTRY.split(log)
    usage = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        frames = [[*map(int, found)] for found in _APART.findall(text)]
        if frames:
            frames = [max(frames, key=lambda frame: frame[1])]
        else:
            frames = [[*map(int, found)] for found in _STACK.findall(text)]
        registers = [int(number) for number in _REGISTERS.findall(text)]
        shared = [int(number) for number in _SHARED.findall(text)]
        assert frames, log
        assert registers, log
        stack, stores, loads = (sum(column) for column in zip(*frames, strict=True))
        usage[name] = Usage(max(registers), stack, stores, loads, max(shared, default=0))
    return usage


def first_errors(log: str) -> str:
    """Return the first errors of a compiler's log in one line."""
    lines = [line.strip() for line in log.splitlines() if "error" in line]
    lines = lines or [line.strip() for line in log.splitlines() if line.strip()]
    more = f" (and {len(lines) - ERRORS_SHOWN} more)" if len(lines) > ERRORS_SHOWN else ""
    return " | ".join(lines[:ERRORS_SHOWN]) + more


class Nvrtc:
    """The four calls of NVRTC that are needed. Threads may compile side by side."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """Return major and minor version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(
        self, source: str, headers: Mapping[str, str], options: list[str]
    ) -> tuple[bytes | None, str]:
        """Return machine code, None when the source does not compile, and the log."""
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            SOURCE_NAME.encode(),
            len(headers),
            _texts(list(headers.values())),
            _texts(list(headers)),
        )
        try:
            code = self._library.nvrtcCompileProgram(program, len(options), _texts(options))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if code:
                return None, log or self._error(code)
            return self._read(program, "CUBIN"), log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceError.at(
                "cuda", f"{name}: {self._error(code)}", "success", "reinstall NVRTC"
            )

    def _error(self, code: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(code)
        return text.decode()


def _texts(texts: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])


@functools.cache
def load_nvrtc(cuda: int = ANY) -> Nvrtc:
    """Find NVRTC: the wheels of either major version, what CuPy brings, then the system.

    Args:
        cuda: major version that it has to have.
    Raises: DeviceError, when there is none.
    """
    others = []
    for name in _candidates():
        major = re.search(r"\.so\.(\d+)", name)
        if cuda not in (ANY, int(major[1]) if major else 0):
            others.append(name)
            continue
        try:
            if "/" in name:  # NVRTC 13.0 of the wheels does not look for these beside it
                for path in Path(name).parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(path))
            return Nvrtc(ctypes.CDLL(name))
        except OSError:
            continue
    there = [Path(name).name for name in others if "/" in name]
    if there:
        raise DeviceError.at(
            "cuda",
            f"the compiler for kernels, NVRTC, is there as {', '.join(there)} only",
            f"libnvrtc.so.{cuda}, for CuPy's CUDA {cuda}",
            f"pip install -e '.[cuda{cuda}]' in the checkout, or CuPy for the other version",
        )
    extra = "-e '.[cuda13]' in the checkout, or [cuda12] for an older driver"
    raise DeviceError.at(
        "cuda",
        "the compiler for kernels, NVRTC, is not installed",
        "libnvrtc.so of CUDA " + (str(cuda) if cuda else " or ".join(map(str, VERSIONS))),
        f"pip install -e '.[cuda{cuda}]' in the checkout" if cuda else f"pip install {extra}",
    )


def _candidates() -> Iterator[str]:
    for package, inside in (
        ("nvidia", "cu13/lib"),
        ("nvidia", "cuda_nvrtc/lib"),
        ("cupy", ".data/lib"),
    ):
        found = find_spec(package)
        for folder in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(folder, inside).glob("libnvrtc.so.*"), reverse=True):
                yield str(path)
    for version in VERSIONS:
        yield f"libnvrtc.so.{version}"
