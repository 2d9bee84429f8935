"""Which folder compiled code is kept in: one that only this user can write to.

What lies there is executed. So a folder that belongs to another user, or that others may write to,
is neither read nor written: a private one under the temporary folder takes its place, with a
warning. Folders are made with mode 0700, whatever the umask.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vertexrt.config import config, temporary_cache
from vertexrt.errors import message

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class CacheWarning(RuntimeWarning):
    """Compiled code cannot be kept in the folder that was asked for."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where entries of one kind are looked for, and where new ones are written.

    Attributes:
        read: in this order.
        write: None where no folder can be written; nothing is kept then.
        lasting: what is written is there for other processes too.
    """

    read: tuple[Path, ...]
    write: Path | None
    lasting: bool


def folders(kind: str) -> Folders:
    """Return the folders for entries of a kind, such as `cpu`; the cache folder may have changed.

    Warns: CacheWarning, when the cache folder is not private or cannot be written.
    """
    return _folders(config().cache_dir, kind)


def forget() -> None:
    """Look at all folders anew, as a new process does."""
    _folders.cache_clear()
    _own_temporary.cache_clear()


def is_private(found: os.stat_result) -> bool:
    """Tell whether a file or folder is this user's, and no other user may write to it."""
    if os.name != "posix":
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & WRITABLE_BY_OTHERS


@functools.cache
def _folders(root: Path, kind: str) -> Folders:
    read: list[Path] = []
    reason = ""
    candidates: tuple[Callable[[], Path], ...] = (lambda: root, temporary_cache, _own_temporary)
    for find in candidates:
        folder = find() / kind
        fault = make_private(folder)
        if not fault:
            read.append(folder)
            if os.access(folder, os.W_OK | os.X_OK):
                if reason:
                    _warn(reason, f"they are kept in {folder.parent} now")
                return Folders(tuple(read), folder, find is not _own_temporary)
            fault = f"{folder.parent} cannot be written"
        reason = reason or fault
    _warn(reason, "every process compiles them anew now")
    return Folders(tuple(read), None, False)


def _warn(reason: str, instead: str) -> None:
    text = message(
        "cache",
        reason,
        "a folder of this user that no other user can write to, for compiled kernels",
        f"set VERTEXRT_CACHE to such a folder; {instead}",
    )
    warnings.warn(text, CacheWarning, stacklevel=2)


def make_private(folder: Path) -> str:
    """Make a folder, and the one that it is in, for this user alone; return why that cannot be.

    Nothing is made in a folder before it is known whose it is.
    """
    above = folder.parent
    return _make(above) or _fault(above) or _make(folder) or _fault(folder)


def _make(folder: Path) -> str:
    """Make a folder and those above it that are missing; return why it cannot be made."""
    for each in (*reversed(folder.parents), folder):
        try:
            if not os.path.isdir(each):
                os.mkdir(each, 0o700)
        except FileExistsError:
            if not os.path.isdir(each):  # another process may just have made it
                return f"{each} is not a folder"
        except OSError as error:
            return f"{each} cannot be made: {error.strerror}"
    return ""


def _fault(folder: Path) -> str:
    """Return what is wrong with an existing folder; "" when only this user can write to it."""
    try:
        # A link in the temporary folder may be another user's; elsewhere it is as good as a folder.
        found = os.lstat(folder) if folder == temporary_cache() else os.stat(folder)
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is a link"
    if is_private(found):
        return ""
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to user {found.st_uid}"
    return f"{folder} can be written by others (mode {stat.S_IMODE(found.st_mode):o})"


@functools.cache
def _own_temporary() -> Path:
    """Make a folder for this process alone; it goes when the process ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="vertexrt-"))
    except OSError:
        return temporary_cache()  # of which it is known that it cannot be used
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
