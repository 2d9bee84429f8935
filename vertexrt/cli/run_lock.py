"""Let one process at a time work in a run folder.

DIR/run.lock is there while a run is at work; it says which process of which machine that is. What
counts is the system's lock on it (flock), which goes when its owner does, however it ends: a file
that a killed run left is taken over. Where the file system has no such locks, as some network file
systems, the text in the file counts: it is taken over when its process was of this machine and is
gone, and must be removed by hand when it was of another. Two runs that start in the same instant
are not told apart there.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from vertexrt.errors import UsageError
from vertexrt.plain_files import require_plain_file

NAME = "run.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWNER = re.compile(r"process ([1-9][0-9]{0,6}) on (\S{1,255})\n")
LONGEST_TEXT = 512  # bytes


@dataclass(frozen=True, slots=True)
class RunLock:
    """Hold the lock of a run folder until `release`."""

    path: Path
    handle: int

    def release(self) -> None:
        """Remove the file and let others in."""
        self.path.unlink(missing_ok=True)  # before the lock goes: afterwards it may be another's
        os.close(self.handle)


def take(folder: Path, flag: str) -> RunLock:
    """Lock a run folder.

    Args:
        folder: it exists.
        flag: the option that named it, for the error.
    Raises: UsageError, when another process is at work there; OSError, when it cannot be locked.
    """
    path = folder / NAME
    while True:
        handle = os.open(path, _FLAGS, 0o666)
        try:
            require_plain_file(handle, path)
            locked = _flock(handle)
            owner = os.pread(handle, LONGEST_TEXT, 0).decode("utf-8", "replace")
            if locked is False or (locked is None and not _is_gone(owner)):
                raise _in_use(folder, flag, owner, known=locked is False)
            if _is_at(handle, path):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                return RunLock(path, handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner removed it while we waited for it: there is a new one


def _flock(handle: int) -> bool | None:
    """Lock an open file; False when another process has it, None where there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, path: Path) -> bool:
    """Tell whether the open file is still the one of that name."""
    inode = os.fstat(handle).st_ino
    with os.scandir(path.parent) as entries:
        return any(entry.name == path.name and entry.inode() == inode for entry in entries)


def _is_gone(owner: str) -> bool:
    """Tell whether a lock file's text names no process, or one of this machine that has ended."""
    found = _OWNER.fullmatch(owner)
    if found is None or found[2] != socket.gethostname():
        return not owner
    try:
        os.kill(int(found[1]), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:  # it is there, and another user's
        return False
    return False


def _in_use(folder: Path, flag: str, owner: str, *, known: bool) -> UsageError:
    name = owner.strip() if _OWNER.fullmatch(owner) else "another process"
    wait = "Wait for it to end, or give another folder"
    if not known:
        wait += f"; if it has ended, remove {folder / NAME}"
    return UsageError.at(
        flag,
        f"{name} is at work in the run folder {folder}",
        "expected one run in a folder at a time",
        wait,
    )
