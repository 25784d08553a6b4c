"""Keys and lanes are created when they are needed first, and never twice; a rolled back send made nothing."""

from functools import partial

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.races.audit import audit, use_now
from tests.races.lockstep import actors, at_once, concurrent, holding
from tests.races.traffic import declare_tenants, write

pytestmark = concurrent


@pytest.fixture(autouse=True)
def _templates(settings: Settings) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 3}, "queue:mail": {"concurrency": 100}}}


def test_sixteen_first_senders_of_a_template_key_make_one_key_and_one_lane() -> None:
    for number in range(10):
        name = f"tenant:{number}"
        calls = at_once(*[partial(CallQueue.objects.send, "noop", keys=[name], queue="celery")] * 16)
        # On a machine that stands still for a moment one may have left its call to the tick.
        engine.place_unplaced()
        assert RateLimitKey.objects.filter(name=name).count() == 1
        assert len(set(CallQueue.objects.filter(id__in=[call.id for call in calls]).values_list("lane_id"))) == 1
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


def test_two_who_declare_a_key_at_once_get_the_same_one() -> None:
    for number in range(10):
        keys = at_once(
            *[partial(RateLimitKey.objects.declare, f"api:{number}", concurrency=size) for size in (1, 2)] * 8
        )
        assert len({(key.id, key.concurrency) for key in keys}) == 1


def test_single_sends_at_once_never_exceed_what_a_key_allows() -> None:
    """A send that admits its own call counts by a snapshot that may be old: the key's number shows it."""
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


def test_a_single_send_counts_an_admission_that_was_committed_after_it_had_begun() -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    declare_tenants(1)
    running = CallQueue.objects.send("noop", keys=["api"])
    (waiting,) = write([["api", "tenant:0"]])
    with actors(1) as (sender,):
        with holding("SELECT FROM dispatcher_lane WHERE id = %s FOR UPDATE", [running.lane_id]) as gate:
            sending = sender.begin(CallQueue.objects.send, "noop", keys=["api"])
            sender.wait_blocked(by=gate)
            assert engine.dispense(lanes=[waiting.lane_id]) == 1
        assert sending.result().state == State.AVAILABLE
    assert use_now(["api"]) == {"api": 2}
    audit(has_ended=False)
