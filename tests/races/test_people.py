"""What people do to calls while the engine does its part: cancel, retry, run now, delete."""

from functools import partial

from dispatcher import api, engine
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit
from tests.races.lockstep import actors, at_once, concurrent
from tests.races.traffic import in_flight, write

pytestmark = concurrent


def test_cancelling_all_while_all_is_admitted_and_run_leaves_each_call_one_end() -> None:
    RateLimitKey.objects.declare("api", concurrency=8)
    calls = write([["api"]] * 200)
    ran: list[object] = []

    def cancel(part: int) -> list[object]:
        return list(api.cancel([call.id for call in calls[part::4]]))

    def run() -> list[object]:
        for _ in range(20):
            engine.dispense()
            for call in CallQueue.objects.filter(state=State.DISPATCHED)[:4]:
                engine.execute(call.id, call.ticket, partial(ran.append, call.id))
        return []

    cancelled = [call for part in at_once(*[run] * 4, *[partial(cancel, part) for part in range(4)]) for call in part]
    for call in CallQueue.objects.filter(state=State.DISPATCHED):
        engine.execute(call.id, call.ticket, partial(ran.append, call.id))
    assert len(ran) == len(set(ran))
    assert sorted([*ran, *cancelled]) == sorted(call.id for call in calls)
    audit()


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


def test_run_now_and_cancel_of_the_same_calls_leave_them_ended_or_waiting() -> None:
    RateLimitKey.objects.declare("api", concurrency=0)
    for _ in range(10):
        calls = [call.id for call in CallQueue.objects.send_many([Call(task="noop", keys=["api"])] * 20)]
        moved, cancelled = at_once(partial(api.run_now, calls[::-1]), partial(api.cancel, calls))
        assert set(cancelled) == set(calls)
        assert set(moved) <= set(calls)
    audit()


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
