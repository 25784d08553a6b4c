"""The verdict of the chaos trial: a sound run is ok, and every kind of breach in its records is found and counted."""

from dataclasses import replace
from typing import Any

import pytest

from project.witness.ledger import KeyFigures
from trials.chaos.plan import Fault
from trials.chaos.verdict import Begin, Order, Records, Row, Struck, Verdict, judge

KILL = Struck(
    fault=Fault(number=1, kind="worker_killed", target="worker-1", at=3.0, seconds=0.0), began=103.0, over=103.0
)
CRASH = Struck(
    fault=Fault(number=2, kind="database_restarted_immediate", target="database", at=5.0, seconds=1.0),
    began=105.0,
    over=106.5,
)
SEEN: KeyFigures = {
    "requests": 9,
    "most_at_once": 3,
    "most_in_window": 9,
    "least_spacing_s": 0.0125,
    "rejected_429": 0,
    "violations": 0,
}
DONE = Row(order="a", kind="pay", queue="main", state="completed", attempt=1)
FIRST = Begin(call="first", ticket="1", at=101.0)


@pytest.fixture
def records() -> Records:
    """Return the records of a run in which all held, though a worker was killed and the database crashed."""
    return Records(
        orders={
            "a": Order(outcome="committed", count=2),
            "b": Order(outcome="rolled back", count=3),
            "c": Order(outcome="unknown", count=1),
            "d": Order(outcome="unknown", count=5),
        },
        rows={
            "first": DONE,
            "lost once": replace(DONE, queue="side", attempt=2, errors=[("WorkerLost", 107.0)]),
            "poison": replace(
                DONE,
                order="c",
                kind="poison",
                state="discarded",
                attempt=3,
                errors=[("WorkerLostError", at) for at in (104.0, 106.0, 108.0)],
                reason="poison",
            ),
        },
        begins=[
            FIRST,
            Begin(call="lost once", ticket="2", at=102.9),
            Begin(call="lost once", ticket="3", at=107.5),
            *(Begin(call="poison", ticket=f"p{at}", at=at) for at in (103.9, 105.9, 107.0)),
        ],
        stops={},
        struck=[KILL, CRASH],
        successes={"first": 1, "lost once": 1},
        keys={"pay": SEEN, "mail": SEEN},
    )


def judged(records: Records, **changed: Any) -> Verdict:
    """Return the verdict on records of which something is otherwise; it must not be ok."""
    verdict = judge(replace(records, **changed))
    assert not verdict.is_ok
    return verdict


def with_row(records: Records, call: str, **changed: Any) -> Any:
    return {**records.rows, call: replace(records.rows[call], **changed)}


def without(mapping: Any, name: str) -> Any:
    return {key: value for key, value in mapping.items() if key != name}


def test_a_run_in_which_all_held_is_ok(records: Records) -> None:
    verdict = judge(records)
    assert verdict.failures == []
    assert (verdict.sent, verdict.lost, verdict.double_starts, verdict.violations) == (3, 0, 0, 0)
    assert (verdict.wrong_attempts, verdict.wrong_ends) == (0, 0)


def test_service_counts_from_the_end_of_a_fault_to_the_begin_in_the_last_queue_that_it_touched(
    records: Records,
) -> None:
    verdict = judge(records)
    assert verdict.recovered == {1: pytest.approx(4.5), 2: pytest.approx(1.0)}
    assert verdict.recovery["median"] == pytest.approx(2.75)
    assert verdict.recovery["worst"] == pytest.approx(4.5)
    assert verdict.recovery["by_kind"]["worker_killed"]["worst"] == pytest.approx(4.5)


def test_a_fault_after_which_a_queue_is_never_served_again_fails(records: Records) -> None:
    late = replace(KILL, over=110.0)
    verdict = judged(records, struck=[late, CRASH])
    assert verdict.recovered[1] is None
    assert "fault 1" in verdict.failures[0]


@pytest.mark.parametrize("state", ["available", "dispatched", "active", "retryable", "scheduled"])
def test_a_call_that_does_not_end_is_lost(records: Records, state: str) -> None:
    attempt = 1 if state == "active" else 0
    begins = records.begins if attempt else [begin for begin in records.begins if begin != FIRST]
    rows = with_row(records, "first", state=state, attempt=attempt)
    verdict = judged(records, rows=rows, begins=begins)
    assert (verdict.lost, verdict.wrong_attempts) == (1, 0)


def test_a_committed_call_without_a_row_is_lost(records: Records) -> None:
    begins = [begin for begin in records.begins if begin != FIRST]
    assert judged(records, rows=without(records.rows, "first"), begins=begins).lost == 1


