"""The periodic tasks in a worker: a message wakes a thread, and a run that fails ends no thread."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.beat import Service
from celery.signals import beat_init
from django.db import OperationalError

from dispatcher import engine, tasks
from dispatcher.celery import heartbeat, periodic
from dispatcher.celery.periodic import PeriodicTasks
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import PeriodicRun
from tests.builders import committed
from tests.races.lockstep import eventually
from tests.steps.conftest import Broker, make_app

pytestmark = [committed, pytest.mark.pooler]

LONG_S = 10.0


class Work:
    """What a task does in these tests: it counts, and fails if it is to."""

    def __init__(self) -> None:
        self.runs = 0
        self.faults: list[Exception] = []
        self.may_end = Event()
        self.may_end.set()

    def __call__(self) -> int:
        self.runs += 1
        assert self.may_end.wait(LONG_S)
        if self.faults:
            raise self.faults.pop()
        return 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Return what the tick does."""
    work = Work()
    monkeypatch.setattr(engine, "tick", work)
    monkeypatch.setattr(engine, "recover", int)
    monkeypatch.setattr(engine, "cleanup", int)
    monkeypatch.setattr(periodic, "_extras", {})
    return work


@pytest.fixture
def step(work: Work, monkeypatch: pytest.MonkeyPatch) -> Iterator[PeriodicTasks]:
    """Return the step of a worker that takes the dispenser's queue, and that has not sent a heartbeat yet."""
    monkeypatch.setattr(heartbeat.Identity, "worker", uuid4())  # put back after the test
    monkeypatch.setattr(heartbeat.Identity, "has_direct", None)  # as above
    queues = SimpleNamespace(consume_from=["dispatcher"])
    worker: Any = SimpleNamespace(hostname="celery@here", app=SimpleNamespace(amqp=SimpleNamespace(queues=queues)))
    step = PeriodicTasks(worker)
    assert worker.dispatcher_periodic is step
    step.start(worker)
    yield step
    work.may_end.set()
    step.close(worker)
    step.stop(worker)


def deliver(
    step: PeriodicTasks | None, broker: Broker, name: str = TICK, **headers: Any
) -> tuple[list[str], list[str]]:
    """Deliver a message of a task; return what was acknowledged, and what went the way of all tasks."""
    acknowledged: list[str] = []
    reserved: list[str] = []
    consumer = SimpleNamespace(
        controller=SimpleNamespace(dispatcher_periodic=step, state=SimpleNamespace(revoked=set())),
        hostname="celery@here",
        connection_errors=(),
        event_dispatcher=None,
        timer=SimpleNamespace(call_at=None),
        apply_eta_task=lambda request: reserved.append(request.name),
        disable_rate_limits=True,
        task_buckets={},
        on_task_request=lambda request: reserved.append(request.name),
        pool=SimpleNamespace(apply_async=None),
        app=broker.app,
        qos=SimpleNamespace(increment_eventually=lambda: None),
    )
    consumer.timer.call_at = lambda *_, **__: reserved.append(name)
    consumer._limit_task = consumer._limit_post_eta = None  # noqa: SLF001 -- what Celery's strategy takes
    handle = periodic.strategy(broker.app.tasks[name], broker.app, consumer)
    broker.app.tasks[name].apply_async(queue="celery", **headers)
    (message,) = broker.take()
    handle(message, None, lambda *_: acknowledged.append(name), lambda *_: None, ())
    return acknowledged, reserved


def test_a_message_is_acknowledged_and_runs_in_a_thread(step: PeriodicTasks, work: Work, broker: Broker) -> None:
    assert deliver(step, broker) == ([TICK], [])
    eventually(lambda: work.runs == 1)
    eventually(PeriodicRun.objects.filter(name=TICK, ran_by=None).exists)


def test_a_task_that_another_package_registered_runs_in_a_thread(step: PeriodicTasks, work: Work) -> None:
    periodic.register("other", every=timedelta(seconds=1), run=work)
    step.ask("other")
    eventually(lambda: work.runs == 1)


