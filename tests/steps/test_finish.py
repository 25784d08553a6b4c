"""Finish: the outcome is recorded once, by the holder of the ticket, and the slots are free."""

from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from dispatcher import api, engine
from dispatcher.lifecycle import claim, control, finish, schedule
from dispatcher.lifecycle.claim import Refused
from dispatcher.models import CallQueue, RateLimitKey, Slot, Window
from dispatcher.signals import call_finished
from dispatcher.states import State
from tests.builders import (
    SECOND,
    T0,
    admitted,
    at,
    committed,
    go,
    key,
    next_start,
    seen,
    started,
    states,
    ticket_of,
    waiting,
)
from tests.steps.test_claim import snapshot

pytestmark = [committed, pytest.mark.pooler]

FLIGHT = (State.DISPATCHED, State.ACTIVE)


class CardDeclined(ValueError):
    """A kind of error that the tests' tasks raise."""


def fail(call: CallQueue, error: BaseException | None = None, **options: Any) -> finish.Released | None:
    """Record a failed attempt of a call, which is at the attempt that its row says."""
    stored = seen(call)
    options = {"attempt": stored.attempt, "policy": stored.retry, "now": at(5), **options}
    return finish.fail(call.id, ticket_of(call), error=error or CardDeclined("no money"), **options)


# The fence


def outcomes(call: CallQueue, ticket: UUID) -> list[Any]:
    """Try every end of an attempt."""
    return [
        finish.complete(call.id, ticket, result="late", now=at(9)),
        finish.fail(call.id, ticket, error=ValueError(), attempt=1, policy=None, now=at(9)),
        finish.fail(call.id, ticket, error=ValueError(), attempt=9, policy=None, now=at(9)),
        finish.put_back(call.id, ticket, from_states=FLIGHT),
        finish.put_back(call.id, ticket, from_states=FLIGHT, wait=SECOND),
        finish.expire(call.id, ticket, now=at(9)),
        engine.lose(call.id, ticket, RuntimeError(), is_crash=True),
        engine.fail(call.id, ticket, RuntimeError()),
        engine.execute(call.id, ticket, lambda: "late"),
    ]


@pytest.mark.parametrize(
    "since", ["finished", "cancelled", "failed", "put back", "admitted again", "running again", "never"]
)
def test_a_late_finish_changes_nothing(since: str) -> None:
    key("api", concurrency=5, rate=(9, 60), throttle=(9, 1))
    call = started("api") if since != "cancelled" else admitted("api")
    old = ticket_of(call)
    match since:
        case "finished":
            finish.complete(call.id, old, result=1)
        case "cancelled":
            api.cancel([call.id])
        case "failed":
            assert fail(call)
        case "put back":
            finish.put_back(call.id, old, from_states=FLIGHT)
        case "admitted again" | "running again":
            finish.put_back(call.id, old, from_states=FLIGHT)
            assert go(call, now=at(60)) == [call.id]
            if since == "running again":
                CallQueue.objects.filter(id=call.id).update(state=State.ACTIVE, started_at=at(60))
        case "never":
            old = uuid4()
    before = snapshot()
    assert outcomes(call, old) == [None, None, None, None, None, None, False, False, Refused.STALE]
    assert snapshot() == before


def test_a_finish_without_a_ticket_is_none() -> None:
    call = waiting()
    before = snapshot()
    assert finish.complete(call.id, uuid4(), result=None) is None
    assert snapshot() == before


# Success


def test_a_result_is_kept_and_the_slots_are_given_back() -> None:
    row, tenant = key("api"), key("tenant")
    call, other = started("tenant", "api", now=at(1)), started("api")
    released = finish.complete(call.id, ticket_of(call), result={"charged": [1, None, "ä"]}, now=at(5))
    assert released is not None
    assert (released.state, released.lane_id, released.keys) == (State.COMPLETED, call.lane_id, [row.id, tenant.id])
    stored = seen(call)
    assert (stored.state, stored.ticket, stored.finished_at, stored.started_at) == (State.COMPLETED, None, at(5), at(1))
    assert (stored.result, stored.error, stored.errors) == ({"charged": [1, None, "ä"]}, None, [])
    assert stored.attempt == 1
    assert list(Slot.objects.values_list("call", flat=True)) == [other.id]


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (None, None),
        (0, 0),
        ("", ""),
        ("😀 \\ud83d C:\\users\\udo \\u0000", "😀 \\ud83d C:\\users\\udo \\u0000"),
        ({"emoji": "😀"}, {"emoji": "😀"}),
        ({1: "one"}, {"1": "one"}),
        ((1, 2), [1, 2]),
        (date(2030, 1, 1), "2030-01-01"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), str(UUID(int=1))),
        (timedelta(seconds=90), "P0DT00H01M30S"),
        ({1, 2}, "{1, 2}"),
        (b"raw", "b'raw'"),
        (float("nan"), "nan"),
        ([float("inf")], "[inf]"),
    ],
    ids=repr,
)
def test_a_result_is_kept_as_json_or_as_its_repr(result: Any, kept: Any) -> None:
    call = started()
    assert finish.complete(call.id, ticket_of(call), result=result)
    assert seen(call).result == kept


