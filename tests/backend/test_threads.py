"""Networks in several threads and processes: results are those of one thread, or an error."""

import copy
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_frozen import batch as batch_of
from tests.backend.test_open_training import Tree
from tests.runs import assert_bits
from tests.shim.build import available
from tests.shim_device import put_in_place
from vertexrt.engine.variant import Passes
from vertexrt.errors import DeviceError, UsageError
from vertexrt.native.blas import blas_threads

ROOT = Path(__file__).resolve().parents[2]


def network(device: str = "cpu", engine: str = "batched", threads: int = 2) -> vrt.Network:
    return vrt.compile(
        Tree(),
        device=device,
        engine=engine,
        threads=threads,
        seed=1,
        dtype="float64",
        passes=Passes(specialise=False),  # one kind of vertex
    )


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work in so many threads at once; raise what one of them raised."""
    begin = threading.Barrier(count)

    def one(k: int) -> None:
        begin.wait()
        work(k)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))


@pytest.mark.parametrize("engine", ["batched", "persistent"])
def test_evaluations_of_several_threads_are_apart(engine: str) -> None:
    net = network(engine=engine)
    batches = [batch_of(*range(k)) for k in (1, 2, 5, 9)]
    expected = [net(batch)["h"] for batch in batches]

    def work(k: int) -> None:
        for _ in range(20):
            assert np.array_equal(net(batches[k])["h"], expected[k])

    in_threads(4, work)


def test_steps_of_several_threads_come_one_after_the_other() -> None:
    nets, optimizers = [network(), network()], [vrt.Adam(0.01), vrt.Adam(0.01)]
    batch = batch_of(*range(5))
    in_threads(3, lambda _: [nets[0].step(batch, optimizers[0]) for _ in range(8)] and None)
    for _ in range(24):
        nets[1].step(batch, optimizers[1])
    assert_bits(nets[0].parameters, nets[1].parameters)


def test_blas_has_its_threads_again_after_networks_in_turn() -> None:
    nets, batch = [network(), network(engine="persistent")], batch_of(*range(5))
    with blas_threads().limit(limits=2):
        before = [pool["num_threads"] for pool in blas_threads().info()]
        assert set(before) == {2}
        in_threads(2, lambda k: [nets[k](batch) for _ in range(40)] and None)
        assert [pool["num_threads"] for pool in blas_threads().info()] == before


def run(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


HEAD = "import os, signal, threading, time\nfrom tests.backend.test_threads import *\n"


def test_threads_may_compile_at_once_in_a_new_process() -> None:
    code = """
function = Tree()  # one, which notes what it pulls while it is traced
found = {}

def work(k):
    options = {"device": "cpu", "seed": 1, "dtype": "float64"}
    made = network() if k % 2 else vrt.compile(function, **options)
    found[k] = made(batch_of(*range(4)))["h"].tobytes()

in_threads(6, work)
assert len(set(found.values())) == 1, found
"""
    run(HEAD + code)


def test_a_forked_child_goes_on() -> None:
    """With worker threads of its own, though another thread of the parent is in a step."""
    code = """
net, busy, batch = network(), network(engine="persistent"), batch_of(*range(5))
optimizer = vrt.SGD(0.1)
whole = batch_of(*range(20))
losses = [net.step(batch, optimizer) for _ in range(2)]
busy.step(batch, vrt.SGD(0.1))
other = threading.Thread(target=lambda: [busy.step(batch, vrt.SGD(0.1)) for _ in range(150)])
other.start()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        first = net.step(batch, optimizer)
        again = [busy.step(whole.take([k, k + 1]), vrt.SGD(0.1)) for k in range(3)]
        os.write(1, f"{first}\\n".encode())  # at once: others write too
        os._exit(0 if all(map(np.isfinite, again)) else 1)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
print(net.step(batch, optimizer))
other.join()
"""
    found = run(HEAD + code).split()
    assert len(found) == 5
    assert len(set(found)) == 1


@pytest.mark.skipif(not available(), reason="no C++ compiler")
def test_a_forked_child_of_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    net, batch = network("cuda"), batch_of(*range(2))
    net(batch)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pytest has threads
        child = os.fork()
    if child == 0:
        said = []
        for use in (lambda: net(batch), lambda: net.parameters["u"], net.sync):
            try:
                use()
                said.append("nothing")
            except DeviceError as error:
                said.append(str(error))
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        said = file.read().splitlines()
    assert said == 3 * [
        "[cuda] a forked child of a process that uses the GPU; a process of its own: CUDA does not "
        "live through a fork; start it by spawn: multiprocessing.get_context('spawn'), or for a "
        "DataLoader multiprocessing_context='spawn', and compile the network there."
    ]
    assert np.isfinite(net(batch)["loss"]).all()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_network_is_not_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(UsageError) as raised:
        copied(network(device="reference"))
    assert str(raised.value) == (
        "[network] a network is to be copied or pickled; arrays, which can be; compile the "
        "function again and copy the state: other.load_state(net.state())."
    )
