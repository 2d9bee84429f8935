"""Enter the command line: read the words, run one command, turn errors into exit codes.

Exit codes: 0 done; 1 an error of the data, the device or the numbers; 2 a wrong option or name;
130 after Ctrl-C and 143 after SIGTERM. An error is one line on stderr, without a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import vertexrt
from vertexrt.cli.parser import build, parse
from vertexrt.errors import UsageError, VertexrtError

INTERRUPTED = 130
USAGE = 2
FAILED = 1
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the words after the program's name; those of this process by default.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(words)
    except UsageError as error:
        _complain(str(error))
        return USAGE
    except VertexrtError as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(words: list[str]) -> int:
    try:
        options = parse(words)
    except SystemExit as leave:  # argparse has printed the help
        return leave.code if isinstance(leave.code, int) else USAGE
    if options.version:
        print(f"vertexrt {vertexrt.__version__}")
        return 0
    if options.command is None:
        build()[0].print_help()
        return 0
    _limit_threads(options)
    return _command(options)


def _limit_threads(options: argparse.Namespace) -> None:
    """Bound the threads of BLAS libraries that are loaded from here on."""
    threads = getattr(options, "threads", None)
    if threads is not None:
        for name in THREAD_VARIABLES:
            os.environ[name] = str(threads)


def _command(options: argparse.Namespace) -> int:
    # Imported here: a help text must not wait for NumPy and the compiler.
    if options.command == "train":
        from vertexrt.cli.train import train

        return train(options)
    if options.command == "eval":
        from vertexrt.cli.evaluate import evaluate

        return evaluate(options)
    if options.command == "explain":
        from vertexrt.cli.explain import explain

        return explain(options)
    if options.command == "bench":
        from vertexrt.cli.bench import bench

        return bench(options)
    from vertexrt.cli.data import data

    return data(options)


def _complain(text: str) -> None:
    print(f"vertexrt: {text}", file=sys.stderr)
