"""Write a trained run as a folder for the Hugging Face Hub: `vertexrt export RUN OUT`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import vertexrt as vrt
from vertexrt.cli import run_state
from vertexrt.cli.metrics import shown
from vertexrt.cli.output import say
from vertexrt.cli.pretrained import CARD, LIBRARY, files_of, public
from vertexrt.cli.run_folder import RunFolder, find_checkpoint
from vertexrt.cli.run_options import RunOptions, with_model
from vertexrt.cli.run_state import StoredRun
from vertexrt.cli.tasks import TASKS
from vertexrt.errors import UsageError, one_line
from vertexrt.models.catalogue import is_own
from vertexrt.plain_files import write_atomically

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


def export(given: argparse.Namespace) -> int:
    """Run `vertexrt export`: write the best checkpoint with all that loading it takes; return 0.

    Raises: UsageError, when there is no such run, the folder is not empty or cannot be written, or
        it cannot be pushed; CheckpointError, when the checkpoint or the model's file is damaged or
        missing.
    """
    _require_pushable(given.push)
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
    if given.push is not None:
        _push(out, given.push)
        say(f"pushed to {given.push}; where it is new it is private")
    return 0


def _require_pushable(name: str | None) -> None:
    if name is None:
        return
    if REPOSITORY.fullmatch(name) is None:
        got = f"'{name}'" if name.isprintable() else ascii(name)
        raise UsageError.at("--push", got, "expected OWNER/NAME", "Correct it")
    if find_spec("huggingface_hub") is None:
        got = "huggingface_hub is not installed"
        action = "Get it with: pip install 'vertexrt[hub]'"
        raise UsageError.at("--push", got, "expected it, to reach the Hugging Face Hub", action)


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
        'outputs = model.net.forward(model.read("FILE"), train=False)',
        "```",
    ]
    if is_own(options.model):
        file = os.path.basename(options.model.rpartition(":")[0])
        lines += ["", f"`{file}` is a program, and each of these runs it: read it first."]
    return lines
