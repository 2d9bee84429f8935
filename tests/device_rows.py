"""Rows of the table of devices for tests: a device in another's place, or one that is watched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from vertexrt.engine import devices
from vertexrt.engine.devices import DeviceModule
from vertexrt.engine.executor import Executor, Request
from vertexrt.engine.lazy import Loss
from vertexrt.engine.variant import CompileOptions
from vertexrt.ir.program import Program

Compile = Callable[[Program, CompileOptions], Executor]


class Taken(NamedTuple):
    """A step of a network.

    Attributes:
        asked: what it is to do; number: from 1.
        outputs: what it pushed; nothing yet before it.
    """

    executor: Executor
    asked: Request
    number: int
    outputs: Mapping[str, Any]


def do_nothing(taken: Taken) -> None:
    """Let a step pass."""


def put_row(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    like: DeviceModule,
    compile_for: Compile,
    usable: Callable[[], bool] = lambda: True,
) -> None:
    """Let the table have a device of this module, for which functions are compiled so.

    Args:
        like: has the check of options.
    """
    name = f"tests.row_of_{device}"
    row: Any = ModuleType(name)
    row.usable, row.check = usable, like.check
    row.compile_for = lambda _, traced, options: compile_for(traced, options)
    monkeypatch.setitem(sys.modules, name, row)
    monkeypatch.setitem(devices.MODULES, device, name)


OnStep = Callable[[Taken], None]


class WatchedExecutor:
    """An executor that is told before and after each step."""

    def __init__(self, executor: Executor, before: OnStep, after: OnStep) -> None:
        own = {"_executor": executor, "_before": before, "_after": after, "_steps": 0}
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._executor, name, value)

    def step(self, call: Request) -> Loss:
        vars(self)["_steps"] += 1
        self._before(Taken(self._executor, call, self._steps, {}))
        loss = self._executor.step(call)
        self._after(Taken(self._executor, call, self._steps, loss.outputs))
        return loss


def watch_steps(
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: OnStep = do_nothing,
    after: OnStep = do_nothing,
) -> None:
    """Call functions around the steps of every network that is compiled from now on."""
    for device in list(devices.MODULES):
        module = devices.module_of(device)

        def compile_for(
            traced: Program,
            options: CompileOptions,
            device: str = device,
            module: DeviceModule = module,
        ) -> Any:
            return WatchedExecutor(module.compile_for(device, traced, options), before, after)

        put_row(monkeypatch, device, module, compile_for, module.usable)
