"""A trained model in a folder of the shape that the Hugging Face Hub has: written, and read back.

DIR/model.safetensors   the parameters by name
DIR/config.json         what a checkpoint of the run says: options, position, data; the library
DIR/vocabularies.json   words by pull, in the order of their numbers
DIR/FILE.py             of a model of the user
DIR/README.md           the card, which is not read back

No path of the machine that wrote it is in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import vertexrt as vrt
from vertexrt.api.checkpoint import read_parameters
from vertexrt.api.json_record import JsonRecord, parse_json
from vertexrt.api.tensor_file import write_tensors
from vertexrt.cli import run_state
from vertexrt.cli.options import CONFIG_NAME
from vertexrt.cli.run_folder import find_checkpoint
from vertexrt.cli.run_options import RunOptions
from vertexrt.cli.run_state import StoredRun
from vertexrt.data import catalogue
from vertexrt.errors import CheckpointError
from vertexrt.models.catalogue import is_own
from vertexrt.plain_files import read_plain

MODEL = "model.safetensors"
VOCABULARIES = "vocabularies.json"
CARD = "README.md"
LIBRARY = "vertexrt"
WRITER = "`vertexrt export`"
FORMAT, VERSION = "vertexrt-parameters", 1
ACTION = "Export the run again, or fetch the whole folder"


def open_run(run: str) -> StoredRun:
    """Read what `eval` and `predict` are given: an exported folder, a run folder or a checkpoint.

    Raises: UsageError, when nothing is there; CheckpointError, when it is neither, or damaged.
    """
    path = Path(run)
    folder = path.parent if path.name == MODEL else path
    if any((folder / name).is_file() for name in (MODEL, VOCABULARIES)):
        return read(folder)
    return run_state.load(find_checkpoint(run))


def read(folder: Path) -> StoredRun:
    """Read an exported folder.

    Raises: CheckpointError, that names the file that is missing, damaged or of another library.
    """
    fields = _json(folder / CONFIG_NAME)
    if "library_name" not in fields.unread() or fields.text("library_name") != LIBRARY:
        got = "it does not say that the model is of vertexrt"
        raise _not_ours(folder / CONFIG_NAME, got)
    fields.text("library_version")
    words = _json(folder / VOCABULARIES)
    parameters = read_parameters(folder / MODEL, FORMAT, VERSION, WRITER)
    checkpoint = vrt.Checkpoint(parameters, {}, {}, {}, {})
    stored = run_state.checked(folder / MODEL, checkpoint, fields, words)
    return replace(stored, options=_in_folder(stored.options, folder))


def _in_folder(options: RunOptions, folder: Path) -> RunOptions:
    """Return options whose model, where it is the user's, is the file in a folder."""
    if not is_own(options.model):
        return options
    path, _, title = options.model.rpartition(":")
    return replace(options, model=f"{folder.resolve() / Path(path).name}:{title}")


def _json(path: Path) -> JsonRecord:
    """Return what a file of the folder holds."""
    try:
        found = parse_json(read_plain(path))
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise _not_ours(path, got) from error
    return JsonRecord(found, str(path), action=ACTION)


def _not_ours(path: Path, got: str) -> CheckpointError:
    return CheckpointError.at(str(path), got, f"expected what {WRITER} writes", ACTION)


def files_of(stored: StoredRun) -> dict[str, bytes]:
    """Return the files of a folder that `read` reads, by name; the parameters last.

    Raises: CheckpointError, when the file of the user's model cannot be read.
    """
    options, meta = stored.options, dict(stored.checkpoint.meta)
    texts = {"format": FORMAT, "version": str(VERSION)}
    files = {VOCABULARIES: _encoded(meta.pop("vocabularies"))}
    library = {"library_name": LIBRARY, "library_version": vrt.__version__}
    files[CONFIG_NAME] = _encoded({**library, **meta, "options": asdict(public(options))})
    if is_own(options.model):
        source = Path(options.model.rpartition(":")[0])
        try:
            files[source.name] = read_plain(source)
        except OSError as error:
            got = f"the file of the model cannot be read ({error.strerror or error})"
            text = ("expected it where the run was trained", "Put it back, or name it with --model")
            raise CheckpointError.at(str(source), got, *text) from error
    files[MODEL] = write_tensors(stored.judged, texts)
    return files


def public(options: RunOptions) -> RunOptions:
    """Return options without paths: of the model and of data the last part of it, the name."""
    named = any(entry.name == options.data for entry in catalogue())
    reading = {name: v for name, v in options.reading.items() if name not in ("dev", "test")}
    path, colon, title = options.model.rpartition(":")
    return replace(
        options,
        model=f"{Path(path).name}{colon}{title}",
        data=options.data if named else Path(options.data).name,
        reading=reading,
    )


def _encoded(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
