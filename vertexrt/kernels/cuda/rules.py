"""Update rules in CUDA: a struct for each, of which `update.cuh` makes loops over pieces."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from vertexrt.ir.expressions import CUDA, translate
from vertexrt.ir.updates import RULES, UpdateRule
from vertexrt.kernels.cuda.step_end import MOST_SCALARS, THREADS


def struct_name(rule: UpdateRule) -> str:
    """Return the name of a rule's struct."""
    return f"Rule_{rule.name}"


def struct_of(rule: UpdateRule) -> str:
    """Write the struct of a rule: how many slots it has, and one element's step."""
    assert 2 + len(rule.scalars) <= MOST_SCALARS, f"{rule.name}: make Store longer"
    slots = [slot.name for slot in rule.state]
    there = ("value", "g", *slots)
    names = {f"s{k}": f"real(s[{k + 2}])" for k in range(len(rule.scalars))}
    names |= {name: f"{name}_" for name in (*there, *dict(rule.lines))}
    lines = [f"real {slot}_ = state[{k}];" for k, slot in enumerate(slots)]
    for name, expression in rule.lines:
        kind = "" if name in there else "const real "
        lines.append(f"{kind}{name}_ = {translate(expression, names, CUDA)};")
    lines += [f"state[{k}] = {slot}_;" for k, slot in enumerate(slots)]
    body = indent("\n".join(lines), " " * 8)
    return (
        f"struct {struct_name(rule)} {{\n"
        f"    static constexpr int SLOTS = {len(slots)};\n"
        "    __device__ __forceinline__ static void step(\n"
        "        real& value_, real g_, real* state, const double* s) {\n"
        f"{body}\n    }}\n}};\n"
    )


def structs(rules: Sequence[UpdateRule] = RULES) -> str:
    """Write the structs of rules."""
    return "".join(struct_of(rule) for rule in rules)


def kernels() -> str:
    """Write the kernels of all rules: one that joins, one that checks, and one that updates."""
    return "".join(
        f"VRT_KERNEL({what}_{rule.name}, {struct}, {THREADS}) "
        f"{{ {what}<{struct_name(rule)}>({given}); }}\n"
        for rule in RULES
        for what, struct, given in (
            ("join", "Joining", "a"),
            ("check", "Store", "a, FIRST_PIECE"),
            ("update", "Store", "a, FIRST_PIECE"),
        )
    )


def update_cases(rules: Sequence[UpdateRule]) -> list[str]:
    """Write the instructions of a persistent kernel that check and update by a rule, if any."""
    lines = []
    for name in map(struct_name, rules):
        check = f"[&](long long first) {{ check<{name}>(a.o.store, first); }}"
        lines.append(f"    case CHECK: for_each_piece(a.o, {check}); break;")
        lines.append(f"    case UPDATE: update_staged<{name}>(a.o.store); break;")
    return lines
