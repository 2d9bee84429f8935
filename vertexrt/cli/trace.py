"""Write a timeline of a run's first minibatches: `vertexrt train MODEL --trace FILE`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vertexrt.cli.run_options import RunOptions
from vertexrt.errors import UsageError

if TYPE_CHECKING:
    from vertexrt.api.network import Network
    from vertexrt.engine.trace import Timeline

WARM_UP = 4  # minibatches in which kernels are compiled and memory grows; the last one is recorded
KEPT = 3  # minibatches in the timeline


@dataclass(slots=True)
class TraceFile:
    """Record the first minibatches after the warm-up, and write them to a file."""

    path: Path
    kept: int = 0
    _seen: int = 0
    _timeline: Timeline | None = field(default=None)

    @contextmanager
    def minibatch(self, net: Network) -> Iterator[None]:
        """Surround a step."""
        self._seen += 1
        if not WARM_UP <= self._seen <= WARM_UP + KEPT:
            yield
            return
        with net.trace(self._timeline) as timeline:
            yield
        self._timeline = timeline
        if self._seen == WARM_UP:  # the recording itself was compiled here
            timeline.clear()
        else:
            timeline.write(self.path)
            self.kept += 1

    def report(self) -> str:
        """Say what was written."""
        if self.kept:
            return f"timeline of {self.kept} minibatches: {self.path} (open it in ui.perfetto.dev)"
        return f"no timeline: it starts after {WARM_UP} minibatches, and there were {self._seen}"


def trace_file(given: str | None, options: RunOptions) -> TraceFile | None:
    """Return what `--trace FILE` asks for.

    Raises: UsageError, when the engine has no processors, or the file's folder does not exist.
    """
    if given is None:
        return None
    if options.engine != "persistent":
        raise UsageError.at(
            "--trace",
            f"the engine is {options.engine}, which has no processors to trace",
            "expected the persistent engine",
            "Add --engine persistent",
        )
    path = Path(given)
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError.at(
            "--trace",
            f"{given} cannot be written",
            "expected a plain file in a folder that exists",
            "Make the folder, or name another file",
        )
    return TraceFile(path)
