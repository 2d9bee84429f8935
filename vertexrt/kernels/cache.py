"""The files of compiled kernels: named by a hash of what they are made from, and checked.

A file never changes after it has its name, so processes may share the folder. What is not text has
its checksum and what is known about it in `<file>.json` beside it; a file that does not agree with
that is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.errors import DeviceError, message


def key_of(parts: Sequence[str]) -> str:
    """Hash texts to the name of a file; where one ends and the next begins counts."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def write(path: Path, content: bytes) -> None:
    """Give a file its content in one step, whatever other processes do; make its folder.

    Raises: DeviceError, when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DeviceError(
            message(
                "cache",
                f"{path.parent} cannot be written: {error.strerror}",
                "a folder for generated kernels",
                "set VERTEXRT_CACHE to a folder of yours",
            )
        ) from None


def write_checked(path: Path, content: bytes, facts: object) -> None:
    """Write a file, then its checksum and what is known about it.

    Args:
        facts: anything that JSON can hold.
    Raises: DeviceError, when the folder cannot be written.
    """
    write(path, content)
    digest = hashlib.sha256(content).hexdigest()
    write(_notes(path), json.dumps({"sha256": digest, "facts": facts}).encode())


def read_checked(path: Path) -> tuple[bytes, Any] | None:
    """Return the content and facts of a file; None when it is missing or has changed."""
    try:
        content = path.read_bytes()
        notes = json.loads(_notes(path).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(notes, dict) or "facts" not in notes:
        return None
    if notes.get("sha256") != hashlib.sha256(content).hexdigest():
        return None
    return content, notes["facts"]


def _notes(path: Path) -> Path:
    return path.with_name(path.name + ".json")
