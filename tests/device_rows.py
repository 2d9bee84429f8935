"""Rows of the table of devices for tests: a device in another's place, or one that is watched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from vertexrt.engine import devices
from vertexrt.engine.devices import CompileOptions, DeviceModule
from vertexrt.engine.executor import Executor, Outputs, TrainStep
from vertexrt.ir.program import Program

Compile = Callable[[Program, CompileOptions], Executor]
StepCall = Callable[[Executor, TrainStep, int], None]  # the number of the step, from 1


def do_nothing(executor: Executor, step: TrainStep, number: int) -> None:
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


class WatchedExecutor:
    """An executor that is told before and after each step."""

    def __init__(self, executor: Executor, before: StepCall, after: StepCall) -> None:
        self._executor, self._before, self._after = executor, before, after
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def step(self, step: TrainStep) -> tuple[float, Outputs]:
        self._steps += 1
        self._before(self._executor, step, self._steps)
        found = self._executor.step(step)
        self._after(self._executor, step, self._steps)
        return found


def watch_steps(
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: StepCall = do_nothing,
    after: StepCall = do_nothing,
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
