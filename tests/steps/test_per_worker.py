"""Limits per worker: what one worker holds of a key at the most, and what it leaves to others."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from dispatcher import api, engine, reports
from dispatcher.celery.feed_agenda import Agenda
from dispatcher.engine.feed import Taker
from dispatcher.errors import CallInvalid, PolicyInvalid
from dispatcher.groups import any_of
from dispatcher.lanes import mixture
from dispatcher.lifecycle import admit, heartbeat, wake
from dispatcher.models import CallQueue, Feed, Lane, Queue, RateLimitKey
from dispatcher.states import State
from tests.builders import HERE, committed, seen
from tests.steps.feeding import ids, send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]

OTHER_TAKER = Taker(worker=uuid4(), queues=["mail"], tasks=["noop"])


@pytest.mark.parametrize("is_general", [False, True])
def test_one_worker_holds_its_part_and_leaves_the_rest_to_others(is_general: bool) -> None:  # noqa: FBT001
    key = RateLimitKey.objects.declare("exports", concurrency=3, per_worker=2)
    calls = send(5, keys=["exports"])
    mine = take(4, is_general=is_general)
    assert ids(mine) == [calls[0].id, calls[1].id]
    assert list(mine.reached) == [key.id]
    assert [list(start.keys) for start in mine.starts] == [[key.id]] * 2
    lane = Lane.objects.get()
    assert (lane.is_held, lane.parked_on_id) == (True, None)
    others = take(4, taker=OTHER_TAKER, is_general=is_general)
    assert ids(others) == [calls[2].id]
    # Now the key is full for all.
    assert Lane.objects.get().parked_on_id == key.id
    again = take(4, *mine.starts[:1], is_general=is_general)
    assert ids(again) == [calls[3].id]


@pytest.mark.parametrize("is_general", [False, True])
def test_a_lane_that_the_worker_leaves_to_others_delays_none_of_the_worker_s_own(is_general: bool) -> None:  # noqa: FBT001
    key = RateLimitKey.objects.declare("exports", per_worker=1)
    first = send(2, keys=["exports"], priority=5)
    low = send(1)
    assert ids(take(1)) == [first[0].id]
    step = take(1, is_general=is_general)
    assert (ids(step), list(step.reached)) == ([low[0].id], [key.id])
    # So it is where the lane is not looked at again.
    later = send(1)
    assert ids(take(1, reached=[key.id], is_general=is_general)) == [later[0].id]


def test_the_key_of_a_queue_limits_a_worker_too() -> None:
    key = RateLimitKey.objects.declare("queue:mail", per_worker=2)
    calls = send(4)
    step = take(4)
    assert ids(step) == [calls[0].id, calls[1].id]
    assert list(step.reached) == [key.id]
    assert ids(take(4, reached=[key.id])) == []
    assert len(ids(take(4, taker=OTHER_TAKER))) == 2


@pytest.mark.parametrize("is_general", [False, True])
def test_a_call_to_drop_at_a_limit_waits_for_a_worker_with_room(is_general: bool) -> None:  # noqa: FBT001
    RateLimitKey.objects.declare("exports", per_worker=1)
    calls = send(2, keys=["exports"], on_limit="drop")
    assert len(take(3, is_general=is_general).starts) == 1
    assert seen(calls[1]).state == State.AVAILABLE


def test_costs_and_overrides_are_counted() -> None:
    RateLimitKey.objects.declare("exports", per_worker=3)
    calls = send(2, keys={"exports": 2})
    assert ids(take(4)) == [calls[0].id]
    api.override("exports", until=timezone.now() + timedelta(hours=1), per_worker=4)
    assert ids(take(4)) == [calls[1].id]


def test_an_idle_worker_at_its_limit_is_not_woken_for_the_calls_of_the_key() -> None:
    key = RateLimitKey.objects.declare("exports", per_worker=1)
    heartbeat.record(HERE, [])
    wake.mark_idle(HERE.id, ["mail"], [key.id])
    send(1, keys=["exports"])
    assert Feed.objects.get().idle_at is not None
    assert wake.notify(["mail"]) == []
    assert wake.ask_waiting().rows() == []
    send(1)
    assert Feed.objects.get().idle_at is None


def test_an_idle_worker_at_the_limit_of_a_queue_waits_for_its_other_queues() -> None:
    Queue.objects.create(name="bulk", delivery="direct")
    key = RateLimitKey.objects.declare("queue:mail", per_worker=1)
    wake.mark_idle(HERE.id, ["mail", "bulk"], [key.id])
    assert Feed.objects.get().queues == ["bulk"]


def test_an_agenda_leaves_a_key_out_until_a_call_of_the_key_ends() -> None:
    agenda = Agenda()
    agenda.note_reached([1, 2])
    assert agenda.reached(0.0) == {1, 2}
    agenda.forget_reached([1])
    assert agenda.reached(0.0) == {2}
    assert agenda.reached(float("inf")) == set()


# Workers that fetch over HTTP


# The broker


def test_a_call_of_a_queue_that_the_broker_delivers_is_refused() -> None:
    RateLimitKey.objects.declare("exports", per_worker=2)
    for _ in range(2):
        with pytest.raises(CallInvalid, match="per_worker"):
            send(1, queue="posted", keys=["exports"])
        with pytest.raises(CallInvalid, match="per_worker"):
            CallQueue.objects.send("noop", queue="posted", keys=["exports"])
    with pytest.raises(CallInvalid, match="per_worker"):
        send(1, queue="posted", rate_limit={"key": "new", "per_worker": 1})
    assert not CallQueue.objects.exists()


def test_a_call_that_may_choose_such_a_key_for_a_group_is_refused(settings: Any) -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=2)
    RateLimitKey.objects.declare("egress:2", per_worker=2)
    for _ in range(2):
        with pytest.raises(CallInvalid, match=r"'posted' can't spend the key 'egress:2'.*per_worker"):
            send(1, queue="posted", keys=[any_of("egress:*")])
    settings.DISPATCHER = {**settings.DISPATCHER, "keys": {"ip:1": {"per_worker": 1}}}
    with pytest.raises(CallInvalid, match=r"'ip:1'.*per_worker"):
        CallQueue.objects.send("noop", queue="posted", keys=[any_of("ip:*")])
    assert len(send(1, keys=[any_of("egress:*")])) == 1


def test_a_limit_per_worker_is_refused_for_a_member_of_a_group_of_such_calls() -> None:
    RateLimitKey.objects.declare("egress:1", concurrency=2)
    send(1, queue="posted", keys=[any_of("egress:*")])
    for refused in (
        lambda: api.limit("egress:1", {"per_worker": 1}),
        lambda: api.declare("egress:2", {"per_worker": 1}),
        lambda: api.limit("egress:*", {"per_worker": 1}),
        lambda: send(1, rate_limit={"key": "egress:3", "per_worker": 1}),
    ):
        with pytest.raises(PolicyInvalid, match=r"'posted' can spend 'egress:.*per worker"):
            refused()
    assert not RateLimitKey.objects.exclude(per_worker=None).exists()


def test_the_broker_is_refused_for_a_queue_whose_calls_may_choose_such_a_key() -> None:
    RateLimitKey.objects.declare("egress:1", per_worker=2)
    send(1, keys=[any_of("egress:*")])
    with pytest.raises(CallInvalid, match="'egress:1'"):
        mixture.check_delivery("mail")


def test_a_limit_per_worker_is_refused_for_the_key_of_a_queue_without_calls(settings: Any) -> None:
    Queue.objects.create(name="stored", delivery="broker")
    settings.DISPATCHER = {**settings.DISPATCHER, "delivery": {"declared": "broker", "*": "direct"}}
    for queue in ("stored", "declared"):
        with pytest.raises(PolicyInvalid, match=queue):
            api.declare(f"queue:{queue}", {"per_worker": 1})
    assert api.declare("queue:free", {"per_worker": 1}).per_worker == 1


def test_a_limit_per_worker_is_refused_for_a_key_of_calls_that_the_broker_delivers() -> None:
    RateLimitKey.objects.declare("exports", concurrency=2)
    send(1, queue="posted", keys=["exports"])
    with pytest.raises(PolicyInvalid, match="posted") as refused:
        api.limit("exports", {"per_worker": 1})
    assert refused.value.field == "per_worker"
    with pytest.raises(PolicyInvalid, match="posted"):
        api.override("exports", until=timezone.now() + timedelta(hours=1), per_worker=1)
    with pytest.raises(PolicyInvalid, match="posted"):
        api.declare("queue:posted", {"per_worker": 1})


def test_the_broker_is_refused_for_a_queue_whose_calls_spend_such_a_key() -> None:
    RateLimitKey.objects.declare("exports", per_worker=2)
    send(1, keys=["exports"])
    with pytest.raises(CallInvalid, match="exports") as refused:
        mixture.check_delivery("mail")
    assert refused.value.field == "delivery"


def test_a_pass_for_the_broker_starts_none_where_a_mixture_arose() -> None:
    key = RateLimitKey.objects.declare("exports", concurrency=0)
    call = send(1, queue="posted", keys=["exports"])[0]
    RateLimitKey.objects.filter(pk=key.pk).update(concurrency=None, per_worker=5)
    lane = Lane.objects.get(queue="posted")
    Lane.objects.filter(pk=lane.pk).update(is_awake=True, is_held=False, parked_on=None)
    assert admit.admit(lanes=[lane.id]).calls == []
    assert Lane.objects.get(pk=lane.pk).parked_on_id == key.id
    assert seen(call).state == State.AVAILABLE
    wait = reports.why_waiting(call.pk)
    assert wait is not None
    assert (wait.stopped_by, wait.is_mixed) == ("exports", True)
    RateLimitKey.objects.filter(pk=key.pk).update(per_worker=None)
    assert engine.dispense(keys=[key.id]) == 1


def test_a_call_that_waits_for_another_worker_names_the_key() -> None:
    RateLimitKey.objects.declare("exports", per_worker=1)
    heartbeat.record(HERE, [])
    calls = send(2, keys=["exports"])
    take(2)
    wait = reports.why_waiting(calls[1].pk)
    assert wait is not None
    assert (wait.held_by, wait.limited_by) == ("mail", "exports")
    (status,) = reports.rate_limit_status(["exports"])
    assert status.as_json()["per_worker"] == {"limit": 1, "active": 1}
