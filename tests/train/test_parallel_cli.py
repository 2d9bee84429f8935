"""`vertexrt train` in several processes, by torchrun's environment, torchrun and mpiexec.

Where PyTorch or mpi4py is missing, tests skip; sums and steps are tested without them, in
`tests/pure/test_parallel_group.py` and `tests/backend/test_parallel_step.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.processes import ThreadCommunicator, together
from tests.train.cli_runs import (
    COMMAND,
    ROOT,
    records,
    require_same_checkpoint,
    without_times,
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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_all(size: int, command: list[str]) -> list[subprocess.Popen[str]]:
    """Start processes as torchrun does, without what watches them."""
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [*COMMAND, *command],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def epochs_done(run: Path) -> int:
    """Count the epochs that are in the metrics of a run."""
    done = (run / "last.safetensors").exists() and (run / "metrics.jsonl").exists()
    return max((line["epoch"] for line in records(run)), default=0) if done else 0


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("last.safetensors", "best.safetensors"):
        require_same_checkpoint(one / name, other / name)
    assert without_times(one) == without_times(other)


@torch
def test_two_processes_write_what_one_does(trees: Path, tmp_path: Path) -> None:
    one = alone(trees, tmp_path / "one", "--epochs", "2")
    both = start_all(2, words(trees, tmp_path / "two", "--epochs", "2"))
    first, second = (process.communicate(timeout=WAIT) for process in both)
    assert [process.returncode for process in both] == [0, 0], first[1] + second[1]
    assert "2 processes, each minibatch in 4 shares" in first[0]
    assert "best dev" in first[0]
    assert second[0] == "", "one process prints"
    assert_same_run(one, tmp_path / "two")
    assert not (tmp_path / "two" / "run.lock").exists()


@torch
def test_a_run_of_two_processes_goes_on_in_one(trees: Path, tmp_path: Path) -> None:
    one = alone(trees, tmp_path / "one", "--epochs", "3")
    both = start_all(2, words(trees, tmp_path / "two", "--epochs", "1"))
    for process in both:
        process.communicate(timeout=WAIT)
    assert [process.returncode for process in both] == [0, 0]
    assert main(["train", "--resume", str(tmp_path / "two"), "--epochs", "3", "--quiet"]) == 0
    assert_same_run(one, tmp_path / "two")


@torch
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_lost_process_is_an_error_within_ten_seconds(
    trees: Path, tmp_path: Path, signal_number: int
) -> None:
    run = tmp_path / "run"
    first, second = start_all(2, words(trees, run, "--epochs", "100000", "--quiet"))
    try:
        wait_for(lambda: epochs_done(run) >= 1)
        second.send_signal(signal_number)
        start = time.monotonic()
        assert first.stderr is not None
        complaint = first.stderr.readline()
        assert time.monotonic() - start < 10.0
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
    both = start_all(2, words(trees, run, "--epochs", "100000", "--quiet"))
    wait_for(lambda: epochs_done(run) >= 1)
    both[1].send_signal(signal.SIGTERM)
    (_, first), (_, second) = (process.communicate(timeout=WAIT) for process in both)
    assert [process.returncode for process in both] == [143, 143], first + second
    assert "SIGTERM came; stopped at epoch" in first
    assert second == "", "one process speaks"
    epoch = vrt.load_checkpoint(run / "last.safetensors").meta["state"]["epoch"]
    assert main(["train", "--resume", str(run), "--epochs", str(epoch + 1), "--quiet"]) == 0
    assert_same_run(alone(trees, tmp_path / "one", "--epochs", str(epoch + 1)), run)


@torch
def test_a_process_that_waits_for_others_can_be_ended(trees: Path, tmp_path: Path) -> None:
    first, second = start_all(2, words(trees, tmp_path / "run"))
    second.kill()
    second.communicate()
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for ten minutes
        first.wait(8.0)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=5.0)
    assert first.returncode in (-signal.SIGTERM, 143)
    assert not (tmp_path / "run").exists()


@torch
def test_torchrun_restarts_from_the_last_checkpoint(trees: Path, tmp_path: Path) -> None:
    """One of two processes is killed, and the run goes on to the same bits."""
    one, run = alone(trees, tmp_path / "one", "--epochs", "30"), tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", "2", "--master-port", str(free_port()), "-m", "vertexrt"]
    agent = subprocess.Popen(
        [*torchrun, *words(trees, run, "--epochs", "30", "--continue")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: epochs_done(run) >= 2)
    os.kill(worker(run, b"RANK=1"), signal.SIGKILL)
    said, _ = agent.communicate(timeout=WAIT)
    assert agent.returncode == 0, said
    assert f"continuing {run} after" in said
    assert_same_run(one, run)


def worker(run: Path, variable: bytes) -> int:
    """Return the process that trains in a run folder with a variable in its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            told = (process / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(run) in told and variable in (process / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(process.name))
    (pid,) = found
    return pid


@mpi
def test_a_run_of_mpiexec_goes_on_after_one_process_was_killed(trees: Path, tmp_path: Path) -> None:
    """MPI ends all processes when one dies; the same command line goes on."""
    one, run = alone(trees, tmp_path / "one", "--epochs", "60"), tmp_path / "two"
    command = [str(MPIEXEC), "-n", "2", *COMMAND, *words(trees, run, "--epochs", "60")]
    command.append("--continue")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as job:
        wait_for(lambda: epochs_done(run) >= 2)
        start = time.monotonic()
        os.kill(worker(run, b"PMI_RANK=1"), signal.SIGKILL)
        assert job.wait(WAIT) != 0
        assert time.monotonic() - start < 10.0
    assert epochs_done(run) < 60
    again = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT
    )
    assert again.returncode == 0, again.stderr
    assert f"continuing {run} after" in again.stdout
    assert_same_run(one, run)


