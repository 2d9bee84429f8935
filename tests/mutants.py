"""Measure what the tests detect: put small faults into the package, one at a time, and run tests.

    python -m tests.mutants --record [FILES]      # coverage, one test file at a time
    python -m tests.mutants --count 300 --seed 1 --out before.jsonl

The first records which test runs which line, of Python and (by gcov, on the stand-in for a GPU) of
device code; files that are recorded are skipped, so it goes on where it was stopped. The second
draws mutants and runs the tests that reach each one, first those that are quick for what they run
of its file; it too goes on where it was stopped. Both work on copies of the revision checked out. A
mutant that changes nothing counts as not caught: shares compare, they are no grades.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import contextlib
import functools
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

from tests.package_source import PACKAGE, ROOT
from tests.tokens import DEVICE, device_tokens, folder, python_tokens

COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARED |= {"not in": "in", "is": "is not", "is not": "is"}
COMPUTED = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "*", "<<": ">>", ">>": "<<"}
COMPUTED |= {"&": "|", "|": "&", "+=": "-=", "-=": "+=", "*=": "+="}
JOINED = {"and": "or", "or": "and", "&&": "||", "||": "&&"}
CONSTANT = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?(?=[fu]?(?![\w.]))|[Tt]rue\b|[Ff]alse\b)")
TRUTHS = {"True": "False", "False": "True", "true": "false", "false": "true"}
BOUND = re.compile(r"(?:(?<=\[)|(?<=\[:)|(?<= : )|(?<=range\())[a-z_][\w.]*(?=[\])]| : )")
SWAPPED = re.compile(r"(?<=\w\()([\w.]+), ([\w.]+)(?=[,)])")
DEVICE_CALL = re.compile(r"(?m)^[ ]+(?:asm volatile|[\w:]+(?:<[^;{}()]*>)?)\([^;{}]*\);")
DEVICE_HIDDEN = re.compile(r'(?s)"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|#include[^\n]*')
DROPPED = (ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.AugAssign)
# What decides what the cache holds: such a mutant starts with an empty one.
OF_CACHES = re.compile(r"vertexrt/(cache/|native/|plain_files|kernels/cuda/compile)")
MEMORY_BYTES = 12 << 30
# Writes what gcov needs beside others of its kind, whatever folder is compiled in.
COMPILER = '#!/bin/sh\nexec g++ --coverage -dumpdir "{}/$$." "$@"\n'


class Edit(NamedTuple):
    """Put `new` in place of the characters from `start` to `end`."""

    start: int
    end: int
    new: str


class Mutant(NamedTuple):
    """One fault, in a file of the package, by path below the checkout."""

    number: int
    file: str
    line: int
    what: str
    text: str


def edits(text: str, device: bool) -> dict[str, list[Edit]]:
    """Return all faults that a text can be given, by kind."""
    found: dict[str, list[Edit]] = defaultdict(list)
    hidden: list[tuple[int, int]] = []
    if device:
        hidden += [match.span() for match in DEVICE_HIDDEN.finditer(text)]
    else:
        starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]

        def span(node: Any) -> tuple[int, int]:
            first, last = starts[node.lineno - 1], starts[node.end_lineno - 1]
            return first + node.col_offset, last + node.end_col_offset

        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                (row, column), (end_row, end_column) = token.start, token.end
                hidden.append((starts[row - 1] + column, starts[end_row - 1] + end_column))
        for node in ast.walk(ast.parse(text)):
            types = getattr(node, "annotation", None), getattr(node, "returns", None)
            hidden += [span(each) for each in types if each is not None]
            called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            if called or isinstance(node, DROPPED):
                found["dropped"].append(Edit(*span(node), "pass"))
    seen = text
    for start, end in hidden:
        seen = seen[:start] + " " * (end - start) + seen[end:]
    if device:
        found["dropped"] = [Edit(*match.span(), ";") for match in DEVICE_CALL.finditer(seen)]
    for kind, other in (("compared", COMPARED), ("computed", COMPUTED), ("joined", JOINED)):
        words = "|".join(map(re.escape, sorted(other, key=len, reverse=True)))
        for match in re.finditer(rf"(?<=\s)(?:{words})(?=\s)", seen):
            found[kind].append(Edit(*match.span(), other[match[0]]))
    for match in CONSTANT.finditer(seen):
        number = float if "." in match[0] else int
        new = TRUTHS.get(match[0]) or str(number(match[0]) + 1)
        found["constant"].append(Edit(*match.span(), new))
    for match in BOUND.finditer(seen):
        found["bound"] += [Edit(*match.span(), f"{match[0]} {sign} 1") for sign in "+-"]
    for match in SWAPPED.finditer(seen):
        if match[1] != match[2]:
            found["swapped"].append(Edit(*match.span(), f"{match[2]}, {match[1]}"))
    return found


def draw(checkout: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants: as many of a file as its share of the tokens, of each kind alike.

    Returns: mutants in random order, so that the first ones stand for all.
    """
    rng = random.Random(seed)
    files, tokens, possible = [], [], []
    for path in sorted((checkout / PACKAGE).rglob("*")):
        if path.suffix in (".py", *DEVICE):
            text, device = path.read_text(encoding="utf-8"), path.suffix in DEVICE
            found = edits(text, device)
            if found:
                files.append((path.relative_to(checkout).as_posix(), text, device))
                tokens.append((device_tokens if device else python_tokens)(text))
                possible.append(found)
    ends = list(itertools.accumulate(tokens))
    drawn: dict[tuple[str, Edit], Mutant] = {}
    while len(drawn) < count:
        at = bisect.bisect(ends, (len(drawn) + rng.random()) / count * ends[-1])
        file, text, device = files[at]
        kind = rng.choice(sorted(kind for kind, each in possible[at].items() if each))
        edit = rng.choice(possible[at][kind])
        mutated = text[: edit.start] + edit.new + text[edit.end :]
        if not device:
            try:
                ast.parse(mutated)
            except SyntaxError:
                continue
        old = " ".join(text[edit.start : edit.end].split())
        line = text.count("\n", 0, edit.start) + 1
        found_here = Mutant(len(drawn), file, line, f"{kind}: {old} -> {edit.new}", mutated)
        drawn.setdefault((file, edit), found_here)
    return rng.sample(list(drawn.values()), count)


