"""What one processor can keep while a script runs: registers, and memory beside its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

WORD = 4  # bytes of a register


@dataclass(frozen=True, slots=True)
class Budget:
    """What one processor can keep from the first to the last instruction of a script.

    Attributes:
        name: of the processor: "SM", "core".
        registers: words of 4 bytes; 0 where weights cannot be held in registers.
        working: registers of each thread that code needs for itself.
        most: registers that a thread can have at all.
        memory_bytes: shared memory, or the cache that belongs to one core.
        memory: what to call it.
        threads: of a processor.
    """

    name: str
    registers: int
    memory_bytes: int
    memory: str
    threads: int = 1
    working: int = 0
    most: int = 0

    @property
    def register_bytes(self) -> int:
        """Bytes of registers that can hold weights."""
        each = min(self.most, self.registers // self.threads) - self.working
        return max(each, 0) * self.threads * WORD

    def describe(self) -> str:
        """Say the budget in a line."""
        text = f"{self.name} with {kib(self.memory_bytes)} of {self.memory}"
        if self.registers:
            text += (
                f" and {self.registers} registers, {self.threads} threads, "
                f"{self.working} registers of each for code"
            )
        return text


SM = Budget("SM", 64 * 1024, 227 * 1024, "shared memory", threads=256, working=64, most=255)


def core(cache_bytes: int) -> Budget:
    """Return the budget of a CPU core with a cache of its own."""
    return Budget("core", 0, cache_bytes, "cache")


def kib(n: int) -> str:
    """Format bytes."""
    return f"{n / 1024:.1f} KiB"