def test_a_message_with_a_ticket_or_a_time_runs_like_that_of_any_other_task(
    step: PeriodicTasks, broker: Broker
) -> None:
    assert deliver(step, broker, headers={TICKET_HEADER: str(uuid4())}) == ([], [TICK])
    assert deliver(step, broker, countdown=5) == ([], [TICK])


def test_a_worker_without_the_step_runs_them_like_other_tasks(broker: Broker) -> None:
    assert deliver(None, broker) == ([], [TICK])


def test_a_task_whose_class_was_extended_is_sent_as_ever(broker: Broker) -> None:
    task = broker.app.tasks[TICK]
    before = type(task)
    task.__class__ = type("extended", (before,), {})
    try:
        task.apply_async(queue="celery")
    finally:
        task.__class__ = before
    (message,) = broker.take()
    assert message.headers["task"] == TICK


def test_messages_that_come_while_it_runs_are_one_run_more(step: PeriodicTasks, work: Work) -> None:
    work.may_end.clear()
    for _ in range(100):
        step.ask(TICK)
    eventually(lambda: work.runs == 1)
    for _ in range(100):
        step.ask(TICK)
    work.may_end.set()
    eventually(lambda: work.runs == 2)
    step.ask(TICK)
    eventually(lambda: work.runs == 3)


@pytest.mark.parametrize("fault", [OperationalError("gone"), RuntimeError("the broker")], ids=repr)
def test_a_run_that_fails_is_logged_and_the_next_one_runs(
    step: PeriodicTasks, work: Work, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    work.faults.append(fault)
    step.ask(TICK)
    eventually(lambda: caplog.messages)
    assert "could not run dispatcher.tick" in caplog.messages[0]
    step.ask(TICK)
    eventually(lambda: work.runs == 2)


def test_a_worker_that_stops_begins_nothing_more(step: PeriodicTasks, work: Work) -> None:
    step.close(step.worker)
    step.ask(TICK)
    step.stop(step.worker)
    assert not work.runs


def beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the worker have sent its first heartbeat."""
    monkeypatch.setattr(heartbeat.Identity, "has_direct", False)  # put back after the test


def test_a_worker_without_messages_ticks_again_and_again(
    step: PeriodicTasks, work: Work, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"tick": 0.02, "recover_every": 0.02}
    assert not work.runs
    beats(monkeypatch)
    eventually(lambda: work.runs > 5)
    assert PeriodicRun.objects.get(name=TICK).ran_by == heartbeat.Identity.worker
    assert {RECOVER, CLEANUP} < set(PeriodicRun.objects.values_list("name", flat=True))


def test_a_worker_with_the_setting_leaves_it_to_beat(
    step: PeriodicTasks, work: Work, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"tick": 0.02, "fallback_schedule": False}
    beats(monkeypatch)
    step.ask(TICK)
    eventually(lambda: work.runs == 1)
    assert set(PeriodicRun.objects.values_list("name", "ran_by")) == {(TICK, None)}


def test_a_tick_is_sent_without_an_event(broker: Broker) -> None:
    app = make_app("events", task_send_sent_event=True)
    app.set_current()
    sent: list[str] = []
    app.amqp._event_dispatcher = SimpleNamespace(publish=lambda kind, *_, **__: sent.append(kind))  # noqa: SLF001
    tasks.tick.apply_async(queue="celery")
    assert (len(broker.take()), sent) == (1, [])
    tasks.call.apply_async(({},), queue="celery")
    assert (len(broker.take()), sent) == (1, ["task-sent"])


def test_beat_writes_no_line_for_what_it_sends_every_second(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    beat_init.send(sender=Service(broker.app, schedule_filename="", scheduler_cls="celery.beat:Scheduler"))
    log = logging.getLogger("celery.beat")
    with caplog.at_level(logging.INFO, logger="celery.beat"):
        log.info("Scheduler: Sending due task %s (%s)", "tick", TICK)
        log.info("Scheduler: Sending due task %s (%s)", "mine", "shop.report")
        log.error("Message Error: %s", TICK)
    assert caplog.messages == ["Scheduler: Sending due task mine (shop.report)", f"Message Error: {TICK}"]