# Hooks of pytest, of which this file is a plugin while it records.
_seconds: dict[str, float] = defaultdict(float)
_failed: set[str] = set()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note lines as those of a test, whatever its parameters."""
    running = coverage.Coverage.current()
    assert running is not None
    running.switch_context(nodeid.partition("[")[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took."""
    test = report.nodeid.partition("[")[0]
    _seconds[test] += report.duration
    if report.failed:
        _failed.add(test)


def pytest_sessionfinish() -> None:
    """Write the seconds of tests that passed: those that fail detect nothing."""
    passed = {test: each for test, each in _seconds.items() if test not in _failed}
    Path(os.environ["MUTANTS_SECONDS"]).write_text(json.dumps(passed), encoding="utf-8")


def recorded(place: Path, file: str) -> Path:
    """Return the path of the coverage of a test file; its seconds lie beside it."""
    return place / "coverage" / file.replace("/", ".")


def record(place: Path, file: str) -> None:
    """Run a test file and keep its coverage, unless that is done."""
    kept = recorded(place, file)
    if kept.is_file():
        return
    checkout, notes = place / "recorded", place / "gcov"
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        compiler, rules = Path(scratch, "g++"), Path(scratch, "rules")
        compiler.write_text(COMPILER.format(notes))
        compiler.chmod(0o700)
        rules.write_text(
            f"[run]\ncontext = {file}\ndata_file = {scratch}/data\nparallel = true\n"
            f"include = {checkout / PACKAGE}/*\npatch = subprocess, _exit, fork\n"
        )
        environ = {
            "CXX": str(compiler),
            "GCOV_PREFIX": f"{scratch}/counts",
            "MUTANTS_SECONDS": f"{kept}.json",
        }
        command = ["-m", "coverage", "run", "--rcfile", str(rules), "-m", "pytest", "-q", "-n", "0"]
        command += [
            "-p",
            "tests.mutants",
            "-W",
            "ignore::coverage.exceptions.CoverageWarning",
            file,
        ]
        _, text = run(checkout, command, place / "cache", environ, scratch, 3600.0)
        print(file, text.rstrip().rpartition("\n")[2], flush=True)
        if not Path(f"{kept}.json").is_file():
            raise RuntimeError(f"{file} was not run:\n{text}")
        measured = coverage.Coverage(config_file=str(rules))
        measured.combine([scratch])
        data = measured.get_data()
        data.set_context(file)
        counts = list(Path(scratch, "counts").rglob("*.gcda"))
        for path in counts:  # gcov wants both files of a module in one folder
            noted = path.with_suffix(".gcno")
            noted.symlink_to(Path("/", noted.relative_to(f"{scratch}/counts")))
            told = subprocess.run(
                ["gcov", "--json-format", "--stdout", path], capture_output=True, check=False
            )
            for each in json.loads(told.stdout)["files"] if told.returncode == 0 else ():
                if each["file"].startswith(str(checkout / PACKAGE)):
                    ran = [line["line_number"] for line in each["lines"] if line["count"]]
                    data.add_lines({each["file"]: ran})
        measured.save()
        shutil.copy(data.data_filename(), kept)


