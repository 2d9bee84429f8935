"""Modules on a GPU: weights in its memory, tensors that stay there, the caller's stream.

A module around the shim has tensors of the host, since the shim's memory is; what is moved by
`.to("cuda")` needs a GPU.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.devices import SHIM_AND_GPU, gpu, require  # noqa: E402
from tests.shim_device import put_in_place  # noqa: E402
from tests.torch.test_module import SIZE, Node, trees  # noqa: E402
from vertexrt import nn  # noqa: E402
from vertexrt.api.network import Network  # noqa: E402
from vertexrt.engine.devices import module_of  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402
from vertexrt.torch.binding import BoundNetwork  # noqa: E402

ENGINES = ["batched", "persistent"]


def modules(device: str, engine: str, patch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return a module on the device, and one of the host with the same numbers in float64."""
    require(device)
    if device == "shim":
        put_in_place(patch)
    more = {"processors": 4} if engine == "persistent" else {}
    mine = vt.Module(vrt.compile(Node(), device="cuda", engine=engine, seed=2, **more))
    judge = vt.Module(vrt.compile(Node(), device="cpu", dtype="float64", seed=2))
    judge.load_state_dict({n: p.double().cpu() for n, p in mine.state_dict().items()})
    return mine, judge


def compile_again(layer: Any, engine: str) -> None:
    """Let a layer compute by an engine of a GPU, or of the shim."""
    source = layer.source
    processors = 4 if engine == "persistent" else None
    options = replace(source.options, engine=engine, processors=processors)
    executor = module_of("cuda").compile_for("cuda", source.traced, options)
    layer.binding = BoundNetwork(Network(executor, 0, source.reduction))
    layer.bind()


def assert_near(found: Any, wanted: Any) -> None:
    scale = max(1.0, wanted.detach().abs().max().item())
    torch.testing.assert_close(found.double().cpu(), wanted.cpu(), rtol=0.0, atol=2e-5 * scale)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize("engine", ENGINES)
