"""Compiled code in the cache: what names it, for which users, copies and damage."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.attacks import cache as attack
from tests.users import as_root, as_user
from vertexrt.cache import notes
from vertexrt.config import config
from vertexrt.native.fingerprint import parts_of

ROOT = Path(__file__).resolve().parents[2]


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
    seen = {
        printed("outer"),
        printed("inner"),
        printed("outer", "SCALE = 2.0", "SCALE = 3.0"),  # of what it calls
        printed("outer", "(0, 1, 2)", "(0, 1, 3)"),
        printed("outer", "x * SCALE", "x / SCALE"),
        printed("makes_a_pair"),
        printed(
            "makes_a_pair", "    first: int\n    second: int", "    second: int\n    first: int"
        ),
    }
    assert len(seen) == 7


def test_a_fingerprint_is_that_of_another_process() -> None:
    code = (
        "from hashlib import sha256;"
        "from vertexrt.scheduler import kinds, rows; from vertexrt.kernels.cpu import update;"
        "from vertexrt.native.fingerprint import parts_of;"
        "all = (rows.number_rows.__wrapped__, kinds.read_vertices.__wrapped__, update.within);"
        "print([sha256(str(parts_of(f)).encode()).hexdigest() for f in all])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


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


@as_root
def test_an_unknown_home_is_no_mistake() -> None:
    """No HOME and no entry in the user database, as in many containers."""
    code = "from vertexrt.config import read; print(read({}).cache_dir)"
    done = as_user(12345, "-c", code, environ={})
    assert done.stdout.strip() == str(Path(tempfile.gettempdir()) / "vertexrt-12345"), done.stderr


def run_small(script: Path, environ: dict[str, str], user: int) -> tuple[bool, str]:
    """Return whether anything was compiled, and what was said."""
    done = as_user(user, str(script), environ=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True", done.stderr


@as_root
@pytest.mark.parametrize(
    ("home", "given"),
    [
        ("none", "unset"),
        ("/nonexistent", "unset"),
        ("/dev/null", "unset"),
        ("of another user", "unset"),
        ("of another user", "writable"),
        ("none", "read-only"),
        ("none", "of another user"),
    ],
)
def test_compiled_functions_are_kept_for_any_user_and_home(home: str, given: str) -> None:
    """Packages and home folder that cannot be written, as in most containers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        script = folder / "small.py"
        script.write_text(SMALL)
        script.chmod(0o644)
        mine, other, closed = folder / "mine", folder / "other", folder / "closed"
        for path, owner, bits in (
            (mine, 12345, 0o700),
            (other, 0, 0o755),
            (closed, 12345, 0o500),
            (folder / "tmp", 0, 0o777),
        ):
            path.mkdir()
            path.chmod(bits)
            os.chown(path, owner, owner)
        environ = {"TMPDIR": str(folder / "tmp")}
        if home != "none":
            environ["HOME"] = str(other) if home == "of another user" else home
        if given != "unset":
            paths = {"writable": mine, "read-only": closed, "of another user": other}
            environ["VERTEXRT_CACHE"] = str(paths[given])
        compiled, said = run_small(script, environ, 12345)
        assert compiled
        assert ("CacheWarning: [cache] " in said) == (
            given in ("read-only", "of another user") or (given == "unset" and home != "none")
        )
        assert not run_small(script, environ, 12345)[0]


def test_a_second_process_compiles_nothing() -> None:
    """All that a step takes has a form on disk; a function that has none would be found here."""
    status, (digest, compiled, *_), said = attack.one_training(None)
    assert status == 0, said
    if compiled != "0":  # all was there, else
        assert attack.one_training(None)[:2] == (0, [digest, "0"])


def test_a_cache_can_be_copied_to_another_machine_of_the_same_kind(tmp_path: Path) -> None:
    """Neither the folder of the cache nor that of a program is part of a name."""

    def compiles(home: str) -> bool:
        folder = tmp_path / home
        folder.mkdir(exist_ok=True)
        (folder / "small.py").write_text(SMALL)
        own = {"VERTEXRT_CACHE": str(folder / "cache")}
        command = [sys.executable, str(folder / "small.py")]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **own}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip() == "True"

    assert compiles("here")
    (tmp_path / "there").mkdir()
    shutil.copytree(tmp_path / "here" / "cache", tmp_path / "there" / "cache")
    shutil.rmtree(tmp_path / "here")
    assert not compiles("there")


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


def test_damaged_entries_are_made_again(tmp_path: Path) -> None:
    command = ["-m", "tests.attacks.cache", "--count", "40", "--seed", "1", "--trainings", "0"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("cache: 40 damaged entries, 0 wrong")


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
