"""The table of the public cases: which failures are the cases' own."""

from dataclasses import replace

import pytest

from project.conformance.table import Case, page


def case(number: str, *messages: str) -> Case:
    return Case(test_id=number, name="x", folder="extensions", has_passed=not messages, messages=messages)


@pytest.mark.parametrize(
    ("number", "messages", "is_explained"),
    [
        ("EXT-DLQ-004", ["expected status 200, got 404"], True),
        ("EXT-DLQ-004", ["expected status 200, got 404", "expected status 200, got 500"], False),
        ("EXT-ADM-005", ['$.items: expected {"$type": "array"}, got []'], True),
        ("EXT-ADM-005", ["expected status 200, got 500"], False),
        ("L1-RTR-014", ['$.job.errors[0].type: expected "ConnectionTimeout", got "handler_error"'], True),
        ("L1-RTR-014", ["no answer"], False),
        ("L3-CHN-002", ["$.jobs[0].parent_results[0].id: [0] applied to something that is not an array"], True),
        ("L0-ENV-001", ["expected status 200, got 404"], False),
    ],
)
def test_a_failure_is_a_fault_of_the_case_if_that_causes_the_message_of_the_runner(
    number: str, messages: list[str], *, is_explained: bool
) -> None:
    failed = case(number, *messages)
    assert bool(failed.why) is is_explained
    assert ("a fault of the server" in page([failed])) is not is_explained


def test_what_passes_by_a_hook_of_the_test_server_is_named() -> None:
    passed = case("L1-WRK-003")
    assert "by a hook" not in page([passed])
    assert "only by a hook of the test server" in page([replace(passed, is_hooked=True)])
    assert "by a hook" not in page([replace(passed, is_hooked=True, has_passed=False, messages=["no answer"])])


def test_the_claim_of_a_level_is_written_where_all_of_its_cases_pass_that_can() -> None:
    claim = "of the levels 0 to 4 all cases pass"
    failed = case("L2-SCH-001", "no answer")
    assert claim in page([failed])
    assert claim not in page([replace(failed, folder="level-2-scheduled")])
