"""A lone send takes as known what is in flight under its keys, as long as that leaves room, and is never too low."""

from typing import Any

import pytest

from dispatcher import api
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import committed, end, erase, key, seen, start
from tests.steps.send_variants import alone

pytestmark = committed


def send(*, count: int = 1, **fields: Any) -> list[State]:
    """Send so many calls, one by one, and return where they stand."""
    return [State(alone(**{"task": "noop", "keys": ["api"], **fields}).state) for _ in range(count)]


def known(name: str = "api") -> tuple[int, int] | None:
    """Return what the next send takes as known: held, and of that not started; None if it counts."""
    row = RateLimitKey.objects.get(name=name)
    if row.most_held is None or row.most_unstarted is None or row.counted_admissions != row.admissions:
        return None
    return row.most_held, row.most_unstarted


@pytest.fixture(autouse=True)
def _opened() -> None:
    """Make the lane: a send to a new one is not a lone statement."""
    key("api", concurrency=3)
    call = alone(task="noop", keys=["api"])
    api.cancel([call.id])
    erase(call)
    Slot.objects.all().delete()


def test_a_send_stores_what_is_in_flight_with_its_own() -> None:
    assert known() is None
    assert send() == [State.DISPATCHED]
    assert known() == (1, 1)
    assert send() == [State.DISPATCHED]
    assert known() == (2, 2)


def test_what_is_known_is_never_too_low_and_a_send_counts_again_where_it_leaves_no_room() -> None:
    send(count=3)
    first = CallQueue.objects.in_flight().earliest("position")
    end(first)
    assert known() == (3, 3)
    assert send() == [State.DISPATCHED]
    assert known() == (3, 3)
    assert send() == [State.AVAILABLE]


def test_a_call_that_was_deleted_leaves_room() -> None:
    send(count=3)
    call = CallQueue.objects.in_flight().earliest("position")
    erase(call)
    Slot.objects.filter(call=call).delete()
    assert send(count=2) == [State.DISPATCHED, State.AVAILABLE]


def test_an_admission_that_another_made_is_counted() -> None:
    send()
    CallQueue.objects.send_many([Call(task="noop", keys=["api"])] * 2)
    assert known() is None
    assert send() == [State.AVAILABLE]


def test_limits_that_were_changed_are_counted_under() -> None:
    send(count=3)
    api.limit("api", {"concurrency": 4})
    assert known() is None
    assert send(count=2) == [State.DISPATCHED, State.AVAILABLE]


def test_starts_count_in_the_window_and_not_as_on_their_way() -> None:
    api.limit("api", {"rate": {"limit": 2, "period": "PT1H"}})
    assert send() == [State.DISPATCHED]
    first = CallQueue.objects.in_flight().get()
    start(first, now=first.dispatched_at)
    # One has started, and as far as is known one is on its way: that leaves no room, so it counts.
    assert send(count=2) == [State.DISPATCHED, State.AVAILABLE]
    assert sum(Slot.objects.values_list("cost", flat=True)) == 2


def test_a_key_without_limits_is_not_counted() -> None:
    api.limit("api", {})
    assert send(count=5) == [State.DISPATCHED] * 5
    assert known() is None
    api.limit("api", {"concurrency": 5})
    assert send() == [State.AVAILABLE]


def test_the_key_of_the_queue_is_known_as_well() -> None:
    key("queue:celery", concurrency=2)
    assert send(queue="celery", count=2) == [State.DISPATCHED] * 2
    assert known("queue:celery") == (2, 2)
    assert send(queue="celery") == [State.AVAILABLE]


def test_a_version_that_knows_nothing_of_it_makes_the_next_send_count() -> None:
    """It numbers its admission, and writes a slot: nothing else."""
    send()
    row = RateLimitKey.objects.get(name="api")
    call = CallQueue.objects.in_flight().get()
    Slot.objects.filter(call=call).update(cost=3)
    RateLimitKey.objects.filter(id=row.id).update(admissions=row.admissions + 1)
    assert send() == [State.AVAILABLE]
    assert seen(call).state == State.DISPATCHED
