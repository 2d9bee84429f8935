"""The flags: defaults, allowed values, and the text of every refusal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vertexrt import config as module
from vertexrt import errors
from vertexrt.config import FLAGS, Config, config, read
from vertexrt.errors import UsageError, VertexrtError, message, nearest


def test_defaults() -> None:
    assert read({"HOME": "/home/reader"}) == Config(
        check=False,
        plain=False,
        cache_dir=Path("~/.cache/vertexrt").expanduser(),
        threads=None,
    )


def test_values(tmp_path: Path) -> None:
    environ = {"VERTEXRT_CHECK": "1", "VERTEXRT_CACHE": str(tmp_path), "VERTEXRT_THREADS": "3"}
    assert read(environ) == Config(check=True, plain=False, cache_dir=tmp_path, threads=3)


def test_empty_value_counts_as_not_given() -> None:
    assert read(dict.fromkeys(FLAGS, "")) == read({})


def test_cache_folder_follows_xdg(tmp_path: Path) -> None:
    assert read({"XDG_CACHE_HOME": str(tmp_path)}).cache_dir == tmp_path / "vertexrt"


def test_cache_folder_given_wins_and_is_absolute(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "VERTEXRT_CACHE": "here"}
    assert read(environ).cache_dir == Path.cwd() / "here"


def test_cache_folder_is_not_made_by_reading(tmp_path: Path) -> None:
    read({"VERTEXRT_CACHE": str(tmp_path / "new")})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("value", ["2", "yes", "true", " 1"])
def test_check_refuses(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        read({"VERTEXRT_CHECK": value})
    expected = "allowed are 0 and 1; set one of them or unset it."
    assert str(caught.value) == f"[config] VERTEXRT_CHECK={value}; {expected}"


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "\u0663"])
def test_threads_refuses(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        read({"VERTEXRT_THREADS": value})
    assert str(caught.value) == (
        f"[config] VERTEXRT_THREADS={value}; a whole number of at least 1; "
        "set one, or unset it to use what the process may."
    )


@pytest.mark.parametrize(
    ("flag", "path", "got"),
    [
        ("VERTEXRT_CACHE", "vertexrt", "VERTEXRT_CACHE={0}/vertexrt names a file"),
        ("VERTEXRT_CACHE", os.devnull, f"VERTEXRT_CACHE={os.devnull} names a file"),
        ("XDG_CACHE_HOME", "", "the cache folder {0}/vertexrt is a file"),
    ],
)
def test_cache_folder_that_is_a_file_is_refused(
    tmp_path: Path, flag: str, path: str, got: str
) -> None:
    (tmp_path / "vertexrt").write_text("")
    with pytest.raises(UsageError) as caught:
        read({flag: str(tmp_path / path)})
    assert str(caught.value) == (
        f"[config] {got.format(tmp_path)}; a folder, or a path where one can be made; "
        "set VERTEXRT_CACHE to another path."
    )


def test_cache_folder_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        read({"VERTEXRT_CACHE": "~no-such-user-here/cache"})
    assert str(caught.value) == (
        "[config] VERTEXRT_CACHE=~no-such-user-here/cache; a path whose home folder is known; "
        "give a full path."
    )


def test_unknown_flag_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        read({"VERTEXRT_THREAD": "2"})
    assert str(caught.value).startswith(
        "[config] environment variable VERTEXRT_THREAD is set; the flags are VERTEXRT_CHECK, "
        "VERTEXRT_CACHE, VERTEXRT_PLAIN, VERTEXRT_THREADS; unset it or correct the name. Nearest: "
        "'VERTEXRT_THREADS'"
    )


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


def test_message_form() -> None:
    assert message("gather", "slot 2", "slots 0..1", "raise arity") == (
        "[gather] slot 2; slots 0..1; raise arity."
    )
    assert message("a", "b", "c", "d.").endswith("; d.")


def test_nearest_names() -> None:
    names = ["tree-lstm", "tree-fc", "lstm-lm"]
    assert nearest("tree-lsmt", names).startswith(" Nearest: 'tree-lstm'")
    assert nearest("Tree-FC", names).startswith(" Nearest: 'tree-fc'")
    assert nearest("zzz", names) == ""
    assert nearest("any", []) == ""


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
