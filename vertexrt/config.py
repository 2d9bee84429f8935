"""The environment flags of vertexrt: read once, validated, at most eight.

An option that changes results is an argument of a function, never a flag.

VERTEXRT_CHECK    0 or 1 (default 0): verify the IR after every pass, and scripts before each run;
                  memory that a run has not written yet holds NaN.
VERTEXRT_CACHE    folder for compiled kernels and downloaded data (default: `vertexrt` inside
                  $XDG_CACHE_HOME, or ~/.cache/vertexrt; where the home folder is not known,
                  `vertexrt-<user>` in the temporary folder). It is made when first written to.
VERTEXRT_PLAIN    0 or 1 (default 0): run the loops of the host as the Python that they are written
                  in, for debugging; hundreds of times slower.
VERTEXRT_THREADS  threads of a network on a CPU, at least 1 (default: as many as the process may
                  use, see `usable_threads`).
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vertexrt.errors import UsageError, nearest

PREFIX = "VERTEXRT_"
FLAGS = ("VERTEXRT_CHECK", "VERTEXRT_CACHE", "VERTEXRT_PLAIN", "VERTEXRT_THREADS")
# Those of BLAS and OpenMP libraries, which read them when they are loaded.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Config(NamedTuple):
    """Hold the validated flags.

    Attributes:
        check: verify the IR after every pass, and scripts before each run; fill memory with NaN.
        plain: run the loops of the host as Python.
        cache_dir: folder for compiled kernels and downloaded data; may not exist yet.
        threads: of a network on a CPU, at least 1; None, where the process decides.
    """

    check: bool
    plain: bool
    cache_dir: Path
    threads: int | None


@cache
def config() -> Config:
    """Return the flags of this process, read from the environment at the first call.

    Raises: UsageError, as `read` does. Tests call `config.cache_clear()` to read again.
    """
    return read(os.environ)


def read(environ: Mapping[str, str]) -> Config:
    """Validate the flags in `environ`; an empty value counts as not given.

    Raises: UsageError, when a value is not allowed or a VERTEXRT_ name is not a flag.
    """
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in FLAGS:
            raise UsageError.at(
                "config",
                f"environment variable {name} is set",
                f"the flags are {', '.join(FLAGS)}",
                "unset it or correct the name." + nearest(name, FLAGS),
            )
    return Config(
        check=_switch(environ, "VERTEXRT_CHECK"),
        plain=_switch(environ, "VERTEXRT_PLAIN"),
        cache_dir=_cache_dir(environ),
        threads=_threads(environ),
    )


def _switch(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "")
    if value not in ("", "0", "1"):
        raise UsageError.at(
            "config", f"{name}={value}", "allowed are 0 and 1", "set one of them or unset it"
        )
    return value == "1"


def _cache_dir(environ: Mapping[str, str]) -> Path:
    given = environ.get("VERTEXRT_CACHE", "")
    shared = environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")
    if given:
        folder = _expand(given, "VERTEXRT_CACHE")
    elif shared:
        folder = _expand(shared, "XDG_CACHE_HOME") / "vertexrt"
    elif os.path.isabs(home):
        folder = Path(home, ".cache", "vertexrt")
    else:  # no HOME, and no entry in the user database: as in many containers
        folder = temporary_cache()
    if os.path.exists(folder) and not os.path.isdir(folder):
        what = f"VERTEXRT_CACHE={given} names" if given else f"the cache folder {folder} is"
        raise UsageError.at(
            "config",
            f"{what} a file",
            "a folder, or a path where one can be made",
            "set VERTEXRT_CACHE to another path",
        )
    return folder


def temporary_cache() -> Path:
    """Return the folder in the temporary folder that takes the place of a cache folder."""
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # nothing can be written anywhere
        folder = os.sep
    return Path(folder, f"vertexrt-{user}")


def _expand(text: str, name: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # pathlib's answer when the home folder is not known
        raise UsageError.at(
            "config", f"{name}={text}", "a path whose home folder is known", "give a full path"
        ) from error


def _threads(environ: Mapping[str, str]) -> int | None:
    value = environ.get("VERTEXRT_THREADS", "")
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and int(value) >= 1):
        raise UsageError.at(
            "config",
            f"VERTEXRT_THREADS={value}",
            "a whole number of at least 1",
            "set one, or unset it to use what the process may",
        )
    return int(value)


def usable_threads() -> int:
    """Return the threads of a network for which no number is given.

    VERTEXRT_THREADS; else the processors that the process may run on, and no more than PyTorch has
    threads, where it is loaded, or than OMP_NUM_THREADS. All are read at each call.
    """
    flag, torch = config().threads, sys.modules.get("torch")
    if flag is not None:
        return flag
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of nested levels
    limit = torch.get_num_threads() if torch else int(named) if named.isdecimal() else 0
    return min(allowed, limit or allowed)


def limit_threads(count: int) -> None:
    """Bound the threads of BLAS and OpenMP libraries that are loaded from here on."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)
