"""Sequences of updates agree with PyTorch: every optimizer; `python -m tests.fuzz optimizers`."""

from __future__ import annotations

import pytest

from tests.devices import require, shim
from tests.fuzz import optimizers
from tests.fuzz.campaign import Settings
from tests.fuzz.test_fuzz import run

pytest.importorskip("torch", reason="PyTorch is an optional extra")
# Of PyTorch's schedules: they do not see that their optimizer is another's judge.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")


@pytest.mark.parametrize("first", range(0, 54, 18))
def test_updates(first: int) -> None:
    """Each optimizer in each way of the reference."""
    run(range(first, first + 18), Settings(), one=optimizers.run_one)


def test_updates_on_a_cpu() -> None:
    run(range(100, 106), Settings("cpu"), one=optimizers.run_one)


@shim
def test_updates_on_the_shim() -> None:
    run((200, 204, 213), Settings("shim"), one=optimizers.run_one)


@pytest.mark.gpu
def test_updates_on_a_gpu() -> None:
    require("cuda")
    run(range(300, 324), Settings("cuda"), one=optimizers.run_one)
