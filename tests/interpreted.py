"""A backend that interprets kernels: the oracle of the lowering, beside the renderers' results."""

from __future__ import annotations

import numpy as np

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.kernels.cpu.backend import CpuBackend
from vertexrt.kernels.layout import Binding, Buffers
from vertexrt.kernels.reference.interpret import LaunchedRows, interpret
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify


class InterpretedExecutable:
    """Kernels under interpretation."""

    def __init__(self, programs: list[TaskProgram], binding: Binding) -> None:
        self.kernels = [verify(lower(program, binding)) for program in programs]
        self.scratch = [kernel.needs for kernel in self.kernels]

    def run(self, table: np.ndarray, buffers: Buffers) -> None:
        for number, *launch in table.tolist():
            interpret(self.kernels[number], LaunchedRows(*launch, buffers.temporary), buffers)


class InterpretedBackend(CpuBackend):
    """The CPU's backend without its compiler."""

    def load(self, programs: list[TaskProgram], binding: Binding) -> InterpretedExecutable:
        return InterpretedExecutable(programs, binding)
