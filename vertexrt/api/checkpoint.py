"""Checkpoints: parameters, optimizer state and a note of the caller's, in one safetensors file.

Tensors are called "parameter/NAME", "average/NAME" (of an average of the parameters) and
"optimizer/KEY" (a key of `Optimizer.state`). The metadata
of safetensors is text only, so that it holds JSON: "meta" is the caller's, "optimizer" is
`Optimizer.describe()`, "format" and "version" tell our files from others', "sha256" says that no
bit has changed. A file appears under its name only when it is whole and on disk: an interrupted
save leaves the previous one. What is not finite is neither saved nor loaded.

safetensors (Hugging Face's format: a JSON header, then the bytes of every tensor) says whether a
file is whole. The checksum, among the texts, says that no bit has changed since.
"""

import hashlib
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

from vertexrt.api.json_record import parse_json
from vertexrt.api.optimizer import Optimizer
from vertexrt.errors import CheckpointError, NumericError, UsageError, from_system, one_line
from vertexrt.plain_files import read_plain, write_atomically

FORMAT = "vertexrt-checkpoint"
VERSION = 2  # 1 had no checksum

# What begins the name of a tensor, before a slash, and what that is for people.
_KINDS = {"parameter": "parameter", "average": "average", "optimizer": "optimizer state"}

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}
CHECKSUM = "sha256"
_LENGTH_BYTES = 8  # of the header, little endian, before it


class HasParameters(Protocol):
    """Stand for a network: anything with parameters by name."""

    @property
    def parameters(self) -> Arrays:
        """The arrays by name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Hold what a checkpoint file contains; the arrays are copies.

    Attributes:
        parameters: arrays by the user's name, for `net.parameters.update`.
        optimizer_state: for `Optimizer.load_state`; empty when none was saved.
        optimizer: class and options of the optimizer, as `Optimizer.describe` gave them.
        meta: what the caller of `save_checkpoint` passed; tuples have become lists.
        average: arrays by the user's name, for `average.load_state`; empty when none was saved.
    """

    parameters: dict[str, Array]
    optimizer_state: dict[str, Array]
    optimizer: dict[str, Any]
    meta: dict[str, Any]
    average: dict[str, Array]


def save_checkpoint(
    path: str | os.PathLike[str],
    net: HasParameters,
    optimizer: Optimizer | None = None,
    meta: Mapping[str, Any] | None = None,
    average: HasParameters | None = None,
) -> None:
    """Write a checkpoint; the file at `path` is replaced at once or not at all.

    Args:
        path: of the file; its folder exists.
        net: the network whose parameters are saved.
        optimizer: its state is saved too.
        meta: anything that JSON can hold, such as epoch and random state.
        average: an `ExponentialMovingAverage` of the network, to go on with as well.
    Raises: UsageError, when `meta` cannot be JSON or an array is of a dtype that a checkpoint does
        not hold; NumericError, when a parameter or the optimizer's state is not finite;
        CheckpointError, when the file cannot be written.
    """
    if not hasattr(net, "parameters"):
        got, action = f"a {type(net).__name__} as the network", "write save_checkpoint(path, net)"
        raise UsageError.at("save_checkpoint", got, "the path, then the network", action)
    kinds: dict[str, Arrays] = {
        "parameter": net.parameters,
        "average": {} if average is None else average.parameters,
        "optimizer": {} if optimizer is None else optimizer.state(),
    }
    tensors = {f"{kind}/{n}": array for kind, own in kinds.items() for n, array in own.items()}
    for name, array in tensors.items():
        dtype = np.asarray(array).dtype
        fits = dtype.kind == "f" or name.startswith("optimizer/")
        if not fits or dtype not in DTYPES.values():
            raise UsageError.at(
                "save_checkpoint",
                f"{_spoken(name)} is of dtype {dtype}",
                "float32 or float64, and int64 in an optimizer's state",
                "convert it",
            )
        if not np.isfinite(array).all():
            raise NumericError.at(
                "save_checkpoint",
                f"{_spoken(name)} is not finite",
                "finite numbers; nothing was written",
                "lower the learning rate, or bound the gradient with clip_norm",
            )
    texts = {
        "format": FORMAT,
        "version": str(VERSION),
        "meta": _note("meta", meta or {}),
        "optimizer": _note("the optimizer", {} if optimizer is None else optimizer.describe()),
    }
    try:
        content = write_tensors(tensors, texts)
    except ValueError as error:
        raise UsageError.at(
            "save_checkpoint",
            f"meta of {len(texts['meta']):,} characters, {len(tensors)} names ({error})",
            "what the header of a safetensors file takes, 100 MB, and names that are text",
            "keep less in meta: of words those that are frequent (min_count)",
        ) from error
    with from_system(
        CheckpointError,
        "save_checkpoint",
        f"cannot write {Path(path)}",
        "a folder that exists, can be written to and has room",
        "choose another path or free some space",
    ):
        write_atomically(Path(path), content)


