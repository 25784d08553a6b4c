"""The verdict of the chaos trial: a sound run is ok, and every kind of breach in its records is found and counted."""

from dataclasses import replace
from typing import Any

import pytest

from project.witness.ledger import KeyFigures
from trials.chaos.plan import Fault
from trials.chaos.verdict import Begin, Order, Records, Row, Struck, judge

KILLED = Fault(number=1, kind="worker_killed", target="worker-1", at=3.0, seconds=0.0)
CRASHED = Fault(number=2, kind="database_restarted_immediate", target="database", at=5.0, seconds=1.0)
KILL, CRASH = Struck(fault=KILLED, began=103.0, over=103.0), Struck(fault=CRASHED, began=105.0, over=106.5)
CALM = replace(KILL, fault=replace(KILLED, kind="beat_killed"))
SEEN: KeyFigures = {
    "requests": 9,
    "most_at_once": 3,
    "most_in_window": 9,
    "least_spacing_s": 0.0125,
    "rejected_429": 0,
    "violations": 0,
}
DONE = Row(order="a", kind="pay", queue="main", state="completed", attempt=1)
POISON = replace(
    DONE,
    order="c",
    kind="poison",
    state="discarded",
    attempt=3,
    errors=[("WorkerLostError", at) for at in (104.0, 106.0, 108.0)],
    reason="poison",
)
ORDERS = {
    "a": Order(outcome="committed", count=2),
    "b": Order(outcome="rolled back", count=3),
    "c": Order(outcome="unknown", count=1),
    "d": Order(outcome="unknown", count=5),
}
ROWS = {
    "first": DONE,
    "lost once": replace(DONE, queue="side", attempt=2, errors=[("WorkerLost", 107.0)]),
    "poison": POISON,
}
FIRST = Begin(call="first", ticket="1", at=101.0)
BEFORE_THE_KILL = Begin(call="lost once", ticket="2", at=102.9)
OTHERS = [
    Begin(call="lost once", ticket="3", at=107.5),
    *(Begin(call="poison", ticket=f"p{at}", at=at) for at in (103.9, 105.9, 107.0)),
]
BEGINS = [FIRST, BEFORE_THE_KILL, *OTHERS]
SUCCESSES = {"first": 1, "lost once": 1}
RECORDS = Records(
    orders=ORDERS,
    rows=ROWS,
    begins=BEGINS,
    stops={},
    struck=[KILL, CRASH],
    successes=SUCCESSES,
    keys={"pay": SEEN, "mail": SEEN},
)
"""Of a run in which all held, though a worker was killed and the database crashed."""


def with_row(call: str, **changed: Any) -> dict[str, Row]:
    return ROWS | {call: replace(ROWS[call], **changed)}


def begun(call: str, at: float, ticket: str = "9") -> list[Begin]:
    return [*BEGINS, Begin(call=call, ticket=ticket, at=at)]


def ghost(order: str) -> dict[str, Any]:
    """Return the records of a call of this order that was not sent, and completed all the same."""
    rows = ROWS | {"ghost": replace(DONE, order=order)}
    return {"rows": rows, "begins": begun("ghost", 109.0), "successes": SUCCESSES | {"ghost": 1}}


def test_a_run_in_which_all_held_is_ok() -> None:
    verdict = judge(RECORDS)
    assert verdict.failures == []
    assert (verdict.sent, verdict.lost, verdict.double_starts, verdict.violations) == (3, 0, 0, 0)
    assert (verdict.wrong_attempts, verdict.wrong_ends) == (0, 0)


def test_service_counts_from_the_end_of_a_fault_to_the_begin_in_the_last_queue_that_it_touched() -> None:
    verdict = judge(RECORDS)
    assert verdict.recovered == {1: pytest.approx(4.5), 2: pytest.approx(1.0)}
    assert verdict.recovery["median"] == pytest.approx(2.75)
    assert verdict.recovery["worst"] == pytest.approx(4.5)
    assert verdict.recovery["by_kind"]["worker_killed"]["worst"] == pytest.approx(4.5)


def breach(sentence: str, found: dict[str, int], **changed: Any) -> Any:
    return pytest.param(found, changed, id=sentence)


