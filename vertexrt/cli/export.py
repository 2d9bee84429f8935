"""A trained model in a folder of the shape that the Hugging Face Hub has: written, and read back.

DIR/model.safetensors   the parameters by name
DIR/config.json         what a checkpoint of the run says: options, position, data; the library
DIR/vocabularies.json   words by pull, in the order of their numbers
DIR/FILE.py             of a model of the user
DIR/README.md           the card, which is not read back

No path of the machine that wrote it is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import vertexrt as vrt
from vertexrt.api.checkpoint import read_parameters, write_tensors
from vertexrt.api.json_record import JsonRecord, parse_json
from vertexrt.cli import run_state
from vertexrt.cli.measures import shown
from vertexrt.cli.options import CONFIG_NAME
from vertexrt.cli.output import say
from vertexrt.cli.run_folder import RunFolder, find_checkpoint
from vertexrt.cli.run_options import RunOptions, with_model
from vertexrt.cli.run_state import StoredRun
from vertexrt.cli.tasks import TASKS
from vertexrt.data import catalogue
from vertexrt.errors import CheckpointError, UsageError, one_line
from vertexrt.models.catalogue import is_own
from vertexrt.plain_files import read_plain, write_atomically

MODEL = "model.safetensors"
VOCABULARIES = "vocabularies.json"
CARD = "README.md"
LIBRARY = "vertexrt"
WRITER = "`vertexrt export`"
FORMAT, VERSION = "vertexrt-parameters", 1
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
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
    if not is_own(stored.options.model):
        return stored
    path, _, title = stored.options.model.rpartition(":")
    model = f"{folder.resolve() / Path(path).name}:{title}"
    return replace(stored, options=replace(stored.options, model=model))


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


def export(given: argparse.Namespace) -> int:
    """Run `vertexrt export`: write the best checkpoint with all that loading it takes; return 0.

    Raises: UsageError, when there is no such run, the folder is not empty or cannot be written, or
        it cannot be pushed; CheckpointError, when the checkpoint or the model's file is damaged or
        missing.
    """
    push = given.push
    if push is not None and REPOSITORY.fullmatch(push) is None:
        got = f"'{push}'" if push.isprintable() else ascii(push)
        raise UsageError.at("--push", got, "expected OWNER/NAME", "Correct it")
    if push is not None and find_spec("huggingface_hub") is None:
        got = "huggingface_hub is not installed"
        action = "Get it with: pip install 'vertexrt[hub]'"
        raise UsageError.at("--push", got, "expected it, to reach the Hugging Face Hub", action)
    stored = run_state.load(find_checkpoint(given.run))
    stored = replace(stored, options=with_model(stored.options, given))
    files = {CARD: _card(stored, given.out).encode(), **files_of(stored)}
    out = Path(given.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            got = f"the folder {out} is not empty"
            raise UsageError.at("OUT", got, "expected a new or empty folder", "Give another one")
        for name, content in files.items():
            write_atomically(out / name, content)
    except OSError as error:
        got = f"{out} cannot be written ({error.strerror or error})"
        raise UsageError.at("OUT", got, "expected a folder", "Give another one") from error
    say(f"{stored.options.title} of {stored.path}: {out}")
    say(f"its card is {out / CARD}: say there which license it has")
    if push is not None:
        _push(out, push)
        say(f"pushed to {push}; where it is new it is private")
    return 0


def _push(folder: Path, name: str) -> None:
    """Upload a folder; a repository that is not there is made, a private one."""
    # Optional, so that it is imported where it is asked for. httpx is what it speaks through.
    hub, httpx = import_module("huggingface_hub"), import_module("httpx")
    try:
        hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=str(folder))
    except (OSError, httpx.HTTPError) as error:
        got = f"{name} was not reached ({error}); {folder} is written"
        text = ("expected a network, and leave to write there", "Log in with `hf auth login`")
        raise UsageError.at("--push", got, *text) from error


def _card(stored: StoredRun, out: str) -> str:
    """Return the model card: a header that the Hub reads, then what was trained, on what, how well.

    Source: huggingface.co/docs/hub/model-cards.
    """
    options = public(stored.options)
    count = sum(array.size for array in stored.judged.values())
    sizes = [
        f"- {split}: {graphs:,} graphs, {vertices:,} vertices"
        for split, (graphs, vertices) in stored.data.splits.items()
    ]
    lines = [
        "---",
        f"library_name: {LIBRARY}",
        *("tags:", f"- {LIBRARY}", f'- "{options.title}"', f"- {options.task}"),
        "# license: name yours here, such as apache-2.0",
        "---",
        *("", f"# {options.title}", ""),
        f"`{options.model}`, {count:,} parameters, trained by vertexrt {vrt.__version__}: "
        f"{TASKS[options.task].text} (`{options.task}`).",
        *("", "## Measured", "", *_measured(stored)),
        *("", "## Data", "", f"`{options.data}` (format `{options.format}`)", "", *sizes),
        *("", "## Use", "", *_use(options, os.path.basename(os.path.realpath(out)))),
    ]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _measured(stored: StoredRun) -> list[str]:
    """Return a line for each split that was evaluated with this checkpoint's parameters."""
    state, names = stored.state, ("loss", *TASKS[stored.options.task].measures)
    lines = [
        f"- {line['split']}: "
        + ", ".join(shown(name, line[name]) for name in names if line.get(name) is not None)
        for line in RunFolder(stored.path.parent).records()
        if line["epoch"] == state.epoch and line["split"] != "train" and not state.batch
    ]
    return lines or ["Nothing was measured of these parameters."]


def _use(options: RunOptions, folder: str) -> list[str]:
    quoted, model, argument = shlex.quote(folder), "", ""
    if is_own(options.model):
        named = f"{folder}/{options.model}"
        model, argument = f" --model {shlex.quote(named)}", f", model={named!r}"
    lines = [
        f"    vertexrt predict {quoted} --data FILE{model}",
        f"    vertexrt eval {quoted} --data FILE{model}",
        "",
        "```python",
        "from vertexrt.hub import load_pretrained",
        "",
        f"model = load_pretrained({folder!r}{argument})",
        'outputs = model.net(model.read("FILE"))',
        "```",
    ]
    if is_own(options.model):
        file = os.path.basename(options.model.rpartition(":")[0])
        lines += ["", f"`{file}` is a program, and each of these runs it: read it first."]
    return lines
