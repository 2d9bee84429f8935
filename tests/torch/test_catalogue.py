"""Every model of the catalogue as a module: gradients of all parameters by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.test_cuda_persistent import batch_of
from tests.backend.test_models import CASES, EMBED, HIDDEN, VOCAB, Case, graphs
from tests.backend.test_models import TREES as LABELLED
from tests.runs import Way
from vertexrt.models import TreeFC, TreeLSTM

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt.torch as vt  # noqa: E402

SIZES = {"vocab": VOCAB, "embed": EMBED, "hidden": HIDDEN, "classes": 3}
MORE: dict[str, Callable[[], Any]] = {
    "tree-fc": lambda: Case(lambda: TreeFC(VOCAB, HIDDEN), batch_of("tree-fc", 2), lambda *_: None),
    "tree-lstm": lambda: Case(lambda: TreeLSTM(**SIZES), graphs(LABELLED), lambda *_: None),
}


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_gradients_by_differences(name: str) -> None:
    case = (CASES.get(name) or MORE[name])()
    net = vt.Module(Way("cpu").with_values(Way("cpu").compile(case.model())))
    names = [name for name, p in net.named_parameters() if p.requires_grad]

    def loss(*weights: Any) -> Any:
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(net, named, (case.batch, ["loss"]))["loss"].sum()

    weights = [net.get_parameter(n).detach().clone().requires_grad_() for n in names]
    assert np.isfinite(loss(*weights).item())
    assert torch.autograd.gradcheck(loss, weights, fast_mode=True, atol=1e-6)
