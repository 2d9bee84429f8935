"""Hundreds of hostile batches; `python -m tests.attacks batches` runs any number."""

from tests.attacks import bad_cases
from tests.attacks.batches import attack
from tests.attacks.hostile_arrays import CHANGES
from tests.attacks.outcomes import run_in_children


def test_hostile_batches_end_with_a_result_or_a_named_error() -> None:
    tally = attack(900, 1, "reference")
    assert not tally.failures, tally.table()
    assert sum(tally.counts.values()) == 900
    right = {name for name, outcome in tally.counts if outcome == "equal"}
    assert right >= {*CHANGES} - {"shapes"}


def test_a_crash_and_a_hang_are_outcomes_and_the_rest_runs() -> None:
    tally = run_in_children(bad_cases.make, (), 10, chunk=6, patience=2.0)
    assert tally.counts["numbers", "fine"] == 7
    assert sorted(number for number, _, _ in tally.failures) == [3, 5, 7]
    texts = {number: text for number, _, text in tally.failures}
    assert texts[3] == "FAILED: the process ended with SIGSEGV"
    assert texts[5] == "FAILED: no end within 2 s"
