"""Damage files of the cache and look whether anything but a new compilation follows.

    python -m tests.attacks.cache --count 1000 --seed 0 --trainings 5

A case damages an entry of a few small functions and calls them in a forked process, which has
loaded none of them before: results have to be right, nothing may be said, and the entry has to be
whole afterwards. A training starts a process that trains a small network on a cache of which a part
is damaged in all ways at once; its parameters have to have the same bits as without damage.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

FUNCTIONS = 6

SOURCE = """
from vertexrt.native.compiled import compiled

@compiled
def f{k}(x: float) -> float:
    return x * {k} + {k}.5
"""

Damage = Callable[[Path, random.Random], None]


def cut(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 8))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def zero(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    size = min(draw.choice((1, 64, 4096)), len(content) - at)
    content[at : at + size] = bytes(size)
    if bytes(content) == path.read_bytes():
        content[-1] ^= 1
    path.write_bytes(content)


def empty(path: Path, draw: random.Random) -> None:
    path.write_bytes(b"")


def noise(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(draw.randrange(1, 5000)))


def append(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randrange(1, 100)))


def twice(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


def stale(path: Path, draw: random.Random) -> None:
    """Leave it as another version of the format."""
    path.write_bytes(path.read_bytes().replace(b"cache entry 1\n", b"cache entry 0\n"))


def delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def swap(path: Path, draw: random.Random) -> None:
    other = draw.choice([p for p in path.parent.iterdir() if p != path and p.is_file()])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def open_to_all(path: Path, draw: random.Random) -> None:
    path.chmod(draw.choice((0o666, 0o602, 0o620, 0o777)))


def closed(path: Path, draw: random.Random) -> None:
    path.chmod(0)


def link(path: Path, draw: random.Random) -> None:
    target = draw.choice(("/dev/zero", "/dev/null", "/nonexistent", str(path)))
    path.unlink()
    path.symlink_to(target)


def folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / "inside").write_bytes(b"")


def pipe(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: tuple[Damage, ...] = (
    cut, flip, zero, empty, noise, append, twice, stale, delete, swap, open_to_all, closed, link,
    folder, pipe,
)  # fmt: skip


def call_functions(sources: Path) -> bool:
    """Compile or find the small functions; tell whether their results are right."""
    right = True
    for k in range(FUNCTIONS):
        path = sources / f"attacked_{k}.py"
        path.write_text(SOURCE.format(k=k))
        inside: dict[str, object] = {"__name__": path.stem}
        exec(compile(path.read_text(), path, "exec"), inside)
        function: Callable[[float], float] = inside[f"f{k}"]  # type: ignore[assignment]
        right &= function(2.0) == 2.0 * k + k + 0.5
    return right


def in_a_child(said: Path) -> int:
    """Call the functions in a forked process; return its status, 0 where all was right."""
    child = os.fork()
    if child == 0:
        with open(said, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            status = 2
            try:
                status = 0 if call_functions(said.parent) else 1
            finally:
                sys.stderr.flush()
                os._exit(status)
    return os.waitpid(child, 0)[1]


def cases(root: Path, count: int, draw: random.Random) -> Counter[str]:
    """Run cases of one damaged entry each; count what was wrong by kind of damage."""
    from vertexrt.cache.entries import decode
    from vertexrt.native import wrapper
    from vertexrt.native.load import KIND, machine

    machine()  # before the forks, so that each is quick; what is imported so far counts as well
    wrapper.imports()
    os.environ["VERTEXRT_CACHE"] = str(root)
    said = root.parent / "said"
    wrong: Counter[str] = Counter()
    if in_a_child(said):
        raise SystemExit(f"the functions fail without damage:\n{said.read_text()}")
    names = sorted(path.name for path in (root / KIND).iterdir())
    assert len(names) == FUNCTIONS, names
    for _ in range(count):
        damage, name = draw.choice(DAMAGES), draw.choice(names)
        damage(root / KIND / name, draw)
        status = in_a_child(said)
        text = said.read_text()
        whole = [
            p.name
            for p in (root / KIND).iterdir()
            if p.is_file() and decode(p.name, p.read_bytes())
        ]
        if status or text or sorted(whole) != names:
            wrong[damage.__name__] += 1
            print(f"{damage.__name__} of {name[:8]}: status {status}, {len(whole)} whole\n{text}")
    return wrong


def train() -> None:
    """Train a small network; print a hash of its parameters and how much was compiled."""
    import vertexrt as vrt
    from tests.functions import FUNCTIONS as NETWORKS
    from tests.strategies import pulls_for
    from vertexrt.engine.variant import Passes
    from vertexrt.native.load import compiled_here

    trees = ([[], [], [0, 1]], [[], [], [0, 1], [], [2, 3]])
    graphs = [vrt.InputGraph.from_children(tree, pulls_for(len(tree), 1)) for tree in trees]
    batch, found = vrt.GraphBatch.from_graphs(graphs), hashlib.sha256()
    for engine in ("batched", "persistent"):
        net = vrt.compile(
            NETWORKS["tree-lstm"][0](),
            device="cpu",
            engine=engine,
            dtype="float64",
            passes=Passes(specialise=False),  # each kind of vertex takes seconds to compile
            threads=2,
            seed=1,
        )
        optimizer = vrt.Adam(0.01)
        for _ in range(3):
            net.step(batch, optimizer)
        for array in (*net.parameters.values(), *net(batch).values()):
            found.update(array.tobytes())
    print(found.hexdigest(), len(compiled_here))


def one_training(root: Path | None) -> tuple[int, list[str], str]:
    """Train in a process of its own: its status, what it printed and what it said.

    Args:
        root: cache folder; that of this process if it is None.
    """
    environ = dict(os.environ) | ({} if root is None else {"VERTEXRT_CACHE": str(root)})
    command = [sys.executable, "-m", "tests.attacks.cache", "--train"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split(), done.stderr


def trainings(root: Path, count: int, draw: random.Random) -> int:
    """Train on damaged caches; return how many ended otherwise than without damage."""
    if not count:
        return 0
    whole = root.with_name("whole")
    status, (expected, *_), said = one_training(whole)
    assert status == 0, said
    wrong = 0
    for _ in range(count):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        files = [path for path in root.rglob("*") if path.is_file()]
        for path in draw.sample(files, len(files) // 4):
            if path.is_file():
                draw.choice([d for d in DAMAGES if d is not swap])(path, draw)
        status, printed, said = one_training(root)
        if status or said or printed[:1] != [expected]:
            wrong += 1
            print(f"training: status {status}, {printed[:1]} for {expected}\n{said}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="cases of one damaged entry")
    parser.add_argument("--trainings", type=int, default=3, help="processes that train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train()
        return 0
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        wrong = cases(Path(name, "cases"), options.count, draw)
        bad = (
            trainings(Path(name, "trainings"), options.trainings, draw) if options.trainings else 0
        )
    print(
        f"cache: {options.count} damaged entries, {wrong.total()} wrong; "
        f"{options.trainings} trainings on damaged caches, {bad} wrong (seed {options.seed})"
    )
    return 1 if wrong or bad else 0


if __name__ == "__main__":
    sys.exit(main())
