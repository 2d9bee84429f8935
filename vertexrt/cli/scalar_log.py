"""Write the metrics of a run for TensorBoard, too: `vertexrt train --log tensorboard`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vertexrt.errors import UsageError

# The module of a SummaryWriter, and the packages that it needs; the first that is there is taken.
WRITERS = {
    "tensorboardX": ("tensorboardX",),
    "torch.utils.tensorboard": ("torch", "tensorboard"),
}
NOT_SCALARS = ("epoch", "split")


class ScalarLog:
    """Add the lines of metrics.jsonl to event files, as scalars such as `loss/dev`.

    A file is opened with the first line, and a run that is resumed writes a new one; TensorBoard
    reads them as one course.

    Raises: UsageError, when no library is there that writes event files.
    """

    def __init__(self) -> None:
        self._writer: Any = None
        for module, packages in WRITERS.items():
            if all(find_spec(package) for package in packages):
                self._module = module
                return
        raise UsageError.at(
            "--log",
            "no library that writes event files is installed",
            "expected tensorboardX, or torch with tensorboard",
            "Get it with: pip install 'vertexrt[tensorboard]'",
        )

    def add(self, folder: Path, records: Sequence[dict[str, Any]]) -> None:
        """Add lines; they are in the file when this returns.

        Args:
            folder: of the run.
            records: as `Totals.record` makes them; a null is left out.
        """
        if self._writer is None:
            # What a run wrote after its last checkpoint is repeated: TensorBoard drops the first.
            epoch, split = (records[0][name] for name in NOT_SCALARS)
            self._writer = import_module(self._module).SummaryWriter(
                str(folder),
                purge_step=epoch if split == "train" else None,
                filename_suffix=f".{epoch}",  # files of the same second must not be the same one
            )
        for record in records:
            for name, value in record.items():
                if name not in NOT_SCALARS and value is not None:
                    self._writer.add_scalar(f"{name}/{record['split']}", value, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
