"""A command line for every test, in a fresh copy of a folder with data and runs on them.

Runs draw no picture: that takes longer than to train so few trees.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.train.cli_runs import Cli, train, write_trees


@pytest.fixture(autouse=True)
def picture() -> Iterator[None]:
    """Keep the place of the picture, which commands in processes of their own draw as ever."""

    def write(figure: Figure, to: Any, **options: Any) -> None:
        (to.write if hasattr(to, "write") else Path(to).write_bytes)(b"no picture")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", write)
        yield


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write trees, and train on them without an interruption, twice for all tests."""
    folder = tmp_path_factory.mktemp("prepared")
    data = write_trees(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        for out, more in (("run", ()), ("averaged", ("--average", "0.75"))):
            assert train(data, folder / out, "--epochs", "3", "--dropout", "0.2", *more) == 0
    return folder


@pytest.fixture
def bare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Run command lines in this process, in an empty folder of the test."""
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def cli(prepared: Path, bare: Cli) -> Cli:
    """Run them in a folder with data and runs on them."""
    shutil.copytree(prepared, bare.folder, dirs_exist_ok=True)
    return bare
