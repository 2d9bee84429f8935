"""Every optimizer that PyTorch has too, against PyTorch's, in float64."""

import numpy as np
import pytest

from tests.optimizers import OPTIMIZERS, STEPS, make_store, set_gradients

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")

SHAPES = {"w": (9, 7), "b": (9,)}


def title_of(name: str) -> str:
    return type(OPTIMIZERS[name]()).__name__


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if hasattr(torch.optim, title_of(n))])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rule_is_that_of_pytorch(name: str, decay: float) -> None:
    store, optimizer = make_store("float64", SHAPES), OPTIMIZERS[name](weight_decay=decay)
    tensors = {key: torch.tensor(store.value(key), requires_grad=True) for key in store.names}
    options = {k: v for k, v in optimizer.describe().items() if k not in ("class", "clip_norm")}
    theirs = getattr(torch.optim, title_of(name))(tensors.values(), **options)
    for step in range(STEPS):
        set_gradients(store, step)
        for key, tensor in tensors.items():
            tensor.grad = torch.tensor(store.gradient(key))
        theirs.step()
        optimizer.update(store)
        for key, tensor in tensors.items():
            np.testing.assert_allclose(store.value(key), tensor.detach(), rtol=1e-13, atol=1e-14)
