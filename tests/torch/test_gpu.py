"""Modules on a GPU: weights that move, the caller's stream, captures. See `test_kept.py`, too.

python -m tests.torch.test_gpu  # calls a module while a CUDA graph is captured
"""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.devices import gpu, on_gpus, require  # noqa: E402
from tests.torch.beside import (  # noqa: E402
    WIDTH,
    Node,
    TreeJudge,
    same,
    sides_at,
    total,
    trees,
)
from vertexrt.errors import UsageError  # noqa: E402


def module() -> tuple[Any, Any]:
    """Return a module on a GPU, and its judge."""
    require("cuda")
    net = vrt.compile(Node(), device="cuda", seed=2)
    return vt.Module(net), TreeJudge(net)


@gpu
def test_a_module_moves() -> None:
    there, judge = module()
    here, batch = copy.deepcopy(there).cpu(), trees()
    there = copy.deepcopy(here).to("cuda")
    for _ in range(2):
        for each in (here, there):
            same([each(batch)["h"]], [judge(batch)["h"]])
        with torch.no_grad():
            for each in (here, there, judge):
                each.embedding.mul_(2.0)
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
    mine, judge = module()
    moved = vt.BatchTensors(each.to("cuda") for each in vt.BatchTensors.of(trees(4)))
    expected = judge(trees(4))["h"][trees(4).roots.astype("int64")]
    same([mine(moved)["h"][moved.roots]], [expected])


@gpu
def test_streams_wait_for_each_other() -> None:
    mine, batch = module()[0], trees(4)
    x = torch.randn(batch.num_vertices, WIDTH, device="cuda")
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
    mine, batch, more = module()[0], trees(4), trees(7)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    inputs = [torch.randn(b.num_vertices, WIDTH, device="cuda") for b in (batch, more)]
    expected = [mine(b, x=x)["h"].clone() for b, x in zip((batch, more), inputs, strict=True)]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append(mine((batch, more)[k % 2], x=inputs[k % 2])["h"])
        mine.network(batch.with_pulls({"x": inputs[0].cpu().numpy()}))
        torch.cuda.synchronize()
        for k, h in enumerate(found):
            assert torch.equal(h, expected[k % 2])


@gpu
def test_a_pass_is_not_captured() -> None:
    """In a process of its own: a capture that ends in an error is felt by all that follows."""
    require("cuda")
    command = [sys.executable, "-m", "tests.torch.test_gpu"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert "a network inside of a CUDA graph" in run.stdout


@on_gpus
def test_it_compiles_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, judge = sides_at("module", device, "batched", monkeypatch)
    given = vt.BatchTensors.of(trees(3))
    torch.compiler.reset()
    whole = torch.compile(lambda x: mine.module(x)["h"], fullgraph=True, backend="aot_eager")
    found = [
        [h, *side.gradients(total([h]), [])]
        for h, side in (
            (whole(given), mine),
            (judge.module(given)["h"], judge),
        )
    ]
    same(*found)


@gpu
def test_weights_that_do_not_fit_on_chip() -> None:
    """They run by the batched engine."""
    require("cuda")
    judge = torch.nn.LSTM(2048, 2048).to("cuda")
    mine = vt.LSTM(2048, 2048).to("cuda")
    mine.load_state_dict(judge.state_dict())
    x = torch.randn(3, 2, 2048, device="cuda")
    torch.testing.assert_close(mine(x)[0], judge(x)[0], rtol=0.0, atol=1e-3)


def main() -> None:
    """Call a module while a CUDA graph is captured, print how it is refused, and call it again."""
    mine, batch = module()[0], trees(4)
    x = torch.randn(batch.num_vertices, WIDTH, device="cuda")
    expected = mine(batch, x=x)["h"]
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            mine(batch, x=x + 0.0)
    except UsageError as error:
        print(error)
    assert torch.equal(mine(batch, x=x)["h"], expected)


if __name__ == "__main__":
    main()
