"""Say on what a benchmark ran: processor, cores, versions, revision."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("vertexrt", "numpy", "llvmlite", "scipy", "torch", "dynet38", "cupy", "nvidia-cu")
GPU_FIELDS = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")


def describe(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return what identifies the machine and the software, for the JSON record of a benchmark.

    Args:
        device: "gpu" is described when this is "cuda".
    """
    from threadpoolctl import threadpool_info

    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    return {
        "device": device,
        "gpu": gpu() if device == "cuda" else None,
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {n: installed[n] for n in sorted(installed) if n.startswith(PACKAGES)},
        "blas": sorted(
            f"{entry['internal_api']} {entry['version']}, {entry['num_threads']} threads"
            for entry in threadpool_info()
        ),
        "revision": revision(),
    }


def processor() -> str:
    """Return the name of the processor."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def gpu() -> dict[str, str] | None:
    """Return name, driver and clocks of the first GPU that is seen, None where none is."""
    found = _output("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader")
    return dict(zip(GPU_FIELDS, found.splitlines()[0].split(", "), strict=True)) if found else None


def revision() -> str:
    """Return the commit, with `+changes` when files differ from it; "" outside a checkout."""
    git = ("git", "-C", str(Path(__file__).parent))
    commit = _output(*git, "rev-parse", "--short", "HEAD")
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return commit + ("+changes" if changed else "")


def _output(*words: str) -> str:
    """Return what a program prints, "" where it is not there or fails."""
    if shutil.which(words[0]) is None:
        return ""
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if run.returncode else run.stdout.strip()
