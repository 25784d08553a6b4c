"""A hand-over: one call ends, and the next one of a full key starts with its slots, in one statement."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.audit import audit
from dispatcher.engine import feed
from dispatcher.engine.feed import Start, Step
from dispatcher.groups import any_of
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import committed, seen, states
from tests.steps.feeding import TAKER, done, ids, send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]


def hand_over(start: Start, room: int = 2) -> Step:
    """End a call that has completed, and hand its slots over."""
    return feed.hand_over(TAKER, done(start), room=room)


def running(*keys: str) -> Start:
    """Start one call under these keys, of which another one waits."""
    send(2, keys=keys)
    (start,) = take().starts
    assert start.is_followed
    return start


def held(name: str) -> int:
    """Return how many slots of a key are held."""
    return Slot.objects.filter(key__name=name).count()


def waits_longest(call: CallQueue) -> None:
    """Let the lane of a call be the one that was served least recently."""
    Lane.objects.filter(id=seen(call).lane_id).update(served_at=datetime(2020, 1, 1, tzinfo=UTC))


def test_the_next_call_of_a_full_key_starts_with_the_slots_of_the_one_that_ended() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    RateLimitKey.objects.declare("queue:mail", concurrency=5)
    RateLimitKey.objects.declare("tenant")
    calls = send(3, keys=["api", "tenant"])
    step = take(2)
    for before, call in pairwise(calls):
        served_at = Lane.objects.get().served_at
        step = hand_over(step.starts[0])
        assert (step.handed_over, step.recorded, ids(step)) == (True, [before.id], [call.id])
        assert states([before, call]) == [State.COMPLETED, State.ACTIVE]
        assert seen(call).attempt == 1
        assert set(Slot.objects.values_list("call_id", "key__name", "worker_id")) == {
            (call.id, name, TAKER.worker) for name in ("api", "queue:mail", "tenant")
        }
        lane = Lane.objects.get()
        assert lane.parked_on == RateLimitKey.objects.get(name="api")
        assert lane.served_at > served_at
        assert audit().is_ok
    last = hand_over(step.starts[0])
    assert (last.handed_over, last.recorded, ids(last)) == (False, [calls[-1].id], [])
    assert not Slot.objects.exists()
    assert send(keys=["api", "tenant"])[0].id in ids(take())


def test_an_end_that_was_recorded_before_hands_nothing_over() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    start = running("api")
    (following,) = hand_over(start).starts
    again = hand_over(start)
    assert (again.handed_over, again.recorded, ids(again)) == (False, [], [])
    assert seen(CallQueue(id=following.call.id)).ticket == following.call.ticket


def test_a_lane_of_a_higher_priority_gets_the_slots_first() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    start = running("api")
    (urgent,) = send(keys=["api"], priority=5)
    take()
    step = hand_over(start)
    assert (step.handed_over, ids(step)) == (True, [urgent.id])


def lower() -> None:
    api.limit("api", {"concurrency": 1})


def block() -> None:
    api.block("api", timedelta(minutes=1))


def pause() -> None:
    api.pause("api")


def pause_the_queue() -> None:
    api.pause("queue:mail")


@pytest.mark.parametrize("change", [lower, block, pause, pause_the_queue])
def test_nothing_starts_where_a_limit_was_changed_meanwhile(change: Callable[[], None]) -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    RateLimitKey.objects.declare("queue:mail")
    send(4, keys=["api"])
    start, other = take(2).starts
    assert start.is_followed
    change()
    step = hand_over(start)
    assert (step.handed_over, step.recorded, ids(step)) == (False, [start.call.id], [])
    assert {*Slot.objects.values_list("call_id", flat=True)} == {other.call.id}
    # What the calls had while they ran, for the audit.
    api.limit("api", {"concurrency": 2})


def test_a_window_that_was_set_meanwhile_counts_the_next_start() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    start = running("api")
    api.limit("api", {"concurrency": 1, "rate": {"limit": 1, "period": "PT1H"}})
    step = hand_over(start)
    assert (step.handed_over, len(step.starts)) == (False, 1)
    assert ids(take(2, *step.starts)) == []
    api.limit("api", {"concurrency": 1})


def test_a_limit_that_was_raised_starts_as_many_as_it_allows() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    send(4, keys=["api"])
    (start,) = take(2).starts
    RateLimitKey.objects.filter(name="api").update(concurrency=3)
    step = hand_over(start, room=3)
    assert (step.handed_over, len(step.starts)) == (False, 3)


@pytest.mark.parametrize(
    "change",
    [{"costs": {str(1): 2}}, {"is_revoked": True}, {"expires_at": timezone.now() - timedelta(hours=1)}, {"task": "?"}],
    ids=["cost", "revoked", "expired", "unknown task"],
)
def test_a_call_that_is_not_plain_is_left_to_an_ordinary_step(change: dict[str, object]) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    start = running("api")
    key = RateLimitKey.objects.get()
    fields = {"costs": {str(key.id): 2}} if "costs" in change else change
    CallQueue.objects.exclude(id=start.call.id).update(**fields)
    assert hand_over(start).handed_over is False
    assert seen(CallQueue(id=start.call.id)).state == State.COMPLETED
    engine.tick()


def test_more_slots_than_one_are_counted_again() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    send(1, keys={"api": 2})
    waiting = send(3, keys=["api"])
    (start,) = take(1).starts
    step = hand_over(start, room=3)
    assert (step.handed_over, ids(step)) == (False, [call.id for call in waiting[:2]])


def test_another_kind_of_lane_has_its_turn() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    RateLimitKey.objects.declare("tenant", concurrency=1)
    start = running("api")
    (other,) = send(keys=["api", "tenant"])
    take()
    waits_longest(other)
    step = hand_over(start)
    assert (step.handed_over, ids(step)) == (False, [other.id])


def test_lanes_parked_on_different_keys_of_the_call_are_judged_together() -> None:
    for name in ("api", "tenant"):
        RateLimitKey.objects.declare(name, concurrency=1)
    start = running("api", "tenant")
    (other,) = send(keys=["tenant"])
    take()
    assert set(Lane.objects.values_list("parked_on__name", flat=True)) == {"api", "tenant"}
    waits_longest(other)
    step = hand_over(start)
    assert (step.handed_over, ids(step)) == (False, [other.id])
    assert (held("api"), held("tenant")) == (0, 1)


def test_a_lane_that_a_queue_holds_has_its_turn_with_one_process() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    start = running("api")
    (other,) = send()
    waits_longest(other)
    step = hand_over(start, room=1)
    assert (step.handed_over, ids(step)) == (False, [other.id])


def test_a_lane_of_a_queue_that_the_worker_does_not_serve_is_left_to_others() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    start = running("api")
    Lane.objects.update(queue="elsewhere")
    step = hand_over(start)
    assert (step.handed_over, ids(step)) == (False, [])
    Lane.objects.update(queue="mail")


def test_a_group_that_waits_for_a_member_has_its_turn() -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=1)
    start = running("egress:1")
    (other,) = send(keys=[any_of("egress:*")])
    take()
    api.cancel(CallQueue.objects.filter(state=State.AVAILABLE).exclude(id=other.id).values_list("id", flat=True))
    step = hand_over(start)
    assert (step.handed_over, ids(step)) == (False, [other.id])


def test_the_event_log_has_each_start(settings: Any) -> None:
    settings.DISPATCHER = {"event_retention": 3600}
    RateLimitKey.objects.declare("api", concurrency=1)
    send(2, keys=["api"])
    (start,) = take(1).starts
    assert len(hand_over(start).starts) == 1
