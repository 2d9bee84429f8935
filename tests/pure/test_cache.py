"""The cache: whose folder it may be, and what counts as an entry."""

import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.users import as_root
from vertexrt.cache import entries, folders
from vertexrt.cache.folders import CacheWarning
from vertexrt.config import config, read


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a temporary folder of this test's own, and forget which folders were chosen."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    folders.forget()
    yield folder
    folders.forget()


def write(content: bytes = b"content") -> Path:
    return entries.write("kind", "name", content, None)


def read_back() -> bytes | None:
    found = entries.read("kind", "name")
    return None if found is None else found.content


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def private(temporary: Path) -> Path:
    return temporary / f"vertexrt-{os.geteuid()}"


def test_folders_and_files_are_private_whatever_the_umask(cache_folder: Path) -> None:
    before = os.umask(0)
    try:
        path = write()
    finally:
        os.umask(before)
    assert path == cache_folder / "kind" / "name"
    assert [mode(p) for p in (cache_folder, path.parent, path)] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bits", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(
    cache_folder: Path, temporary: Path, bits: int, inside: bool
) -> None:
    path = write(b"planted")
    folders.forget()
    refused = path.parent if inside else cache_folder
    refused.chmod(bits)
    with pytest.warns(CacheWarning) as caught:
        assert read_back() is None
    assert [str(each.message) for each in caught] == [
        f"[cache] {refused} can be written by others (mode {bits:o}); a folder of this user that "
        "no other user can write to, for compiled kernels; set VERTEXRT_CACHE to such a folder; "
        f"they are kept in {private(temporary)} now."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert write(b"ours").parent == private(temporary) / "kind"
    assert read_back() == b"ours"


@as_root
def test_a_folder_of_another_user_is_refused(cache_folder: Path, temporary: Path) -> None:
    write(b"planted")
    os.chown(cache_folder, 65534, 65534)
    folders.forget()
    with pytest.warns(CacheWarning, match=f"{cache_folder} belongs to user 65534; a folder"):
        assert read_back() is None


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
        path = write()
    if trap == "a link":
        assert not list((temporary / "target").iterdir())
    assert path.parents[2] == temporary
    assert path.parents[1].name.startswith("vertexrt-")
    assert path.parents[1] != private(temporary)
    assert mode(path.parents[1]) == 0o700
    assert read_back() == b"content"


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary.rmdir()
    temporary.write_text("a file")
    monkeypatch.setenv("VERTEXRT_CACHE", str(temporary / "cache"))
    config.cache_clear()
    with pytest.warns(CacheWarning, match="every process compiles them anew now"):
        write()
    assert read_back() is None
    monkeypatch.undo()
    config.cache_clear()


def test_a_full_disk_is_said_and_stops_nothing(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="cannot be written: No space left on device; room"):
        write()
    assert read_back() is None
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
    "empty": 'path.write_bytes(b"")',
    "link": 'path.rename(path.with_name("moved")), path.symlink_to("moved")',
    "folder": 'path.unlink(), path.mkdir(), (path / "inside").write_text("")',
    "pipe": "path.unlink(), os.mkfifo(path)",
    "writable by others": "path.chmod(0o666)",
    "gone": "path.unlink()",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_plain_file_of_ours_is_made_again(cache_folder: Path, damage: str) -> None:
    path = write()
    eval(DAMAGE[damage], {"path": path, "os": os})
    assert read_back() is None
    write()
    assert read_back() == b"content"
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
    write()
    assert sorted(folder.iterdir()) == sorted([new, other, folder / "name"])


def test_a_home_that_may_not_be_looked_into_is_no_mistake(tmp_path: Path) -> None:
    assert read({"VERTEXRT_CACHE": "/dev/null/cache"}).cache_dir == Path("/dev/null/cache")


def test_processes_that_make_the_folder_at_once_share_it(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def second(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        raise FileExistsError(path)  # another process has made it in between

    monkeypatch.setattr(os, "mkdir", second)
    folders.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folders.folders("at once").write == cache_folder / "at once"
