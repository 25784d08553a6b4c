"""What people do to calls while the engine does its part: cancel, retry, run now, delete."""

from functools import partial

from dispatcher import api, engine
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import actors, at_once, concurrent
from tests.races.traffic import in_flight

pytestmark = concurrent


def test_of_sixteen_retries_at_once_one_moves_the_call() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = in_flight("api")
    for _ in range(10):
        now = CallQueue.objects.get(id=call.id)
        engine.execute(now.id, now.ticket, lambda: None)
        moved = at_once(*[partial(api.retry, [call.id])] * 16)
        assert sorted(moved) == [[]] * 15 + [[call.id]]
        # The others may still have held the call when the winner's trip came by: then a note is left.
        engine.tick()
        assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED
        audit(has_ended=False)


def test_run_now_at_once_with_trips_moves_each_call_to_the_front_once() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    in_flight("api")
    calls = CallQueue.objects.send_many([Call(task="noop", keys=["api"]) for _ in range(40)])
    chosen = [call.id for call in calls[20:]]
    at_once(
        *[partial(api.run_now, chosen[part::4]) for part in range(4)],
        *[engine.dispense] * 4,
    )
    waiting = list(CallQueue.objects.waiting().order_by("position").values_list("id", flat=True))
    assert set(waiting[:20]) == set(chosen)
    audit(has_ended=False)


def test_a_call_that_is_retried_while_it_is_deleted_stays() -> None:
    (call,) = in_flight()
    api.cancel([call.id])
    with actors(2) as (person, other):
        person.open()
        person.do(api.retry, [call.id])
        deleting = other.begin(CallQueue.objects.filter(id=call.id).delete)
        other.wait_blocked(by=person)
        person.commit()
        assert deleting.result() == (0, {})
    assert CallQueue.objects.filter(id=call.id).exists()