def _note(what: str, noted: Mapping[str, Any]) -> str:
    """Return a note as JSON that `parse_json` reads back."""
    try:
        note = json.dumps(dict(noted), allow_nan=False)
        parse_json(note)  # not too deep
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError.at(
            "save_checkpoint",
            f"{what} cannot be written as JSON ({error})",
            "text, finite numbers, lists and dicts with text keys",
            "convert the values, NumPy numbers with `.item()`",
        ) from error
    return note


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Raises: CheckpointError, when the file is missing, cannot be read, is damaged or truncated, was
        not written by `save_checkpoint`, or holds numbers that are not finite.
    """
    path = Path(path)
    tensors, texts = _read(path, FORMAT, VERSION, "save_checkpoint")
    noted: dict[str, Any] = {}
    for name in ("optimizer", "meta"):
        try:
            noted[name] = parse_json(texts.get(name, "null"))
        except ValueError as error:
            raise _damaged(path, str(error)) from error
        if not isinstance(noted[name], dict):
            raise _damaged(path, f"its {name} is no object of JSON")
    _require_expected(path, tensors)
    found: dict[str, dict[str, Array]] = {kind: {} for kind in _KINDS}
    for name, array in tensors.items():
        kind, _, own = name.partition("/")
        found[kind][own] = array
    return Checkpoint(found["parameter"], found["optimizer"], **noted, average=found["average"])


def read_parameters(path: Path, format: str, version: int, writer: str) -> dict[str, Array]:
    """Read a file of parameters alone, by their names, that `write_tensors` wrote.

    Args:
        format, version: what its texts of these names say.
        writer: what writes such files.
    Raises: CheckpointError, as `load_checkpoint` does.
    """
    tensors, _ = _read(path, format, version, writer)
    _require_expected(path, {f"parameter/{name}": array for name, array in tensors.items()})
    return tensors


def _read(
    path: Path, format: str, version: int, writer: str
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors and texts of a file, no bit of which has changed."""
    try:
        content = read_plain(path)
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        raise _unreadable(
            f"cannot read {path} ({getattr(error, 'strerror', None) or error})",
            "a checkpoint file",
            "check the path",
        ) from error
    texts = read_texts(content)
    if texts is None:
        raise _unreadable(
            f"{path} is not a safetensors file, or only the start of one ({len(content)} bytes)",
            f"a file that {writer} wrote",
            "check the path, or use an earlier checkpoint",
        )
    if texts.get("format") != format:
        raise _unreadable(
            f"{path} holds tensors that vertexrt did not write",
            f"a file that {writer} wrote",
            "read it with safetensors and hand the arrays to net.parameters.update",
        )
    if texts.get("version") != str(version):
        raise _unreadable(
            f"{path} has the format version {one_line(str(texts.get('version'))[:20])}",
            f"version {version}",
            "use the version of vertexrt that wrote it",
        )
    try:
        tensors = read_tensors(content)
    except ValueError as error:
        raise _damaged(path, f"{len(content)} bytes; {error}") from error
    stated = texts.pop(CHECKSUM, None)
    if stated != checksum(tensors, texts):
        raise _damaged(path, f"{len(content)} bytes; its checksum is another")
    return tensors, texts


def _require_expected(path: Path, tensors: Arrays) -> None:
    """Refuse tensors that no checkpoint holds."""
    for name, array in tensors.items():
        kind, slash, _ = name.partition("/")
        if not slash or kind not in _KINDS:
            got = f"a tensor '{one_line(name[:80])}'"
        elif kind != "optimizer" and array.dtype.kind != "f":
            got = f"{_spoken(name)} of dtype {array.dtype}"
        elif not np.isfinite(array).all():
            got = f"{_spoken(name)} that is not finite"
        else:
            continue
        raise _unreadable(
            f"{path} holds {got}",
            "parameters, averages and an optimizer's state, finite numbers",
            "use an earlier checkpoint",
        )


def _spoken(name: str) -> str:
    """Return what a tensor of a checkpoint is, for people."""
    kind, _, own = name.partition("/")
    return f"the {_KINDS[kind]} '{one_line(own[:80])}'"


def _damaged(path: Path, why: str) -> CheckpointError:
    return _unreadable(
        f"{path} is damaged or truncated ({why})",
        "a whole checkpoint",
        "use an earlier checkpoint or a fresh copy",
    )


def _unreadable(got: str, expected: str, action: str) -> CheckpointError:
    return CheckpointError.at("load_checkpoint", got, expected, action)


def write_tensors(tensors: Arrays, texts: Mapping[str, str]) -> bytes:
    """Return the content of a file.

    Args:
        tensors: of a dtype in `DTYPES`.
        texts: by name.
    Raises: ValueError, when names and texts are too long for a file, or a name is no text.
    """
    stored = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    try:
        return safetensors.numpy.save(stored, {**texts, CHECKSUM: checksum(stored, texts)})
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error


def read_texts(content: bytes) -> dict[str, Any] | None:
    """Return the texts of a file; None when its header is not whole, which even a cut file's is."""
    size = int.from_bytes(content[:_LENGTH_BYTES], "little")
    try:
        header = parse_json(content[_LENGTH_BYTES : _LENGTH_BYTES + size])
    except ValueError:  # a decoding error is one too
        return None
    texts = header.get("__metadata__", {}) if isinstance(header, dict) else None
    return texts if isinstance(texts, dict) else None


def read_tensors(content: bytes) -> dict[str, Array]:
    """Return the tensors of a file, as arrays of their own.

    Raises: ValueError, when the file is damaged or cut off, or holds other dtypes.
    """
    try:
        found: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(one_line(str(error))) from error
    tensors = {}
    for name, entry in found:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        if dtype not in DTYPES:
            raise ValueError(f"{name!r} is of dtype {dtype}, not {', '.join(DTYPES)}")
        tensors[name] = np.frombuffer(entry["data"], DTYPES[dtype]).reshape(shape).copy()
    return tensors


def checksum(tensors: Arrays, texts: Mapping[str, str]) -> str:
    """Return a sha256 over names, dtypes, shapes and bytes, in C order; where each ends counts."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode("utf-8", "replace"))
        digest.update(array.data)
    for name in sorted(texts):
        digest.update(f"{name!r} {texts[name]!r}\n".encode("utf-8", "replace"))
    return digest.hexdigest()
