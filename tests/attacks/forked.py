"""Run the command line in forked children of a process that has imported and compiled everything.

So a case takes what the command itself takes, and its end, a signal included, is seen from outside.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vertexrt.data.treebank import generate_treebank

LIMIT = 60.0  # seconds that a child may take
CRASHED = 99  # exit code of a child whose main raised


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code, or minus the signal; what it wrote."""

    code: int
    out: str
    err: str

    @property
    def how(self) -> str:
        """Say it in a few words."""
        return f"exit code {self.code}" if self.code >= 0 else signal.Signals(-self.code).name


class Child:
    """A command line that runs in a child.

    Args:
        words: after the program's name.
        folder: where it runs.
        streams: a path for stdout, stderr or both, by number; files that are read back otherwise.
            "" closes it.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, streams: dict[int, str] | None = None
    ) -> None:
        self._files: list[BinaryIO] = [
            os.fdopen(os.memfd_create("output"), "w+b") for _ in range(2)
        ]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._run(words, folder, streams or {}))
        self._handle = os.pidfd_open(self.pid)

    def ended(self, seconds: float) -> bool:
        """Wait for its end at most so long."""
        return bool(select.select([self._handle], [], [], max(seconds, 0.0))[0])

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def finish(self, seconds: float = LIMIT) -> Ended:
        """Wait for the end, or make one after so many seconds."""
        if not self.ended(seconds):
            self.kill()
        _, status = os.waitpid(self.pid, 0)
        os.close(self._handle)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
            file.close()
        return Ended(os.waitstatus_to_exitcode(status), *texts)

    def _run(self, words: Sequence[str], folder: Path, streams: dict[int, str]) -> int:
        """Be the child."""
        from vertexrt.cli.main import main

        try:
            for number, file in enumerate(self._files, 1):
                where = streams.get(number)
                if where == "":
                    os.close(number)
                    continue
                handle = file.fileno() if where is None else os.open(where, os.O_WRONLY)
                os.dup2(handle, number)
            sys.stdout = open(1, "w") if streams.get(1) != "" else None  # noqa: SIM115
            sys.stderr = None
            if streams.get(2) != "":
                sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
            os.chdir(folder)
            return main(list(words))
        except BaseException:  # noqa: BLE001 (to be shown; nothing of the parent may run here)
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            return CRASHED
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.flush()


def run(words: Sequence[str], folder: Path, streams: dict[int, str] | None = None) -> Ended:
    """Run a command line to its end."""
    return Child(words, folder, streams).finish()


def in_process(words: Sequence[str]) -> None:
    """Run a command line in this process, which compiles what children need."""
    from vertexrt.cli.main import main

    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = main(list(words))
    if code:
        raise RuntimeError(f"{' '.join(words)}: exit code {code}, {err.getvalue()}")


def write_trees(folder: Path, sizes: Mapping[str, int]) -> Path:
    """Write a small treebank, so many trees a split; return its folder."""
    folder.mkdir(parents=True)
    for split, text in generate_treebank(0).items():
        lines = text.splitlines(keepends=True)[: sizes[split]]
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder
