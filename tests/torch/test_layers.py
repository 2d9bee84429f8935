"""The recurrent layers against PyTorch's own, by the cases of PyTorch's own tests.

The cases are those of `torch.testing._internal.common_modules`, which its `test_modules.py` runs.
What that file checks of a module on a CPU is checked of each: forward, factory keywords, repr,
pickle, tensors that are not contiguous, gradients, conversion, state dicts. Second derivatives and
float16 are not there.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="PyTorch's test cases need expecttest")

from torch import cuda  # noqa: E402

import vertexrt.torch as vt  # noqa: E402
from tests.device_rows import put_row  # noqa: E402
from vertexrt.engine.devices import module_of  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402

DROP_INS = {torch.nn.LSTM: vt.LSTM, torch.nn.GRU: vt.GRU, torch.nn.RNN: vt.RNN}
ALL = pytest.mark.parametrize("theirs", DROP_INS, ids=lambda each: each.__name__)
BOUND = {"rtol": 0.0, "atol": 1e-10}


def cases(theirs: Any, training: bool, packed: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield arguments of the layer, and of its forward."""
    common = pytest.importorskip("torch.testing._internal.common_modules")
    (info,) = (each for each in common.module_db if each.module_cls is theirs)
    more = {"with_packed_sequence": True} if packed else {}
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=training, **more
    )
    assert len(inputs) >= 8
    for each in inputs:
        yield each.constructor_input, each.forward_input


def pair(theirs: Any, given: Any, training: bool) -> tuple[Any, Any]:
    """Return their layer and ours with its parameters."""
    judge = theirs(*given.args, **given.kwargs, dtype=torch.float64).train(training)
    mine = DROP_INS[theirs](*given.args, **given.kwargs, dtype=torch.float64).train(training)
    mine.load_state_dict(judge.state_dict())
    return mine, judge


def flat(result: Any) -> list[Any]:
    """Return all tensors of a result."""
    if isinstance(result, torch.nn.utils.rnn.PackedSequence):
        return [result.data, result.batch_sizes]
    return [x for each in result for x in flat(each)] if isinstance(result, tuple) else [result]


def leaves(forward: Any) -> list[Any]:
    """Return what is given to forward and can have a gradient."""
    return [x for arg in forward.args for x in flat(arg) if x.is_floating_point()]


def run(layer: Any, forward: Any) -> tuple[list[Any], list[Any]]:
    """Return the results, and gradients of inputs and parameters for drawn gradients of these."""
    found = flat(layer(*forward.args, **forward.kwargs))
    real = [x for x in found if x.is_floating_point()]
    torch.manual_seed(3)
    seeds = [torch.randn_like(x) for x in real]
    wanted = [x for x in leaves(forward) if x.requires_grad] + list(layer.parameters())
    return found, torch.autograd.grad(real, wanted, seeds)


def same(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, **BOUND)


@ALL
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_results_and_gradients_are_theirs(theirs: Any, training: bool, packed: bool) -> None:
    every = 1 if training else 4  # they differ where there is dropout alone
    for given, forward in list(cases(theirs, training, packed))[::every]:
        mine, judge = pair(theirs, given, training)
        assert isinstance(mine, theirs)
        assert list(mine.state_dict()) == list(judge.state_dict())
        for a, b in zip(run(mine, forward), run(judge, forward), strict=True):
            same(a, b)


@ALL
def test_names_copies_and_conversions(theirs: Any) -> None:
    for given, forward in list(cases(theirs, False))[::5]:
        mine, judge = pair(theirs, given, False)
        wanted = flat(judge(*forward.args))
        assert repr(mine) == repr(judge)
        for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
            same(flat(copied(*forward.args)), wanted)
            with torch.no_grad():
                next(copied.parameters()).zero_()
            same(flat(mine(*forward.args)), wanted)  # nothing is shared
        saved = io.BytesIO()
        torch.save(judge.state_dict(), saved)
        saved.seek(0)
        fresh = DROP_INS[theirs](*given.args, **given.kwargs, dtype=torch.float64)
        fresh.load_state_dict(torch.load(saved), assign=True)
        same(flat(fresh(*forward.args)), wanted)
        single = mine.float()(*(half(arg) for arg in forward.args))
        for a, b in zip(flat(single), wanted, strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a.double(), b, rtol=0.0, atol=1e-5)


def half(arg: Any) -> Any:
    """Return an argument in float32."""
    return tuple(map(half, arg)) if isinstance(arg, tuple) else arg.detach().float()


@ALL
def test_inputs_that_are_not_contiguous(theirs: Any) -> None:
    for given, forward in list(cases(theirs, True))[::5]:
        mine, _ = pair(theirs, given, True)
        wanted = flat(mine(*forward.args))
        spread = [
            torch.stack([x, x], -1)[..., 0] if isinstance(x, torch.Tensor) else x
            for x in forward.args
        ]
        same(flat(mine(*spread)), wanted)


