"""The flags: defaults, allowed values, and the text of every refusal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import table
from vertexrt import config as module
from vertexrt import errors
from vertexrt.config import FLAGS, Config, config, read
from vertexrt.errors import UsageError, VertexrtError


def test_flags_are_read(tmp_path: Path) -> None:
    cache_dir = Path("~/.cache/vertexrt").expanduser()
    default = Config(check=False, plain=False, cache_dir=cache_dir, threads=None)
    assert read({"HOME": "/home/reader"}) == default
    assert read(dict.fromkeys(FLAGS, "")) == read({})  # an empty value counts as not given
    folder = tmp_path / "new"
    environ = {"VERTEXRT_CHECK": "1", "VERTEXRT_CACHE": str(folder), "VERTEXRT_THREADS": "3"}
    assert read(environ) == Config(check=True, plain=False, cache_dir=folder, threads=3)
    assert not folder.exists()  # reading makes no folder
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert read(environ).cache_dir == tmp_path / "vertexrt"
    environ["VERTEXRT_CACHE"] = "here"  # what is given wins, and is absolute
    assert read(environ).cache_dir == Path.cwd() / "here"


REFUSED = table(__file__, "REFUSED")


@pytest.mark.parametrize(("given", "told"), REFUSED.items())
def test_a_flag_is_refused(given: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "vertexrt").write_text("")
    flag, _, value = given.replace("TMP", str(tmp_path)).partition("=")
    with pytest.raises(UsageError) as caught:
        read({flag: value})
    assert str(caught.value) == f"[config] {told.replace('TMP', str(tmp_path))}"


def test_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERTEXRT_THREADS", "5")
    config.cache_clear()
    try:
        assert config().threads == 5
        monkeypatch.setenv("VERTEXRT_THREADS", "6")
        assert config().threads == 5
    finally:
        monkeypatch.undo()
        config.cache_clear()


NETWORK = """
import os
{first}
import vertexrt as vrt

class F(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={{}})

    def forward(self):
        self.push("y", self.pull("x", shape=()))

{then}
print(vrt.compile(F(), device="reference", threads={threads}))
"""
PINNED = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("environ", "first", "then", "threads", "expected"),
    [
        ({}, "", "", None, ALL),
        ({"OMP_NUM_THREADS": "1,4"}, "", "", None, 1),
        ({"OMP_NUM_THREADS": "1000"}, "", "", None, ALL),
        ({}, "", PINNED, None, 1),
        ({}, "import torch; torch.set_num_threads(1)", "", None, 1),
        ({}, "", "import torch; torch.set_num_threads(1)", None, 1),
        ({"OMP_NUM_THREADS": "1", "VERTEXRT_THREADS": "3"}, PINNED, "", None, 3),
        ({"OMP_NUM_THREADS": "1", "VERTEXRT_THREADS": "3"}, PINNED, "", 2, 2),
    ],
)
def test_threads_are_those_that_the_process_may_use(
    environ: dict[str, str], first: str, then: str, threads: int | None, expected: int
) -> None:
    """Issue 52."""
    if "torch" in first + then:
        pytest.importorskip("torch")
    if PINNED in (first, then) and not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity on this system")
    others = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", *FLAGS)}
    command = [sys.executable, "-c", NETWORK.format(first=first, then=then, threads=threads)]
    ran = subprocess.run(command, env={**others, **environ}, capture_output=True, text=True)
    assert f"threads={expected}, " in ran.stdout, ran.stderr


def test_every_flag_is_documented_and_there_are_at_most_eight() -> None:
    assert len(FLAGS) <= 8
    assert module.__doc__ is not None
    for flag in FLAGS:
        assert flag in module.__doc__


def test_importing_reads_no_environment() -> None:
    environ = {**os.environ, "VERTEXRT_CHECK": "no"}
    subprocess.run([sys.executable, "-c", "import vertexrt.config"], env=environ, check=True)


def test_every_error_is_a_vertexrt_error() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) == 17
    for error in classes:
        assert issubclass(error, VertexrtError)
        assert str(error("text")) == "text"
