"""Any cell along sequences, with resets: against PyTorch's layers, and cells one step at a time."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from vertexrt import nn  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402

STEPS, COUNT, INPUT, SIZE = 6, 4, 3, 5


class Leaky(nn.Cell):
    """h = a h + tanh(W x), with one a: a cell of a user's own."""

    def __init__(self) -> None:
        self.weight = vrt.Parameter((SIZE, INPUT), vrt.init.normal(0.5))
        self.a = vrt.Parameter((SIZE,), vrt.init.constant(0.5))

    def __call__(self, x: Any, h: Any) -> Any:
        return self.a * h + vrt.tanh(self.weight @ x)


def leaky(weights: dict[str, Any], x: Any, h: Any) -> Any:
    return weights["a"] * h + torch.tanh(x @ weights["weight"].T)


def gru(weights: dict[str, Any], x: Any, h: Any) -> Any:
    cell = torch.nn.GRUCell(INPUT, SIZE, dtype=torch.float64)
    return torch.func.functional_call(cell, weights, (x, h))


def lstm(weights: dict[str, Any], x: Any, state: Any) -> Any:
    cell = torch.nn.LSTMCell(INPUT, SIZE, dtype=torch.float64)
    return torch.func.functional_call(cell, weights, (x, state))


MADE = {
    "leaky": lambda: (vt.Recurrent(Leaky(), INPUT, {"h": SIZE}), leaky, 1),
    "gru": lambda: (vt.Recurrent(nn.GRUCell(INPUT, SIZE), INPUT), gru, 1),
    "lstm": lambda: (vt.Recurrent(nn.LSTMCell(INPUT, SIZE), INPUT), lstm, 2),
}
CELLS = pytest.mark.parametrize("cell", MADE)


def by_steps(
    judge: Any, states: int, weights: Any, x: Any, start: Any, resets: Any
) -> tuple[Any, Any]:
    """Run a cell of PyTorch step by step over [T, B, I]; resets set its states to zero."""
    state, out = list(start), []
    for t in range(len(x)):
        if resets is not None:
            state = [torch.where(resets[t][:, None], 0.0, each) for each in state]
        found = judge(weights, x[t], tuple(state) if states > 1 else state[0])
        state = list(found) if states > 1 else [found]
        out.append(state[0])
    return torch.stack(out), tuple(state)


@CELLS
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("with_resets", [False, True])
def test_sequences_with_states_and_resets(
    cell: str, batch_first: bool, with_state: bool, with_resets: bool
) -> None:
    torch.manual_seed(5)
    mine, judge, states = MADE[cell]()
    mine.double()
    mine.batch_first = batch_first
    weights = dict(mine.named_parameters())
    x = torch.randn(STEPS, COUNT, INPUT, dtype=torch.float64, requires_grad=True)
    shape = COUNT, SIZE
    start = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(states)]
    resets = torch.rand(STEPS, COUNT) < 0.3 if with_resets else None
    swap = (lambda y: None if y is None else y.transpose(0, 1)) if batch_first else lambda y: y
    given = tuple(start) if with_state else None
    out, last = mine(swap(x), given, swap(resets))
    zeros = [torch.zeros_like(each) for each in start]
    wanted = by_steps(judge, states, weights, x, start if with_state else zeros, resets)
    torch.testing.assert_close(swap(out), wanted[0], rtol=0.0, atol=1e-12)
    torch.testing.assert_close(last, wanted[1], rtol=0.0, atol=1e-12)
    inputs = [x, *weights.values(), *(start if with_state else [])]
    seeds = [torch.randn_like(each) for each in (wanted[0], *wanted[1])]
    found = torch.autograd.grad([swap(out), *last], inputs, seeds)
    expected = torch.autograd.grad([wanted[0], *wanted[1]], inputs, seeds)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-11)


def test_packed_sequences_in_any_order() -> None:
    torch.manual_seed(6)
    mine, theirs = vt.Recurrent(nn.GRUCell(INPUT, SIZE), INPUT), torch.nn.GRU(INPUT, SIZE)
    mine.load_state_dict({n.removesuffix("_l0"): p for n, p in theirs.state_dict().items()})
    sequences = [torch.randn(n, INPUT) for n in (2, 6, 1, 4)]
    packed = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    start = torch.randn(4, SIZE)
    (a, (h,)), (b, g) = mine(packed, start), theirs(packed, start[None])
    torch.testing.assert_close(a.data, b.data)
    torch.testing.assert_close(h, g[0])
    h.square().sum().backward()
    g.square().sum().backward()
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(mine.get_parameter(name.removesuffix("_l0")).grad, p.grad)
    few = a._replace(unsorted_indices=torch.tensor([0, 1]))
    with pytest.raises(UsageError, match=r"unsorted_indices of shape \[2\]; one for each sequence"):
        mine(few._replace(data=packed.data))
    unpacked, lengths = torch.nn.utils.rnn.pad_packed_sequence(a)
    assert lengths.tolist() == [2, 6, 1, 4]
    assert unpacked.shape == (6, 4, SIZE)


@CELLS
def test_copies_are_apart(cell: str) -> None:
    mine, *_ = MADE[cell]()
    x = torch.randn(STEPS, COUNT, INPUT)
    wanted = mine(x)[0]
    for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert torch.equal(copied(x)[0], wanted)
        with torch.no_grad():
            next(copied.parameters()).add_(1.0)
        assert not torch.equal(copied(x)[0], wanted)
        assert torch.equal(mine(x)[0], wanted)


def test_mistakes_are_named() -> None:
    mine = vt.Recurrent(nn.LSTMCell(INPUT, SIZE), INPUT)
    x = torch.zeros(STEPS, COUNT, INPUT)
    with pytest.raises(UsageError, match=r"1 states; those of h, c"):
        mine(x, torch.zeros(COUNT, SIZE))
    with pytest.raises(UsageError, match=r"x of shape \[6, 3\]"):
        mine(x[:, 0])
    with pytest.raises(UsageError, match=r"bool of shape \[6, 4\]"):
        mine(x, None, torch.zeros(STEPS, COUNT))
    with pytest.raises(UsageError, match="whose states are not known"):
        vt.Recurrent(Leaky(), INPUT)


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_leaves_it_outside() -> None:
    mine = vt.Recurrent(nn.GRUCell(INPUT, SIZE), INPUT)
    x = torch.randn(STEPS, COUNT, INPUT, requires_grad=True)
    torch.compiler.reset()
    around = torch.compile(lambda given: mine(given)[0].sum(), backend="aot_eager")
    found, wanted = (
        torch.autograd.grad(way(x), x)[0] for way in (around, lambda y: mine(y)[0].sum())
    )
    torch.testing.assert_close(found, wanted)
