"""The planted faults can be planted, and name tests that exist (see trials/mutants)."""

from pathlib import Path

from trials.mutants import faults

ROOT = Path(__file__).parents[2]


def test_the_text_that_a_fault_changes_is_found_once() -> None:
    assert [text for fault in faults.read() for text in fault.misplaced(ROOT)] == []


def test_a_fault_names_tests_that_exist() -> None:
    named = {test.partition("::")[0] for fault in faults.read() for test in fault.tests}
    assert [test for test in sorted(named) if not (ROOT / "tests" / test).exists()] == []


def test_a_fault_changes_something() -> None:
    assert [fault.name for fault in faults.read() if any(edit.old == edit.new for edit in fault.edits)] == []
