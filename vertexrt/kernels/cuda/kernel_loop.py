"""Print the persistent kernel itself: a loop over the script that all processors follow.

All steps outside the path share one loop over blocks, and a table says which words of the kernel
are the arguments of each: with a loop of its own for each step, the function is 80 KB larger, and
takes a tenth of the time to compile a training kernel more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.cell_text import SharedSide
from vertexrt.kernels.cuda.instruction import FIRST_OP
from vertexrt.kernels.cuda.step_end import update_cases

# Sides of the path that a kernel has in one function; more get functions of their own, else the
# compiler keeps in registers what several have in common, and spills.
SIDES_TOGETHER = 2


def kernel_loop(shared: Sequence[SharedSide]) -> list[str]:
    """Print the kernel itself, given the functions of the sides of the path."""
    apart = sum(len(each.sides) for each in shared) > SIDES_TOGETHER
    sides = []
    for each in shared:
        numbers = " || ".join(f"in.program == {side}" for side in each.sides)
        # The address of an argument would have all arguments copied to the stack.
        call, job = (f"apart<{each.name}>", "work") if apart else (each.name, "a")
        sides += [
            f"    if ((in.op == FORWARD || in.op == BACKWARD) && ({numbers})) {{",
            f"      if (!{call}({job}, group, in.program, waits, at, met, group_barrier,",
            "                stamps)) {",
            "        close_cluster(a.o);",
            "        return;",
            "      }",
            "      continue;",
            "    }",
        ]
    return [
        "VRT_KERNEL(NAME, Work, PROCESSOR) {",
        "  unsigned met = 0;",
        "  Timestamps stamps(a.o);",
        "  const Work& work = load_shared_state(a);",
        "  const int group = blockIdx.x / PROCESSORS;",
        "  GroupBarrier group_barrier{a.o.counters + 2 + group, 0, 0, 0};",
        "  if (gave_up_before(a.o)) return;",
        "  if (a.o.members && !open_cluster(a.o, group_barrier.counter)) return;",
        "  for (int at = (int)a.o.begin; at < (int)a.o.end; ++at) {",
        "    const Instruction in = instruction(a.o, at);",
        "    const bool waits = in.wait != NO_WAIT && at > (int)a.o.begin;",
        "    stamps.begin(at);",
        *sides,
        "    if (waits && !grid_barrier(a.o, met, at)) return;",
        "    stamps.waited();",
        "    if (in.op == END) {",
        "      stamps.both();",
        "      return;",
        "    }",
        "    outside_path(work, in);",
        "    stamps.end();",
        "  }",
        "}",
    ]


class OutsideStep(NamedTuple):
    """A launch that all processors run: its function, and the numbers of the words it is given."""

    name: str
    words: Sequence[int]


def outside_path(
    steps: Sequence[OutsideStep],
    rules: Sequence[UpdateRule],
    own: tuple[int, int],
) -> list[str]:
    """Print it, with its tables.

    Args:
        steps: their opcodes are FIRST_OP and those after it.
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
        "    case SQUARES:",
        "      for_each_piece(a.o, [&](long long first) { sum_squares(a.o.store, first); });",
        "      break;",
        "    case FINISH:",
        "      if (blockIdx.x == gridDim.x - 1) finish_step<PROCESSOR>(a.o.finish);",
        "      break;",
        *update_cases(rules),
        "    default: {",
        f"      const int step = in.op - {FIRST_OP}, first = STEP_FIRST[step];",
        "      run_blocks(in, [&]() {",
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
