"""Print programs: one node a line, with its stage, type and user line."""

from __future__ import annotations

from vertexrt.ir.program import FunctionSite, Node, Program


def format_node(index: int, node: Node, stage: bool = False) -> str:
    """Format one node: `%3 = matmul(%0, %2) transpose=False : float[4]`."""
    operands = ", ".join(f"%{i}" for i in node.inputs)
    attrs = "".join(
        f" {key}={_plain(value)}"
        for key, value in node.attrs
        if key not in ("shape", "dtype") or node.op == "const"
    )
    mark = f"{node.stage.word:5} " if stage else ""
    if node.type.dtype == "none":
        return f"{mark}{node.op}({operands}){attrs}"
    return f"{mark}%{index} = {node.op}({operands}){attrs} : {node.type}"


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(_plain(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_program(program: Program, stages: bool = False) -> str:
    """Print a whole program under its name, parameters and state."""
    params = ", ".join(
        f"{n}{list(s)}{' (frozen)' if n in program.frozen else ''}"
        for n, s in program.params.items()
    )
    state = ", ".join(f"{n}[{s}]" for n, s in program.state.items())
    arity = "any number of" if program.arity is None else program.arity
    children = f"{len(program.sites)} vertex types" if program.sites else f"{arity} children"
    lines = [
        f"{program.name}: {children}, state {state or 'none'}, parameters {params or 'none'}",
        *(f"  stacked: {' + '.join(names)}" for names in program.stacks),
    ]
    seen: set[int] = set()
    for k, node in enumerate(program.nodes):
        if program.sites and node.function not in seen:
            seen.add(node.function)
            lines.append(f"  {_site(program.sites[node.function], program)}")
        lines.append("  " + format_node(k, node, stages))
    return "\n".join(lines)


def _site(site: FunctionSite, program: Program) -> str:
    """Format how a vertex function stands in a network: what its vertices read of which types."""
    reads = [
        f"{'all ' if slot >= site.slots else ''}{relation} of "
        + " or ".join(program.sites[child].name for child in site.children[slot])
        for slot, relation in enumerate(site.relations)
    ]
    return f"vertex type {site.name}: reads {', '.join(reads) or 'no vertices'}"