def test_training(device: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, judge = modules(device, engine, monkeypatch)
    steps = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (mine, judge)]
    place = next(mine.parameters()).device
    assert place.type == ("cpu" if device == "shim" else "cuda")
    for count in (3, 2, 4):
        batch = trees(count)
        torch.manual_seed(count)
        x = torch.randn(batch.num_vertices, SIZE, dtype=torch.float64)
        ours = x.to(place, torch.float32).requires_grad_()
        theirs = x.clone().requires_grad_()
        for step, module, given in ((steps[0], mine, ours), (steps[1], judge, theirs)):
            step.zero_grad()
            found = module(batch, x=given)
            (found["h"].square().sum() + found["loss"].mean()).backward()
        assert_near(ours.grad, theirs.grad)
        for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if q.grad is not None:
                assert p.grad.device == place
                assert_near(p.grad, q.grad)
        for step in steps:
            step.step()
    for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
        assert_near(p, q)
    for name, value in judge.network.parameters.items():
        np.testing.assert_allclose(mine.network.parameters[name], value, atol=2e-5)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_passes_that_are_alive_together(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, judge = modules(device, "batched", monkeypatch)
    for module in (mine, judge):
        a, b = module(trees(2))["h"], module(trees(3))["h"]
        loss = (a.sum() * b.sum()).square()
        loss.backward(retain_graph=True)
        loss.backward()
    for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
        if q.grad is not None:
            assert_near(p.grad, q.grad)


@gpu
def test_a_module_moves() -> None:
    require("cuda")
    here = vt.Module(vrt.compile(Node(), device="cpu", seed=2))
    there, batch = copy.deepcopy(here).to("cuda"), trees()
    assert_near(there(batch)["h"], here(batch)["h"].double())
    with torch.no_grad():
        there.embedding.mul_(2.0)
        here.embedding.mul_(2.0)
    assert_near(there(batch)["h"], here(batch)["h"].double())
    back = copy.deepcopy(there).cpu()
    assert torch.equal(back.embedding, here.embedding)
    assert torch.equal(back(batch)["h"], here(batch)["h"])
    there.load_state_dict(here.state_dict())
    assert there.network.device == "cuda"
    assert there.embedding.device.type == "cuda"
    with pytest.raises(UsageError, match="float32 or float64"):
        there.bfloat16()


@gpu
def test_tensors_of_a_batch_move_as_training_loops_move_them() -> None:
    require("cuda")
    mine, given = vt.Module(vrt.compile(Node(), device="cuda", seed=2)), trees(4)
    moved = vt.BatchTensors(each.to("cuda") for each in vt.BatchTensors.of(given))
    expected = mine(given)["h"]
    assert_near(mine(moved)["h"][moved.roots], expected[given.roots].double())


@gpu
def test_streams_wait_for_each_other() -> None:
    require("cuda")
    mine, batch = vt.Module(vrt.compile(Node(), device="cuda", seed=2)), trees(4)
    x = torch.randn(batch.num_vertices, SIZE, device="cuda")
    expected = mine(batch, x=x)["h"]
    side, slow = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        late = torch.zeros_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for _ in range(20):
                slow @ slow  # takes a while
            late.copy_(x)
            found = mine(batch, x=late)["h"] + 0.0
        side.synchronize()
        assert torch.equal(found, expected)


@gpu
def test_passes_on_streams_in_turn() -> None:
    """Each is on the stream of its caller, and after those before it; steps are on another."""
    require("cuda")
    net = vrt.compile(Node(), device="cuda", seed=2)
    mine, batch, more = vt.Module(net), trees(4), trees(7)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    inputs = [torch.randn(b.num_vertices, SIZE, device="cuda") for b in (batch, more)]
    expected = [mine(b, x=x)["h"].clone() for b, x in zip((batch, more), inputs, strict=True)]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append(mine((batch, more)[k % 2], x=inputs[k % 2])["h"])
        net(batch.with_pulls({"x": inputs[0].cpu().numpy()}))
        torch.cuda.synchronize()
        for k, h in enumerate(found):
            assert torch.equal(h, expected[k % 2])


@gpu
def test_a_pass_is_not_captured() -> None:
    """In a process of its own: a capture that ends in an error is felt by all that follows."""
    require("cuda")
    command = [sys.executable, "-m", "tests.torch.captured_pass"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert "a network inside of a CUDA graph" in run.stdout


@gpu
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("size", [16, 256])
def test_layers(name: str, size: int) -> None:
    require("cuda")
    torch.manual_seed(1)
    more = {"num_layers": 2, "bidirectional": True}
    judge = getattr(torch.nn, name)(size, size, **more).to("cuda", torch.float64)
    mine = getattr(vt, name)(size, size, **more).to("cuda")
    mine.load_state_dict(judge.state_dict())
    given = [torch.randn(n, size, device="cuda") for n in (7, 3, 5)]
    packed = torch.nn.utils.rnn.pack_sequence(given, enforce_sorted=False)
    found, states = mine(packed)
    wanted, expected = judge(packed.to(torch.float64))
    assert_near(found.data, wanted.data)
    pairs = (
        [(states, expected)]
        if isinstance(states, torch.Tensor)
        else zip(states, expected, strict=True)
    )
    for a, b in pairs:
        assert_near(a, b)
    found.data.square().sum().backward()
    wanted.data.square().sum().backward()
    for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
        assert_near(p.grad, q.grad)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize("engine", ENGINES)
def test_chains_of_packed_steps(device: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are given, and wanted, time by time; states with gradients go in and come out."""
    require(device)
    if device == "shim":
        put_in_place(monkeypatch)
    judge, mine = torch.nn.LSTM(SIZE, 8).double(), vt.LSTM(SIZE, 8)
    if device == "cuda":
        mine.to("cuda")
    compile_again(mine, engine)
    mine.load_state_dict({n: p.float() for n, p in judge.state_dict().items()})
    weights = list(mine.parameters())
    place = weights[0].device
    torch.manual_seed(0)
    for lengths in ((5, 3, 2), (4,)):
        packed = torch.nn.utils.rnn.pack_sequence([torch.randn(n, SIZE) for n in lengths])
        theirs = [packed.data, *torch.randn(2, len(lengths), 8)]
        ours = [each.to(place).requires_grad_() for each in theirs]
        theirs = [each.double().requires_grad_() for each in theirs]
        wanted, states = judge(packed._replace(data=theirs[0]), (theirs[1][None], theirs[2][None]))
        for used in ((0, 1, 2), (0,), (2,)):
            given = packed._replace(data=ours[0]), (ours[1][None], ours[2][None])
            out, last = mine(*given)
            found, expected = [out.data, *last], [wanted.data, *states]
            for a, b in zip(found, expected, strict=True):
                assert_near(a, b)
            pairs = ((found, [*ours, *weights]), (expected, [*theirs, *judge.parameters()]))
            a, b = (
                torch.autograd.grad(sum(way[k].square().sum() for k in used), of, retain_graph=True)
                for way, of in pairs
            )
            for ours_d, other in zip(a, b, strict=True):
                assert_near(ours_d, other)


@gpu
def test_resets_on_a_gpu() -> None:
    require("cuda")
    here = vt.Recurrent(nn.GRUCell(8, 16), 8)
    there = copy.deepcopy(here).to("cuda")
    x, resets = torch.randn(9, 4, 8), torch.rand(9, 4) < 0.3
    for a, b in ((here(x, resets=resets), there(x.cuda(), resets=resets.cuda())),):
        assert_near(b[0], a[0].double())
        assert_near(b[1][0], a[1][0].double())


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_it_compiles_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, judge = modules(device, "batched", monkeypatch)
    batch, given = trees(3), vt.BatchTensors.of(trees(3))
    whole = torch.compile(lambda x: mine(x)["h"].sum(), fullgraph=True, backend="aot_eager")
    found, wanted = whole(given), judge(batch)["h"].sum()
    assert_near(found, wanted)
    found.backward()
    wanted.backward()
    for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            assert_near(p.grad, q.grad)


@gpu
def test_weights_that_do_not_fit_on_chip() -> None:
    """They run by the batched engine."""
    require("cuda")
    judge = torch.nn.LSTM(2048, 2048).to("cuda")
    mine = vt.LSTM(2048, 2048).to("cuda")
    mine.load_state_dict(judge.state_dict())
    x = torch.randn(3, 2, 2048, device="cuda")
    torch.testing.assert_close(mine(x)[0], judge(x)[0], rtol=0.0, atol=1e-3)
