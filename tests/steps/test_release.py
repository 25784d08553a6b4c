"""Release: a finish that admits the next call in its own transaction."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dispatcher import api, ending, sql
from dispatcher.engine import release
from dispatcher.lifecycle import admit, recover
from dispatcher.models import CallQueue, Queue, RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import (
    admitted,
    committed,
    go,
    key,
    lane_of,
    seen,
    slots_of,
    start,
    started,
    states,
    ticket_of,
    waiting,
)
from tests.steps.conftest import Broker

pytestmark = committed


def finish(call: CallQueue) -> release.Release:
    """End a call well, and serve nothing yet of what that has opened."""
    now = seen(call)
    return release.finish_and_admit(call.id, ticket_of(now), ending.completed(7), claim_id=now.claim)


def running(*keys: str, **fields: Any) -> CallQueue:
    return started(*keys, now=timezone.now(), **fields)


def parked(*keys: str, **fields: Any) -> CallQueue:
    """Return a call whose lane a pass has parked."""
    call = waiting(*keys, **fields)
    assert go(call, now=timezone.now()) == []
    assert lane_of(call).parked_on_id is not None
    return call


def test_a_finish_admits_the_next_call_and_its_lane_parks_again(broker: Broker) -> None:
    api = key(concurrency=1)
    first = running("api")
    second, third = parked("api"), waiting("api")
    done = finish(first)
    assert [call.id for call in done.calls] == [second.id]
    assert states([first, second, third]) == [State.COMPLETED, State.DISPATCHED, State.AVAILABLE]
    assert (seen(first).result, slots_of(first), slots_of(second)) == (7, {}, {api.id: 1})
    assert (lane_of(third).parked_on_id, done.room) == (api.id, admit.ReleasedRoom(keys=[], has_awake=False, queues=[]))
    release.serve(done)
    assert [message.properties["correlation_id"] for message in broker.take()] == [str(second.id)]
    assert seen(second).published_at is not None


def test_a_lane_without_more_calls_sleeps_unless_one_was_sent_meanwhile() -> None:
    key(concurrency=2)
    first, _ = running("api"), running("api")
    parked("api")
    done = finish(first)
    assert [call.asleep for call in done.calls] == [lane_of(first).id]
    assert (lane_of(first).is_awake, lane_of(first).parked_on_id) == (False, None)
    late = waiting("api")
    release.serve(done)
    assert lane_of(late).parked_on_id is not None


def test_a_lane_with_more_calls_and_room_is_awake_and_served_by_a_pass() -> None:
    key(concurrency=1)
    first = running("api")
    calls = [parked("api"), waiting("api"), waiting("api")]
    RateLimitKey.objects.update(concurrency=3)
    release.serve(finish(first))
    assert states(calls) == [State.DISPATCHED] * 3


LIMITS: dict[str, Callable[[], object]] = {
    "pause": lambda: api.pause("other"),
    "block": lambda: api.block("other", timedelta(minutes=1)),
    "throttle": lambda: RateLimitKey.objects.filter(name="other").update(throttle_limit=1, throttle_period="1 hour"),
    "concurrency": lambda: RateLimitKey.objects.filter(name="other").update(concurrency=0),
    "override": lambda: api.override("other", until=timezone.now() + timedelta(hours=1), concurrency=0),
    "cost": lambda: CallQueue.objects.filter(state=State.AVAILABLE).update(costs={"api": 2}),
    "expired": lambda: CallQueue.objects.filter(state=State.AVAILABLE).update(expires_at=timezone.now()),
    "delivery": lambda: Queue.objects.create(name="celery", delivery="direct"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_not_plain_or_has_no_room_is_left_to_a_pass(limit: str) -> None:
    key("api", concurrency=1), key("other")
    first = running("api", "other")
    call = parked("api", "other")
    LIMITS[limit]()
    done = finish(first)
    assert (done.calls, states([first, call])) == ([], [State.COMPLETED, State.AVAILABLE])
    assert done.room is not None
    assert done.room.keys == [RateLimitKey.objects.get(name="api").id]


def test_a_window_lets_calls_in_as_long_as_it_has_room() -> None:
    key("api", concurrency=1), key("other", rate=(2, 3600))
    first = running("api", "other")
    second, third = parked("api", "other"), waiting("api", "other")
    assert [call.id for call in finish(first).calls] == [second.id]
    start(second, now=timezone.now())
    done = finish(second)
    assert done.calls == []
    release.serve(done)
    other = RateLimitKey.objects.get(name="other")
    assert (states([third]), lane_of(third).parked_on_id) == ([State.AVAILABLE], other.id)


def test_a_lane_of_higher_priority_goes_first() -> None:
    key("api", concurrency=1)
    first = running("api")
    low, high = parked("api", priority=0), parked("api", priority=5)
    assert [call.id for call in finish(first).calls] == [high.id]
    assert states([low]) == [State.AVAILABLE]


def test_lanes_take_turns() -> None:
    key("api", concurrency=1), key("a"), key("b")
    call = running("api")
    waits = [parked("api", "a"), parked("api", "b"), waiting("api", "a"), waiting("api", "b")]
    order = []
    for _ in waits:
        done = finish(call)
        order += [each.id for each in done.calls]
        call = CallQueue.objects.get(id=order[-1])
        start(call, now=timezone.now())
    assert order == [each.id for each in waits]


def test_a_queue_with_enough_calls_on_their_way_gets_no_more(settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 96}
    key("api", concurrency=1)
    first = running("api")
    call = parked("api")
    for _ in range(64):
        admitted(now=timezone.now())
    assert (finish(first).calls, states([call])) == ([], [State.AVAILABLE])


def test_a_finish_with_another_ticket_records_nothing_and_a_key_without_room_stays_shut() -> None:
    key("api", concurrency=1)
    first = running("api")
    call = parked("api")
    done = release.finish_and_admit(first.id, first.id, ending.completed(7), claim_id=first.id)
    assert (done.released, done.calls) == (None, [])
    assert (states([first, call]), Slot.objects.count()) == ([State.ACTIVE, State.AVAILABLE], 1)


def test_within_a_transaction_of_the_callers_a_finish_admits_nothing() -> None:
    with sql.atomic():
        assert not release.is_possible()


def test_an_awake_lane_is_served_after_the_finish() -> None:
    key("api", concurrency=1)
    first, other = running("api"), waiting()
    recover.wake([other.lane_id] if other.lane_id else [])
    release.serve(finish(first))
    assert states([other]) == [State.DISPATCHED]
