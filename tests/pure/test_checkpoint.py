"""Checkpoints: what comes back, what is refused and how, and that a failed save loses nothing."""

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from tests.messages import table, text_of
from vertexrt.api.checkpoint import load_checkpoint, save_checkpoint
from vertexrt.api.optim import SGD
from vertexrt.errors import CheckpointError, UsageError

Arrays = dict[str, npt.NDArray[Any]]


def parameters() -> Arrays:
    rng = np.random.default_rng(2)
    return {
        "w": rng.standard_normal((4, 3)).astype(np.float32),
        "gain": np.array(2.5),
        "turned": rng.standard_normal((3, 2)).T,
    }


@dataclass
class Net:
    parameters: Arrays = field(default_factory=parameters)


META = {"epoch": 3, "random": {"seed": 1, "step": 70}, "best": 0.1 + 0.2, "note": "caf\u00e9"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, Net(), SGD(0.5, clip_norm=5.0), META)
    return path


def failure(path: Path, content: bytes | None = None) -> str:
    """Return what the error says of a file, whose content may be given."""
    if content is not None:
        path.write_bytes(content)
    return text_of(CheckpointError, lambda: load_checkpoint(path)).replace(str(path), "PATH")


def test_everything_comes_back(saved: Path) -> None:
    found = load_checkpoint(str(saved))
    assert found.parameters.keys() == parameters().keys()
    for name, array in parameters().items():
        np.testing.assert_array_equal(found.parameters[name], array)
        assert found.parameters[name].dtype == array.dtype
        assert found.parameters[name].shape == array.shape
    assert found.meta == META
    assert found.optimizer == SGD(0.5, clip_norm=5.0).describe()
    assert found.optimizer_state == {"steps": 0}


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failed_save_keeps_the_previous_one(
    saved: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    expected = CheckpointError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        save_checkpoint(saved, Net(), meta={"epoch": 4})
    if expected is CheckpointError:
        assert str(caught.value) == (
            f"[save_checkpoint] cannot write {saved} (No space left); a folder that exists, can "
            "be written to and has room; choose another path or free some space."
        )
    assert load_checkpoint(saved).meta == META
    assert os.listdir(saved.parent) == [saved.name]


class Endless(SGD):
    """An optimizer that says of itself what JSON cannot hold."""

    def describe(self) -> dict[str, Any]:
        return {"lr": np.inf}


def test_what_is_saved_can_be_read(tmp_path: Path) -> None:
    net = Net({"none": np.zeros((0, 3)), "axes": np.ones((1,) * 12)})
    meta = {"words": ["x" * 5000, "\ud800", "\0"]}
    save_checkpoint(tmp_path / "last", net, meta=meta)
    found = load_checkpoint(tmp_path / "last")
    assert {array.shape for array in found.parameters.values()} == {(1,) * 12, (0, 3)}
    assert found.meta == meta


# What is given in place of a net, a path and so on -> what the error says.
REFUSED_SAVES = table(__file__, "REFUSED_SAVES")


@pytest.mark.parametrize("code", REFUSED_SAVES)
def test_what_cannot_be_saved_is_refused(tmp_path: Path, code: str) -> None:
    (tmp_path / "file").touch()
    usual: dict[str, Any] = {"path": "last", "net": Net(), "optimizer": SGD(0.5), "meta": {}}
    name, *rest = (usual | eval(f"dict({code})")).values()
    path, text = tmp_path / name, REFUSED_SAVES[code]
    kind = CheckpointError if "cannot write" in text else UsageError
    said = text_of(kind, lambda: save_checkpoint(path, *rest))
    assert said.replace(str(path), "PATH").startswith(f"[save_checkpoint] {text}")
    assert os.listdir(tmp_path) == ["file"]


def test_meta_that_are_too_large_to_be_read_are_refused(tmp_path: Path) -> None:
    meta = {"": "x" * (100 << 20)}
    net, optimizer = Net(), SGD(0.5)
    said = text_of(UsageError, lambda: save_checkpoint(tmp_path / "x", net, optimizer, meta))
    assert said.startswith("[save_checkpoint] meta of 104,857,608 characters, 4 names (")
    assert os.listdir(tmp_path) == []


def test_missing(tmp_path: Path) -> None:
    assert failure(tmp_path / "none") == (
        "[load_checkpoint] cannot read PATH (No such file or directory); a checkpoint file; check "
        "the path."
    )
    assert "cannot read PATH (Is a directory)" in failure(tmp_path)


def test_truncated_anywhere(saved: Path) -> None:
    content = saved.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for size in (header, header + 1, len(content) - 1):
        text = failure(saved, content[:size])
        assert text.startswith(f"[load_checkpoint] PATH is damaged or truncated ({size} bytes; ")
        assert text.endswith("); a whole checkpoint; use an earlier checkpoint or a fresh copy.")
    for size in (0, 5, 8, 100, header - 8):
        assert failure(saved, content[:size]) == (
            f"[load_checkpoint] PATH is not a safetensors file, or only the start of one ({size} "
            "bytes); a file that save_checkpoint wrote; check the path, or use an earlier "
            "checkpoint."
        )


def test_every_changed_byte_is_seen(saved: Path) -> None:
    content = saved.read_bytes()
    for at, byte in enumerate(content):
        failure(saved, content[:at] + bytes([byte ^ 1]) + content[at + 1 :])


def written(saved: Path, **changes: str) -> bytes:
    """Return a file whose metadata are those of a checkpoint, but for some."""
    content = saved.read_bytes()
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    return safetensors.numpy.save({"w": np.zeros(3)}, {**metadata, **changes})


def test_files_that_are_no_checkpoints(saved: Path) -> None:
    for content in (b"not a checkpoint" * 99, b"\x02" + b"\0" * 7 + b"[]"):
        assert "PATH is not a safetensors file" in failure(saved.parent / "x", content)
    for metadata in (None, {"format": "pt"}):
        content = safetensors.numpy.save({"w": np.zeros(3)}, metadata)
        assert failure(saved.parent / "x", content) == (
            "[load_checkpoint] PATH holds tensors that vertexrt did not write; a file that "
            "save_checkpoint wrote; read it with safetensors and hand the arrays to "
            "net.parameters.update."
        )
    assert failure(saved.parent / "x", written(saved, version="9")) == (
        "[load_checkpoint] PATH has the format version 9; version 2; use the version of vertexrt "
        "that wrote it."
    )
    assert "PATH is damaged or truncated" in failure(saved.parent / "x", written(saved, meta="{"))