@mpi
@pytest.mark.parametrize("size", [2, 4])
def test_mpiexec_gives_the_bits_of_one_process(trees: Path, tmp_path: Path, size: int) -> None:
    one, run = alone(trees, tmp_path / "one", "--epochs", "1"), tmp_path / "several"
    command = [str(MPIEXEC), "-n", str(size), *COMMAND, *words(trees, run, "--epochs", "1")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    assert f"{size} processes, each minibatch in 4 shares" in done.stdout
    assert_same_run(one, run)


def test_continue_begins_and_goes_on(
    trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = words(trees, tmp_path / "run", "--epochs", "1", "--continue")
    assert main(command) == 0
    assert "continuing" not in capsys.readouterr().out
    assert main([*command[:-3], "--epochs", "2", "--continue"]) == 0
    assert "continuing" in capsys.readouterr().out
    assert_same_run(alone(trees, tmp_path / "one", "--epochs", "2"), tmp_path / "run")
    assert main([*command[:4], "--continue"]) == 2
    assert "[--continue] no run folder" in capsys.readouterr().err


def test_shares_are_kept_and_checked(
    trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = alone(trees, tmp_path / "run", "--epochs", "1")
    assert main(["train", "--resume", str(run), "--epochs", "2", "--shares", "8"]) == 2
    assert f"got --shares 8, the run {run} has 4" in capsys.readouterr().err
    assert main([*words(trees, tmp_path / "other")[:-1], "3"]) == 2
    assert "[parallel] 3 shares for 1 process; a power of two" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_evaluations_add_up_as_in_one_process() -> None:
    options = resolve(parse(["train", "tree-fc", "--hidden", "2", "--device", "reference"]))

    def work(communicator: ThreadCommunicator) -> tuple[float, int, dict[str, float]]:
        session = open_session(options)
        totals = evaluate(session, "dev", batch_size=13, group=ProcessGroup(communicator))
        assert totals is not None
        return totals.loss, totals.graphs, totals.sums

    (one,) = together(1, work)
    assert isinstance(one, tuple), one
    assert one[1] == one[2]["numbers"] == 64, "in five minibatches"
    for size in (2, 3):
        assert together(size, work) == [one] * size


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


def test_random_numbers_of_an_evaluation_are_those_of_one_process(
    trees: Path, tmp_path: Path
) -> None:
    """A model may draw in inference: what others evaluate counts too."""
    (tmp_path / "noisy.py").write_text(NOISY)
    line = f"train {tmp_path / 'noisy.py'}:Noisy --data {trees} --task loss --lr 0.1"
    options = resolve(parse([*line.split(), "--device", "reference", "--batch-size", "8"]))
    assert options.format == "trees"

    def work(communicator: ThreadCommunicator) -> tuple[float, dict[str, int]]:
        session = open_session(options)
        totals = evaluate(session, "dev", batch_size=8, group=ProcessGroup(communicator))
        assert totals is not None
        return totals.loss, session.net.state()["random"]

    (one,) = together(1, work)
    assert isinstance(one, tuple), one
    assert one[1]["draws"] == 9, "minibatches"
    assert together(2, work) == [one] * 2


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
