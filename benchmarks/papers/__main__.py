"""`python -m benchmarks.papers`: the options, and the run of the parts."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.command import add_list, add_measured, run_command
from benchmarks.papers import compile_time, schedule, throughput, weights
from vertexrt.bench.record import Entry
from vertexrt.bench.run import Bench, opened, say
from vertexrt.cli.options import LARGEST_GRAPH, SIZE, OneOf, Parser, Whole, options_of

PARTS: dict[str, Callable[[Bench], list[Entry]]] = {
    "schedule": schedule.run,
    "throughput": throughput.run,
    "weights": weights.run,
    "compile": compile_time.run,
}


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), run, words)


def run(options: argparse.Namespace, command: list[str]) -> Path:
    """Run the parts; return the path of the JSON file."""
    with opened("papers", options, command) as bench:
        for part in options.parts:
            say(f"{part}: measuring")
            bench.keep(part, PARTS[part](bench))
    return bench.path


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(
        prog="python -m benchmarks.papers", description="Measure what figures of the papers show."
    )
    shared = [row.name for row in options_of("breakdown")]
    add_measured(parser, 20.0, "for each part", shared)
    parts = tuple(PARTS)
    names = f"of {', '.join(parts)}; all by default"
    add_list(parser, "--parts", OneOf(parts), parts, names)
    add_list(parser, "--hidden-sizes", SIZE, (64, 128, 256, 512), "of the part throughput")
    leaves = Whole(2, LARGEST_GRAPH)
    text = "of the trees of the part schedule, powers of 2"
    add_list(parser, "--leaf-counts", leaves, (32, 64, 128, 256, 512, 1024), text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