def run(
    checkout: Path,
    command: Sequence[str],
    cache: Path,
    environ: Mapping[str, str],
    scratch: str,
    limit: float,
) -> tuple[int | None, str]:
    """Run Python in a checkout; return the exit code, or None after `limit` seconds, and text."""
    settings = {
        "PYTHONPATH": str(checkout),
        "VERTEXRT_CACHE": str(cache),
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{scratch}/examples",
        "TMPDIR": scratch,
    }
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=checkout,
        env={**os.environ, **settings, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    ) as process:
        try:
            text, _ = process.communicate(timeout=limit)
            return process.returncode, text
        except subprocess.TimeoutExpired:
            return None, ""
        finally:  # with what it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


Reached = dict[int, list[str]]  # line -> `file|test`, or `file` alone outside tests


@functools.lru_cache(maxsize=8)
def reached(place: Path, file: str) -> list[tuple[dict[str, float], Reached]]:
    """Return for each test file the seconds of its tests, and what they ran of a file."""
    found = []
    for seconds in sorted((place / "coverage").glob("*.json")):
        data = coverage.CoverageData(str(seconds.with_suffix("")))
        data.read()
        lines = data.contexts_by_lineno(str(place / "recorded" / file))
        if lines:
            found.append((json.loads(seconds.read_text(encoding="utf-8")), lines))
    return found


def choose(place: Path, mutant: Mutant, budget: float) -> dict[str, float]:
    """Return the tests for a mutant, first to last, with their seconds.

    Those that run its line come first, then others of their files. Where nothing runs the line
    itself, which is inside a statement or in a function that is compiled, the one before counts.
    """
    found = reached(place, mutant.file)
    known = sorted(set().union(*(lines for _, lines in found)))
    line = known[max(bisect.bisect(known, mutant.line) - 1, 0)] if known else 0
    ranked = []
    for seconds, lines in found:
        direct = {context.partition("|")[2] for context in lines.get(line, ())}
        ran = Counter(each.partition("|")[2] for contexts in lines.values() for each in contexts)
        for test, each in seconds.items() if direct else ():
            ranked.append((test not in direct, each / (1 + ran[test]), test, each))
    chosen: dict[str, float] = {}
    for _, _, test, each in sorted(ranked):
        if not chosen or sum(chosen.values()) + each <= budget:
            chosen[test] = each
    return chosen


