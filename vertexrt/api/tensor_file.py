"""Tensors and texts in one safetensors file, with a checksum over all of it.

safetensors (Hugging Face's format: a JSON header, then the bytes of every tensor) says whether
a file is whole. The checksum, among the texts, says that no bit has changed since.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from vertexrt.api.json_record import parse_json
from vertexrt.errors import one_line

Arrays = Mapping[str, npt.NDArray[Any]]

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}
CHECKSUM = "sha256"
_LENGTH_BYTES = 8  # of the header, little endian, before it


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


def read_tensors(content: bytes) -> dict[str, npt.NDArray[Any]]:
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
    """Return a sha256 over names, dtypes, shapes and bytes; where each ends counts."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode("utf-8", "replace"))
        digest.update(array.data)
    for name in sorted(texts):
        digest.update(f"{name!r} {texts[name]!r}\n".encode("utf-8", "replace"))
    return digest.hexdigest()
