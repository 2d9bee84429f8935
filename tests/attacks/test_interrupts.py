"""Some interrupted calls; `python -m tests.attacks.interrupts` runs any number."""

from tests.attacks.interrupts import LOADER, attack

WAYS = ("reference, batched, 2", "cpu, batched, 1", "cpu, persistent, 2", LOADER)


def test_an_interrupted_call_was_done_or_was_not() -> None:
    """Issue 52: gradients of threads stayed, updates were not counted, locks stayed taken."""
    tally = attack(150, 52, WAYS)
    assert not tally.failures, tally.table()
    assert sum(tally.counts.values()) == 150
