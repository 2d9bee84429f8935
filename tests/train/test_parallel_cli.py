"""`vertexrt train` in several processes, by torchrun's environment, torchrun and mpiexec.

Where PyTorch or mpi4py is missing, tests skip; sums and steps are tested without them, in
`tests/pure/test_parallel_group.py` and `tests/backend/test_parallel_step.py`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes import ThreadCommunicator, free_port, together
from tests.train.cli_runs import (
    COMMAND,
    Cli,
    records,
    require_same_run,
    start,
    state_of,
    write_trees,
)
from vertexrt.cli.main import main
from vertexrt.cli.options import parse
from vertexrt.cli.run_folder import RunFolder
from vertexrt.cli.session import evaluate, open_session, resolve
from vertexrt.cli.train import open_folder
from vertexrt.errors import ParallelError, UsageError
from vertexrt.parallel import ProcessGroup

MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="mpi4py or mpich is not installed"
)
WAIT = 120.0  # seconds, on a machine that is busy


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    return write_trees(tmp_path / "trees", 24, 70, 8)


def words(trees: Path, out: Path, *more: str) -> list[str]:
    """Return the words of a command line that trains in four shares."""
    sizes = "--hidden 6 --embed 5 --batch-size 8 --device cpu --threads 1 --shares 4"
    return ["train", "tree-lstm", "--data", str(trees), "--out", str(out), *sizes.split(), *more]


def alone(trees: Path, out: Path, *more: str) -> Path:
    """Train in this process."""
    assert main([*words(trees, out, *more), "--quiet"]) == 0
    return out


def goes_on(run: Path, epochs: int) -> None:
    assert main(["train", "--resume", str(run), "--epochs", str(epochs), "--quiet"]) == 0


def start_two(command: list[str]) -> list[subprocess.Popen[str]]:
    """Start two processes as torchrun does, without what watches them."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(free_port())
    return [start(*COMMAND, *command, **shared, RANK=str(rank)) for rank in range(2)]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def epochs_done(run: Path) -> int:
    """Count the epochs that are in the metrics of a run."""
    done = (run / "last.safetensors").exists() and (run / "metrics.jsonl").exists()
    return max((line["epoch"] for line in records(run)), default=0) if done else 0


@torch
def test_two_processes_write_what_one_does(trees: Path, tmp_path: Path) -> None:
    one, run = alone(trees, tmp_path / "one", "--epochs", "2"), tmp_path / "two"
    both = start_two(words(trees, run, "--epochs", "2"))
    first, second = (process.communicate(timeout=WAIT) for process in both)
    assert [process.returncode for process in both] == [0, 0], first[1] + second[1]
    assert "2 processes, each minibatch in 4 shares" in first[0]
    assert "best dev" in first[0]
    assert second[0] == "", "one process prints"
    assert not (run / "run.lock").exists()
    require_same_run(one, run)
    for each in (one, run):  # in one process
        goes_on(each, 3)
    require_same_run(one, run)


@torch
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_lost_process_is_an_error_within_ten_seconds(
    trees: Path, tmp_path: Path, signal_number: int
) -> None:
    run = tmp_path / "run"
    first, second = start_two(words(trees, run, "--epochs", "100000", "--quiet"))
    try:
        wait_for(lambda: epochs_done(run) >= 1)
        second.send_signal(signal_number)
        since = time.monotonic()
        assert first.stderr is not None
        complaint = first.stderr.readline()
        assert time.monotonic() - since < 10.0
        assert first.wait(WAIT) == 1
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert complaint.startswith("vertexrt: [parallel] process 1 of 2 has "), complaint
    assert f"The last good checkpoint is {run / 'last.safetensors'}" in complaint


@torch
def test_a_signal_to_one_stops_all_at_the_same_minibatch(trees: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = start_two(words(trees, run, "--epochs", "100000", "--quiet"))
    wait_for(lambda: epochs_done(run) >= 1)
    both[1].send_signal(signal.SIGTERM)
    (_, first), (_, second) = (process.communicate(timeout=WAIT) for process in both)
    assert [process.returncode for process in both] == [143, 143], first + second
    assert "SIGTERM came; stopped at epoch" in first
    assert second == "", "one process speaks"
    epoch = state_of(run)["epoch"] + 1
    goes_on(run, epoch)
    require_same_run(alone(trees, tmp_path / "one", "--epochs", str(epoch)), run)


@torch
def test_a_process_that_waits_for_others_can_be_ended(trees: Path, tmp_path: Path) -> None:
    first, second = start_two(words(trees, tmp_path / "run"))
    second.kill()
    second.communicate()
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for ten minutes
        first.wait(8.0)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=5.0)
    assert first.returncode in (-signal.SIGTERM, 143)
    assert not (tmp_path / "run").exists()


