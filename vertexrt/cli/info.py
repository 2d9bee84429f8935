"""Say what a report of a mistake should say: `vertexrt info`."""

import os
from argparse import Namespace

import vertexrt
from vertexrt.bench.run import describe
from vertexrt.config import FLAGS, config, usable_threads
from vertexrt.engine.devices import MODULES, module_of


def info(given: Namespace) -> int:
    """Run `vertexrt info`: versions, machine, devices, cache folder and flags; return 0."""
    found = describe(usable_threads(), "cuda")
    flags = [f"{name}={os.environ[name]}" for name in FLAGS if name in os.environ]
    usable = [name for name in MODULES if module_of(name).usable()]
    versions = found["versions"].items()
    lines = {
        "vertexrt": f"{vertexrt.__version__} {found['revision']}".rstrip(),
        "python": f"{found['python']}, {found['system']}",
        "processor": f"{found['processor']}, {found['cores']} cores, {found['threads']} threads",
        "gpu": ", ".join((found["gpu"] or {"none": "none"}).values()),
        "devices": ", ".join(usable),
        "packages": ", ".join(f"{name} {version}" for name, version in versions),
        "blas": ", ".join(found["blas"]),
        "cache": str(config().cache_dir),
        "flags": " ".join(flags) or "none",
    }
    for name, text in lines.items():
        print(f"{name:<10} {text}")
    return 0
