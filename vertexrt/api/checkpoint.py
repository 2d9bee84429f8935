"""Checkpoints: parameters, optimizer state and a note of the caller's, in one safetensors file.

Tensors are called "parameter/NAME" and "optimizer/KEY" (a key of `Optimizer.state`). The metadata
of safetensors is text only, so that it holds JSON: "meta" is the caller's, "optimizer" is
`Optimizer.describe()`, "format" and "version" tell our files from others'. A file appears under
its name only when it is whole and on disk: an interrupted save leaves the previous one.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from vertexrt.api.optimizer import Optimizer
from vertexrt.errors import CheckpointError, UsageError, message, nearest

FORMAT = "vertexrt-checkpoint"
VERSION = 1

_PARAMETER = "parameter/"
_OPTIMIZER = "optimizer/"

Arrays = Mapping[str, npt.NDArray[Any]]


class HasParameters(Protocol):
    """Stand for a network: anything with parameters by name."""

    @property
    def parameters(self) -> Arrays:
        """The arrays by name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Hold what a checkpoint file contains; the arrays are copies.

    Attributes:
        parameters: arrays by the user's name, for `net.set_parameters`.
        optimizer_state: for `Optimizer.load_state`; empty when none was saved.
        optimizer: class and options of the optimizer, as `Optimizer.describe` gave them.
        meta: what the caller of `save_checkpoint` passed; tuples have become lists.
    """

    parameters: dict[str, npt.NDArray[Any]]
    optimizer_state: dict[str, npt.NDArray[Any]]
    optimizer: dict[str, Any]
    meta: dict[str, Any]


def save_checkpoint(
    path: str | os.PathLike[str],
    net: HasParameters,
    optimizer: Optimizer | None = None,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint; the file at `path` is replaced at once or not at all.

    Args:
        path: of the file; its folder exists.
        net: the network whose parameters are saved.
        optimizer: its state is saved too.
        meta: anything that JSON can hold, such as epoch and random state.
    Raises: UsageError, when `meta` cannot be JSON; CheckpointError, when the file cannot be
        written.
    """
    tensors = {_PARAMETER + name: array for name, array in net.parameters.items()}
    if optimizer is not None:
        tensors.update({_OPTIMIZER + key: array for key, array in optimizer.state.items()})
    try:
        note = json.dumps(dict(meta or {}))
    except (TypeError, ValueError) as error:
        raise UsageError(
            message(
                "save_checkpoint",
                f"meta cannot be written as JSON ({error})",
                "text, numbers, lists and dicts with text keys",
                "convert the values, NumPy numbers with `.item()`",
            )
        ) from error
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "meta": note,
        "optimizer": json.dumps({} if optimizer is None else optimizer.describe()),
    }
    content = safetensors.numpy.save(
        {key: np.asarray(array, order="C") for key, array in tensors.items()}, metadata
    )
    try:
        _replace(Path(path), content)
    except OSError as error:
        raise CheckpointError(
            message(
                "save_checkpoint",
                f"cannot write {Path(path)} ({error.strerror or error})",
                "a folder that exists, can be written to and has room",
                "choose another path or free some space",
            )
        ) from error


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Raises: CheckpointError, when the file is missing, cannot be read, is damaged or truncated, or
        was not written by `save_checkpoint`.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(
            f"cannot read {path} ({error.strerror or error})",
            "a checkpoint file",
            "check the path",
        ) from error
    metadata = _metadata(content)
    if metadata is None:
        raise _unreadable(
            f"{path} is not a safetensors file, or only the start of one ({len(content)} bytes)",
            "a file that save_checkpoint wrote",
            "check the path, or use an earlier checkpoint",
        )
    if metadata.get("format") != FORMAT:
        raise _unreadable(
            f"{path} holds tensors that vertexrt did not write",
            "a file that save_checkpoint wrote",
            "read it with safetensors and hand the arrays to net.set_parameters",
        )
    if metadata.get("version") != str(VERSION):
        raise _unreadable(
            f"{path} has the format version {metadata.get('version')}",
            f"version {VERSION}",
            "use the version of vertexrt that wrote it",
        )
    try:
        tensors = safetensors.numpy.load(content)
        optimizer, meta = json.loads(metadata["optimizer"]), json.loads(metadata["meta"])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise _unreadable(
            f"{path} is damaged or truncated ({len(content)} bytes; {error})",
            "a whole checkpoint",
            "use an earlier checkpoint or a fresh copy",
        ) from error
    return Checkpoint(
        parameters=_named(tensors, _PARAMETER),
        optimizer_state=_named(tensors, _OPTIMIZER),
        optimizer=optimizer,
        meta=meta,
    )


def parameter_differences(found: Arrays, expected: Arrays) -> list[str]:
    """Say how parameters differ in names and shapes from those of a network; [] when they fit.

    Args:
        found: the arrays at hand, of a checkpoint for instance.
        expected: the arrays of the network.
    """
    texts = []
    for name, array in expected.items():
        if name not in found:
            texts.append(f"'{name}' {array.shape} is missing")
        elif found[name].shape != array.shape:
            texts.append(f"'{name}' has the shape {found[name].shape}, not {array.shape}")
    for name in found:
        if name not in expected:
            close = nearest(name, expected).strip().rstrip(".")
            texts.append(f"'{name}' is not a parameter of it" + (f" ({close})" if close else ""))
    return texts


def check_parameters(found: Arrays, expected: Arrays, where: str = "checkpoint") -> None:
    """Compare names and shapes of parameters with those of a network.

    Raises: CheckpointError that lists every difference (the first eight and a count).
    """
    texts = parameter_differences(found, expected)
    if not texts:
        return
    shown = ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")
    raise CheckpointError(
        message(
            where,
            f"the parameters do not fit this network: {shown}",
            "the same names and shapes",
            "build the network with the options that the parameters were saved with",
        )
    )


def _replace(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside `path` and rename it once it is on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:  # after the rename there is nothing left to remove
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself is on disk once the folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _metadata(content: bytes) -> dict[str, Any] | None:
    """Return the metadata of a safetensors file; None when its header is not whole.

    The header is a length of 8 bytes, little endian, and that many bytes of JSON. It comes first,
    so that it still tells what a truncated file was.
    """
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
    except ValueError:  # a decoding error is one too
        return None
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    return metadata if isinstance(metadata, dict) else None


def _named(tensors: Arrays, prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


def _unreadable(got: str, expected: str, action: str) -> CheckpointError:
    return CheckpointError(message("load_checkpoint", got, expected, action))
