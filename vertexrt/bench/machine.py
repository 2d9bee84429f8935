"""Say on what a benchmark ran: processor, cores, versions, revision."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "vertexrt",
    "numpy",
    "numba",
    "scipy",
    "torch",
    "dynet38",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)


def describe(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return what identifies the machine and the software, for the JSON record of a benchmark.

    Args:
        device: "gpu" is described when this is "cuda".
    """
    return {
        "device": device,
        "gpu": gpu() if device == "cuda" else None,
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
        "blas": blas(),
        "revision": revision(),
    }


def processor() -> str:
    """Return the name of the processor."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def gpu() -> dict[str, str] | None:
    """Return name, driver and clocks of the first GPU that is seen, None where none is."""
    fields = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    values = run.stdout.splitlines()[0].split(", ")
    return dict(zip(fields, values, strict=True))


def blas() -> list[str]:
    """Return the BLAS and OpenMP libraries that are loaded, with their thread counts."""
    from threadpoolctl import threadpool_info

    return sorted(
        f"{entry['internal_api']} {entry['version']}, {entry['num_threads']} threads"
        for entry in threadpool_info()
    )


def revision() -> str:
    """Return the commit, with `+changes` when files differ from it; "" outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()
