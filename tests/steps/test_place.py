"""Place: a call that has no lane yet is cancelled, counted, reported and found as any other, and gets its lane."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from dispatcher import api, engine, reports
from dispatcher.audit import audit
from dispatcher.errors import CallNeverRuns, UnknownKey
from dispatcher.lanes.heads import Place
from dispatcher.lifecycle import place, schedule
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call, Extras
from dispatcher.states import State
from tests.builders import T0, committed, key, seen, states, waiting

pytestmark = committed


@pytest.fixture(autouse=True)
def _templates(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 3}}}


@contextmanager
def dying() -> Iterator[None]:
    """Commit, and do nothing of what was to be done after it."""
    with transaction.atomic():
        yield
        connection.run_on_commit.clear()


def unplaced(*keys: str, **fields: Any) -> CallQueue:
    """Send a call as a process does that dies before it has made the lane."""
    with dying():
        return CallQueue.objects.send("noop", keys=keys or ["tenant:new"], **fields)


# Written


def test_a_call_without_a_lane_says_what_makes_it() -> None:
    key("api")
    call = unplaced("api", "tenant:new", rate_limit={"key": "own", "concurrency": 2, "throttle": [1, "PT2S"]})
    assert seen(call).placement == call.placement
    assert call.placement == {
        "names": ["api", "own", "tenant:new"],
        "policies": {
            "own": {"concurrency": 2, "per_worker": None, "rate": None, "throttle": {"limit": 1, "period": "PT2S"}},
            "tenant:new": {"concurrency": 3, "per_worker": None, "rate": None, "throttle": None},
        },
        "senders": {},
    }


def test_a_key_that_is_not_made_is_unknown_within_a_transaction_too() -> None:
    with pytest.raises(UnknownKey, match="typo"), transaction.atomic():
        CallQueue.objects.send("noop", keys=["typo", "tenant:new"])
    with pytest.raises(CallNeverRuns), transaction.atomic():
        CallQueue.objects.send("noop", keys={"tenant:new": 4})
    assert not CallQueue.objects.exists()


def test_a_key_that_the_transaction_has_declared_is_known() -> None:
    with transaction.atomic():
        RateLimitKey.objects.declare("api", concurrency=1)
        calls = [CallQueue.objects.send("noop", keys=["api"]) for _ in range(2)]
    assert states(calls) == [State.DISPATCHED, State.AVAILABLE]


@pytest.mark.parametrize("state", [State.DISPATCHED, State.ACTIVE])
def test_no_call_is_in_flight_without_a_lane(state: State) -> None:
    call = unplaced()
    fields = {"ticket": call.id, "started_at": T0, "dispatched_at": T0}
    with pytest.raises(IntegrityError, match="call_in_flight_has_a_lane"), transaction.atomic():
        CallQueue.objects.filter(id=call.id).update(state=state, **fields)


def test_a_call_has_either_a_lane_or_what_makes_it() -> None:
    call = unplaced()
    with pytest.raises(IntegrityError, match="call_has_a_lane_or_its_placement"), transaction.atomic():
        CallQueue.objects.filter(id=call.id).update(placement=None)
    with pytest.raises(IntegrityError, match="call_has_a_lane_or_its_placement"), transaction.atomic():
        CallQueue.objects.filter(id=call.id).update(lane_id=1)


# Placed


def test_calls_in_every_state_that_waits_are_placed() -> None:
    later = timezone.now() + timedelta(hours=1)
    calls = [unplaced(), unplaced(scheduled_at=later)]
    with dying():
        calls += CallQueue.objects.send_many([Call(task="noop", keys=["tenant:new"], extras=Extras(is_pending=True))])
    assert engine.place_unplaced() == 3
    assert {seen(call).lane_id for call in calls} == {Lane.objects.get().id}
    assert states(calls) == [State.DISPATCHED, State.SCHEDULED, State.PENDING]
    assert api.activate([calls[2].id]) == [calls[2].id]
    assert states(calls) == [State.DISPATCHED, State.SCHEDULED, State.DISPATCHED]


def test_what_is_left_is_placed_batch_by_batch_in_order_of_sending(settings: Any) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "batch": 2}
    calls = [unplaced() for _ in range(5)]
    for placed in (2, 4, 5, 5):
        engine.place_unplaced()
        assert [seen(call).lane_id is not None for call in calls] == [number < placed for number in range(5)]


def test_a_key_that_exists_by_then_keeps_its_policy() -> None:
    call = unplaced()
    key("tenant:new", concurrency=1)
    (placed,) = place.place([call.id], lock_wait=timedelta(seconds=1))
    assert placed == Place(lane_id=Lane.objects.get().id, position=call.position)
    assert RateLimitKey.objects.get().concurrency == 1


def test_the_hook_of_a_send_within_a_test_s_transaction_places_its_calls(
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    with transaction.atomic():
        with django_capture_on_commit_callbacks(execute=True):
            call = CallQueue.objects.send("noop", keys=["tenant:new"])
        assert seen(call).lane_id is not None
        transaction.set_rollback(True)


# What people do


def test_a_call_without_a_lane_is_cancelled_and_retried() -> None:
    call = unplaced()
    assert api.cancel([call.id]) == [call.id]
    assert engine.place_unplaced() == 0
    assert seen(call).lane_id is None
    assert api.retry([call.id]) == [call.id]
    assert states([call]) == [State.DISPATCHED]


def test_a_call_without_a_lane_is_run_now_and_activated() -> None:
    later = timezone.now() + timedelta(hours=1)
    scheduled = unplaced("tenant:one", scheduled_at=later)
    assert api.run_now([scheduled.id]) == [scheduled.id]
    with dying():
        (pending,) = CallQueue.objects.send_many(
            [Call(task="noop", keys=["tenant:two"], extras=Extras(is_pending=True))],
        )
    assert api.activate([pending.id]) == [pending.id]
    assert states([scheduled, pending]) == [State.DISPATCHED] * 2


def test_a_call_without_a_lane_expires() -> None:
    call = unplaced(expires_at=T0)
    assert schedule.discard_expired(now=T0) == 1
    assert states([call]) == [State.DISCARDED]
    assert engine.place_unplaced() == 0


# What is reported of it


def test_reports_count_and_list_calls_without_a_lane() -> None:
    key("api", concurrency=0)
    key("queue:mail")
    first = waiting("api", queue="mail")
    engine.tick()
    second = unplaced("api", "tenant:new", queue="mail", priority=1)
    third = unplaced("api", "tenant:new", queue="mail")
    for name in ("api", "queue:mail"):
        (status,) = reports.rate_limit_status([name])
        assert status.waiting == 3
        listed = reports.waiting_calls(name, most=2)
        assert [call.id for call in listed] == [second.id, first.id]
        assert [call.id for call in reports.waiting_calls(name, after=listed[-1].place)] == [third.id]
        assert [call.id for call in reports.waiting_calls(name, after=listed[0].place)] == [first.id, third.id]
    costs = [(cost.name, cost.cost) for cost in reports.costs(second.id)]
    assert costs == [("api", 1), ("queue:mail", 1), ("tenant:new", 1)]


def test_why_a_call_without_a_lane_waits() -> None:
    wait = reports.why_waiting(unplaced().id)
    assert wait is not None
    assert (wait.is_placed, wait.is_awake, wait.stopped_by, wait.held_by, wait.ahead) == (False, False, None, None, 0)
    placed = reports.why_waiting(waiting().id)
    assert placed is not None
    assert placed.is_placed


def test_the_audit_finds_a_call_that_stays_without_a_lane_and_repairs_it() -> None:
    call = unplaced()
    CallQueue.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    found = {each.check.name: each.count for each in audit(settle=timedelta(0)).found if each.count}
    assert found == {"unplaced": 1}
    assert audit(settle=timedelta(0), repair=True).is_ok
    assert states([call]) == [State.DISPATCHED]


def test_the_audit_finds_no_call_that_was_sent_just_now() -> None:
    unplaced()
    assert audit(settle=timedelta(0)).is_ok


# Autocommit off


@contextmanager
def manual() -> Iterator[None]:
    """Leave transactions to the caller, as `set_autocommit(False)` does."""
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_with_autocommit_off_a_send_commits_nothing_by_itself() -> None:
    key("api")
    with manual():
        CallQueue.objects.send("noop", keys=["api"])
        CallQueue.objects.send("noop", keys=["tenant:new"])
        CallQueue.objects.send_many([Call(task="noop", keys=["tenant:other"])] * 2)
        assert CallQueue.objects.count() == 4
        transaction.rollback()
        assert not CallQueue.objects.exists()
    assert [key.name for key in RateLimitKey.objects.all()] == ["api"]


def test_with_autocommit_off_calls_go_on_with_the_tick_after_the_commit() -> None:
    key("api")
    with manual():
        calls = [CallQueue.objects.send("noop", keys=[name]) for name in ("api", "tenant:new")]
        transaction.commit()
        assert states(calls) == [State.AVAILABLE] * 2
    engine.tick()
    assert states(calls) == [State.DISPATCHED] * 2


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        (api.pause, ["api"]),
        (api.limit, ["api", {"concurrency": 2}]),
        (api.block, ["api", timedelta(seconds=9)]),
        (api.run_now, None),
        (api.cancel, None),
    ],
)
def test_with_autocommit_off_verbs_are_rolled_back_with_their_transaction(
    verb: Callable[..., Any], args: list[Any] | None
) -> None:
    key("api", concurrency=0)
    call = waiting("api")
    before = (CallQueue.objects.values().get(), RateLimitKey.objects.values().get())
    with manual():
        verb(*(args or [[call.id]]))
        assert (CallQueue.objects.values().get(), RateLimitKey.objects.values().get()) != before
        transaction.rollback()
    assert (CallQueue.objects.values().get(), RateLimitKey.objects.values().get()) == before


def test_with_autocommit_off_the_planner_settings_of_the_caller_stay_as_they_are() -> None:
    with manual(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')")
        before = cursor.fetchone()
        engine.dispense(awake=True)
        place.place([unplaced().id], lock_wait=timedelta(seconds=1))
        cursor.execute("SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')")
        assert cursor.fetchone() == before
