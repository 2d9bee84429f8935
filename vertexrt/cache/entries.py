"""Entries of the cache: files that are checked before anything in them is used.

An entry is named by a hash of all that it is made from. Its file holds the content, a line of facts
in JSON, and a SHA-256 over both and the name, so a file that was cut, changed, or has the name of
another one counts as missing, and is written again. The digest finds damage. Against files
that others would put there stands the folder, which is this user's alone (`folders.py`): what can
write to it can also compute a digest.

A file never changes after it has its name, so processes may share the folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import stat
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertexrt.cache.folders import CacheWarning, folders, is_private
from vertexrt.config import config
from vertexrt.errors import message
from vertexrt.plain_files import write_atomically

MAGIC = b"vertexrt cache entry 1\n"  # the last bytes of a file
DIGEST = hashlib.sha256().digest_size
TEMPORARY = ".tmp"  # how the name of a file ends that is being written
SECONDS_TO_WRITE = 3600.0  # at most
# Nothing but a plain file is opened: a link is not followed, a pipe not waited for.
FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What was kept under a name.

    Attributes:
        content: bytes; they are the first of the file, so it may be loaded as what they are.
        facts: what JSON can hold.
        path: of the file.
    """

    content: bytes
    facts: Any
    path: Path


def key_of(parts: Sequence[str]) -> str:
    """Hash texts to the name of an entry; where one ends and the next begins counts."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def read(kind: str, name: str) -> CacheEntry | None:
    """Return an entry; None when it is missing or damaged.

    Args:
        kind: of entries: each has a folder of its own.
    """
    for folder in folders(kind).read:
        path = folder / name
        found = decode(name, _plain_file(path))
        if found is not None:
            return CacheEntry(*found, path)
    return None


def write(kind: str, name: str, content: bytes, facts: object) -> Path:
    """Keep an entry, if a folder can be written.

    Args:
        facts: anything that JSON can hold.
    Returns: the path where it lies, or would.
    Warns: CacheWarning, when it could not be written.
    """
    return write_file(kind, name, encode(name, content, facts))


def encode(name: str, content: bytes, facts: object) -> bytes:
    """Return the bytes of an entry's file."""
    notes = json.dumps(facts).encode()
    body = content + notes + len(notes).to_bytes(8, "little")
    return body + _digest(name, body) + MAGIC


def decode(name: str, file: bytes) -> tuple[bytes, Any] | None:
    """Return content and facts of an entry's file; None when it is damaged."""
    end = len(file) - len(MAGIC) - DIGEST
    if end < 8 or not file.endswith(MAGIC):
        return None
    body = memoryview(file)[:end]
    if _digest(name, body) != file[end : end + DIGEST]:
        return None
    start = end - 8 - int.from_bytes(body[-8:], "little")
    return bytes(body[:start]), json.loads(bytes(body[start : end - 8]))


def write_file(kind: str, name: str, content: bytes) -> Path:
    """Give a file its content in one step that survives a crash of the machine; see `write`."""
    folder = folders(kind).write
    if folder is None:
        return config().cache_dir / kind / name
    path = folder / name
    try:
        _remove_leftovers(folder)
        if path.is_dir() and not path.is_symlink():  # damage: no entry is a folder, nor a pipe
            shutil.rmtree(path)
        elif not path.is_file():
            path.unlink(missing_ok=True)
        write_atomically(path, content, 0o600)
    except OSError as error:
        text = message(
            "cache",
            f"{folder} cannot be written: {error.strerror}",
            "room for compiled kernels",
            "the next process compiles them anew; make room, or set VERTEXRT_CACHE",
        )
        warnings.warn(text, CacheWarning, stacklevel=2)
    return path


@functools.cache
def _remove_leftovers(folder: Path) -> None:
    """Remove files that a process left half written when it was killed; once a process looks."""
    oldest = time.time() - SECONDS_TO_WRITE
    for path in folder.glob(f"*{TEMPORARY}"):
        with contextlib.suppress(FileNotFoundError):  # another process may remove it as well
            if path.lstat().st_mtime < oldest:
                path.unlink()


def _digest(name: str, body: bytes | memoryview) -> bytes:
    found = hashlib.sha256(name.encode() + b"\n")
    found.update(body)
    return found.digest()


def _plain_file(path: Path) -> bytes:
    """Return the bytes of a plain file of this user; b"" where there is none."""
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, FLAGS)) as file:
            found = os.fstat(file.fileno())
            return file.read() if stat.S_ISREG(found.st_mode) and is_private(found) else b""
    except OSError:
        return b""
