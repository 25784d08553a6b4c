"""Stories of what goes down and comes back, the broker and the worker: nothing is lost, and no limit is broken."""

from datetime import timedelta

import pytest
from celery import Celery
from django.utils import timezone

from dispatcher import engine
from dispatcher.calls import Call
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import TERMINAL, State
from tests.flows import stories
from tests.flows.settings import QUEUE
from tests.flows.theatre import Theatre, every
from tests.races.audit import audit, most_in_any_window, spent_by_key, use_now
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.usefixtures("sending")]


def all_ended() -> bool:
    return not CallQueue.objects.exclude(state__in=TERMINAL).exists()


def test_what_is_sent_while_the_broker_is_down_is_published_when_it_is_back(worker: Theatre) -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    nowhere = Celery("nowhere", task_cls="dispatcher.celery:DispatchedTask", set_as_current=False)
    nowhere.conf.update(broker_read_url="redis://127.0.0.1:1/0", broker_write_url="redis://127.0.0.1:1/0")
    nowhere.set_current()
    calls = [CallQueue.objects.send(stories.echo, args=["hello"], keys=["api"], queue=QUEUE) for _ in range(3)]
    engine.tick()
    assert [CallQueue.objects.get(id=call.id).state for call in calls] == ["dispatched", "dispatched", "available"]
    assert not CallQueue.objects.filter(published_at__isnull=False).exists()
    audit(has_ended=False)
    stories.app.set_current()
    eventually(lambda: engine.tick() or not CallQueue.objects.in_flight().filter(published_at=None).exists())
    eventually(all_ended)
    assert [worker.noted(call.id) for call in calls] == [1, 1, 1]
    audit()


def test_a_worker_that_dies_and_comes_back_to_a_full_broker_loses_nothing_and_breaks_no_limit(
    worker: Theatre,
) -> None:
    relay = RateLimitKey.objects.declare("relay", rate=(6, 1))
    RateLimitKey.objects.declare("books", concurrency=1)
    first = CallQueue.objects.send(stories.nap, args=[60], keys=["books"], queue=QUEUE)
    CallQueue.objects.send(stories.echo, args=["next"], keys=["books"], queue=QUEUE)
    eventually(lambda: worker.noted(first.id))
    worker.stack.kill("worker")
    CallQueue.objects.filter(id=first.id).update(args=[0])
    with every(0.3, engine.tick), every(0.3, engine.recover):
        lost = eventually(CallQueue.objects.filter(id=first.id, state=State.AVAILABLE).first)
        assert [error["type"] for error in lost.errors] == ["WorkerLost"]
        CallQueue.objects.send_many([Call(task=stories.echo, args=["relay"], keys=["relay"], queue=QUEUE)] * 15)
        sent_at = timezone.now()
        # Nothing has started, so nothing leaves the window however long it takes.
        eventually(lambda: timezone.now() > sent_at + timedelta(seconds=1.2))
        assert use_now(["relay", "books"]) == {"relay": 6, "books": 1}
        worker.start_worker()
        worker.stack.wait_ready()
        eventually(all_ended)
    assert most_in_any_window(spent_by_key()[relay.id], timedelta(seconds=1)) == 6
    assert set(CallQueue.objects.values_list("state", flat=True)) == {State.COMPLETED}
    assert CallQueue.objects.get(id=first.id).attempt == 2
    audit()
