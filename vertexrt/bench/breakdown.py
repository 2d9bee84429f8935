"""`vertexrt bench breakdown`: where the time of a training step goes.

As Cavs' tables of time by kind of work, and figure 10 of VPPS: `host_time.py` on the CPU,
`device_time.py` on a GPU.
"""

from __future__ import annotations

from pathlib import Path

from vertexrt.bench import device_time, host_time
from vertexrt.bench.jobs import Job, JobOptions
from vertexrt.bench.record import make_entry
from vertexrt.bench.run import opened


def run(options: JobOptions, command: list[str], job: Job | None = None) -> Path:
    """Measure, print the table, write the JSON file; return its path.

    Args:
        options: `seconds` are for all batch sizes together.
        job: F and its graphs; by default the options' model on its data.
    """
    with opened("breakdown", options, command, job) as bench:
        part = device_time if bench.device == "cuda" else host_time
        found = [
            make_entry({**key, "variant": name}, microseconds, "us a step", "lower")
            for key, samples in part.measure_steps(bench)
            for name, microseconds in samples.items()
        ]
        bench.keep("", found)
    return bench.path
