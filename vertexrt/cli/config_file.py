"""Take options of a command from a file: TOML, or the config.json of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from vertexrt.api.json_record import parse_json
from vertexrt.errors import UsageError
from vertexrt.plain_files import read_plain

MOST_BITS = 64  # of a whole number: Python writes no more than some thousand digits
EXPECTED = "expected options by their long names: epochs = 3; those of --set in a table [set]"


def words_of(path: Path) -> list[str]:
    """Return the words of a command line that say what a file says.

    Raises: UsageError, when it cannot be read, or holds something else than options.
    """
    words: list[str] = []
    for name, value in _read(path).items():
        if name == "set" and isinstance(value, dict):
            for each, inner in value.items():
                words += ["--set", f"{each}={_text(path, each, inner)}"]
        elif name == "model":
            words.insert(0, _text(path, name, value))
        elif value is True:
            words.append(_flag(name))
        elif value is not None and value is not False:
            words += [_flag(name), _text(path, name, value)]
    return words


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_plain(path).decode()
        found = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # of both parsers the last two
        got = getattr(error, "strerror", None) or str(error)
        raise UsageError.at(str(path), got, EXPECTED, "Correct the file") from error
    if not isinstance(found, dict):
        raise UsageError.at(str(path), f"a {type(found).__name__}", EXPECTED, "Correct the file")
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    long = isinstance(value, int) and value.bit_length() > MOST_BITS
    if long or not isinstance(value, int | float | str):
        got = f"{name} is a {'number of too many digits' if long else type(value).__name__}"
        raise UsageError.at(str(path), got, EXPECTED, "Correct the file")
    return str(value)