AGAIN, UNBEGUN = begun("first", 101.5), [each for each in BEGINS if each != FIRST]
WITHOUT_FIRST = {name: row for name, row in ROWS.items() if name != "first"}
LOST, WRONG, ENDED = {"lost": 1, "wrong_attempts": 0}, {"wrong_attempts": 1}, {"wrong_ends": 1}
NEVER_BEGAN = with_row("first", attempt=2, errors=[("Trouble", 104.0)])
LOST_EARLY = with_row("first", attempt=2, errors=[("WorkerLost", 104.0)])
TWICE, FOUR = {"double_starts": 1, "lost": 0, "wrong_attempts": 0}, Order(outcome="unknown", count=4)
COMPLETED = with_row("poison", state="completed", attempt=4)


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        *(
            breach(
                f"a call that stays {state} is lost",
                LOST,
                rows=with_row("first", state=state, attempt=0),
                begins=UNBEGUN,
            )
            for state in ("available", "dispatched", "retryable", "scheduled")
        ),
        breach("a call that stays active is lost", LOST, rows=with_row("first", state="active")),
        breach("a committed call without a row is lost", {"lost": 1}, rows=WITHOUT_FIRST, begins=UNBEGUN),
        breach("a completed call without a success is lost", {"lost": 1}, successes=SUCCESSES | {"first": 0}),
        breach("a completed call that the witness does not know is lost", {"lost": 1}, successes={"lost once": 1}),
        breach("of an order that is there in part the rest is lost", {"lost": 3}, orders=ORDERS | {"c": FOUR}),
        breach("a call of a rolled back order is counted", {"lost": 1}, **ghost("b")),
        breach("a call of an order that was never placed is counted", {"lost": 1}, **ghost("never placed")),
        breach("a rolled back call that ran is counted", {"lost": 1}, begins=begun("never", 104.0)),
        breach("a second start for one ticket is counted", TWICE, begins=begun("first", 108.0, "1")),
        breach("an attempt without an end is wrong", WRONG, rows=with_row("first", attempt=2)),
        breach("an attempt that was not counted is wrong", WRONG, begins=AGAIN),
        breach("a begin before a crash that no row counts is wrong", WRONG, begins=begun("first", 104.8)),
        breach("a failure of a task that never began is wrong", WRONG, rows=NEVER_BEGAN),
        breach("a loss before the begin that no fault explains is wrong", WRONG, rows=LOST_EARLY, struck=[CALM]),
        breach("so it is without the begin", WRONG, begins=[FIRST, *OTHERS], struck=[CALM]),
        breach(
            "a call that is rate limited spends no attempt",
            WRONG,
            begins=AGAIN,
            stops={"first": 1},
            rows=with_row("first", attempt=2),
        ),
        *(
            breach(
                f"an ordinary call that is {state} is reported",
                ENDED,
                rows=with_row("first", state=state, errors=[("Trouble", 102.0)]),
            )
            for state in ("discarded", "cancelled")
        ),
        breach("a poisonous call is discarded as such", ENDED, rows=with_row("poison", reason="attempts")),
        breach(
            "a poisonous call does not complete",
            ENDED,
            rows=COMPLETED,
            begins=begun("poison", 108.0),
            successes=SUCCESSES | {"poison": 1},
        ),
    ],
)
def test_a_breach_is_found_and_counted(found: dict[str, int], changed: dict[str, Any]) -> None:
    verdict = judge(replace(RECORDS, **changed))
    assert not verdict.is_ok
    assert {name: getattr(verdict, name) for name in found} == found


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"struck": [replace(KILL, over=110.0), CRASH]}, "fault 1"),
        ({"keys": {"pay": {**SEEN, "violations": 2}, "mail": SEEN}}, "pay (2 times, up to 3 at once, 9 in a window"),
        ({"audit": ["a lane sleeps"]}, "a lane sleeps"),
    ],
    ids=["of a queue that is not served again", "of the witness", "of the audit"],
)
def test_a_finding_fails_the_run_and_is_named(changed: dict[str, Any], words: str) -> None:
    verdict = judge(replace(RECORDS, **changed))
    assert not verdict.is_ok
    assert words in verdict.failures[0]
    assert verdict.violations == (2 if "keys" in changed else 0)


@pytest.mark.parametrize(
    "changed",
    [{"rows": LOST_EARLY}, {"begins": AGAIN, "stops": {"first": 1}}, {"stops": {"lost once": 1}}],
    ids=["a loss that a fault explains", "a stop by a provider", "a stop not recorded before its worker died"],
)
def test_what_has_its_reason_is_no_wrong_attempt(changed: dict[str, Any]) -> None:
    verdict = judge(replace(RECORDS, **changed))
    assert verdict.wrong_attempts == 0
    assert verdict.is_ok or "rows" in changed