def judge(place: Path, checkout: Path, mutant: Mutant, budget: float) -> dict[str, Any]:
    """Run the tests of a mutant in a checkout; return what is written of it."""
    tests = choose(place, mutant, budget)
    path, began = checkout / mutant.file, time.monotonic()
    original = path.read_bytes()
    caught: str | None = None
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        cache = Path(scratch, "cache")
        cache.mkdir(mode=0o700)
        if not OF_CACHES.match(mutant.file):
            for kind, kept in (("llvm", place / "cache/llvm"), ("cuda", place / "modules")):
                if kept.is_dir():
                    shutil.copytree(kept, cache / kind, copy_function=os.link)
        try:
            path.write_text(mutant.text, encoding="utf-8")
            # Python tells an old file of bytecode by size and seconds: no two mutants have both.
            os.utime(path, (mutant.number + 1, mutant.number + 1))
            if tests:
                command = ["-m", "pytest", "-x", "-q", "-n", "0", "--hypothesis-seed=0", *tests]
                limit = 120.0 + 10.0 * sum(tests.values())
                code, text = run(checkout, command, cache, {}, scratch, limit)
                first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
                if code is None:
                    caught = f"over {limit:.0f} seconds"
                elif "a kernel does not compile" in text and mutant.file.endswith(DEVICE):
                    caught = "does not compile"
                elif code:
                    caught = first[1] if first else f"exit code {code}"
        finally:
            path.write_bytes(original)
        if not OF_CACHES.match(mutant.file):
            for made in cache.glob("cuda/*.so"):
                with contextlib.suppress(FileExistsError):
                    os.link(made, place / "modules" / made.name)
    known = {"number": mutant.number, "file": mutant.file, "line": mutant.line, "what": mutant.what}
    spent = round(time.monotonic() - began, 1)
    return {**known, "caught": caught, "seconds": spent, "tests": len(tests)}


def summary(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines: of each folder, how many mutants there are that compile, and are caught."""
    valid = [each for each in found if each["caught"] != "does not compile"]
    of = {each["number"]: folder(ROOT / each["file"], ROOT / PACKAGE) for each in valid}
    drawn = Counter(of.values())
    caught = Counter(of[each["number"]] for each in valid if each["caught"])
    for name, count in [*drawn.most_common(), ("all", len(valid))]:
        least = caught.total() if name == "all" else caught[name]
        yield f"{name:<24}{least:>5} of {count:>4} caught{100 * least / count:>7.1f} %"
    yield f"{len(found) - len(valid)} do not compile and are not counted"


def main() -> None:
    """Record, or draw mutants and test them."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--record", nargs="*", help="test files; none: all")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests of a mutant")
    parser.add_argument("--data", type=Path, default=ROOT / "build/mutants")
    options = parser.parse_args()
    git = ["git", "-C", str(ROOT)]
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    place = options.data.resolve() / head[:12]
    for name in ("coverage", "modules", "gcov"):
        (place / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    copies = [place / "recorded", *(place / f"copy{k}" for k in range(options.jobs))]
    for copy in copies:
        if not copy.is_dir():
            subprocess.check_call(["git", "clone", "--quiet", "--shared", str(ROOT), str(copy)])
            subprocess.check_call(["git", "-C", str(copy), "checkout", "--quiet", "--detach", head])
    with ThreadPoolExecutor(options.jobs) as pool:
        if options.record is not None:
            every = sorted((copies[0] / "tests").rglob("test_*.py"))
            files = options.record or [path.relative_to(copies[0]).as_posix() for path in every]
            list(pool.map(functools.partial(record, place), files))
            return
        free, lock = copies[1:], threading.Lock()
        lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
        found = [json.loads(line) for line in lines]
        done = {each["number"] for each in found}

        def test(mutant: Mutant) -> None:
            with lock:
                copy = free.pop()
            each = judge(place, copy, mutant, options.budget)
            with lock, options.out.open("a", encoding="utf-8") as out:
                free.append(copy)
                found.append(each)
                print(json.dumps(each), file=out)

        drawn = draw(copies[0], options.count, options.seed)
        list(pool.map(test, [mutant for mutant in drawn if mutant.number not in done]))
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
