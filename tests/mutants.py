"""Measure what the tests detect: put small faults into the package, one at a time, and run tests.

    python -m tests.mutants --record [FILES]      # coverage, one test file at a time
    python -m tests.mutants --count 300 --seed 1 --out before.jsonl

The first records which test runs which line, of Python and (by gcov, on the stand-in for a GPU) of
device code; files that are recorded are skipped, so it goes on where it was stopped. The second
draws mutants and runs the tests that reach each one, first those that are quick for what they run
of its file; it too goes on where it was stopped. Both work on copies of the revision that is
checked out, in `build/mutants`. A mutant that changes nothing counts as not caught: shares compare,
they are no grades.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.package_source import PACKAGE, ROOT
from tests.tokens import DEVICE, device_tokens, folder, python_tokens

WORDS = {
    "compared": "< <= | <= < | > >= | >= > | == != | != ==",
    "computed": "+ - | - + | * + | / * | // * | % * | << >> | >> << | & ^ | += -= | -= +=",
    "joined": "and or | or and | && || | || &&",
    "truth": "True False | False True | true false | false true",
}
BOUND = r"(?:(?<=\[:)|(?<= : )|(?<=range\()|(?<=< ))[a-z_][\w.]*(?=[\]);:]| : )"
# Kind, what is looked for, and what stands in its place.
FAULTS = [
    ("number", r"(?<![\w.])(?:0|[1-9]\d*)(?![\w.])", r"(\g<0> + 1)"),
    ("bound", BOUND, r"\g<0> + 1"),
    ("bound", BOUND, r"\g<0> - 1"),
    ("arguments", r"(?<=\w\()([\w.]+), (?!\1[,)])([\w.]+)(?=[,)])", r"\2, \1"),
]
for kind, pairs in WORDS.items():
    for old, new in map(str.split, pairs.split(" | ")):
        FAULTS.append((kind, rf"(?<=[\s(,=]){re.escape(old)}(?=[\s),])", new))
DEVICE_CALL = re.compile(r"(?m)^[ ]+(?:asm volatile|[\w:]+(?:<[^;{}()]*>)?)\([^;{}]*\);")
DEVICE_HIDDEN = re.compile(r'(?s)"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|#include[^\n]*')
DROPPED = (ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.AugAssign)
# What writes or reads the cache: such a mutant starts with an empty one.
OF_CACHES = re.compile(
    r"vertexrt/(cache/|native/|plain_files|engine/choose|kernels/(cpu/choose|cuda/compile))"
)
UNBUILT = "does not compile"
LIMITED = ("prlimit", f"--as={12 << 30}", "timeout", "--signal=KILL")  # bytes, seconds
SECONDS = 60.0  # of tests for a mutant, at most, as they were recorded
# It writes what gcov needs beside others of its kind, whatever folder it compiles in.
COMPILER = 'sh -c \'exec g++ --coverage -dumpdir "{}/$$." "$@"\' sh'

Edit = tuple[int, int, str]  # put a text in place of the characters from the first to the second
Mutant = tuple[dict[str, Any], str]  # number, file, line and what; the file's text with the fault


def copy(place: Path, name: str) -> Path:
    """Return a checkout of the revision that a folder is named by, without faults of before."""
    made = place / name
    if not made.is_dir():
        subprocess.check_call(["git", "clone", "--quiet", "--shared", ROOT, made])
    restore = ["git", "-C", made, "checkout", "--quiet", "--force", "--detach", place.name]
    subprocess.check_call(restore)
    return made


def edits(text: str, device: bool) -> dict[str, list[Edit]]:
    """Return all faults that a text can be given, by kind."""
    found: dict[str, list[Edit]] = defaultdict(list)
    if device:
        hidden = [match.span() for match in DEVICE_HIDDEN.finditer(text)]
    else:
        starts = [0, 0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
        hidden = [
            (starts[token.start[0]] + token.start[1], starts[token.end[0]] + token.end[1])
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.STRING, tokenize.COMMENT)
        ]
        for node in ast.walk(ast.parse(text)):
            called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            if called or isinstance(node, DROPPED):
                start = starts[node.lineno] + node.col_offset
                end = starts[node.end_lineno or 0] + (node.end_col_offset or 0)
                found["dropped"].append((start, end, "pass"))
    for start, end in hidden:
        text = text[:start] + " " * (end - start) + text[end:]
    if device:
        found["dropped"] = [(*match.span(), ";") for match in DEVICE_CALL.finditer(text)]
    for kind, pattern, new in FAULTS:
        for match in re.finditer(pattern, text):
            found[kind].append((*match.span(), match.expand(new)))
    return {kind: each for kind, each in found.items() if each}


def draw(checkout: Path, count: int, seed: int, within: str = PACKAGE) -> list[Mutant]:
    """Draw mutants in a folder: as many of a file as its share of the tokens, of each kind alike.

    Returns: mutants in random order, so that the first ones stand for all.
    """
    rng, files, ends = random.Random(seed), [], [0]
    for path in sorted((checkout / within).rglob("*")):
        if path.suffix in (".py", *DEVICE):
            text, device = path.read_text(encoding="utf-8"), path.suffix in DEVICE
            found = edits(text, device)
            if found:
                files.append((path.relative_to(checkout).as_posix(), text, found))
                ends.append(ends[-1] + (device_tokens if device else python_tokens)(text))
    drawn: dict[tuple[str, Edit], Mutant] = {}
    while len(drawn) < count:
        token = (len(drawn) + rng.random()) / count * ends[-1]
        file, text, found = files[bisect(ends, token) - 1]
        kind = rng.choice(sorted(found))
        start, end, new = edit = rng.choice(found[kind])
        mutated = text[:start] + new + text[end:]
        with contextlib.suppress(SyntaxError):  # that is no mutant
            if file.endswith(".py"):
                ast.parse(mutated)
            what = f"{kind}: {' '.join(text[start:end].split())} -> {new}"
            line = text.count("\n", 0, start) + 1
            told = {"number": len(drawn), "file": file, "line": line, "what": what}
            drawn.setdefault((file, edit), (told, mutated))
    return rng.sample(list(drawn.values()), count)


# Hooks of pytest, of which this file is a plugin while it records.
_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note lines as those of a test, whatever its parameters."""
    coverage.Coverage.current().switch_context(nodeid.partition("[")[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took; one that fails detects nothing and is never chosen."""
    _seconds[report.nodeid.partition("[")[0]] += 2 * SECONDS if report.failed else report.duration


def pytest_sessionfinish() -> None:
    """Write the seconds."""
    Path(os.environ["RECORDED_SECONDS"]).write_text(json.dumps(_seconds), encoding="utf-8")


def record(place: Path, file: str) -> None:
    """Run a test file and keep its coverage, unless that is done; its seconds lie beside it."""
    kept, checkout = place / "coverage" / file.replace("/", "."), place / "recorded"
    if kept.is_file():
        return
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        rules = Path(scratch, "rules")
        rules.write_text(
            f"[run]\ncontext = {file}\ndata_file = {scratch}/data\nparallel = true\n"
            f"include = {checkout / PACKAGE}/*\npatch = subprocess, _exit, fork\n"
        )
        environ = {"CXX": COMPILER.format(place / "gcov"), "RECORDED_SECONDS": f"{kept}.json"}
        words = ["-m", "coverage", "run", "--rcfile", str(rules), "-m", "pytest", "-q", "-n", "0"]
        words += ["-p", "tests.mutants", "-W", "ignore::coverage.exceptions.CoverageWarning", file]
        code, text = run(checkout, words, place / "cache", scratch, 3600.0, **environ)
        print(file, text.rstrip().rpartition("\n")[2], flush=True)
        if code not in (0, 1):
            raise RuntimeError(f"{file} was not run:\n{text}")
        measured = coverage.Coverage(config_file=str(rules))
        measured.combine([scratch])
        data = measured.get_data()
        data.set_context(file)
        for path in Path(scratch, "counts").rglob("*.gcda"):
            noted = path.with_suffix(".gcno")  # gcov wants both files of a module in one folder
            noted.symlink_to(place / "gcov" / noted.name)
            told = subprocess.check_output(["gcov", "--json-format", "--stdout", path])
            for each in json.loads(told)["files"]:
                if each["file"].startswith(str(checkout / PACKAGE)):
                    ran = [line["line_number"] for line in each["lines"] if line["count"]]
                    data.add_lines({each["file"]: ran})
        shutil.copy(data.data_filename(), kept)


def run(
    checkout: Path, words: Sequence[str], cache: Path, scratch: str, limit: float, **environ: Any
) -> tuple[int, str]:
    """Run Python in a checkout; return the exit code, 137 after `limit` seconds, and the text."""
    environ |= {"PYTHONPATH": checkout, "VERTEXRT_CACHE": cache, "TMPDIR": scratch}
    # Modules that were compiled for gcov count wherever they run.
    environ |= {"HYPOTHESIS_STORAGE_DIRECTORY": scratch, "GCOV_PREFIX": f"{scratch}/counts"}
    written = Path(scratch, "written")
    with written.open("w") as out:  # no pipe: what a test leaves running would keep it open
        code = subprocess.run(
            [*LIMITED, str(limit), sys.executable, *words],
            cwd=checkout,
            env={**os.environ, **{name: str(each) for name, each in environ.items()}},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    return code, written.read_text(errors="replace")


def choose(place: Path, file: str, line: int) -> dict[str, float]:
    """Return the tests for a fault in a line, first to last, with their seconds.

    Those that run its line come first, then others of their files. Where nothing runs the line
    itself, which is inside a statement or in a function that is compiled, the one before counts.
    """
    found = []
    for path in (place / "coverage").glob("*.json"):
        data = coverage.CoverageData(str(path.with_suffix("")))
        data.read()
        # Of a line: `test file|test`, or the file alone for other processes and outside tests.
        lines = data.contexts_by_lineno(str(place / "recorded" / file))
        found.append((json.loads(path.read_text(encoding="utf-8")), lines))
    line = max((at for _, lines in found for at in lines if at <= line), default=0)
    ranked = []
    for seconds, lines in found:
        ran = Counter(each.partition("|")[2] for contexts in lines.values() for each in contexts)
        direct = {each.partition("|")[2] for each in lines.get(line, ())}
        for test, each in seconds.items() if direct else ():
            ranked.append((test not in direct, each / (1 + ran[test]), test, each))
    chosen: dict[str, float] = {}
    for _, _, test, each in sorted(ranked):
        if sum(chosen.values()) + each <= SECONDS:
            chosen[test] = each
    return chosen


def judge(place: Path, results: Path, mutant: Mutant) -> None:
    """Run the tests of a mutant in the checkout of this thread, and add a line to the results."""
    told, mutated = mutant
    number, file, at, _ = told.values()
    tests, began, caught = choose(place, file, at), time.monotonic(), None
    checkout = copy(place, threading.current_thread().name)
    path = checkout / file
    path.write_text(mutated, encoding="utf-8")
    # Python tells an old file of bytecode by size and seconds: no two mutants have both.
    os.utime(path, (number + 1, number + 1))
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        cache = Path(scratch, "cache")
        if not OF_CACHES.match(file):
            shutil.copytree(place / "cache", cache, copy_function=os.link)
        words = ["-m", "pytest", "-x", "-q", "-n", "0", "--hypothesis-seed=0", *tests]
        limit = 120.0 + 10.0 * sum(tests.values())
        code, text = run(checkout, words, cache, scratch, limit) if tests else (0, "")
    if code != 0:
        first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        caught = first[1] if first else f"exit code {code}"
        if "a kernel does not compile" in text and file.endswith(DEVICE):
            caught = UNBUILT
    spent = round(time.monotonic() - began, 1)
    line = json.dumps({**told, "caught": caught, "seconds": spent, "tests": len(tests)})
    with results.open("a", encoding="utf-8") as out:  # at once, so that no stop loses it
        out.write(f"{line}\n")


def summary(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line a folder: how many mutants there are that compile, and how many are caught."""
    drawn: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    for each in found:
        if each["caught"] != UNBUILT:
            for name in (folder(ROOT / each["file"], ROOT / PACKAGE), "all"):
                drawn[name] += 1
                caught[name] += each["caught"] is not None
    for name, count in drawn.most_common():
        yield f"{name:<24}{caught[name]:>5} of {count:>4} caught"


def main() -> None:
    """Record, or draw mutants and test them."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--record", nargs="*", help="test files; none: all")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", default=PACKAGE, help="a folder of the package: faults there")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    options = parser.parse_args()
    head = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "HEAD"], text=True).strip()
    place = ROOT / "build/mutants" / head[:12]
    for name in ("coverage", "gcov", "cache"):
        (place / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    checkout = copy(place, "recorded")
    with ThreadPoolExecutor(options.jobs, "copy") as pool:
        if options.record is not None:
            every = sorted((checkout / "tests").rglob("test_*.py"))
            files = options.record or [path.relative_to(checkout).as_posix() for path in every]
            list(pool.map(functools.partial(record, place), files))
            return
        if not any((place / "coverage").iterdir()):
            parser.error(f"nothing is recorded of {head[:12]}; a recording; give --record first")
        options.out.touch()
        done = {json.loads(line)["number"] for line in options.out.open(encoding="utf-8")}
        drawn = draw(checkout, options.count, options.seed, options.within)
        left = [each for each in drawn if each[0]["number"] not in done]
        list(pool.map(functools.partial(judge, place, options.out), left))
    print(*summary([json.loads(line) for line in options.out.open(encoding="utf-8")]), sep="\n")


if __name__ == "__main__":
    main()
