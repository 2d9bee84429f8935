"""Run the parts of a breakdown, print their tables, write the JSON file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from vertexrt.bench.breakdown import compile_time, schedule, throughput, time, weight_loads
from vertexrt.bench.breakdown.options import Bench, Options
from vertexrt.bench.jobs import make_job, require_graphs
from vertexrt.bench.run import pinned, recording, say
from vertexrt.bench.text import table
from vertexrt.engine.devices import device_named

PARTS: dict[str, Callable[[Bench], None]] = {
    "time": time.run,
    "schedule": schedule.run,
    "throughput": throughput.run,
    "weights": weight_loads.run,
    "compile": compile_time.run,
}


def run(options: Options, command: list[str]) -> Path:
    """Run what the options name; return the path of the JSON file."""
    device = device_named(options.device)
    job = make_job(options.model, options.data, options.leaves)
    for batch_size in options.batch_sizes:
        require_graphs(job, batch_size)
    kept = asdict(options) | {"name": options.model, "device": device}
    with (
        pinned(options.threads) as threads,
        recording("breakdown", command, kept, threads, device) as (record, path),
    ):
        record.jobs[job.model] = job.description
        say(f"{job.description}; hidden {options.hidden}, {device}, {threads} threads")
        bench = Bench(options, job, device, threads, record)
        for part in options.parts:
            say(f"{part}: measuring")
            before = len(record.entries)
            _part(part, device)(bench)
            print(f"{part}\n{table(record.entries[before:])}\n", flush=True)
            record.write(path)
        for lack in record.missing:
            print(f"not available here: {lack['name']}, because {lack['because']}")
    return path


def _part(part: str, device: str) -> Callable[[Bench], None]:
    if part == "time" and device == "cuda":
        from vertexrt.bench.breakdown.device_time import run as on_device

        return on_device
    return PARTS[part]