@pytest.mark.parametrize(
    "result",
    ["a\0b", {"a\0": 1}, "\ud800", ["\udfff"], object(), print],
    ids=lambda result: ascii(result).partition(" at 0x")[0],
)
def test_a_result_that_the_database_can_not_hold_is_kept_in_some_form(result: Any) -> None:
    call = started()
    assert finish.complete(call.id, ticket_of(call), result=result)
    assert isinstance(seen(call).result, str)


class Unspeakable:
    """What can't even be written for people."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("deep", [Unspeakable(), []], ids=["no repr", "too deep"])
def test_a_result_that_can_not_be_written_does_not_cost_the_success(deep: Any) -> None:
    if deep == []:
        for _ in range(100_000):
            deep = [deep]
    call = started()
    assert finish.complete(call.id, ticket_of(call), result=deep)
    assert states([call]) == [State.COMPLETED]


def test_a_result_over_the_limit_is_not_kept(settings: Any) -> None:
    settings.DISPATCHER = {"max_payload_bytes": 100}
    call = started()
    assert finish.complete(call.id, ticket_of(call), result="a" * 200)
    assert seen(call).result == "202 bytes, not kept"


def test_a_success_forgets_the_last_error_and_keeps_the_history() -> None:
    call = started()
    assert fail(call)
    CallQueue.objects.filter(id=call.id).update(state=State.AVAILABLE)
    go(call)
    call = seen(call)
    assert finish.complete(call.id, ticket_of(call), result=None)
    stored = seen(call)
    assert stored.error is None
    assert len(stored.errors) == 1


# Failure


def test_a_failed_attempt_waits_for_the_next_and_its_error_is_kept() -> None:
    row = key("api")
    call = started("api", retry={"initial_interval": "PT10S", "jitter": False})
    released = fail(call)
    assert released is not None
    assert (released.state, released.wait, released.keys) == (State.RETRYABLE, 10 * SECOND, [row.id])
    stored = seen(call)
    assert (stored.state, stored.scheduled_at, stored.finished_at, stored.ticket) == (
        State.RETRYABLE,
        at(15),
        None,
        None,
    )
    assert stored.error["type"] == "CardDeclined"
    assert (stored.error["message"], stored.error["attempt"]) == ("no money", 1)
    assert stored.error["occurred_at"].startswith("2030-01-01T12:00:05")
    assert stored.errors == [stored.error]
    assert not Slot.objects.exists()


def again(call: CallQueue, error: BaseException | None = None) -> CallQueue:
    """Let a call that waits for its next attempt run, and fail."""
    CallQueue.objects.filter(id=call.id, state=State.RETRYABLE).update(state=State.AVAILABLE)
    assert go(call) == [call.id]
    CallQueue.objects.filter(id=call.id).update(state=State.ACTIVE, started_at=T0, attempt=seen(call).attempt + 1)
    fail(seen(call), error)
    return seen(call)


def test_a_call_that_is_retried_for_ever_can_still_start_and_end() -> None:
    call = started(retry={"max_attempts": 1_000_000, "initial_interval": 1, "jitter": False})
    CallQueue.objects.filter(id=call.id).update(attempt=32_766)
    for attempt in (32_766, 32_767, 32_768):
        assert fail(call)
        assert (seen(call).state, seen(call).attempt, seen(call).error["attempt"]) == ("retryable", attempt, attempt)
        CallQueue.objects.filter(id=call.id).update(state=State.AVAILABLE)
        assert go(call) == [call.id]
        call = seen(call)
        claimed = claim.claim(call.id, ticket_of(call), now=at(6))
        assert isinstance(claimed, claim.Claimed)
        assert claimed.attempt == attempt + 1
    assert finish.complete(call.id, ticket_of(call), result=None)


def test_the_first_five_and_the_last_twenty_errors_are_kept_and_all_are_counted() -> None:
    call = started(retry={"max_attempts": 1_000_000})
    for number in range(1, 41):
        # What the engine does between two failures is left out.
        CallQueue.objects.filter(id=call.id).update(
            state=State.ACTIVE, ticket=call.ticket, attempt=number, started_at=T0, finished_at=None
        )
        assert fail(call, CardDeclined(f"number {number}"))
        stored = seen(call)
        kept = [*range(1, 6), *range(max(6, number - 19), number + 1)] if number > 5 else range(1, number + 1)
        assert [error["attempt"] for error in stored.errors] == list(kept)
        assert stored.error_count == number
    assert stored.error == stored.errors[-1]


def test_a_history_from_before_errors_were_counted_is_cut_by_the_next_failure() -> None:
    call = started()
    old = [{"type": "ValueError", "message": "old", "attempt": number} for number in range(1, 5_001)]
    CallQueue.objects.filter(id=call.id).update(errors=old, attempt=5_001)
    fail(call)
    stored = seen(call)
    assert stored.error_count == 5_001
    assert [error["attempt"] for error in stored.errors] == [1, 2, 3, 4, 5, *range(4_982, 5_002)]


def test_a_finish_after_thousands_of_failures_writes_no_more_than_one_after_thirty() -> None:
    def written(failures: int) -> int:
        call = started(retry={"max_attempts": 1_000_000})
        old = [{"type": "ValueError", "message": "no money", "attempt": number} for number in range(failures)]
        CallQueue.objects.filter(id=call.id).update(errors=old, attempt=failures)
        fail(call)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_column_size(errors) FROM dispatcher_callqueue WHERE id = %s", [call.id])
            size: int = cursor.fetchone()[0]
        return size

    assert written(5_000) < 1.2 * written(30)


def test_a_call_is_discarded_after_its_last_attempt_with_all_its_errors() -> None:
    call = waiting(retry={"max_attempts": 3, "initial_interval": "PT1S", "backoff_coefficient": 10, "jitter": False})
    waits = []
    for number in range(3):
        call = again(call, CardDeclined(f"number {number}"))
        waits.append(call.scheduled_at)
    assert call.state == State.DISCARDED
    assert (call.finished_at, call.ticket, call.attempt) == (at(5), None, 3)
    assert waits[:2] == [at(6), at(15)]
    assert [error["message"] for error in call.errors] == ["number 0", "number 1", "number 2"]
    assert [error["attempt"] for error in call.errors] == [1, 2, 3]
    assert call.error == call.errors[-1]


def test_the_setting_counts_the_attempts_of_calls_without_a_policy(settings: Any) -> None:
    settings.DISPATCHER = {"retry": {"max_attempts": 2, "initial_interval": 7, "jitter": False}}
    call = again(waiting())
    assert (call.state, call.scheduled_at) == (State.RETRYABLE, at(12))
    assert again(call).state == State.DISCARDED


def test_three_attempts_are_made_by_default() -> None:
    call = waiting()
    assert [again(call).state for _ in range(3)] == [State.RETRYABLE, State.RETRYABLE, State.DISCARDED]


@pytest.mark.parametrize(
    ("names", "error", "state"),
    [
        (["CardDeclined"], CardDeclined(), State.DISCARDED),
        (["ValueError"], CardDeclined(), State.DISCARDED),
        (["KeyError"], CardDeclined(), State.RETRYABLE),
        (["CardDeclined"], ValueError(), State.RETRYABLE),
    ],
)
def test_an_error_that_is_not_to_be_tried_again_discards_the_call(
    names: list[str], error: Exception, state: State
) -> None:
    call = started(retry={"non_retryable_errors": names})
    released = fail(call, error)
    assert released is not None
    assert (released.state, seen(call).state) == (state, state)


def test_the_task_may_say_when_to_try_again() -> None:
    call = started()
    fail(call, wait=90 * SECOND)
    assert seen(call).scheduled_at == at(95)


def test_the_task_decides_on_another_attempt_where_the_call_has_no_policy() -> None:
    many = started()
    assert fail(many, attempt=50, may_retry=True)
    assert fail(started(), attempt=1, may_retry=False)
    assert sorted(CallQueue.objects.values_list("state", flat=True)) == [State.DISCARDED, State.RETRYABLE]


def test_the_stricter_counts_where_both_the_task_and_the_call_say() -> None:
    policy = {"max_attempts": 2}
    assert fail(started(retry=policy), attempt=2, may_retry=True)
    assert fail(started(retry=policy), attempt=1, may_retry=False)
    assert set(CallQueue.objects.values_list("state", flat=True)) == {State.DISCARDED}


def test_a_failed_attempt_goes_on_where_it_stood_in_its_lane() -> None:
    first, second = started(), waiting()
    fail(first, wait=timedelta(0))
    schedule.wake_due(now=at(6))
    assert go(first) == [first.id, second.id]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "é" * 10_000], ids=["nul", "surrogate", "long"])
def test_any_message_can_be_kept(text: str) -> None:
    call = started()
    assert fail(call, ValueError(text))
    assert 0 < len(seen(call).error["message"]) <= 4_000


def test_an_error_without_words_is_kept_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    call = started()
    assert fail(call, Mute())
    assert seen(call).error["type"] == "Mute"


# A database crash lost the commit of the claim: the call is dispatched, and its task ran all the same


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_a_finish_proves_an_attempt_whose_claim_was_lost(end: str) -> None:
    row = key("api", concurrency=1, rate=(2, 60))
    call = admitted("api")
    if end == "complete":
        assert finish.complete(call.id, ticket_of(call), result=1, now=at(5))
    else:
        assert finish.fail(call.id, ticket_of(call), error=ValueError(), attempt=1, policy=None, now=at(5))
    stored = seen(call)
    assert stored.state == (State.COMPLETED if end == "complete" else State.RETRYABLE)
    assert (stored.attempt, stored.started_at, stored.ticket) == (1, T0, None)
    assert not Slot.objects.exists()
    assert Window.objects.values_list("key", "cost", "last_start_at").get() == (row.id, 1, at(5))


def test_a_start_that_a_crash_lost_counts_by_the_override_in_force() -> None:
    row, far = key("api", throttle=(1, 1)), T0 + timedelta(days=36_500)
    control.override("api", {"rate": (9, 60), "throttle": (1, 10)}, far)
    call = admitted("api")
    assert finish.complete(call.id, ticket_of(call), result=None, now=at(5))
    assert next_start(row) == at(15)
    assert Window.objects.values_list("cost", "last_start_at").get() == (1, at(5))


def test_a_start_that_a_crash_lost_does_not_bring_the_next_one_forward() -> None:
    row = key("api", throttle=(1, 10))
    lost = admitted("api")
    RateLimitKey.objects.update(last_start_at=at(4), last_cost=3)
    assert finish.complete(lost.id, ticket_of(lost), result=None, now=at(5))
    assert next_start(row) == at(34)


def test_a_start_is_counted_once_only() -> None:
    key("api", rate=(9, 60))
    call = started("api")
    finish.complete(call.id, ticket_of(call), result=None)
    assert sum(Window.objects.values_list("cost", flat=True)) == 1


# Back to the lane


def test_a_call_that_is_put_back_gives_back_its_slots_and_its_attempt() -> None:
    row = key("api")
    for call in (admitted("api"), started("api")):
        released = finish.put_back(call.id, ticket_of(call), from_states=FLIGHT)
        assert released is not None
        assert (released.state, released.lane_id, released.keys) == (State.AVAILABLE, call.lane_id, [row.id])
        stored = seen(call)
        assert (stored.state, stored.attempt, stored.ticket) == (State.AVAILABLE, 0, None)
        assert (stored.started_at, stored.dispatched_at, stored.published_at) == (None, None, None)
        assert stored.position == call.position
    assert not Slot.objects.exists()


def test_a_call_is_put_back_only_from_the_states_named() -> None:
    call = started()
    assert finish.put_back(call.id, ticket_of(call), from_states=[State.DISPATCHED]) is None
    assert states([call]) == [State.ACTIVE]


# Who listens


def test_an_end_is_sent_to_the_receivers_of_its_signal_and_one_that_fails_harms_nothing() -> None:
    received: list[Any] = []

    def receive(**facts: Any) -> None:
        received.append((facts["call_id"], facts["state"], facts["error"] and facts["error"]["type"]))
        raise RuntimeError

    call_finished.connect(receive)
    try:
        good, bad = started(), started(retry={"max_attempts": 1})
        finish.complete(good.id, ticket_of(good), result=None)
        fail(bad)
    finally:
        call_finished.disconnect(receive)
    assert received == [(good.id, State.COMPLETED, None), (bad.id, State.DISCARDED, "CardDeclined")]
    assert states([good, bad]) == [State.COMPLETED, State.DISCARDED]