def test_a_completed_call_of_which_the_witness_knows_nothing_is_lost(records: Records) -> None:
    assert judged(records, successes={"first": 0, "lost once": 1}).lost == 1
    assert judged(records, successes={"lost once": 1}).lost == 1


def test_an_order_that_is_there_in_part_is_lost_in_part(records: Records) -> None:
    orders = {**records.orders, "c": Order(outcome="unknown", count=4)}
    assert judged(records, orders=orders).lost == 3


@pytest.mark.parametrize("order", ["b", "never placed"])
def test_a_call_that_is_there_though_it_was_not_sent_is_counted(records: Records, order: str) -> None:
    rows = {**records.rows, "ghost": replace(DONE, order=order)}
    begins = [*records.begins, Begin(call="ghost", ticket="9", at=109.0)]
    assert judged(records, rows=rows, begins=begins, successes={**records.successes, "ghost": 1}).lost == 1


def test_a_rolled_back_call_that_ran_is_counted(records: Records) -> None:
    assert judged(records, begins=[*records.begins, Begin(call="never", ticket="9", at=104.0)]).lost == 1


def test_a_second_start_for_one_ticket_is_counted(records: Records) -> None:
    verdict = judged(records, begins=[*records.begins, replace(FIRST, at=108.0)])
    assert (verdict.double_starts, verdict.lost, verdict.wrong_attempts) == (1, 0, 0)


def test_what_the_witness_saw_broken_is_counted(records: Records) -> None:
    keys: dict[str, KeyFigures] = {"pay": {**SEEN, "violations": 2}, "mail": {**SEEN, "violations": 1}}
    verdict = judged(records, keys=keys)
    assert verdict.violations == 3
    assert "pay (2 times, up to 3 at once, 9 in a window, 12.5 ms apart)" in verdict.failures[0]


def test_an_attempt_without_an_end_is_wrong(records: Records) -> None:
    assert judged(records, rows=with_row(records, "first", attempt=2)).wrong_attempts == 1


def test_an_attempt_that_was_not_counted_is_wrong(records: Records) -> None:
    begins = [*records.begins, Begin(call="first", ticket="1b", at=101.5)]
    assert judged(records, begins=begins).wrong_attempts == 1


def test_a_failure_of_a_task_that_never_began_is_wrong(records: Records) -> None:
    rows = with_row(records, "first", attempt=2, errors=[("Trouble", 104.0)])
    assert judged(records, rows=rows).wrong_attempts == 1


def test_a_loss_before_the_begin_is_right_only_if_a_fault_explains_it(records: Records) -> None:
    rows = with_row(records, "first", attempt=2, errors=[("WorkerLost", 104.0)])
    assert judge(replace(records, rows=rows)).wrong_attempts == 0
    calm = replace(KILL, fault=replace(KILL.fault, kind="beat_killed"))
    begins = [begin for begin in records.begins if begin.call != "lost once" or begin.ticket != "2"]
    assert judged(records, rows=rows, struck=[calm]).wrong_attempts == 1
    assert judged(records, begins=begins, struck=[calm]).wrong_attempts == 1


def test_a_call_that_is_rate_limited_spends_no_attempt(records: Records) -> None:
    begins = [*records.begins, Begin(call="first", ticket="1b", at=101.5)]
    assert judge(replace(records, begins=begins, stops={"first": 1})).is_ok
    assert judged(records, begins=begins, stops={"first": 1}, rows=with_row(records, "first", attempt=2)).wrong_attempts


def test_a_stop_that_was_not_recorded_before_its_worker_died_is_an_attempt(records: Records) -> None:
    assert judge(replace(records, stops={"lost once": 1})).is_ok


def test_a_begin_that_no_row_counts_is_wrong(records: Records) -> None:
    begins = [*records.begins, Begin(call="first", ticket="1b", at=104.8)]
    assert judged(records, begins=begins).wrong_attempts == 1


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_an_ordinary_call_that_does_not_complete_is_reported(records: Records, state: str) -> None:
    rows = with_row(records, "first", state=state, errors=[("Trouble", 102.0)])
    verdict = judged(records, rows=rows)
    assert (verdict.wrong_ends, verdict.lost, verdict.wrong_attempts) == (1, 0, 0)


def test_a_poisonous_call_must_be_discarded_as_such(records: Records) -> None:
    assert judged(records, rows=with_row(records, "poison", reason="attempts")).wrong_ends == 1
    completed = with_row(records, "poison", state="completed", attempt=4)
    begins = [*records.begins, Begin(call="poison", ticket="p", at=108.0)]
    successes = {**records.successes, "poison": 1}
    assert judged(records, rows=completed, begins=begins, successes=successes).wrong_ends == 1


def test_what_the_audit_finds_fails_the_run(records: Records) -> None:
    assert "a lane sleeps" in judged(records, audit=["a lane sleeps"]).failures[0]
