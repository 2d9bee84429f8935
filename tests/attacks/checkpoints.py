"""Load mutated and hostile checkpoints.

    python -m tests.attacks checkpoints --count 100000 --seed 1

Two attacks. `bytes`: a checkpoint with bits, bytes or pieces changed must be refused, or be the
same. `parts`: metadata and tensors are changed and signed with a checksum that is right, so that
every check after it has its turn; what is loaded must be finite and within the limits, and what
fits the run must take a step or be refused.
"""

from __future__ import annotations

import copy
import json
import struct
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tests.attacks.forked import in_process, write_trees
from tests.attacks.outcomes import FAILED, Cases, Tally, run_in_children
from vertexrt import models
from vertexrt.api.checkpoint import FORMAT, VERSION, read_tensors, read_texts, write_tensors
from vertexrt.cli import session as run_state
from vertexrt.cli.session import RunSession, make_optimizer, open_session
from vertexrt.errors import VertexrtError

SMALL = ("--hidden", "4", "--embed", "3", "--batch-size", "8", "--device", "reference", "--quiet")
SIZES = {"train": 8, "dev": 4, "test": 4}
REFUSED, SAME, LOADED = "refused", "the same", "loaded, within its limits"
Rng = np.random.Generator
Item = TypeVar("Item")

# What a field may become.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**9, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**40,
    0.0, -0.0, 0.5, 1.0, 1e-320, 1e38, 1e39, 1e300, -1.5, "", "x", "0", "nan", "Infinity", "\0",
    "\ud800", "../../etc/passwd", "~nosuchuser", "/dev/zero", "adam", "adamm", "sgd", "tree-lstm",
    "tree-fc", "lstm-lm", "cuda", "cpu", "auto", "persistent", "float64", "float16", "generated",
    "x" * 5000, [], {}, [[]], [1, 2], {"": 0}, {"x": None}, [None] * 50, ["<unk>"],
    ["<unk>", "a"], ["<unk>", "<unk>"],
)  # fmt: skip


def prepare(folder: Path) -> Path:
    """Train the run that is attacked; return its folder."""
    data, run = write_trees(folder / "trees", SIZES), folder / "run"
    words = ["train", "tree-lstm", "--data", str(data), "--out", str(run), "--epochs", "2", *SMALL]
    in_process([*words, "--optimizer", "adam"])
    return run


def one_of(rng: Rng, items: Sequence[Item]) -> Item:
    return items[int(rng.integers(len(items)))]


class Parts:
    """A checkpoint taken apart."""

    def __init__(self, content: bytes) -> None:
        texts = read_texts(content)
        assert texts is not None
        self.tensors = read_tensors(content)
        self.texts: dict[str, str] = {"format": FORMAT, "version": str(VERSION)}
        self.meta: Any = json.loads(texts["meta"])
        self.optimizer: Any = json.loads(texts["optimizer"])

    def signed(self) -> bytes:
        """Put it together with a checksum that is right."""
        notes = {"meta": json.dumps(self.meta), "optimizer": json.dumps(self.optimizer)}
        return write_tensors(self.tensors, {**notes, **self.texts})


def changed_bytes(rng: Rng, content: bytes) -> bytes:
    """Damage a file as disks, transfers and people do."""
    header = 8 + int.from_bytes(content[:8], "little")
    at = int(rng.integers(header if rng.random() < 0.6 else len(content)))
    end = at + int(rng.integers(1, 64))
    before, part, after = content[:at], content[at:end], content[end:]
    sizes = (0, 1, len(content), 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1, header - 9, header)
    ways = (
        before + bytes([part[0] ^ 1 << int(rng.integers(8))]) + part[1:] + after,
        before + rng.bytes(len(part)) + after,
        before,
        before + after,
        before + 2 * part + after,
        content + rng.bytes(int(rng.integers(1, 99))),
        before + bytes(len(part)) + after,
        struct.pack("<Q", one_of(rng, sizes)) + content[8:],
    )
    return one_of(rng, ways)


