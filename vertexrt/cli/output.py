"""Print what a command says, and keep a process going whose output nobody reads."""

import os
from typing import TextIO

from vertexrt.errors import one_line


def say(text: str, to: TextIO | None = None) -> None:
    """Print lines, on stdout by default. Text of a file does not move a terminal's cursor."""
    print("\n".join(map(one_line, text.split("\n"))), file=to, flush=True)


def discard(number: int) -> None:
    """Send what is still written to an open file nowhere: Python would fail on it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
