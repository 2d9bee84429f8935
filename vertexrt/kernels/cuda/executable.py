"""Task programs made ready for a device: modules loaded, steps encoded, words numbered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.kernels.cuda.device import Array, Device
from vertexrt.kernels.cuda.driver import IS_GEMM, WEIGHT, WORD, X, Y, encode, wide_sources
from vertexrt.kernels.cuda.in_place import alternatives_of, may_be_in_place
from vertexrt.kernels.cuda.launch_text import Kernel, Launches, csr, effects_of, write_launches
from vertexrt.kernels.cuda.pack import FIXED_WORDS
from vertexrt.kernels.cuda.row_text import EDGE_ORDER, EVERY_PTR, RELATION_PTR, above_word
from vertexrt.kernels.cuda.task_launches import NO_PLACES, LaunchLowering
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import gradient_owners
from vertexrt.scheduler.rows import CHILD_ROW, part_of

Int64 = npt.NDArray[np.int64]

REAL_WORD = re.compile(r"(float|seed)_\d+")  # of a real pull, or a seed


def kernel_name(body: str) -> str:
    """Name a kernel by its text, so that equal ones are one."""
    return "k_" + hashlib.sha256(body.encode()).hexdigest()[:16]


def kernel_sources(launches: Sequence[Launches]) -> dict[str, str]:
    """Write each kernel of some task programs as a module of its own: name -> source."""
    bodies = [s.body for x in launches for s in x.steps if isinstance(s, Kernel)]
    names = {kernel_name(body): body for body in bodies}
    return {
        name: f'#include "products.cuh"\n\n{body.replace("NAME", name, 1)}'
        for name, body in names.items()
    }


def word_names(binding: Binding) -> list[str]:
    """List the words of a run in order."""
    names = list(FIXED_WORDS)
    for what, count in (
        ("tensor", len(binding.tensors)),
        ("param", len(binding.params)),
        ("gradient", len(binding.params)),
        ("int", len(binding.ints)),
        ("float", len(binding.floats)),
        ("float_index", len(binding.floats)),
        ("seed", len(binding.d_pushes)),
        ("seed_row", len(binding.d_pushes)),
    ):
        names += [f"{what}_{k}" for k in range(count)]
    names += (EVERY_PTR, EDGE_ORDER, RELATION_PTR)[: binding.edge_words]
    return [*names, *map(above_word, range(max(binding.layers, default=0)))]


class Uploads:
    """What a session needs to know to upload a minibatch.

    Attributes:
        launches: of each program; effects: of all their steps.
        scratch: see `layout.Executable`.
        numbers: of the words, by name.
        wanted: [words] whether a kernel or a product reads it.
        num_ints: how many integer pulls there are.
        last_words: how many words of edges there are, and after them of layers.
        real_words: numbers of the words of real pulls, then of gradients of pushes.
        seed_rows: numbers of the words that say which row of a seed each row has.
        lookups_ptr, lookups: CSR of the integer pulls that each program's sorted lookups read.
        zero_elements: longest row that an absent child or pull reads.
    """

    def __init__(
        self, programs: Sequence[TaskProgram], launches: Sequence[Launches], binding: Binding
    ) -> None:
        self.scratch = [x.plan.needs for x in launches]
        self.launches = launches
        every = [step for x in launches for step in x.steps]
        self.effects = effects_of(every, gradient_owners(binding.params))
        self.numbers = {name: k for k, name in enumerate(word_names(binding))}
        self.wanted = np.zeros(len(self.numbers), np.bool_)
        self.lookups_ptr, self.lookups = csr([x.lookups for x in launches])
        self.num_ints = len(binding.ints)
        self.last_words = binding.edge_words, max(binding.layers, default=0)
        self.real_words = [self.numbers[name] for name in filter(REAL_WORD.fullmatch, self.numbers)]
        self.seed_rows = [self.numbers[f"seed_row_{k}"] for k in binding.d_pushes.values()]
        nodes = [node for p in programs for node in p.program.nodes]
        sizes = (node.type.size for node in nodes if node.type.dtype == "float")
        self.zero_elements = max(sizes, default=1)

    def want(self, words: Array | list[int]) -> None:
        """Mark words that kernels read; rows of gradients of pushes may be those of vertices."""
        self.wanted[words] = True
        if self.wanted[self.seed_rows].any():
            self.wanted[self.numbers["order"]] = True


class CudaExecutable(Uploads):
    """Task programs on a device; a session launches them (`session.py`).

    Attributes:
        sources: of the kernels, by name.
        program: what `driver.launch` reads; alternatives of `in_place` follow the task programs.
    """

    def __init__(
        self, programs: list[TaskProgram], binding: Binding, device: Device, dtype: npt.DTypeLike
    ) -> None:
        real = np.dtype(dtype)
        vector = 16 // real.itemsize
        others, self._alternatives, self._slots = alternatives_of(programs, binding)
        given = [*((p, NO_PLACES) for p in programs), *((x.task, x.places) for x in others)]
        launches = [
            write_launches(LaunchLowering(p, binding, vector, places=places).plan())
            for p, places in given
        ]
        super().__init__(programs, launches, binding)
        self.sources = kernel_sources(launches)
        kernels = device.load([*self.sources.values(), *wide_sources(device, real)], real)
        self.program = encode(launches, lambda s: kernels[kernel_name(s.body)], self.numbers)
        _, steps, step_words = self.program
        self.want(step_words[:-1])
        products = steps[steps[:, IS_GEMM] != 0]
        self.wanted[products[:, [WEIGHT, X + WORD, Y + WORD]]] = True

    def table_of(self, run: Run) -> Int64:
        """Return the launches of a run: where its layout allows it, without copies."""
        layout = run.layout
        if layout.launched is None:
            layout.launched = table = layout.table
            if self._slots and run.variant.passes.in_place:
                child_row = part_of(layout.indices, layout.extents, CHILD_ROW)
                other = self._alternatives
                if may_be_in_place(table, other, self._slots, child_row):
                    layout.launched = table.copy()
                    other = other[table[:, 0]]
                    layout.launched[:, 0] = np.where(other >= 0, other, table[:, 0])
        return layout.launched
