"""Damage files of the cache and look whether anything but a new compilation follows.

    python -m tests.attacks cache --count 1000 --seed 0

A case damages an entry of a few small functions and calls them in a forked process, which has
loaded none of them before: results have to be right, nothing may be said, and the entry has to be
whole afterwards.

    python -m tests.attacks.cache  # trains a small network, and says how much was compiled
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.attacks.outcomes import FAILED, Tally

FUNCTIONS = 6
MADE_AGAIN = "made again"

SOURCE = """
from vertexrt.native.compiled import compiled

@compiled
def f{k}(x: float) -> float:
    return x * {k} + {k}.5
"""

Damage = Callable[[Path, random.Random], object]


def changed(of: Callable[[bytes, random.Random], bytes]) -> Damage:
    """Return what puts another content into a file."""
    return lambda path, draw: path.write_bytes(of(path.read_bytes(), draw))


def flip(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def zero(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content))
    end = at + draw.choice((1, 64, 4096))
    found = content[:at] + bytes(len(content[at:end])) + content[end:]
    return found if found != content else content[:-1]


def swap(path: Path, draw: random.Random) -> None:
    other = draw.choice([p for p in path.parent.iterdir() if p != path and p.is_file()])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def link(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to(draw.choice(("/dev/zero", "/dev/null", "/nonexistent", str(path))))


def folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / "inside").write_bytes(b"")


def pipe(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


# "stale" is another version of the format.
DAMAGES: dict[str, Damage] = {
    "delete": lambda path, draw: path.unlink(),
    "open to all": lambda path, draw: path.chmod(draw.choice((0o666, 0o602, 0o620, 0o777))),
    "closed": lambda path, draw: path.chmod(0),
    "link": link,
    "folder": folder,
    "pipe": pipe,
    "swap": swap,
    "cut": changed(lambda old, draw: old[: draw.randrange(len(old))]),
    "flip": changed(flip),
    "zero": changed(zero),
    "noise": changed(lambda old, draw: draw.randbytes(draw.randrange(1, 5000))),
    "append": changed(lambda old, draw: old + draw.randbytes(draw.randrange(1, 100))),
    "stale": changed(lambda old, draw: old.replace(b"cache entry 1\n", b"cache entry 0\n")),
}


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


def cases(root: Path, count: int, draw: random.Random, tally: Tally) -> None:
    """Run cases of one damaged entry each."""
    from vertexrt.cache.entries import decode
    from vertexrt.native import wrapper
    from vertexrt.native.load import KIND, machine

    machine()  # before the forks, so that each is quick; what is imported so far counts as well
    wrapper.imports()
    os.environ["VERTEXRT_CACHE"] = str(root)
    said = root.parent / "said"
    if in_a_child(said):
        raise SystemExit(f"the functions fail without damage:\n{said.read_text()}")
    names = sorted(path.name for path in (root / KIND).iterdir())
    assert len(names) == FUNCTIONS, names
    for number in range(count):
        damage, name = draw.choice(list(DAMAGES)), draw.choice(names)
        DAMAGES[damage](root / KIND / name, draw)
        status = in_a_child(said)
        text = said.read_text()
        whole = [
            p.name
            for p in (root / KIND).iterdir()
            if p.is_file() and decode(p.name, p.read_bytes())
        ]
        wrong = bool(status or text) or sorted(whole) != names
        told = f"{FAILED}: {name[:8]}: status {status}, {len(whole)} whole\n{text}"
        tally.add(number, damage, told if wrong else MADE_AGAIN)


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


def one_training() -> tuple[int, list[str], str]:
    """Train in a process of its own: its status, what it printed and what it said."""
    command = [sys.executable, "-m", "tests.attacks.cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split(), done.stderr


def attack(count: int, seed: int) -> Tally:
    """Damage entries one at a time."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        cases(Path(name, "cases"), count, random.Random(seed), tally)
    return tally


if __name__ == "__main__":
    train()  # in a process of its own
