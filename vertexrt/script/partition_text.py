"""Print partitions: what each processor owns, what it costs, and what does not fit."""

from __future__ import annotations

from vertexrt.script.partition import Partition, Ranges, Share

WORDS = {"registers": "in registers", "deferred": "a deferred product", "streamed": "streamed"}


def format_partition(partition: Partition) -> str:
    """Format a partition over several lines."""
    p, budget = partition, partition.budget
    many = f"{p.processors} processor{'s' if p.processors > 1 else ''}"
    lines = [f"Partition of the path weights over {many}, each: {budget.describe()}"]
    if not p.shares:
        return lines[0] + "\n  no product on the path: nothing is kept"
    width = max(len(_title(s)) for s in p.shares)
    for share in p.shares:
        where = f"in {budget.memory}" if share.place == "memory" else WORDS[share.place]
        each = sorted({p.bytes_of(share, r) for r in range(p.processors)})
        amount = " to ".join(f"{n:,}" for n in each[:: max(len(each) - 1, 1)])
        why = f" ({share.why})" if share.why else ""
        lines.append(f"  {_title(share):{width}}  {amount} bytes each, {where}{why}")
    lines.append("  rows of each processor:")
    for r in range(p.processors):
        owned = [f"{_name(s)} {_ranges(s.owned(r, p.processors))}" for s in _matrices(p)]
        lines.append(f"    {r}: {'; '.join(owned)}")
    lines += _totals(p)
    lines.append(f"  replicated: {'; '.join(p.replicated) or 'nothing'}")
    if p.elsewhere:
        lines.append(f"  not on the path, read from memory: {', '.join(p.elsewhere)}")
    missing = [_title(s) for s in p.shares if s.place == "streamed"]
    if missing:
        lines.append(f"  does not fit, so it is read anew for every tile: {', '.join(missing)}")
    deferred = [s.name for s in p.shares if s.place == "deferred"]
    if deferred:
        lines.append(f"  gradients after the path, in one product: {', '.join(deferred)}")
    return "\n".join(lines)


def _totals(p: Partition) -> list[str]:
    processors = range(p.processors)
    most = max(p.bytes_in("memory", r) for r in processors)
    lines = [
        f"  {p.budget.memory}: {most:,} of {p.budget.memory_bytes:,} bytes a processor, "
        f"{p.operand_bytes:,} of them for operands"
    ]
    if p.budget.registers:
        held = max(p.bytes_in("registers", r) for r in processors)
        each, code = p.registers_per_thread, p.budget.working
        lines.append(
            f"  registers: {held:,} bytes a processor, {each} a thread for weights "
            f"and {code} for code, of {p.budget.most}"
        )
    return lines


def _matrices(p: Partition) -> list[Share]:
    return [s for s in p.shares if s.role != "gradient"]  # gradients have the rows of the weights


def _name(share: Share) -> str:
    return f"{share.name}'" if share.role == "transposed" else share.name


def _title(share: Share) -> str:
    mark = "gradient of " if share.role == "gradient" else ""
    return f"{mark}{_name(share)} [{share.rows},{share.columns}]"


def _ranges(ranges: Ranges) -> str:
    return " ".join(f"{first}..{end - 1}" for first, end in ranges) or "none"
