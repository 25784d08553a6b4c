"""A call that costs more than the limits in force ever allow waits alone, until they do."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from dispatcher import api, engine, reports
from dispatcher.audit import audit
from dispatcher.errors import KeyNotFound, PolicyInvalid
from dispatcher.lifecycle import claim, oversized
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import at, committed, end, key, seen, started, states, ticket_of, waiting

pytestmark = [committed, pytest.mark.pooler]

HOUR = timedelta(hours=1)
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "concurrency": ({"concurrency": 10}, {"concurrency": 5}),
    "rate": ({"rate": (10, 3600)}, {"rate": (5, 3600)}),
    "throttle": ({"throttle": (1, "PT1S")}, {"throttle": (1, "P100D")}),
}
"""Limits that allow a cost of 8, and lower ones that never do."""


def send(*costs: int, **fields: Any) -> list[CallQueue]:
    """Send calls under the key `api` together, so that a pass is what admits them."""
    return CallQueue.objects.send_many([Call(task="noop", keys={"api": cost}, **fields) for cost in costs])


def paused(**limits: Any) -> RateLimitKey:
    """Make a key under which calls can be sent and wait."""
    made = key("api", **limits)
    api.pause("api")
    return made


def aside() -> dict[Any, int]:
    """Return the calls that wait alone, with what they cost."""
    calls = CallQueue.objects.filter(oversized_key__isnull=False)
    return dict(calls.values_list("id", "oversized_cost"))


# What it leaves to others


@pytest.mark.parametrize("strategy", LIMITS)
def test_a_call_that_a_lowered_limit_never_allows_does_not_stop_its_lane_nor_its_key(strategy: str) -> None:
    before, after = LIMITS[strategy]
    paused(**before)
    key("tenant")
    dear, behind = send(8, 1)
    (other,) = CallQueue.objects.send_many([Call(task="noop", keys={"api": 1, "tenant": 1})])
    api.limit("api", after)
    api.resume("api")
    assert states([dear]) == [State.AVAILABLE]
    if strategy == "throttle":
        # One start in 100 days: it is either of them.
        assert sorted(states([behind, other])) == [State.AVAILABLE, State.DISPATCHED]
    else:
        assert states([behind, other]) == [State.DISPATCHED] * 2
    assert aside() == {dear.id: 8}


def test_a_call_that_an_override_never_allows_goes_by_itself_when_the_override_ends() -> None:
    paused(concurrency=10)
    dear, cheap = send(8, 1)
    api.override("api", until=at(60), concurrency=5)
    api.resume("api")
    assert states([dear, cheap]) == [State.AVAILABLE, State.DISPATCHED]
    api.end_override("api")
    assert states([dear]) == [State.DISPATCHED]
    assert aside() == {}


def test_it_goes_within_two_ticks_when_its_override_has_run_out() -> None:
    paused(concurrency=10)
    dear, cheap = send(8, 1)
    api.override("api", until=timezone.now() + HOUR, concurrency=5)
    api.resume("api")
    assert states([dear, cheap]) == [State.AVAILABLE, State.DISPATCHED]
    RateLimitKey.objects.update(override_until=timezone.now() - timedelta(seconds=1))
    engine.tick(now=timezone.now())
    engine.tick(now=timezone.now())
    assert states([dear]) == [State.DISPATCHED]


def test_a_limit_that_was_changed_by_hand_is_found_by_the_tick() -> None:
    paused(concurrency=5)
    RateLimitKey.objects.update(concurrency=10)
    (dear,) = send(8)
    RateLimitKey.objects.update(concurrency=5)
    api.resume("api")
    assert aside() == {dear.id: 8}
    RateLimitKey.objects.update(concurrency=8)
    engine.tick(now=timezone.now())
    assert states([dear]) == [State.DISPATCHED]


@pytest.mark.parametrize("verb", ["limit", "override"])
def test_it_goes_in_its_old_place_when_the_limit_is_raised(verb: str) -> None:
    paused(concurrency=10)
    first, second, third = send(8, 1, 8)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    running = seen(second)
    assert running.state == State.DISPATCHED
    assert claim.claim(running.id, ticket_of(running))
    late = send(1)[0]
    api.pause("api")
    later = send(1)[0]
    if verb == "limit":
        api.limit("api", {"concurrency": 10})
    else:
        api.override("api", until=at(0), concurrency=10)
    assert aside() == {}
    api.resume("api")
    # 10 = the one that runs, the one that came late, and the first in the line of the rest.
    assert states([late, first, third, later]) == [State.DISPATCHED] * 2 + [State.AVAILABLE] * 2
    end(late)
    end(running)
    end(first)
    engine.tick(now=timezone.now())
    assert states([third, later]) == [State.DISPATCHED] * 2


def test_one_that_fits_the_raised_limit_goes_and_one_that_does_not_stays() -> None:
    paused(concurrency=20)
    dearest, dear = send(20, 8)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    assert aside() == {dearest.id: 20, dear.id: 8}
    api.limit("api", {"concurrency": 10})
    assert aside() == {dearest.id: 20}
    assert states([dear]) == [State.DISPATCHED]


def test_a_concurrency_of_zero_is_a_pause() -> None:
    paused(concurrency=10)
    (dear,) = send(8)
    api.limit("api", {"concurrency": 0})
    api.resume("api")
    assert aside() == {}
    assert Lane.objects.get(id=dear.lane_id).parked_on.name == "api"
    api.limit("api", {"concurrency": 5})
    assert aside() == {dear.id: 8}
    api.limit("api", {"concurrency": 0})
    assert aside() == {}


def test_one_that_a_second_key_never_allows_either_waits_for_both() -> None:
    paused(concurrency=10)
    key("other", concurrency=10)
    (dear,) = CallQueue.objects.send_many([Call(task="noop", keys={"api": 8, "other": 9})])
    api.limit("api", {"concurrency": 5})
    api.limit("other", {"concurrency": 5})
    api.resume("api")
    assert aside() == {dear.id: 8}
    api.limit("api", {"concurrency": 10})
    assert aside() == {dear.id: 9}
    api.limit("other", {"concurrency": 9})
    assert states([dear]) == [State.DISPATCHED]


def test_a_key_that_is_gone_keeps_no_call_back() -> None:
    made = paused(concurrency=10)
    (dear,) = send(8)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    assert aside() == {dear.id: 8}
    Lane.objects.update(parked_on=None)
    RateLimitKey.objects.filter(id=made.id).delete()
    engine.tick(now=timezone.now())
    assert states([dear]) == [State.DISPATCHED]


def test_a_lane_that_was_parked_with_such_a_call_in_front_goes_on_within_two_ticks() -> None:
    """As a database has it that an older version filled, or in which limits were changed by hand."""
    made = paused(concurrency=10)
    dear, cheap = send(8, 1)
    RateLimitKey.objects.update(concurrency=5, is_paused=False, opens_at=None)
    assert Lane.objects.get().parked_on_id == made.id
    found = audit(settle=timedelta(0))
    assert {each.check.name for each in found.found if each.count} == {"unserved_parked"}
    engine.tick(now=timezone.now())
    engine.tick(now=timezone.now())
    assert states([dear, cheap]) == [State.AVAILABLE, State.DISPATCHED]


# What it is sent with


def test_one_that_is_to_be_dropped_at_a_limit_is_dropped() -> None:
    paused(concurrency=10)
    (dear,) = send(8, on_limit="drop", scheduled_at=timezone.now() + HOUR)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    api.run_now([dear.id])
    assert (seen(dear).state, seen(dear).reason) == (State.DISCARDED, "limit")


def test_one_that_is_to_be_put_off_at_a_limit_waits_alone_and_is_not_put_off_for_ever() -> None:
    paused(concurrency=10)
    (dear,) = send(8, on_limit="reschedule", scheduled_at=timezone.now() + HOUR)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    api.run_now([dear.id])
    assert states([dear]) == [State.AVAILABLE]
    assert aside() == {dear.id: 8}
    api.limit("api", {"concurrency": 8})
    assert states([dear]) == [State.DISPATCHED]


# What people do to it


def waits_alone() -> CallQueue:
    """Return a call that waits alone."""
    paused(concurrency=10)
    (dear,) = send(8)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    assert aside() == {dear.id: 8}
    return dear


def test_it_can_be_cancelled_and_retried() -> None:
    dear = waits_alone()
    assert api.cancel([dear.id]) == [dear.id]
    assert (seen(dear).state, aside()) == (State.CANCELLED, {})
    assert api.retry([dear.id]) == [dear.id]
    assert aside() == {dear.id: 8}


def test_run_now_does_not_let_it_over_its_limit() -> None:
    dear = waits_alone()
    assert api.run_now([dear.id]) == [dear.id]
    assert aside() == {dear.id: 8}


def test_it_expires() -> None:
    dear = waits_alone()
    CallQueue.objects.update(expires_at=timezone.now() - HOUR)
    engine.tick(now=timezone.now())
    assert (seen(dear).state, seen(dear).reason, aside()) == (State.DISCARDED, "expired", {})


# Who names it


def test_the_answer_to_a_lowered_limit_says_how_many_calls_never_fit() -> None:
    paused(concurrency=100)
    send(8, 8, 1, 30)
    assert api.count_oversized("api", {"concurrency": 5}) == 3
    assert api.count_oversized("api", {"concurrency": 8}) == 1
    assert api.count_oversized("api", {"concurrency": 0}) == 0
    assert api.count_oversized("api", {"rate": (10, 60)}) == 1
    assert api.count_oversized("api", {}) == 0
    assert aside() == {}
    assert api.override("api", until=timezone.now() + HOUR, rate=(10, 60)) == 1
    assert api.end_override("api") == 0
    assert api.limit("api", {"concurrency": 5}) == 3
    api.resume("api")
    assert len(aside()) == 3
    assert api.limit("api", {"concurrency": 6}) == 3
    assert api.limit("api", {"concurrency": 10}) == 1


def test_a_count_of_a_partial_change_keeps_the_other_limits() -> None:
    paused(concurrency=10)
    send(8)
    assert api.count_oversized("api", {"rate": (9, 60)}, keeps_others=True) == 0
    RateLimitKey.objects.update(concurrency=5)
    assert api.count_oversized("api", {"rate": (9, 60)}, keeps_others=True) == 1
    assert api.count_oversized("api", {"rate": (9, 60)}) == 0
    assert api.end_override("api") == 0


def test_a_count_names_what_is_wrong_with_it() -> None:
    with pytest.raises(KeyNotFound):
        api.count_oversized("nothing", {})
    key("api")
    with pytest.raises(PolicyInvalid):
        api.count_oversized("api", {"concurrency": -1})


def test_a_call_that_spends_the_key_of_its_queue_counts_there() -> None:
    key("queue:celery", concurrency=10)
    api.pause("queue:celery")
    CallQueue.objects.send_many([Call(task="noop", keys={"queue:celery": 8})])
    assert api.limit("queue:celery", {"concurrency": 5}) == 1


def test_reports_and_the_audit_name_it() -> None:
    dear = waits_alone()
    (behind,) = send(1)
    (status,) = reports.rate_limit_status(["api"])
    assert (status.waiting, status.oversized, status.as_json()["oversized_count"]) == (1, 1, 1)
    assert status.waiting_since is not None
    wait = reports.why_waiting(dear.id)
    assert wait is not None
    assert (wait.oversized_for, wait.oversized_cost, wait.stopped_by, wait.ahead) == ("api", 8, None, 0)
    assert reports.why_waiting(behind.id) is None
    assert [call.id for call in reports.waiting_calls("api")] == [dear.id]
    report = audit(settle=timedelta(0))
    (found,) = [each for each in report.found if each.count]
    assert found.check.name == "oversized"
    assert found.findings[0].what == "key api"
    assert found.findings[0].facts["calls"] == 1
    assert found.findings[0].facts["cheapest_call"] == str(dear.id)
    assert audit(settle=timedelta(0), repair=True).repaired == 0
    api.limit("api", {"concurrency": 10})
    assert audit(settle=timedelta(0)).is_ok


def test_the_repair_lets_go_on_what_fits_by_now() -> None:
    dear = waits_alone()
    RateLimitKey.objects.update(concurrency=8)
    report = audit(settle=timedelta(0), repair=True)
    assert (report.is_ok, report.repaired) == (True, 1)
    assert states([dear]) == [State.DISPATCHED]


def test_the_status_shows_it() -> None:
    waits_alone()
    table, whole, document = StringIO(), StringIO(), StringIO()
    call_command("rate_limit_status", stdout=table)
    assert "Oversized" in table.getvalue()
    call_command("rate_limit_status", "--key", "api", stdout=whole)
    assert "1 of these cost more than the limits ever allow" in whole.getvalue()
    call_command("rate_limit_status", "--json", stdout=document)
    assert json.loads(document.getvalue())["items"][0]["oversized_count"] == 1


def test_waiting_calls_are_paged_with_those_that_wait_alone_in_their_places() -> None:
    paused(concurrency=10)
    calls = send(1, 8, 1, 8, 1)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    api.pause("api")
    CallQueue.objects.filter(state=State.DISPATCHED).update(
        state=State.AVAILABLE, ticket=None, dispatched_at=None, published_at=None
    )
    paged: list[Any] = []
    while page := reports.waiting_calls("api", after=paged[-1].place if paged else None, most=2):
        paged += page
    assert [call.id for call in paged] == [call.id for call in calls]


# What it costs


def test_ten_thousand_such_calls_are_set_aside_and_let_go_on_once_each() -> None:
    paused(concurrency=10)
    calls = CallQueue.objects.send_many([Call(task="noop", keys={"api": 8})] * 1_200)
    (cheap,) = send(1)
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    assert states([cheap]) == [State.DISPATCHED]
    assert len(aside()) == 1_200
    made = oversized.release()
    assert (made.calls, made.last) == (0, 0)
    api.limit("api", {"concurrency": 10})
    assert aside() == {}
    assert states([calls[0]]) == [State.DISPATCHED]


def test_the_look_for_what_fits_goes_from_key_to_key() -> None:
    names = [f"key:{number}" for number in range(5)]
    for name in names:
        key(name, concurrency=10)
        api.pause(name)
        waiting(costs={name: 8})
        api.limit(name, {"concurrency": 5})
        api.resume(name)
        engine.tick(now=timezone.now())
    assert len(aside()) == 5
    RateLimitKey.objects.update(concurrency=10)
    first = oversized.release(most=3)
    assert (first.calls, first.last > 0) == (3, True)
    second = oversized.release(after=first.last, most=3)
    assert (second.calls, second.last) == (2, 0)


def test_what_runs_is_left_alone_when_its_cost_does_not_fit_any_more() -> None:
    key("api", concurrency=10)
    running = started(costs={"api": 8}, now=timezone.now())
    api.limit("api", {"concurrency": 5})
    assert states([running]) == [State.ACTIVE]
    assert aside() == {}
