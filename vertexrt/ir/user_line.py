"""The line of a user that the package works for: what errors and nodes of a program name."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any, NoReturn

from vertexrt.errors import TraceError

PACKAGE = str(Path(__file__).resolve().parents[1])


def user_line() -> str:
    """Name the nearest line outside the package that is being executed: `file:line: text`."""
    frame: Any = sys._getframe(1)
    models = str(Path(PACKAGE) / "models")
    while frame is not None:
        name = frame.f_code.co_filename
        inside = name.startswith(PACKAGE) and not name.startswith(models)
        if not inside and "site-packages/torch/" not in name:  # a module of PyTorch that was called
            text = linecache.getline(name, frame.f_lineno).strip()
            return f"{Path(name).name}:{frame.f_lineno}: {text}"
        frame = frame.f_back
    return ""


def refuse(where: str, got: str, expected: str, action: str) -> NoReturn:
    """Refuse what is written in the user's line. Raises: TraceError, which names it."""
    raise TraceError.at(where, f"{got} at {user_line()}", expected, action)
