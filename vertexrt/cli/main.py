"""Enter the command line: read the words, run one command, turn errors into exit codes.

Exit codes: 0 done; 1 an error of what was read, of the device, the system or the numbers; 2 a wrong
word of the command line: an option, a name, a path where there is nothing; 130 after Ctrl-C and 143
after SIGTERM. An error is one line on stderr, no traceback, except for one in a model's own file.

Nothing heavy is imported before the handlers of signals are there.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from vertexrt.cache import notes
from vertexrt.cli.interrupt import Interrupt, Interrupted, discard, say
from vertexrt.config import limit_threads
from vertexrt.errors import (
    CheckpointError,
    DataError,
    GraphError,
    PullError,
    UsageError,
    VertexrtError,
    message,
    one_line,
)

OF_TEXTS = (UsageError, CheckpointError, DataError, GraphError, PullError)  # may repeat files
MODULES = {
    "runs": "run_folder",
    "predict": "evaluate",
    "export": "evaluate",
    "warm": "train",
    "explain": "train",
}
USAGE = 2
FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the words after the program's name; those of this process by default, which is then
            expected to end with the code.
    """
    with Interrupt(whole_process=argv is None) as interrupt:
        if not _open_streams():
            return FAILED
        code = _checked(sys.argv[1:] if argv is None else list(argv), interrupt)
        try:
            sys.stdout.flush()
        except OSError as error:
            discard(sys.stdout.fileno())
            if code == 0 and not isinstance(error, BrokenPipeError):
                _complain_of(error)  # where code is not 0, what went wrong is said already
            return code or FAILED
        return code


def _checked(words: list[str], interrupt: Interrupt) -> int:
    """Run a command line; say what went wrong."""
    try:
        return _run(words, interrupt)
    except VertexrtError as error:
        _complain(one_line(str(error)) if isinstance(error, OF_TEXTS) else str(error))
        return USAGE if isinstance(error, UsageError) else FAILED
    except (Interrupted, KeyboardInterrupt) as stop:  # the second in a thread
        _complain("interrupted")
        return 128 + getattr(stop, "number", signal.SIGINT)
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        discard(sys.stdout.fileno())
        return FAILED
    except MemoryError:
        text = ("there is not enough memory", "expected sizes that this machine has room for")
        _complain(message("memory", *text, "Take a smaller --hidden, --embed or --batch-size"))
        return FAILED
    except OSError as error:  # what no part of the program expects: a disk that fails, for instance
        _complain_of(error)
        return FAILED


def _run(words: list[str], interrupt: Interrupt) -> int:
    # Imported here, as the command is below: signals are handled by now, and a help text need not
    # wait for NumPy and the compiler.
    from vertexrt.cli.options import build, parse

    try:
        options = parse(words)
    except SystemExit as leave:  # argparse has printed the help
        return leave.code if isinstance(leave.code, int) else USAGE
    if options.version:
        import vertexrt

        print(f"vertexrt {vertexrt.__version__}")
        return 0
    if options.command is None:
        build()[""].print_help()
        return 0
    threads = getattr(options, "threads", None)
    if threads is not None:
        limit_threads(threads)  # of BLAS libraries that are loaded from here on
    name = {"eval": "evaluate"}.get(options.command, options.command)
    module = MODULES.get(name, name)
    command = getattr(importlib.import_module(f"vertexrt.cli.{module}"), name)
    interrupt.started()
    notes.always(not getattr(options, "quiet", False))
    try:
        return int(command(options))
    finally:
        notes.always(False)


def _open_streams() -> bool:
    """Make stdout and stderr such that writing to them cannot fail for what is written.

    Returns: whether there is a stdout to write results to.
    """
    for number in range(3):  # a file that we open must not become our own output
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (it is open as long as the process)
    if sys.stdout is None:
        text = ("it is closed", "expected an open file or a terminal")
        _complain(message("stdout", *text, "Send it to /dev/null where it is not wanted"))
        return False
    if hasattr(sys.stdout, "reconfigure"):  # not where a program has put an object of its own there
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    return True


def _complain_of(error: OSError) -> None:
    where = "output" if error.filename is None else str(error.filename)
    text = ("expected files that can be read and written", "Check the disk, and where output goes")
    _complain(one_line(message(where, error.strerror or str(error), *text)))


def _complain(text: str) -> None:
    try:
        say(f"vertexrt: {text}", to=sys.stderr)
    except OSError:  # there is nowhere to print it; the exit code still says it
        discard(sys.stderr.fileno())