@ALL
def test_gradients_by_differences(theirs: Any) -> None:
    for given, forward in list(cases(theirs, True))[::7]:
        mine, _ = pair(theirs, given, True)
        inputs = leaves(forward)
        names = [name for name, _ in mine.named_parameters()]

        def outputs(x: Any, *rest: Any, mine: Any = mine, names: Any = names) -> Any:
            states, weights = rest[: -len(names)], rest[-len(names) :]
            hx = (tuple(states) if len(states) > 1 else states[0],) if states else ()
            named = dict(zip(names, weights, strict=True))
            return tuple(flat(torch.func.functional_call(mine, named, (x, *hx))))

        weights = [p.detach().clone().requires_grad_() for p in mine.parameters()]
        assert torch.autograd.gradcheck(outputs, (*inputs, *weights))


@ALL
def test_their_errors(theirs: Any) -> None:
    mine, judge = DROP_INS[theirs](3, 4), theirs(3, 4)
    good = torch.zeros(1, 2, 4)
    lstm = theirs is torch.nn.LSTM
    state = (good, good) if lstm else good
    flat_state = (good[0], good[0]) if lstm else good[0]
    for args in (
        (torch.zeros(5, 2, 7),),
        (torch.zeros(1, 5, 2, 3),),
        (torch.zeros(5, 3, 3), state),
        (torch.zeros(5, 2, 3), flat_state),
        (torch.zeros(5, 3), state),
        (torch.zeros(5, 2, 3, dtype=torch.float64),),
    ):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            judge(*args)
        with pytest.raises(type(expected.value)) as found:
            mine(*args)
        assert str(found.value) == str(expected.value)


def test_layers_on_other_dtypes_and_devices() -> None:
    with pytest.raises(UsageError, match=r"float16.*float32 or float64"):
        vt.GRU(3, 4, dtype=torch.float16)
    layer = vt.GRU(3, 4, device="meta")
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(torch.nn.GRU(3, 4).state_dict())
    assert layer(torch.zeros(2, 1, 3))[0].shape == (2, 1, 4)


def test_dropout_between_layers_repeats_by_pytorchs_seed() -> None:
    layer, x = vt.LSTM(3, 8, num_layers=2, dropout=0.5), torch.ones(4, 2, 3)
    torch.manual_seed(1)
    first, second = layer(x)[0], layer(x)[0]
    torch.manual_seed(1)
    assert torch.equal(layer(x)[0], first)
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@ALL
def test_no_sequences_and_no_steps(theirs: Any) -> None:
    mine, judge = DROP_INS[theirs](3, 4, num_layers=2), theirs(3, 4, num_layers=2)
    x = torch.zeros(5, 0, 3, requires_grad=True)
    found, wanted = flat(mine(x)), flat(judge(x))
    assert [each.shape for each in found] == [each.shape for each in wanted]
    sum(each.sum() for each in found).backward()
    assert x.grad.shape == x.shape
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        mine(torch.zeros(0, 2, 3))


def test_equal_layers_are_compiled_once() -> None:
    """They have parameters of their own, and may run at once."""
    layers = [vt.GRU(3, 4, num_layers=2) for _ in range(4)]
    layers += [copy.deepcopy(layers[0]), vt.GRU(3, 5, num_layers=2)]
    compiled = [layer.binding.network.executor.model.variants for layer in layers]
    assert all(each is compiled[0] for each in compiled[:-1])
    assert compiled[-1] is not compiled[0]
    inputs = [torch.randn(n, 2, 3) for n in (3, 5, 2, 3, 4, 3)]

    def rounds(k: int) -> None:
        judge = torch.nn.GRU(3, layers[k].hidden_size, num_layers=2)
        judge.load_state_dict(layers[k].state_dict())
        for length in (1, 2, 3) * 3:
            x = inputs[k][:length]
            for layer in (judge, layers[k]):
                layer.zero_grad()
                layer(x)[0].square().sum().backward()
            for a, b in zip(layers[k].parameters(), judge.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad)

    with ThreadPoolExecutor(len(layers)) as threads:
        list(threads.map(rounds, range(len(layers))))


def test_a_gpu_gets_a_network_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs compiled for the host are not taken for another device."""
    layer, asked = vt.GRU(3, 4), []

    def compile_for(*_: object) -> Any:
        asked.append("cuda")
        return layer.binding.network.executor

    put_row(monkeypatch, "cuda", module_of("cpu"), compile_for)
    monkeypatch.setattr(cuda, "device", lambda _: contextlib.nullcontext())
    assert layer.source.network(torch.float32, torch.device("cpu")).device == "cpu"
    assert not asked  # the one there is
    layer.source.network(torch.float32, torch.device("cuda", 0))
    assert asked