def lying_header(rng: Rng, content: bytes) -> bytes:
    """Change what the header says of the tensors: offsets, shapes, dtypes, names."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    entry, other = header[one_of(rng, names)], header[one_of(rng, names)]
    shapes = ([], [0], [-1], [2**62, 4], [2**32] * 3, [1] * 99, [2**64], [1.5], None, [2, "2"])
    name, values = one_of(
        rng,
        (
            ("dtype", ("F16", "BF16", "I64", "F64", "BOOL", "F8_E4M3", "U8", "C64")),
            ("shape", shapes),
            ("data_offsets", [[0, 2**40], [-1, 2**62], [1, len(content)], other["data_offsets"]]),
            ("", ("x",)),
        ),
    )
    if name:
        entry[name] = one_of(rng, values)
    else:
        header[str(one_of(rng, VALUES))[:50]] = dict(entry)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a JSON value but the words of the vocabulary."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list) and len(value) < 8:
        items = list(enumerate(value))
    found = [(*path, key) for key, _ in items]
    for key, each in items:
        found += _places(each, (*path, key))
    return found


def changed_json(rng: Rng, value: Any) -> Any:
    """Change, remove or add a field somewhere."""
    value, paths = copy.deepcopy(value), _places(value)
    new = copy.deepcopy(one_of(rng, VALUES))
    if not paths or rng.random() < 0.02:
        return new
    *folders, name = one_of(rng, paths)
    owner = value
    for each in folders:
        owner = owner[each]
    kind = rng.integers(5)
    if kind == 0:
        del owner[name]
    elif kind == 1 and isinstance(owner, dict):
        owner[f"{name}{rng.integers(3)}"] = owner[name]
    elif kind == 2 and isinstance(owner[name], int | float):
        owner[name] += type(owner[name])(rng.integers(-3, 4))
    elif kind == 3 and rng.random() < 0.2:
        for _ in range(int(rng.integers(1, 300))):
            owner[name] = [owner[name]]
    else:
        owner[name] = new
    return value


def changed_tensor(rng: Rng, tensors: dict[str, np.ndarray]) -> None:
    """Change one tensor: numbers, shape, dtype, name, or whether it is there."""
    name = one_of(rng, sorted(tensors))
    array = tensors.pop(name)
    odd = array.copy()
    if array.size and array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            odd.flat[rng.integers(array.size)] = one_of(rng, (np.nan, np.inf, 1e38, -1e38, -1.0, 0))
    shape = [int(n) for n in rng.integers(1, 6, rng.integers(0, 4))]
    steps = np.array(one_of(rng, (-1, 0, 1, 2, 9, 2**53, 2**62)), np.int64)
    names = ("x", "parameter/", "parameter/x", "optimizer/steps", "optimizer/m/x")
    ways: tuple[dict[str, np.ndarray], ...] = (
        {name: odd},
        {name: array.astype(one_of(rng, ("<f4", "<f8", "<i8")))},
        {name: array.reshape(-1)},
        {name: array[..., None]},
        {name: np.resize(array, shape)},
        {},
        {one_of(rng, names): array},
        {name: array, "optimizer/steps": steps},
    )
    tensors |= one_of(rng, ways)


def make(folder: str, seed: int) -> Cases:
    """Return the function that runs a case, for a run that `prepare` has trained."""
    run = Path(folder)
    content = (run / "last.safetensors").read_bytes()
    stored = run_state.load(run / "last.safetensors")
    session = open_session(stored.options)
    scratch = Path(tempfile.mkdtemp(prefix="vertexrt-checkpoints-"))
    path = scratch / "last.safetensors"

    def case(number: int) -> tuple[str, str]:
        rng = np.random.default_rng([seed, number])
        kind = rng.random()
        try:
            if kind < 0.35:
                change = changed_bytes if rng.random() < 0.6 else lying_header
                path.write_bytes(change(rng, content))
                return "bytes", _load(path, stored, session, damaged=True)
            parts = Parts(content)
            for _ in range(int(rng.integers(1, 4))):
                target = rng.random()
                if target < 0.6:
                    parts.meta = changed_json(rng, parts.meta)
                elif target < 0.7:
                    parts.optimizer = changed_json(rng, parts.optimizer)
                elif parts.tensors:
                    changed_tensor(rng, parts.tensors)
            path.write_bytes(parts.signed())
            return "parts", _load(path, stored, session, damaged=False)
        except Exception:  # noqa: BLE001 (to be shown)
            return "parts", f"{FAILED}: {traceback.format_exc()}"

    return case


def _load(path: Path, original: run_state.StoredRun, session: RunSession, *, damaged: bool) -> str:
    """Load a checkpoint as --resume does and take a step; say how it ended."""
    try:
        found = run_state.load(path)
        same = _content(found) == _content(original)
        if damaged:
            return SAME if same else f"{FAILED}: a damaged file was loaded"
        if found.options.shape != original.options.shape or found.options.model != "tree-lstm":
            models.get(found.options.model).build(session.dataset, **found.options.shape)
            return LOADED
        here = RunSession(found.options, session.dataset, session.net)
        optimizer = make_optimizer(here)
        run_state.restore(found, str(path), here, optimizer)
        batch = session.dataset.splits["dev"].take(np.arange(2, dtype=np.int32))
        session.net.step(batch, optimizer)
    except VertexrtError as error:
        text = str(error)
        told = text.startswith("[") and text.isprintable()
        return REFUSED if told else f"{FAILED}: says {text!r}"
    return SAME if same else LOADED


def _content(stored: run_state.StoredRun) -> list[Any]:
    checkpoint = stored.checkpoint
    arrays = {**checkpoint.parameters, **checkpoint.optimizer_state}
    bits = {
        name: (array.shape, str(array.dtype), array.tobytes()) for name, array in arrays.items()
    }
    return [bits, checkpoint.meta, checkpoint.optimizer]


def attack(count: int, seed: int, first: int = 0, jobs: int = 1) -> Tally:
    """Run cases first..first+count-1; return their tally."""
    with tempfile.TemporaryDirectory(prefix="vertexrt-run-") as folder:
        run = prepare(Path(folder))
        return run_in_children(make, (str(run), seed), count, jobs=jobs, first=first)