def worker(run: Path, variable: bytes) -> int:
    """Return the process that trains in a run folder with a variable in its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            told = (process / "cmdline").read_bytes().split(b"\0")
            given = (process / "environ").read_bytes().split(b"\0")
            if os.fsencode(run) in told and variable in given:
                found.append(int(process.name))
    (pid,) = found
    return pid


@torch
def test_torchrun_restarts_from_the_last_checkpoint(trees: Path, tmp_path: Path) -> None:
    """One of two processes is killed, and the run goes on to the same bits."""
    one, run = alone(trees, tmp_path / "one", "--epochs", "30"), tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", "2", "--master-port", str(free_port()), "-m", "vertexrt"]
    agent = start(*torchrun, *words(trees, run, "--epochs", "30", "--continue"))
    wait_for(lambda: epochs_done(run) >= 2)
    os.kill(worker(run, b"RANK=1"), signal.SIGKILL)
    said, wrong = agent.communicate(timeout=WAIT)
    assert agent.returncode == 0, wrong
    assert f"continuing {run} after" in said
    require_same_run(one, run)


@mpi
def test_a_run_of_mpiexec_goes_on_after_one_process_was_killed(trees: Path, tmp_path: Path) -> None:
    """MPI ends all processes when one dies; the same command line goes on."""
    one, run = alone(trees, tmp_path / "one", "--epochs", "60"), tmp_path / "two"
    command = [str(MPIEXEC), "-n", "2", *COMMAND, *words(trees, run, "--epochs", "60")]
    command.append("--continue")
    with start(*command) as job:
        wait_for(lambda: epochs_done(run) >= 2)
        since = time.monotonic()
        os.kill(worker(run, b"PMI_RANK=1"), signal.SIGKILL)
        job.communicate(timeout=WAIT)
        assert job.returncode != 0
        assert time.monotonic() - since < 10.0
    assert epochs_done(run) < 60
    with start(*command) as again:
        said, wrong = again.communicate(timeout=WAIT)
    assert again.returncode == 0, wrong
    assert f"continuing {run} after" in said
    require_same_run(one, run)


@torch
def test_the_benchmark_compares_groups() -> None:
    """`python -m benchmarks.parallel` runs on a CPU: bits, then ratios of groups in turns."""
    words = "--device cpu --models tree-lstm --batch 6 --steps 1 --rounds 2 --vocabulary 50"
    run = start(sys.executable, "-m", "benchmarks.parallel", *words.split())
    said, wrong = run.communicate(timeout=300)
    assert run.returncode == 0, wrong
    assert "same bits after 4 steps of 6 with 1,2 processes" in said
    assert len(re.findall(r"2 to 1, (the same|its own) minibatch of [36]:", said)) == 2


def test_continue_and_shares_in_one_process(cli: Cli) -> None:
    def shared(run: str, words: str, code: int = 0) -> str:
        return cli.train(run, f"--device cpu --threads 1 {words}", code)

    assert "continuing" not in shared("new", "--shares 4 --epochs 1 --continue")
    assert "continuing" in shared("new", "--shares 4 --epochs 2 --continue")
    shared("one", "--shares 4 --epochs 2")
    require_same_run("one", "new")
    shown = cli("train --resume new --epochs 3 --shares 8", code=2)
    assert "got --shares 8, the run new has 4" in shown
    shown = shared("other", "--shares 3", code=2)
    assert "[parallel] 3 shares for 1 process; a power of two" in shown
    assert not Path("other").exists()


NOISY = """
import vertexrt as vrt


class Noisy(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=2, state={"h": 3})
        self.w = vrt.Parameter((3, 3))

    def forward(self):
        h = vrt.tanh(self.w @ vrt.random.uniform(3) + self.gather(0).h + self.gather(1).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))
"""


def evaluated(line: str, batch_size: int) -> tuple[int, float, dict[str, float], int]:
    """Evaluate in one, two and three processes, and require the same of all.

    Returns: how many graphs there were, the loss, the sums and the random draws.
    """
    options = resolve(parse([*line.split(), "--device", "reference"]))

    def work(communicator: ThreadCommunicator) -> tuple[int, float, dict[str, float], int]:
        session = open_session(options)
        found = evaluate(session, "dev", batch_size=batch_size, group=ProcessGroup(communicator))
        assert found is not None
        return found.graphs, found.loss, found.sums, session.net.state()["random"]["draws"]

    (one,) = together(1, work)
    assert isinstance(one, tuple), one
    for size in (2, 3):
        assert together(size, work) == [one] * size
    return one


def test_evaluations_add_up_as_in_one_process(trees: Path, tmp_path: Path) -> None:
    """A model may draw in inference: what others evaluate counts too."""
    graphs, _, sums, _ = evaluated("train tree-fc --hidden 2", 13)
    assert graphs == sums["numbers"] == 64, "in five minibatches"
    (tmp_path / "noisy.py").write_text(NOISY)
    model = f"{tmp_path / 'noisy.py'}:Noisy"
    *_, draws = evaluated(f"train {model} --data {trees} --task loss", 8)
    assert draws == 9, "minibatches"


def test_a_folder_that_cannot_be_made_stops_all(tmp_path: Path) -> None:
    def make() -> RunFolder:
        raise UsageError.at("--out", "a folder", "another", "Give one")

    def work(communicator: ThreadCommunicator) -> RunFolder:
        return open_folder(ProcessGroup(communicator), make)

    first, second = together(2, work)
    assert isinstance(first, UsageError)
    assert isinstance(second, ParallelError)
    assert "process 0 has stopped" in str(second)

    def good(communicator: ThreadCommunicator) -> RunFolder:
        return open_folder(ProcessGroup(communicator), lambda: RunFolder(tmp_path))

    found = together(2, good)
    assert [(each.path, each.writes) for each in found] == [  # type: ignore[union-attr]
        (tmp_path, True),
        (tmp_path, False),
    ]
