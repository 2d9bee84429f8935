"""Files are written whole, on disk before they have their name, and through no link."""

import os
import stat
from pathlib import Path

import pytest

from vertexrt.plain_files import append_durably, leftovers, read_plain, write_atomically


def test_a_write_replaces_a_link_and_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "file").symlink_to("other")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "other").read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as /dev/null is not, where its user may
    with pytest.raises(OSError, match="it is not a plain file"):
        write_atomically(tmp_path / "pipe", b"content")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_nothing_is_appended_through_a_link_or_to_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(OSError, match="symbolic links"):
        append_durably(tmp_path / "link", b"new")
    assert (tmp_path / "other").read_text() == "mine"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):  # nobody reads it: opening would block
        append_durably(tmp_path / "pipe", b"new")
    with pytest.raises(OSError, match="not a plain file"):
        read_plain(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a plain file"):
        read_plain(Path("/dev/zero"))


def test_the_order_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is on disk before the name, and the name before the call returns."""
    calls = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def replace(old: Path, new: Path) -> None:
        calls.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "file", b"new")
    append_durably(tmp_path / "file", b" lines")
    assert calls == ["file", "rename", "folder", "file"]
    assert read_plain(tmp_path / "file") == b"new lines"


def test_leftovers_are_ours_only(tmp_path: Path) -> None:
    names = (".last.0123abcd.tmp", ".last.0123abc.tmp", ".other.0123abcd.tmp", "last", "last.tmp")
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in leftovers(tmp_path, ("last", "be.st"))] == [names[0]]


def test_long_names(tmp_path: Path) -> None:
    name = "\u00e9" * 127  # 254 bytes
    write_atomically(tmp_path / name, b"x")
    assert os.listdir(tmp_path) == [name]
