"""Limits per worker: whom a call wakes, and what is refused and reported. What starts is in tests/behaviour."""

import pytest

from dispatcher import reports
from dispatcher.celery.feed_agenda import Agenda
from dispatcher.errors import CallInvalid
from dispatcher.groups import any_of
from dispatcher.lanes import mixture
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import Feed, Queue, RateLimitKey
from tests.builders import HERE, committed
from tests.steps.feeding import send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]


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


def test_the_broker_is_refused_for_a_queue_whose_calls_may_choose_such_a_key() -> None:
    RateLimitKey.objects.declare("egress:1", per_worker=2)
    send(1, keys=[any_of("egress:*")])
    with pytest.raises(CallInvalid, match="'egress:1'"):
        mixture.check_delivery("mail")


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
