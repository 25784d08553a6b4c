"""Flows of what goes down and comes back, the broker and the worker: nothing is lost, and no limit is broken."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery
from django.utils import timezone

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import State
from project.services import Services
from tests.flows import sample_tasks
from tests.flows.processes import Processes, all_ended, every
from tests.flows.settings import DISPATCHER, QUEUE
from tests.races.audit import audit, most_in_any_window, spent_by_key, use_now
from tests.races.lockstep import concurrent, eventually
from trials.chaos.proxy import Proxy

pytestmark = [concurrent, pytest.mark.usefixtures("sending"), pytest.mark.broker, pytest.mark.celery, pytest.mark.slow]


def test_what_is_sent_while_the_broker_is_down_is_published_when_it_is_back(worker: Processes) -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    nowhere = Celery("nowhere", task_cls="dispatcher.celery:DispatchedTask", set_as_current=False)
    nowhere.conf.update(broker_read_url="redis://127.0.0.1:1/0", broker_write_url="redis://127.0.0.1:1/0")
    nowhere.set_current()
    calls = [CallQueue.objects.send(sample_tasks.echo, args=["hello"], keys=["api"], queue=QUEUE) for _ in range(3)]
    engine.tick()
    assert [CallQueue.objects.get(id=call.id).state for call in calls] == ["dispatched", "dispatched", "available"]
    assert not CallQueue.objects.filter(published_at__isnull=False).exists()
    audit(has_ended=False)
    sample_tasks.app.set_current()
    eventually(lambda: engine.tick() or not CallQueue.objects.in_flight().filter(published_at=None).exists())
    eventually(all_ended)
    assert [worker.noted(call.id) for call in calls] == [1, 1, 1]
    audit()


@pytest.mark.smoke
def test_a_worker_that_dies_and_comes_back_to_a_full_broker_loses_nothing_and_breaks_no_limit(
    worker: Processes,
) -> None:
    relay = RateLimitKey.objects.declare("relay", rate=(6, 1))
    RateLimitKey.objects.declare("books", concurrency=1)
    first = CallQueue.objects.send(sample_tasks.nap, args=[60], keys=["books"], queue=QUEUE)
    CallQueue.objects.send(sample_tasks.echo, args=["next"], keys=["books"], queue=QUEUE)
    eventually(lambda: worker.noted(first.id))
    worker.stack.kill("worker")
    CallQueue.objects.filter(id=first.id).update(args=[0])
    with every(0.3, engine.tick), every(0.3, engine.recover):
        lost = eventually(CallQueue.objects.filter(id=first.id, state=State.AVAILABLE).first)
        assert [error["type"] for error in lost.errors] == ["WorkerLost"]
        CallQueue.objects.send_many([Call(task=sample_tasks.echo, args=["relay"], keys=["relay"], queue=QUEUE)] * 15)
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


@pytest.fixture
def broker_proxy(services: Services) -> Iterator[Proxy]:
    proxy = Proxy(services.broker_url)
    yield proxy
    proxy.close()


def test_a_call_that_runs_while_the_broker_is_cut_keeps_its_lease_and_runs_once(
    processes: Processes, broker_proxy: Proxy
) -> None:
    if "worker" in processes.stack.children:
        processes.stack.kill("worker")
    processes.start_worker(env={"CELERY_BROKER_URL": broker_proxy.url})
    processes.stack.wait_ready()
    RateLimitKey.objects.declare("api", concurrency=1)
    lease = DISPATCHER["run_lease"]
    try:
        with every(0.2, engine.tick), every(0.3, engine.recover):
            call = CallQueue.objects.send(sample_tasks.nap, args=[4 * lease.total_seconds()], keys=["api"], queue=QUEUE)
            behind = CallQueue.objects.send(sample_tasks.echo, args=["next"], keys=["api"], queue=QUEUE)
            eventually(lambda: processes.noted(call.id))
            connected = processes.stack.children["worker"].output().count("Connected to")
            broker_proxy.cut()
            broker_proxy.restore()
            eventually(lambda: processes.stack.children["worker"].output().count("Connected to") > connected)
            reconnected_at = timezone.now()
            renewed = Slot.objects.filter(call=call.id, lease_until__gt=reconnected_at + 1.5 * lease)
            eventually(renewed.exists)
            eventually(all_ended)
    finally:
        processes.stack.kill("worker")
    ended = CallQueue.objects.get(id=call.id)
    assert (ended.state, ended.attempt, ended.errors, processes.noted(call.id)) == (State.COMPLETED, 1, [], 1)
    assert processes.noted(behind.id) == 1
    audit()
