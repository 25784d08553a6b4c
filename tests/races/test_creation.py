"""Keys and lanes are made by whoever needs them first, and by nobody twice; a rolled back send made nothing."""

from functools import partial

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.calls import Call
from dispatcher.errors import UnknownKey
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.states import State
from tests.races.audit import audit, use_now
from tests.races.lockstep import actors, at_once, concurrent
from tests.races.traffic import declare_tenants

pytestmark = concurrent


@pytest.fixture(autouse=True)
def _templates(settings: Settings) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 3}, "queue:mail": {"concurrency": 100}}}


def test_sixteen_first_senders_of_a_template_key_make_one_key_and_one_lane() -> None:
    for number in range(10):
        name = f"tenant:{number}"
        calls = at_once(*[partial(CallQueue.objects.send, "noop", keys=[name], queue="celery")] * 16)
        assert RateLimitKey.objects.filter(name=name).count() == 1
        assert len({call.lane_id for call in calls}) == 1
        assert use_now([name]) == {name: 3}
    audit(has_ended=False)


def test_first_senders_of_many_lanes_in_any_order_do_not_hold_each_other_up() -> None:
    names = [f"tenant:{number}" for number in range(20)]
    calls = [Call(task="noop", keys=[name], queue="mail") for name in names]
    orders = [calls, calls[::-1], calls[10:] + calls[:10], calls[::2] + calls[1::2]]
    at_once(*[partial(CallQueue.objects.send_many, order) for order in orders * 4])
    assert CallQueue.objects.count() == 16 * 20
    assert Lane.objects.count() == 20
    assert RateLimitKey.objects.filter(name="queue:mail").count() == 1
    audit(has_ended=False)


def test_a_sender_that_waited_for_the_first_one_uses_the_lane_that_it_made() -> None:
    with actors(2) as (first, second):
        first.open()
        one = first.do(CallQueue.objects.send, "noop", keys=["tenant:new"])
        sending = second.begin(CallQueue.objects.send, "noop", keys=["tenant:new"])
        second.wait_blocked(by=first)
        first.commit()
        other = sending.result()
    assert one.lane_id == other.lane_id
    assert CallQueue.objects.filter(state=State.DISPATCHED).count() == 2
    audit(has_ended=False)


def test_a_sender_that_waited_for_one_who_rolled_back_makes_key_and_lane_itself() -> None:
    with actors(2) as (first, second):
        first.open()
        gone = first.do(CallQueue.objects.send, "noop", keys=["tenant:new"])
        sending = second.begin(CallQueue.objects.send, "noop", keys=["tenant:new"])
        second.wait_blocked(by=first)
        first.roll_back()
        call = sending.result()
    assert not CallQueue.objects.filter(id=gone.id).exists()
    assert CallQueue.objects.get().id == call.id
    assert CallQueue.objects.get().state == State.DISPATCHED
    audit(has_ended=False)


def test_a_rolled_back_send_leaves_nothing_behind() -> None:
    with actors(1) as (sender,):
        sender.open()
        sender.do(CallQueue.objects.send, "noop", keys=["tenant:new"])
        sender.roll_back()
        assert not CallQueue.objects.exists()
        assert not Lane.objects.exists()
        assert not RateLimitKey.objects.filter(name="tenant:new").exists()
        # The same connection goes on as if nothing had been.
        call = sender.do(CallQueue.objects.send, "noop", keys=["tenant:new"])
    assert CallQueue.objects.get(id=call.id).state == State.DISPATCHED
    audit(has_ended=False)


def test_a_send_that_fails_leaves_nothing_half_made() -> None:
    with pytest.raises(UnknownKey):
        CallQueue.objects.send("noop", keys=["tenant:new", "typo"], rate_limit={"key": "api", "concurrency": 1})
    with pytest.raises(UnknownKey):
        CallQueue.objects.send_many([Call(task="noop", keys=["tenant:new"]), Call(task="noop", keys=["typo"])])
    assert not CallQueue.objects.exists()
    assert not Lane.objects.exists()
    assert not RateLimitKey.objects.filter(name__in=["tenant:new", "typo", "api"]).exists()


def test_two_who_declare_a_key_at_once_get_the_same_one() -> None:
    for number in range(10):
        keys = at_once(
            *[partial(RateLimitKey.objects.declare, f"api:{number}", concurrency=size) for size in (1, 2)] * 8
        )
        assert len({(key.id, key.concurrency) for key in keys}) == 1


def test_single_sends_at_once_never_exceed_what_a_key_allows() -> None:
    """A send that admits its own call counts by a snapshot that may be old: the key's number tells."""
    declare_tenants(1)
    for number in range(15):
        key = f"api:{number}"
        RateLimitKey.objects.declare(key, concurrency=5, rate=(5, 3600))
        CallQueue.objects.send("noop", keys=[key])
        at_once(
            *[partial(CallQueue.objects.send, "noop", keys=[key])] * 12,
            *[partial(CallQueue.objects.send, "noop", keys=[key, "tenant:0"])] * 4,
        )
        assert use_now([key]) == {key: 5}
    audit(has_ended=False)


def test_a_single_send_that_waited_for_an_admission_counts_it() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    CallQueue.objects.send("noop", keys=["api"])
    engine.cancel(CallQueue.objects.values_list("id", flat=True))
    with actors(2) as (first, second):
        first.open()
        call = first.do(engine.sending.write, [_draft("api")])[0]
        first.do(engine.admit.admit, lanes=[call.lane_id])
        sending = second.begin(CallQueue.objects.send, "noop", keys=["api"])
        second.wait_blocked(by=first)
        first.commit()
        assert sending.result().state == State.AVAILABLE
    assert use_now(["api"]) == {"api": 1}
    audit(has_ended=False)


def _draft(key: str) -> engine.sending.Draft:
    return engine.sending.draft(Call(keys=[key]), task="noop", queue="celery")
