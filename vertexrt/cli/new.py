"""Begin a model: `vertexrt new my_model.py` writes one that trains as it stands, with data."""

import json
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from vertexrt.errors import UsageError, from_system

START = Path(__file__).with_name("model_start.py")
GRAPHS, DEEPEST = 400, 4
OPERATIONS = {"not": 1, "and": 2, "or": 2}  # by word, how many children


def new(given: Namespace) -> int:
    """Run `vertexrt new`: write a model and, beside it, data for it; return 0.

    Raises: UsageError, when a file is there already or cannot be written.
    """
    model = Path(given.file)
    data = model.with_suffix(".jsonl")
    if model.suffix != ".py":
        raise UsageError.at("new", f"'{model}'", "expected a name in .py", "Add it")
    text = START.read_text(encoding="utf-8")
    named = {
        "FILE:": f"{shlex.quote(str(model))}:",
        "--data DATA": f"--data {shlex.quote(str(data))}",
    }
    for mark, value in named.items():
        text = text.replace(mark, value)
    rng = np.random.default_rng(0)
    expressions = "".join(json.dumps(_expression(rng)) + "\n" for _ in range(GRAPHS))
    for path, content in ((model, text), (data, expressions)):
        with (
            from_system(
                UsageError,
                "new",
                f"{path} cannot be written",
                "expected a new file in a folder that exists",
                "Give another name",
            ),
            path.open("x", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(content)
    command = f"vertexrt train {named['FILE:']}MyNet {named['--data DATA']}"
    print(f"{model}: a model to change\n{data}: {GRAPHS} graphs for it")
    print(f"train it: {command} --task classification --lr 0.01")
    return 0


def _expression(rng: np.random.Generator) -> dict[str, Any]:
    """Return a random tree of truth values, as a line of JSON has it: children come first."""
    children: list[list[int]] = []
    words: list[str] = []
    values: list[bool] = []

    def add(depth: int) -> int:
        word = str(rng.choice([*OPERATIONS] if depth else ["true", "false"]))
        below = [add(int(rng.integers(depth))) for _ in range(OPERATIONS.get(word, 0))]
        found = [values[child] for child in below]
        meaning = {"not": not all(found), "and": all(found), "or": any(found), "true": True}
        children.append(below)
        words.append(word)
        values.append(meaning.get(word, False))
        return len(words) - 1

    add(DEEPEST)
    labels = ["yes" if value else "no" for value in values]
    return {"children": children, "pulls": {"word": words, "label": labels}}
