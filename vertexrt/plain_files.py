"""Plain files: read whole, and written so that they appear whole or not at all.

Nothing is written through a link that another user put there, and nothing waits for a pipe. What
is written goes to a new file of another name in the same folder, reaches the disk, and is renamed;
then the folder's own entry reaches the disk. A process that is killed in between leaves that file,
`.NAME.XXXXXXXX.tmp` with eight hexadecimal digits: `remove_leftovers` knows it by its name.
"""

import os
import re
import secrets
import stat
from collections.abc import Collection
from pathlib import Path

LONGEST_STEM = 48  # characters of NAME that are kept: with four bytes each it is still a file name
# Nothing is followed or waited for: a link is refused, and a pipe without a reader does not block.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Give a file its content in one step; what was there, a link included, is replaced.

    Args:
        mode: of the file, of which the umask takes away.
    Raises: OSError, also for a pipe or a device such as /dev/null; the file there stays as it was,
        and nothing else is left behind.
    """
    found = stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else stat.S_IFREG
    if found not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
        raise OSError(0, "it is not a plain file", str(path))
    temporary = path.with_name(f".{path.name[:LONGEST_STEM]}.{secrets.token_hex(4)}.tmp")
    handle = os.open(temporary, _NEW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # an interrupt must not leave the file behind either
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_plain(path: Path) -> bytes:
    """Return what a file holds.

    Raises: OSError, also for a folder, a pipe or a device.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        require_plain_file(handle, path)
        return file.read()


def append_durably(path: Path, content: bytes) -> None:
    """Add to the end of a file, and wait until it is on disk.

    Raises: OSError, also when there is a link or anything else that is no plain file.
    """
    handle = os.open(path, _APPEND, 0o666)
    try:
        require_plain_file(handle, path)
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def require_plain_file(handle: int, path: Path) -> None:
    """Raise OSError when an open file is a folder, a pipe or a device."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(0, "it is not a plain file", str(path))


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def leftovers(folder: Path, names: Collection[str]) -> list[Path]:
    """Return what writes of these files left behind in a folder when they were killed."""
    stems = "|".join(re.escape(name[:LONGEST_STEM]) for name in names)
    pattern = re.compile(rf"\.(?:{stems})\.[0-9a-f]{{8}}\.tmp")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
    """Remove them; no other process may be writing these files.

    Raises: OSError.
    """
    for path in leftovers(folder, names):
        path.unlink(missing_ok=True)
