"""Compiled code: what names it in the cache, for which users, copies and damage; loaded, freed."""

import ctypes
import gc
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

import vertexrt as vrt
from tests.attacks import cache as attack
from tests.package_source import ROOT
from tests.users import as_root, as_user
from vertexrt.cache import notes
from vertexrt.config import config
from vertexrt.models.tree_lstm import TreeLSTM
from vertexrt.native.fingerprint import parts_of
from vertexrt.native.load import LoadedCode, load


def run(*words: str, **environ: str) -> str:
    """Run Python, and return what it prints; it may warn of nothing."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


COMPILED = """
from typing import NamedTuple
from vertexrt.native.compiled import compiled

SCALE = 2.0
TABLE = (0, 1, 2)

class Pair(NamedTuple):
    first: int
    second: int

def inner(x):
    return x * SCALE

@compiled
def outer(x):
    return inner(x) + TABLE[0]

@compiled
def makes_a_pair(x):
    return Pair(x, 2).first
"""


def printed(name: str, *change: str) -> tuple[str, ...]:
    """Return the fingerprint of one of these functions, in which a text stands for another."""
    module = ModuleType("compiled")
    exec(COMPILED.replace(*change) if change else COMPILED, vars(module))
    found = getattr(module, name)
    return tuple(parts_of(getattr(found, "__wrapped__", found)))


def test_a_fingerprint_covers_code_constants_and_calls() -> None:
    assert printed("outer") == printed("outer")
    fields = "    first: int\n    second: int", "    second: int\n    first: int"
    seen = {
        printed("outer"),
        printed("inner"),
        printed("outer", "SCALE = 2.0", "SCALE = 3.0"),  # of what it calls
        printed("outer", "(0, 1, 2)", "(0, 1, 3)"),
        printed("outer", "x * SCALE", "x / SCALE"),
        printed("makes_a_pair"),
        printed("makes_a_pair", *fields),
    }
    assert len(seen) == 7


FINGERPRINTS = """
from hashlib import sha256
from vertexrt.kernels.cpu import update
from vertexrt.native.fingerprint import parts_of
from vertexrt.scheduler import kinds, rows
for f in rows.number_rows.__wrapped__, kinds.read_vertices.__wrapped__, update.within:
    print(sha256(str(parts_of(f)).encode()).hexdigest())
"""


def test_a_fingerprint_is_that_of_another_process() -> None:
    assert len({run("-c", FINGERPRINTS, PYTHONHASHSEED=seed) for seed in "12"}) == 1


SMALL = """
import numpy as np
from vertexrt.native.compiled import compiled
from vertexrt.native.load import compiled_here

@compiled
def f(x, n: int):
    total = np.zeros(n, np.float32)
    for k in range(n):
        total[k] = x[k] * 2
    return total, n

found, n = f(np.arange(3.0), 3)
assert found.tolist() == [0, 2, 4] and found.dtype == np.float32 and n == 3
print(bool(compiled_here))
"""


# HOME, VERTEXRT_CACHE, and whether it is said that the folder is not used.
@as_root
@pytest.mark.parametrize(
    ("home", "given", "warns"),
    [
        (None, None, False),
        ("/dev/null", None, True),
        ("another", None, True),
        ("another", "mine", False),
        (None, "closed", True),
    ],
)
def test_compiled_functions_are_kept_for_any_user_and_home(
    home: str | None, given: str | None, warns: bool
) -> None:
    """Packages and home folder that cannot be written, as in most containers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        script = folder / "small.py"
        script.write_text(SMALL)
        script.chmod(0o644)
        owners = {"mine": (12345, 0o700), "closed": (12345, 0o500)}
        for path, (owner, bits) in (owners | {"another": (0, 0o755), "tmp": (0, 0o777)}).items():
            (folder / path).mkdir()
            (folder / path).chmod(bits)
            os.chown(folder / path, owner, owner)
        environ = {"TMPDIR": str(folder / "tmp")}
        for variable, value in (("HOME", home), ("VERTEXRT_CACHE", given)):
            if value:
                environ[variable] = str(folder / value)  # a full path stays as it is
        for compiled in ("True", "False"):
            done = as_user(12345, str(script), environ=environ)
            assert (done.returncode, done.stdout) == (0, f"{compiled}\n"), done.stderr
            assert ("CacheWarning: [cache] " in done.stderr) == warns


def test_a_second_process_compiles_nothing() -> None:
    """All that a step takes has a form on disk; a function that has none would be found here."""
    status, (digest, compiled, *_), said = attack.one_training()
    assert status == 0, said
    if compiled != "0":  # all was there, else
        assert attack.one_training()[:2] == (0, [digest, "0"])


def test_a_cache_can_be_copied_to_another_machine_of_the_same_kind(tmp_path: Path) -> None:
    """Neither the folder of the cache nor that of a program is part of a name."""

    def compiles(home: str) -> str:
        folder = tmp_path / home
        folder.mkdir(exist_ok=True)
        (folder / "small.py").write_text(SMALL)
        return run(str(folder / "small.py"), VERTEXRT_CACHE=str(folder / "cache"))

    assert compiles("here") == "True\n"
    (tmp_path / "there").mkdir()
    shutil.copytree(tmp_path / "here" / "cache", tmp_path / "there" / "cache")
    shutil.rmtree(tmp_path / "here")
    assert compiles("there") == "False\n"


