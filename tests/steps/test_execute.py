"""From the claim to the next call: engine.execute."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import InterfaceError
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.engine import attempt
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import claim, finish, publish, schedule
from dispatcher.lifecycle.claim import Refused
from dispatcher.lifecycle.run import Failed, RetryAsked, Returned
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import SECOND, admitted, committed, go, key, seen, states, ticket_of, waiting

pytestmark = [committed, pytest.mark.pooler]

FLIGHT = (State.DISPATCHED, State.ACTIVE)


class CardDeclined(ValueError):
    """A kind of error that the tests' tasks raise."""


def test_an_end_hands_its_room_to_the_next_call() -> None:
    key("api", concurrency=1)
    first, second = admitted("api"), waiting("api")
    assert go(second) == []
    assert engine.execute(first.id, ticket_of(first), lambda: 7) == Returned(result=7)
    assert states([first, second]) == [State.COMPLETED, State.DISPATCHED]


@pytest.mark.parametrize("fault", [InterfaceError("connection already closed"), RuntimeError("broker")], ids=repr)
def test_an_outcome_that_is_recorded_stands_though_its_room_is_not_handed_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    key("api", concurrency=1)
    first, second = admitted("api"), waiting("api")
    assert go(second) == []

    def fail(*_: object, **__: object) -> int:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(publish, "publish", fail)
        assert engine.execute(first.id, ticket_of(first), lambda: 7) == Returned(result=7)
    assert (states([first]), seen(second).published_at) == ([State.COMPLETED], None)
    assert f"failed to release capacity after call {first.id}; the sweep will retry" in caplog.messages
    # Other tests may have left the broker away.
    monkeypatch.setattr(publish._Rest, "until", 0.0)  # noqa: SLF001 -- put back after the test
    monkeypatch.setattr(publish._Rest, "queues", {})  # noqa: SLF001 -- put back after the test
    engine.tick(now=timezone.now() + 60 * SECOND)
    assert seen(second).published_at is not None


def test_a_failure_hands_its_room_on_too_and_reports_how_long_it_waits() -> None:
    key("api", concurrency=1)
    first, second = admitted("api", retry={"initial_interval": 9, "jitter": False}), waiting("api")
    assert go(second) == []
    error = CardDeclined()

    def task() -> None:
        raise error

    assert engine.execute(first.id, ticket_of(first), task) == Failed(error=error, wait=9 * SECOND, may_retry=True)
    assert states([first, second]) == [State.RETRYABLE, State.DISPATCHED]


def test_a_last_failure_says_that_it_is_the_last() -> None:
    call = admitted(retry={"max_attempts": 1})
    error = RetryAsked(CardDeclined(), SECOND, may_retry=True)

    def task() -> None:
        raise error

    outcome = engine.execute(call.id, ticket_of(call), task)
    assert isinstance(outcome, Failed)
    assert not outcome.may_retry
    assert states([call]) == [State.DISCARDED]


def test_an_attempt_that_lost_its_ticket_while_it_ran_has_no_outcome() -> None:
    call = admitted()
    again: list[CallQueue] = []

    def task() -> str:
        finish.put_back(call.id, ticket_of(call), from_states=FLIGHT)
        go(call)
        again.append(seen(call))
        return "late"

    assert engine.execute(call.id, ticket_of(call), task) is None
    assert (seen(call).state, seen(call).ticket, seen(call).result) == (State.DISPATCHED, again[0].ticket, None)


def test_a_provider_that_says_stop_blocks_the_keys_of_its_call_and_no_attempt_is_spent() -> None:
    key("api")
    key("tenant")
    first, second = admitted("api", "tenant"), admitted("api")
    stop = RateLimited(3600)

    def task() -> None:
        raise stop

    engine.execute(first.id, ticket_of(first), task)
    assert (seen(first).state, seen(first).attempt, seen(first).errors) == (State.AVAILABLE, 0, [])
    assert RateLimitKey.objects.filter(blocked_until__isnull=False).count() == 2
    assert engine.execute(second.id, ticket_of(second), task) is Refused.KEY_CLOSED
    assert states([first, second]) == [State.AVAILABLE, State.AVAILABLE]
    assert not Slot.objects.exists()


def test_a_message_that_came_twice_and_was_refused_once_leaves_the_attempt_to_whom_it_started_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key("api")
    call = admitted("api")
    ticket = ticket_of(call)

    def refused(*args: Any, **kwargs: Any) -> Refused:
        """Refuse the one just before the block ends, and let the other one in just after."""
        api.block("api", SECOND)
        answer = claim.claim(*args, **kwargs)
        api.resume("api")
        claim.claim(call.id, ticket, claim_id=uuid4())
        assert isinstance(answer, Refused)
        return answer

    monkeypatch.setattr(attempt, "claim_in_time", refused)
    assert engine.execute(call.id, ticket, lambda: pytest.fail("it runs elsewhere")) is Refused.KEY_CLOSED
    assert (seen(call).state, seen(call).attempt, seen(call).ticket) == (State.ACTIVE, 1, ticket)
    assert Slot.objects.filter(call=call).exists()


@pytest.mark.parametrize("keys", [["api"], []], ids=["with a key", "without one"])
def test_a_provider_stops_for_a_year_at_the_most(keys: list[str]) -> None:
    key("api")
    call = admitted(*keys)

    def task() -> None:
        raise RateLimited(timedelta.max)

    engine.execute(call.id, ticket_of(call), task)
    until = RateLimitKey.objects.get().blocked_until if keys else seen(call).scheduled_at
    assert until is not None
    assert timedelta(days=365) < until - timezone.now() < timedelta(days=367)


def test_a_provider_may_stop_one_key_only() -> None:
    key("api")
    tenant = key("tenant")
    call = admitted("api", "tenant")

    def task() -> None:
        raise RateLimited(3600, key="tenant")

    engine.execute(call.id, ticket_of(call), task)
    assert list(RateLimitKey.objects.filter(blocked_until__isnull=False)) == [tenant]
    assert (seen(call).state, seen(call).attempt) == (State.AVAILABLE, 0)


@pytest.mark.parametrize("named", [None, "typo", "other"])
def test_a_call_that_is_rate_limited_and_spends_no_key_to_block_waits_by_itself(named: str | None) -> None:
    key("other")
    call = admitted()

    def task() -> None:
        raise RateLimited(3600, key=named)

    engine.execute(call.id, ticket_of(call), task)
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.ticket) == (State.SCHEDULED, 0, None)
    assert stored.scheduled_at - stored.created_at > timedelta(minutes=59)


@pytest.mark.parametrize("keys", [["api"], []], ids=["with a key", "without one"])
def test_a_provider_that_says_stop_without_a_wait_is_not_asked_again_at_once(keys: list[str]) -> None:
    key("api")
    call = admitted(*keys)

    def task() -> None:
        raise RateLimited(0)

    engine.execute(call.id, ticket_of(call), task)
    schedule.wake_due()
    assert engine.dispense(lanes=[call.lane_id], keys=schedule.due_keys(), awake=True) == 0
    assert states([call]) == [State.AVAILABLE if keys else State.SCHEDULED]


def test_a_provider_that_is_misspelt_blocks_the_keys_of_the_call(caplog: Any) -> None:
    row = key("api")
    call = admitted("api")

    def stop() -> None:
        raise RateLimited(3600, key="apl")

    engine.execute(call.id, ticket_of(call), stop)
    row.refresh_from_db()
    assert row.blocked_until is not None
    assert "names the key 'apl', which does not exist; the call's own keys are blocked instead: api" in caplog.text
