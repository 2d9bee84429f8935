"""The cache: who may use its folder, what counts as an entry, what names a compiled function."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.attacks import cache as attack
from vertexrt.cache import entries, folders, notes
from vertexrt.cache.folders import CacheWarning
from vertexrt.config import config, read
from vertexrt.native.fingerprint import parts_of

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only the superuser can be somebody else"
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a temporary folder of this test's own, and forget which folders were chosen."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    folders.forget()
    yield folder
    folders.forget()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def private(temporary: Path) -> Path:
    return temporary / f"vertexrt-{os.geteuid()}"


def test_folders_and_files_are_private_whatever_the_umask(cache_folder: Path) -> None:
    before = os.umask(0)
    try:
        path = entries.write("kind", "name", b"content", 1)
    finally:
        os.umask(before)
    assert path == cache_folder / "kind" / "name"
    assert [mode(p) for p in (cache_folder, path.parent, path)] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bits", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(
    cache_folder: Path, temporary: Path, bits: int, inside: bool
) -> None:
    path = entries.write("kind", "name", b"planted", None)
    folders.forget()
    refused = path.parent if inside else cache_folder
    refused.chmod(bits)
    with pytest.warns(CacheWarning) as caught:
        assert entries.read("kind", "name") is None
    assert [str(each.message) for each in caught] == [
        f"[cache] {refused} can be written by others (mode {bits:o}); a folder of this user that "
        "no other user can write to, for compiled kernels; set VERTEXRT_CACHE to such a folder; "
        f"they are kept in {private(temporary)} now."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert entries.write("kind", "name", b"ours", None).parent == private(temporary) / "kind"
    found = entries.read("kind", "name")
    assert found is not None
    assert found.content == b"ours"


@as_root
def test_a_folder_of_another_user_is_refused(cache_folder: Path, temporary: Path) -> None:
    entries.write("kind", "name", b"planted", None)
    os.chown(cache_folder, 65534, 65534)
    folders.forget()
    with pytest.warns(CacheWarning, match=f"{cache_folder} belongs to user 65534; a folder"):
        assert entries.read("kind", "name") is None


@as_root
@pytest.mark.parametrize("trap", ["of another user", "a link"])
def test_a_temporary_folder_that_was_laid_out_is_not_used(
    cache_folder: Path, temporary: Path, trap: str
) -> None:
    cache_folder.mkdir()
    cache_folder.chmod(0o777)
    if trap == "a link":
        (temporary / "target").mkdir(mode=0o700)
        private(temporary).symlink_to(temporary / "target")
    else:
        private(temporary).mkdir()
        os.chown(private(temporary), 65534, 65534)
    with pytest.warns(CacheWarning, match="can be written by others"):
        path = entries.write("kind", "name", b"content", None)
    assert path.parents[2] == temporary
    assert path.parents[1].name.startswith("vertexrt-")
    assert path.parents[1] != private(temporary)
    assert mode(path.parents[1]) == 0o700
    found = entries.read("kind", "name")
    assert found is not None
    assert found.content == b"content"


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary.rmdir()
    temporary.write_text("a file")
    monkeypatch.setenv("VERTEXRT_CACHE", str(temporary / "cache"))
    config.cache_clear()
    with pytest.warns(CacheWarning, match="every process compiles them anew now"):
        entries.write("kind", "name", b"content", None)
    assert entries.read("kind", "name") is None
    monkeypatch.undo()
    config.cache_clear()


def test_a_full_disk_is_said_and_stops_nothing(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="cannot be written: No space left on device; room"):
        entries.write("kind", "name", b"content", None)
    assert entries.read("kind", "name") is None
    assert not list((cache_folder / "kind").iterdir())


def test_an_entry_comes_back() -> None:
    for content in (b"", b"\x7fELF" + bytes(1000), entries.MAGIC * 3):
        facts = {"a": [1, "two", None], "b": 0.5}
        file = entries.encode("name", content, facts)
        assert entries.decode("name", file) == (content, facts)
        assert file.startswith(content)


def test_every_changed_byte_and_every_cut_is_seen() -> None:
    file = entries.encode("name", b"content of an entry", {"facts": 1})
    for k in range(len(file)):
        for other in (file[k] ^ 1, file[k] ^ 0x80, 0):
            if other != file[k]:
                assert entries.decode("name", file[:k] + bytes([other]) + file[k + 1 :]) is None
        assert entries.decode("name", file[:k]) is None
        assert entries.decode("name", file[k + 1 :]) is None
    assert entries.decode("name", file + b"\0") is None
    assert entries.decode("another", file) is None


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "link": lambda path: (path.rename(path.with_name("moved")), path.symlink_to("moved")),
    "folder": lambda path: (path.unlink(), path.mkdir(), (path / "inside").write_text("")),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "writable by others": lambda path: path.chmod(0o666),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_plain_file_of_ours_is_made_again(cache_folder: Path, damage: str) -> None:
    path = entries.write("kind", "name", b"content", None)
    DAMAGE[damage](path)
    assert entries.read("kind", "name") is None
    entries.write("kind", "name", b"content", None)
    found = entries.read("kind", "name")
    assert found is not None
    assert found.content == b"content"
    assert not path.is_symlink()
    assert not list(path.parent.glob("*.tmp"))


def test_what_a_killed_process_left_half_written_goes(cache_folder: Path) -> None:
    folder = cache_folder / "kind"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    old, new, other = (folder / name for name in ("tmpold.tmp", "tmpnew.tmp", "entry"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, time.time() - 2 * entries.SECONDS_TO_WRITE))
    entries.write("kind", "name", b"content", None)
    assert sorted(folder.iterdir()) == sorted([new, other, folder / "name"])


@as_root
def test_an_unknown_home_is_no_mistake() -> None:
    """No HOME and no entry in the user database, as in many containers."""
    code = "from vertexrt.config import read; print(read({}).cache_dir)"
    done = as_user(12345, "-c", code, environ={})
    assert done.stdout.strip() == str(Path(tempfile.gettempdir()) / "vertexrt-12345"), done.stderr


def test_a_home_that_may_not_be_looked_into_is_no_mistake(tmp_path: Path) -> None:
    assert read({"VERTEXRT_CACHE": "/dev/null/cache"}).cache_dir == Path("/dev/null/cache")


# Compiled functions.

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
        "from vertexrt.scheduler import kinds, rows; from vertexrt.kernels.cpu import sizes;"
        "from vertexrt.native.fingerprint import parts_of;"
        "all = (rows.number_rows.__wrapped__, kinds.read_vertices, sizes.within);"
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


def as_user(user: int, *words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python as a user who may read everything and write what is his; skip where none can."""
    ability = "+dac_read_search"  # the interpreter may lie in a folder of the superuser
    command = ["setpriv", f"--reuid={user}", "--clear-groups"]
    command += [f"--inh-caps={ability}", f"--ambient-caps={ability}"]
    if shutil.which("setpriv") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("setpriv cannot make another user of this one")
    return subprocess.run(
        [*command, sys.executable, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )


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
