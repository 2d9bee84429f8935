"""Print the function of a persistent kernel that runs an instruction outside the path.

All steps share one loop over blocks, and a table says which words of the kernel are the arguments
of each: with a loop of its own for each step, the function is 80 KB larger, and takes a tenth of
the time to compile a training kernel more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.instruction import FIRST_OP
from vertexrt.kernels.cuda.rules import update_cases


class OutsideStep(NamedTuple):
    """A launch that all processors run: its function, and the numbers of the words it is given."""

    name: str
    words: Sequence[int]


def outside_path(
    steps: Sequence[OutsideStep],
    collect: Iterable[str],
    rules: Sequence[UpdateRule],
    own: tuple[int, int],
) -> list[str]:
    """Print it, with its tables.

    Args:
        steps: their opcodes are FIRST_OP and those after it.
        collect: statements of the instruction COLLECT.
        own: numbers of the words to which an instruction adds where its temporaries begin, and its
            counters.
    """
    words = [word for step in steps for word in step.words]
    first = accumulate((len(step.words) for step in steps), initial=0)
    cases: dict[str, list[int]] = {}
    for k, step in enumerate(steps):
        call = f"{step.name}(step_arguments<Args<{max(len(step.words), 1)}>>()); break;"
        cases.setdefault(call, []).append(FIRST_OP + k)
    return [
        f"__constant__ const short STEP_WORDS[] = {{{', '.join(map(str, [*words, 0]))}}};",
        f"__constant__ const short STEP_FIRST[] = {{{', '.join(map(str, first))}}};",
        "",
        "__device__ __noinline__ void outside_path(const Work& a, const Instruction in) {",
        "  switch (in.op) {",
        "    case COLLECT: {",
        *(f"      {line}" for line in collect),
        "      break;",
        "    }",
        "    case SQUARES:",
        "      for_each_piece(a.o, [&](long long first) { sum_squares(a.o.store, first); });",
        "      break;",
        "    case FINISH:",
        "      if (blockIdx.x == gridDim.x - 1) finish_step<PROCESSOR>(a.o.finish);",
        "      break;",
        *update_cases(rules),
        "    default: {",
        f"      const int step = in.op - {FIRST_OP}, first = STEP_FIRST[step];",
        "      run_blocks<PROCESSORS>(a.o, in, [&]() {",
        f"        fill_arguments(in, a.w, STEP_WORDS + first, STEP_FIRST[step + 1] - first, "
        f"{own[0]}, {own[1]});",
        "      }, [&]() {",
        "        switch (in.op) {",
        *(f"        {' '.join(f'case {op}:' for op in ops)} {call}" for call, ops in cases.items()),
        "        }",
        "      });",
        "    }",
        "  }",
        "}",
    ]
