"""Show how far training is: a bar on a terminal, one line per epoch anywhere else."""

from __future__ import annotations

import sys
from typing import Any, Self

from vertexrt.cli.metrics import Totals
from vertexrt.cli.output import discard, say

BAR = "{desc} {percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class Reporter:
    """Print the lines of a run.

    Args:
        quiet: print neither bars nor lines per epoch.
        silent: print nothing at all: another process does.
    """

    def __init__(self, *, quiet: bool, silent: bool = False) -> None:
        self.quiet = quiet or silent
        self.silent = silent
        self.bars = not self.quiet and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Print a line about the run's course."""
        if not self.quiet:
            self.result(text)

    def result(self, text: str) -> None:
        """Print a line that is shown even when quiet, as long as there is a reader."""
        if self.silent:
            return
        try:
            say(text)
        except BrokenPipeError:  # `| head -1` has what it wanted; the run has its folder
            discard(sys.stdout.fileno())
            self.warn("nobody reads the output any more; training goes on without it")

    def warn(self, text: str) -> None:
        """Print a line on stderr, shown even when quiet."""
        if self.silent:
            return
        say(f"vertexrt: {text}", sys.stderr)

    def bar(self, title: str, graphs: int, done: int) -> Bar:
        """Return a progress bar over the graphs of an epoch, of which `done` are done already."""
        return Bar(title, graphs, done, shown=self.bars)


class Bar:
    """Show a minibatch's loss and graphs/s while an epoch runs; nothing when not `shown`."""

    def __init__(self, title: str, graphs: int, done: int, *, shown: bool) -> None:
        self._tqdm: Any = None
        if shown:
            from tqdm import tqdm

            self._tqdm = tqdm(
                total=graphs,
                initial=done,
                desc=title,
                file=sys.stderr,
                bar_format=BAR,
                leave=False,
                dynamic_ncols=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._tqdm is not None:
            self._tqdm.refresh()  # the last minibatches may have come too fast to be shown
            self._tqdm.close()

    def advance(self, graphs: int, totals: Totals) -> None:
        """Move by `graphs` and show the epoch's mean loss and speed so far."""
        if self._tqdm is not None:
            text = f"loss {totals.value('loss'):.4f}, {totals.graphs_per_s():.0f} graphs/s"
            self._tqdm.set_postfix_str(text, refresh=False)
            self._tqdm.update(graphs)