def test_damaged_entries_are_made_again() -> None:
    command = ["-m", "tests.attacks", "cache", "--count", "40", "--seed", "1"]
    assert re.search(r"\n40 cases in \d+ s, 0 failed\n$", run(*command))


def test_what_takes_long_to_compile_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    def compile_for(seconds: float) -> str:
        with notes.compiling("what takes long"):
            time.sleep(seconds)
        return capsys.readouterr().err

    long = notes.SECONDS + 0.5
    assert compile_for(long) == "", "nobody asked, and it is no terminal"
    notes.always(True)
    try:
        assert compile_for(0.0) == ""
        said = "vertexrt: compiling what takes long, once on this machine; it is kept in"
        assert compile_for(long) == f"{said} {config().cache_dir}\n"
        assert compile_for(long) == ""
    finally:
        notes.always(False)


def test_the_time_of_compiling_is_counted_once() -> None:
    """The first epoch of a run was 50 times slower than the second: it counted compiling."""
    before, begin = notes.seconds(), time.perf_counter()
    with notes.compiling("all"):
        time.sleep(0.02)
        with notes.compiling("a part"):
            time.sleep(0.02)
    assert 0.04 <= notes.seconds() - before <= time.perf_counter() - begin
    elsewhere: list[float] = []
    thread = threading.Thread(target=lambda: elsewhere.append(notes.seconds()))
    thread.start()
    thread.join()
    assert elsewhere == [0.0]


# Machine code that is loaded: wherever there is memory, and freed.

MODULES = """
import ctypes
import gc
import numpy as np
from vertexrt.native.code import Code, module_of
from vertexrt.native.load import load

def text(k):
    code = Code(f"f{k}", "*x n", "double")
    x, n = code.arguments
    with code.loop(0, n, independent=True) as j:
        x[j] = x[j] * code.const(k + 0.1)
    return module_of([code])

"""
APART = """
load(text(0), ["f0"], {})
modules = [(f"f{k}", text(k)) for k in range(1, 6)]
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PAGE, APART, NOTHING, PRIVATE = 4096, 3 << 30, 0, 0x4022

def reserve(size):
    return libc.mmap(None, size, NOTHING, PRIVATE, -1, 0)

reserved = [reserve(APART) for _ in range(8)]
for _ in range(60000):  # until no gap is left above
    if reserve(PAGE) < min(reserved):
        break
for start in reserved:
    libc.munmap(start + APART // 2, PAGE)
for k, (name, module) in enumerate(modules, 1):
    code = load(module, [name], {})
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code[name])
    x = np.ones(9)
    function(x.ctypes.data, 9)
    assert (x == k + 0.1).all()
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="of Linux on x86-64"
)
def test_code_and_its_constants_may_not_be_torn_apart() -> None:
    run("-c", MODULES + APART)


MEMORY = """
def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def several(first):
    for k in range(first, first + 60):
        load(text(k), [f"f{k}"], {})

several(0)
before = resident()
several(60)
print((resident() - before) // 60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_compiling_and_loading_took_is_freed() -> None:
    """It was 80 KB for each of these small modules, and 1.3 MB for a network (issue 52)."""
    assert int(run("-c", MODULES + MEMORY)) < 20_000


def test_code_is_freed_with_the_last_network_that_uses_it() -> None:
    """Issue 52."""

    def codes() -> list[LoadedCode]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is LoadedCode]  # others may warn

    before = codes()  # of tests before this one, and held: it may be freed at any time

    def loaded() -> int:
        return len(codes()) - len(before)

    def trained() -> vrt.Network:
        net = vrt.compile(TreeLSTM(vocab=9, embed=3, hidden=3, classes=2), device="cpu", seed=1)
        lists = {"word": [1, 2, -1], "label": [0, 1, 1]}
        graph = vrt.InputGraph.from_children([[], [], [0, 1]], lists)
        net.step(vrt.GraphBatch.from_graphs([graph]), vrt.SGD(0.1))
        return net

    first = trained()  # with what the process keeps
    alone = loaded()
    second = trained()
    assert loaded() == alone  # equal programs are one
    del first
    assert loaded() == alone
    del second
    assert loaded() < alone
    assert trained().parameters


def test_equal_code_of_other_addresses_is_loaded_again() -> None:
    """Issue 52: while the first was alive, the second counted in the memory of the first."""
    text = """
    @count = external global i64
    define i64 @next() {
      %before = load i64, ptr @count
      %now = add i64 %before, 1
      store i64 %now, ptr @count
      ret i64 %now
    }
    """
    counts = [ctypes.c_int64(start) for start in (10, 20)]
    codes = [load(text, ["next"], {"count": ctypes.addressof(each)}) for each in counts]
    for code in codes:
        ctypes.CFUNCTYPE(ctypes.c_int64)(code["next"])()
    assert [each.value for each in counts] == [11, 21]
