"""Print the persistent kernel itself: a loop over the script that all processors follow."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.kernels.cuda.shared_sides import SharedSide

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
        "    if (OVERLAP && in.overlap && in.op >= FIRST_OP && group < a.o.groups) continue;",
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
