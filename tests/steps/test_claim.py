"""Claim: a start is kept, or given back; where the process is always late, limits allow for it."""

from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from dispatcher import api, engine
from dispatcher.engine import attempt
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.models import CallQueue, Slot, Start
from dispatcher.states import State
from tests.builders import SECOND, T0, admitted, at, key, seen, snapshot, ticket_of
from tests.clock import stopped_clock

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]


def claimed(call: CallQueue, *, now: datetime = T0, **options: Any) -> Claimed | Refused:
    with stopped_clock(now):
        return claim.claim(call.id, ticket_of(seen(call)), **options)


def test_the_lease_of_a_throttled_call_begins_with_its_start(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 60, "run_lease": 30}
    key("api", throttle=(1, 10))
    calls = [admitted("api"), admitted("api")]
    for call in calls:
        assert isinstance(claimed(call), Claimed)
    second = seen(calls[1])
    assert at(10) <= second.started_at <= at(10.1)
    assert Slot.objects.get(call=second).lease_until == second.started_at + 30 * SECOND


def test_a_claim_whose_answer_was_lost_gets_its_start_again_and_no_other_claim_does() -> None:
    key("api", throttle=(1, 1), rate=(10, 100))
    call, claim_id = admitted("api"), uuid4()
    first = claimed(call, claim_id=claim_id)
    before = snapshot()
    assert claimed(call, claim_id=claim_id, now=at(1)) == first
    assert claimed(call, now=at(1)) is Refused.STALE
    assert snapshot() == before


def test_a_start_under_a_throttle_that_lies_too_far_ahead_by_now_is_refused(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 1}
    key("api", throttle=(2, 1))
    first, second = admitted("api"), admitted("api")
    assert isinstance(claimed(first), Claimed)
    api.limit("api", {"throttle": (1, 3_600)})
    before = snapshot()
    assert claimed(second) is Refused.TOO_EARLY
    assert snapshot() == before


@pytest.mark.parametrize(
    ("limits", "lateness"),
    [
        ({"is_paced": True}, 0.002),
        ({"is_counted": True}, 0.4),
        ({"is_paced": True, "is_counted": True}, 0.002),
        ({}, 4),
    ],
)
def test_how_late_a_start_may_come(settings: Any, limits: dict[str, bool], lateness: float) -> None:
    settings.DISPATCHER = {"margin": 0.8, "run_lease": 8, "heartbeat": 4}
    assert Claimed(attempt=1, claim_id=uuid4(), start_at=T0, retry=None, **limits).lateness == lateness * SECOND
    forgiving = Claimed(attempt=1, claim_id=uuid4(), start_at=T0, retry=None, slack=SECOND, **limits)
    assert forgiving.lateness == min(lateness + 1, 4) * SECOND


def be_late(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Let this process come so much later to each start than it is given."""
    is_in_time = claim.is_in_time
    monkeypatch.setattr(claim, "is_in_time", lambda made: is_in_time(replace(made, start_at=made.start_at - by)))


def test_a_start_that_was_missed_is_given_back_and_spends_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    key("api", throttle=(100, 1))
    call = admitted("api")
    be_late(monkeypatch, SECOND)
    assert engine.execute(call.id, ticket_of(call), pytest.fail) is Refused.MISSED
    assert (seen(call).attempt, seen(call).errors, seen(call).state) == (0, [], State.AVAILABLE)


def test_a_process_that_is_always_late_starts_calls_when_its_limits_allow_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key("api", throttle=(100, 1))
    be_late(monkeypatch, timedelta(milliseconds=40))
    made: Claimed | Refused = Refused.MISSED
    tries = 0
    while made is Refused.MISSED:
        tries += 1
        call = admitted("api", now=at(tries))
        made = attempt.Attempt(call.id, ticket_of(call), claim_id=uuid4()).claim_call()
    assert isinstance(made, Claimed)
    assert 1 < tries < 8
    # The next start is as much later.
    assert Start.objects.latest("total").at == made.start_at + made.slack


@pytest.mark.django_db(transaction=True)
def test_the_first_claim_of_a_connection_has_more_time_to_come_which_its_limits_allow_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim, "_COLD", SECOND)
    connection.close()
    key("api", rate=(100, 1))
    for more in (SECOND, timedelta(0)):
        call = admitted("api")
        made = attempt.claim_or_wait(call.id, ticket_of(call), claim_id=uuid4())
        assert isinstance(made, Claimed)
        assert Start.objects.latest("total").at >= made.start_at + more
        assert made.lateness == timedelta(milliseconds=25) + more


def test_a_start_that_has_come_already_is_not_slept_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    assert claim.is_in_time_at(monotonic(), 1.0)
